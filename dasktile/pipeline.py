"""From the arrays of a request to a graph in which they are tiled.

Everything here takes a :class:`~dasktile.request.Request`, whichever public function made it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph

from dasktile import config
from dasktile.capture.declarations import CONTRADICTED
from dasktile.capture.references import head_of
from dasktile.capture.structure import Structured
from dasktile.choice import chosen_plan, needs_no_plan
from dasktile.cluster.target import Machine
from dasktile.collections.boundary import boundary, splice, without_joins
from dasktile.collections.hooked import note_written
from dasktile.collections.unpack import Rewritten
from dasktile.ir import Program
from dasktile.lower.culled import culled
from dasktile.lower.gathered import parts_of
from dasktile.planning import lower_plan, most_bundled
from dasktile.request import Request
from dasktile.returned import remember, returned_plan
from dasktile.small_graphs import is_quick
from dasktile.templates import Written, written_again

#: Blocks with tasks of their own for which the arrays of a plan are planned again where the client
#: takes blocks out of tuples (chosen: fewer tasks take hardly more time than a plan).
MOST_ALONE = 64


def rewrite(request: Request) -> Rewritten | None:
    """The arrays of a request after tiling; None if the input should not change.

    Raises
    ------
    MemoryLimitError
        If no tiles fit a limit that the user gave, or if it makes too many tasks.
    """
    if is_quick(request):
        return _needed_part(request)
    is_planned = needs_no_plan(request) or returned_plan(request) is not None
    if is_planned and not _has_many_alone(request):
        return None
    return written_again(request, partial(_written, request))


def _written(request: Request, read: Structured | None) -> Written:
    """The graph that is written for a request; `read` is as for `chosen_plan`."""
    chosen = chosen_plan(request, read)
    if chosen is None:
        return Written()
    warnings = _contradictions(chosen.planned.captured.program)
    if chosen.planned.plan.tiled is None:
        return Written(warnings=warnings)
    lowered = chosen.lowered or lower_plan(request, chosen.planned)
    rewritten = Rewritten(
        lowered.graph,
        dict(zip(request.names, lowered.names, strict=True)),
        dict(zip(request.names, lowered.chunks, strict=True)),
    )
    returned = remember(request, replace(chosen, lowered=lowered))
    return Written(rewritten, returned, warnings)


def _contradictions(program: Program) -> tuple[str, ...]:
    """Why functions are not tiled whose blocks would be if their declarations were right."""
    reasons = dict.fromkeys(node.reason for node in program.nodes)
    return tuple(
        f"{reason}; its chunks are unchanged" for reason in reasons if CONTRADICTED in reason
    )


def _has_many_alone(request: Request) -> bool:
    """Whether a client that takes blocks out of tuples would ask for many that are in none.

    They have tasks of their own where the plan was made for somebody who holds their keys.
    """
    if not request.gathered or not most_bundled(request.machine):
        return False
    keys = [key for key in flatten([request.keys]) if head_of(key) in request.gathered]
    return len(keys) - len(parts_of([(request.graph, keys)])) > MOST_ALONE


def _needed_part(request: Request) -> Rewritten | None:
    """The few tasks that are needed; the scheduler would have to find them among very many."""
    if request.fixed or request.above:
        return None  # other parts of the graph may read the others
    graph = culled(request.graph, set(flatten([request.keys])), request.names)
    if graph is None:
        return None
    return Rewritten(
        graph,
        {name: name for name in request.names},
        {array.name: array.chunks for array in request.arrays},
    )


def rewrite_graph(graph: HighLevelGraph, keys: Any, target: Machine) -> HighLevelGraph | None:
    """The graph with tiled arrays under the same keys; None if it should not change."""
    ends = boundary(graph, keys)
    if ends is None:
        return None
    none, method = frozenset[str](), config.setting("method")
    below, keys, above = without_joins(graph, ends, keys)
    new = rewrite(Request(below, ends.arrays, none, none, target, method, keys, above).by_hook())
    if new is None:
        return None
    tiled = splice(graph, ends, new.graph)
    note_written(tiled)
    return tiled
