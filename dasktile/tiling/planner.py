"""From a program to a plan: price the input's own chunks and a new tiling, and take the better."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from dasktile.ir import (
    Chunks,
    Kind,
    Node,
    Program,
    Role,
    TiledProgram,
    Tiling,
    bounds,
    workers_of_positions,
)
from dasktile.tiling.candidates import Space, choices, reads_unknown_blocks
from dasktile.tiling.cost import TIE, Costs
from dasktile.tiling.fewer import fewer_workers, share_moved
from dasktile.tiling.grid import free_axes, own_axes
from dasktile.tiling.local import LocalCuts, MemoryLimitError, Splitter
from dasktile.tiling.mesh import MAX_AXES, MAX_WORKERS, Mesh, mesh_shape, mesh_shapes
from dasktile.tiling.methods import Method, get
from dasktile.tiling.objective import Objective, stock_slowdown
from dasktile.tiling.plan import RETILED, Price, TilingPlan
from dasktile.tiling.proof import Proof, Search, strongest
from dasktile.tiling.rematerialize import late_readers, recompute, spilled_bytes
from dasktile.tiling.replicate import find_replicas
from dasktile.tiling.rewrite import ExtendedProgram, Replica, extend
from dasktile.tiling.settings import Acceptance, Settings
from dasktile.tiling.solve.problem import Solution

#: Axes of a mesh whose orders are searched at once: they make few more tilings.
FEW_AXES = 2


@dataclass(frozen=True, slots=True)
class SearchTables:
    """What searches of the same tilings with several settings share.

    Parameters
    ----------
    costs
        Tables of costs, by what the tilings that are searched depend on.
    solutions
        Solutions, by the same, the method, and the settings of the search.
    own
        The input's own chunks, by the same; they are priced with the settings of the first search.
    """

    costs: dict[Hashable, Costs] = field(default_factory=dict)
    solutions: dict[Hashable, Solution] = field(default_factory=dict)
    own: dict[Hashable, _Candidate] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A tiling with its price.

    `extended` is the program with nodes added for replicas, or None where none were added.
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
    unchanged = _Planner(
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
    planner = _Planner(
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
        ordered=searches_all and _searches_all_orders(program, chosen.mesh(count), settings),
        final=final,
        tables=tables,
    )
    found = planner.search(chosen, searches_all)
    all_found = [found]
    if name == "auto" and workers <= MAX_WORKERS:
        refused = bool(_objection(unchanged, before, planner, found.least, memory_limit))
        all_found = planner.with_fewer_workers(
            found, chosen, before.price, unchanged.stock_elapsed(before.price), refused
        )
    rules = settings.acceptance
    candidates: list[_Candidate] = []
    for each in all_found:
        candidates.append(each.least)
        # a plan of fewer tasks moves no fewer bytes
        if name == "auto" and (force or not _moves_too_much(before.price, each.least.price, rules)):
            fewer = each.planner.candidate(chosen, settings.task_bytes)
            if planner.cost(fewer.price) * rules.fewer_tasks_ratio < planner.cost(each.least.price):
                candidates.insert(-1, fewer)
    recomputing = (
        _with_recomputation(all_found[0].planner, candidates[0], chosen)
        if chosen.allow_replicas
        else None
    )
    if recomputing is not None:
        candidates.insert(0, recomputing)
    verdict = ""
    for after in candidates:
        verdict = _objection(unchanged, before, planner, after, memory_limit)
        obeys = _needs_less(before.price, after.price, memory_limit)
        if not verdict and bundled and placed and not obeys:
            verdict = _objection_with_bundles(planner, before, after)
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


def _proof(searches: Sequence[_Found], on_all: _Found, workers: int) -> Proof:
    """What was proven of tilings on grids of a number of workers, and on those of all workers."""
    of_workers = (each.proof for each in searches if each.planner.mesh.workers == workers)
    proof = next(of_workers, on_all.proof)
    other = on_all.proof
    if proof is other or not 0 < proof.bound <= other.bound:
        return proof
    return replace(proof, grids=f"{proof.grids} or {other.grids}")


def _searches_all_orders(program: Program, mesh: tuple[int, ...], settings: Settings) -> bool:
    """Whether the axes of a mesh cut labels in all orders in the first search."""
    return len(mesh) <= FEW_AXES and len(program.nodes) <= settings.wider.few_nodes


def _with_recomputation(planner: _Planner, held: _Candidate, method: Method) -> _Candidate | None:
    """A plan that recomputes arrays instead of holding them; None if that is not cheaper."""
    if not held.price.spilled:
        return None
    best, rules = held, planner.settings.acceptance
    late = late_readers(planner.program)
    # the largest first: the memory that it frees is there for the others
    order = sorted(late, key=lambda index: (-planner.program.nodes[index].nbytes, index))
    possible = [
        recompute(planner.program, index, late[index], rules.max_recomputed) for index in order
    ]
    able = [replica for replica in possible if replica is not None]
    chosen: list[Replica] = []
    for replica in able[: rules.max_recomputed_tries]:
        if not best.price.spilled:
            break
        tried = planner.with_replicas([*chosen, replica], method, TIE)
        if planner.cost(tried.price) < planner.cost(best.price) * rules.max_cost_ratio:
            best = tried
            chosen.append(replica)
    rest = able[rules.max_recomputed_tries :]
    if best.price.spilled and rest:
        tried = planner.with_replicas([*chosen, *rest], method, TIE)
        if planner.cost(tried.price) < planner.cost(best.price) * rules.max_cost_ratio:
            best = tried
    return None if best is held else best


def _plan(
    program: Program,
    workers: int,
    method: str,
    before: _Candidate,
    after: _Candidate,
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
    kept = after is before and not (placed and _worth_placing(before, rules))
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


def _worth_placing(before: _Candidate, rules: Acceptance) -> bool:
    """Whether to place the input's own chunks, if tiles can be placed.

    Where few workers have most of the work, as with one chunk for a whole array, Dask runs later
    tasks on these workers, and spreading them would move more bytes.
    """
    return len(before.price.loads) > 1 and before.price.balance <= rules.concentrated


def _reason(node: Node, tiling: Tiling, verdict: str) -> str:
    """Why a node keeps its chunks; empty where its chunks change."""
    if tiling.chunks != node.chunks:
        return ""
    if node.reason:
        return node.reason
    return verdict or "its chunks are already the cheapest"


def _objection(
    unchanged: _Planner, before: _Candidate, planner: _Planner, after: _Candidate, limit: int | None
) -> str:
    """Why the input's own chunks are kept; empty where the plan is better."""
    if _needs_less(before.price, after.price, limit):
        return ""
    old, new = unchanged.stock_cost(before.price), planner.cost(after.price)
    rules = planner.settings.acceptance
    if new >= old * rules.max_cost_ratio:
        return "no other tiles cost clearly less, tasks and moved bytes together"
    if _moves_too_much(before.price, after.price, rules):
        return _moves_more(before.price, after.price, planner.placed)
    return ""


