"""Graphs that Dask runs in less time than a plan takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import islice

from dask.blockwise import Blockwise
from dask.core import flatten

from dasktile.capture.base import Captured
from dasktile.capture.rules.sources import has_value
from dasktile.cheapest import PLANNING_SECONDS
from dasktile.guard import or_none
from dasktile.lower.count import least_tasks
from dasktile.lower.noted import noted_blocks
from dasktile.planning import wanted_blocks
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

#: Operations for every element of an array in each of the others that a layer reads and makes, in
#: the time of which its functions surely run (chosen: products take two, sorts and sums of many
#: elements tens).
MOST_OPERATIONS = 100


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


def is_small(request: Request, captured: Callable[[], Captured]) -> bool:
    """Whether Dask's own graph surely takes little memory, and less time than a plan.

    The time of functions is left out where all workers run them, as a plan would not save it.

    Parameters
    ----------
    request
        The arrays and their graph, for workers on which runs are predicted.
    captured
        Captures the graph, which takes longer than all else here.
    """
    if request.machine.limit_given:
        return False
    needed = request.needed.up_to(MOST_SMALL)
    if needed > MOST_SMALL:
        return False
    # the simulation knows no bytes of inputs that are on workers already
    if _has_data(request) and any(node.homes for node in captured().program.nodes):
        return False
    # all tasks are read, and those that are needed are written
    tasks = least_tasks(request.graph, request.names) + needed
    planning = LEAST_PLANNING + PLANNING_SECONDS * tasks
    # few tasks run about alike in any order, and that of Dask takes long to find
    run = or_none(partial(predicted_input, request, wanted_blocks(request), in_order=False))
    if run is None or not run.is_sound or run.spilled or run.peak > LITTLE_MEMORY:
        return False
    settings, left = request.machine.settings(), planning - run.seconds
    if left < 0 or _most_alone(request, settings) <= left:
        return left >= 0
    return seconds_alone(captured().program, request.machine.workers, settings) <= left


def _has_data(request: Request) -> bool:
    """Whether arrays or futures are in the graph."""
    return any(
        any(map(has_value, layer.values()))
        for name, layer in request.graph.layers.items()
        if not isinstance(layer, Blockwise) and not request.graph.dependencies.get(name)
    )


def _most_alone(request: Request, settings: Settings) -> float:
    """An upper bound of `seconds_alone` by sizes of arrays; infinite where some are unknown."""
    graph, arrays = request.graph, noted_blocks(request.graph)
    if arrays.keys() != graph.layers.keys():
        return math.inf
    sizes = {name: math.prod(map(sum, array.chunks)) for name, array in arrays.items()}
    operations = 0.0
    for name, array in arrays.items():
        if math.prod(map(len, array.chunks)) < request.machine.workers:
            elements = sizes[name] + sum(sizes[read] for read in graph.dependencies[name])
            # a product of matrices of equal sizes has most operations for its elements
            operations += MOST_OPERATIONS * elements**1.5
    return operations / settings.work_per_second
