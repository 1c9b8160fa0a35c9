"""Dask's own graph, with workers for its tasks.

Where that graph is predicted to cost less than any plan, its tasks are kept as they are.  Dask's
scheduler gives them workers by what these do at the time, so that what they receive differs from
run to run.  Here they get the workers that a simulation of that scheduler gives them; those that
read nothing run where they are read.
"""

from __future__ import annotations

from dataclasses import replace

import dask.config
from dask.array.optimization import optimize
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.utils import ensure_dict

from dasktile.capture.base import Captured
from dasktile.capture.called import calls_known_functions
from dasktile.cluster.located import shapes_there
from dasktile.inner_tasks import MOST_TASKS, as_simulated
from dasktile.ir import Kind
from dasktile.lower.bundle import BundleForm
from dasktile.lower.writer import Lowered
from dasktile.planning import (
    Candidate,
    candidate,
    captured_program,
    is_shuffle,
    lower_plan,
    plan_request,
    without_bound,
)
from dasktile.predicted import (
    InputRun,
    is_predictable,
    received_at_places,
    with_own_prediction,
)
from dasktile.prediction import Prediction
from dasktile.request import Request
from dasktile.tiling.plan import TilingPlan

#: Seconds over those of the simulated run of Dask's own graph up to which its tasks get workers
#: (chosen: in runs of some graphs, Dask's workers received up to twice the bytes of that run).
HARDLY_SLOWER = 1.1

#: Bytes that one worker makes in that run over the mean, from which Dask would give tasks to idle
#: workers (chosen: half of the workers have all).
MOST_UNEVEN = 2

#: Why arrays keep their chunks in the plan of that graph, which nobody sees.
_OWN = "the graph is Dask's own"


def with_workers(
    request: Request, captured: Captured, own: Candidate, stock: InputRun
) -> Candidate:
    """The input's own graph with a worker for each task, if its run is predicted to be no worse.

    Parameters
    ----------
    request
        The arrays and their graph.
    captured
        The program of the graph.
    own
        The input as it is.
    stock
        The run of the input's own graph.

    Returns
    -------
    The graph with workers, as a plan in which all arrays keep their chunks; else `own`.
    """
    if not _may_have_workers(request, stock):
        return own
    before = stock.prediction
    if before is None or not before.is_sound or before.spilled:
        return own
    fused = _fused(request)
    if not calls_known_functions(fused.graph.layers[request.names[0]].values()):
        return own  # functions of the user take unknown time, and run where a thread is free
    divided = _divided(fused, captured, stock)
    if divided is None:
        return own
    placed = with_own_prediction(fused, divided, stock.work)
    if placed.lowered is None or placed.lowered.bundled.memory is None:
        return own  # all tasks run where their inputs are
    received = received_at_places(placed)
    if placed.after is None or received is None:
        return own
    after = replace(placed.after, moved=received)
    if not after.is_sound or not _is_no_worse(after, before):
        return own
    settings, reason = request.machine.settings(), own.planned.plan.verdict
    planned = plan_request(request, captured, settings, own.planned, keep=reason)
    if planned.plan.tiled is None:
        return own
    planned = replace(planned, plan=_receiving(planned.plan, received))
    return replace(placed, planned=planned, before=before, after=after, is_own=True)


def graph_again(
    request: Request, captured: Captured, stock: InputRun, form: BundleForm
) -> Lowered | None:
    """The graph of `with_workers`, where that has found it to be no worse for other keys.

    Parameters
    ----------
    request, captured, stock
        As for `with_workers`.
    form
        How its tasks are bundled and ordered.
    """
    fused = _fused(request)
    divided = _divided(fused, captured, stock)
    return None if divided is None else lower_plan(fused, divided.planned, form)


def _receiving(plan: TilingPlan, received: int) -> TilingPlan:
    """A plan with the bytes that are received in all, counted for its last result.

    The model would place the blocks of each array in boxes on a grid.
    """
    last = plan.program.outputs[-1]
    moved = tuple(received * (index == last) for index in range(len(plan.program.nodes)))
    plan = replace(plan, after=replace(plan.after, moved=moved, handed=(), by_worker=()))
    if received < plan.lower_bound:
        return without_bound(plan)  # no tiles on a grid are where these blocks are
    return replace(plan, proven_optimal=plan.proven_optimal and received == plan.lower_bound)


def _divided(fused: Request, captured: Captured, stock: InputRun) -> Candidate | None:
    """A plan of the graph as Dask fuses it, on the workers of a simulated run, if there is one."""
    blocks = captured_program(fused)
    nodes = blocks.program.nodes
    if any(node.kind is not Kind.OPAQUE or node.edges for node in nodes):
        return None
    divided = as_simulated(blocks, range(len(nodes)), stock.ran, stock.roots)
    near = {**divided.near, **stock.there}
    shapes = {**divided.shapes, **shapes_there(captured)}
    divided = replace(divided, near=near, shapes=shapes, inner=stock.sizes)
    placed = candidate(fused, divided, fused.machine.settings(), keep=_OWN)
    return None if placed is None or placed.planned.plan.tiled is None else placed


def _may_have_workers(request: Request, stock: InputRun) -> bool:
    """Whether workers may be chosen for the tasks of a graph, of which there are few enough."""
    machine, layers = request.machine, request.graph.layers.values()
    if machine.workers < 2 or dask.config.get("optimization.fuse.active", None) is False:
        return False
    # annotations are those of a layer, and keys of shuffles are arguments of their tasks
    if any(layer.annotations or is_shuffle(layer) for layer in layers):
        return False
    return is_predictable(request) and not stock.has_more(MOST_TASKS) and stock.has_choice


def _is_no_worse(run: Prediction, own: Prediction) -> bool:
    """Whether a run of the graph with workers has no more bytes and tasks, and hardly more seconds.

    Seconds and memory are not compared where blocks are in memory: only the run of the input has
    them there from the beginning.
    """
    if run.moved > own.moved or run.tasks > own.tasks:
        return False
    if own.from_memory:
        return not run.spilled
    return own.uneven <= MOST_UNEVEN and replace(
        run, seconds=run.seconds / HARDLY_SLOWER
    ).dominates(own)


def _fused(request: Request) -> Request:
    """A request for the graph as Dask optimises it, as ``dask.optimize`` leaves it."""
    tasks = MaterializedLayer(ensure_dict(optimize(request.graph, list(flatten([request.keys])))))
    layers = dict.fromkeys(request.names, tasks)
    graph = HighLevelGraph(layers, {name: set() for name in layers})
    return replace(request, graph=graph)
