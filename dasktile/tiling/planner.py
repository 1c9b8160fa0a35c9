"""From a program to a plan: price the input, tile it anew, keep the better of the two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dasktile.ir import Chunks, Kind, Node, Program, TiledProgram, Tiling, bounds
from dasktile.tiling.candidates import Space, choices
from dasktile.tiling.cost import TIE, Costs
from dasktile.tiling.grid import free_axes, own_axes
from dasktile.tiling.local import Local, MemoryLimitError, Splitter
from dasktile.tiling.mesh import MAX_WORKERS, Mesh, mesh_shape
from dasktile.tiling.methods import Method, get
from dasktile.tiling.plan import Price, TilingPlan
from dasktile.tiling.rematerialize import late_readers, recompute, spilled_bytes
from dasktile.tiling.replicate import find_replicas
from dasktile.tiling.rewrite import ExtendedProgram, Replica, extend
from dasktile.tiling.seconds import stock_slowdown
from dasktile.tiling.settings import Settings
from dasktile.tiling.solve.problem import Solution

#: A plan must be cheaper than the input by this factor to be worth a rewrite.
WORTH_IT = 0.98

#: A plan with fewer tasks may cost so much more than the one that moves least.
FEWEST_BYTES_SLACK = 1.25

#: An input is taken to be unevenly spread beyond this balance; only then may a plan move
#: more bytes than it (one worker alone moves nothing).
UNEVEN = 1.25

#: Beyond this balance it is more than chunks that are not a multiple of the workers.
CONCENTRATED = 2.0


#: Axes of a finer mesh that is tried too, where that is quick: three have few ways to divide many
#: workers (64 are 4 x 4 x 4, but not 16 x 2 x 2).
FINER_AXES = 4

#: Programs for which it is tried: of so few operations with all candidates of a node that there
#: are, from so many workers on; of so many nodes with fewer candidates, up to so many workers.
FEW_OPERATIONS, ALL_STATES, MANY_WORKERS = 8, 640, 32
FEW_NODES, LEAN_STATES, FEW_WORKERS = 40, 256, 16

#: Bytes that a plan must move for it to be worth a second search, which takes a second.
WORTH_FINER = 16e6

#: Boxes of one node that may be looked at for that.
MOST_BOXES = 300_000

#: Arrays to be made again that are tried one by one.
MOST_MADE_AGAIN = 8


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A tiling with its price.

    `extended` is the program with more nodes than were given, where arrays are there twice.
    """

    tiled: TiledProgram
    price: Price
    solution: Solution
    extended: ExtendedProgram | None = None


