"""What running a graph is predicted to take: a simulation of the workers."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from dask.highlevelgraph import HighLevelGraph

from dasktile.cluster.target import Machine
from dasktile.ir import ArrayType, workers_of_positions
from dasktile.lower.bundle_limits import BundleLimits
from dasktile.lower.names import placements_in
from dasktile.lower.placed import guessed_operations, placed_tasks
from dasktile.lower.writer import Lowered
from dasktile.schedule.homes import has_homes
from dasktile.schedule.peaks import Simulated, Speeds, simulate
from dasktile.schedule.placed_tasks import PlacedTasks
from dasktile.schedule.placement import is_written
from dasktile.tiling.calibration import Calibration

#: Tasks of a graph above which it is not simulated (chosen: a task takes about 200 microseconds).
MAX_TASKS = 10_000

#: Bytes of results of unknown size, as a share of those of all results, up to which a prediction is
#: shown, and a plan is discarded for it (chosen).
MOST_GUESSED = 0.1

#: Power of the peak of memory by which seconds are multiplied to compare two runs (chosen: a run
#: that needs half the memory may take 40 % longer).
MEMORY_EXPONENT = 0.5

#: Seconds that every run takes, however few tasks it has (chosen: a graph is sent to the scheduler,
#: and the results are awaited).
LEAST_SECONDS = 0.1

#: Bytes a second that the functions of a worker's thread make (measured: the median of the corpus
#: in ``benchmarks/corpus``).
WORK_SPEED = 5e8

#: Limits for a graph without bundles.
_UNBUNDLED = BundleLimits((), {}, (), 0, 0)

#: Cost of a plan over that of the usual plan below which it takes its place (chosen: less is within
#: the error of the simulation).
CLEARLY_LESS = 0.9

#: Bytes moved more than by the usual plan that a plan may move, as a share of those that the input
#: moves (chosen).
MORE_MOVED = 0.05

#: Work of the busiest worker over the mean beyond which a plan takes no other's place: the time
#: that functions take is not predicted (chosen).
MOST_UNEVEN = 1.5

#: Seconds over those of another run up to which both are the same (chosen: tasks that are ready at
#: the same time run in any order).
SAME_SECONDS = 1.02

#: Memory over that of another run up to which a run needs no more, and may dominate it (chosen).
MORE_MEMORY = 1.25

#: Bytes on a worker up to which no run counts as one that needs more memory (chosen: workers that
#: run out of step hold a third more).
LITTLE_MEMORY = 24 * 2**20

#: Bytes a second between two workers by which Dask's scheduler places tasks, until it has measured
#: more (the default of ``distributed.scheduler.bandwidth``).
SCHEDULER_BANDWIDTH = 1e8

#: Bytes a second between two workers of a slow network, at which a run that moves more must still
#: cost less (chosen).
SLOW_NETWORK = 1e8

#: Bytes a second between a worker's memory and its disk (the default of the setting
#: ``dasktile.plan.disk-bandwidth``).
DISK_SPEED = 400e6

#: Seconds that a task of arrays adds to a graph, over those of the trivial tasks that `calibrate`
#: times (measured: with it, most graphs of `benchmarks.corpus` take as long as predicted, up to a
#: factor of 1.5).
USUAL_TASK = 2.4

#: Bytes of results on a worker that are not worth a search for less (chosen).
SMALL_PEAK = 2**21

#: Bytes on a worker below which less memory is not worth any seconds (chosen).
LEAST_PEAK = 2**20


@dataclass(frozen=True, slots=True)
class Prediction:
    """What running a graph takes, the results being left on the workers.

    Parameters
    ----------
    seconds
        Until the last task has run, without the time that its function takes.
    moved
        Bytes that workers receive from each other.
    peak
        Bytes on the worker that holds most, if it spills none: of results, and of what tasks make
        or hold while they run.
    room
        Bytes of results that a worker holds before it spills; None if that is unknown.
    tasks
        Number of tasks that Dask runs, blocks in memory and aliases included.
    results
        Bytes of results alone on the worker that holds most.
    work
        Seconds that functions take, roughly, and about the same in whatever tiles they run.
    guessed
        Bytes of results whose sizes are guesses, as a share of those of all results.  Guesses are
        upper bounds, as of several reductions that one function computes.
    task
        Bytes of the task that has most in memory: its inputs, its result, and what it holds besides
        while it runs.
    by_worker
        Bytes of results alone on each worker.
    from_memory
        Whether blocks in memory are on the workers that have them; otherwise tasks make them.
    between_hosts
        Bytes that workers receive from workers of other hosts; None where there is one host.
    busiest_link
        Bytes that the worker with most receives from others, or sends to them.
    uneven
        Bytes of the results that one worker makes, the one that makes most, over the mean; aliases
        and parts of results count in full.
    """

    seconds: float
    moved: int
    peak: int
    room: int | None = None
    tasks: int = 0
    results: int = 0
    work: float = 0.0
    guessed: float = 0.0
    task: int = 0
    by_worker: tuple[int, ...] = ()
    from_memory: bool = False
    between_hosts: int | None = None
    busiest_link: int = 0
    uneven: float = 1.0

    @property
    def is_sound(self) -> bool:
        """Whether the sizes of nearly all results are known."""
        return self.guessed <= MOST_GUESSED

    @property
    def spilled(self) -> int:
        """Bytes of results that do not fit on the worker that holds most."""
        return 0 if self.room is None else max(0, (self.results or self.peak) - self.room)

    @property
    def seconds_with_spill(self) -> float:
        """Seconds, with those in which spilled bytes are written and read back."""
        return self.seconds + 2 * self.spilled / DISK_SPEED

    @property
    def run_seconds(self) -> float:
        """Seconds of the whole run, roughly: those that functions take are in it."""
        return LEAST_SECONDS + self.work + self.seconds_with_spill

    @property
    def memory_factor(self) -> float:
        """A power of the memory; of little memory, less is worth nothing."""
        return float(max(LEAST_PEAK, self.peak) ** MEMORY_EXPONENT)

    @property
    def cost(self) -> float:
        """Seconds, times a power of the memory."""
        return self.run_seconds * self.memory_factor

    def excess(self, other: Prediction) -> float:
        """Memory of a run over 1.25 times that of another run, or over 24 MiB; at least 1.

        Parameters
        ----------
        other
            Another run.
        """
        return max(1.0, self.peak / max(MORE_MEMORY * other.peak, LITTLE_MEMORY))

    def dominates(self, other: Prediction) -> bool:
        """Whether a run moves no more bytes, and takes hardly more seconds and memory.

        Of little memory, more does not count.

        Parameters
        ----------
        other
            Another run.
        """
        return (
            self.moved <= other.moved
            and self.seconds <= SAME_SECONDS * other.seconds
            and self.peak <= max(MORE_MEMORY * other.peak, LITTLE_MEMORY)
        )

    def on_slow_network(self, more: int, workers: int) -> Prediction:
        """The same run with the time in which workers of a slow network receive some more bytes.

        Parameters
        ----------
        more
            The bytes.
        workers
            Number of workers that receive them.
        """
        return replace(self, seconds=self.seconds + more / workers / SLOW_NETWORK)

    def is_clearly_cheaper(self, other: Prediction, workers: int) -> bool:
        """Whether a run costs clearly less than another and is no slower, on a slow network, too.

        Parameters
        ----------
        other
            Another run.
        workers
            Number of workers that receive the bytes that only this run moves.
        """
        slow = self.on_slow_network(max(0, self.moved - other.moved), workers)
        no_slower = slow.seconds_with_spill <= other.seconds_with_spill
        return no_slower and slow.cost < CLEARLY_LESS * other.cost


def sound(run: Prediction | None) -> Prediction | None:
    """A prediction; None if it rests on guesses."""
    return run if run is not None and run.is_sound else None


def work_seconds(nbytes: int, machine: Machine) -> float:
    """Seconds that functions take which make some bytes, roughly.

    Parameters
    ----------
    nbytes
        Bytes of all arrays.
    machine
        The workers.
    """
    return nbytes / (machine.workers * machine.threads) / WORK_SPEED


def rough_cost(
    tasks: float, peak: int, work: float = 0.0, calibration: Calibration | None = None
) -> float:
    """The cost of a run of which only the scheduler's time is known: a lower bound.

    Parameters
    ----------
    tasks
        Number of tasks.
    peak
        Bytes of results on the worker that holds most.
    work
        Seconds that functions take.
    calibration
        What was measured of the cluster.
    """
    return Prediction(tasks * _speeds(calibration).scheduler, 0, peak, work=work).cost


def rough_tasks(seconds: float, calibration: Calibration | None = None) -> int:
    """Tasks that the scheduler handles in some seconds, rounded up.

    Parameters
    ----------
    seconds
        Seconds of a run, without the time that functions take.
    calibration
        What was measured of the cluster.
    """
    return math.ceil(max(0.0, seconds) / _speeds(calibration).scheduler)


def rough_seconds(cost: float, peak: int, work: float = 0.0) -> float:
    """Seconds of a run of some cost, without the time that functions take: see `Prediction.cost`.

    Parameters
    ----------
    cost, peak, work
        The cost, bytes of results on the worker that holds most, and seconds that functions take.
    """
    return cost / Prediction(0.0, 0, peak).memory_factor - LEAST_SECONDS - work


def predict_input(
    graph: HighLevelGraph,
    wanted: Mapping[str, Collection[Any]],
    machine: Machine,
    work: float = 0.0,
    there: Mapping[Any, int] = MappingProxyType({}),
    data: Mapping[Any, ArrayType] = MappingProxyType({}),
) -> Prediction | None:
    """What Dask's own graph takes; None if the sizes of results are unknown.

    Parameters
    ----------
    graph
        The graph.
    wanted
        By the name of an array, the keys of it that are wanted.
    machine
        The workers.
    work
        Seconds that functions take.
    there
        Blocks that are in memory already, and the mesh position of each.
    data
        Those of them that are not of the graph: their shapes and types.
    """
    tasks, guessed = input_tasks(graph, wanted, machine, there, data)
    return predict_tasks(machine, work, tasks, guessed)


def input_tasks(
    graph: HighLevelGraph,
    wanted: Mapping[str, Collection[Any]],
    machine: Machine,
    there: Mapping[Any, int] = MappingProxyType({}),
    data: Mapping[Any, ArrayType] = MappingProxyType({}),
) -> tuple[PlacedTasks, float]:
    """The tasks of Dask's own graph as it runs, and how much of their sizes is a guess.

    Parameters
    ----------
    graph, wanted, machine, there, data
        As for `predict_input`.
    """
    limits = replace(_UNBUNDLED, shapes=data)
    by_place = machine.placed and any(map(is_written, graph.layers))
    if by_place:
        # tasks of an array that was optimised before run where its plan says
        tables = _workers_by_positions(graph, machine.workers)
        limits = replace(limits, mesh=(machine.workers,), tables=tables)
    return placed_tasks(
        graph,
        wanted,
        limits,
        by_place=by_place,
        there=there,
        threads=machine.workers * machine.threads,
        is_enabled=machine.placed and not by_place,
    )


def _workers_by_positions(graph: HighLevelGraph, workers: int) -> dict[int, list[int]]:
    """For every mesh of plans in a graph, by its number of positions, the worker of each position.

    As the scheduler places tasks: layers of several plans may have different meshes.
    """
    meshes = {placement.positions for placement in placements_in(graph.layers)}
    return {
        positions: workers_of_positions(positions, workers)
        for positions in meshes
        if has_homes(positions, workers)
    }


def tasks_of_input(graph: HighLevelGraph, wanted: Mapping[str, Collection[Any]]) -> int:
    """The number of tasks of Dask's own graph as it runs, whatever the sizes of their results.

    Parameters
    ----------
    graph, wanted
        As for `predict_input`.
    """
    tasks, _ = placed_tasks(graph, wanted, _UNBUNDLED)
    return len(tasks.reads)


def unknown_sizes(graph: HighLevelGraph, wanted: Mapping[str, Collection[Any]]) -> tuple[str, ...]:
    """The operations of Dask's own graph with results whose sizes are guesses.

    Parameters
    ----------
    graph, wanted
        As for `predict_input`.
    """
    return guessed_operations(graph, wanted, _UNBUNDLED)


def predict_plan(lowered: Lowered, machine: Machine, work: float = 0.0) -> Prediction | None:
    """What the graph of a plan takes; None if the sizes of results are unknown.

    Parameters
    ----------
    lowered
        The graph.
    machine
        The workers.
    work
        Seconds that functions take.
    """
    tasks, guessed = lowered.tasks(machine.placed)
    positions = math.prod(lowered.written.limits.mesh)
    return predict_tasks(machine, work, tasks, guessed, positions)


def predict_tasks(
    machine: Machine, work: float, tasks: PlacedTasks, guessed: float, positions: int = 0
) -> Prediction | None:
    """What the tasks of a graph take; None if the sizes of results are unknown.

    Parameters
    ----------
    machine
        The workers.
    work
        Seconds that functions take.
    tasks, guessed
        The tasks, and how much of their sizes is a guess, see `placed_tasks`.
    positions
        Positions of the mesh that the homes of the tasks are in; 0 if all workers have one.
    """
    if math.isinf(guessed):
        return None
    return prediction_of(simulated_run(machine, tasks, positions), machine, work, tasks, guessed)


def prediction_of(
    run: Simulated, machine: Machine, work: float, tasks: PlacedTasks, guessed: float
) -> Prediction:
    """What a simulated run takes.

    Parameters
    ----------
    run
        The run.
    machine, work, tasks, guessed
        As for `predict_tasks`.
    """
    made = [0] * len(run.results)
    for worker, size in zip(run.ran, tasks.sizes, strict=True):
        if worker >= 0:
            made[worker] += size
    return Prediction(
        run.seconds,
        run.moved,
        max(run.peaks),
        machine.room,
        len(tasks.reads),
        max(run.results),
        work,
        guessed,
        run.task,
        run.results,
        bool(tasks.there),
        run.between_hosts if len(set(machine.hosts)) > 1 else None,
        run.busiest_link,
        max(made) * len(made) / max(1, sum(made)),
    )


def simulated_run(machine: Machine, tasks: PlacedTasks, positions: int = 0) -> Simulated:
    """The simulated run of the tasks of a graph.

    Parameters
    ----------
    machine, tasks, positions
        As for `predict_tasks`.
    """
    speeds = _speeds(machine.calibration)
    if tasks.there:
        # with the speed of the network, blocks would be sent that Dask leaves where they are
        speeds = replace(speeds, assumed=SCHEDULER_BANDWIDTH)
    hosts = machine.hosts
    if 0 < positions < len(hosts):
        # workers without a position have no tasks
        hosts = machine.hosts_of(positions) + hosts[positions:]
    # more workers than tasks have none
    workers = min(machine.workers, MAX_TASKS)
    return simulate(tasks, workers, machine.threads, speeds, hosts)


def _speeds(measured: Calibration | None) -> Speeds:
    """The speeds of a cluster, as far as they were measured."""
    speeds = Speeds()
    if measured is None:
        return speeds
    return replace(
        speeds,
        scheduler=USUAL_TASK * measured.task_seconds,
        network=measured.bandwidth or speeds.network,
        within_host=measured.bandwidth_within_host,
        memory=measured.memory or speeds.memory,
    )
