"""Tasks that wait on distributed's scheduler until a worker has a free slot, and their families."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from dask.utils import key_split

from dasktile.schedule.edges import readers_of
from dasktile.schedule.families import FamilyLimits, families_of_graph

#: Tasks that a group reads whose tasks wait until a worker has a free slot: fewer than this
#: (the default of distributed's ``rootish-taskgroup-dependencies``).
FEW_READ = 5


def group_of(key: Any) -> Any:
    """The name of the group that distributed puts a task in."""
    return key[0] if isinstance(key, tuple) and key else key_split(key)


def of_large_groups(
    reads: Sequence[Sequence[int]], groups: Sequence[Any], threads: int
) -> set[int]:
    """The tasks of groups that are large and read few tasks, as distributed counts them.

    Parameters
    ----------
    reads, groups
        Of every task, the tasks that it reads, and its group.
    threads
        Threads of all workers.
    """
    sizes = Counter(groups)
    before: dict[Any, set[Any]] = {}
    for at, inputs in enumerate(reads):
        before.setdefault(groups[at], set()).update(groups[read] for read in inputs)
    large = {
        group
        for group, size in sizes.items()
        if size > 2 * threads and sum(sizes[other] for other in before[group]) < FEW_READ
    }
    return {at for at, group in enumerate(groups) if group in large}


def families_of(
    roots: Sequence[int], reads: Sequence[Sequence[int]], data: Collection[int], threads: int
) -> list[list[int]]:
    """The families of root tasks, as the scheduler plugin divides them.

    Parameters
    ----------
    roots
        The tasks, in the order of their priorities.
    reads
        Of every task, the tasks that it reads.
    data
        Tasks that are data of the graph.
    threads
        Threads of all workers.
    """
    readers = readers_of(reads)

    def count_reads(at: int) -> int:
        return sum(read not in data for read in reads[at])

    return families_of_graph(roots, threads, readers.__getitem__, count_reads, FamilyLimits())