def _moves_more(before: Price, after: Price, placed: bool) -> str:
    """Why cheaper tiles that move more bytes are not used, and what to do instead."""
    instead = "for fewer tasks, make the inputs in larger chunks"
    if not placed:
        instead = "on a cluster after dasktile.enable(client), a task runs several blocks"
    old, new = sum(before.tasks), sum(after.tasks)
    cheaper = "tiles that cost less otherwise"
    if new < old:
        # numbers of the model would stand beside those of tasks as they run
        cheaper = f"tiles with {max(1, round(100 * new / old))} % of the tasks"
    moved = "bytes between workers, where the input's own chunks move none"
    if before.bytes:
        moved = f"{_growth(after.bytes / before.bytes)} between workers"
    return f"{cheaper} would move {moved}, which optimize does not accept; {instead}"


def _growth(ratio: float) -> str:
    """A growth of bytes in words: ``2.8 % more bytes``, ``13 times the bytes``."""
    if ratio >= 2:
        return f"{ratio:,.{0 if ratio >= 10 else 1}f} times the bytes"
    percent = 100 * (ratio - 1)
    return f"{percent:.{0 if percent >= 10 else 1}f} % more bytes"


def _needs_less(before: Price, after: Price, limit: int | None) -> bool:
    """Whether the largest task takes more bytes than a limit, and fewer in a plan."""
    largest = max(before.peak, default=0)
    return limit is not None and largest > limit and max(after.peak) < largest


def _moves_too_much(before: Price, after: Price, rules: Acceptance) -> bool:
    """Whether a plan moves more bytes than the input's own chunks, which are even enough."""
    return after.bytes > before.bytes and before.balance <= rules.uneven


def _objection_with_bundles(planner: _Planner, before: _Candidate, after: _Candidate) -> str:
    """Why the input's own chunks are kept where tasks are bundled; empty if they are not.

    Larger tiles then save little, and to join them takes time and memory.
    """
    objective, rules = planner.objective, planner.settings.acceptance
    old, new = before.price, after.price
    saves = new.bytes < old.bytes or sum(new.read) < sum(old.read) or new.spilled < old.spilled
    if saves or not _worth_placing(before, rules):
        return ""
    if objective.cost_in_bundles(new) < objective.cost_in_bundles(old) * rules.max_cost_ratio:
        return ""
    return "the input's own chunks cost no more in bundles of tasks"


