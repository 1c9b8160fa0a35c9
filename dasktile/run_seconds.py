"""Seconds that a run takes on a cluster whose speed was measured, with the work of its functions.

Plans are compared by rougher seconds (:mod:`dasktile.prediction`), in which functions take as long
in whatever tiles they run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dasktile.capture.culling import least_run_of
from dasktile.cluster.target import Machine
from dasktile.guard import or_none
from dasktile.ir import Kind, Node, Program
from dasktile.lower.count import count_tasks
from dasktile.needs import takes_time
from dasktile.planning import Candidate, PlannedRequest, lower_plan
from dasktile.prediction import USUAL_TASK, WORK_SPEED, Prediction
from dasktile.request import Request
from dasktile.tiling.objective import stock_slowdown_of
from dasktile.tiling.plan import TilingPlan

#: Seconds that a run takes besides its tasks and functions (measured: `benchmarks.corpus`, as the
#: speeds below).
AWAITED = 0.02

#: Seconds of a thread for a task that runs as a part of another, in a bundle or fused by Dask
#: (measured: with it, half of the plans of `benchmarks.corpus` take longer than predicted).
INNER_TASK = 2e-4

#: Operations that make a view of one element in the shape of a block.
CONSTANT = frozenset({"zeros_like", "ones_like", "full_like", "empty_like"})

#: Bytes a second of which a thread finds the groups, by the name with which flox's layers begin.
GROUPED, GROUP_SPEED = "groupby_", 5e7

#: Tasks up to which it is found out which of them Dask fuses (chosen: a second).
MOST_TOLD = 50_000


@dataclass(frozen=True, slots=True)
class NodeWork:
    """What the functions of a node take.

    Parameters
    ----------
    seconds
        Seconds of one thread, operations of products left out.
    operations
        Floating-point operations of a product of matrices.
    slowdown
        Factor by which Dask's own function takes longer for these operations.
    blocks
        Blocks of the work that are needed, in the input and in the plan: as many threads at most
        run them.
    tasks
        Tasks of the model that are needed, in the input and in the plan.
    """

    seconds: float
    operations: float
    slowdown: float
    blocks: tuple[int, int]
    tasks: tuple[int, int] = (0, 0)


def function_work(request: Request, planned: PlannedRequest) -> tuple[NodeWork, ...]:
    """What the functions of a request take, node by node.

    Parameters
    ----------
    request, planned
        The arrays, and their plan.
    """
    program, tiled = planned.captured.program, planned.plan.tiled
    model = request.machine.settings().model
    found = []
    for index, node in enumerate(program.nodes):
        if not takes_time(node):
            continue
        share = planned.needs.share(node.name)
        own = [label.cuts for label in node.labels]
        cuts = own if tiled is None else tiled.tilings[index].cuts
        made, planned_blocks = (math.prod(map(len, each)) for each in (own, cuts))
        blocks = max(1, round(share * made)), max(1, round(share * planned_blocks))
        plan = planned.plan
        tasks = round(share * plan.before.tasks[index]), round(share * plan.after.tasks[index])
        is_product = node.kind is Kind.CONTRACT
        operations = share * node.iterations * node.work if is_product else 0.0
        slowdown = stock_slowdown_of(node, model)
        seconds = share * _seconds(program, node)
        found.append(NodeWork(seconds, operations, slowdown, blocks, tasks))
    return tuple(found)


def _seconds(program: Program, node: Node) -> float:
    """Seconds that one thread takes for all blocks of a node, operations of products left out."""
    if node.op in CONSTANT and not node.edges:
        return 0.0
    seconds = node.nbytes / WORK_SPEED
    if node.op.startswith(GROUPED):
        read = max((program.nodes[edge.producer].nbytes for edge in node.edges), default=0)
        seconds += read / GROUP_SPEED
    return seconds


def measured_seconds(
    machine: Machine,
    plan: TilingPlan,
    work: Sequence[NodeWork],
    runs: tuple[Prediction | None, Prediction | None],
    tasks: tuple[Callable[[], int | None], Callable[[], int | None]],
) -> tuple[float | None, float | None] | None:
    """Seconds of Dask's own graph, and of a plan; None for a cluster that was not measured.

    They are those of the simulated runs, and where there is none, the scheduler's for all tasks,
    without those of bytes.  Added are those of the functions: products by the measured speed,
    groups and other functions by that of `benchmarks.corpus`, as tasks that run as a part of
    others.  Reading from storage is left out.

    Parameters
    ----------
    machine
        The workers.
    plan
        The plan.
    work
        What its functions take.
    runs
        Simulated runs of Dask's own graph, and of the plan's.
    tasks
        Count the tasks of these graphs; None where they are unknown.

    Returns
    -------
    The seconds, None for each that is unknown; None without a measurement.
    """
    if machine.calibration is None:
        return None
    steps = [sum(node.tasks[side] for node in work) for side in range(2)]
    before = _of_run(machine, runs[0], tasks[0], steps[0])
    if before is not None:
        before += function_seconds(machine, work, plan.before.balance, is_stock=True)
    if plan.tiled is None:
        return before, before
    after = _of_run(machine, runs[1], tasks[1], steps[1])
    if after is not None:
        after += function_seconds(machine, work, plan.after.balance)
    return before, after


def _of_run(
    machine: Machine, run: Prediction | None, tasks: Callable[[], int | None], steps: int
) -> float | None:
    """Seconds of a run of some tasks of the model without those of its functions, if known."""
    assert machine.calibration is not None
    if run is not None:
        inner = max(0, steps - run.tasks) * INNER_TASK / (machine.workers * machine.threads)
        return AWAITED + run.seconds_with_spill + inner
    count = tasks()
    task = USUAL_TASK * machine.calibration.task_seconds
    return None if count is None else AWAITED + task * count


def function_seconds(
    machine: Machine, work: Sequence[NodeWork], balance: float = 1.0, is_stock: bool = False
) -> float:
    """Seconds in which the threads of all workers run the functions, one node after the other.

    Parameters
    ----------
    machine
        The workers, whose speed was measured.
    work
        What the functions take.
    balance
        Work of the busiest worker over the mean.
    is_stock
        Whether Dask's own functions run, on the blocks of the input.
    """
    assert machine.calibration is not None
    threads, seconds = machine.workers * machine.threads / balance, 0.0
    for node in work:
        slowdown = node.slowdown if is_stock else 1.0
        one = node.seconds + slowdown * node.operations / machine.calibration.flops
        seconds += one / max(1.0, min(threads, node.blocks[0 if is_stock else 1]))
    return seconds


def least_tasks_of_input(request: Request) -> int:
    """The number of tasks of Dask's own graph: at least those that run, or of very many, all."""
    told = least_run_of(request.graph, request.names, request.keys).up_to(MOST_TOLD)
    return told if told <= MOST_TOLD else count_tasks(request.graph, request.names)


def tasks_of_plan(request: Request, chosen: Candidate) -> int:
    """The number of tasks of a plan: those that run, or of very many, those of the model."""
    count = sum(chosen.planned.plan.after.tasks)
    if count > MOST_TOLD:
        return count
    lowered = chosen.lowered or or_none(lambda: lower_plan(request, chosen.planned))
    return count if lowered is None else len(lowered.tasks(request.machine.placed)[0].reads)
