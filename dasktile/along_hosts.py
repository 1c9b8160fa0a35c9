"""A plan on the workers of several hosts: few of the bytes that it moves cross hosts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dasktile.lower.count import count_tasks
from dasktile.lower.writer import Lowered
from dasktile.planning import Candidate, lower_plan
from dasktile.prediction import CLEARLY_LESS, MAX_TASKS, predict_plan
from dasktile.request import Request
from dasktile.schedule.traffic import bytes_between, bytes_between_hosts
from dasktile.tiling.axis_order import axis_orders, in_axis_order, in_prime_axes, new_positions

#: Bytes between hosts that are worth no other order of the axes (chosen: they are sent in less time
#: than it takes to write the graph again).
LITTLE_SENT = 2**22


def along_hosts(request: Request, plan: Candidate) -> Candidate:
    """A plan with the axes of its mesh in the order in which fewest bytes cross hosts.

    The tiles are the same, and so are the bytes that workers receive.  Plans of arrays in memory,
    whose blocks stay on their workers, are not changed.

    Parameters
    ----------
    request
        The arrays and their graph.
    plan
        Their plan.

    Returns
    -------
    The plan, or the same one with other home workers if clearly fewer bytes cross hosts.
    """
    hosts, tiled = request.machine.hosts, plan.planned.plan.tiled
    if tiled is None or not 1 < len(set(hosts)) < len(hosts) or math.prod(tiled.mesh) != len(hosts):
        return plan
    captured = plan.planned.captured
    if captured.near or any(node.homes is not None for node in tiled.program.nodes):
        return plan
    lowered = plan.lowered or lower_plan(request, plan.planned)
    if count_tasks(lowered.graph, lowered.names) > MAX_TASKS:
        return plan
    tiled = in_prime_axes(tiled)
    sent = _sent(lowered, len(hosts))
    crossing = {
        order: bytes_between_hosts(sent, np.asarray(hosts)[new_positions(tiled.mesh, order)])
        for order in axis_orders(len(tiled.mesh))
    }
    usual, best = next(iter(crossing)), min(crossing, key=crossing.__getitem__)
    if crossing[best] > CLEARLY_LESS * crossing[usual] - LITTLE_SENT:
        return plan
    chosen = replace(plan.planned.plan, tiled=in_axis_order(tiled, best))
    planned = replace(plan.planned, plan=chosen)
    other = lower_plan(request, planned, lowered.bundled.form)
    received = _sent(other, len(hosts))
    # what was decided for one order should hold for another; the graph tells
    if received.sum() > sent.sum() or bytes_between_hosts(received, hosts) >= crossing[usual]:
        return plan
    after = plan.after and predict_plan(other, request.machine, plan.after.work)
    return replace(plan, planned=planned, lowered=other, after=after)


def _sent(lowered: Lowered, workers: int) -> npt.NDArray[np.int64]:
    tasks, _ = lowered.tasks(by_place=True)
    return bytes_between(tasks, workers)
