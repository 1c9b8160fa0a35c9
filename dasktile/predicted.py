"""Predicted runs of the graphs that a request may have: its own, and those of plans."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from dasktile.capture.culling import Counted, Needed, least_run_of
from dasktile.ir import ArrayType
from dasktile.lower.count import count_tasks
from dasktile.lower.placed import key_of
from dasktile.lower.written import wanted_keys
from dasktile.needs import takes_time
from dasktile.planning import Candidate, PlannedRequest, lower_plan
from dasktile.prediction import (
    MAX_TASKS,
    SAME_SECONDS,
    Prediction,
    input_tasks,
    predict_input,
    predict_plan,
    prediction_of,
    rough_seconds,
    rough_tasks,
    simulated_run,
    work_seconds,
)
from dasktile.request import Request
from dasktile.schedule.peaks import Simulated
from dasktile.schedule.placed_tasks import PlacedTasks
from dasktile.tiling.calibration import Calibration

#: Of the results that workers receive from each other, the share of those with unknown sizes up to
#: which the bytes of the others are those that are predicted (chosen).
FEW_UNSIZED = 0.1

#: Bytes on a worker above which another order of the tasks and smaller bundles are tried, too
#: (chosen: of fewer bytes, smaller tiles save most).
LARGE_PEAK = 2**23


def is_predictable(request: Request) -> bool:
    """Whether the input's own graph has few enough tasks to be simulated."""
    if count_tasks(request.graph, request.names) <= MAX_TASKS:
        return True
    return request.needed.up_to(MAX_TASKS) <= MAX_TASKS


def work_of(request: Request, planned: PlannedRequest) -> float:
    """Seconds that the functions of a request take, roughly."""
    return work_seconds(bytes_made(planned), request.machine)


def wanted_of(request: Request, plan: Candidate) -> Mapping[str, Needed]:
    """By the name of an array, which of its blocks are wanted."""
    return plan.planned.needs.wanted


def predicted_input(
    request: Request,
    needed: Mapping[str, Needed],
    work: float = 0.0,
    there: Mapping[Any, int] = MappingProxyType({}),
    data: Mapping[Any, ArrayType] = MappingProxyType({}),
) -> Prediction | None:
    """What the input's own graph takes; None if the sizes of results are unknown."""
    wanted = wanted_keys_of(request, needed)
    return predict_input(request.graph, wanted, request.machine, work, there, data)


class InputRun:
    """The run of the input's own graph: lower bounds, and a simulation when it is asked for.

    Parameters
    ----------
    request
        The arrays and their graph.
    plan
        Any plan of them.
    there
        Blocks that are in memory already, and the mesh position of each; an attribute, too.

    Attributes
    ----------
    work
        Seconds that the functions take, roughly.
    kept
        Bytes of results that each worker has at the end, if all have equally many.
    """

    def __init__(
        self, request: Request, plan: Candidate, there: Mapping[Any, int] = MappingProxyType({})
    ) -> None:
        self._request = request
        self.there = there
        self._wanted = wanted_of(request, plan)
        self.work = work_of(request, plan.planned)
        kept = sum(
            math.prod(array.shape) * array.dtype.itemsize * float(self._wanted[array.name].mean())
            for array in request.arrays
        )
        self.kept = int(kept / request.machine.workers)

    @cached_property
    def prediction(self) -> Prediction | None:
        """What the graph takes; None if the sizes of results are unknown."""
        tasks, guessed = self._tasks
        if math.isinf(guessed):
            return None
        return prediction_of(self._run, self._request.machine, self.work, tasks, guessed)

    @cached_property
    def ran(self) -> dict[Any, int]:
        """The worker that is predicted to run each task, by key."""
        tasks, _ = self._tasks
        return {
            key: worker
            for keys, worker in zip(tasks.keys, self._run.ran, strict=True)
            for key in (*keys, key_of(keys))
            if worker >= 0
        }

    @cached_property
    def sizes(self) -> dict[Any, int]:
        """Bytes of the result of each task that Dask runs, by key."""
        tasks, _ = self._tasks
        return {
            key: size
            for keys, size in zip(tasks.keys, tasks.sizes, strict=True)
            for key in (keys[-1], key_of(keys))
        }

    @cached_property
    def roots(self) -> set[Any]:
        """The keys of the tasks that read no results of others."""
        tasks, _ = self._tasks
        data = set(tasks.data)
        return {
            key
            for keys, reads in zip(tasks.keys, tasks.reads, strict=True)
            for key in keys
            if data.issuperset(reads)
        }

    @cached_property
    def has_choice(self) -> bool:
        """Whether it matters which workers run the tasks: some read results of others."""
        tasks, _ = self._tasks
        data = set(tasks.data)
        return any(not data.issuperset(reads) for reads in tasks.reads)

    @cached_property
    def _run(self) -> Simulated:
        """The simulated run."""
        tasks, _ = self._tasks
        return simulated_run(self._request.machine, tasks)

    @cached_property
    def _tasks(self) -> tuple[PlacedTasks, float]:
        """The tasks that Dask runs, and how much of their sizes is a guess."""
        wanted = wanted_keys_of(self._request, self._wanted)
        return input_tasks(self._request.graph, wanted, self._request.machine, self.there)

    def takes_more_time(self, run: Prediction) -> bool:
        """Whether the graph surely takes more time than a run.

        Parameters
        ----------
        run
            The run of a plan.
        """
        return self.has_more(rough_tasks(SAME_SECONDS * run.seconds, self._calibration))

    def costs_more(self, cost: float) -> bool:
        """Whether the run of the graph surely costs more than this; see `Prediction.cost`.

        Parameters
        ----------
        cost
            The cost of a run.
        """
        seconds = rough_seconds(cost, self.kept, self.work)
        return self.has_more(rough_tasks(seconds, self._calibration))

    def has_more(self, tasks: int) -> bool:
        """Whether Dask surely runs more tasks than this.

        Parameters
        ----------
        tasks
            A number of tasks.
        """
        return self._least_run.up_to(tasks) > tasks

    @property
    def _calibration(self) -> Calibration | None:
        return self._request.machine.calibration

    @cached_property
    def _least_run(self) -> Counted:
        """The number of tasks that Dask runs at least."""
        request = self._request
        return least_run_of(request.graph, request.names, request.keys)


def wanted_keys_of(request: Request, needed: Mapping[str, Needed]) -> dict[str, Any]:
    """By the name of an array, the keys of its blocks that are wanted."""
    return {array.name: wanted_keys(array.name, array.chunks, needed) for array in request.arrays}


def bytes_made(planned: PlannedRequest) -> int:
    """Bytes of all arrays that functions make, as far as they are needed."""
    made = 0.0
    for node in planned.captured.program.nodes:
        if takes_time(node):
            made += node.nbytes * planned.needs.share(node.name)
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
