"""Explanations of plans: of requests, and of graphs that a computation has."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph
from dask.utils import disable_gc

from dasktile import choice, config
from dasktile._compat.dask import joins_blocks
from dasktile.cluster.target import Machine
from dasktile.collections.boundary import boundary, reachable
from dasktile.ir import Chunks
from dasktile.planning import Candidate, handed_over, most_bundled, with_premise
from dasktile.report.describing import describe_plan
from dasktile.report.explanation import Explanation
from dasktile.request import Request
from dasktile.tiling.plan import TilingPlan


def explained(request: Request, unknown: Sequence[Array] = ()) -> Explanation:
    """Describe the plan of a request.

    Parameters
    ----------
    request
        The arrays and their graph.
    unknown
        Arrays on top of them whose chunk sizes are not known.

    Raises
    ------
    UndeclaredReadError
        If tasks of the graph read keys of an array that are not its blocks.
    """
    with disable_gc():
        chosen = choice.predicted_plan(request)
    plan = with_premise(request, chosen.planned)
    explanation = describe_plan(
        plan,
        request.final_chunks(plan),
        unknown,
        seconds=_seconds(request, chosen, plan),
        runs=(chosen.before, chosen.after),
        room=choice.room(request, chosen),
        assumed_room=request.machine.assumed_room,
        joined=choice.joined(request, plan),
        placed=request.machine.placed,
        handed=handed_over(request, chosen.planned),
        unpredicted=choice.unpredicted(request, chosen),
        layers=_layers(chosen),
        bundle=most_bundled(request.machine),
        unplanned=0 if chosen.lowered is None else chosen.lowered.bundled.unplanned,
    )
    return replace(explanation, refused=True) if chosen.refused else explanation


def _seconds(request: Request, chosen: Candidate, plan: TilingPlan) -> tuple[float, float] | None:
    """Seconds of the input and of the plan: of simulated runs, as far as there are any.

    None without a calibration.
    """
    machine, before, after = request.machine, chosen.before, chosen.after
    if machine.calibration is None or before is None or after is None:
        return machine.seconds(plan)
    return before.run_seconds, after.run_seconds


def _layers(chosen: Candidate) -> dict[int, tuple[str, ...]]:
    """By the index of a node, names of the layers that make its array and its final chunks."""
    lowered = chosen.lowered
    if lowered is None:
        return {}
    layers = {index: {name: None} for index, name in lowered.made.items()}
    for index, name in zip(chosen.planned.plan.program.outputs, lowered.names, strict=True):
        layers.setdefault(index, {})[name] = None
    return {index: tuple(names) for index, names in layers.items()}


def explained_graph(
    graph: HighLevelGraph, keys: Any, target: Machine
) -> tuple[list[str], Explanation] | None:
    """Describe the plan of the arrays of a graph, as if they were given to ``optimize``.

    Parameters
    ----------
    graph
        The graph of a computation, as Dask's setting ``array_optimize`` receives it.
    keys
        The wanted keys, nested in any way.
    target
        The workers.

    Returns
    -------
    Names of the arrays that are wanted, and their plan; None for a graph without arrays of known
    chunks.

    Raises
    ------
    UndeclaredReadError
        As :func:`explained`.
    """
    ends = boundary(graph, keys)
    if ends is None:
        return None
    names = [array.name for array in ends.arrays]
    method = config.setting("method")
    if all(map(joins_blocks, ends.above)):
        # blocks are joined whatever their size
        keys = [blocks(array.name, array.chunks) for array in ends.arrays]
        free: frozenset[str] = frozenset()
        request = Request(reachable(graph, names), ends.arrays, free, free, target, method, keys)
    else:
        above, kept = tuple(ends.above), frozenset(names)
        request = Request(graph, ends.arrays, kept, kept, target, method, keys, above)
    return names, explained(request)


def blocks(name: str, chunks: Chunks) -> list[tuple[Any, ...]]:
    """The keys of all blocks of an array."""
    return [(name, *block) for block in itertools.product(*(range(len(sizes)) for sizes in chunks))]
