"""Searches for the tiling that moves fewest bytes: on other grids, in all orders of their axes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from dasktile.ir import Program, Role
from dasktile.tiling.acceptance import moves_too_much
from dasktile.tiling.candidates import choices
from dasktile.tiling.cost import TIE
from dasktile.tiling.fewer import fewer_workers, share_moved
from dasktile.tiling.mesh import MAX_AXES, Mesh, mesh_shape, mesh_shapes
from dasktile.tiling.mesh_planner import Candidate, MeshPlanner
from dasktile.tiling.methods import Method
from dasktile.tiling.plan import Price
from dasktile.tiling.proof import Proof, Search, strongest
from dasktile.tiling.rematerialize import late_readers, recompute
from dasktile.tiling.rewrite import Replica
from dasktile.tiling.settings import Settings
from dasktile.tiling.solve.problem import Solution

#: What the first plan for fewer workers moves and takes over what a search finds, at the most
#: (chosen: no search follows where it would have to be more).
_FIRST_OVER_FOUND = 1.1

#: Tasks of plans so far over those that a plan on fewer workers may have (chosen: on 26 = 13 x 2
#: workers, a product has 1.6 times the tasks that it has on 24 = 4 x 3 x 2).
_FEWER_TASKS = 2

#: Axes of a mesh whose orders are searched at once: they make few more tilings.
FEW_AXES = 2


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best tiling of searches on meshes of as many workers.

    Parameters
    ----------
    planner
        The one that found the tiling that moves fewest bytes.
    least
        This tiling.
    proof
        What is proven of others.
    """

    planner: MeshPlanner
    least: Candidate
    proof: Proof


def searches_all_orders(program: Program, mesh: tuple[int, ...], settings: Settings) -> bool:
    """Whether the axes of a mesh cut labels in all orders in the first search."""
    return len(mesh) <= FEW_AXES and len(program.nodes) <= settings.wider.few_nodes


def search(planner: MeshPlanner, method: Method, widely: bool) -> SearchResult:
    """The tiling of a method that moves fewest bytes, on meshes of as many workers.

    Parameters
    ----------
    planner
        A planner for these workers.
    method
        The method.
    widely
        Whether more tilings are searched than those of the planner.
    """
    least, best = planner.candidate(method, TIE), planner
    searches = [_searched(planner, least.solution)]
    for wider in _wider(planner, least) if widely else ():
        other = wider.candidate(method, TIE)
        if _worth(planner, other) < _worth(planner, least):
            least, best = other, wider
        searches.append(_searched(wider, other.solution))
    return SearchResult(best, least, strongest(searches, least.price.bytes))


def _searched(planner: MeshPlanner, solution: Solution) -> Search:
    """What a solution proves of the tilings of a planner."""
    return Search(planner.mesh.shape, planner.ordered, solution.bound, solution.exact)


def _worth(planner: MeshPlanner, candidate: Candidate) -> tuple[int, float]:
    """What candidates are compared by: bytes moved, then time, of the busiest worker."""
    return candidate.price.bytes, planner.elapsed(candidate.by_worker().price)


