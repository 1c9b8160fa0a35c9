"""From a request to a plan that can be carried out: capture, tile, and lower."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from dasktile import config, tiling
from dasktile.capture.base import Captured, Verbatim
from dasktile.capture.culling import Needed, has_effects, needed_blocks
from dasktile.capture.extend import extend
from dasktile.capture.highlevel import capture_graph
from dasktile.capture.rules.sources import Create
from dasktile.cluster.located import located, mesh_there
from dasktile.cluster.target import Machine
from dasktile.ir import Chunks, Kind, Node, hand_over, hand_over_evenly
from dasktile.ir.verify import verify_program, verify_tiled
from dasktile.lower.bundle import USUAL, BundleForm
from dasktile.lower.count import count_tasks
from dasktile.lower.settings import DEFAULTS as LOWER_DEFAULTS
from dasktile.lower.writer import Lowered, lower
from dasktile.prediction import Prediction
from dasktile.request import Request
from dasktile.tiling.memo import tile_again
from dasktile.tiling.plan import IF_COMPUTED, TilingPlan
from dasktile.tiling.planner import SearchTables
from dasktile.tiling.settings import Settings

#: By the index of an output, bytes that workers receive for its final chunks, of the input and of a
#: plan.
HandedOver = tuple[dict[int, int], dict[int, int]]

#: Share of the blocks of an array that is needed, below which the others are not computed (chosen).
MOST_NEEDED = 0.75

#: Why the input is unchanged where keys are part of a task's arguments.
SHUFFLED = "blocks of this type are rechunked by a shuffle of distributed, whose keys cannot change"

#: Why arrays keep their chunks where restoring those of the result moves what the tiles save.
HANDED = "restoring the chunks that the result keeps would move more bytes than the tiles save"

#: Why the input is unchanged where its tiles would have to be cut.
MANY_PIECES = "the chunks that the result keeps would be cut from the tiles by many tasks"


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
    pinned
        By the name of an array, why it keeps its chunks although it could have others.
    is_whole
        Whether all blocks are needed of every array that is computed; None if that was not found
        out.
    """

    captured: Captured
    plan: TilingPlan
    wanted: Mapping[str, Needed]
    needed: Mapping[str, Needed]
    pinned: Mapping[str, str] = field(default_factory=dict)
    is_whole: bool | None = None

    def watched(self) -> list[int]:
        """Indices of nodes whose unneeded tiles must not be computed."""
        checked = _checked(self.captured, self.needed)
        return [index for index, check in enumerate(checked) if check]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan that can be carried out.

    Parameters
    ----------
    planned
        The plan.
    lowered
        Its graph, if that had to be written.
    before, after
        What the input and the plan are predicted to take; None where nothing is predicted.
    refused
        True where no plan is carried out, as the memory limit makes too many tasks.
    """

    planned: PlannedRequest
    lowered: Lowered | None = None
    before: Prediction | None = None
    after: Prediction | None = None
    refused: bool = False


def candidate(
    request: Request,
    captured: Captured,
    settings: Settings,
    is_worth_writing: Callable[[Candidate], bool] = lambda plan: True,
    other: PlannedRequest | None = None,
    **options: Any,
) -> Candidate | None:
    """A plan, and its graph if that had to be written to check the plan.

    A plan whose graph would compute unneeded blocks is discarded: the arrays concerned, and their
    direct readers, then keep their chunks.  So is a plan whose tiles are cut into so many pieces,
    for the chunks that outputs keep, that the bytes saved are not worth the tasks, or that moves
    more bytes than the input, those for these chunks included.

    Parameters
    ----------
    request, captured, settings
        The arrays, the captured program, and the settings of the plan.
    is_worth_writing
        Whether the graph of a plan is worth writing; None is returned if it is not.
    other
        Another plan of the same program, which needs the same blocks.
    options
        Those of `tile`.

    Returns
    -------
    The plan; None if it is not worth writing, and with ``force=True`` if it has too many tasks.

    Raises
    ------
    TooManyTasksError
        If a limit that the user gave makes too many tasks.
    """
    pinned: dict[str, str] = {}
    for _ in range(2):
        planned = plan_request(request, captured, settings, other, **options)
        planned = replace(planned, pinned=pinned)
        too_many = too_many_tasks(request, planned.plan)
        if too_many is not None:
            if options.get("force"):
                return None
            raise too_many
        chosen = Candidate(planned)
        if not is_worth_writing(chosen):
            return None
        if _has_shuffles(captured):
            return unchanged(chosen, SHUFFLED)
        if planned.plan.tiled is None:
            return chosen
        converted = _is_converted(request, planned.plan)
        if not converted and not planned.watched():
            return chosen
        handed = handed_over(request, planned) if converted else None
        if handed is not None and _moves_more(request, planned.plan, handed):
            if "keep" in options or not request.machine.placed:
                return unchanged(chosen, HANDED)
            options = {"keep": HANDED, "tables": options.get("tables")}
            return candidate(request, captured, settings, is_worth_writing, other, **options)
        lowered = lower_plan(request, planned)
        if handed is not None and _has_costly_tasks(request, planned.plan, lowered, handed):
            return unchanged(chosen, MANY_PIECES)
        if not _computes_unneeded(planned, lowered):
            return replace(chosen, lowered=lowered)
        nodes = planned.plan.program.nodes
        some = [node.name in planned.needed for node in nodes]
        pinned = {
            node.name: "only some blocks of this array, or of its inputs, are needed"
            for index, node in enumerate(nodes)
            if some[index] or any(some[edge.producer] for edge in node.edges)
        }
        captured, other = capture(request, pinned), None
    return unchanged(chosen, "a re-tiled graph would compute blocks that Dask would not compute")


def too_many_tasks(request: Request, plan: TilingPlan) -> tiling.TooManyTasksError | None:
    """An error if a limit that the user gave makes too many tasks, else None.

    Parameters
    ----------
    request, plan
        The arrays, and their plan.
    """
    limit = request.machine.memory_limit if request.machine.limit_given else None
    before, after = sum(plan.before.tasks), sum(plan.after.tasks)
    allowed = config.setting("tiling.many-tasks")
    if limit is None or plan.tiled is None or after <= tiling.most_tasks(before, allowed):
        return None
    return tiling.TooManyTasksError(limit, after, False, before, allowed)


def _has_shuffles(captured: Captured) -> bool:
    """Whether a part of the graph that is written as it was has a P2P rechunk.

    Its tasks name each other in their arguments, so that they cannot have other keys.
    """
    layers = captured.graph.layers
    return any(
        isinstance(kernel, Verbatim)
        and any(type(layers[name]).__module__.startswith("distributed.") for name in kernel.layers)
        for kernel in captured.kernels
    )


def unchanged(chosen: Candidate, verdict: str) -> Candidate:
    """The input as it is, for a reason."""
    planned = chosen.planned
    before, bound = planned.plan.before, planned.plan.lower_bound
    plan = replace(planned.plan, tiled=None, verdict=verdict, after=before)
    if before.bytes < bound:
        # no bound covers it, as one worker that does all work
        plan = without_bound(plan)
    elif before.bytes > planned.plan.after.bytes:
        plan = replace(plan, proven_optimal=False)
    return Candidate(replace(planned, plan=plan), before=chosen.before, after=chosen.before)


def without_bound(plan: TilingPlan) -> TilingPlan:
    """A plan that no bound covers."""
    return replace(plan, lower_bound=0, grids="", proven_optimal=False)


def with_bound_of(chosen: Candidate, searched: Candidate) -> Candidate:
    """A plan for which no tiles were searched, with what a search proved of all tiles.

    Parameters
    ----------
    chosen, searched
        The plan, and one of the same arrays for which tiles were searched.
    """
    plan, proven = chosen.planned.plan, searched.planned.plan
    if plan.after.bytes < proven.lower_bound:
        return chosen  # no bound covers it
    plan = replace(
        plan,
        lower_bound=proven.lower_bound,
        grids=proven.grids,
        proven_optimal=proven.proven_optimal and plan.after.bytes <= proven.after.bytes,
    )
    return replace(chosen, planned=replace(chosen.planned, plan=plan))


def capture(request: Request, pinned: Mapping[str, str]) -> Captured:
    """The captured program with the homes of its blocks."""
    return located(captured_program(request, pinned), request.machine)


def captured_program(request: Request, pinned: Mapping[str, str] | None = None) -> Captured:
    """The captured program; with the setting `raise-errors`, errors of recognisers are raised."""
    captured = capture_graph(request.graph, request.arrays, pinned)
    if config.setting("raise-errors"):
        if captured.errors:
            raise captured.errors[0]
        verify_program(captured.program)
    return captured


def most_bundled(machine: Machine) -> int:
    """Tasks in a bundle at the most; 0 where tasks are not bundled.

    Parameters
    ----------
    machine
        The workers.
    """
    # tasks that run elsewhere than planned would receive whole bundles
    most = config.bundle_tasks() if machine.placed else 0
    return most if most > 1 else 0


def lower_plan(request: Request, planned: PlannedRequest, form: BundleForm = USUAL) -> Lowered:
    """Write the graph of a plan.

    Parameters
    ----------
    request, planned
        The arrays, and their plan.
    form
        How tasks are bundled and ordered.
    """
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
        bundle_tasks=most_bundled(machine),
        bundle_bytes=min(usual, machine.memory_limit or usual),
        bundle_form=form,
        gathered=[array.name in request.gathered for array in request.arrays],
    )


def _is_converted(request: Request, plan: TilingPlan) -> bool:
    """Whether an output has other chunks than its tiles."""
    assert plan.tiled is not None
    final = zip(plan.program.outputs, request.final_chunks(plan), strict=True)
    return any(
        chunks is not None and chunks != plan.tiled.tilings[node].chunks for node, chunks in final
    )


def _required_chunks(request: Request, captured: Captured) -> tuple[Chunks | None, ...]:
    """For every output, the chunks that it must have whatever its tiles are; None for others."""
    return tuple(
        # arrays that a function creates are created again
        None
        if array.name not in request.kept or isinstance(captured.kernels[index], Create)
        else array.chunks
        for index, array in zip(captured.program.outputs, request.arrays, strict=True)
    )


def handed_over(request: Request, planned: PlannedRequest) -> HandedOver:
    """Bytes that workers receive for chunks of outputs that were chosen after the tiles.

    Parameters
    ----------
    request, planned
        The arrays, and their plan.

    Returns
    -------
    By the index of an output, those of the input, whose last step may be a ``rechunk``, and those
    of the plan.
    """
    plan, kernels = planned.plan, planned.captured.kernels
    before: dict[int, int] = {}
    after: dict[int, int] = {}
    final = request.final_chunks(plan)
    for index, array, chunks in zip(plan.program.outputs, request.arrays, final, strict=True):
        node = plan.program.nodes[index]
        if chunks is None or array.name in request.kept or isinstance(kernels[index], Create):
            continue
        if array.chunks != node.chunks:
            moved = hand_over_evenly(plan.workers, node.chunks, array.chunks)
            before[index] = moved.elements * node.itemsize
        if plan.tiled is not None and chunks != plan.tiled.tilings[index].chunks:
            found = hand_over(plan.tiled, index, chunks)
            if found is not None:
                after[index] = found.elements * node.itemsize
    return before, before if plan.tiled is None else after


def _moves_more(request: Request, plan: TilingPlan, handed: HandedOver) -> bool:
    """Whether a plan moves more bytes than an even input, with those for the final chunks."""
    (before, after), old, new = handed, plan.before, plan.after
    more = new.bytes + sum(after.values()) > old.bytes + sum(before.values())
    return more and old.balance <= request.machine.settings().acceptance.uneven


def saved_bytes(plan: TilingPlan) -> int:
    """Bytes that a plan receives, reads and spills less than the input, but for final chunks."""
    return sum(
        (price.bytes + sum(price.read) + price.spilled) * sign
        for price, sign in ((plan.before, 1), (plan.after, -1))
    )


def _has_costly_tasks(
    request: Request, plan: TilingPlan, lowered: Lowered, handed: HandedOver
) -> bool:
    """Whether a graph has far more tasks than the input's, which the bytes saved are not worth."""
    before = count_tasks(request.graph, request.names)
    after = sum(map(len, lowered.graph.layers.values()))
    saved = saved_bytes(plan) + sum(handed[0].values()) - sum(handed[1].values())
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
        for index, computed in lowered.written.computed.items()
    )


