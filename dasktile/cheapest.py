"""Of several plans, the one whose run is predicted to cost least.

Small tiles need less memory and more tasks than large ones.  Plans with smaller and smaller tiles,
one with the input's own chunks, and other orders and sizes of bundles are written, their runs
simulated, and the costs compared, as long as a plan may pay for the time that this takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dasktile.capture.base import Captured
from dasktile.inner_tasks import best_division
from dasktile.ir import Program, Role
from dasktile.lower.count import least_tasks
from dasktile.planning import Candidate, PlannedRequest, candidate, unchanged, with_bound_of
from dasktile.predicted import (
    LARGE_PEAK,
    InputRun,
    bytes_made,
    is_predictable,
    wanted_of,
    with_own_prediction,
    with_prediction,
)
from dasktile.prediction import (
    CLEARLY_LESS,
    LITTLE_MEMORY,
    MORE_MEMORY,
    MORE_MOVED,
    MOST_UNEVEN,
    SMALL_PEAK,
    Prediction,
    rough_cost,
)
from dasktile.request import Request
from dasktile.tiling.planner import SearchTables
from dasktile.tiling.settings import Settings

#: Why the input is unchanged where Dask's own graph is predicted to be better.
NO_GAIN = "Dask's own graph is predicted to cost less"

#: Why one is kept that moves nothing.
NOTHING_MOVED = "Dask's own graph is predicted to move nothing between workers"

#: Why arrays keep their chunks where these are predicted to cost less.
OWN_CHUNKS = "the input's own chunks are predicted to cost less"

#: Tasks of a graph, before Dask fuses them, for each block of a result that keeps its chunks, up to
#: which it is found out first whether any plan may cost less (chosen: some elementwise functions).
MOST_KEPT = 10

#: Tasks of the input over these blocks up to which no plan has clearly fewer (chosen).
SAME_TASKS = 1.05

#: Cost of a plan over that of the input below which smaller bundles are not tried (chosen).
FAR_LESS = 0.3

#: Seconds to write the graph of a plan and to predict its run, per task of the plan (measured: the
#: median of the corpus in ``benchmarks/corpus``).
PLANNING_SECONDS = 5e-5

#: How much better the tasks of a plan may be bundled than those of plans that were tried, and how
#: much less memory they may need (chosen: with 2, planning the corpus takes a tenth longer, for
#: plans that cost the same).
BETTER_BUNDLED = 1.3

#: Bytes on a worker up to which a plan that surely takes less time than Dask's own graph is carried
#: out without a simulation of that graph, and up to which no smaller tiles are tried (chosen).
SURE_PEAK, ENOUGH_PEAK = 2**23, 2**22

#: Tasks of a plan, before they are fused and bundled, up to which smaller tiles are tried where the
#: input has too many tasks to be simulated (chosen: each plan that is tried takes time to write).
MOST_COMPARED = 2_000

#: The same up to which the input's own chunks are tried before smaller tiles.  Their blocks are
#: neither cut nor joined, so that tasks that read each other's blocks need little memory in one
#: bundle (chosen: half of the corpus; of more tasks, larger tiles take less time to plan).
MOST_OWN = 2_000

#: Bytes between workers up to which a run moves none (chosen: positions, headers).
HARDLY_MOVED = 2**16

#: Bytes between workers above which a plan for whole arrays is tried (chosen: some milliseconds).
MUCH_MOVED = 2**20

#: Bytes of smaller bundles as shares of the usual ones, in the order in which they are tried; only
#: the first one where a plan needs no more memory than the input (chosen).
SMALL_BUNDLES = (1 / 4, 1 / 16)


def cheapest(
    request: Request,
    captured: Captured,
    tables: SearchTables,
    usual: Candidate,
    stock: InputRun,
) -> Candidate:
    """The usual plan, or another one whose run is predicted to cost clearly less.

    Parameters
    ----------
    request
        The arrays and their graph.
    captured
        The program of the graph.
    tables
        What searches for tiles have found so far.
    usual
        The plan that the prices of the model make the best.
    stock
        The run of the input's own graph.

    Returns
    -------
    A plan; the input as it is where that is predicted to cost clearly less than any plan.
    """
    if not _may_spill(request, usual.planned) and usual.planned.plan.tiled is None:
        return usual
    is_simulated = is_predictable(request)
    if not is_simulated and _model_tasks(usual) > MOST_COMPARED:
        return usual
    own = _unless_cheaper(request, usual, stock) if is_simulated else None
    if own is not None:
        return own
    plans = [usual]
    if usual.planned.plan.tiled is not None:
        usual = with_own_prediction(request, usual, stock.work)
        if is_simulated:
            usual = best_division(request, captured, usual, stock, OWN_CHUNKS)
            usual = _unless_whole(request, captured, usual, stock)
        plans = [usual]
        if usual.after is None:
            return usual
        if _takes_less_time(usual, stock):
            plans = _with_smaller_tiles(request, captured, tables, plans, stock)
            best = _best(plans)
            is_sure = not is_simulated or _is_surely_better(best, stock)
            if is_sure and (best is usual or _takes_less_time(best, stock)):
                needless = is_simulated and _moves_needlessly(best, captured.program, stock)
                return unchanged(best, NOTHING_MOVED) if needless else best
    if not is_simulated:
        return usual
    before = stock.prediction
    if before is None:
        return usual
    plans = [replace(plan, before=before, after=plan.after or before) for plan in plans]
    less = _with_less_memory(request, captured, tables, plans, stock)
    best = _with_smaller_bundles(request, less, stock)
    if best.planned.plan.tiled is None or best.after is None:
        return best
    if not (before.is_sound and best.after.is_sound):
        return best
    if _moves_needlessly(best, captured.program, stock):
        return unchanged(best, NOTHING_MOVED)
    own = unchanged(best, NO_GAIN)
    workers = request.machine.workers
    better = before.dominates(best.after) or before.is_clearly_cheaper(best.after, workers)
    return own if better and _may_replace(request, own, best) else best


def _unless_cheaper(request: Request, usual: Candidate, stock: InputRun) -> Candidate | None:
    """The input as it is, if no plan can cost clearly less; None if one may.

    A plan has a task for each block of a result that keeps its chunks, and holds the results.
    """
    wanted = wanted_of(request, usual)
    blocks = sum(
        int(wanted[array.name].sum()) for array in request.arrays if array.name in request.kept
    )
    if blocks * MOST_KEPT < least_tasks(request.graph, request.names):
        return None
    before = stock.prediction
    if before is None or not before.is_sound or before.moved or before.spilled:
        return None
    if before.tasks > SAME_TASKS * blocks:
        return None
    held = max(SMALL_PEAK, stock.kept)
    least = rough_cost(blocks, held, before.work, request.machine.calibration)
    if least < CLEARLY_LESS * before.cost:
        return None
    return unchanged(replace(usual, before=before), NO_GAIN)


def _unless_whole(
    request: Request, captured: Captured, usual: Candidate, stock: InputRun
) -> Candidate:
    """A plan, or one whose tiles are those of whole arrays, if that moves fewer bytes.

    The usual plan divides among all workers what is needed of an array.  Where other arrays are
    needed as a whole, the parts of these that it reads are then on other workers.
    """
    needs, run = usual.planned.needs, usual.after
    if needs.ranges is None or run is None or run.moved <= MUCH_MOVED:
        return usual
    before = stock.prediction
    if before is None or not before.is_sound or before.moved > CLEARLY_LESS * run.moved:
        return usual
    whole = replace(usual.planned, needs=replace(needs, ranges=None, is_whole=False))
    other = candidate(request, captured, request.machine.settings(), other=whole)
    if other is None or other.planned.plan.tiled is None:
        return usual
    other = with_own_prediction(request, other, stock.work)
    less = other.after
    if less is None or less.moved > CLEARLY_LESS * run.moved or less.cost > run.cost:
        return usual
    return other


def _moves_needlessly(plan: Candidate, program: Program, stock: InputRun) -> bool:
    """Whether a plan moves bytes where Dask's own graph moves none, and is even.

    The model, in which arrays are in boxes on a mesh, counts bytes for blocks in another order.
    """
    run, price = plan.after, plan.planned.plan.before
    if run is None or not run.is_sound or run.moved <= HARDLY_MOVED or price.balance > MOST_UNEVEN:
        return False
    if any(
        label.role not in (Role.FREE, Role.PINNED) and len(label.cuts) > 1
        for node in program.nodes
        for label in node.labels
    ):
        return False  # blocks are summed or scanned, so that some are moved
    before = stock.prediction
    return before is not None and before.is_sound and before.moved <= HARDLY_MOVED


def _takes_less_time(plan: Candidate, stock: InputRun) -> bool:
    """Whether a plan surely takes less time than Dask's own graph, and fits in memory."""
    run = plan.after
    assert run is not None
    return run.is_sound and not run.spilled and stock.takes_more_time(run)


