"""Predicted runs of the graphs that a request may have: its own, and those of plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dasktile.capture.culling import Needed, count_needed
from dasktile.lower.count import count_tasks
from dasktile.lower.written import wanted_keys
from dasktile.planning import Candidate, PlannedRequest, lower_plan, takes_time, wanted_blocks
from dasktile.prediction import MAX_TASKS, Prediction, predict_input, predict_plan, work_seconds
from dasktile.request import Request

#: Bytes on a worker above which another order of the tasks and smaller bundles are tried, too
#: (chosen: of fewer bytes, smaller tiles save most).
LARGE_PEAK = 2**23


def is_predictable(request: Request) -> bool:
    """Whether the input's own graph has few enough tasks to be simulated."""
    if count_tasks(request.graph, request.names) <= MAX_TASKS:
        return True
    return count_needed(request.graph, request.keys, MAX_TASKS) <= MAX_TASKS


def work_of(request: Request, planned: PlannedRequest) -> float:
    """Seconds that the functions of a request take, roughly."""
    return work_seconds(bytes_made(planned), request.machine)


def wanted_of(request: Request, plan: Candidate) -> Mapping[str, Needed]:
    """By the name of an array, which of its blocks are wanted."""
    return plan.planned.wanted or wanted_blocks(request)


def predicted_input(
    request: Request, needed: Mapping[str, Needed], work: float = 0.0
) -> Prediction | None:
    """What the input's own graph takes; None if the sizes of results are unknown."""
    return predict_input(request.graph, wanted_keys_of(request, needed), request.machine, work)


def wanted_keys_of(request: Request, needed: Mapping[str, Needed]) -> dict[str, Any]:
    """By the name of an array, the keys of its blocks that are wanted."""
    return {array.name: wanted_keys(array.name, array.chunks, needed) for array in request.arrays}


def bytes_made(planned: PlannedRequest) -> int:
    """Bytes of all arrays that functions make, as far as they are needed."""
    made = 0.0
    for node in planned.captured.program.nodes:
        if takes_time(node):
            needed = planned.needed.get(node.name, planned.wanted.get(node.name))
            made += node.nbytes * (1 if needed is None else float(needed.mean()))
    return int(made)


def with_prediction(request: Request, chosen: Candidate, work: float) -> Candidate:
    """The same plan with its graph and a prediction of its run; that of the input is there."""
    if chosen.planned.plan.tiled is None:
        return replace(chosen, after=chosen.before)
    return with_own_prediction(request, chosen, work)


def with_own_prediction(request: Request, chosen: Candidate, work: float) -> Candidate:
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