def tile(
    program: Program,
    *,
    workers: int = 1,
    memory_limit: int | None = None,
    method: str | Method = "auto",
    settings: Settings | None = None,
    threads: int = 1,
    placed: bool = False,
    force: bool = False,
) -> TilingPlan:
    """Decide how every array of a program is tiled.

    Parameters
    ----------
    program
        The expression.
    workers
        Processes that send bytes to each other.  More than
        :data:`~dasktile.tiling.mesh.MAX_WORKERS` are planned for in groups.
    memory_limit
        Bytes that the tiles of one task may take, or None.
    method
        One of :func:`dasktile.tiling.methods.methods`, or one that is not registered.
    settings
        Constants of the cost model.
    threads
        Tasks that each worker runs at once.
    placed
        True where tasks will run where the plan says.
    anyway
        True to have what the method decides, although the input's own chunks may be better:
        to compare methods.

    Raises
    ------
    ValueError
        For an unknown method, or a memory limit below one tile.
    """
    settings = settings or Settings()
    count = min(workers, MAX_WORKERS)
    mesh = Mesh(mesh_shape(count))
    threads *= -(-workers // mesh.workers)
    name = method if isinstance(method, str) else method.choose.__name__
    unchanged = _Planner(program, mesh, workers, settings, memory_limit, threads)
    before = unchanged.candidate(get("auto"), TIE)
    if method == "none":
        return _plan(program, workers, name, before, before, "method 'none'", placed=placed)
    chosen = get(method) if isinstance(method, str) else method
    largest = max(max(before.price.peak, default=0), settings.usual_task)
    planner = _Planner(
        program,
        Mesh(chosen.mesh(count)),
        workers,
        replace(
            settings,
            max_task=min(settings.max_task, largest),
            max_states=chosen.max_states or settings.max_states,
            copies=None if memory_limit is None else memory_limit * threads,
        ),
        memory_limit,
        threads,
        retile=True,
        placed=placed,
        allow_replicas=chosen.allow_replicas,
    )
    least = planner.candidate(chosen, TIE)
    stated = least.solution
    finer = planner.finer(least) if name in ("auto", "exact") else None
    if finer is not None:
        other = finer.candidate(chosen, TIE)
        if other.price.bytes < least.price.bytes:
            least = other
            if finer.mesh != planner.mesh:
                # what holds for the mesh of fewer axes need not hold for this one
                stated = other.solution
    candidates = [least]
    if name == "auto":
        fewer = planner.candidate(chosen, settings.task_bytes)
        if planner.cost(fewer.price) * FEWEST_BYTES_SLACK < planner.cost(least.price):
            candidates.insert(0, fewer)
    recomputing = _again(planner, candidates[0], chosen) if chosen.allow_replicas else None
    if recomputing is not None:
        candidates.insert(0, recomputing)
    verdict = ""
    for after in candidates:
        if force:
            break
        verdict = _objection(unchanged, before, planner, after, memory_limit)
        if not verdict:
            break
    else:
        after = before
    # of programs in which arrays are made again nothing was proven
    known = None if after is recomputing else stated
    return _plan(program, workers, name, before, after, verdict, known, placed)


def _again(planner: _Planner, held: _Candidate, method: Method) -> _Candidate | None:
    """A plan that makes arrays again instead of holding them, if that is cheaper."""
    if not held.price.spilled:
        return None
    best = held
    late = late_readers(planner.program)
    # the largest first: what it frees the others may have
    order = sorted(late, key=lambda index: (-planner.program.nodes[index].nbytes, index))
    possible = [recompute(planner.program, index, late[index]) for index in order]
    able = [second for second in possible if second is not None]
    changes: list[Replica] = []
    for second in able[:MOST_MADE_AGAIN]:
        if not best.price.spilled:
            break
        tried = planner.with_replicas([*changes, second], method, TIE)
        if planner.cost(tried.price) < planner.cost(best.price) * WORTH_IT:
            best = tried
            changes.append(second)
    rest = able[MOST_MADE_AGAIN:]
    if best.price.spilled and rest:
        tried = planner.with_replicas([*changes, *rest], method, TIE)
        if planner.cost(tried.price) < planner.cost(best.price) * WORTH_IT:
            best = tried
    return None if best is held else best


def _plan(
    program: Program,
    workers: int,
    method: str,
    before: _Candidate,
    after: _Candidate,
    verdict: str,
    known: Solution | None = None,
    placed: bool = False,
) -> TilingPlan:
    # the tie-break is worth less than a byte in all, so rounding gives bytes
    bound = 0 if known is None else max(0, math.floor(known.bound + 0.5))
    if after.price.bytes < bound:
        # it is none of the tilings that the bound speaks of
        known, bound = None, 0
    exact = known is not None and known.exact
    proven = after.price.bytes <= bound and (exact or not after.price.bytes)
    kept = after is before and not (placed and _worth_placing(before))
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
        lower_bound=bound,
        proven_optimal=proven,
        reasons=tuple(
            _reason(node, tiling, verdict)
            for node, tiling in zip(after.tiled.program.nodes, after.tiled.tilings, strict=True)
        ),
        verdict=verdict or "retiled",
        origin=origin,
    )


