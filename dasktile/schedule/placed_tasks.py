"""The tasks of a graph, and where they run: what a simulated run is made of."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PlacedTasks:
    """The tasks of a graph, by number, and where they run.

    Parameters
    ----------
    reads
        For every task, the numbers of the tasks that it reads.
    sizes
        Bytes of every result.
    priorities
        Of every task; among those that can run, a worker runs the one with the lowest first.
    homes
        The worker of every task, from 0; None for any worker.
    working
        Bytes that a task holds while it runs, besides its inputs and its result.
    kept
        Tasks whose results are in memory to the end.
    data
        Tasks that are data of the graph: they take no time, and every worker has them.
    aliases
        Tasks whose result is that of the only task that they read, in the same memory.
    parts
        Tasks whose result is a part of the result of the only task that they read, in the same
        memory.
    shared
        Bytes of every result that take no memory where it is made, as those of an array beside a
        transposed view of it.
    there
        Tasks whose results are in memory at the start, and the worker of each.  They stay there,
        and count for no peak.
    joins
        Tasks of any worker that run where most bytes of what they read are, see
        :func:`~dasktile.schedule.joining.worker_of_join`.
    families
        Root tasks of any worker of which the tasks of each family run on one, see
        :func:`~dasktile.schedule.families.families_of_graph`.
    queued
        Tasks of any worker that wait until one has a free slot, as all without inputs do.
    keys
        For every task, the keys of those that are fused into it.
    """

    reads: Sequence[Sequence[int]]
    sizes: Sequence[int]
    priorities: Sequence[float]
    homes: Sequence[int | None]
    working: Sequence[int] = ()
    kept: Collection[int] = ()
    data: Collection[int] = ()
    aliases: Collection[int] = ()
    parts: Collection[int] = ()
    shared: Sequence[int] = ()
    there: Mapping[int, int] = field(default_factory=dict)
    joins: Collection[int] = ()
    families: Sequence[Sequence[int]] = ()
    queued: Collection[int] = ()
    keys: Sequence[Sequence[Hashable]] = ()
