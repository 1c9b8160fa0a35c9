"""From a request to a graph: capture, tile, and lower.

Everything here takes the arrays of a :class:`Request`, whichever public function made it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dask.highlevelgraph import HighLevelGraph

from dasktile import config, tiling
from dasktile.capture.base import ArrayInfo, Captured
from dasktile.capture.culling import Needed, has_effects, needed_blocks
from dasktile.capture.extend import extend
from dasktile.capture.highlevel import capture_graph
from dasktile.cluster.located import located
from dasktile.cluster.target import Machine
from dasktile.collections.boundary import boundary, splice
from dasktile.collections.output_chunks import storable
from dasktile.collections.unpack import Holders, Member, Rewritten
from dasktile.ir import Chunks, TiledProgram
from dasktile.lower.count import count_tasks
from dasktile.lower.settings import DEFAULTS as LOWER_DEFAULTS
from dasktile.lower.writer import Lowered, lower, wanted_keys
from dasktile.prediction import (
    CLEARLY_LESS,
    MAX_TASKS,
    MORE_MOVED,
    MOST_UNEVEN,
    SMALL_PEAK,
    Prediction,
    predict_input,
    predict_plan,
    rough_cost,
)
from dasktile.tiling.memo import tile_again
from dasktile.tiling.plan import TilingPlan
from dasktile.tiling.settings import Settings

logger = logging.getLogger("dasktile")

#: Why the input is unchanged where its tiles would have to be cut.
MANY_PIECES = "the chunks that the result keeps would be cut from the tiles by many tasks"

#: Why the input is unchanged where Dask's own graph is predicted to be better.
NO_GAIN = "Dask's own graph is predicted to cost less"

#: Why arrays keep their chunks where these are predicted to cost less.
OWN_CHUNKS = "the input's own chunks are predicted to cost less"

#: Arrays that must have the same chunks along each shared dimension.
Group = tuple[Member, ...]
Groups = tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """The arrays to tile, and the options.

    Parameters
    ----------
    graph
        The graph that computes the arrays.
    arrays
        The arrays.
    kept, fixed
        Names of the arrays that keep their chunks, and of those that keep their names too.
    machine, method
        The workers to plan for, and the tiling method.
    keys
        The wanted keys of the graph, nested in any way.
    above
        Names of layers that are not part of the arrays' own graph but may read them.
    groups
        As in :class:`~dasktile.collections.unpack.Holders`.
    """

    graph: HighLevelGraph
    arrays: tuple[ArrayInfo, ...]
    kept: frozenset[str]
    fixed: frozenset[str]
    machine: Machine
    method: str
    keys: Any
    above: tuple[str, ...] = ()
    groups: Groups = ()

    @classmethod
    def of(cls, holders: Holders, keep_chunks: bool, machine: Machine, method: str) -> Request:
        fixed = frozenset(holders.fixed)
        return cls(
            HighLevelGraph.merge(*holders.graphs),
            tuple(holders.arrays.values()),
            frozenset(holders.arrays) if keep_chunks else fixed,
            fixed,
            machine,
            config.setting("method") if method == "auto" else method,
            holders.keys,
            tuple(holders.above),
            tuple(holders.groups),
        )

    def final_chunks(self, plan: TilingPlan) -> list[Chunks | None]:
        """For every array, the chunks of its result; None for those of its tiles."""
        final = [array.chunks if array.name in self.kept else None for array in self.arrays]
        if plan.tiled is not None:
            for group in self.groups:
                self._agree_on_chunks(plan.tiled, group, final)
        return final

    def _agree_on_chunks(
        self, tiled: TiledProgram, group: Group, final: list[Chunks | None]
    ) -> None:
        """Give the arrays of an xarray object the same chunks along each dimension.

        These are the chunks of an array that keeps its chunks, else of the largest array, changed
        so that the object can be stored.  An object with inconsistent chunks may stay so.
        """
        places = {array.name: place for place, array in enumerate(self.arrays)}
        members = [(places[member.name], member) for member in group if member.name in places]
        # arrays that keep their chunks first, then the largest
        members.sort(
            key=lambda item: (
                final[item[0]] is None,
                -math.prod(self.arrays[item[0]].shape),
                item[0],
            )
        )
        before: dict[Hashable, tuple[int, ...]] = {}
        after: dict[Hashable, tuple[int, ...]] = {}
        kept: set[Hashable] = set()
        encoded: dict[Hashable, set[int]] = {}
        for place, member in members:
            node = tiled.program.outputs[place]
            chunks = final[place] or tiled.tilings[node].chunks
            for axis, dim in enumerate(member.dims):
                own = self.arrays[place].chunks[axis]
                if before.setdefault(dim, own) != own:
                    if len(group) > 1:
                        for single in group:
                            self._agree_on_chunks(tiled, (single,), final)
                    return
                after.setdefault(dim, chunks[axis])
                if final[place]:
                    kept.add(dim)
                if member.encoded:
                    encoded.setdefault(dim, set()).add(member.encoded[axis])
        for dim in after.keys() - kept:
            after[dim] = storable(after[dim], before[dim], encoded.get(dim, ()))
        for place, member in members:
            final[place] = final[place] or tuple(after[dim] for dim in member.dims)


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A plan, and the blocks that it must compute.

    Parameters
    ----------
    captured, plan
        The captured program and its tiles.
    wanted
        By the name of an output, which of its blocks are wanted.
    needed
        By the name of an array, which of its blocks are needed, for arrays of which not all are.
        Empty if all blocks are needed of every array whose tasks have effects.
    """

    captured: Captured
    plan: TilingPlan
    wanted: Mapping[str, Needed]
    needed: Mapping[str, Needed]

    def watched(self) -> list[int]:
        """Indices of nodes whose unneeded tiles must not be computed."""
        effects = has_effects(self.captured)
        return [
            index
            for index, node in enumerate(self.captured.program.nodes)
            if effects[index] and node.name in self.needed
        ]