def _aligned(price: Price, more: ExtendedProgram) -> Price:
    """A price of the original, node by node beside those of a rewritten program."""

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
    )


def _worth_placing(before: _Candidate) -> bool:
    """Whether to place the input's own chunks, where tiles can be placed.

    Where few workers have most of the work, as with one chunk for a whole array, Dask leaves
    what follows where it is, and to spread it moves more than that.
    """
    return len(before.price.loads) > 1 and before.price.balance <= CONCENTRATED


def _reason(node: Node, tiling: Tiling, verdict: str) -> str:
    """Why a node keeps its chunks; empty where it does not."""
    if tiling.chunks != node.chunks:
        return ""
    if node.reason:
        return node.reason
    return verdict or "its chunks are already the cheapest"


def _objection(
    unchanged: _Planner, before: _Candidate, planner: _Planner, after: _Candidate, limit: int | None
) -> str:
    """Why the input is better left as it is; empty where the plan is better."""
    too_large = max(before.price.peak, default=0)
    if limit is not None and too_large > limit and max(after.price.peak) < too_large:
        return ""
    old, new = unchanged.cost(before.price, stock=True), planner.cost(after.price)
    if new >= old * WORTH_IT:
        return "the input's own chunks cost no more, tasks and moved bytes together"
    if after.price.bytes > before.price.bytes and before.price.balance <= UNEVEN:
        return "the input's own chunks move no more bytes"
    return ""


