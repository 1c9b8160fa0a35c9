"""Memory of the results that a worker has, each buffer once.

Dask counts the bytes of every result.  Results that are views of one array, and tuples and the
parts that were picked from them, take the memory of that array once; a view keeps all of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
from dask.sizeof import sizeof


class Buffers:
    """The buffers of some values, and the peak of their bytes."""

    def __init__(self) -> None:
        self.nbytes = self.peak = 0
        self._of: dict[Hashable, dict[int, int]] = {}
        self._users: dict[int, int] = {}

    def add(self, key: Hashable, value: Any) -> None:
        """Count the buffers of a value.

        Parameters
        ----------
        key
            A name of the value.
        value
            The value, which is not released before the key is removed.
        """
        if key in self._of:
            return
        self._of[key] = found = dict(_buffers(value))
        for buffer, size in found.items():
            users = self._users.get(buffer, 0)
            self._users[buffer] = users + 1
            self.nbytes += 0 if users else size
        self.peak = max(self.peak, self.nbytes)

    def remove(self, key: Hashable) -> None:
        """Count the buffers of a value no longer.

        Parameters
        ----------
        key
            The name of the value; nothing happens if there is none of this name.
        """
        for buffer, size in self._of.pop(key, {}).items():
            self._users[buffer] -= 1
            if not self._users[buffer]:
                del self._users[buffer]
                self.nbytes -= size


def _buffers(value: Any) -> Iterator[tuple[int, int]]:
    """The identity and bytes of every buffer of a value."""
    if isinstance(value, tuple | list):
        for part in value:
            yield from _buffers(part)
        return
    owner = value
    while isinstance(owner, np.ndarray | memoryview):
        inner = owner.obj if isinstance(owner, memoryview) else owner.base
        if inner is None:
            break
        owner = inner
    yield id(owner), sizeof(owner)