def _wider(planner: MeshPlanner, least: Candidate) -> Iterator[MeshPlanner]:
    """Planners for more tilings, where they are not too slow and may move clearly less.

    The mesh axes of one cut a label in all orders; others have other meshes, or more candidates.
    """
    limits, mesh = planner.settings.wider, planner.mesh
    moved, nodes, workers = least.price.bytes, planner.program.nodes, mesh.workers
    if planner.ordered and not least.solution.exact:
        yield replace(planner, ordered=False)
        return
    if moved < limits.min_bytes or len(nodes) > limits.few_nodes:
        return
    sums = _sums(planner.program)
    few = sums <= limits.few_sums
    if not few and workers > limits.few_workers:
        return
    widest = max(choices(node, planner.settings.candidates) for node in nodes)

    def fits(mesh: Mesh, orders: int = 1) -> bool:
        return widest ** len(mesh.shape) * orders * workers <= limits.max_boxes

    def searching(states: int, mesh: Mesh, **changes: Any) -> MeshPlanner:
        settings = replace(planner.settings, max_states=states)
        return replace(planner, mesh=mesh, settings=settings, **changes)

    # what is too wide for a proof in one order is so in all orders
    exact = least.solution.exact
    if few and not exact and planner.space.truncated and fits(mesh):
        yield searching(limits.all_states, mesh, ordered=False)
    meshes = [mesh] if exact and not planner.ordered else []
    if few and exact and moved >= limits.bytes_per_sum * (sums - 1):
        meshes += [other for other in map(Mesh, mesh_shapes(workers, MAX_AXES)) if other != mesh]
    for other in meshes:
        if fits(other, math.factorial(len(other.shape))):
            yield searching(limits.all_states, other, ordered=True)
    larger = Mesh(mesh_shape(workers, limits.mesh_axes))
    if not few and fits(larger) and not (larger == mesh and exact):
        yield searching(limits.lean_states, larger, ordered=False, lean=True)


def _sums(program: Program) -> int:
    """The number of products and reductions of a program."""
    return sum(any(label.role is Role.REDUCE for label in node.labels) for node in program.nodes)


def _has_homes(program: Program) -> bool:
    """Whether arrays of a program are in the memory of known workers."""
    return any(node.homes for node in program.nodes)


@dataclass(frozen=True, slots=True)
class _Totals:
    """What a plan takes in all: a plan for fewer workers must take less than the best plan so far.

    Parameters
    ----------
    moved
        Bytes that workers receive.
    cost, elapsed
        The cost, and the time as :meth:`MeshPlanner.elapsed` has it.
    alone
        The time without that of tasks: plans of fewer tasks may follow, so that fewer tasks alone
        are no reason.
    """

    moved: float
    cost: float
    elapsed: float
    alone: float

    @classmethod
    def of(cls, planner: MeshPlanner, candidate: Candidate) -> _Totals:
        """The totals of a plan."""
        price = candidate.by_worker().price
        alone = planner.elapsed(replace(price, tasks=()))
        return cls(price.bytes, planner.cost(price), planner.elapsed(price), alone)

    @classmethod
    def of_result(cls, result: SearchResult, method: Method) -> _Totals:
        """The totals of what was found, with fewer tasks if it has clearly more than it needs."""
        fewer = with_fewer_tasks(result, method)
        least = cls.of(result.planner, result.least)
        if fewer is None:
            return least
        return replace(cls.of(result.planner, fewer), moved=least.moved)

    def exceeds(self, other: _Totals) -> bool:
        """Whether this is more than another in everything."""
        return (
            self.moved > other.moved
            and self.cost > other.cost
            and self.elapsed > other.elapsed
            and self.alone > other.alone
        )

    def may_exceed(self, first: _Totals) -> bool:
        """Whether it may be more than what a search finds that finds this first."""
        moved, alone = (_FIRST_OVER_FOUND * each for each in (self.moved, self.alone))
        return moved > first.moved and alone > first.alone


def with_fewer_tasks(result: SearchResult, method: Method) -> Candidate | None:
    """A tiling of clearly fewer tasks than the one that was found; None if there is none.

    Parameters
    ----------
    result
        What was found.
    method
        The method.
    """
    planner = result.planner
    fewer = planner.candidate(method, planner.settings.task_bytes)
    ratio = planner.settings.acceptance.fewer_tasks_ratio
    if planner.cost(fewer.price) * ratio < planner.cost(result.least.price):
        return fewer
    return None