@dataclass(frozen=True, slots=True)
class Accepted:
    """A plan that can be carried out.

    Parameters
    ----------
    planned
        The plan.
    lowered
        Its graph, if that had to be written.
    before, after
        What the input and the plan are predicted to take; None where nothing is predicted.
    """

    planned: PlannedRequest
    lowered: Lowered | None = None
    before: Prediction | None = None
    after: Prediction | None = None


def rewrite(request: Request) -> Rewritten | None:
    """The arrays of a request after tiling; None if the input should not change."""
    accepted = accepted_plan(request)
    if accepted.planned.plan.tiled is None:
        return None
    lowered = accepted.lowered or _lower(request, accepted.planned)
    names = [array.name for array in request.arrays]
    return Rewritten(
        lowered.graph,
        dict(zip(names, lowered.names, strict=True)),
        dict(zip(names, lowered.chunks, strict=True)),
    )


def rewrite_graph(graph: HighLevelGraph, keys: Any, target: Machine) -> HighLevelGraph | None:
    """The graph with tiled arrays under the same keys; None if it should not change."""
    ends = boundary(graph, keys)
    if ends is None:
        return None
    names = frozenset(array.name for array in ends.arrays)
    method = config.setting("method")
    above = tuple(ends.above)
    new = rewrite(Request(graph, ends.arrays, names, names, target, method, keys, above))
    return None if new is None else splice(graph, ends, new.graph)


def _captured(request: Request, pinned: Mapping[str, str]) -> Captured:
    """The captured program with the homes of its blocks."""
    return located(captured_program(request, pinned), request.machine)


def captured_program(request: Request, pinned: Mapping[str, str] | None = None) -> Captured:
    """The captured program; with the setting `raise-errors`, errors of recognisers are raised."""
    captured = capture_graph(request.graph, request.arrays, pinned)
    if captured.errors and config.setting("raise-errors"):
        raise captured.errors[0]
    return captured


def accepted_plan(request: Request) -> Accepted:
    """The plan that is carried out.

    With the method ``"auto"``, and where tasks are bundled, the usual plan is compared with others
    by predicted runs.
    """
    captured = _captured(request, {})
    usual = _accepted(request, captured, request.machine.settings())
    may_compare = request.method == "auto" and request.machine.placed and config.bundle_tasks() > 1
    # the simulation knows no bytes of inputs that are on workers already
    if not may_compare or any(node.homes for node in captured.program.nodes):
        return usual
    return _unless_error(partial(_cheapest, request, captured), usual)


