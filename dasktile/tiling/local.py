"""The second level: the number of tiles into which each worker's share is cut.

The first level has fixed the bytes between workers.  The second level decides about memory (the
tiles and the result of a task must fit), overlap (a worker with several tiles receives one while it
computes another) and tasks (neighbours that cut an axis at different positions need tasks that cut
and join tiles).  Labels of one axis class have the same few part counts to choose from, each a
multiple of the one before, so that most neighbours agree and the cuts of the others nest.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

from dasktile.ir import (
    AxisMap,
    Chunks,
    Edge,
    Follow,
    Kind,
    Node,
    Role,
    Sharding,
    Share,
    Tiling,
    Where,
    bounds,
)
from dasktile.report.formatting import format_excess, format_limit
from dasktile.tiling.candidates import Space, array_labels
from dasktile.tiling.conversion import Conversions, conversion_of
from dasktile.tiling.follow import cuts_along
from dasktile.tiling.grid import Grid, cuts_of, sizes, split
from dasktile.tiling.options import Option
from dasktile.tiling.settings import Settings
from dasktile.tiling.solve.eliminate import Problem, solve
from dasktile.tiling.tiles import Choice, LocalCosts, Parts

#: Length of a label up to which all its cuts are compared, to find labels that are cut alike
#: (chosen: groups of longer ones are few).
SHORT = 16


class MemoryLimitError(ValueError):
    """An operation does not fit the memory limit even in its smallest tiles.

    Examples
    --------
    >>> import dask.array as da
    >>> import dasktile
    >>> import numpy as np
    >>> x = da.from_array(np.ones((1000, 1000)), chunks=(100, 1000))
    >>> dasktile.optimize(da.fft.fft(x, axis=1), workers=2, memory_limit="10 KiB")
    Traceback (most recent call last):
    ...
    dasktile.tiling.local.MemoryLimitError: ...
    """


@dataclass(frozen=True, slots=True)
class _Offer:
    """The part counts that a choice may have, with the cost and the chunks of each.

    Parameters
    ----------
    parts
        Part counts.
    unary
        Cost of each by itself, in bytes.
    chunks, cuts
        Chunks of the array, and chunk sizes of the labels, for each.
    """

    parts: tuple[Parts, ...]
    unary: np.ndarray
    chunks: tuple[Chunks, ...]
    cuts: tuple[tuple[tuple[int, ...], ...], ...]


@dataclass(frozen=True, slots=True)
class LocalCuts:
    """The decision of the second level: a tiling for every node, kept chunks, and their cost.

    Parameters
    ----------
    tilings, kept, kept_at, final
        As in :class:`~dasktile.ir.TiledProgram`.
    tasks, peak, joined
        As in :class:`~dasktile.tiling.plan.Price`.
    """

    tilings: tuple[Tiling, ...]
    kept: dict[int, Chunks]
    kept_at: dict[int, Where]
    final: dict[tuple[int, Chunks], Sharding]
    tasks: tuple[int, ...]
    peak: tuple[int, ...]
    joined: tuple[int, ...]


@dataclass
class Splitter:
    """Chooses local cuts for the mesh tilings of the first level.

    Parameters
    ----------
    space, states
        The variables of the first level and the chosen candidates.
    settings
        Constants.
    memory_limit
        Bytes that one task's tiles and result may take, or None.
    threads
        Tasks that a worker runs at once.
    retile
        True to choose part counts; False to price the input's own chunks.
    placed
        True where tasks run on the workers of the plan.
    moving
        Roots whose blocks are made where they are read, in the chunks of the input graph.
    conversions
        Conversions that were counted for the same program.
    """

    space: Space
    states: Sequence[int]
    settings: Settings
    memory_limit: int | None = None
    threads: int = 1
    retile: bool = True
    placed: bool = False
    moving: Collection[int] = ()
    conversions: Conversions = field(default_factory=Conversions)
    choices: list[Choice] = field(default_factory=list)
    fine: dict[int, int] = field(default_factory=dict)
    families: dict[object, int] = field(default_factory=dict, repr=False)
    costs: LocalCosts = field(init=False)

    def __post_init__(self) -> None:
        self.costs = LocalCosts(
            self.space, self.settings, self.memory_limit, self.threads, self.retile, self.placed
        )
        for variable, state in zip(self.space.variables, self.states, strict=True):
            option = variable.options[state]
            if variable.final is not None:
                self.choices.append(self._final(variable.node, variable.final, option))
            else:
                self.choices.append(self._choice(variable.node, variable.keep, option))

    def run(self) -> LocalCuts:
        """Choose the part counts of all variables.

        Raises
        ------
        MemoryLimitError
            If some node does not fit the memory limit in any tiles.
        """
        if self.retile:
            self._start()
            self._refine_for_overlap()
            self._refine_for_memory()
        shared: dict[object, _Offer] = {}
        offers: list[_Offer] = []
        for choice in self.choices:
            key = (choice.family, self._finest(choice))
            if key not in shared:
                shared[key] = self._offer(choice)
            offers.append(shared[key])
        pairwise: dict[tuple[int, int], np.ndarray] = {}
        tables: dict[object, np.ndarray] = {}
        for source, reader, edge in self._edges():
            made, used = offers[source], offers[reader]
            fused = self._fused(source, reader)
            choice = self.choices[reader]
            pair = (id(made), id(used), edge.axes, edge.chunks, choice.option, fused)
            if pair not in tables:
                tables[pair] = self._conversion_table(choice, edge, made, used, fused)
            table = tables[pair]
            if (source, reader) in pairwise:
                table = table + pairwise[source, reader]
            pairwise[source, reader] = table
        unary = [offer.unary for offer in offers]
        solution = solve(
            Problem(unary, pairwise), self.settings.width_budget, limits=self.settings.solver
        )
        return self._outcome(solution.states, offers)

    # -- candidates ------------------------------------------------------------

    def _choice(self, index: int, keep: bool, option: Option) -> Choice:
        node = self.space.program.nodes[index]
        classes, grids = self.space.axes.members[index], self.space.axes.grids[index]
        is_moving = not keep and index in self.moving
        if keep:
            axis_classes = tuple(
                -1 if axis.label is None else classes[axis.label] for axis in node.out
            )
            _, spots, _ = array_labels(node, self.space.axes.kept[index])
            lengths = node.shape
            fixed: tuple[tuple[int, ...] | None, ...] = (None,) * len(node.shape)
            pinned = [axis.label is not None and self._is_fixed(node, axis.label)
                      for axis in node.out]  # fmt: skip
        else:
            axis_classes, spots = classes, grids
            lengths = tuple(label.size for label in node.labels)
            fixed = tuple(
                label.cuts if is_moving or self._is_fixed(node, number)
                else (label.size,) if label.role is Role.WHOLE else None
                for number, label in enumerate(node.labels)
            )  # fmt: skip
            pinned = []
        if option.follow is not None:
            leader = self.space.program.nodes[option.follow.node]
            along = {place: axis for axis, place in enumerate(option.follow.dims)
                     if place is not None}  # fmt: skip
            fixed = tuple(
                cuts_along(leader.chunks[along[place]], lengths[place]) if place in along else cuts
                for place, cuts in enumerate(fixed)
            )
        mesh_parts = tuple(
            self.space.mesh.parts(option.cutting(label)) for label in range(len(lengths))
        )
        if is_moving:
            mesh_parts = (1,) * len(lengths)
        own: tuple[tuple[int, ...] | None, ...] = (None,) * len(lengths)
        if keep:
            own = tuple(
                cuts if is_pinned else None
                for cuts, is_pinned in zip(node.chunks, pinned, strict=True)
            )
        elif self.retile:
            own = tuple(self._natural(node, label) for label in range(len(lengths)))
        # blocks that cross a cut of the mesh would have no home
        cut_at = (bounds(sizes(*cut)) for cut in zip(lengths, mesh_parts, spots, strict=True))
        own = tuple(
            cuts if cuts is not None and set(at) <= set(bounds(cuts)) else None
            for cuts, at in zip(own, cut_at, strict=True)
        )
        if keep and not self.retile and None not in own:
            fixed = own
        cuts = tuple(map(_cuts_of, spots, lengths, mesh_parts))
        # costs do not depend on where a slice starts
        reads = tuple(
            (tuple(map(_from_start, edge.axes)), producer.shape, producer.itemsize)
            for edge in node.edges
            for producer in (self.space.program.nodes[edge.producer],)
        )
        alike = (keep, option, lengths, cuts, fixed, own, node.kind, node.labels, node.out,
                 node.shape, node.itemsize, reads)  # fmt: skip
        family = self.families.setdefault(alike, len(self.families))
        return Choice(
            index, keep, option, axis_classes, lengths, spots, fixed, own, mesh_parts, family
        )

    def _final(self, index: int, chunks: Chunks, option: Option) -> Choice:
        """An output in the chunks that it must have."""
        shape = self.space.program.nodes[index].shape
        nothing = (None,) * len(shape)
        parts = (self.space.mesh.parts(option.cutting(axis)) for axis in range(len(shape)))
        return Choice(
            node=index,
            keep=True,
            option=option,
            classes=(-1,) * len(shape),
            label_sizes=shape,
            grids=tuple(map(bounds, chunks)),
            fixed=chunks,
            own=nothing,
            mesh_parts=tuple(parts),
            family=self.families.setdefault(("final", option, chunks), len(self.families)),
            final=True,
        )

    def _natural(self, node: Node, label: int) -> tuple[int, ...]:
        """Chunk sizes along a label for which few blocks are joined.

        They are those in which an input is made, if it must be made in them, else those of the
        input graph.
        """
        for edge in node.edges:
            choice = self.choices[self.space.source(edge.producer)]
            made = self.space.program.nodes[edge.producer]
            for axis, spec in enumerate(edge.axes):
                if spec != AxisMap(label) or made.shape[axis] != node.labels[label].size:
                    continue
                along = AxisMap(axis) if choice.keep else made.out[axis]
                if along.label is None or not along.identity:
                    continue
                cuts = choice.own[along.label]
                if cuts is None and not choice.keep and self._is_fixed(made, along.label):
                    cuts = choice.fixed[along.label]
                if cuts is not None:
                    return cuts
        return node.labels[label].cuts

    def _is_fixed(self, node: Node, label: int) -> bool:
        """Whether a label of a node keeps the cuts of the input."""
        pinned = node.labels[label].role is Role.PINNED
        return not self.retile or pinned or node.kind is Kind.OPAQUE

    def _start(self) -> None:
        """Set the part counts of every class to the coarsest refinement of all mesh cuts."""
        for choice in self.choices:
            for klass, parts, fixed in zip(
                choice.classes, choice.mesh_parts, choice.fixed, strict=True
            ):
                if klass >= 0 and fixed is None:
                    self.fine[klass] = math.lcm(self.fine.get(klass, 1), parts)

    def _refine_for_overlap(self) -> None:
        """Double part counts until every worker has the targeted number of tiles."""
        workers = self.space.mesh.workers
        for choice in self.choices:
            node = self.space.program.nodes[choice.node]
            target = self.costs.target(node)
            if choice.keep or target == 1:
                continue
            self._refine_for_threads(choice)
            common = self.costs.common(node)
            while True:
                parts = self._finest(choice)
                each = math.prod(
                    part / held
                    for label, (part, held) in enumerate(zip(parts, choice.mesh_parts, strict=True))
                    if label in common
                )
                if (
                    each >= target
                    or math.prod(parts) >= self.settings.local.many_tiles * target * workers
                ):
                    break
                weights = [
                    float(size) if label in common else 0.0
                    for label, size in enumerate(choice.label_sizes)
                ]
                widest = self._widest(choice, parts, weights)
                if widest is None:
                    break
                self.fine[choice.classes[widest]] *= 2

    def _refine_for_threads(self, choice: Choice) -> None:
        """Double part counts until all threads have tiles that do not wait for each other."""
        node = self.space.program.nodes[choice.node]
        if node.kind is not Kind.CONTRACT:
            return  # all of its tiles are independent
        while self.costs.parallel(choice, parts := self._finest(choice)) < self.threads:
            weights = [
                0.0 if label.role is Role.REDUCE else size / part
                for label, size, part in zip(node.labels, choice.label_sizes, parts, strict=True)
            ]
            widest = self._widest(choice, parts, weights)
            if widest is None:
                return
            self.fine[choice.classes[widest]] *= 2

    def _refine_for_memory(self) -> None:
        """Double part counts until every task fits the memory limit."""
        limit = self.costs.limit
        for choice in self.choices:
            if choice.keep:
                continue
            node = self.space.program.nodes[choice.node]
            while True:
                parts = self._finest(choice)
                need = self.costs.working_set(choice, parts)
                if need <= limit:
                    break
                weights = [
                    need - self.costs.working_set(choice, _doubled(parts, label))
                    for label in range(len(parts))
                ]
                widest = self._widest(choice, parts, [float(weight) for weight in weights])
                if widest is None:
                    # pinned tiles, stored chunks and blocks that are sent cannot be made smaller
                    if self.memory_limit is None or need <= self.memory_limit:
                        break
                    if node.pinned or node.stored is not None or choice.node in self.moving:
                        break
                    raise MemoryLimitError(
                        f"memory_limit of {format_limit(self.memory_limit)} is below one tile:"
                        f" {node.op} of shape {node.shape} needs"
                        f" {format_excess(need, self.memory_limit)} for its smallest tiles"
                    )
                self.fine[choice.classes[widest]] *= 2

    def _widest(self, choice: Choice, parts: Parts, weights: list[float]) -> int | None:
        """The label of the largest weight that can be cut further, or None.

        Of labels of equal weight, those that the mesh cuts come first.
        """
        able = [
            label
            for label, size in enumerate(choice.label_sizes)
            if choice.fixed[label] is None and parts[label] < size and weights[label] > 0
            and len(self.costs.cuts(choice, label, parts[label] * 2))
            > len(self.costs.cuts(choice, label, parts[label]))
        ]  # fmt: skip
        if not able:
            return None

        def weight(label: int) -> float:
            if not self.settings.scarce or not self._is_whole(choice.classes[label]):
                return weights[label]
            return weights[label] * self.settings.local.whole_share

        return max(able, key=lambda label: (weight(label), parts[label], -label))

    def _is_whole(self, klass: int) -> bool:
        """Whether blocks of some input stay whole if other arrays are cut further along an axis.

        A block stays in memory until all tiles that are cut from it have been made.
        """
        for choice, label in self._made.get(klass, ()):
            parts = min(2 * self.fine.get(klass, 1), choice.label_sizes[label])
            if len(self.costs.cuts(choice, label, parts)) < parts:
                return True
        return False

    @cached_property
    def _made(self) -> dict[int, list[tuple[Choice, int]]]:
        """By class of axes, the labels of arrays that are read, or made in blocks of their own."""
        made: dict[int, list[tuple[Choice, int]]] = {}
        for choice in self.choices:
            node = self.space.program.nodes[choice.node]
            if choice.keep or node.edges or (node.stored is None and not node.pinned):
                continue
            for label, klass in enumerate(choice.classes):
                if choice.label_sizes[label] > 1:
                    made.setdefault(klass, []).append((choice, label))
        return made

    def _finest(self, choice: Choice) -> Parts:
        return tuple(
            len(fixed) if fixed is not None
            else min(max(self.fine.get(klass, 1), parts), max(size, 1))
            for klass, parts, fixed, size in zip(
                choice.classes, choice.mesh_parts, choice.fixed, choice.label_sizes, strict=True
            )
        )  # fmt: skip

    def _offer(self, choice: Choice) -> _Offer:
        counts = self._part_counts(choice)
        return _Offer(
            tuple(counts),
            np.array([self.costs.unary(choice, parts) for parts in counts]),
            tuple(self.costs.chunks(choice, parts) for parts in counts),
            tuple(
                tuple(self.costs.cuts(choice, label, count) for label, count in enumerate(parts))
                for parts in counts
            ),
        )

    def _part_counts(self, choice: Choice) -> list[Parts]:
        """Part counts to choose among, at most :attr:`LocalLimits.max_cuts`."""
        most = self.settings.local.max_cuts
        ladders: list[list[int]] = []
        for fixed, own, low, high in zip(
            choice.fixed, choice.own, choice.mesh_parts, self._finest(choice), strict=True
        ):
            if fixed is not None:
                ladders.append([len(fixed)])
                continue
            low = min(low, high)
            steps = [low]
            while steps[-1] * 2 < high and high % (steps[-1] * 2) == 0:
                steps.append(steps[-1] * 2)
            made = [] if own is None else [len(own)]
            # of equal costs the first one is chosen
            steps = [*made, *steps, high] if choice.keep else [*steps, high, *made]
            ladders.append(list(dict.fromkeys(steps)))
        while math.prod(map(len, ladders)) > 4 * most:
            longest = max(range(len(ladders)), key=lambda label: (len(ladders[label]), -label))
            if len(ladders[longest]) == 2:
                break
            del ladders[longest][1]
        offers = list(itertools.islice(itertools.product(*ladders), 64 * most))
        if len(offers) > most:
            # the finest part counts stay, since they need the least memory
            offers = sorted(offers[:-1], key=lambda parts: self.costs.unary(choice, parts))
            offers = [*offers[: most - 1], self._finest(choice)]
        return list(dict.fromkeys(offers))

    # -- costs -----------------------------------------------------------------

    def _fused(self, source: int, reader: int) -> bool:
        """True where Dask fuses a block with the only block that reads it."""
        source_choice, choice = self.choices[source], self.choices[reader]
        if source_choice.keep or choice.keep or source_choice.node in self.space.program.outputs:
            return False
        producer_node, node = (
            self.space.program.nodes[each.node] for each in (source_choice, choice)
        )
        if len(self.space.program.consumers(source_choice.node)) > 1 or producer_node.resident:
            return False
        if len(node.edges) == 1:
            # a chain, if each block is read by one block
            pieces = {axis.label for axis in node.edges[0].axes if axis.label is not None}
            alike = len(pieces) == len(node.labels) and node.kind in (Kind.MAP, Kind.VIEW)
            return alike and producer_node.kind in (Kind.MAP, Kind.VIEW, Kind.CONTRACT)
        return (
            producer_node.kind is Kind.MAP is node.kind
            and sum(edge.producer == source_choice.node for edge in node.edges) == 1
            and len(producer_node.shape) == len(node.labels)
        )

    def _edges(self) -> list[tuple[int, int, Edge]]:
        edges = []
        for reader, choice in enumerate(self.choices):
            node = self.space.program.nodes[choice.node]
            if choice.keep:
                axes = tuple(AxisMap(axis) for axis in range(len(node.shape)))
                made = self.space.source if choice.final else self.space.made.__getitem__
                edges.append((made(choice.node), reader, Edge(choice.node, axes)))
                continue
            for edge in dict.fromkeys(node.edges):
                edges.append((self.space.source(edge.producer), reader, edge))
        return edges

    def _conversion_table(
        self, choice: Choice, edge: Edge, made: _Offer, used: _Offer, fused: bool
    ) -> np.ndarray:
        """Cost, in bytes, of turning a producer's tiles into those that its reader needs.

        It is negative where the producer's tasks are fused into those of the reader.
        """
        producer = self.space.program.nodes[edge.producer]
        tasks, joined = self.conversions.tables(edge, producer.shape, made.chunks, used.cuts)
        if fused:
            saved = np.array([[_count(chunks)] for chunks in made.chunks])
            tasks = np.where(joined == 0, -saved, tasks)
        objective = self.costs.objective
        table = tasks * objective.task
        if self.retile:
            table += np.where(joined > 1, objective.joined_byte * producer.held_bytes, 0)
        # results in the chunks that they must have hold what these chunks hold
        if self.retile and choice.keep and not choice.final:
            need = np.array([self.costs.joined(choice, parts) for parts in used.parts])
            table += np.where(joined > 1, objective.excess(need, self.costs.limit), 0)
        joined_by_each = self.placed and self.space.program.nodes[choice.node].kind is Kind.CONTRACT
        if self._copies(choice, edge) > 1 and not joined_by_each:
            # one worker joins a tile and sends all of it to the others
            table += np.where(joined > 1, producer.held_bytes * (1 - 1 / np.maximum(joined, 1)), 0)
        return table

    def _copies(self, choice: Choice, edge: Edge) -> int:
        """Number of workers that need the same part of an array."""
        work = choice.option.work
        if isinstance(work, Follow):
            return 1
        used = {axis.label for axis in edge.axes}
        several = [
            axis for label, share in enumerate(work.dims) if label not in used for axis in share.by
        ]
        return self.space.mesh.parts((*several, *work.replicated))

    def _outcome(self, states: Sequence[int], offers: Sequence[_Offer]) -> LocalCuts:
        program = self.space.program
        tasks = [0.0] * len(program.nodes)
        peak = [0] * len(program.nodes)
        joined = [0] * len(program.nodes)
        tilings: list[Tiling] = []
        kept: dict[int, Chunks] = {}
        kept_at: dict[int, Where] = {}
        final: dict[tuple[int, Chunks], Sharding] = {}
        for choice, state, offer in zip(self.choices, states, offers, strict=True):
            chunks, parts = offer.chunks[state], offer.parts[state]
            if choice.final:
                where = self._where(choice, chunks)
                assert isinstance(where, Sharding)
                final[choice.node, chunks] = where
            elif choice.keep:
                first = tilings[choice.node]
                where = self._where(choice, chunks)
                is_copied = isinstance(where, Sharding) and bool(where.replicated)
                moved = self.placed and where != first.held_at
                if chunks != first.chunks or moved or is_copied:
                    kept[choice.node] = chunks
                    kept_at[choice.node] = where
                if self.retile and chunks != first.chunks:
                    peak[choice.node] = max(peak[choice.node], self.costs.joined(choice, parts))
            if choice.keep:
                continue
            tasks[choice.node] += self.costs.tasks(choice, parts)
            peak[choice.node] = self.costs.working_set(choice, parts)
            cuts = offer.cuts[state]
            tiling = Tiling(cuts, chunks)
            if choice.node not in self.moving:
                where, held = self._where(choice, cuts), self._held(choice, chunks)
                tiling = replace(tiling, work_at=where, held_at=held)
            tilings.append(tiling)
        for source, reader, edge in self._edges():
            cuts, made = offers[reader].cuts[states[reader]], offers[source].chunks[states[source]]
            shape = program.nodes[edge.producer].shape
            between = conversion_of(edge, cuts, shape, made)
            if between is not None:
                tasks[self.choices[reader].node] += between[0]
                if between[1] > 1:
                    joined[self.choices[reader].node] += program.nodes[edge.producer].held_bytes
            elif self._fused(source, reader):
                tasks[edge.producer] -= _count(made)
        return LocalCuts(
            tuple(tilings),
            kept,
            kept_at,
            final,
            tuple(math.ceil(count) for count in tasks),
            tuple(peak),
            tuple(joined),
        )

    # -- placement -------------------------------------------------------------------

    def _where(self, choice: Choice, cuts: Sequence[Sequence[int]]) -> Where:
        """Which workers have the blocks of the loop nest, or of a kept array."""
        work = choice.option.work
        if isinstance(work, Follow):
            return work
        shares = (
            self._share(choice, label, share.by, sizes)
            for label, (share, sizes) in enumerate(zip(work.dims, cuts, strict=True))
        )
        return Sharding(tuple(shares), work.replicated)

    def _held(self, choice: Choice, chunks: Chunks) -> Where:
        """Which workers have the blocks of the result."""
        held = choice.option.held
        if isinstance(held, Follow):
            return held
        out = self.space.program.nodes[choice.node].out
        return Sharding(
            tuple(
                Share()
                if axis.label is None
                else self._share(choice, axis.label, share.by, sizes, axis.width)
                for axis, share, sizes in zip(out, held.dims, chunks, strict=True)
            )
        )

    def _share(
        self,
        choice: Choice,
        label: int,
        by: tuple[int, ...],
        sizes: Sequence[int],
        width: int = 1,
    ) -> Share:
        """How these mesh axes divide the blocks of a label."""
        if not by:
            return Share()
        parts = self.space.mesh.parts(by)
        grid = choice.grids[label]
        return Share(by, _runs(choice.label_sizes[label], parts, grid, tuple(sizes), width))


@lru_cache(maxsize=4096, typed=True)
def _runs(
    size: int, parts: int, grid: Grid, lengths: tuple[int, ...], width: int
) -> tuple[int, ...]:
    """The number of blocks, of some lengths, that start in each part of a label."""
    edges = split(size, parts, grid)
    runs = [0] * parts
    for start in bounds(lengths)[:-1]:
        runs[min(max(bisect_right(edges, start // width) - 1, 0), parts - 1)] += 1
    return tuple(runs)


def _count(chunks: Chunks) -> int:
    return math.prod(map(len, chunks))


def _doubled(parts: Parts, label: int) -> Parts:
    return tuple(count * 2 if position == label else count for position, count in enumerate(parts))


def _from_start(axis: AxisMap) -> AxisMap:
    """The map of a slice that starts at the first element."""
    return replace(axis, start=0) if axis.start else axis


def _cuts_of(grid: Grid, length: int, parts: int) -> object:
    """`cuts_of` for all numbers of parts of a short label, and for that of the mesh."""
    if length > SHORT:
        return grid
    return cuts_of(grid, length, (*range(1, length + 1), parts))