def _is_surely_better(plan: Candidate, stock: InputRun) -> bool:
    """Whether a plan that takes less time needs so little memory that it is worth no search."""
    run = plan.after
    assert run is not None
    if run.peak <= max(SURE_PEAK, _least_peak(stock)):
        return True
    return run.peak <= LITTLE_MEMORY and stock.costs_more(run.cost / CLEARLY_LESS)


def _least_peak(stock: InputRun) -> int:
    """Bytes on a worker below which no plan is searched: its results, or hardly more."""
    return max(SMALL_PEAK, int(MORE_MEMORY * stock.kept))


def _may_spill(request: Request, planned: PlannedRequest) -> bool:
    """Whether a worker that makes all arrays, and drops none, spills some of them."""
    return request.machine.room is not None and bytes_made(planned) > request.machine.room


def _with_smaller_tiles(
    request: Request,
    captured: Captured,
    tables: SearchTables,
    plans: Sequence[Candidate],
    stock: InputRun,
) -> list[Candidate]:
    """Some plans, the usual one first, and others that may need less memory.

    These are one with the input's own chunks, if it has few tasks, and plans with smaller and
    smaller tiles, as long as these cost less.
    """
    usual, settings = plans[0], request.machine.settings()
    plans, enough = list(plans), max(ENOUGH_PEAK, _least_peak(stock))

    def tried(settings: Settings, **options: Any) -> Prediction | None:
        other = _other_plan(request, captured, tables, plans, stock, settings, **options)
        if other is None or other.after is None:
            return None
        plans.append(other)
        return other.after

    assert usual.after is not None
    last = usual.after
    if last.peak > enough and sum(usual.planned.plan.before.tasks) <= MOST_OWN:
        tried(settings, keep=OWN_CHUNKS)
    for smaller in settings.for_less_memory():
        least = _best(plans).after
        if least is not None and least.peak <= enough:
            break
        run = tried(smaller, force=True)
        if run is None:
            continue
        if run.cost >= last.cost:
            break
        last = run
    return plans


