"""From a program to a plan: price the input's own chunks and a new tiling, and take the better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from dasktile.ir import Chunks, Node, Program, Tiling
from dasktile.tiling.acceptance import (
    moves_too_much,
    needs_less,
    objection,
    objection_with_bundles,
    worth_placing,
)
from dasktile.tiling.candidates import reads_unknown_blocks
from dasktile.tiling.local import MemoryLimitError
from dasktile.tiling.mesh import MAX_WORKERS, Mesh, mesh_shape
from dasktile.tiling.mesh_of_blocks import on_mesh_of_blocks
from dasktile.tiling.mesh_planner import Candidate, MeshPlanner, SearchTables
from dasktile.tiling.methods import Method, get
from dasktile.tiling.plan import RETILED, Price, TilingPlan
from dasktile.tiling.proof import Proof
from dasktile.tiling.rewrite import ExtendedProgram
from dasktile.tiling.searches import (
    SearchResult,
    search,
    searches_all_orders,
    where_blocks_are,
    with_fewer_tasks,
    with_fewer_workers,
    with_recomputation,
)
from dasktile.tiling.settings import Settings


def tile(
    program: Program,
    *,
    workers: int = 1,
    memory_limit: int | None = None,
    method: str | Method = "auto",
    settings: Settings | None = None,
    threads: int = 1,
    room: int | None = None,
    placed: bool = False,
    bundled: bool = False,
    force: bool = False,
    keep: str = "",
    final: tuple[Chunks | None, ...] = (),
    mesh: tuple[int, ...] = (),
    tables: SearchTables | None = None,
) -> TilingPlan:
    """Decide how every array of a program is tiled.

    Parameters
    ----------
    program
        The program to tile.
    workers
        Number of processes that send bytes to each other.  More than
        :data:`~dasktile.tiling.mesh.MAX_WORKERS` are planned for as groups of workers.
    memory_limit
        Bytes that the tiles of one task may take, or None.
    method
        A name of :func:`dasktile.tiling.methods.methods`, or a method that is not registered.
    settings
        Constants of the cost model and limits of the search; defaults for None.
    threads
        Tasks that each worker runs at once.
    room
        Bytes of results that each worker holds before it spills; by default `memory_limit` times
        `threads`.
    placed
        True where tasks will run on the workers of the plan.
    bundled
        True where tasks will be bundled, which then cost less.
    force
        True to return what the method decides even if the input's own chunks cost less, so that
        methods can be compared.
    keep
        Why the input's own chunks are kept whatever the method decides; empty if they are not.
    final
        For every output, the chunks that it must have, or None; empty for none of them.
    mesh
        Sizes of the axes of the workers' mesh, where these have another order than usual.
    tables
        What was found for the same program with other settings; what is found is added.

    Raises
    ------
    ValueError
        For an unknown method, or a memory limit below one tile.
    """
    settings = settings or Settings()
    all_workers = Mesh(mesh or mesh_shape(min(workers, MAX_WORKERS)))
    grouped = -(-workers // all_workers.workers)
    if room is None and memory_limit is not None:
        room = memory_limit * threads
    unchanged = MeshPlanner(
        program,
        all_workers,
        workers,
        settings,
        memory_limit,
        threads * grouped,
        None if room is None else room * grouped,
        placed=placed,
        bundled=bundled,
        final=final,
        tables=tables or SearchTables(),
    )
    name = method if isinstance(method, str) else method.choose.__name__
    before = unchanged.own_chunks()
    if keep:
        return _plan(unchanged, name, before, on_mesh_of_blocks(unchanged, before), keep)
    if method == "none":
        return _plan(unchanged, name, before, before, "method 'none'")
    chosen = get(method) if isinstance(method, str) else method
    searches_all = name in ("auto", "exact")
    planner = _search_planner(unchanged, before, chosen, searches_all)
    on_all = search(planner, chosen, searches_all)
    results = [on_all]
    if name == "auto" and workers <= MAX_WORKERS:
        results = _with_fewer_workers(unchanged, before, planner, on_all, chosen, force)
    if name == "auto" and not force:
        uneven = where_blocks_are(results[0], chosen, before.price)
        if uneven is not None:
            results.insert(0, uneven)
    candidates = [result.least for result in results]
    if name == "auto":
        candidates = _with_fewer_tasks(before, planner, results, chosen, force)
    recomputing = None
    if chosen.allow_replicas:
        recomputing = with_recomputation(results[0].planner, candidates[0], chosen)
    if recomputing is not None:
        candidates.insert(0, recomputing)
    after, verdict = _accepted(unchanged, before, planner, candidates)
    if force and after is before:
        after, verdict = candidates[0], ""
    used = math.prod(after.tiled.mesh)
    if after is before:
        after = on_mesh_of_blocks(unchanged, before)
    return _plan(
        unchanged,
        name,
        before,
        after,
        verdict,
        # nothing was proven for programs in which arrays are recomputed
        None if after is recomputing else _proof(results, on_all, used),
        on_all.least.price.bytes if len(results) > 1 and used < all_workers.workers else None,
    )


def _search_planner(
    unchanged: MeshPlanner, before: Candidate, method: Method, searches_all: bool
) -> MeshPlanner:
    """The planner of a method's first search on all workers.

    Parameters
    ----------
    unchanged, before
        The planner of the input's own chunks, and these.
    method
        The method.
    searches_all
        Whether the axes of the mesh may cut labels in all orders.
    """
    program, settings = unchanged.program, unchanged.settings
    mesh = method.mesh(min(unchanged.workers, MAX_WORKERS))
    if sorted(mesh) == sorted(unchanged.mesh.shape):
        mesh = unchanged.mesh.shape
    largest = max(max(before.price.peak, default=0), settings.usual_task)
    return replace(
        unchanged,
        mesh=Mesh(mesh),
        settings=replace(
            settings,
            max_task=min(settings.max_task, largest),
            max_states=method.max_states or settings.max_states,
            replica_bytes=unchanged.room,
        ),
        retile=True,
        allow_replicas=method.allow_replicas,
        ordered=searches_all and searches_all_orders(program, mesh, settings),
    )


def _with_fewer_workers(
    unchanged: MeshPlanner,
    before: Candidate,
    planner: MeshPlanner,
    on_all: SearchResult,
    method: Method,
    force: bool,
) -> list[SearchResult]:
    """The result on all workers and those on fewer, the best first."""
    if force:
        # methods are compared with each other, not with the input
        elapsed, refused = math.inf, False
    else:
        elapsed = unchanged.stock_elapsed(before.price)
        refused = bool(objection(unchanged, before, planner, on_all.least))
    return with_fewer_workers(planner, on_all, method, before.price, elapsed, refused)


def _with_fewer_tasks(
    before: Candidate,
    planner: MeshPlanner,
    results: Sequence[SearchResult],
    method: Method,
    force: bool,
) -> list[Candidate]:
    """The tilings of results, each after one of clearly fewer tasks if there is such a one."""
    rules = planner.settings.acceptance
    candidates: list[Candidate] = []
    for result in results:
        least = result.least
        # a plan of fewer tasks moves no fewer bytes
        if force or not moves_too_much(planner.objective, before.price, least.price, rules):
            fewer = with_fewer_tasks(result, method)
            if fewer is not None:
                candidates.append(fewer)
        candidates.append(least)
    return candidates


def _accepted(
    unchanged: MeshPlanner,
    before: Candidate,
    planner: MeshPlanner,
    candidates: Sequence[Candidate],
) -> tuple[Candidate, str]:
    """The first candidate that is better than the input, and no verdict; else the input, and why.

    Parameters
    ----------
    unchanged, before
        The planner of the input's own chunks, and these.
    planner
        The planner of the first search on all workers.
    candidates
        The candidates, one at least.
    """
    for after in candidates:
        verdict = objection(unchanged, before, planner, after)
        if verdict:
            continue
        obeys = needs_less(before.price, after.price, planner.memory_limit)
        if planner.bundled and planner.placed and not obeys:
            verdict = objection_with_bundles(planner, before, after)
        if not verdict:
            return after, ""
    return before, verdict


def _proof(searches: Sequence[SearchResult], on_all: SearchResult, workers: int) -> Proof:
    """What was proven of tilings on grids of a number of workers, and on those of all workers."""
    of_workers = (each.proof for each in searches if each.planner.mesh.workers == workers)
    proof = next(of_workers, on_all.proof)
    other = on_all.proof
    if proof is other or not 0 < proof.bound <= other.bound:
        return proof
    return replace(proof, grids=f"{proof.grids} or {other.grids}")


def _plan(
    unchanged: MeshPlanner,
    method: str,
    before: Candidate,
    after: Candidate,
    verdict: str,
    proof: Proof | None = None,
    bytes_on_all: int | None = None,
) -> TilingPlan:
    """The plan that has one of the candidates, with what was proven of its tiling."""
    if proof is None or after.price.bytes < proof.bound:
        # no bound covers this tiling
        proof = Proof(0, False, "")
    moved = after.price.bytes
    nodes = after.tiled.program.nodes
    uncounted = tuple(index for index, node in enumerate(nodes) if reads_unknown_blocks(node))
    is_counted = not uncounted and not any(node.has_inner_tasks for node in nodes)
    proven = is_counted and moved <= proof.bound and (proof.exact or not moved)
    placed = unchanged.placed and worth_placing(before, unchanged.settings.acceptance)
    kept = after is before and not placed
    price, origin = before.price, None
    paid = price if after is before else after.by_worker().price
    if after.extended is not None:
        price, origin = _aligned(price, after.extended), after.extended.origin
    return TilingPlan(
        program=after.tiled.program,
        workers=unchanged.workers,
        method=method,
        before=price,
        after=paid,
        tiled=None if kept else after.tiled,
        lower_bound=proof.bound,
        proven_optimal=proven,
        grids=proof.grids if proof.bound else "",
        reasons=tuple(
            _reason(node, tiling, verdict)
            for node, tiling in zip(after.tiled.program.nodes, after.tiled.tilings, strict=True)
        ),
        verdict=verdict or RETILED,
        uncounted=uncounted,
        origin=origin,
        bytes_on_all=bytes_on_all,
    )


def _aligned(price: Price, more: ExtendedProgram) -> Price:
    """A price of the original program, with zeros for the nodes that were added."""

    def each(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(
            0 if new else values[index] for index, new in zip(more.origin, more.added, strict=True)
        )

    return replace(
        price,
        moved=each(price.moved),
        read=each(price.read),
        tasks=each(price.tasks),
        peak=each(price.peak),
        joined=each(price.joined),
        handed=each(price.handed),
    )


def _reason(node: Node, tiling: Tiling, verdict: str) -> str:
    """Why a node keeps its chunks; empty where its chunks change."""
    if tiling.chunks != node.chunks:
        return ""
    if node.reason:
        return node.reason
    return verdict or "its chunks are already the cheapest"


__all__ = ["MemoryLimitError", "SearchTables", "tile"]
