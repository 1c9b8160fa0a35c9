"""Seconds that a run takes on a cluster whose speed was measured, with the work of its functions.

Plans are compared by rougher seconds (:mod:`dasktile.prediction`), in which functions take as long
in whatever tiles they run.
"""

from __future__ import annotations

from dasktile.ir import Kind, Node, Program
from dasktile.needs import takes_time
from dasktile.planning import Candidate, PlannedRequest, lower_plan
from dasktile.predicted import InputRun
from dasktile.prediction import USUAL_TASK, WORK_SPEED, Prediction
from dasktile.request import Request
from dasktile.tiling.calibration import Calibration
from dasktile.tiling.objective import stock_slowdown_of
from dasktile.tiling.settings import CostModel

#: Seconds that every run takes on a cluster that waits for it (measured: `benchmarks.corpus`, as
#: the speeds below).
LEAST_SECONDS = 0.07

#: Bytes a second of which a thread finds the groups, by the name with which flox's layers begin.
GROUPED, GROUP_SPEED = "groupby_", 5e7

#: Tasks up to which those that Dask runs are counted; with more, a lower bound is given.
MOST_COUNTED = 1_000_000

#: Tasks of a plan up to which it is found out which of them Dask fuses (chosen: some seconds).
MOST_TOLD = 50_000


def measured_seconds(request: Request, chosen: Candidate) -> tuple[float, float] | None:
    """Seconds of Dask's own graph, and of a plan; None for a cluster that was not measured.

    They are those of the simulated runs, and where there is none, the scheduler's for all tasks.
    Added are those in which all threads run the functions: products by the measured speed, groups
    and other functions by that of `benchmarks.corpus`.  Reading from storage is left out.

    Parameters
    ----------
    request
        The arrays and their graph.
    chosen
        The plan.
    """
    calibration = request.machine.calibration
    if calibration is None:
        return None
    task = USUAL_TASK * calibration.task_seconds
    before = _seconds(chosen.before)
    if before is None:
        before = task * InputRun(request, chosen).tasks_up_to(MOST_COUNTED)
    before += LEAST_SECONDS + _work(request, chosen.planned, calibration, is_stock=True)
    if chosen.planned.plan.tiled is None:
        return before, before
    after = _seconds(chosen.after)
    if after is None:
        after = task * _tasks_of_plan(request, chosen)
    return before, LEAST_SECONDS + after + _work(request, chosen.planned, calibration)


def _tasks_of_plan(request: Request, chosen: Candidate) -> int:
    """The number of tasks of a plan, as they run where they are few enough to be told."""
    count = sum(chosen.planned.plan.after.tasks)
    if count > MOST_TOLD:
        return count
    lowered = chosen.lowered or lower_plan(request, chosen.planned)
    tasks, _ = lowered.tasks(request.machine.placed)
    return len(tasks.reads)


def _seconds(run: Prediction | None) -> float | None:
    return None if run is None else run.seconds_with_spill


def _work(
    request: Request, planned: PlannedRequest, calibration: Calibration, is_stock: bool = False
) -> float:
    """Seconds in which all threads run the functions, of Dask's own graph or of a plan."""
    model, seconds = request.machine.settings().model, 0.0
    program = planned.captured.program
    for node in program.nodes:
        if takes_time(node):
            needed = planned.needs.needed.get(node.name, planned.needs.wanted.get(node.name))
            share = 1.0 if needed is None else float(needed.mean())
            seconds += share * _thread_seconds(program, node, calibration, model, is_stock)
    return seconds / (request.machine.workers * request.machine.threads)


def _thread_seconds(
    program: Program, node: Node, calibration: Calibration, model: CostModel, is_stock: bool
) -> float:
    """Seconds that one thread takes for all blocks of a node."""
    seconds = node.nbytes / WORK_SPEED
    if node.kind is Kind.CONTRACT:
        slowdown = stock_slowdown_of(node, model) if is_stock else 1.0
        seconds += node.iterations * node.work / calibration.flops * slowdown
    elif node.op.startswith(GROUPED):
        read = max((program.nodes[edge.producer].nbytes for edge in node.edges), default=0)
        seconds += read / GROUP_SPEED
    return seconds
