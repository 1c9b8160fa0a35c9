"""Numbers of the cost model and limits of the search, each with its unit and its source.

:class:`Settings` has what the configuration sets, and groups of numbers that it does not set.
Functions take the settings as an argument; nothing here is read from a global.

Sources are named in the docstrings: *measured* numbers were timed when the rule was written;
*chosen* numbers are trade-offs without a measurement.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class CostModel:
    """What operations, tiles and reads cost beside the bytes between workers.

    Parameters
    ----------
    byte_work
        Operations in the time that one byte takes to or from memory.  A core multiplies matrices
        at tens of Gflop/s and adds arrays at a few GB/s (measured on one core).
    einsum_slowdown
        Factor by which ``np.einsum`` on a block is slower than the matrix product that dasktile
        runs instead.  Measured on attention and regridding: 15 to 30 in stock blocks.
    shared_read
        Share of an array that counts as moved again for every further tile of a worker that reads
        the same part.  A scheduler without the plan spreads such tiles over workers (chosen).
    shared_read_placed
        The same where tasks run where the plan says: the part does not travel, but stays in
        memory meanwhile (chosen).
    missing_tile
        Tasks that each tile below the target costs every worker, because the worker idles while a
        tile travels (chosen).
    join_byte
        Cost of copying one byte within a worker to join tiles, in bytes moved (chosen).
    scarce_join_byte
        The same in plans for less memory, as a joined tile is in memory beside its pieces (chosen).
    kept_to_be_read
        Share of the bytes of a stored array that must be saved where its blocks keep their chunks
        and are read by the workers that need most of them (chosen).
    bundled_task
        Cost of a task that a bundle runs, as a share of the cost of a task (measured: a tenth to
        an eighth of the processor time for bundles of 16).
    over_limit
        What a working set of the memory limit costs, in bytes, where it is exceeded.  It is above
        any other cost, those of large arrays too, so that the limit decides (chosen).
    fan_in
        Partial results that one task of a reduction combines (chosen).
    stock_fan_in
        The same in Dask's own reductions (its default ``split_every``).
    exact_union
        Reads of one array by one node whose union is counted exactly; of more, the bounding box.
        The number of terms doubles with each read.
    """

    byte_work: float = 5.0
    einsum_slowdown: float = 16.0
    shared_read: float = 0.5
    shared_read_placed: float = 0.25
    missing_tile: float = 4.0
    join_byte: float = 0.75
    scarce_join_byte: float = 3.0
    kept_to_be_read: float = 0.1
    bundled_task: float = 0.125
    over_limit: float = 1e15
    fan_in: int = 8
    stock_fan_in: int = 4
    exact_union: int = 3


@dataclass(frozen=True, slots=True)
class CandidateLimits:
    """Which tilings of a node are candidates.

    Parameters
    ----------
    balance
        Largest worker's work over the mean that a candidate may have (chosen).  More only where
        the chunks that a node must keep allow no better.
    balance_slack
        Factor over the best balance that is allowed in that case (chosen).
    follow_balance
        The same limit where a product follows a persisted array.  It is above `balance`, since
        following moves nothing (chosen).
    follow_cheap_balance
        The same limit for other operations, which take less time than sending their inputs, and
        which Dask runs where these are (chosen; of up to three workers, one may do all of it).
    max_followed
        Persisted arrays that one node may follow, the largest ones first.
    small_share
        Nodes that together do less than this share of one worker's work need not be divided
        (chosen).
    scatter_axes
        Output axes along which a sum may be scattered, the longest ones first: further axes add
        candidates but never reduce the bytes moved.
    even_enough
        Largest part over the mean up to which an axis class keeps to boundaries that data already
        has (chosen).
    fine_enough
        Elements that a part of one length has at least.  Rounding up then costs 2 %
        (by definition: 1 / 50).
    replica_readers
        Readers that an array must have to be replicated in two shardings.  With two readers,
        resharding for the second one is as cheap.
    max_paired
        Tilings of one array that are paired each with each for a replica; of more, only those
        along one axis.
    """

    balance: float = 1.1
    balance_slack: float = 1.02
    follow_balance: float = 1.5
    follow_cheap_balance: float = 3.0
    max_followed: int = 4
    small_share: float = 0.05
    scatter_axes: int = 2
    even_enough: float = 1.25
    fine_enough: int = 50
    replica_readers: int = 3
    max_paired: int = 9


@dataclass(frozen=True, slots=True)
class LocalLimits:
    """How finely a worker's share is cut.

    Parameters
    ----------
    max_cuts
        Combinations of part counts among which the solver chooses for one node.
    many_tiles
        Factor over the target number of tiles beyond which no more are made for overlap.
    whole_share
        Weight of axes along which blocks of an input cannot be cut further, beside those of other
        axes, when an axis is chosen to be cut where memory is scarce (chosen).
    small_tiles
        ``min_tile`` and ``tiles_per_worker`` of plans for less memory, whose tasks are bundled, in
        the order in which they are tried (chosen).
    small_task
        ``usual_task`` of these plans (chosen).
    """

    max_cuts: int = 32
    many_tiles: int = 4
    whole_share: float = 2**-12
    small_tiles: tuple[tuple[int, int], ...] = ((2**20, 8), (2**18, 128))
    small_task: int = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Acceptance:
    """When a plan is taken instead of the input's own chunks.

    Parameters
    ----------
    max_cost_ratio
        A plan's cost over the input's must be below this (chosen: 2 % is within the error of
        the model).
    fewer_tasks_ratio
        Factor by which a plan with fewer tasks must be cheaper than the one that moves least.
    uneven
        Largest worker's work over the mean beyond which the input counts as uneven.  Only then may
        a plan move more bytes than the input, since one worker alone moves none.
    concentrated
        The same beyond which the input's chunks are not placed: few workers would have most of
        the work, and Dask leaves what follows where it is.
    most_unknown
        Bytes of arrays whose blocks take tasks that the program does not have, as a share of those
        of all arrays, beyond which it is unknown who has most of the work (chosen).
    max_recomputed
        Nodes that are recomputed for one array.
    max_recomputed_tries
        Arrays whose recomputation is tried one by one; further ones are tried together.
    """

    max_cost_ratio: float = 0.98
    fewer_tasks_ratio: float = 1.25
    uneven: float = 1.25
    concentrated: float = 2.0
    most_unknown: float = 0.5
    max_recomputed: int = 8
    max_recomputed_tries: int = 8


@dataclass(frozen=True, slots=True)
class WiderSearch:
    """When more tilings are searched: all orders of mesh axes, more axes, more candidates.

    A mesh of three axes has few ways to divide many workers: 64 are 4 x 4 x 4, but not 16 x 2 x 2.
    If two axes cut one label, the first of them cuts it into the larger parts; the other order is
    another tiling.  The limits keep these searches near a second (measured on the workloads of
    ``benchmarks/``).

    Parameters
    ----------
    few_nodes
        Nodes of a program at most.
    min_bytes
        Bytes that the first plan moves at least, except for the orders of two axes.
    few_sums
        Products and reductions of a program at most, for any number of workers; they have most
        candidates.
    few_workers
        Workers at most, for more of them.
    max_boxes
        Candidates of one node times workers at the most.
    bytes_per_sum
        Bytes moved, for every product or reduction but one, from which other meshes of three axes
        are searched.
    all_states
        Candidates for one node in all orders; products of two matrices have half as many.
    mesh_axes, lean_states
        Axes of the larger mesh for programs of more than `few_sums`, and candidates for one node
        there, without the tilings that hardly ever pay.
    """

    few_nodes: int = 40
    min_bytes: float = 16e6
    few_sums: int = 8
    few_workers: int = 16
    max_boxes: int = 300_000
    bytes_per_sum: float = 250e6
    all_states: int = 640
    mesh_axes: int = 4
    lean_states: int = 256


@dataclass(frozen=True, slots=True)
class SolverLimits:
    """How much work the solver does, in counts and not in seconds, so that plans repeat.

    Parameters
    ----------
    counted_neighbours
        Neighbours of a variable up to which its fill is counted.  Beyond that the worst is
        assumed: an array that hundreds of nodes read is eliminated last in any case.
    descent_forests
        Induced forests that take turns in the descent after a bucket was split.
    pruned_growth
        How many times as many elements as usual the largest table may have, where proofs are wanted
        and states that cannot be the best were left out.
    milp_pairs
        Pairs of states up to which the integer program is written.
    milp_nodes
        Nodes of the branch-and-bound tree.
    prices
        Prices of a byte of replicas that are tried, by bisection (20 halvings of the range).
    single_replicas
        Arrays whose replicas are tried one by one.
    exhaustive
        Assignments up to which the method ``"exhaustive"`` runs.
    """

    counted_neighbours: int = 12
    descent_forests: int = 16
    pruned_growth: int = 3
    milp_pairs: int = 20_000
    milp_nodes: int = 50
    prices: int = 20
    single_replicas: int = 24
    exhaustive: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Settings:
    """Constants of the cost model and limits of the search.

    Parameters
    ----------
    task_bytes
        Cost of scheduling one task, in bytes moved between workers.  A task costs about 1 ms of
        the scheduler and the worker (measured), and `bytes_per_second` go in that time.
    work_per_second
        Floating-point operations a second of one worker.
    bytes_per_second
        Bytes a second between workers.
    tiles_per_worker
        Tiles of a large array that a worker should have, so that the transfer of one overlaps
        the computation of another.
    min_tile
        Bytes below which a tile is not cut for overlap alone.
    max_task
        Bytes that the tiles of one task may take where no memory limit is given.
    usual_task
        Bytes that the tiles of one task may take even if no task of the input takes as much.
        Workers must not need more memory than for the input.
    max_states
        Tilings considered for one node at the most.
    width_budget
        Entries of the largest table of the exact solver; beyond it the result comes with a lower
        bound instead of a proof.
    replica_bytes
        Bytes of replicas that one worker may hold, all arrays together; None for any number.
    scarce
        Whether memory is scarce: of tilings that move the same bytes, the one is chosen with fewest
        bytes of partial sums and replicas.
    model, candidates, local, acceptance, wider, solver
        Numbers that the configuration does not set.
    """

    task_bytes: float = 0.8e6
    work_per_second: float = 20e9
    bytes_per_second: float = 0.8e9
    tiles_per_worker: int = 2
    min_tile: int = 4 * 2**20
    max_task: int = 2**30
    usual_task: int = 32 * 2**20
    max_states: int = 128
    width_budget: int = 4_000_000
    replica_bytes: int | None = None
    scarce: bool = False
    model: CostModel = CostModel()
    candidates: CandidateLimits = CandidateLimits()
    local: LocalLimits = LocalLimits()
    acceptance: Acceptance = Acceptance()
    wider: WiderSearch = WiderSearch()
    solver: SolverLimits = SolverLimits()

    def for_less_memory(self) -> tuple[Settings, ...]:
        """Settings for plans with small tiles: tasks cost what they cost in bundles."""
        return tuple(
            replace(
                self,
                usual_task=min(self.usual_task, self.local.small_task),
                model=replace(self.model, join_byte=self.model.scarce_join_byte),
                task_bytes=self.task_bytes * self.model.bundled_task,
                min_tile=min(self.min_tile, tile),
                tiles_per_worker=max(self.tiles_per_worker, tiles),
                scarce=True,
            )
            for tile, tiles in self.local.small_tiles
        )
