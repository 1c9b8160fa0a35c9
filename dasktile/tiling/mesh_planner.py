"""The tilings of a program on one mesh of workers: those that a method chooses, and prices."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from dasktile.ir import Chunks, Kind, Program, TiledProgram, bounds, workers_of_positions
from dasktile.tiling.busiest import received_by_worker
from dasktile.tiling.candidates import Space
from dasktile.tiling.conversion import Conversions
from dasktile.tiling.cost import TIE, Costs
from dasktile.tiling.grid import free_axes, own_axes
from dasktile.tiling.local import LocalCuts, Splitter
from dasktile.tiling.mesh import Mesh
from dasktile.tiling.methods import Method, get
from dasktile.tiling.objective import Objective, stock_slowdown
from dasktile.tiling.plan import Price
from dasktile.tiling.reads import Read, reads_of
from dasktile.tiling.rematerialize import spilled_bytes
from dasktile.tiling.replicate import find_replicas
from dasktile.tiling.rewrite import ExtendedProgram, Replica, extend
from dasktile.tiling.settings import Settings
from dasktile.tiling.solve.problem import Solution


@dataclass(frozen=True, slots=True)
class SearchTables:
    """What searches of the same tilings with several settings share.

    Parameters
    ----------
    numbers
        What the tilings that are searched depend on, with a number in its place: it has a whole
        program, which takes long to look up.
    costs
        Tables of costs, by that number.
    solutions
        Solutions, by the same, the method, and the settings of the search.
    own
        The input's own chunks, by the same; they are priced with the settings of the first search.
    conversions
        Conversions of tiles into others.
    """

    numbers: dict[Hashable, int] = field(default_factory=dict)
    costs: dict[int, Costs] = field(default_factory=dict)
    solutions: dict[Hashable, Solution] = field(default_factory=dict)
    own: dict[Hashable, Candidate] = field(default_factory=dict)
    conversions: Conversions = field(default_factory=Conversions)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tiling with its price.

    Parameters
    ----------
    tiled, price, solution
        The tiling, what it costs, and the solution that it is made from.
    receivers
        Finds out the bytes that each worker receives, which takes as long as some prices.
    extended
        The program with nodes added for replicas, or None where none were added.
    """

    tiled: TiledProgram
    price: Price
    solution: Solution
    receivers: Callable[[], tuple[float, ...]]
    extended: ExtendedProgram | None = None

    def by_worker(self) -> Candidate:
        """The same with the bytes that each worker receives in its price."""
        if self.price.by_worker:
            return self
        return replace(self, price=replace(self.price, by_worker=self.receivers()))


@dataclass
class MeshPlanner:
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
        numbers = self.tables.numbers
        self._key = numbers.setdefault(self._searched_key(), len(numbers))
        costs = self.tables.costs.get(self._key)
        if costs is None:
            costs = self.tables.costs[self._key] = Costs(self._space())
        self.costs = costs.where_scarce() if self.settings.scarce else costs
        self.space = self.costs.space
        self.objective = Objective(self.settings, self.threads)
        self._by_states: dict[tuple[int, ...], Candidate] = {}

    def _space(self) -> Space:
        """The tilings that are searched."""
        if self.retile:
            # meshes of methods that know powers of two only may have other numbers of workers
            is_other = self.workers % self.mesh.workers
            workers = self.mesh.workers if is_other else self.workers
            axes = free_axes(self.program, workers, self.settings.candidates, self.final)
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

    def candidate(self, method: Method, tile_weight: float) -> Candidate:
        """The tiling of a method, with its local cuts and its price.

        Two weights of tiles often lead to the same solution, whose local cuts are found once.
        """
        solution = self._solution(method, tile_weight)
        if self.space.truncated or self.costs.overcounts:
            # candidates were left out, or too much was counted: nothing is proven
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

    def own_chunks(self) -> Candidate:
        """The input's own chunks."""
        key = self._key, self.workers, self.idle
        if key not in self.tables.own:
            self.tables.own[key] = self.candidate(get("auto"), TIE)
        return self.tables.own[key]

    def _solution(self, method: Method, tile_weight: float) -> Solution:
        """What a method chooses, for tiles of this weight."""
        key = self._key, method, tile_weight, self.settings.scarce
        solution = self.tables.solutions.get(key)
        if solution is None:
            solution = method.choose(self.costs, self.settings, tile_weight)
            self.tables.solutions[key] = solution
        return solution

    def _cut(self, solution: Solution) -> Candidate:
        """The local cuts of a solution, and their price."""
        local = Splitter(
            self.space,
            solution.states,
            self._reads,
            self.settings,
            self.memory_limit,
            self.threads,
            self.retile,
            self.placed,
            self.costs.moving(solution.states),
            self.tables.conversions,
        ).run()
        workers = self.workers + self.idle
        tiled = TiledProgram(
            self.program, self.mesh.shape, local.tilings, local.kept, local.kept_at, local.final,
            planned_for=None if workers == self.mesh.workers else workers,
        )  # fmt: skip
        states = solution.states
        # without the planner, which keeps the candidate: a cycle is freed by a collection only
        receivers = partial(
            _receivers, self.costs, self.mesh.workers, self.workers, self.idle, states
        )
        return Candidate(tiled, self._price(states, local), solution, receivers)

    def with_replicas(
        self, replicas: Sequence[Replica], method: Method, tile_weight: float
    ) -> Candidate:
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
            loads=tuple(self.node_loads(states).sum(axis=0).tolist()),
            peak=local.peak,
            spilled=self._spilled,
            joined=local.joined,
            handed=self.costs.handed(states),
        )

    def node_loads(self, states: Sequence[int]) -> npt.NDArray[np.float64]:
        """Operations of every worker for every node: (nodes, workers), idle workers last.

        Of a mesh with more positions, some workers have several.
        """
        loads = self.costs.loads(states)
        return _on_workers(loads, self.mesh.workers, self.workers, self.idle)

    @cached_property
    def _reads(self) -> list[Read]:
        """The reads between the variables."""
        return reads_of(self.space)

    @cached_property
    def _spilled(self) -> int:
        """Bytes spilled and read back because arrays are held from one pass to the next."""
        if self.room is None:
            return 0
        return spilled_bytes(self.program, self.room * min(self.mesh.workers, self.workers))

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


def _receivers(
    costs: Costs, positions: int, workers: int, idle: int, states: Sequence[int]
) -> tuple[float, ...]:
    """Bytes that each worker receives under an assignment."""
    received = received_by_worker(costs, states)
    return tuple(_on_workers(received, positions, workers, idle).tolist())


def _on_workers(
    of_positions: npt.NDArray[np.float64], positions: int, workers: int, idle: int
) -> npt.NDArray[np.float64]:
    """Amounts of positions of the mesh, its last axis, as those of workers, idle ones last."""
    on_workers = np.zeros((*of_positions.shape[:-1], workers + idle))
    if positions <= workers:
        on_workers[..., :positions] = of_positions
        return on_workers
    for position, worker in enumerate(workers_of_positions(positions, workers)):
        on_workers[..., worker] += of_positions[..., position]
    return on_workers
