"""The plan that is carried out: predicted runs of several plans are compared."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from typing import Any, TypeVar

from dask.array.optimization import optimize
from dask.blockwise import optimize_blockwise
from dask.core import flatten

from dasktile import config, decisions
from dasktile.capture.base import Captured
from dasktile.capture.culling import Needed, count_needed, least_run
from dasktile.lower.count import count_tasks, least_tasks
from dasktile.lower.names import is_of_bundles
from dasktile.lower.writer import wanted_keys
from dasktile.planning import (
    Candidate,
    PlannedRequest,
    candidate,
    capture,
    lower_plan,
    most_bundled,
    plan_request,
    saved_bytes,
    takes_time,
    unchanged,
    wanted_blocks,
)
from dasktile.prediction import (
    CLEARLY_LESS,
    LITTLE_MEMORY,
    MAX_TASKS,
    MORE_MOVED,
    MOST_UNEVEN,
    SAME_SECONDS,
    SMALL_PEAK,
    Prediction,
    predict_input,
    predict_plan,
    rough_cost,
    unknown_sizes,
    work_seconds,
)
from dasktile.refusal import advise, refuse_many_tasks
from dasktile.report.formatting import format_names
from dasktile.request import Request
from dasktile.schedule.peaks import Speeds
from dasktile.schedule.placement import decode, is_written
from dasktile.tiling.growth import TooManyTasksError
from dasktile.tiling.objective import seconds_alone
from dasktile.tiling.plan import TilingPlan
from dasktile.tiling.planner import SearchTables
from dasktile.tiling.settings import Settings

logger = logging.getLogger("dasktile")

_Result = TypeVar("_Result")

#: Why the input is unchanged where Dask's own graph is predicted to be better.
NO_GAIN = "Dask's own graph is predicted to cost less"

#: Why arrays keep their chunks where these are predicted to cost less.
OWN_CHUNKS = "the input's own chunks are predicted to cost less"

#: Why the input is unchanged where few of its tasks are needed.
QUICK = "the few tasks that are needed take less time than a plan"

#: Why the input is unchanged where Dask runs it in less time than a plan takes.
SMALL = "Dask's own graph is predicted to take less time than a plan"

#: Why the input is unchanged where it has a plan.
AGAIN = "it is the result of optimize already, for as many workers"

#: Tasks of a graph for each that is needed, from which no plan is made, and the most of these
#: (chosen: to plan takes up to 100 microseconds for every task of the graph, to run one some
#: milliseconds; many tasks may be worth a plan whatever it takes).
TASKS_PER_NEEDED, MOST_QUICK = 50, 300

#: Seconds that any plan takes (measured: ``python -m benchmarks.planning --hook``), and tasks of a
#: graph, before Dask fuses them, up to which its run is predicted to take no more (chosen).
LEAST_PLANNING, MOST_SMALL = 0.04, 64

#: Tasks of a graph, before Dask fuses them, for each block of a result that keeps its chunks, up to
#: which it is found out first whether any plan may cost less (chosen: some elementwise functions).
MOST_KEPT = 10

#: Tasks of the input over these blocks up to which no plan has clearly fewer (chosen).
SAME_TASKS = 1.05

#: Bytes that the tasks of a plan may cost above those of the input (chosen: less than a task of
#: the usual price).
MORE_BYTES = 2**18

#: Tasks of a plan over those of the input, before Dask fuses them, up to which they are surely
#: fewer after that, too (chosen).
SURELY_FEWER = 0.5

#: Cost of a plan over that of the input below which smaller bundles are not tried (chosen).
FAR_LESS = 0.3

#: Seconds to write the graph of a plan and to predict its run, per task of the plan (measured: the
#: median of the corpus in ``benchmarks/corpus``).
PLANNING_SECONDS = 5e-5

#: How much better the tasks of a plan may be bundled than those of plans that were tried, and how
#: much less memory they may need (chosen: small tiles are joined less often).
BETTER_BUNDLED = 2

#: Bytes on a worker up to which a plan that surely takes less time than Dask's own graph is carried
#: out without a simulation of that graph (chosen).
SURE_PEAK = 2**23

#: Bytes on a worker above which another order of the tasks and smaller bundles are tried, too
#: (chosen: of fewer bytes, smaller tiles save most).
LARGE_PEAK = 2**23

#: Tasks of a plan, before they are fused and bundled, up to which smaller tiles are tried where the
#: input has too many tasks to be simulated (chosen: each plan that is tried takes time to write).
MOST_COMPARED = 2_000

#: Bytes of smaller bundles as shares of the usual ones, in the order in which they are tried; only
#: the first one where a plan needs no more memory than the input (chosen).
SMALL_BUNDLES = (1 / 4, 1 / 16)


def is_quick(request: Request) -> bool:
    """Whether Dask runs the few needed tasks of a graph in less time than a plan takes.

    Parameters
    ----------
    request
        The arrays and their graph.
    """
    if request.method != "auto":
        return False
    wanted = list(islice(flatten([request.keys]), MOST_QUICK + 1))
    if len(wanted) > MOST_QUICK:
        return False
    most = min(MOST_QUICK, least_tasks(request.graph, request.names) // TASKS_PER_NEEDED)
    if len(set(wanted)) > most:
        return False
    return count_needed(request.graph, request.keys, most) <= most


def needs_no_plan(request: Request) -> bool:
    """Whether all arrays are those of a plan for as many workers, in bundles if that is possible.

    Parameters
    ----------
    request
        The arrays and their graph.
    """
    if not _is_planned(request):
        return False
    return not most_bundled(request.machine) or any(map(is_of_bundles, request.graph.layers))


def _is_planned(request: Request) -> bool:
    """Whether all arrays are those of a plan for as many workers."""
    if request.method != "auto" or request.machine.limit_given:
        return False
    if not all(map(is_written, request.names)):
        return False
    placements = map(decode, request.graph.layers)
    meshes = {placement.workers for placement in placements if placement is not None}
    return meshes == {request.machine.workers}


def chosen_plan(request: Request) -> Candidate | None:
    """The plan that is carried out, unless the graph is quick, or has a plan.

    With the method ``"auto"``, and where tasks are bundled, the usual plan is compared with others
    by predicted runs.

    Parameters
    ----------
    request
        The arrays and their graph.

    Returns
    -------
    The plan; None where Dask's own graph takes less time than a plan.

    Raises
    ------
    TooManyTasksError
        If a limit that the user gave makes too many tasks.
    """
    captured = capture(request, {})
    if _is_small(request, captured):
        return None
    # where no plans are compared, tiles are all that is decided, and those are kept
    asked = None
    if _compares(request):
        asked = _or_none(partial(decisions.asked, request, captured))
    chosen = None if asked is None else _or_none(partial(decisions.recall, asked))
    if chosen is None:
        chosen = _chosen(request, captured)
        if asked is not None:
            _or_none(partial(decisions.remember, asked, chosen))
    return chosen


def _or_none(function: Callable[[], _Result | None]) -> _Result | None:
    """What a function returns; None if it raises an error, without which a plan is right, too."""
    try:
        return function()
    except Exception:
        if config.setting("raise-errors"):
            raise
        logger.debug("dasktile failed to predict a run or to look up a plan", exc_info=True)
        return None


def _is_small(request: Request, captured: Captured) -> bool:
    """Whether Dask's own graph surely takes little memory, and less time than a plan.

    The time of functions is left out where all workers run them, as a plan would not save it.
    """
    if not _may_compare(request, captured) or request.machine.limit_given:
        return False
    if least_tasks(request.graph, request.names) > MOST_SMALL:
        return False
    settings = request.machine.settings()
    alone = seconds_alone(captured.program, request.machine.workers, settings)
    if alone > LEAST_PLANNING:
        return False
    run = _or_none(partial(_predict_input, request, wanted_blocks(request)))
    return (
        run is not None
        and run.is_sound
        and not run.spilled
        and run.seconds + alone <= LEAST_PLANNING
        and run.peak <= LITTLE_MEMORY
    )


def _chosen(request: Request, captured: Captured) -> Candidate:
    """The plan that is carried out, of a captured program."""
    refuse_many_tasks(request, captured)
    tables = SearchTables()
    usual = candidate(request, captured, request.machine.settings(), tables=tables)
    assert usual is not None
    if _may_compare(request, captured):
        usual = _unless_error(partial(_cheapest, request, captured, tables), usual)
    else:
        usual = _unless_error(partial(_unless_more_tasks, request), usual)
    if _is_planned(request) and not _is_bundled(usual):
        return unchanged(usual, AGAIN)
    return usual


def _unless_more_tasks(request: Request, plan: Candidate) -> Candidate:
    """A plan, or the input if that has fewer tasks when Dask has fused them, and no more bytes."""
    tiled = plan.planned.plan.tiled
    if request.method != "auto" or request.machine.limit_given or tiled is None:
        return plan
    # tasks of a plan run where their inputs are, which Dask's do not
    if request.machine.placed:
        return plan
    if saved_bytes(plan.planned.plan) > 0:
        return plan
    lowered = plan.lowered or lower_plan(request, plan.planned)
    plan = replace(plan, lowered=lowered)
    merged = optimize_blockwise(request.graph, keys=[(name,) for name in request.names])
    if count_tasks(lowered.graph, lowered.names) <= SURELY_FEWER * count_tasks(
        merged, request.names
    ):
        return plan
    outputs = zip(lowered.names, lowered.chunks, strict=True)
    keys = [wanted_keys(name, chunks, plan.planned.wanted) for name, chunks in outputs]
    more = len(optimize(lowered.graph, keys)) - len(optimize(merged, list(flatten([request.keys]))))
    is_costly = more * request.machine.settings().task_bytes > MORE_BYTES
    return unchanged(plan, NO_GAIN) if is_costly else plan


def _compares(request: Request) -> bool:
    """Whether plans are compared by predicted runs, if these are possible."""
    return request.method == "auto" and request.machine.placed and config.bundle_tasks() > 1


def _may_compare(request: Request, captured: Captured) -> bool:
    """Whether plans may be compared by predicted runs."""
    # the simulation knows no bytes of inputs that are on workers already
    return _compares(request) and not any(node.homes for node in captured.program.nodes)


def _is_bundled(plan: Candidate) -> bool:
    """Whether the graph of a plan has bundles."""
    return plan.lowered is not None and any(map(is_of_bundles, plan.lowered.graph.layers))


def predicted_plan(request: Request) -> Candidate:
    """The plan that is carried out, with predictions of its run and of the input's.

    Parameters
    ----------
    request
        The arrays and their graph.

    Returns
    -------
    The plan; no predictions where they are not possible.
    """
    return _with_sound_predictions(_predicted_plan(request))


def unpredicted(request: Request, chosen: Candidate) -> str:
    """Why runs are not predicted, of the input or of the plan; empty if both are."""
    if chosen.before is not None and chosen.after is not None:
        return ""
    lowered = chosen.lowered
    planned = 0 if lowered is None else count_tasks(lowered.graph, lowered.names)
    if planned > MAX_TASKS or not _is_predictable(request):
        counts = f"{count_tasks(request.graph, request.names):,} as it is"
        if planned:
            counts += f", {planned:,} as planned"
        return f"the graph has more than {MAX_TASKS:,} tasks before Dask fuses them ({counts})"
    names = unknown_sizes(request.graph, _wanted_keys(request, _wanted(request, chosen)))
    if chosen.after is None and lowered is not None:
        names = tuple(dict.fromkeys((*names, *lowered.guessed())))
    of = f", of {format_names(names, 3)}" if names else ""
    moved = "; bytes received for these are not counted" if chosen.after is None else ""
    return f"the sizes of many results are unknown{of}{moved}"


def _with_sound_predictions(chosen: Candidate) -> Candidate:
    """The same plan without predictions that rest on guesses."""
    before, after = (
        None if run is None or not run.is_sound else run for run in (chosen.before, chosen.after)
    )
    return replace(chosen, before=before, after=after)


def _predicted_plan(request: Request) -> Candidate:
    if is_quick(request):
        # the search for tiles within a limit may take long, and they are not used
        chosen = _unchanged(request, QUICK, keep=QUICK if request.machine.limit_given else "")
    elif needs_no_plan(request):
        chosen = _unchanged(request, AGAIN, keep=AGAIN)
    else:
        try:
            chosen = chosen_plan(request) or _unchanged(request, SMALL, keep=SMALL)
        except TooManyTasksError as error:
            verdict = str(advise(request, error))
            chosen = replace(_unchanged(request, verdict, keep=verdict), refused=True)

    def predict(plan: Candidate) -> Candidate:
        work = _work(request, plan.planned)
        plan = replace(plan, before=_predict_input(request, _wanted(request, plan), work))
        return plan if plan.after is not None else _with_prediction(request, plan, work)

    if chosen.before is None and _is_predictable(request):
        return _unless_error(predict, chosen)
    return chosen


def _unchanged(request: Request, verdict: str, keep: str) -> Candidate:
    """The input as it is, for a reason; `keep` is that of `tile`."""
    settings = request.machine.settings()
    planned = plan_request(request, capture(request, {}), settings, keep=keep)
    return unchanged(Candidate(planned), verdict)


def _unless_error(change: Callable[[Candidate], Candidate], plan: Candidate) -> Candidate:
    """What a function makes of a plan; the plan itself, which is right, if it raises an error."""
    return _or_none(partial(change, plan)) or plan


def room(request: Request, chosen: Candidate) -> int | None:
    """Bytes of results that a worker holds before it spills; None if that is unknown."""
    if request.machine.room is None:
        return None
    there = sum(node.nbytes for node in chosen.planned.plan.program.nodes if node.homes)
    return max(0, request.machine.room - there // request.machine.workers)


def joined(request: Request, plan: TilingPlan) -> int:
    """Bytes of the largest result of several blocks, which Dask joins on one worker."""
    if request.machine.who_has is None:
        return 0
    tilings = plan.tiled.tilings if plan.tiled is not None else None
    largest = 0
    for node, array, chunks in zip(
        plan.program.outputs, request.arrays, request.final_chunks(plan), strict=True
    ):
        tiles = chunks or (tilings[node].chunks if tilings is not None else array.chunks)
        if math.prod(map(len, tiles)) > 1:
            largest = max(largest, math.prod(array.shape) * array.dtype.itemsize)
    return largest


def _is_predictable(request: Request) -> bool:
    if count_tasks(request.graph, request.names) <= MAX_TASKS:
        return True
    return count_needed(request.graph, request.keys, MAX_TASKS) <= MAX_TASKS


def _work(request: Request, planned: PlannedRequest) -> float:
    """Seconds that the functions of a request take, roughly."""
    return work_seconds(_bytes_made(planned), request.machine)


def _wanted(request: Request, plan: Candidate) -> Mapping[str, Needed]:
    """By the name of an array, which of its blocks are wanted."""
    return plan.planned.wanted or wanted_blocks(request)


def _predict_input(
    request: Request, needed: Mapping[str, Needed], work: float = 0.0
) -> Prediction | None:
    return predict_input(request.graph, _wanted_keys(request, needed), request.machine, work)


def _wanted_keys(request: Request, needed: Mapping[str, Needed]) -> dict[str, Any]:
    """By the name of an array, the keys of its blocks that are wanted."""
    return {array.name: wanted_keys(array.name, array.chunks, needed) for array in request.arrays}


def _bytes_made(planned: PlannedRequest) -> int:
    """Bytes of all arrays that functions make, as far as they are needed."""
    made = 0.0
    for node in planned.captured.program.nodes:
        if takes_time(node):
            needed = planned.needed.get(node.name, planned.wanted.get(node.name))
            made += node.nbytes * (1 if needed is None else float(needed.mean()))
    return int(made)


def _with_prediction(request: Request, chosen: Candidate, work: float) -> Candidate:
    """The same plan with its graph and a prediction of its run; that of the input is there."""
    if chosen.planned.plan.tiled is None:
        return replace(chosen, after=chosen.before)
    return _with_own_prediction(request, chosen, work)


def _with_own_prediction(request: Request, chosen: Candidate, work: float) -> Candidate:
    """A plan that changes the input, with its graph and a prediction of its run.

    Where another order of its tasks needs less memory, the graph is that in this order.
    """
    lowered = chosen.lowered or lower_plan(request, chosen.planned)
    if count_tasks(lowered.graph, lowered.names) > MAX_TASKS:
        return replace(chosen, lowered=lowered, after=None)
    chosen = replace(chosen, lowered=lowered, after=predict_plan(lowered, request.machine, work))
    if chosen.after is None or chosen.after.peak <= LARGE_PEAK:
        return chosen
    in_steps = lowered.in_steps()
    if in_steps is lowered:
        return chosen
    after = predict_plan(in_steps, request.machine, work)
    if after is None or after.cost >= chosen.after.cost or after.moved > chosen.after.moved:
        return chosen
    return replace(chosen, lowered=in_steps, after=after)


def _cheapest(
    request: Request, captured: Captured, tables: SearchTables, usual: Candidate
) -> Candidate:
    """The usual plan, or another one whose run is predicted to cost clearly less."""
    if not _may_spill(request, usual.planned) and usual.planned.plan.tiled is None:
        return usual
    is_predictable = _is_predictable(request)
    if not is_predictable and _model_tasks(usual) > MOST_COMPARED:
        return usual
    work = _work(request, usual.planned)
    simulated = cache(partial(_predict_input, request, _wanted(request, usual), work))
    own = _unless_cheaper(request, usual, simulated) if is_predictable else None
    if own is not None:
        return own
    plans = [usual]
    if usual.planned.plan.tiled is not None:
        usual = _with_own_prediction(request, usual, work)
        plans = [usual]
        if usual.after is None:
            return usual
        if _takes_less_time(request, usual):
            plans = _with_smaller_tiles(request, captured, tables, usual)
            best = _best(plans)
            assert best.after is not None
            # Dask's own graph, which may be large, need not be simulated
            is_sure = best.after.peak <= SURE_PEAK or not is_predictable
            if is_sure and (best is usual or _takes_less_time(request, best)):
                return best
    if not is_predictable:
        return usual
    before = simulated()
    if before is None:
        return usual
    plans = [replace(plan, before=before, after=plan.after or before) for plan in plans]
    best = _with_smaller_bundles(request, _with_less_memory(request, captured, tables, plans))
    if best.planned.plan.tiled is None or best.after is None:
        return best
    if not (before.is_sound and best.after.is_sound):
        return best
    own = unchanged(best, NO_GAIN)
    workers = request.machine.workers
    better = before.dominates(best.after) or before.is_clearly_cheaper(best.after, workers)
    return own if better and _may_replace(request, own, best) else best


def _unless_cheaper(
    request: Request, usual: Candidate, simulated: Callable[[], Prediction | None]
) -> Candidate | None:
    """The input as it is, if no plan can cost clearly less; None if one may.

    A plan has a task for each block of a result that keeps its chunks, and holds the results.
    `simulated` predicts the run of the input.
    """
    wanted = _wanted(request, usual)
    blocks = sum(
        int(wanted[array.name].sum()) for array in request.arrays if array.name in request.kept
    )
    if blocks * MOST_KEPT < least_tasks(request.graph, request.names):
        return None
    before = simulated()
    if before is None or not before.is_sound or before.moved or before.spilled:
        return None
    if before.tasks > SAME_TASKS * blocks:
        return None
    held = max(SMALL_PEAK, _kept_bytes(request, usual))
    least = rough_cost(blocks, held, before.work, request.machine.calibration)
    if least < CLEARLY_LESS * before.cost:
        return None
    return unchanged(replace(usual, before=before), NO_GAIN)


def _takes_less_time(request: Request, plan: Candidate) -> bool:
    """Whether a plan surely takes less time than Dask's own graph, and fits in memory."""
    run = plan.after
    assert run is not None
    if not run.is_sound or run.spilled:
        return False
    # the scheduler handles tasks one by one
    enough = math.ceil(SAME_SECONDS * run.seconds / Speeds().scheduler)
    merged = optimize_blockwise(request.graph, keys=[(name,) for name in request.names])
    return least_run(merged, request.keys, enough) > enough


