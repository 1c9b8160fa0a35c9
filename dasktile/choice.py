"""The plan that is carried out, or why there is none."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

from dask.array.optimization import optimize
from dask.blockwise import optimize_blockwise
from dask.core import flatten

from dasktile import config, decisions
from dasktile.along_hosts import along_hosts
from dasktile.capture.base import Captured
from dasktile.capture.rules.views import has_p2p_rechunks
from dasktile.capture.structure import Structured
from dasktile.cheapest import NO_GAIN, cheapest
from dasktile.cluster.located import blocks_there
from dasktile.guard import or_none
from dasktile.ir import Follow, Kind, Program
from dasktile.lower.count import count_tasks
from dasktile.lower.names import is_of_bundles, placements_in
from dasktile.lower.written import wanted_keys
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
    without_bound,
)
from dasktile.predicted import (
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
    Prediction,
    predict_plan,
    rough_tasks,
    sound,
    tasks_of_input,
    unknown_sizes,
)
from dasktile.refusal import advise, refuse_many_tasks
from dasktile.report.formatting import format_bytes, format_names
from dasktile.request import Request
from dasktile.schedule.placement import is_written
from dasktile.small_graphs import QUICK, SMALL, is_quick, is_small
from dasktile.tiling.growth import TooManyTasksError
from dasktile.tiling.plan import TilingPlan
from dasktile.tiling.planner import MemoryLimitError, SearchTables
from dasktile.whole import costs_hardly_more, cut_axes, kept_whole

#: Why the input is unchanged where it has a plan.
AGAIN = "it is the result of optimize already, for as many workers"

#: Why the input is unchanged where its blocks are in memory, and a plan would move more of them.
THERE = (
    "Dask's own graph reads the persisted blocks where they are, and is predicted to move about {}"
    " between workers; a plan would move {}"
)

#: The same where sizes are unknown.
THERE_UNKNOWN = (
    "Dask's own graph reads the persisted blocks where they are, and it is unknown what it moves;"
    " a plan would move {}"
)

#: Why the input is unchanged where nobody knows on which workers its blocks are.
COMPUTING = (
    "it is unknown on which workers {} of persisted blocks are, as they are still being computed,"
    " or as an asynchronous client cannot ask; a plan might move them"
)

#: Why arrays keep their chunks where these move less.
OWN_THERE = "with the input's own chunks, tasks run where the persisted blocks are"

#: Bytes that a plan moves of persisted arrays, as a share of these, and in all, up to which it is
#: surely not worse than Dask's own graph (chosen).
FEW_MOVED, LITTLE_MOVED = 0.05, 2**20

#: Seconds over those of Dask's own graph up to which a plan may move more of persisted arrays than
#: that by this factor, or by an unknown one (chosen: bytes are certain, seconds are estimates).
MUCH_LESS, MANY_MORE = 0.5, 2

#: Of the results that workers receive from each other, the share of those with unknown sizes up to
#: which the bytes of the others are those that are predicted (chosen).
FEW_UNSIZED = 0.1

#: Cost of a task, as a share of the usual one, where tiles of few bytes are searched (chosen: that
#: of a call within a bundle, some tens of microseconds).
FEW_BYTES = 1 / 64

#: Bytes that the tasks of a plan may cost above those of the input (chosen: less than a task of
#: the usual price).
MORE_BYTES = 2**18

#: Tasks of a graph up to which Dask's fusion is run to count them (chosen: it takes about 60 us for
#: each); of more, those before fusion are counted.
MOST_FUSED = 20_000

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


def has_plan(request: Request) -> bool:
    """Whether the graph has layers of plans, and all of these are for as many workers.

    How many of the workers these use may differ.

    Parameters
    ----------
    request
        The arrays and their graph.
    """
    if request.method != "auto" or request.machine.limit_given:
        return False
    planned_for = {placement.workers for placement in placements_in(request.graph.layers)}
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
        usual = _unless_error(partial(cheapest, request, captured, tables), usual)
    else:
        usual = _unless_error(partial(_unless_more_tasks, request), usual)
    if is_planned(request) and not _is_bundled(usual):
        usual = unchanged(usual, AGAIN)
    # a search without some cuts proves nothing of tiles with them
    usual = usual if whole is None else with_bound_of(usual, searched)
    usual = _unless_error(partial(_unless_more_moved, request, captured), usual)
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


def _unless_more_moved(request: Request, captured: Captured, plan: Candidate) -> Candidate:
    """A plan, or the input if that moves fewer bytes of its persisted blocks.

    Positions of the mesh are those that the blocks have.  Dask's scheduler, which sees every block,
    may find workers for tasks that no tiling on the mesh has.  Where sizes of results are unknown,
    so that its bytes are not known, a plan must save bytes by the model, or time.
    """
    planned = plan.planned.plan
    if request.method != "auto" or request.machine.limit_given or planned.tiled is None:
        return plan
    if captured.computing and saved_bytes(planned) <= captured.computing:
        return unchanged(plan, COMPUTING.format(format_bytes(captured.computing)))
    there = blocks_there(captured)
    resident = _bytes_there(captured.program)
    before, after = planned.before.bytes, planned.after.bytes
    if there:
        # with what tiles receive that are brought into kept chunks, or of which nothing is selected
        plan = replace(plan, lowered=plan.lowered or lower_plan(request, plan.planned))
        at_places = received_at_places(plan)
        after = after if at_places is None else at_places
    is_little = after <= max(LITTLE_MOVED, FEW_MOVED * resident)
    # sizes of such blocks are what their functions make of them: the model must save bytes
    by_block = there and is_little and not request.gathered and _follows_by_block(planned)
    if by_block and after > CLEARLY_LESS * before:
        kept = unchanged(plan, THERE_UNKNOWN.format(format_bytes(after)))
        return replace(kept, planned=replace(kept.planned, plan=without_bound(kept.planned.plan)))
    if not there or is_little or not is_predictable(request):
        return plan
    wanted = wanted_of(request, plan)
    run = predicted_input(request, wanted, there=there)
    if run is not None and run.spilled:
        return plan
    if run is None:
        tasks = tasks_of_input(request.graph, wanted_keys_of(request, wanted))
        run = Prediction(math.inf, sys.maxsize, 0, tasks=tasks, guessed=math.inf)
    # guesses of sizes are upper bounds
    is_known = run.is_sound or run.moved < CLEARLY_LESS * after
    # of arrays that a P2P rechunk sends, the model counts what is needed elsewhere, the least
    is_least = has_p2p_rechunks(request.graph) and after <= before
    if (run.moved >= after) if is_known else is_least:
        return plan
    if is_known:
        most = max(run.moved, LITTLE_MOVED)
        for other in (_own_where_blocks_are, _of_few_bytes):
            found = _unless_slower(request, other(request, captured), run, most)
            if found is not None:
                return found
    # that the client takes blocks out of tuples saves tasks, which are not worth these bytes
    usual = replace(request, gathered=frozenset())
    lowered = None if request.gathered else plan.lowered
    if _is_faster(usual, replace(plan, lowered=lowered or lower_plan(usual, plan.planned)), run):
        return replace(plan, lowered=plan.lowered or lower_plan(request, plan.planned))
    verdict = THERE_UNKNOWN.format(format_bytes(after))
    if is_known:
        # also if it is an upper bound: that is far less than the plan moves
        plan = replace(plan, before=replace(run, guessed=0.0))
        verdict = THERE.format(format_bytes(run.moved), format_bytes(after))
    kept = unchanged(plan, verdict)
    return replace(kept, planned=replace(kept.planned, plan=without_bound(kept.planned.plan)))


def received_at_places(chosen: Candidate) -> int | None:
    """Bytes that workers receive, if every task runs at its place; None if much is unknown.

    Parameters
    ----------
    chosen
        The plan.
    """
    source = None if chosen.lowered is None else chosen.lowered.bundled.source
    if source is None or source.tasks.uncounted_share(is_of_data=False) > FEW_UNSIZED:
        return None
    data = source.tasks.received_data
    return None if data is None else source.tasks.received + data


def _follows_by_block(plan: TilingPlan) -> bool:
    """Whether blocks of unknown functions, which others read, run where persisted blocks are."""
    assert plan.tiled is not None
    program = plan.tiled.program
    return any(
        node.kind is Kind.OPAQUE
        and node.edges
        and isinstance(tiling.held_at, Follow)
        and program.consumers(index)
        for index, (node, tiling) in enumerate(zip(program.nodes, plan.tiled.tilings, strict=True))
    )


def _own_where_blocks_are(request: Request, captured: Captured) -> Candidate | None:
    """A plan with the input's own chunks, whose tasks run where persisted blocks are.

    Only other tiles need workers with about equal shares.
    """
    return candidate(request, captured, request.machine.settings(), keep=OWN_THERE)


def _of_few_bytes(request: Request, captured: Captured) -> Candidate | None:
    """A plan for which tasks cost little, so that few bytes are moved."""
    settings = request.machine.settings()
    settings = replace(settings, task_bytes=settings.task_bytes * FEW_BYTES)
    return candidate(request, captured, settings)


def _unless_slower(
    request: Request, plan: Candidate | None, own: Prediction, most: int
) -> Candidate | None:
    """A plan with its graph, if it moves no more than some bytes and is no slower than Dask's own.

    That the client takes blocks out of tuples is not in its run.
    """
    if plan is None or plan.planned.plan.tiled is None or plan.planned.plan.after.bytes > most:
        return None
    lowered = plan.lowered or lower_plan(request, plan.planned)
    plan = replace(plan, lowered=lowered)
    moved = received_at_places(plan)
    if moved is not None and moved > most:
        return None
    if request.gathered or not own.is_sound:
        return plan
    run = predict_plan(lowered, request.machine)
    return plan if run is not None and run.seconds <= own.seconds else None


def _is_faster(request: Request, plan: Candidate, own: Prediction) -> bool:
    """Whether a plan takes clearly fewer seconds than Dask's own graph, on a slow network, too.

    If it moves far more, they must be half as many; if sizes are unknown, half of those of the
    tasks of Dask's graph alone, as if these received nothing.
    """
    assert plan.lowered is not None
    run = predict_plan(plan.lowered, request.machine)
    if run is None:
        return False
    # that run has the blocks of the input on all workers
    after = plan.planned.plan.after.bytes
    at_places = received_at_places(plan)
    moved = after + plan.lowered.bundled.unplanned(after) if at_places is None else at_places
    more = moved - (own.moved if own.is_sound else 0)
    seconds = run.on_slow_network(more, request.machine.workers).seconds
    if not own.is_sound:
        return rough_tasks(seconds, request.machine.calibration) <= MUCH_LESS * own.tasks
    share = MUCH_LESS if moved > MANY_MORE * own.moved else CLEARLY_LESS
    return seconds <= share * own.seconds


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
    return max(0, request.machine.room - _bytes_there(plan.program) // request.machine.workers)


def _bytes_there(program: Program) -> int:
    """Bytes of the persisted arrays whose workers are known."""
    return sum(node.nbytes for node in program.nodes if node.resident and node.homes)


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