def plan_request(
    request: Request,
    captured: Captured,
    settings: Settings,
    other: PlannedRequest | None = None,
    **options: Any,
) -> PlannedRequest:
    """Choose tiles; arguments are as in `candidate`."""
    target = request.machine
    limit = target.memory_limit
    options["final"] = _required_chunks(request, captured)
    decide = partial(tile, captured, target, request.method, settings=settings, **options)
    try:
        plan = decide(limit=limit)
    except tiling.MemoryLimitError:
        if target.limit_given:
            raise
        # the limit is a default, so it is better exceeded than met by the smallest tiles
        limit = None
        plan = decide(limit=limit)
    _verify(request, plan, limit)
    wanted: dict[str, Needed] = {}
    needed: dict[str, Needed] = {}
    is_whole = None
    if plan.tiled is not None and other is not None and other.wanted:
        wanted, needed, is_whole = dict(other.wanted), dict(other.needed), other.is_whole
    elif plan.tiled is not None:
        wanted = wanted_blocks(request)
        needed, is_whole = _needed(request, captured, wanted)
    if plan.origin is not None:
        captured = extend(captured, plan.program, plan.origin)
    if needed and plan.tiled is not None:
        nodes = plan.program.nodes
        downstream = plan.program.downstream(_checked(captured, needed))
        blocks = {
            index: needed[node.name]
            for index, node in enumerate(nodes)
            if downstream[index] and node.name in needed
        }
        plan = replace(plan, tiled=tiling.cut_where_needed(plan.tiled, blocks))
        _verify(request, plan, limit)
    return PlannedRequest(captured, plan, wanted, needed, is_whole=is_whole)