def _may_spill(request: Request, planned: PlannedRequest) -> bool:
    """Whether a worker that makes all arrays, and drops none, spills some of them."""
    return request.machine.room is not None and _bytes_made(planned) > request.machine.room


def _with_smaller_tiles(
    request: Request, captured: Captured, tables: SearchTables, usual: Candidate
) -> list[Candidate]:
    """The usual plan, and plans with smaller and smaller tiles, as long as these cost less."""
    plans, run = [usual], usual.after
    assert run is not None
    for settings in request.machine.settings().for_less_memory():
        if run.peak <= SMALL_PEAK:
            break
        other = _other_plan(request, captured, tables, usual, plans, settings, force=True)
        if other is None or other.after is None:
            continue
        plans.append(other)
        if other.after.cost >= run.cost:
            break
        run = other.after
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
    usual: Candidate,
    tried: Sequence[Candidate],
    settings: Settings,
    **options: Any,
) -> Candidate | None:
    """A plan that may take the place of the usual one, with a prediction of its run.

    None if it is one of those that were tried, or could not cost clearly less than all of them.
    """

    def is_worth_writing(plan: Candidate) -> bool:
        is_new = all(plan.planned.plan.tiled != other.planned.plan.tiled for other in tried)
        return is_new and _may_pay(request, plan, tried) and _may_replace(request, plan, usual)

    same = None if usual.planned.pinned else usual.planned
    other = candidate(request, captured, settings, is_worth_writing, same, tables=tables, **options)
    # it may have become that of the input's own graph
    if other is None or not _may_replace(request, other, usual):
        return None
    assert usual.after is not None
    return _with_prediction(request, replace(other, before=usual.before), usual.after.work)


