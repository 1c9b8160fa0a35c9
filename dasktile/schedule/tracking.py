"""What a store does before a residency decides: rules of workers and of their simulation.

While memory is rather empty there is nothing to decide.  Results are *untracked* then: known to the
store, and not to its :class:`~dasktile.schedule.residency.Residency`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from dasktile.schedule.instructions import DYING

#: Share of the capacity of memory that untracked results may take (that above which a residency
#: looks at dying tiles).
ROOMY = 0.5

#: Type of the names of results.
Name = TypeVar("Name", bound=Hashable)


def first_use(uses: Iterable[float | None]) -> float | None:
    """The next use of memory that several results share: that of the first of them.

    Parameters
    ----------
    uses
        As :meth:`Residency.add` takes them.
    """
    known = []
    for use in uses:
        if use is None:
            return None
        if not math.isnan(use):
            known.append(use)
    return min(known, default=DYING)


class Untracked(Generic[Name]):
    """Results that the residency does not know; several may be in one memory.

    Attributes
    ----------
    nbytes
        Bytes of their memory.
    requests
        Requests for them that are not released, by name.
    """

    def __init__(self) -> None:
        #: An identifier of the memory of every result, and its bytes.
        self._memory: dict[Name, tuple[Hashable, int]] = {}
        self._results: dict[Hashable, int] = {}
        self.nbytes = 0
        self.requests: dict[int, Sequence[Name]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._memory

    def __len__(self) -> int:
        return len(self._memory)

    def __iter__(self) -> Iterator[Name]:
        return iter(self._memory)

    def add(self, name: Name, memory: Hashable, nbytes: int) -> None:
        """Add a result in a memory of some bytes."""
        self._memory[name] = memory, nbytes
        results = self._results.get(memory, 0)
        if not results:
            self.nbytes += nbytes
        self._results[memory] = results + 1

    def remove(self, name: Name) -> None:
        """Remove a result."""
        memory, nbytes = self._memory.pop(name)
        results = self._results.pop(memory) - 1
        if results:
            self._results[memory] = results
        else:
            self.nbytes -= nbytes
