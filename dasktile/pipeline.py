"""From a request to a graph: capture, tile, and lower.

Everything here takes the arrays of a :class:`Request`, whichever public function made it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
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
from dasktile.lower.placed import placed_tasks
from dasktile.lower.settings import DEFAULTS as LOWER_DEFAULTS
from dasktile.lower.tasks import BundleLimits
from dasktile.lower.writer import Lowered, lower, wanted_keys
from dasktile.schedule.peaks import PlacedTasks, simulate
from dasktile.tiling.memo import tile_again
from dasktile.tiling.plan import TilingPlan

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


def rewrite(request: Request) -> Rewritten | None:
    """The arrays of a request after tiling; None if the input should not change."""
    planned, lowered = accepted_plan(request)
    if planned.plan.tiled is None:
        return None
    lowered = lowered or _lower(request, planned)
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


def captured_program(request: Request, pinned: Mapping[str, str] | None = None) -> Captured:
    """The captured program; with the setting `raise-errors`, errors of recognisers are raised."""
    captured = capture_graph(request.graph, request.arrays, pinned)
    if captured.errors and config.setting("raise-errors"):
        raise captured.errors[0]
    return captured


def accepted_plan(request: Request) -> tuple[PlannedRequest, Lowered | None]:
    """The plan, and its graph if that had to be written to check the plan.

    A plan whose graph would compute unneeded blocks is discarded: the arrays concerned, and their
    direct readers, then keep their chunks.  So is a plan whose tiles are cut into so many pieces,
    for the chunks that outputs keep, that the bytes saved are not worth the tasks.
    """
    pinned: dict[str, str] = {}
    for _ in range(2):
        planned = plan_request(request, pinned)
        if planned.plan.tiled is None:
            return planned, None
        converted = _is_converted(request, planned.plan)
        if not converted and not planned.watched():
            return planned, None
        lowered = _lower(request, planned)
        if converted and _has_costly_tasks(request, planned.plan, lowered):
            verdict = "the chunks that the result keeps would be cut from the tiles by many tasks"
            return replace(planned, plan=replace(planned.plan, tiled=None, verdict=verdict)), None
        if not _computes_unneeded(planned, lowered):
            return planned, lowered
        nodes = planned.plan.program.nodes
        partial = [node.name in planned.needed for node in nodes]
        pinned = {
            node.name: "only some blocks of this array, or of its inputs, are needed"
            for index, node in enumerate(nodes)
            if partial[index] or any(partial[edge.producer] for edge in node.edges)
        }
    verdict = "a re-tiled graph would compute blocks that Dask would not compute"
    return replace(planned, plan=replace(planned.plan, tiled=None, verdict=verdict)), None


def predicted_peaks(
    request: Request, planned: PlannedRequest, lowered: Lowered | None
) -> tuple[int | None, int | None]:
    """Bytes of results on the worker that holds most, as Dask runs the input and as planned.

    The graphs are simulated, with the arrays left on the workers.  None where the sizes of results
    are not known well enough, where other collections read the arrays, and for graphs of so many
    tasks that this would take long.
    """
    names, most = [array.name for array in request.arrays], LOWER_DEFAULTS.max_simulated
    if request.above or count_tasks(request.graph, names) > most:
        return None, None
    needed = planned.wanted or _wanted(request)
    wanted = {name: wanted_keys(name, array.chunks, needed)
              for name, array in zip(names, request.arrays, strict=True)}  # fmt: skip
    stock = BundleLimits((), {}, (), 0, 0)
    before = _peak(request.machine, *placed_tasks(request.graph, wanted, stock))
    if planned.plan.tiled is None:
        return before, before
    lowered = lowered or _lower(request, planned)
    if count_tasks(lowered.graph, lowered.names) > most:
        return before, None
    return before, _peak(request.machine, *lowered.tasks(request.machine.placed))


def _peak(machine: Machine, tasks: PlacedTasks, guessed: float) -> int | None:
    if guessed > LOWER_DEFAULTS.most_guessed:
        return None
    return max(simulate(tasks, machine.workers, machine.threads).peaks)


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


def plan_request(request: Request, pinned: Mapping[str, str]) -> PlannedRequest:
    """Choose tiles; arrays named in `pinned` keep their chunks, for the reasons given there."""
    target = request.machine
    captured = located(captured_program(request, pinned), target)

    try:
        plan = tile(captured, target, request.method, target.memory_limit)
    except tiling.MemoryLimitError:
        if target.limit_given:
            raise
        # the limit is a default, so it is better exceeded than met by the smallest tiles
        plan = tile(captured, target, request.method, None)
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
    captured: Captured, target: Machine, method: str, limit: int | None, force: bool = False
) -> TilingPlan:
    """Tile a captured program; with `force`, even if the input's own chunks are cheaper."""
    return tile_again(
        captured.program,
        workers=target.workers,
        threads=target.threads,
        memory_limit=limit,
        method=method,
        settings=target.settings(),
        placed=target.placed,
        bundled=config.bundle_tasks() > 1,
        force=force,
    )