def _with_less_memory(
    request: Request, captured: Captured, tables: SearchTables, plans: Sequence[Candidate]
) -> Candidate:
    """The best of some plans, the usual one first, or of more if all need too much memory.

    These are plans with smaller tiles, if none was tried, and one with the input's own chunks.
    """
    usual, before = plans[0], plans[0].before
    best = _best(plans)
    assert before is not None and best.after is not None
    if _needs_little_memory(best.after, before):
        return best
    if len(plans) == 1:
        plans = _with_smaller_tiles(request, captured, tables, usual)
        best = _best(plans)
        assert best.after is not None
        if _needs_little_memory(best.after, before):
            return best
    settings = request.machine.settings()
    own = _other_plan(request, captured, tables, usual, plans, settings, keep=OWN_CHUNKS)
    return best if own is None else _best([*plans, own])


def _needs_little_memory(after: Prediction, before: Prediction) -> bool:
    """Whether a plan fits, and needs no more memory than the input, or hardly any."""
    return not after.spilled and after.peak <= max(before.peak, SMALL_PEAK)


def _may_pay(request: Request, plan: Candidate, tried: Sequence[Candidate]) -> bool:
    """Whether a plan could cost clearly less than those that were tried, with the time to write it.

    It is estimated as if its tasks were bundled far better than those of the others, and as if it
    needed as much memory as the input, or little if that is unknown; but at least half of what the
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
    peak = max(peak, _kept_bytes(request, tried[0]), int(least * _largest_task(plan)))
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


def _kept_bytes(request: Request, plan: Candidate) -> int:
    """Bytes of results that each worker has at the end, if all have equally many."""
    wanted = _wanted(request, plan)
    kept = sum(
        math.prod(array.shape) * array.dtype.itemsize * float(wanted[array.name].mean())
        for array in request.arrays
    )
    return int(kept / request.machine.workers)


def _with_smaller_bundles(request: Request, best: Candidate) -> Candidate:
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
    usual, lowered, kept = best, best.lowered, _kept_bytes(request, best)
    least = CLEARLY_LESS * after.cost * after.excess(before)

    def may_pay(tasks: int) -> bool:
        return rough_cost(tasks, kept, before.work, request.machine.calibration) < least

    for share in SMALL_BUNDLES if needs_more else SMALL_BUNDLES[:1]:
        smaller = lowered.resized(share, may_pay)
        if smaller is lowered:
            continue
        lowered = smaller
        other = _with_prediction(request, replace(usual, lowered=lowered), before.work)
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
