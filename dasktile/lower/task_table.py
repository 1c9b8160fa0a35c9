"""The tasks of a graph by number, as runs are formed of them, and their phases.

The *phase* of a task is the number of changes of home on the longest path to it, or more where it
waits for its readers.  Phases depend on homes, reads and sizes alone.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dasktile.lower.run_order import SAME_SIZE, Arrange, Edges, peak, run_order, step_order

Home = Hashable


@dataclass(frozen=True)
class TaskTable:
    """The tasks of a graph, by number.

    Parameters
    ----------
    reads
        For every task, the numbers of the tasks that it reads, ascending.
    homes
        Home of every task; None for a task that no run may contain.
    sizes
        Bytes of every result; 0 if they are unknown.
    counts
        Tasks that Dask would run for a task: 0 if Dask fuses it with its only reader, else 1.
    kept
        Tasks whose results are wanted.
    sources
        Tasks that read no task of another kind: their phase is 0.
    loose
        Tasks that may run elsewhere than at their home, unless a run contains them.
    cuts
        Tasks that cut a part of one result, and take hardly any time.
    working
        Bytes that every task holds while it runs, besides its inputs and its result; empty if
        none does.
    gathered
        The wanted results that the client takes out of tuples; the others must have keys of their
        own.
    unknown
        Tasks of which it is unknown how long they take.
    arrange
        The function that orders the tasks, as `run_order` does.
    edges
        What follows from the reads, if it is known already.
    """

    reads: Sequence[Sequence[int]]
    homes: Sequence[Home | None]
    sizes: Sequence[int]
    counts: Sequence[int]
    kept: Collection[int] = ()
    sources: Collection[int] = ()
    loose: Collection[int] = ()
    cuts: Collection[int] = ()
    working: Sequence[int] = ()
    gathered: Collection[int] = ()
    unknown: Collection[int] = ()
    arrange: Arrange = run_order
    edges: Edges | None = None

    @cached_property
    def known(self) -> Edges:
        """What follows from the reads."""
        return self.edges or Edges(self.reads)

    @property
    def readers(self) -> list[list[int]]:
        """For every task, the tasks that read it."""
        return self.known.readers

    @cached_property
    def in_steps(self) -> TaskTable:
        """The same tasks, in `step_order`."""
        return replace(self, arrange=step_order, edges=self.known)

    @cached_property
    def phases(self) -> list[int]:
        """The phase of every task; see :func:`task_phases`."""
        return task_phases(self)

    @cached_property
    def order(self) -> list[int]:
        """All tasks in the order from which runs are cut."""
        return self.arrange(self.reads, self.sizes, self.homes, set(self.kept), self.known)

    def saves_in_steps(self, share: float) -> bool:
        """Whether the tasks need much less memory in `step_order`, if they run one by one.

        Parameters
        ----------
        share
            Bytes of results at one home at most, over those in the order of this table, below which
            they are much less.
        """
        what = self.reads, self.sizes, self.homes, set(self.kept)
        least = share * peak(self.order, *what)
        return peak(self.in_steps.order, *what, enough=least) < least


def task_phases(table: TaskTable) -> list[int]:
    """The phase of every task.

    A task whose result takes as much memory as its inputs is in the phase of its first reader, if
    all its readers have its home: it runs in one bundle with a reader, which Dask would fuse it
    with.  A cut waits only if it takes no less memory.
    """
    order = table.known.inputs_first
    phases = _first_phases(table, order)
    readers, homes = table.readers, table.homes
    fixed = {*table.kept, *table.sources}
    for number in reversed(order):
        home, after = homes[number], readers[number]
        if number in fixed or home is None or not after:
            continue
        late = min([phases[reader] for reader in after])
        if late == phases[number] or (not table.reads[number] and len(after) > 1):
            continue
        if any(homes[reader] != home for reader in after):
            continue
        # inputs that would be in memory for longer
        kept = sum(
            table.sizes[read]
            for read in table.reads[number]
            if all(phases[other] < late or other == number for other in readers[read])
        )
        # a cut takes no time, and a result that it is cut from may have other parts
        if table.sizes[number] * (1 if number in table.cuts else SAME_SIZE) >= kept:
            phases[number] = late
    return phases


def _first_phases(table: TaskTable, order: Sequence[int]) -> list[int]:
    """The number of changes of home on the longest path to every task."""
    reads, homes = table.reads, table.homes
    phases = [0] * len(reads)
    for number in order:
        if number in table.sources:
            continue
        home, latest = homes[number], 0
        for read in reads[number]:
            there, phase = homes[read], phases[read]
            # data that the graph contains is everywhere
            if (home is None or there != home) and (there is not None or reads[read]):
                phase += 1
            if phase > latest:
                latest = phase
        phases[number] = latest
    return phases