def _verify(request: Request, plan: TilingPlan, limit: int | None) -> None:
    """Check the tiles of a plan, if the setting `raise-errors` is on."""
    if plan.tiled is not None and config.setting("raise-errors"):
        # no limit holds for the input's own chunks, and for plans that are refused
        free = plan.unchanged or too_many_tasks(request, plan) is not None
        verify_tiled(plan.tiled, None if free else limit)


def wanted_blocks(request: Request) -> dict[str, Needed]:
    """By the name of an array, which of its blocks are wanted."""
    outputs = {array.name: array.numblocks for array in request.arrays}
    return needed_blocks(request.graph, request.keys, outputs, request.above)


def _needed(
    request: Request, captured: Captured, wanted: Mapping[str, Needed]
) -> tuple[dict[str, Needed], bool | None]:
    """The needed blocks of every array of which not all blocks are needed.

    None if no task with effects (a user's function, a read), and few others, are unneeded.  And
    whether all blocks of the computed arrays are needed, as `PlannedRequest.is_whole`.
    """
    program = captured.program
    outputs = {array.name: array.numblocks for array in request.arrays}
    culled = tiling.may_be_culled(program, [bool(wanted[name].all()) for name in outputs])
    if not any(cull and takes_time(node) for node, cull in zip(program.nodes, culled, strict=True)):
        return {}, None
    numblocks = {node.name: tuple(map(len, node.chunks)) for node in program.nodes}
    needed = needed_blocks(request.graph, request.keys, {**numblocks, **outputs})
    partial = {name: blocks for name, blocks in needed.items() if not blocks.all()}
    is_whole = not any(node.edges and node.name in partial for node in program.nodes)
    return (partial if any(_checked(captured, partial)) else {}), is_whole