def where_blocks_are(result: SearchResult, method: Method, before: Price) -> SearchResult | None:
    """What is found if arrays are computed where persisted blocks are, however uneven that is.

    None where that costs no less than what was found: few workers then have most of the work.

    Parameters
    ----------
    result
        What was found for tilings that divide the work evenly.
    method
        The method.
    before
        The price of the input's own chunks.
    """
    planner, settings = result.planner, result.planner.settings
    if not _has_homes(planner.program) or result.least.price.bytes <= before.bytes:
        return None
    anywhere = replace(settings.candidates, follow_balance=math.inf, follow_cheap_balance=math.inf)
    uneven = replace(planner, settings=replace(settings, candidates=anywhere))
    found = search(uneven, method, False)
    least = found.least.price
    if least.bytes >= result.least.price.bytes:
        return None
    return found if planner.cost(least) < planner.cost(result.least.price) else None


def with_fewer_workers(
    planner: MeshPlanner,
    on_all: SearchResult,
    method: Method,
    before: Price,
    elapsed_before: float,
    refused: bool,
) -> list[SearchResult]:
    """What was found on all workers and on fewer, the best first.

    Fewer workers are tried where numbers of them have better grids, and where they may take less
    time than all workers and than the input.  Persisted arrays are on all workers.

    Parameters
    ----------
    planner
        The planner of the first search on all workers.
    on_all
        What was found on all workers.
    method
        The method.
    before
        The price of the input's own chunks.
    elapsed_before
        The time that they take, as :meth:`MeshPlanner.elapsed` has it.
    refused
        Whether the input is better than the plan on all workers.
    """
    price, results = on_all.least.price, [on_all]
    rules, workers = planner.settings.acceptance, planner.mesh.workers
    counts = fewer_workers(workers)
    if not counts or _has_homes(planner.program) or price.bytes < planner.settings.wider.min_bytes:
        return results
    best = _Totals.of_result(on_all, method)
    if refused:
        # the input is better than this plan, of which only the bytes count
        best = _Totals(best.moved, math.inf, math.inf, math.inf)
    best = replace(best, elapsed=min(best.elapsed, elapsed_before) * rules.max_cost_ratio)
    for count in counts:
        tasks = min(sum(before.tasks), *(sum(each.least.price.tasks) for each in results))
        if planner.elapsed(_guess(price, count, workers, tasks)) >= best.elapsed:
            continue
        fewer = _for_fewer(planner, count, method)
        other = fewer.candidate(method, TIE)
        if not best.may_exceed(_Totals.of(fewer, other)):
            continue
        found = search(fewer, method, True)
        totals = _Totals.of_result(found, method)
        if best.exceeds(totals) and not moves_too_much(
            planner.objective, before, found.least.price, rules
        ):
            results.insert(0, found)
            best = totals
    return results


def _guess(price: Price, count: int, workers: int, tasks: int) -> Price:
    """The least that a plan on fewer workers may cost, by that on all workers.

    Work is even, tasks are few, and of the bytes is left as much as of those of a product of three
    equal sizes, which saves most.  Grids with fewer sides cut tiles in fewer tasks.
    """
    return replace(
        price,
        moved=(math.floor(share_moved(count, workers) * price.bytes),),
        handed=(),
        by_worker=(),
        tasks=(tasks // _FEWER_TASKS,),
        loads=(sum(price.loads) / count,) * count + (0.0,) * (workers - count),
    )


def _for_fewer(planner: MeshPlanner, count: int, method: Method) -> MeshPlanner:
    """The planner of the first search for fewer workers."""
    # programs of many sums take long on three axes, see `_wider`
    few = _sums(planner.program) <= planner.settings.wider.few_sums
    mesh = Mesh(method.mesh(count) if few else mesh_shape(count, FEW_AXES))
    return replace(
        planner,
        mesh=mesh,
        workers=count,
        idle=planner.workers - count,
        ordered=searches_all_orders(planner.program, mesh.shape, planner.settings),
    )


def with_recomputation(planner: MeshPlanner, held: Candidate, method: Method) -> Candidate | None:
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