@dataclass(frozen=True, slots=True)
class _Found:
    """What searches on meshes of as many workers have found.

    Parameters
    ----------
    planner
        The one that found the tiling that moves fewest bytes.
    least
        This tiling.
    proof
        What is proven of others.
    """

    planner: _Planner
    least: _Candidate
    proof: Proof


@dataclass
class _Planner:
    """The candidates of a program on one mesh, which methods solve and which this prices.

    Parameters
    ----------
    program, mesh, workers, settings, memory_limit, threads, room, placed, bundled, final
        As in :func:`tile`.
    idle
        Workers beside these, which have no tiles.
    retile
        False to keep the input's own chunks.
    allow_replicas
        Whether arrays may be replicated in two shardings.
    lean, ordered
        Whether to leave out tilings that hardly ever pay, and whether mesh axes cut a label in
        every order, see :class:`Space`.
    tables
        What other planners have found.
    """

    program: Program
    mesh: Mesh
    workers: int
    settings: Settings
    memory_limit: int | None
    threads: int
    room: int | None
    retile: bool = False
    placed: bool = False
    bundled: bool = False
    allow_replicas: bool = False
    lean: bool = False
    ordered: bool = False
    final: tuple[Chunks | None, ...] = ()
    tables: SearchTables = field(default_factory=SearchTables)
    idle: int = 0

    def __post_init__(self) -> None:
        self._key = self._searched_key()
        costs = self.tables.costs.get(self._key)
        if costs is None:
            costs = self.tables.costs[self._key] = Costs(self._space())
        self.costs = costs.where_scarce() if self.settings.scarce else costs
        self.space = self.costs.space
        self.objective = Objective(self.settings, self.threads)
        self._by_states: dict[tuple[int, ...], _Candidate] = {}

    def _space(self) -> Space:
        """The tilings that are searched."""
        if self.retile:
            axes = free_axes(self.program, self.workers, self.settings.candidates, self.final)
        else:
            axes = own_axes(self.program)
        return Space(
            self.program,
            self.mesh,
            axes,
            self.settings,
            self.memory_limit,
            self.allow_replicas,
            self.lean,
            self.ordered,
            self.final,
        )

    def _searched_key(self) -> Hashable:
        """What the tilings that are searched, and the bytes that they move, depend on."""
        model = replace(self.settings.model, join_byte=0.0, scarce_join_byte=0.0)
        # only local cuts, and the weight of tiles, depend on these settings
        settings = replace(
            self.settings,
            model=model,
            task_bytes=0.0,
            min_tile=0,
            tiles_per_worker=0,
            usual_task=0,
            max_task=0,
            scarce=False,
        )
        return (
            self.program,
            self.mesh,
            self.workers if self.retile else None,
            settings,
            self.memory_limit,
            (self.allow_replicas, self.lean, self.ordered, self.final),
        )

    def search(self, method: Method, widely: bool) -> _Found:
        """The tiling of a method that moves fewest bytes, on meshes of as many workers.

        With `widely`, more tilings are searched than those of this planner.
        """
        least, best = self.candidate(method, TIE), self
        searches = [self.searched(least.solution)]
        for wider in self.wider(least) if widely else ():
            other = wider.candidate(method, TIE)
            if self.worth(other) < self.worth(least):
                least, best = other, wider
            searches.append(wider.searched(other.solution))
        return _Found(best, least, strongest(searches, least.price.bytes))

    def with_fewer_workers(
        self,
        on_all: _Found,
        method: Method,
        before: Price,
        elapsed_before: float,
        refused: bool,
    ) -> list[_Found]:
        """What was found on all workers and on fewer, the best first.

        Fewer workers are tried where numbers of them have better grids, and where they may take
        less time than all workers and than the input.  Persisted arrays are on all workers.

        Parameters
        ----------
        on_all
            What was found on all workers.
        method
            The method.
        before
            The price of the input's own chunks.
        elapsed_before
            The time that they take, as :meth:`elapsed` has it.
        refused
            Whether the input is better than the plan on all workers.
        """
        rules, found = self.settings.acceptance, [on_all]
        price, workers = on_all.least.price, self.mesh.workers
        if price.bytes < self.settings.wider.min_bytes:
            return found
        if any(node.homes for node in self.program.nodes):
            return found
        most = elapsed_before if refused else min(elapsed_before, self.elapsed(price))
        most, most_cost = most * rules.max_cost_ratio, math.inf if refused else self.cost(price)
        # plans of fewer tasks may follow, so that fewer tasks alone are no reason
        most_alone = math.inf if refused else self.elapsed(replace(price, tasks=()))
        moved, work, least_tasks = price.bytes, sum(price.loads), sum(before.tasks)
        for count in fewer_workers(workers):
            # a guess: work is even, tasks are few, and of the bytes is left as much as of those of
            # a product of three equal sizes, which saves most
            guess = replace(
                price,
                moved=(math.floor(share_moved(count, workers) * moved),),
                handed=(),
                tasks=(min(least_tasks, *(sum(each.least.price.tasks) for each in found)),),
                loads=(work / count,) * count + (0.0,) * (workers - count),
            )
            if self.elapsed(guess) >= most:
                continue
            # programs of many sums take long on three axes, see `wider`
            mesh = Mesh(method.mesh(count) if self._has_few_sums else mesh_shape(count, FEW_AXES))
            planner = replace(
                self,
                mesh=mesh,
                workers=count,
                idle=self.workers - count,
                ordered=_searches_all_orders(self.program, mesh.shape, self.settings),
            )
            other = planner.candidate(method, TIE)
            if other.price.bytes >= moved or _moves_too_much(before, other.price, rules):
                continue
            alone = self.elapsed(replace(other.price, tasks=()))
            if self.elapsed(other.price) >= most or alone >= most_alone:
                continue
            if self.cost(other.price) >= most_cost:
                continue
            best = planner.search(method, True)
            most, most_cost = self.elapsed(best.least.price), self.cost(best.least.price)
            most_alone = self.elapsed(replace(best.least.price, tasks=()))
            found.insert(0, best)
        return found

    def wider(self, least: _Candidate) -> Iterator[_Planner]:
        """Planners for more tilings, where they are not too slow and may move clearly less.

        The mesh axes of one cut a label in all orders; others have other meshes, or more
        candidates.
        """
        limits = self.settings.wider
        moved, nodes, workers = least.price.bytes, self.program.nodes, self.mesh.workers
        if self.ordered and not least.solution.exact:
            yield replace(self, ordered=False)
            return
        if moved < limits.min_bytes or len(nodes) > limits.few_nodes:
            return
        few, sums = self._has_few_sums, self._sums
        if not few and workers > limits.few_workers:
            return
        widest = max(choices(node, self.settings.candidates) for node in nodes)

        def fits(mesh: Mesh, orders: int = 1) -> bool:
            return widest ** len(mesh.shape) * orders * workers <= limits.max_boxes

        def searching(states: int, mesh: Mesh, **changes: Any) -> _Planner:
            settings = replace(self.settings, max_states=states)
            return replace(self, mesh=mesh, settings=settings, **changes)

        # what is too wide for a proof in one order is so in all orders
        exact = least.solution.exact
        if few and not exact and self.space.truncated and fits(self.mesh):
            yield searching(limits.all_states, self.mesh, ordered=False)
        meshes = [self.mesh] if exact and not self.ordered else []
        if few and exact and moved >= limits.bytes_per_sum * (sums - 1):
            others = map(Mesh, mesh_shapes(workers, MAX_AXES))
            meshes += [mesh for mesh in others if mesh != self.mesh]
        for mesh in meshes:
            if fits(mesh, math.factorial(len(mesh.shape))):
                yield searching(limits.all_states, mesh, ordered=True)
        larger = Mesh(mesh_shape(workers, limits.mesh_axes))
        if not few and fits(larger) and not (larger == self.mesh and exact):
            yield searching(limits.lean_states, larger, ordered=False, lean=True)

    @property
    def _has_few_sums(self) -> bool:
        """Whether the program has few products and reductions."""
        return self._sums <= self.settings.wider.few_sums

    @cached_property
    def _sums(self) -> int:
        """The number of products and reductions."""
        return sum(
            any(label.role is Role.REDUCE for label in node.labels) for node in self.program.nodes
        )

    def worth(self, candidate: _Candidate) -> tuple[int, float]:
        """What candidates are compared by: bytes moved, then the whole cost."""
        return candidate.price.bytes, self.cost(candidate.price)

    def searched(self, solution: Solution) -> Search:
        """What a solution proves of the tilings of this planner."""
        return Search(self.mesh.shape, self.ordered, solution.bound, solution.exact)

    def candidate(self, method: Method, tile_weight: float) -> _Candidate:
        """The tiling of a method, with its local cuts and its price.

        Two weights of tiles often lead to the same solution, whose local cuts are found once.
        """
        solution = self._solution(method, tile_weight)
        if self.space.truncated:
            # candidates were left out, so nothing is proven
            solution = replace(solution, bound=0.0, exact=False)
        if self.allow_replicas:
            replicas = find_replicas(self.costs, solution.states)
            if replicas:
                replicated = self.with_replicas(replicas, method, tile_weight)
                return replace(replicated, solution=solution)
        states = tuple(solution.states)
        if states not in self._by_states:
            self._by_states[states] = self._cut(solution)
        return replace(self._by_states[states], solution=solution)

    def own_chunks(self) -> _Candidate:
        """The input's own chunks."""
        if self._key not in self.tables.own:
            self.tables.own[self._key] = self.candidate(get("auto"), TIE)
        return self.tables.own[self._key]

    def _solution(self, method: Method, tile_weight: float) -> Solution:
        """What a method chooses, for tiles of this weight."""
        key = self._key, method, tile_weight, self.settings.scarce
        solution = self.tables.solutions.get(key)
        if solution is None:
            solution = method.choose(self.costs, self.settings, tile_weight)
            self.tables.solutions[key] = solution
        return solution

    def _cut(self, solution: Solution) -> _Candidate:
        """The local cuts of a solution, and their price."""
        local = Splitter(
            self.space,
            solution.states,
            self.settings,
            self.memory_limit,
            self.threads,
            self.retile,
            self.placed,
            self.costs.moving(solution.states),
        ).run()
        workers = self.workers + self.idle
        tiled = TiledProgram(
            self.program, self.mesh.shape, local.tilings, local.kept, local.kept_at, local.final,
            planned_for=0 if workers == self.mesh.workers else workers,
        )  # fmt: skip
        return _Candidate(tiled, self._price(solution.states, local), solution)

    def with_replicas(
        self, replicas: Sequence[Replica], method: Method, tile_weight: float
    ) -> _Candidate:
        """The tiling of a method for the program with these replicas."""
        more = extend(self.program, replicas)
        planner = replace(self, program=more.program, allow_replicas=False)
        return replace(planner.candidate(method, tile_weight), extended=more)

    def _price(self, states: Sequence[int], local: LocalCuts) -> Price:
        return Price(
            moved=self.costs.moved(states),
            read=tuple(
                self._read(index, tiling.chunks) for index, tiling in enumerate(local.tilings)
            ),
            tasks=local.tasks,
            loads=self._loads(states),
            peak=local.peak,
            spilled=self._spilled,
            joined=local.joined,
            handed=self.costs.handed(states),
        )

    def _loads(self, states: Sequence[int]) -> tuple[float, ...]:
        """Operations of every worker; of a mesh with more positions, some workers have several."""
        loads, positions = self.costs.loads(states), self.mesh.workers
        if positions <= self.workers:
            return (*loads.tolist(), *(0.0,) * self.idle)
        return tuple(np.bincount(workers_of_positions(positions, self.workers), loads).tolist())

    @cached_property
    def _spilled(self) -> int:
        """Bytes spilled and read back because arrays are held from one pass to the next."""
        if self.room is None:
            return 0
        return spilled_bytes(self.program, self.room * self.mesh.workers)

    def _read(self, index: int, chunks: Chunks) -> int:
        """Bytes read from storage for a node; a stored chunk that is cut is read several times."""
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
        """Number of times that stock Dask reads a source that it fuses into a contraction."""
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

    def cost(self, price: Price) -> float:
        """The whole cost of a tiling in bytes."""
        return self.objective.cost(price)

    def elapsed(self, price: Price) -> float:
        """The time that a tiling takes, in bytes that one worker receives in it."""
        return self.objective.elapsed(price, self.placed and self.bundled)

    def stock_elapsed(self, price: Price) -> float:
        """The same where Dask's own functions run."""
        slowdown = stock_slowdown(self.program, self.settings.model)
        return self.objective.elapsed(price, self.placed and self.bundled, slowdown)

    def stock_cost(self, price: Price) -> float:
        """The same where Dask's own functions run."""
        return self.objective.cost(price, stock_slowdown(self.program, self.settings.model))


def _reread(stored: tuple[int, ...], chunks: tuple[int, ...]) -> float:
    """Number of times that an element of a stored axis is read on average, for given chunks."""
    size = sum(stored)
    if not size:
        return 1.0
    edges = np.asarray(bounds(stored))
    blocks = np.asarray(bounds(chunks))
    first = np.searchsorted(edges, blocks[:-1], side="right") - 1
    last = np.searchsorted(edges, np.maximum(blocks[1:] - 1, blocks[:-1]), side="right")
    return float((edges[last] - edges[first])[blocks[1:] > blocks[:-1]].sum()) / size


__all__ = ["MemoryLimitError", "tile"]
