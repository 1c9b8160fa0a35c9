"""The numbers of a plan: what it is predicted to move, hold and run, before and after."""

from __future__ import annotations

from dataclasses import dataclass

from dasktile.report.rows import NodeReport

#: Difference of the bytes that a plan moves as it runs from those that the model counts, as a share
#: of these, and in all, above which they are predicted instead (chosen: the error that a prediction
#: may have; positions, counts beside sums).
_CLEARLY_OTHER, _LITTLE = 0.05, 100_000


@dataclass(frozen=True)
class PlanReport:
    """The predicted cost of an expression, before and after: the attributes of an explanation.

    Parameters
    ----------
    workers
        Processes that send bytes to each other.
    method
        The tiling method.
    bytes_before, bytes_after
        Bytes moved between workers, with the input's own chunks and with the plan's,
        both predicted by the same model, which places every task on its best worker.
    read_before, read_after
        Bytes read from storage.
    tasks_before, tasks_after
        Number of tasks.
    lower_bound
        Bytes that every tiling in the model that uses the workers of a grid evenly moves between
        workers at least; 0 if no bound is known.
    proven_optimal
        True if no such tiling moves fewer bytes.
    changed
        False if the input is returned unchanged.
    verdict
        Why the input is returned unchanged, in one sentence; empty if it is not.
    nodes
        One row for every array of the expression, inputs first.
    spilled_before, spilled_after
        Bytes written to disk and read back because arrays that several passes read do not fit
        in memory: `room`, or `assumed_room` where that is unknown; 0 if both are.
    balance_before, balance_after
        The busiest worker's operations over the mean; 1 is even.
    seconds_before, seconds_after
        Predicted run time in seconds, that of planning left out: of the simulated graphs, with the
        measured speeds, and of the functions.  Of a graph that is not simulated, the overhead of
        its tasks is in place of the first, without the time that bytes take.  Reading from storage
        is left out.  None without a measurement (``dasktile.calibrate``).
    peak_before, peak_after
        Bytes in memory of the worker that holds most, in a simulation of the graph as Dask runs it
        and of the plan's, with the arrays left on the workers: results of tasks, those within
        bundles while these run, and the copies of some functions, as of zarr, of flox and of those
        that skip NaNs.  What other functions allocate is not included, nor inputs that are in
        memory already.  Nothing is spilled.  None if the sizes of results are not known
        well enough, and for graphs of very many tasks.
    results_before, results_after
        The same without what tasks hold while they run: what distributed calls managed memory.
    room
        Bytes of results that a worker holds before it spills, besides inputs that are in memory
        already; None if that is unknown.
    memory
        Bytes that a worker may have in all; None if that is unknown.
    results_by_worker
        As `results_after`, for each worker; empty where that is None.
    largest_task
        Bytes of the task that has most in memory at once, as the graph runs: its inputs, its
        result, and what it holds besides.  Workers that have less cannot run it, whatever they
        spill.  None where `results_after` is.
    run_tasks_before, run_tasks_after, received_before, received_after
        Tasks that run, blocks in memory and aliases included, and bytes that workers receive from
        each other, in the same simulation: of Dask's own graph, whose tasks Dask places, and of
        the plan's, bundles counting as one.  No bytes without the scheduler plugin.  Where blocks
        of inputs are on workers already, those of Dask's own graph are known roughly: they are
        given only where they are far more than `bytes_predicted`, which then is `received_after`.
    joined
        Bytes of the largest result of several blocks, on a cluster: ``dask.compute`` joins it on
        one worker, which `peak_after` does not contain; ``dasktile.compute`` in the client.
    grids
        The grids of workers for which `lower_bound` holds, in words; empty where it is 0.
    counts_unneeded
        Whether `bytes_before`, `bytes_after` and `lower_bound` count blocks that are not computed,
        as they are not needed.
    unpredicted
        Why there is no simulation; empty if there is one.
    uncounted
        Numbers of the rows of which it is unknown which blocks their tasks read, such as those of
        functions of the user.  `bytes_before`, `bytes_after` and the bound have the least that
        these can receive; `received_after` has what they do receive, as far as sizes are known.
    assumed_room
        Bytes of results that a worker is assumed to hold where `room` is unknown: a given
        `memory_limit` times the threads of a worker; None without a limit.
    refused
        True if ``optimize`` raises a ``TooManyTasksError``: the memory limit makes too many tasks.
    in_chunks
        True if the chunks of the results were given.
    bundle
        Tasks of the model that one task of the plan's graph runs at the most; 0 if they are not
        bundled, as without the scheduler plugin.
    in_memory
        True if workers have blocks of the input in memory already.  The bytes received by Dask's
        own graph are then predicted only where they are far more than those of the plan, or where
        it is kept because it moves fewer.
    bytes_unplanned
        Bytes that tasks of one operation receive from each other, or those of an earlier plan in
        the same graph, which the model does not count; 0 if they are few or unknown.
    planned
        True if the input is what ``optimize`` returned.  *before* and *after* then are the numbers
        of what it was given, and of the input; `changed` is False.
    scheduler_workers
        Workers as Dask's scheduler counts them: more than `workers` where several are in one
        process, which share memory and count as one; 0 without a client.
    used_workers, bytes_on_all
        Workers whose grids the plan uses where these are better than those of all `workers`, and
        the bytes that the best plan for all workers moves; None elsewhere.
    received_between_hosts
        Those of the bytes of `received_after` that come from workers of other hosts; None where all
        workers are on one host, where `received_after` is None, and without a plan.
    earlier_workers
        Numbers of workers, other than `workers`, for which parts of the input were optimised.
    busiest_link_before, busiest_link_after
        Those of the bytes of `received_before` and `received_after` that the busiest worker
        receives, or sends, whichever are more; None where those are, and where blocks of the
        input are in memory already.
    counts_all
        False where workers receive more bytes than the model counts, and it is unknown how many:
        tasks read unknown blocks, or several make one block, and results have unknown sizes.
    """

    workers: int
    method: str
    bytes_before: int
    bytes_after: int
    read_before: int
    read_after: int
    tasks_before: int
    tasks_after: int
    lower_bound: int
    proven_optimal: bool
    changed: bool
    verdict: str
    nodes: tuple[NodeReport, ...]
    balance_before: float = 1.0
    balance_after: float = 1.0
    seconds_before: float | None = None
    seconds_after: float | None = None
    spilled_before: int = 0
    spilled_after: int = 0
    peak_before: int | None = None
    peak_after: int | None = None
    results_before: int | None = None
    results_after: int | None = None
    room: int | None = None
    memory: int | None = None
    results_by_worker: tuple[int, ...] = ()
    largest_task: int | None = None
    joined: int = 0
    grids: str = ""
    run_tasks_before: int | None = None
    run_tasks_after: int | None = None
    received_before: int | None = None
    received_after: int | None = None
    unpredicted: str = ""
    refused: bool = False
    in_chunks: bool = False
    uncounted: tuple[int, ...] = ()
    assumed_room: int | None = None
    bundle: int = 0
    in_memory: bool = False
    bytes_unplanned: int = 0
    planned: bool = False
    scheduler_workers: int = 0
    used_workers: int | None = None
    bytes_on_all: int | None = None
    received_between_hosts: int | None = None
    earlier_workers: tuple[int, ...] = ()
    counts_unneeded: bool = False
    busiest_link_before: int | None = None
    busiest_link_after: int | None = None
    counts_all: bool = True

    @property
    def has_plan(self) -> bool:
        """Whether the numbers after are those of a plan."""
        return self.changed or self.planned

    @property
    def keeps_all_chunks(self) -> bool:
        """Whether there is a plan in which all arrays keep their chunks."""
        return self.has_plan and all(node.chunks_before == node.chunks_after for node in self.nodes)

    @property
    def is_comparable(self) -> bool:
        """Whether the bytes moved before are as complete as those after.

        Steps of which it is unknown what they read may be counted with the tiles of the plan only.
        """
        return not self.uncounted or self.bytes_after <= self.bytes_before

    @property
    def bytes_counted(self) -> int:
        """Bytes of the plan by the model, those of earlier plans and within operations included."""
        return self.bytes_after + self.bytes_unplanned

    @property
    def bytes_predicted(self) -> int | None:
        """Bytes that workers receive from each other: of the plan, or of Dask's own graph.

        None where `counts_all` is False.

        For a plan, ``dasktile.metrics`` shows `bytes_counted`.  Where the input is unchanged, the
        tasks run where Dask's scheduler places them; without a simulation of that, it is
        `bytes_before`.  Where a plan only decides where tasks run, or clearly moves other bytes as
        it runs, they are those of the simulation, too: the model counts blocks in boxes on a grid
        of workers, each array for itself, and workers run chains of tasks as one.
        """
        if not self.counts_all:
            return None
        if self.has_plan:
            counted, moved = self.bytes_counted, self.received_after
            if moved is not None and (
                self.keeps_all_chunks
                or abs(moved - counted) > max(_CLEARLY_OTHER * counted, _LITTLE)
            ):
                return moved
            return counted
        return self.bytes_before if self.received_before is None else self.received_before
