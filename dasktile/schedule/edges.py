"""The edges of a graph of tasks, by number."""

from __future__ import annotations

from collections.abc import Sequence


def readers_of(reads: Sequence[Sequence[int]]) -> list[list[int]]:
    """For every task, the tasks that read it, ascending.

    Parameters
    ----------
    reads
        For every task, the numbers of the tasks that it reads.
    """
    readers: list[list[int]] = [[] for _ in reads]
    for reader, numbers in enumerate(reads):
        for number in numbers:
            readers[number].append(reader)
    return readers