def _best(plans: Sequence[Candidate]) -> Candidate:
    """The plan that is predicted to cost clearly less than the others; the first one if none is."""
    best = plans[0]
    for plan in plans[1:]:
        if _is_better(plan, best) and _moves_no_more(plan, plans[0]):
            best = plan
    return best


def _other_plan(
    request: Request,
    captured: Captured,
    tables: SearchTables,
    tried: Sequence[Candidate],
    stock: InputRun,
    settings: Settings,
    **options: Any,
) -> Candidate | None:
    """A plan that may take the place of the usual one, the first, with a prediction of its run.

    None if it is one of those that were tried, or could not cost clearly less than all of them.
    """
    usual = tried[0]

    def is_worth_writing(plan: Candidate) -> bool:
        is_new = all(plan.planned.plan.tiled != other.planned.plan.tiled for other in tried)
        return (
            is_new and _may_pay(request, plan, tried, stock) and _may_replace(request, plan, usual)
        )

    same = None if usual.planned.pinned else usual.planned
    other = candidate(request, captured, settings, is_worth_writing, same, tables=tables, **options)
    # it may have become that of the input's own graph
    if other is None or not _may_replace(request, other, usual):
        return None
    if "keep" in options and other.planned.pinned == usual.planned.pinned:
        other = with_bound_of(other, usual)
    return with_prediction(request, replace(other, before=usual.before), stock.work)


def _with_less_memory(
    request: Request,
    captured: Captured,
    tables: SearchTables,
    plans: Sequence[Candidate],
    stock: InputRun,
) -> Candidate:
    """The best of some plans, the usual one first, or of more if all need too much memory.

    These are plans with smaller tiles, if none was tried, and one with the input's own chunks.
    """
    before = plans[0].before
    best = _best(plans)
    assert before is not None and best.after is not None
    if _needs_little_memory(best.after, before):
        return best
    if len(plans) == 1:
        plans = _with_smaller_tiles(request, captured, tables, plans, stock)
        best = _best(plans)
        assert best.after is not None
        if _needs_little_memory(best.after, before):
            return best
    settings = request.machine.settings()
    own = _other_plan(request, captured, tables, plans, stock, settings, keep=OWN_CHUNKS)
    return best if own is None else _best([*plans, own])


def _needs_little_memory(after: Prediction, before: Prediction) -> bool:
    """Whether a plan fits, and needs no more memory than the input, or hardly any."""
    return not after.spilled and after.peak <= max(before.peak, ENOUGH_PEAK)


