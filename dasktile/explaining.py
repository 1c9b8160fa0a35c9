"""Explanations of plans: of requests, and of graphs that a computation has."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph
from dask.utils import disable_gc

from dasktile import choice, config
from dasktile.capture.references import head_of
from dasktile.cluster.located import blocks_there
from dasktile.cluster.target import Machine
from dasktile.collections.boundary import boundary, without_joins
from dasktile.ir import Program
from dasktile.lower.names import is_of_bundles, placements_in, predicted_bytes
from dasktile.needs import wanted_blocks
from dasktile.planning import Candidate
from dasktile.predicted import (
    FEW_UNSIZED,
    is_predictable,
    predicted_input,
    received_at_places,
    wanted_keys_of,
    wanted_of,
)
from dasktile.prediction import Prediction, sound, tasks_of_input
from dasktile.report.explanation import Explanation
from dasktile.request import Groups, Request
from dasktile.returned import ReturnedPlan, describer, returned_plan
from dasktile.run_seconds import (
    function_work,
    least_tasks_of_input,
    measured_seconds,
    tasks_of_plan,
)

#: Why the run of an array that `optimize` returned is not predicted: although its plan is known,
#: and because it is not.
NOT_SIMULATED = "it was not simulated when the plan was made"
PLAN_UNKNOWN = (
    "it is in memory, or its plan was made for another cluster, in another process, for more arrays"
    " than these, or long ago"
)

#: Bytes that Dask's own graph of persisted arrays receives over those of the plan, and more than
#: these, from which they are shown (measured: on 23 expressions, the simulation was 0.4 to 1.3
#: times what was received where that was so, and up to 20 times where it was little).
_CLEARLY_MORE, _MANY_BYTES = 2, 2**24


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
    returned = returned_plan(request)
    if returned is None:
        explanation = _explained_plan(request, unknown)
    else:
        explanation = _explained_again(request, returned, unknown)
    planned_for = {placement.workers for placement in placements_in(request.graph.layers)}
    return replace(
        explanation,
        scheduler_workers=request.machine.scheduler_workers,
        earlier_workers=tuple(sorted(planned_for - {request.machine.workers})),
    )


def _explained_plan(request: Request, unknown: Sequence[Array]) -> Explanation:
    """The explanation of arrays that are planned now."""
    with disable_gc():
        chosen = choice.predicted_plan(request)
    is_again = chosen.planned.plan.verdict == choice.AGAIN
    if is_again:
        # the simulation would place tasks as those of Dask's own graphs
        chosen = replace(chosen, before=None, after=None)
    describe = describer(request, chosen)
    unpredicted = PLAN_UNKNOWN if is_again else choice.unpredicted(request, chosen)
    explanation = describe(
        unknown=unknown,
        seconds=measured_seconds(
            request.machine,
            chosen.planned.plan,
            function_work(request, chosen.planned),
            (chosen.before, chosen.after),
            (partial(least_tasks_of_input, request), partial(tasks_of_plan, request, chosen)),
        ),
        runs=(chosen.before, chosen.after),
        room=choice.room(request, chosen.planned.plan),
        memory=request.machine.memory,
        unpredicted=unpredicted,
        variables=_variables_of(chosen.planned.plan.program, request.names, request.variables),
        dims=_dims_of(chosen.planned.plan.program, request.names, request.groups),
    )
    if chosen.after is None and unpredicted and not choice.too_large(request, chosen):
        # bytes of results of unknown sizes are not counted, but for those of earlier plans
        unplanned = 0
        if request.machine.placed and not is_again:
            unplanned = max(_received(request.graph), _received_within(chosen))
        explanation = replace(
            explanation,
            proven_optimal=False,
            bytes_unplanned=unplanned,
            # names of an earlier plan tell what is received for it
            counts_all=is_again
            or explanation.workers == 1
            or not _lacks_bytes(explanation, chosen),
        )
    elif not request.machine.placed and explanation.workers > 1 and _has_inner_tasks(chosen):
        # no run is simulated, and the model does not know what is moved
        explanation = replace(explanation, proven_optimal=False, counts_all=False)
    if fetched := chosen.planned.captured.fetched:
        # data that arrays are made of, which is no array of the plan
        more = explanation.bytes_unplanned + fetched
        explanation = replace(explanation, bytes_unplanned=more)
    if unknown:
        # nobody knows the size of what is joined
        explanation = replace(explanation, joined=0)
    if chosen.before is None and chosen.after is not None and is_predictable(request):
        # the number of tasks does not depend on the sizes that are unknown
        count = tasks_of_input(request.graph, wanted_keys_of(request, wanted_blocks(request)))
        explanation = replace(explanation, run_tasks_before=count)
    if explanation.in_memory and explanation.changed and request.machine.placed:
        # a simulation would not know where blocks are
        explanation = replace(explanation, received_after=received_at_places(chosen))
        planned = explanation.bytes_predicted
        received = None if planned is None else _received_by_input(request, chosen, planned)
        if received is not None:
            explanation = replace(explanation, received_before=received, received_after=planned)
    elif explanation.in_memory and explanation.received_before is None and request.machine.placed:
        run = _run_where_blocks_are(request, chosen)
        # the model counts no data of which blocks are made; of blocks on few workers, the
        # simulation moves too many
        is_counted = any(node.homes for node in chosen.planned.captured.program.nodes)
        if run is not None and not (is_counted and run.moved > explanation.bytes_before):
            explanation = replace(explanation, received_before=run.moved)
    if is_again and request.machine.placed:
        explanation = replace(explanation, received_before=_received(request.graph))
    return replace(explanation, refused=True) if chosen.refused else explanation


def _received_within(chosen: Candidate) -> int:
    """Bytes that workers receive for tasks within arrays, as far as their sizes are known."""
    source = None if chosen.lowered is None else chosen.lowered.bundled.source
    return 0 if source is None else source.tasks.unplanned


def _lacks_bytes(explanation: Explanation, chosen: Candidate) -> bool:
    """Whether bytes that workers receive are left out, as results have unknown sizes."""
    if not explanation.uncounted and not _has_inner_tasks(chosen):
        return False
    source = None if chosen.lowered is None else chosen.lowered.bundled.source
    if source is None:
        return True
    return source.tasks.uncounted_share(_is_made_of_data(chosen)) > FEW_UNSIZED


def _has_inner_tasks(chosen: Candidate) -> bool:
    """Whether tasks of which the model does not know what they receive make blocks of an array."""
    return any(node.has_inner_tasks for node in chosen.planned.captured.program.nodes)


def _is_made_of_data(chosen: Candidate) -> bool:
    """Whether data in memory gives homes to all such arrays: what they read of it is counted."""
    captured = chosen.planned.captured
    inner = [node for node in captured.program.nodes if node.has_inner_tasks]
    return bool(inner) and not captured.divided and all(node.homes for node in inner)


def _received_by_input(request: Request, chosen: Candidate, planned: int) -> int | None:
    """Bytes that workers receive for Dask's own graph, with its blocks on their workers.

    None where these are not clearly more than those of the plan: they are known roughly, as
    Dask's scheduler decides by what workers do at the time.
    """
    run = _run_where_blocks_are(request, chosen)
    if run is None or run.moved < max(_CLEARLY_MORE * planned, planned + _MANY_BYTES):
        return None
    return run.moved


def _run_where_blocks_are(request: Request, chosen: Candidate) -> Prediction | None:
    """The run of Dask's own graph, with its blocks on their workers; None if it is unknown."""
    captured = chosen.planned.captured
    data = {key: at for key, at in captured.near.items() if key in captured.shapes}
    there = blocks_there(captured) | data
    if not there or not is_predictable(request):
        return None
    held = {key: captured.shapes[key] for key in data}
    return sound(predicted_input(request, wanted_of(request, chosen), there=there, data=held))