@dataclass
class _Planner:
    """One space, solved and priced in various ways.

    Parameters
    ----------
    program, mesh, workers, settings, memory_limit, threads, placed
        As in :func:`tile`.
    anew
        False to keep the input's own chunks.
    allow_replicas
        Whether arrays may be there twice.
    lean
        Whether to leave out tilings that hardly ever pay, see :class:`Space`.
    """

    program: Program
    mesh: Mesh
    workers: int
    settings: Settings
    memory_limit: int | None
    threads: int
    retile: bool = False
    placed: bool = False
    allow_replicas: bool = False
    lean: bool = False

    def __post_init__(self) -> None:
        axes = free_axes(self.program, self.workers) if self.retile else own_axes(self.program)
        self.space = Space(
            self.program,
            self.mesh,
            axes,
            self.settings.max_states,
            self.memory_limit,
            self.allow_replicas,
            self.lean,
        )
        self.costs = Costs(self.space)

    def finer(self, least: _Candidate) -> _Planner | None:
        """The same for a mesh of more axes, where the program is small enough for that."""
        if least.price.bytes < WORTH_FINER:
            return None
        mesh = Mesh(mesh_shape(self.mesh.workers, FINER_AXES))
        boxes = max(choices(node) for node in self.program.nodes) ** len(mesh.shape)
        if boxes * mesh.workers > MOST_BOXES:
            return None
        operations = sum(bool(node.edges) for node in self.program.nodes)
        if operations <= FEW_OPERATIONS and mesh.workers >= MANY_WORKERS:
            settings = replace(self.settings, max_states=ALL_STATES)
            return replace(self, mesh=mesh, settings=settings)
        if len(self.program.nodes) > FEW_NODES or mesh.workers > FEW_WORKERS:
            return None
        if mesh == self.mesh and least.solution.exact:
            return None
        settings = replace(self.settings, max_states=LEAN_STATES)
        return replace(self, mesh=mesh, settings=settings, lean=True)

    def candidate(self, method: Method, tile_weight: float) -> _Candidate:
        solution = method.choose(self.costs, self.settings, tile_weight)
        if self.space.truncated:
            # of what was left out nothing is known
            solution = replace(solution, bound=0.0, exact=False)
        if self.allow_replicas:
            changes = find_replicas(self.costs, solution.states)
            if changes:
                replicated = self.with_replicas(changes, method, tile_weight)
                return replace(replicated, solution=solution)
        local = Splitter(
            self.space,
            solution.states,
            self.settings,
            self.memory_limit,
            self.threads,
            self.retile,
            self.placed,
        ).run()
        tiled = TiledProgram(
            self.program, self.mesh.shape, local.tilings, local.kept, local.kept_at, local.copied
        )
        return _Candidate(tiled, self._price(solution.states, local), solution)

    def with_replicas(
        self, changes: Sequence[Replica], method: Method, tile_weight: float
    ) -> _Candidate:
        """The same with arrays there twice."""
        more = extend(self.program, changes)
        planner = replace(self, program=more.program, allow_replicas=False)
        return replace(planner.candidate(method, tile_weight), extended=more)

    def _price(self, states: Sequence[int], local: Local) -> Price:
        return Price(
            moved=self.costs.moved(states),
            read=tuple(
                self._read(index, tiling.chunks) for index, tiling in enumerate(local.tilings)
            ),
            tasks=local.tasks,
            loads=tuple(float(load) for load in self.costs.loads(states)),
            peak=local.peak,
            spilled=self._spilled,
        )

    @cached_property
    def _spilled(self) -> int:
        """Bytes that do not fit while they are held from one pass to the next."""
        if self.memory_limit is None:
            return 0
        return spilled_bytes(self.program, self.memory_limit * self.threads * self.mesh.workers)

    def _read(self, index: int, chunks: Chunks) -> int:
        """Bytes read from storage for a node, stored chunks that are cut counted again."""
        node = self.program.nodes[index]
        if node.stored is None:
            return 0
        reads = math.prod(
            _reread(tuple(stored), tuple(sizes))
            for stored, sizes in zip(node.stored, chunks, strict=True)
        )
        if not self.retile:
            reads *= self._fused_reads(index)
        return math.ceil(node.nbytes * reads)

    def _fused_reads(self, index: int) -> int:
        """How often stock dask reads a source that it fuses into a contraction."""
        node = self.program.nodes[index]
        readers = self.program.consumers(index)
        if len(readers) != 1 or self.program.nodes[readers[0]].kind is not Kind.CONTRACT:
            return 1
        reader = self.program.nodes[readers[0]]
        edges = [edge for edge in reader.edges if edge.producer == index]
        if len(edges) != 1 or any(axis.label is None for axis in edges[0].axes):
            return 1
        seen = {axis.label for axis in edges[0].axes}
        cuts = tuple(reader.labels[axis.label or 0].cuts for axis in edges[0].axes)
        if cuts != node.chunks:
            return 1
        return math.prod(
            len(label.cuts) for position, label in enumerate(reader.labels) if position not in seen
        )

    def cost(self, price: Price, stock: bool = False) -> float:
        """Everything in bytes: moved and read, tasks, and the time lost computing.

        Lost is what the busiest worker takes beyond an even share at full speed; the even
        share itself is the same for every tiling.
        """
        busiest = max(price.loads, default=0.0)
        even = sum(price.loads) / max(len(price.loads), 1)
        if stock:
            busiest *= stock_slowdown(self.program)
        seconds = (busiest - even) / self.settings.work_per_second / self.threads
        return (
            price.bytes
            + price.spilled
            + sum(price.read)
            + sum(price.tasks) * self.settings.task_bytes
            + seconds * self.settings.bytes_per_second
        )


def _reread(stored: tuple[int, ...], chunks: tuple[int, ...]) -> float:
    """How often an element of a stored axis is read on average, for given chunks."""
    size = sum(stored)
    if not size:
        return 1.0
    edges = np.asarray(bounds(stored))
    blocks = np.asarray(bounds(chunks))
    first = np.searchsorted(edges, blocks[:-1], side="right") - 1
    last = np.searchsorted(edges, np.maximum(blocks[1:] - 1, blocks[:-1]), side="right")
    return float((edges[last] - edges[first])[blocks[1:] > blocks[:-1]].sum()) / size


__all__ = ["MemoryLimitError", "tile"]
