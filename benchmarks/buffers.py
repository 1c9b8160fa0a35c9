"""Memory of the results that a worker has, each buffer once.

Dask counts the bytes of every result.  Results that are views of one array, and tuples and the
parts that were picked from them, take the memory of that array once; a view keeps all of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from dask.sizeof import sizeof


class Buffers:
    """The buffers of some values, and the peak of their bytes.

    Buffers that are freed while their value has a name, because that was written to disk, count no
    longer, as far as Python can tell.
    """

    def __init__(self) -> None:
        self.nbytes = self.peak = 0
        self._of: dict[Hashable, list[int]] = {}
        #: By identity of a buffer: its bytes, and the number of values that have it.
        self._known: dict[int, list[int]] = {}
        self._watched: dict[int, weakref.ref[Any]] = {}

    def add(self, key: Hashable, value: Any) -> None:
        """Count the buffers of a value.

        Parameters
        ----------
        key
            A name of the value.
        value
            The value.
        """
        if key in self._of:
            return
        found = {id(buffer): buffer for buffer in _buffers(value)}
        self._of[key] = list(found)
        for number, buffer in found.items():
            if number in self._known:
                self._known[number][1] += 1
                continue
            size = sizeof(buffer)
            self._known[number] = [size, 1]
            self.nbytes += size
            # not all objects can have references of this kind
            with suppress(TypeError):
                self._watched[number] = weakref.ref(buffer, lambda _, n=number: self._free(n))
        self.peak = max(self.peak, self.nbytes)

    def remove(self, key: Hashable) -> None:
        """Count the buffers of a value no longer.

        Parameters
        ----------
        key
            The name of the value; nothing happens if there is none of this name.
        """
        for number in self._of.pop(key, ()):
            if number in self._known:
                self._known[number][1] -= 1
                if not self._known[number][1]:
                    self._free(number)

    def _free(self, number: int) -> None:
        self._watched.pop(number, None)
        self.nbytes -= self._known.pop(number, (0, 0))[0]


def _buffers(value: Any) -> Iterator[Any]:
    """The objects that own the memory of a value."""
    if isinstance(value, tuple | list):
        for part in value:
            yield from _buffers(part)
        return
    if isinstance(value, np.ma.MaskedArray):
        yield from _buffers((value.data, np.ma.getmask(value)))
        return
    owner = value
    while isinstance(owner, np.ndarray | memoryview):
        inner = owner.obj if isinstance(owner, memoryview) else owner.base
        if inner is None:
            break
        owner = inner
    yield owner
