"""Numbers of the policy by which graphs are written; none of them changes a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LowerSettings:
    """Limits of the tasks that are written.

    Parameters
    ----------
    fuse_factor
        Bytes of all results that one fused task may make, as a multiple of those of a usual
        task (:class:`dasktile.tiling.settings.Settings`) (chosen: a fused task that is lost
        with its worker is repeated as a whole).
    max_tasks
        Tasks of a graph above which no tasks are fused (chosen: fusion takes time in
        proportion to them, before anything runs).
    input_share
        Bytes that a fused task or a bundle may read, if they are more than any of its tasks
        reads, as a share of the bytes that it may make or have in memory (chosen).
    max_rounds
        Times that groups are formed, each with more pairs of layers kept separate; no tasks
        are fused if the groups of the last round still break a rule (chosen).
    anchor_bytes
        Bytes of a tile below which Dask may fuse the task that makes it with a reader on
        another worker: a separate task would cost more than the transfer of its inputs
        (chosen).
    copied_bytes
        Bytes of an array from which each worker that needs several blocks in one piece joins them
        itself, for an operation tile by tile (chosen; operands of products always are).
    fan_in
        Partial results that one task combines.  The cost model assumes the same number
        (``CostModel.fan_in``).
    bundle_results
        Bytes that a bundle may return, as a share of those that it may have in memory (chosen:
        they are in memory until the last reader of any of them has run).
    bundles_per_thread
        Least number of bundles of one home and phase for every thread of the worker (chosen: one
        runs while the inputs of another are received).
    bundles_per_thread_if_unknown
        The same for workers of several threads where a task calls a function of which it is unknown
        how long it takes (chosen: threads that have run their bundles wait for the others; a task
        more takes some milliseconds, such a function may take any time).
    bundle_task_bytes
        Bytes that are kept in memory from one bundle to a later one for a task less (that of the
        cost model, ``dasktile.cost.task-bytes``).
    bundle_remaining
        Tasks of one home and phase that remain at most, bundles and picks included, as a share
        of those before; otherwise there are no bundles of them (chosen).
    steps_save
        Memory of a graph whose sums of products get one term each in turn, as a share of that of
        its usual order, below which it is tried (chosen).
    near_inputs
        Share of the bytes of a task's inputs above which it runs on the worker that has them
        (chosen).
    many_inputs, equal_inputs
        Inputs for each worker that has some above which a task combines the results of these
        workers; and the share of the bytes of the worker that has most with which it may run on
        another one (chosen).
    unplanned
        Bytes received over those that the plan predicts, above which the difference is predicted,
        too (chosen: counts beside sums are not worth it).
    divided_share, divided_groups, divided_balance
        Share of the tasks of a graph that have no place, from which these are divided among the
        workers; groups of them for each worker at least; and tasks of the worker with most over
        the mean at most (chosen).
    most_pieces
        Pieces that tiles are joined from, over the blocks and the tiles, above which neighbouring
        blocks are joined first (chosen).
    most_growth
        Tasks of a plan's graph over those of the input's graph, above which the tasks more must be
        worth the bytes saved (chosen: the tasks that Dask fuses are in neither count).
    """

    fuse_factor: int = 4
    max_tasks: int = 50_000
    input_share: float = 0.25
    max_rounds: int = 20
    anchor_bytes: int = 2**17
    copied_bytes: int = 2**20
    fan_in: int = 8
    bundle_results: float = 0.25
    bundles_per_thread: int = 3
    bundles_per_thread_if_unknown: int = 6
    bundle_task_bytes: float = 0.8e6
    bundle_remaining: float = 0.75
    steps_save: float = 0.75
    near_inputs: float = 0.75
    many_inputs: int = 2
    equal_inputs: float = 0.9
    unplanned: float = 1.05
    divided_share: float = 0.5
    divided_groups: int = 3
    divided_balance: float = 1.25
    most_pieces: float = 4.0
    most_growth: float = 1.5


#: The numbers that are used unless a caller passes others.
DEFAULTS = LowerSettings()


@dataclass(frozen=True, slots=True)
class SlabSettings:
    """Slabs in which the join of an ``einsum`` is computed within a task.

    Parameters
    ----------
    nbytes
        Bytes of the joined values of one slab: they should fit the cache of a core (chosen).
    min_run
        Elements along the last label at which it is no longer halved for smaller slabs, as
        loops over short runs are slow (chosen).
    """

    nbytes: int = 2**20
    min_run: int = 256
