"""From a request to a plan that can be carried out: capture, tile, and lower."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dask.highlevelgraph import Layer

from dasktile import config, tiling
from dasktile.capture.base import Captured, Verbatim
from dasktile.capture.extend import extend
from dasktile.capture.highlevel import capture_graph
from dasktile.capture.rules.sources import Create
from dasktile.cluster.located import located, mesh_there
from dasktile.cluster.target import Machine
from dasktile.ir import Chunks, Ranges, hand_over, hand_over_evenly
from dasktile.ir.verify import verify_program, verify_tiled
from dasktile.lower.bundle import USUAL, BundleForm
from dasktile.lower.count import count_tasks
from dasktile.lower.result_homes import with_homes_of_results
from dasktile.lower.settings import DEFAULTS as LOWER_DEFAULTS
from dasktile.lower.writer import Lowered, lower
from dasktile.needs import Needs, counts_unneeded, needed_program, needs_of, not_computed
from dasktile.prediction import Prediction
from dasktile.request import Request
from dasktile.tiling.acceptance import moves_too_much
from dasktile.tiling.memo import tile_again
from dasktile.tiling.objective import Objective
from dasktile.tiling.plan import TilingPlan
from dasktile.tiling.planner import SearchTables
from dasktile.tiling.settings import Settings

#: By the index of an output, bytes that workers receive for its final chunks, of the input and of a
#: plan.
HandedOver = tuple[dict[int, int], dict[int, int]]

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
    needs
        What is needed of the arrays of the program that was captured first.
    pinned
        By the name of an array, why it keeps its chunks although it could have others.
    """

    captured: Captured
    plan: TilingPlan
    needs: Needs
    pinned: Mapping[str, str] = field(default_factory=dict)

    def watched(self) -> list[int]:
        """Indices of nodes whose unneeded tiles must not be computed."""
        checked = not_computed(self.captured, self.needs.needed)
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
    is_own
        True where the graph has the tasks of the input's own graph, each on the worker that is
        predicted to run it.
    """

    planned: PlannedRequest
    lowered: Lowered | None = None
    before: Prediction | None = None
    after: Prediction | None = None
    refused: bool = False
    is_own: bool = False


def candidate(
    request: Request,
    captured: Captured,
    settings: Settings,
    is_worth_writing: Callable[[Candidate], bool] = lambda plan: True,
    other: PlannedRequest | None = None,
    pinned: Mapping[str, str] | None = None,
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
    pinned
        By name, why arrays of `captured` keep their chunks, if they were pinned after a first plan.
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
    pinned = pinned or {}
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
            return candidate(
                request, captured, settings, is_worth_writing, other, pinned, **options
            )
        lowered = lower_plan(request, planned)
        if handed is not None and _has_costly_tasks(request, planned.plan, lowered, handed):
            return unchanged(chosen, MANY_PIECES)
        if not _computes_unneeded(planned, lowered):
            return replace(chosen, lowered=lowered)
        nodes = planned.plan.program.nodes
        some = [node.name in planned.needs.needed for node in nodes]
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


def is_shuffle(layer: Layer) -> bool:
    """Whether a layer is of a P2P shuffle or rechunk.

    Parameters
    ----------
    layer
        The layer.
    """
    return type(layer).__module__.startswith("distributed.")


def _has_shuffles(captured: Captured) -> bool:
    """Whether a part of the graph that is written as it was has a P2P rechunk.

    Its tasks name each other in their arguments, so that they cannot have other keys.
    """
    layers = captured.graph.layers
    return any(
        isinstance(kernel, Verbatim) and any(is_shuffle(layers[name]) for name in kernel.layers)
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
    captured, machine = captured_program(request, pinned), request.machine
    if machine.placed:
        captured = with_homes_of_results(captured, machine.workers)
    return located(captured, machine)


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
        wanted=planned.needs.wanted,
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
    """Whether a plan moves too many bytes, with those for the final chunks."""
    (before, after), old, new = handed, plan.before, plan.after
    more = new.bytes + sum(after.values()) - old.bytes - sum(before.values())
    settings = request.machine.settings()
    objective = Objective(settings, request.machine.threads)
    return moves_too_much(objective, old, new, settings.acceptance, more)


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
            planned.needs.needed[tiled.program.nodes[index].name],
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
    needs = needs_of(request, captured) if other is None else other.needs

    def decide(needs: Needs, limit: int | None) -> TilingPlan | None:
        ranges = needs.ranges
        plan = tile(captured, target, request.method, limit, ranges, settings=settings, **options)
        _verify(request, plan, limit)
        if ranges is None:
            return plan
        whole = tiling.uncropped(plan, captured.program, ranges)
        if whole is not None:
            _verify(request, whole, limit)
        return whole

    def planned(needs: Needs) -> TilingPlan | None:
        nonlocal limit
        try:
            return decide(needs, limit)
        except tiling.MemoryLimitError:
            if target.limit_given:
                raise
            # the limit is a default, so it is better exceeded than met by the smallest tiles
            limit = None
            return decide(needs, limit)

    plan = planned(needs)
    if plan is None:
        needs = replace(needs, ranges=None, is_whole=False)
        plan = planned(needs)
        assert plan is not None
    if plan.origin is not None:
        captured = extend(captured, plan.program, plan.origin)
    if needs.needed and plan.tiled is not None:
        nodes = plan.program.nodes
        downstream = plan.program.downstream(not_computed(captured, needs.needed))
        blocks = {
            index: needs.needed[node.name]
            for index, node in enumerate(nodes)
            if downstream[index] and node.name in needs.needed
        }
        plan = replace(plan, tiled=tiling.cut_where_needed(plan.tiled, blocks))
        _verify(request, plan, limit)
    return PlannedRequest(captured, plan, needs)


def _verify(request: Request, plan: TilingPlan, limit: int | None) -> None:
    """Check the tiles of a plan, if the setting `raise-errors` is on."""
    if plan.tiled is not None and config.setting("raise-errors"):
        # no limit holds for the input's own chunks, and for plans that are refused
        free = plan.unchanged or too_many_tasks(request, plan) is not None
        verify_tiled(plan.tiled, None if free else limit)


def with_premise(request: Request, planned: PlannedRequest, exact: bool = True) -> TilingPlan:
    """The plan; it says so if it counts blocks that are not computed, as they are not needed.

    Parameters
    ----------
    request, planned
        The arrays, and their plan.
    exact
        As in `counts_unneeded`.
    """
    plan = planned.plan
    if not plan.lower_bound and planned.needs.is_whole is None:
        return plan
    unneeded = counts_unneeded(request, planned.captured, planned.needs, exact)
    return replace(plan, counts_unneeded=unneeded)


def tile(
    captured: Captured,
    target: Machine,
    method: str,
    limit: int | None,
    ranges: tuple[Ranges, ...] | None = None,
    *,
    settings: Settings | None = None,
    force: bool = False,
    keep: str = "",
    final: tuple[Chunks | None, ...] = (),
    tables: SearchTables | None = None,
) -> TilingPlan:
    """Tile a captured program, or ranges of it; options are as in `dasktile.tiling.tile`."""
    decide = tile_again if config.setting("reuse-plans") else tiling.tile
    return decide(
        needed_program(captured, ranges),
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
