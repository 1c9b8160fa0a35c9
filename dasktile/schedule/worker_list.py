"""A list of workers in which the place of each is found without a look at the others."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any

#: Distance of the labels of neighbours at first: a power of two, so that it can be halved often.
_GAP = 1 << 64


class WorkerList:
    """Addresses of workers in an order, each with a label: a number that increases along the order.

    A worker that is added or removed changes no other label, except where so many were added at the
    same place that no number is left between two labels.

    Parameters
    ----------
    addresses
        The workers, in order.

    Attributes
    ----------
    addresses
        The workers, in order: always the same list.
    """

    def __init__(self, addresses: Iterable[str]) -> None:
        self.addresses = list(addresses)
        self._label_all()

    def _label_all(self) -> None:
        self._labels = {address: number * _GAP for number, address in enumerate(self.addresses)}

    def __contains__(self, address: object) -> bool:
        return address in self._labels

    def __len__(self) -> int:
        return len(self.addresses)

    def replace(self, addresses: Iterable[str]) -> None:
        """Contain other workers."""
        self.addresses[:] = addresses
        self._label_all()

    def place(self, address: str) -> tuple[float, str]:
        """Sort key for addresses: their order, with unknown workers last."""
        return self._labels.get(address, math.inf), address

    def insert(self, index: int, address: str) -> None:
        """Add a worker at an index of the list; past its end is at the end."""
        index = min(index, len(self.addresses))
        self.addresses.insert(index, address)
        after = self._label_at(index + 1)
        before = self._label_at(index - 1)
        if before is None or after is None:
            label = 0
            if before is not None:
                label = before + _GAP
            elif after is not None:
                label = after - _GAP
        elif after - before > 1:
            label = (before + after) // 2
        else:
            self._label_all()
            return
        self._labels[address] = label

    def _label_at(self, index: int) -> int | None:
        if not 0 <= index < len(self.addresses):
            return None
        return self._labels[self.addresses[index]]

    def insert_by(self, address: str, key: Callable[[str], Any]) -> None:
        """Add a worker to a list that is sorted by a key."""
        self.insert(bisect_left(self.addresses, key(address), key=key), address)

    def remove(self, address: str) -> int:
        """Remove a worker; returns the index that it had."""
        label = self._labels[address]
        index = bisect_left(self.addresses, label, key=self._labels.__getitem__)
        del self.addresses[index], self._labels[address]
        return index
