"""Graphs that Dask runs in less time than a plan takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice

from dask.blockwise import Blockwise
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, Layer

from dasktile.capture.base import Captured
from dasktile.capture.structure import Structured
from dasktile.cheapest import MUCH_MOVED, PLANNING_SECONDS
from dasktile.guard import or_none
from dasktile.lower.count import least_tasks
from dasktile.lower.noted import NotedBlocks, noted_blocks
from dasktile.needs import wanted_blocks
from dasktile.predicted import predicted_input
from dasktile.prediction import LITTLE_MEMORY
from dasktile.request import Request
from dasktile.tiling.objective import seconds_alone
from dasktile.tiling.settings import Settings

#: Why the input is unchanged where few of its tasks are needed.
QUICK = "the few tasks that are needed take less time than a plan"

#: Why the input is unchanged where Dask runs it in less time than a plan takes.
SMALL = "Dask's own graph is predicted to take less time than a plan"

#: Tasks of a graph for each that is needed, from which no plan is made, and the most of these
#: (chosen: to plan takes up to 100 microseconds for every task of the graph, to run one some
#: milliseconds; many tasks may be worth a plan whatever it takes).
TASKS_PER_NEEDED, MOST_QUICK = 50, 300

#: Seconds that any plan takes (measured: ``python -m benchmarks.planning --hook``), and the needed
#: tasks of a graph, before Dask fuses them, up to which its run is compared with these (chosen).
LEAST_PLANNING, MOST_SMALL = 0.04, 64

#: Operations that are assumed for each iteration of a layer (chosen: steps of `einsum` count as
#: tens of operations).  Layers of unknown iterations have at most those of a product of matrices,
#: which are the elements that they read and make, to the power of 1.5.
MOST_OPERATIONS = 200


def is_quick(request: Request) -> bool:
    """Whether Dask runs the few needed tasks of a graph in less time than a plan takes.

    Parameters
    ----------
    request
        The arrays and their graph.
    """
    if request.method != "auto":
        return False
    wanted = list(islice(flatten([request.keys]), MOST_QUICK + 1))
    if len(wanted) > MOST_QUICK:
        return False
    most = min(MOST_QUICK, least_tasks(request.graph, request.names) // TASKS_PER_NEEDED)
    if len(set(wanted)) > most:
        return False
    return request.needed.up_to(most) <= most


def is_small(
    request: Request, captured: Callable[[], Captured], read: Structured | None = None
) -> bool:
    """Whether Dask's own graph surely takes little memory, and less time than a plan.

    The time of functions is left out where all workers run them, as a plan would not save it.

    Parameters
    ----------
    request
        The arrays and their graph, for workers on which runs are predicted.
    captured
        Captures the graph, which takes longer than all else here.
    read
        The structure of the graph, if that was read.
    """
    if request.machine.limit_given:
        return False
    needed = request.needed.up_to(MOST_SMALL)
    if needed > MOST_SMALL:
        return False
    # the simulation does not count bytes of inputs that are on workers
    may_be_there = read is None or read.names.data or read.names.constants.unknown
    if may_be_there and any(node.homes for node in captured().program.nodes):
        return False
    # planning reads every task of the graph, and writes those that are needed
    tasks = least_tasks(request.graph, request.names) + needed
    run = or_none(partial(predicted_input, request, wanted_blocks(request)))
    if run is None or not run.is_sound or run.spilled or run.peak > LITTLE_MEMORY:
        return False
    if run.moved > MUCH_MOVED:
        return False
    left = LEAST_PLANNING + PLANNING_SECONDS * tasks - run.seconds
    if left < 0:
        return False
    workers, settings = request.machine.workers, request.machine.settings()
    if _most_alone(request.graph, workers, settings) <= left:
        return True
    return seconds_alone(captured().program, workers, settings) <= left


def _most_alone(graph: HighLevelGraph, workers: int, settings: Settings) -> float:
    """At least `seconds_alone`, by the sizes of arrays; infinite where some are unknown."""
    arrays = noted_blocks(graph)
    if arrays.keys() != graph.layers.keys():
        return math.inf
    sizes = {name: math.prod(map(sum, array.chunks)) for name, array in arrays.items()}
    steps = 0.0
    for name, array in arrays.items():
        if math.prod(map(len, array.chunks)) < workers:
            elements = sizes[name] + sum(sizes[read] for read in graph.dependencies[name])
            steps += max(elements**1.5, _iterations(graph.layers[name], arrays))
    return MOST_OPERATIONS * steps / settings.work_per_second


def _iterations(layer: Layer, arrays: Mapping[str, NotedBlocks]) -> int:
    """The product of the lengths of all axes of a Blockwise layer; 0 for others."""
    if not isinstance(layer, Blockwise):
        return 0
    lengths: dict[str, int] = {}
    for name, symbols in layer.indices:
        if symbols is not None and isinstance(name, str) and name in arrays:
            lengths |= zip(symbols, map(sum, arrays[name].chunks), strict=False)
    return math.prod(lengths.values())
