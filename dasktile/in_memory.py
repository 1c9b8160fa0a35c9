"""Plans of arrays whose blocks are in the memory of workers, compared with Dask's own graph.

Positions of the mesh are those that the blocks have.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from functools import partial

from dasktile.capture.base import Captured
from dasktile.capture.rules.views import has_p2p_rechunks
from dasktile.cluster.located import blocks_there
from dasktile.guard import or_none
from dasktile.ir import Follow, Kind, Program
from dasktile.own_graph import with_workers
from dasktile.planning import (
    Candidate,
    candidate,
    lower_plan,
    saved_bytes,
    unchanged,
    without_bound,
)
from dasktile.predicted import (
    InputRun,
    is_predictable,
    received_at_places,
    wanted_keys_of,
    wanted_of,
)
from dasktile.prediction import CLEARLY_LESS, Prediction, predict_plan, rough_tasks, tasks_of_input
from dasktile.report.formatting import format_bytes
from dasktile.request import Request
from dasktile.tiling.plan import TilingPlan

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

#: Cost of a task, as a share of the usual one, where tiles of few bytes are searched (chosen: that
#: of a call within a bundle, some tens of microseconds).
FEW_BYTES = 1 / 64


def unless_more_moved(request: Request, captured: Captured, plan: Candidate) -> Candidate:
    """A plan, or the input if that moves fewer bytes of its persisted blocks.

    Positions of the mesh are those that the blocks have.  Dask's scheduler, which sees every block,
    may find workers for tasks that no tiling on the mesh has.  Where sizes of results are unknown,
    so that its bytes are not known, a plan must save bytes by the model, or time.

    Parameters
    ----------
    request
        The arrays and their graph.
    captured
        The program of the graph.
    plan
        The plan.
    """
    planned = plan.planned.plan
    if request.method != "auto" or request.machine.limit_given or planned.tiled is None:
        return plan
    if captured.computing and saved_bytes(planned) <= captured.computing:
        return unchanged(plan, COMPUTING.format(format_bytes(captured.computing)))
    there = blocks_there(captured)
    resident = bytes_there(captured.program)
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
        return _kept(plan, THERE_UNKNOWN.format(format_bytes(after)))
    if not there or is_little or not is_predictable(request):
        return plan
    stock = InputRun(request, plan, there)
    run = stock.prediction
    if run is not None and run.spilled:
        return plan
    if run is None:
        tasks = tasks_of_input(request.graph, wanted_keys_of(request, wanted_of(request, plan)))
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
    kept = _kept(plan, verdict)
    return or_none(partial(with_workers, request, captured, kept, stock)) or kept


def _kept(plan: Candidate, verdict: str) -> Candidate:
    """The input as it is, for a reason; no bound covers its run."""
    kept = unchanged(plan, verdict)
    return replace(kept, planned=replace(kept.planned, plan=without_bound(kept.planned.plan)))


def bytes_there(program: Program) -> int:
    """Bytes of the persisted arrays whose workers are known.

    Parameters
    ----------
    program
        A program with the positions of their blocks.
    """
    return sum(node.nbytes for node in program.nodes if node.resident and node.homes)


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
