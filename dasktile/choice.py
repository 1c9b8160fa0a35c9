"""The plan that is carried out, or why there is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

from dask.array.optimization import optimize
from dask.blockwise import optimize_blockwise
from dask.core import flatten

from dasktile import config, decisions
from dasktile.along_hosts import along_hosts
from dasktile.capture.base import Captured
from dasktile.capture.structure import Structured
from dasktile.cheapest import MUCH_MOVED, NO_GAIN, cheapest
from dasktile.guard import or_none
from dasktile.in_memory import bytes_there, unless_more_moved
from dasktile.lower.count import count_tasks
from dasktile.lower.names import is_of_bundles, placements_in
from dasktile.lower.written import wanted_keys
from dasktile.own_graph import with_workers
from dasktile.planning import (
    Candidate,
    candidate,
    capture,
    lower_plan,
    most_bundled,
    plan_request,
    saved_bytes,
    unchanged,
    with_bound_of,
)
from dasktile.predicted import (
    InputRun,
    is_predictable,
    predicted_input,
    wanted_keys_of,
    wanted_of,
    with_prediction,
    work_of,
)
from dasktile.prediction import (
    CLEARLY_LESS,
    MAX_TASKS,
    sound,
    unknown_sizes,
)
from dasktile.refusal import advise, refuse_many_tasks
from dasktile.report.formatting import format_names
from dasktile.request import Request
from dasktile.schedule.placement import is_written
from dasktile.small_graphs import QUICK, SMALL, is_quick, is_small
from dasktile.tiling.growth import TooManyTasksError
from dasktile.tiling.plan import TilingPlan
from dasktile.tiling.planner import MemoryLimitError, SearchTables
from dasktile.whole import costs_hardly_more, cut_axes, kept_whole

#: Why the input is unchanged where it has a plan.
AGAIN = "it is the result of optimize already, for as many workers"

#: Bytes that the tasks of a plan may cost above those of the input (chosen: less than a task of
#: the usual price).
MORE_BYTES = 2**18

#: Tasks of a graph up to which Dask's fusion is run to count them (chosen: it takes about 60 us for
#: each); of more, those before fusion are counted.
MOST_FUSED = 20_000

#: Tasks of the input up to which its run is simulated only to learn whether it moves fewer bytes
#: than a plan (chosen: that takes some 20 milliseconds).
MOST_SIMULATED = 500

#: Share of the tasks of a plan that has no workers, above which it is no plan (chosen).
MOST_WITHOUT = 0.5

#: Tasks of a plan over those of the input, before Dask fuses them, up to which they are surely
#: fewer after that, too (chosen).
SURELY_FEWER = 0.5


def needs_no_plan(request: Request) -> bool:
    """Whether all arrays are those of a plan for as many workers, in bundles if that is possible.

    Parameters
    ----------
    request
        The arrays and their graph.
    """
    if not is_planned(request):
        return False
    return not most_bundled(request.machine) or any(map(is_of_bundles, request.graph.layers))


def is_planned(request: Request) -> bool:
    """Whether all arrays are those of a plan for as many workers.

    Parameters
    ----------
    request
        The arrays and their graph.
    """
    return all(map(is_written, request.names)) and has_plan(request)


def has_plan(request: Request, known: int | None = None) -> bool:
    """Whether the graph has layers of plans, and all of these are for as many workers.

    How many of the workers these use may differ.

    Parameters
    ----------
    request
        The arrays and their graph.
    known
        The number of workers for which the graph is known to be planned; None where only names of
        layers tell.  Those of Dask's own graph may not.
    """
    if request.method != "auto" or request.machine.limit_given:
        return False
    planned_for = {placement.workers for placement in placements_in(request.graph.layers)}
    if not planned_for and known is not None:
        planned_for = {known}
    return planned_for == {request.machine.workers}


def chosen_plan(request: Request, read: Structured | None = None) -> Candidate | None:
    """The plan that is carried out, unless the graph is quick, or has a plan.

    With the method ``"auto"``, and where tasks are bundled, the usual plan is compared with others
    by predicted runs.

    Parameters
    ----------
    request
        The arrays and their graph.
    read
        The structure of the graph, if that was read.

    Returns
    -------
    The plan; None where Dask's own graph takes less time than a plan.

    Raises
    ------
    TooManyTasksError
        If a limit that the user gave makes too many tasks.
    """
    capture_once = cache(partial(capture, request, {}))
    if _compares(request) and is_small(request, capture_once, read):
        return None
    captured = capture_once()
    # where no plans are compared, tiles are all that is decided, and those are kept
    asked = None
    if _compares(request):
        asked = or_none(partial(decisions.asked, request, captured, read))
    chosen = None if asked is None else or_none(partial(decisions.recall, asked))
    if chosen is None:
        chosen = _chosen(request, captured)
        # the homes of a program that was divided are no part of what is remembered
        if asked is not None and not chosen.planned.captured.divided:
            or_none(partial(decisions.remember, asked, chosen))
    return chosen


def _chosen(request: Request, captured: Captured) -> Candidate:
    """The plan that is carried out, of a captured program."""
    refuse_many_tasks(request, captured)
    tables = SearchTables()
    searched = candidate(request, captured, request.machine.settings(), tables=tables)
    assert searched is not None
    whole = None
    if request.method == "auto":
        whole = or_none(partial(_with_whole_axes, request, captured, searched))
    captured, tables, usual = whole or (captured, tables, searched)
    # the simulation knows no bytes of inputs that are on workers already
    if _compares(request) and not any(node.homes for node in captured.program.nodes):
        stock = InputRun(request, usual)
        usual = _unless_error(partial(cheapest, request, captured, tables, stock=stock), usual)
        usual = _unless_error(partial(_unless_without_workers, stock), usual)
        usual = _unless_error(partial(_unless_own_is_better, request, captured, stock), usual)
    else:
        usual = _unless_error(partial(_unless_more_tasks, request), usual)
    if is_planned(request) and not _is_bundled(usual):
        usual = unchanged(usual, AGAIN)
    # a search without some cuts proves nothing of tiles with them
    usual = usual if whole is None else with_bound_of(usual, searched)
    usual = _unless_error(partial(unless_more_moved, request, captured), usual)
    return _unless_error(partial(along_hosts, request), usual)


def _with_whole_axes(
    request: Request, captured: Captured, usual: Candidate
) -> tuple[Captured, SearchTables, Candidate] | None:
    """A plan that cuts no axis that was whole, with its program and its searches.

    None where no axis is cut, and where the plan would cost more, be it for one result of several.
    """
    other = usual.planned.plan
    # in another program, with arrays that keep their chunks or are replicated, indices are others
    axes = cut_axes(other) if usual.planned.captured is captured else {}
    if not axes:
        return None
    whole, tables = kept_whole(captured, axes), SearchTables()
    machine = request.machine
    settings = machine.settings()

    def is_worth_writing(plan: Candidate) -> bool:
        found = plan.planned
        return (
            found.captured is whole
            and found.plan.tiled is not None
            and costs_hardly_more(
                found.plan, other, settings, machine.threads, machine.memory_limit
            )
        )

    try:
        plan = candidate(request, whole, settings, is_worth_writing, tables=tables)
    except (MemoryLimitError, TooManyTasksError):
        return None
    # it may have become that of another program since
    return (whole, tables, plan) if plan is not None and is_worth_writing(plan) else None


def _unless_without_workers(stock: InputRun, plan: Candidate) -> Candidate:
    """A plan, or the input if Dask's scheduler would choose the workers of most tasks of the plan.

    So it is where the model knows no operations, and none of the workers that it divides the blocks
    among has most of what their tasks read.
    """
    inner = any(node.has_inner_tasks for node in plan.planned.captured.program.nodes)
    if not inner or plan.lowered is None or plan.planned.plan.tiled is None:
        return plan
    before = stock.prediction
    if before is None or not before.is_sound:
        return plan
    tasks, _ = plan.lowered.tasks(by_place=True)
    run = [home for number, home in enumerate(tasks.homes) if number not in tasks.data]
    return unchanged(plan, NO_GAIN) if run.count(None) > MOST_WITHOUT * len(run) else plan


def _unless_own_is_better(
    request: Request, captured: Captured, stock: InputRun, plan: Candidate
) -> Candidate:
    """A plan, or Dask's own graph with workers, if that moves fewer bytes and costs no more.

    It takes the place of the input, too.
    """
    if plan.planned.plan.tiled is None:
        return with_workers(request, captured, plan, stock)
    run = None if request.machine.limit_given else plan.after
    if run is None or not run.is_sound or run.moved <= MUCH_MOVED or stock.has_more(MOST_SIMULATED):
        return plan
    before = stock.prediction
    if before is None or before.moved > CLEARLY_LESS * run.moved:
        return plan
    own = with_workers(request, captured, unchanged(plan, NO_GAIN), stock)
    is_better = own.is_own and own.after is not None and own.after.cost <= run.cost
    return own if is_better else plan


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
    tasks, stock = count_tasks(lowered.graph, lowered.names), count_tasks(merged, request.names)
    if tasks <= SURELY_FEWER * stock:
        return plan
    if max(tasks, stock) > MOST_FUSED:
        return unchanged(plan, NO_GAIN) if tasks > stock else plan
    outputs = zip(lowered.names, lowered.chunks, strict=True)
    keys = [wanted_keys(name, chunks, plan.planned.needs.wanted) for name, chunks in outputs]
    more = len(optimize(lowered.graph, keys)) - len(optimize(merged, list(flatten([request.keys]))))
    is_costly = more * request.machine.settings().task_bytes > MORE_BYTES
    return unchanged(plan, NO_GAIN) if is_costly else plan


def _compares(request: Request) -> bool:
    """Whether plans are compared by predicted runs, if these are possible."""
    return request.method == "auto" and request.machine.placed and config.bundle_tasks() > 1


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
    if large := too_large(request, chosen):
        return large
    names = unknown_sizes(request.graph, wanted_keys_of(request, wanted_of(request, chosen)))
    if chosen.after is None and chosen.lowered is not None:
        names = tuple(dict.fromkeys((*names, *chosen.lowered.guessed())))
    of = f", of {format_names(names, 3)}" if names else ""
    moved = "; bytes received for these are not counted" if chosen.after is None else ""
    return f"the sizes of many results are unknown{of}{moved}"


def too_large(request: Request, chosen: Candidate) -> str:
    """How many tasks a graph has that is too large to be simulated; empty if none is."""
    lowered = chosen.lowered
    planned = 0 if lowered is None else count_tasks(lowered.graph, lowered.names)
    if planned <= MAX_TASKS and is_predictable(request):
        return ""
    counts = f"{count_tasks(request.graph, request.names):,} as it is"
    if planned:
        counts += f", {planned:,} as planned"
    return f"the graph has more than {MAX_TASKS:,} tasks before Dask fuses them ({counts})"


def _with_sound_predictions(chosen: Candidate) -> Candidate:
    """The same plan without predictions that rest on guesses."""
    return replace(chosen, before=sound(chosen.before), after=sound(chosen.after))


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
        work = work_of(request, plan.planned)
        plan = replace(plan, before=predicted_input(request, wanted_of(request, plan), work))
        return plan if plan.after is not None else with_prediction(request, plan, work)

    if chosen.before is None and is_predictable(request):
        return _unless_error(predict, chosen)
    return chosen


def _unchanged(request: Request, verdict: str, keep: str) -> Candidate:
    """The input as it is, for a reason; `keep` is that of `tile`."""
    settings = request.machine.settings()
    planned = plan_request(request, capture(request, {}), settings, keep=keep)
    return unchanged(Candidate(planned), verdict)


def _unless_error(change: Callable[[Candidate], Candidate], plan: Candidate) -> Candidate:
    """What a function makes of a plan; the plan itself, which is right, if it raises an error."""
    return or_none(partial(change, plan)) or plan


def room(request: Request, plan: TilingPlan) -> int | None:
    """Bytes of results that a worker holds before it spills; None if that is unknown."""
    if request.machine.room is None:
        return None
    return max(0, request.machine.room - bytes_there(plan.program) // request.machine.workers)


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