def _variables_of(
    program: Program, names: Sequence[str], variables: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """The variables by the names of the arrays of a program.

    Parameters
    ----------
    program
        The program.
    names
        Names of its outputs as they were given: after a rechunk, that of an array is another one.
    variables
        The variables by these names.
    """
    of_nodes = dict(variables)
    for index, name in zip(program.outputs, names, strict=True):
        node = program.nodes[index].name
        known = of_nodes.get(node, ()) if node != name else ()
        of_nodes[node] = tuple(dict.fromkeys((*known, *variables.get(name, ()))))
    return of_nodes


def _dims_of(
    program: Program, names: Sequence[str], groups: Groups
) -> dict[str, tuple[Hashable, ...]]:
    """The dimensions by the names of the arrays of a program, whose outputs are given by `names`.

    Arrays that are variables of several dimensions are left out.
    """
    known: dict[str, set[tuple[Hashable, ...]]] = {}
    for member in itertools.chain.from_iterable(groups):
        known.setdefault(member.name, set()).add(tuple(member.dims))
    dims = {name: next(iter(found)) for name, found in known.items() if len(found) == 1}
    nodes = zip((program.nodes[index].name for index in program.outputs), names, strict=True)
    return {node: dims[name] for node, name in nodes if name in dims}


def _received(graph: HighLevelGraph) -> int:
    """Bytes that the plans of a graph predict, by the names of its layers."""
    heads = {
        head_of(key) for name, layer in graph.layers.items() if is_of_bundles(name) for key in layer
    }
    return predicted_bytes(heads.union(graph.layers))


def _explained_again(
    request: Request, returned: ReturnedPlan, unknown: Sequence[Array]
) -> Explanation:
    """The explanation of arrays that `optimize` returned: that of their plan."""
    wanted = wanted_keys_of(request, wanted_blocks(request))
    before = sound(returned.input_run(request))
    after = sound(returned.predicted_run(request, wanted))
    is_predicted = before is not None and after is not None
    explanation = returned.describe(
        unknown=unknown,
        seconds=measured_seconds(
            request.machine,
            returned.plan,
            returned.work,
            (before, after),
            (lambda: None, partial(least_tasks_of_input, request)),
        ),
        runs=(before, after),
        room=choice.room(request, returned.plan),
        memory=request.machine.memory,
        unpredicted="" if is_predicted else returned.too_large or NOT_SIMULATED,
        variables=_variables_of(returned.plan.program, returned.names, request.variables),
        dims=_dims_of(returned.plan.program, returned.names, request.groups),
    )
    # with those of earlier plans in the graph
    more = max(0, _received(request.graph) - explanation.bytes_counted)
    return replace(
        explanation,
        changed=False,
        verdict=choice.AGAIN,
        planned=True,
        bytes_unplanned=explanation.bytes_unplanned + more,
    )


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
    below, keys, above = without_joins(graph, ends, keys)
    # blocks are joined whatever their size
    kept = frozenset(names) if above else frozenset[str]()
    request = Request(below, ends.arrays, kept, kept, target, method, keys, above)
    return names, explained(request)
