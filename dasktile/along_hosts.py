"""A plan on the workers of several hosts: few of the bytes that it moves cross hosts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dasktile.lower.count import count_tasks
from dasktile.lower.writer import Lowered
from dasktile.planning import Candidate, lower_plan
from dasktile.prediction import CLEARLY_LESS, MAX_TASKS, Prediction, predict_plan
from dasktile.request import Request
from dasktile.schedule.traffic import bytes_between, bytes_between_hosts
from dasktile.tiling.axis_order import axis_orders, in_axis_order, new_positions

#: Bytes between hosts that are not worth another order of the axes (chosen: the graph is written
#: again for it).
LITTLE_SENT = 2**22


def along_hosts(request: Request, plan: Candidate) -> Candidate:
    """A plan with the axes of its mesh in the order in which fewest bytes cross hosts.

    The tiles are the same, and so are the bytes that workers receive.  Plans of arrays in memory,
    whose blocks stay on their workers, are not changed; they have the mesh of the plans that these
    arrays are from.  Nor are those whose blocks were divided by simulated runs.

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
    machine, tiled = request.machine, plan.planned.plan.tiled
    workers = len(machine.order)
    if tiled is None or plan.is_own or not 1 < len(set(machine.hosts)) < workers:
        return plan
    positions, captured = math.prod(tiled.mesh), plan.planned.captured
    in_memory = captured.near or any(node.homes is not None for node in tiled.program.nodes)
    if in_memory or positions > workers:
        return plan
    lowered = plan.lowered or lower_plan(request, plan.planned)
    if count_tasks(lowered.graph, lowered.names) > MAX_TASKS:
        return plan
    sent, hosts = _sent(lowered, positions), np.asarray(machine.hosts_of(positions))
    crossing = {
        order: bytes_between_hosts(sent, hosts[new_positions(tiled.mesh, order)])
        for order in axis_orders(len(tiled.mesh))
    }
    usual, best = next(iter(crossing)), min(crossing, key=crossing.__getitem__)
    if crossing[best] > CLEARLY_LESS * crossing[usual] - LITTLE_SENT:
        return plan
    chosen = replace(plan.planned.plan, tiled=in_axis_order(tiled, best))
    planned = replace(plan.planned, plan=chosen)
    other = lower_plan(request, planned, lowered.bundled.form)
    received = _sent(other, positions)
    # what was decided for one order should hold for another; the graph tells
    if received.sum() > sent.sum() or bytes_between_hosts(received, hosts) >= crossing[usual]:
        return plan
    after = plan.after and predict_plan(other, machine, plan.after.work)
    if plan.after is not None and (after is None or _is_worse(after, plan.after)):
        return plan
    return replace(plan, planned=planned, lowered=other, after=after)


def _is_worse(run: Prediction, usual: Prediction) -> bool:
    """Whether a run takes clearly longer than another, or more memory that matters."""
    return (
        run.spilled > usual.spilled
        or CLEARLY_LESS * run.seconds > usual.seconds
        or run.excess(usual) > 1
    )


def _sent(lowered: Lowered, positions: int) -> npt.NDArray[np.int64]:
    tasks, _ = lowered.tasks(by_place=True)
    return bytes_between(tasks, positions)