def _may_pay(
    request: Request, plan: Candidate, tried: Sequence[Candidate], stock: InputRun
) -> bool:
    """Whether a plan could cost clearly less than those that were tried, with the time to write it.

    It is estimated as if its tasks were bundled better than those of the others, and as if it
    needed as much memory as the input, or little if that is unknown; but hardly less than what the
    others need for each byte that their largest tasks read and write.
    """
    if plan.planned.plan.tiled is None:
        return True
    runs = [(other.after, other) for other in tried if other.after is not None]
    before, tasks = tried[0].before, _model_tasks(plan)
    simulated = 0 if before is None else before.tasks
    fewest = min(run.tasks / _model_tasks(other) for run, other in runs) / BETTER_BUNDLED
    least = min(run.peak / _largest_task(other) for run, other in runs) / BETTER_BUNDLED
    peak = SMALL_PEAK if before is None else before.peak
    peak = max(peak, stock.kept, int(least * _largest_task(plan)))
    for run, other in runs:
        spent = PLANNING_SECONDS * (simulated + _model_tasks(other))
        work = run.work + spent + PLANNING_SECONDS * tasks
        rough = rough_cost(fewest * tasks, peak, work, request.machine.calibration)
        if rough >= CLEARLY_LESS * replace(run, work=run.work + spent).cost:
            return False
    return True


def _model_tasks(plan: Candidate) -> int:
    """Tasks of a plan before they are fused and bundled."""
    return max(1, sum(plan.planned.plan.after.tasks))


def _largest_task(plan: Candidate) -> int:
    """Bytes that the largest task of a plan reads and writes."""
    return max((1, *plan.planned.plan.after.peak))


def _with_smaller_bundles(request: Request, best: Candidate, stock: InputRun) -> Candidate:
    """A plan in bundles of fewer bytes, if that is predicted to be better.

    Results of a small bundle are sent, and inputs of it released, earlier than those of a large
    one.  It is tried where the plan costs not far less than the input, or needs more memory.
    """
    before, after = best.before, best.after
    if best.lowered is None or before is None or after is None:
        return best
    needs_more = after.excess(before) > 1
    if not needs_more and (after.peak <= LARGE_PEAK or after.cost <= FAR_LESS * before.cost):
        return best
    usual, lowered = best, best.lowered
    least = CLEARLY_LESS * after.cost * after.excess(before)

    def may_pay(tasks: int) -> bool:
        return rough_cost(tasks, stock.kept, stock.work, request.machine.calibration) < least

    for share in SMALL_BUNDLES if needs_more else SMALL_BUNDLES[:1]:
        smaller = lowered.resized(share, may_pay)
        if smaller is lowered:
            continue
        lowered = smaller
        other = with_prediction(request, replace(usual, lowered=lowered), stock.work)
        if _is_better(other, best) and _moves_no_more(other, usual):
            best = other
            assert best.after is not None
            if best.after.excess(before) == 1:
                break
    return best


def _is_better(plan: Candidate, other: Candidate) -> bool:
    """Whether `plan` is predicted to cost clearly less than `other`.

    If `plan` is known to be clearly faster than the input, the costs are multiplied by
    `Prediction.excess`.
    """
    run, least, before = plan.after, other.after, plan.before
    if run is None or least is None:
        return False
    cost, least_cost = run.cost, least.cost
    if before is not None and run.run_seconds < CLEARLY_LESS * before.run_seconds:
        cost *= run.excess(before)
        least_cost *= least.excess(before)
    return cost < CLEARLY_LESS * least_cost


def _moves_no_more(plan: Candidate, usual: Candidate) -> bool:
    """Whether a plan is predicted to move hardly more bytes than the usual one."""
    run, least = plan.after, usual.after
    if run is None or least is None:
        return False
    before = least if usual.before is None else usual.before
    return run.moved <= least.moved + MORE_MOVED * before.moved


def _may_replace(request: Request, other: Candidate, best: Candidate) -> bool:
    """Whether a plan is another one than the usual plan, and no worse in the model's prices.

    The simulation leaves out reads from storage, arrays that are held from one pass to the next,
    and the time that functions take.
    """
    plan, usual = other.planned.plan, best.planned.plan
    if plan.tiled == usual.tiled:
        return False
    price, least = (plan.before if plan.tiled is None else plan.after), usual.after
    limit = request.machine.memory_limit if request.machine.limit_given else None
    # those of another plan are counted in its graph as well, see `_moves_no_more`
    most = least.bytes if plan.tiled is None else max(least.bytes, usual.before.bytes)
    return (
        sum(price.read) <= sum(least.read)
        and price.spilled <= least.spilled
        and price.bytes <= most + MORE_MOVED * usual.before.bytes
        and price.balance <= max(least.balance, MOST_UNEVEN)
        and (limit is None or max(price.peak, default=0) <= limit)
    )
