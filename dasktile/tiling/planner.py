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
from dasktile.tiling.mesh_planner import Candidate, MeshPlanner, SearchTables
from dasktile.tiling.methods import Method, get
from dasktile.tiling.plan import RETILED, Price, TilingPlan
from dasktile.tiling.proof import Proof
from dasktile.tiling.rewrite import ExtendedProgram
from dasktile.tiling.searches import (
    Found,
    search,
    searches_all_orders,
    with_fewer_workers,
    with_recomputation,
)
from dasktile.tiling.settings import Acceptance, Settings


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
    tables
        What was found for the same program with other settings; what is found is added.

    Raises
    ------
    ValueError
        For an unknown method, or a memory limit below one tile.
    """
    settings = settings or Settings()
    count = min(workers, MAX_WORKERS)
    mesh = Mesh(mesh_shape(count))
    grouped = -(-workers // mesh.workers)
    threads *= grouped
    if room is not None:
        room *= grouped
    elif memory_limit is not None:
        room = memory_limit * threads
    name = method if isinstance(method, str) else method.choose.__name__
    tables = tables or SearchTables()
    unchanged = MeshPlanner(
        program, mesh, workers, settings, memory_limit, threads, room,
        placed=placed, bundled=bundled, final=final, tables=tables,
    )  # fmt: skip
    before = unchanged.own_chunks()
    if method == "none" or keep:
        return _plan(
            program, workers, name, before, before, keep or "method 'none'", None, placed,
            settings.acceptance,
        )  # fmt: skip
    chosen = get(method) if isinstance(method, str) else method
    largest = max(max(before.price.peak, default=0), settings.usual_task)
    searches_all = name in ("auto", "exact")
    planner = MeshPlanner(
        program,
        Mesh(chosen.mesh(count)),
        workers,
        replace(
            settings,
            max_task=min(settings.max_task, largest),
            max_states=chosen.max_states or settings.max_states,
            replica_bytes=room,
        ),
        memory_limit,
        threads,
        room,
        retile=True,
        placed=placed,
        bundled=bundled,
        allow_replicas=chosen.allow_replicas,
        ordered=searches_all and searches_all_orders(program, chosen.mesh(count), settings),
        final=final,
        tables=tables,
    )
    found = search(planner, chosen, searches_all)
    all_found = [found]
    if name == "auto" and workers <= MAX_WORKERS:
        # methods are compared with each other, not with the input
        refused = not force and bool(
            objection(unchanged, before, planner, found.least, memory_limit)
        )
        elapsed = math.inf if force else unchanged.stock_elapsed(before.price)
        all_found = with_fewer_workers(planner, found, chosen, before.price, elapsed, refused)
    rules = settings.acceptance
    candidates: list[Candidate] = []
    for each in all_found:
        candidates.append(each.least)
        # a plan of fewer tasks moves no fewer bytes
        if name == "auto" and (force or not moves_too_much(before.price, each.least.price, rules)):
            fewer = each.planner.candidate(chosen, settings.task_bytes)
            if planner.cost(fewer.price) * rules.fewer_tasks_ratio < planner.cost(each.least.price):
                candidates.insert(-1, fewer)
    recomputing = (
        with_recomputation(all_found[0].planner, candidates[0], chosen)
        if chosen.allow_replicas
        else None
    )
    if recomputing is not None:
        candidates.insert(0, recomputing)
    verdict = ""
    for after in candidates:
        verdict = objection(unchanged, before, planner, after, memory_limit)
        obeys = needs_less(before.price, after.price, memory_limit)
        if not verdict and bundled and placed and not obeys:
            verdict = objection_with_bundles(planner, before, after)
        if not verdict:
            break
    else:
        after, verdict = (candidates[0], "") if force else (before, verdict)
    used = after.tiled.mesh
    plan = _plan(
        program,
        workers,
        name,
        before,
        after,
        verdict,
        # nothing was proven for programs in which arrays are recomputed
        None if after is recomputing else _proof(all_found, found, math.prod(used)),
        placed,
        settings.acceptance,
    )
    if plan.tiled is not None and math.prod(used) < mesh.workers and len(all_found) > 1:
        plan = replace(plan, bytes_on_all=found.least.price.bytes)
    return plan


def _proof(searches: Sequence[Found], on_all: Found, workers: int) -> Proof:
    """What was proven of tilings on grids of a number of workers, and on those of all workers."""
    of_workers = (each.proof for each in searches if each.planner.mesh.workers == workers)
    proof = next(of_workers, on_all.proof)
    other = on_all.proof
    if proof is other or not 0 < proof.bound <= other.bound:
        return proof
    return replace(proof, grids=f"{proof.grids} or {other.grids}")


def _plan(
    program: Program,
    workers: int,
    method: str,
    before: Candidate,
    after: Candidate,
    verdict: str,
    proof: Proof | None,
    placed: bool,
    rules: Acceptance,
) -> TilingPlan:
    if proof is None or after.price.bytes < proof.bound:
        # no bound covers this tiling
        proof = Proof(0, False, "")
    moved = after.price.bytes
    nodes = after.tiled.program.nodes
    uncounted = tuple(index for index, node in enumerate(nodes) if reads_unknown_blocks(node))
    proven = not uncounted and moved <= proof.bound and (proof.exact or not moved)
    kept = after is before and not (placed and worth_placing(before, rules))
    price, origin = before.price, None
    if after.extended is not None:
        price, origin = _aligned(price, after.extended), after.extended.origin
    return TilingPlan(
        program=after.tiled.program,
        workers=workers,
        method=method,
        before=price,
        after=after.price,
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