def _checked(captured: Captured, needed: Mapping[str, Needed]) -> list[bool]:
    """For every node, whether its unneeded blocks must not be computed.

    Those whose tasks have effects must not, nor many blocks that take time.
    """
    return [
        node.name in needed
        and (effect or (takes_time(node) and bool(needed[node.name].mean() < MOST_NEEDED)))
        for node, effect in zip(captured.program.nodes, has_effects(captured), strict=True)
    ]


def takes_time(node: Node) -> bool:
    """Whether blocks of an array take time to compute.

    Parameters
    ----------
    node
        The array.
    """
    return not node.resident and node.kind is not Kind.VIEW


def with_premise(request: Request, planned: PlannedRequest, exact: bool = True) -> TilingPlan:
    """The plan; its bound says so if arrays are computed of which not all blocks are needed.

    Tiles are chosen for whole arrays, and what is not computed is counted.

    Parameters
    ----------
    request, planned
        The arrays, and their plan.
    exact
        Whether to look in the graph for what is needed.  If not, the bound says so wherever some
        blocks may be unneeded.
    """
    plan, program = planned.plan, planned.captured.program
    if not plan.lower_bound or planned.is_whole:
        return plan
    if planned.is_whole is False:
        return replace(plan, grids=plan.grids + IF_COMPUTED)
    wanted = planned.wanted or wanted_blocks(request)
    all_of = [bool(wanted[array.name].all()) for array in request.arrays]
    if not any(tiling.may_be_culled(program, all_of)):
        return plan
    if not exact:
        return replace(plan, grids=plan.grids + IF_COMPUTED)
    computed = {node.name: tuple(map(len, node.chunks)) for node in program.nodes if node.edges}
    needed = needed_blocks(request.graph, request.keys, computed)
    if all(blocks.all() for blocks in needed.values()):
        return plan
    return replace(plan, grids=plan.grids + IF_COMPUTED)


def tile(
    captured: Captured,
    target: Machine,
    method: str,
    limit: int | None,
    *,
    settings: Settings | None = None,
    force: bool = False,
    keep: str = "",
    final: tuple[Chunks | None, ...] = (),
    tables: SearchTables | None = None,
) -> TilingPlan:
    """Tile a captured program; options are as in `dasktile.tiling.tile`."""
    decide = tile_again if config.setting("reuse-plans") else tiling.tile
    return decide(
        captured.program,
        workers=target.workers,
        threads=target.threads,
        room=target.room,
        memory_limit=limit,
        method=method,
        settings=settings or target.settings(),
        placed=target.placed,
        bundled=config.bundle_tasks() > 1,
        force=force,
        keep=keep,
        final=final,
        mesh=mesh_there(captured, target.workers),
        tables=tables,
    )