def predicted(request: Request, accepted: Accepted) -> Accepted:
    """The same plan with predictions of its run and of the input's, where they are possible."""

    def predict(plan: Accepted) -> Accepted:
        plan = replace(plan, before=_predict_input(request, plan.planned))
        return _with_prediction(request, plan)

    if accepted.before is None and _is_predictable(request):
        return _unless_error(predict, accepted)
    return accepted


def _unless_error(change: Callable[[Accepted], Accepted], plan: Accepted) -> Accepted:
    """What a function makes of a plan; the plan itself, which is right, if it raises an error."""
    try:
        return change(plan)
    except Exception:
        if config.setting("raise-errors"):
            raise
        logger.debug("dasktile failed to predict a run", exc_info=True)
        return plan


def room(request: Request, accepted: Accepted) -> int | None:
    """Bytes of results that a worker holds before it spills; None if that is unknown."""
    if request.machine.room is None:
        return None
    there = sum(node.nbytes for node in accepted.planned.plan.program.nodes if node.homes)
    return max(0, request.machine.room - there // request.machine.workers)


def joined(request: Request, plan: TilingPlan) -> int:
    """Bytes of the largest result of several blocks, which Dask joins on one worker."""
    if request.machine.who_has is None:
        return 0
    tilings = plan.tiled.tilings if plan.tiled is not None else None
    largest = 0
    for node, array, chunks in zip(
        plan.program.outputs, request.arrays, request.final_chunks(plan), strict=True
    ):
        tiles = chunks or (tilings[node].chunks if tilings is not None else array.chunks)
        if math.prod(map(len, tiles)) > 1:
            largest = max(largest, math.prod(array.shape) * array.dtype.itemsize)
    return largest


def _is_predictable(request: Request) -> bool:
    # what other collections read from the arrays is not known
    names = [array.name for array in request.arrays]
    return not request.above and count_tasks(request.graph, names) <= MAX_TASKS


def _predict_input(request: Request, planned: PlannedRequest) -> Prediction | None:
    needed = planned.wanted or _wanted(request)
    wanted = {array.name: wanted_keys(array.name, array.chunks, needed) for array in request.arrays}
    return predict_input(request.graph, wanted, request.machine)


def _with_prediction(request: Request, accepted: Accepted) -> Accepted:
    """The same plan with its graph and a prediction of its run; that of the input is there."""
    if accepted.planned.plan.tiled is None:
        return replace(accepted, after=accepted.before)
    lowered = accepted.lowered or _lower(request, accepted.planned)
    after = None
    if count_tasks(lowered.graph, lowered.names) <= MAX_TASKS:
        after = predict_plan(lowered, request.machine)
    return replace(accepted, lowered=lowered, after=after)


def _cheapest(request: Request, captured: Captured, usual: Accepted) -> Accepted:
    """The usual plan, or another one whose run is predicted to cost clearly less.

    If the usual plan needs more memory than the input, or more than there is, a plan with small
    tiles is tried, and then the input's own chunks.
    """
    before = _predict_input(request, usual.planned) if _is_predictable(request) else None
    if before is None:
        return usual
    usual = _with_prediction(request, replace(usual, before=before))
    best, after = usual, usual.after
    if after is None:
        return usual
    settings = request.machine.settings()
    highest, most_moved = CLEARLY_LESS * after.cost, after.moved + MORE_MOVED * before.moved
    if after.spilled or after.peak > max(before.peak, SMALL_PEAK):
        small = partial(_accepted, request, captured, settings.for_less_memory(), force=True)
        own = partial(_accepted, request, captured, settings, keep=OWN_CHUNKS)
        for plan in (small, own):
            other = plan()
            if not _may_replace(request, other.planned.plan, usual.planned.plan):
                continue
            bundles = sum(other.planned.plan.after.tasks) / config.bundle_tasks()
            if other.planned.plan.tiled is not None and rough_cost(bundles, before.peak) > highest:
                continue
            other = _with_prediction(request, replace(other, before=before))
            run = other.after
            if run is not None and run.moved <= most_moved and run.cost < highest:
                best, after = other, run
                break
    if best.planned.plan.tiled is None:
        return best
    unchanged = _unchanged(best, NO_GAIN)
    better = before.dominates(after) or before.is_clearly_cheaper(after, request.machine.workers)
    if better and _may_replace(request, unchanged.planned.plan, best.planned.plan):
        return unchanged
    return best


def _may_replace(request: Request, plan: TilingPlan, usual: TilingPlan) -> bool:
    """Whether a plan is another one than the usual plan, and no worse in the model's prices.

    The simulation leaves out reads from storage, arrays that are held from one pass to the next,
    and the time that functions take.
    """
    if plan.tiled == usual.tiled:
        return False
    price, least = (plan.before if plan.tiled is None else plan.after), usual.after
    limit = request.machine.memory_limit if request.machine.limit_given else None
    return (
        sum(price.read) <= sum(least.read)
        and price.spilled <= least.spilled
        and price.bytes <= least.bytes + MORE_MOVED * usual.before.bytes
        and price.balance <= max(least.balance, MOST_UNEVEN)
        and (limit is None or max(price.peak, default=0) <= limit)
    )


def _accepted(request: Request, captured: Captured, settings: Settings, **options: Any) -> Accepted:
    """A plan, and its graph if that had to be written to check the plan.

    A plan whose graph would compute unneeded blocks is discarded: the arrays concerned, and their
    direct readers, then keep their chunks.  So is a plan whose tiles are cut into so many pieces,
    for the chunks that outputs keep, that the bytes saved are not worth the tasks.
    """
    for _ in range(2):
        planned = plan_request(request, captured, settings, **options)
        accepted = Accepted(planned)
        if planned.plan.tiled is None:
            return accepted
        converted = _is_converted(request, planned.plan)
        if not converted and not planned.watched():
            return accepted
        lowered = _lower(request, planned)
        if converted and _has_costly_tasks(request, planned.plan, lowered):
            return _unchanged(accepted, MANY_PIECES)
        if not _computes_unneeded(planned, lowered):
            return replace(accepted, lowered=lowered)
        nodes = planned.plan.program.nodes
        some = [node.name in planned.needed for node in nodes]
        pinned = {
            node.name: "only some blocks of this array, or of its inputs, are needed"
            for index, node in enumerate(nodes)
            if some[index] or any(some[edge.producer] for edge in node.edges)
        }
        captured = _captured(request, pinned)
    return _unchanged(accepted, "a re-tiled graph would compute blocks that Dask would not compute")


def _unchanged(accepted: Accepted, verdict: str) -> Accepted:
    """The input as it is, for a reason."""
    planned = accepted.planned
    plan = replace(planned.plan, tiled=None, verdict=verdict)
    return Accepted(replace(planned, plan=plan), before=accepted.before, after=accepted.before)


def _lower(request: Request, planned: PlannedRequest) -> Lowered:
    """Write the graph of a plan."""
    plan = planned.plan
    assert plan.tiled is not None
    machine = request.machine
    usual = machine.settings().usual_task
    return lower(
        planned.captured,
        plan.tiled,
        output_chunks=request.final_chunks(plan),
        output_names=[
            array.name if array.name in request.fixed else None for array in request.arrays
        ],
        predicted=plan.after.moved,
        fuse_bytes=LOWER_DEFAULTS.fuse_factor * usual,
        threads=machine.threads,
        wanted=planned.wanted,
        watched=planned.watched(),
        # tasks that run elsewhere than planned would receive whole bundles
        bundle_tasks=config.bundle_tasks() if machine.placed else 0,
        bundle_bytes=min(usual, machine.memory_limit or usual),
    )


def _is_converted(request: Request, plan: TilingPlan) -> bool:
    """Whether an output has other chunks than its tiles, which no cost in the plan contains."""
    assert plan.tiled is not None
    final = zip(plan.program.outputs, request.final_chunks(plan), strict=True)
    return any(
        chunks is not None and chunks != plan.tiled.tilings[node].chunks for node, chunks in final
    )


def _has_costly_tasks(request: Request, plan: TilingPlan, lowered: Lowered) -> bool:
    """Whether a graph has far more tasks than the input's, which the bytes saved are not worth."""
    before = count_tasks(request.graph, [array.name for array in request.arrays])
    after = sum(map(len, lowered.graph.layers.values()))
    saved = sum(
        (price.bytes + sum(price.read) + price.spilled) * sign
        for price, sign in ((plan.before, 1), (plan.after, -1))
    )
    more = after - LOWER_DEFAULTS.most_growth * before
    return more > 0 and saved < more * request.machine.settings().task_bytes


def _computes_unneeded(planned: PlannedRequest, lowered: Lowered) -> bool:
    """Whether a graph computes a tile with effects, of which no element is needed."""
    tiled = planned.plan.tiled
    assert tiled is not None
    return any(
        tiling.contains_unneeded(
            computed,
            tiled.tilings[index].chunks,
            planned.needed[tiled.program.nodes[index].name],
            tiled.program.nodes[index].chunks,
        )
        for index, computed in lowered.computed.items()
    )


def plan_request(
    request: Request, captured: Captured, settings: Settings, **options: Any
) -> PlannedRequest:
    """Choose tiles; the options are those of `tile`."""
    target = request.machine
    decide = partial(tile, captured, target, request.method, settings=settings, **options)
    try:
        plan = decide(limit=target.memory_limit)
    except tiling.MemoryLimitError:
        if target.limit_given:
            raise
        # the limit is a default, so it is better exceeded than met by the smallest tiles
        plan = decide(limit=None)
    wanted: dict[str, Needed] = {}
    needed: dict[str, Needed] = {}
    if plan.tiled is not None:
        wanted = _wanted(request)
        needed = _needed(request, captured, wanted)
    if plan.origin is not None:
        captured = extend(captured, plan.program, plan.origin)
    if needed and plan.tiled is not None:
        nodes = plan.program.nodes
        effects = has_effects(captured)
        culled = [
            effect and node.name in needed for effect, node in zip(effects, nodes, strict=True)
        ]
        downstream = plan.program.downstream(culled)
        blocks = {
            index: needed[node.name]
            for index, node in enumerate(nodes)
            if downstream[index] and node.name in needed
        }
        plan = replace(plan, tiled=tiling.cut_where_needed(plan.tiled, blocks))
    return PlannedRequest(captured, plan, wanted, needed)


def _wanted(request: Request) -> dict[str, Needed]:
    """By the name of an array, which of its blocks are wanted."""
    outputs = {array.name: array.numblocks for array in request.arrays}
    return needed_blocks(request.graph, request.keys, outputs, request.above)


def _needed(
    request: Request, captured: Captured, wanted: Mapping[str, Needed]
) -> dict[str, Needed]:
    """The needed blocks of every array of which not all blocks are needed.

    Empty if no task with effects (a user's function, a read) is among the unneeded ones.
    """
    program, effects = captured.program, has_effects(captured)
    outputs = {array.name: array.numblocks for array in request.arrays}
    culled = tiling.may_be_culled(program, [bool(wanted[name].all()) for name in outputs])
    if not any(effect and cull for effect, cull in zip(effects, culled, strict=True)):
        return {}
    numblocks = {node.name: tuple(map(len, node.chunks)) for node in program.nodes}
    needed = needed_blocks(request.graph, request.keys, {**numblocks, **outputs})
    partial = {name: blocks for name, blocks in needed.items() if not blocks.all()}
    nodes = zip(program.nodes, effects, strict=True)
    return partial if any(effect and node.name in partial for node, effect in nodes) else {}


def tile(
    captured: Captured,
    target: Machine,
    method: str,
    limit: int | None,
    *,
    settings: Settings | None = None,
    force: bool = False,
    keep: str = "",
) -> TilingPlan:
    """Tile a captured program; `settings`, `force` and `keep` are as in `dasktile.tiling.tile`."""
    return tile_again(
        captured.program,
        workers=target.workers,
        threads=target.threads,
        memory_limit=limit,
        method=method,
        settings=settings or target.settings(),
        placed=target.placed,
        bundled=config.bundle_tasks() > 1,
        force=force,
        keep=keep,
    )
