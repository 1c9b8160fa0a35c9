"""The candidate tilings of every node, and the box of every array that each gives a worker.

A *variable* is either a node's own tiling or, for an array with several readers, the tiling in
which it is kept for them.  A candidate names the label that each mesh axis cuts.  This determines
for every worker the box of the loop nest that it runs, the box of the result that it holds and
the box of every input that it needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from dasktile.ir import AxisMap, Chunks, Edge, Follow, Kind, Label, Node, Program, Role, bounds
from dasktile.tiling.boxes import BoxBuilder, Boxes, Known, take
from dasktile.tiling.extents import Extent
from dasktile.tiling.follow import candidates, kept, leaders
from dasktile.tiling.followed import Followed, followed, followed_copy, resident
from dasktile.tiling.grid import Axes, Grid, Steps, cuts_of
from dasktile.tiling.lines import Lines, lines_of
from dasktile.tiling.mesh import Mesh
from dasktile.tiling.objective import effort
from dasktile.tiling.options import (
    REPLICATED,
    Option,
    Options,
    assigned,
    axis_uses,
    divided,
    in_two_shardings,
    reduced_labels,
)
from dasktile.tiling.settings import CandidateLimits, Settings

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Variable:
    """One decision of the first level: the tiling of a node, or of an array for its readers.

    Parameters
    ----------
    node
        Index of the node.
    keep
        True for the tiling in which the node's array is kept for its readers.
    options
        The candidates: first those of boxes, then those that follow an array.
    work
        Boxes of the loop nest.
    held
        Boxes of the result.
    needs
        For every edge, the boxes read; None where it is unknown which blocks a block reads.
    followed
        Blocks of the candidates that follow an array.
    held_second
        Boxes of the result in its second sharding, where some candidates have one; inactive for
        the other candidates.
    boxed
        The candidates of boxes.
    final
        For the placement of an output in the chunks that it must have: these chunks.
    """

    node: int
    keep: bool
    options: tuple[Option, ...]
    work: Boxes
    held: Boxes
    needs: tuple[Boxes | None, ...]
    followed: tuple[Followed, ...] = ()
    held_second: Boxes | None = None
    boxed: Options = field(default_factory=lambda: Options(()), repr=False, compare=False)
    final: Chunks | None = None


@dataclass
class Space:
    """All variables of a program.

    Parameters
    ----------
    program, mesh, axes
        The program, the worker mesh, and where labels may be cut.
    settings
        Constants of the cost model and limits of the search.
    copy_limit
        Bytes of one replicated array that a single worker may hold, or None.
    allow_replicas
        Whether arrays may be replicated in two shardings.
    lean
        Whether to leave out tilings that hardly ever pay: sums that end on one worker, and
        arrays that are kept on some workers only although they could be divided.
    ordered
        Whether several mesh axes cut a label in every order, and not in that of the mesh only.
    final
        For every output, the chunks that it must have, or None; empty for none of them.

    Attributes
    ----------
    made
        For every node, the index of the variable of its own tiling.
    kept
        For every node with several readers, the index of the variable of the kept array.
    small
        Nodes that one worker may compute.
    truncated
        Whether some candidates were left out.  Bounds then do not hold for the whole problem.
    """

    program: Program
    mesh: Mesh
    axes: Axes
    settings: Settings
    copy_limit: int | None = None
    allow_replicas: bool = False
    lean: bool = False
    ordered: bool = False
    final: tuple[Chunks | None, ...] = ()
    variables: list[Variable] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    truncated: bool = False
    kept: dict[int, int] = field(default_factory=dict)
    _cache: dict[object, tuple[Options, Boxes, Boxes, tuple[Boxes | None, ...]]] = field(
        default_factory=dict, repr=False
    )
    _followed: dict[object, Followed | None] = field(default_factory=dict, repr=False)
    #: The first grids of nodes that are cut alike, so that these share their ranges.
    _grids: dict[object, Sequence[Grid]] = field(default_factory=dict, repr=False)
    _known: Known = field(default_factory=Known, repr=False)
    _copies: dict[object, Followed] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.leaders = leaders(self.program)
        # without persisted arrays, nothing follows
        self.lines = lines_of(self.program) if self.leaders else Lines((), {})
        self.small = small_nodes(self.program, self.mesh.workers, self.settings)
        for index, node in enumerate(self.program.nodes):
            self.made.append(len(self.variables))
            self.variables.append(self._own(index, node, index in self.small))
            if len(self.program.consumers(index)) > 1:
                self.kept[index] = len(self.variables)
                self.variables.append(self._keep(index, node))
        for index, chunks in dict.fromkeys(zip(self.program.outputs, self.final, strict=False)):
            if chunks is not None and self._is_handed_over(index, chunks):
                self.variables.append(self._final(index, chunks))

    def source(self, node: int) -> int:
        """Index of the variable that determines where readers of a node's array find it."""
        return self.kept.get(node, self.made[node])

    def _own(self, index: int, node: Node, small: bool) -> Variable:
        grids = self.axes.grids[index]
        shapes = tuple(self.program.nodes[edge.producer].shape for edge in node.edges)
        if node.homes is not None:
            return self._located(index, node)
        follows = self._follows(index, node)
        key = (node.labels, node.out, node.shape, grids, small, shapes, node.kind,
               tuple(replace(edge, producer=0) for edge in node.edges))  # fmt: skip
        if key not in self._cache:
            self._cache[key] = self._boxed(node, grids, small, shapes)
        boxed = self._cache[key]
        labels = [axis.label for axis in node.out]
        following = tuple(Option(follow, follow.seen(labels)) for follow, _ in follows)
        return Variable(
            index,
            False,
            boxed[0].options + following,
            *boxed[1:],
            followed=tuple(blocks for _, blocks in follows),
            boxed=boxed[0],
        )

    def _boxed(
        self, node: Node, grids: Sequence[Grid], small: bool, shapes: Sequence[tuple[int, ...]]
    ) -> tuple[Options, Boxes, Boxes, tuple[Boxes | None, ...]]:
        """The candidates of boxes of a node, with the boxes of its work, its result and reads."""
        counts = self.mesh.counts
        cuts = tuple(
            cuts_of(grid, label.size, counts)
            for grid, label in zip(grids, node.labels, strict=True)
        )
        # nodes that differ in what they read, as slices of one array, share the others
        alike = ("made", node.labels, node.out, node.shape, cuts, small, node.kind)
        boxes = BoxBuilder(
            self.mesh, node.labels, self._grids.setdefault(alike, grids), self._known
        )
        if alike in self._cache:
            options, work, held, _ = self._cache[alike]
            return options, work, held, self._needs(node, boxes, options, shapes)
        every = assigned(node, self.settings.candidates, len(self.mesh.shape), self.ordered)
        work = boxes.work(every)
        chosen = _balanced(
            work, node.iterations, self.mesh.workers, small, self.settings.candidates
        )
        if self.lean and not small:
            divided = _scattered(node, every.options, chosen)
            self.truncated |= len(divided) < len(chosen)
            chosen = divided
        is_large = len(chosen) > self.settings.max_states
        if is_large:
            self.truncated = True
            able = every.some(chosen)
            surface = _surface(boxes, self._needs(node, boxes, able, shapes), node, able)
            most = self.settings.max_states
            chosen = chosen[_varied(able.options, len(node.labels), self.mesh, surface, most)]
        options = every.some(chosen)
        work, held = take(work, chosen), boxes.held(options, node.out, node.shape)
        if not is_large:
            self._cache[alike] = options, work, held, ()
        return options, work, held, self._needs(node, boxes, options, shapes)

    def _needs(
        self, node: Node, boxes: BoxBuilder, options: Options, shapes: Sequence[tuple[int, ...]]
    ) -> tuple[Boxes | None, ...]:
        """The boxes that each worker needs along the edges of a node."""
        return tuple(
            self._need(node, edge, boxes, options, shape)
            for edge, shape in zip(node.edges, shapes, strict=True)
        )

    def _follows(self, index: int, node: Node) -> list[tuple[Follow, Followed]]:
        """Arrays that a node may follow, with the blocks that workers then have."""
        if not self.leaders:
            return []
        follows = []
        limits = self.settings.candidates
        shapes = [self.program.nodes[edge.producer].shape for edge in node.edges]
        ways = candidates(
            self.program, self.lines, self.leaders, index, self.axes.free, limits.max_followed
        )
        for follow in ways:
            array = self.program.nodes[follow.node]
            edges = tuple((edge.axes, edge.within, edge.picks) for edge in node.edges)
            key = (follow, follow.cuts, node.labels, node.out, node.shape, edges, tuple(shapes),
                   node.kind, node.groups)  # fmt: skip
            if key not in self._followed:
                is_product = node.kind is Kind.CONTRACT
                most = limits.follow_balance if is_product else limits.follow_cheap_balance
                if not self.axes.free:
                    # the placement of the input's own chunks is fixed, however uneven it is
                    most = math.inf
                self._followed[key] = followed(node, follow, array, shapes, self.mesh.workers, most)
            blocks = self._followed[key]
            if blocks is not None:
                follows.append((follow, blocks))
        return follows

    def _located(self, index: int, node: Node) -> Variable:
        """A persisted array with fixed placement: one candidate."""
        follow = Follow(node.name, index, tuple(range(len(node.shape))), cuts=node.chunks)
        nowhere = BoxBuilder(self.mesh, node.labels, self.axes.grids[index]).work(Options([]))
        return Variable(
            index,
            False,
            (Option(follow, follow),),
            nowhere,
            nowhere,
            (),
            (resident(node, self.mesh.workers),),
        )

    def _need(
        self,
        node: Node,
        edge: Edge,
        boxes: BoxBuilder,
        options: Options,
        shape: tuple[int, ...],
    ) -> Boxes | None:
        """The box that each worker needs along an edge."""
        if not unknown_relation(node, edge):
            return boxes.need(options, edge.axes, shape, edge.within, edge.picks)
        if not aligned(node, edge):
            return None
        # block by block, in other sizes: a stencil, a trim
        return _resized(boxes.work(options), node.labels, edge)

    def _is_handed_over(self, index: int, chunks: Chunks) -> bool:
        """Whether an output may have to be brought into the chunks that it must have."""
        node = self.program.nodes[index]
        keeps = not self.axes.free or node.homes is not None
        return not (keeps and chunks == node.chunks)

    def _final(self, index: int, chunks: Chunks) -> Variable:
        """Placements of an output in the chunks that it must have."""
        options, held = self.placements(chunks)
        follows, copies = self._kept(index, chunks)
        return Variable(
            index,
            True,
            options.options + follows,
            held,
            held,
            (held,),
            copies,
            boxed=options,
            final=chunks,
        )

    def placements(self, chunks: Chunks) -> tuple[Options, Boxes]:
        """All ways in which the mesh can divide the blocks of an array, which must not be cut."""
        labels = tuple(Label(sum(sizes), Role.PINNED, sizes) for sizes in chunks)
        maps = tuple(AxisMap(axis) for axis in range(len(labels)))
        choices = [None, *(axis for axis, sizes in enumerate(chunks) if len(sizes) > 1)]
        options = Options(divided(choices, len(chunks), len(self.mesh.shape), self.ordered))
        layout = BoxBuilder(self.mesh, labels, tuple(bounds(sizes) for sizes in chunks))
        return options, layout.need(options, maps, tuple(label.size for label in labels))

    def _keep(self, index: int, node: Node) -> Variable:
        """Replicas and other cuts of an array that several nodes read."""
        own = self.axes.kept[index]
        labels, grids, out = array_labels(node, own)
        limits = self.settings.candidates
        readers = len(self.program.consumers(index))
        paired = self.allow_replicas and readers >= limits.replica_readers
        key = ("keep", labels, grids, node.itemsize, paired)
        if key not in self._cache:
            axes = len(self.mesh.shape)
            lengths = [axis for axis, label in enumerate(labels) if label.size > 1]
            options = divided([None, REPLICATED, *lengths], len(labels), axes, self.ordered)
            if self.lean and node.size >= self.mesh.workers:
                self.truncated = True
                options = [option for option in options if option.uses(axes)]
            boxes = BoxBuilder(self.mesh, labels, grids)
            if paired:
                options += in_two_shardings(options, axes, limits.max_paired)
            shared = Options(options)
            held = boxes.held(shared, out, node.shape)
            second = boxes.held_second(shared, out, node.shape) if paired else None
            if self.copy_limit is not None:
                most = held.volume()
                if second is not None:
                    most = most + second.volume()
                copies = np.array([option.is_replicated for option in options], dtype=bool)
                within = most.max(axis=1) * node.itemsize <= self.copy_limit
                chosen = np.flatnonzero(~copies | within)
                options = [options[choice] for choice in chosen]
                held = take(held, chosen)
                second = None if second is None else take(second, chosen)
            needs = (held,) if second is None else (held, second)
            self._cache[key] = (Options(options), held, held, needs)
        boxed = self._cache[key]
        follows, places = self._kept(index, None if self.axes.free else node.chunks)
        return Variable(
            index,
            True,
            boxed[0].options + follows,
            *boxed[1:],
            followed=places,
            held_second=boxed[3][1] if len(boxed[3]) > 1 else None,
        )

    def _kept(
        self, index: int, chunks: Chunks | None
    ) -> tuple[tuple[Option, ...], tuple[Followed, ...]]:
        """Arrays where a node's array may be kept, in some chunks, with the blocks of workers."""
        node, most = self.program.nodes[index], self.settings.candidates.max_followed
        follows = tuple(kept(self.program, self.lines, self.leaders, index, chunks, most))
        copies = tuple(self._copy(node, follow) for follow in follows)
        return tuple(Option(follow, follow) for follow in follows), copies

    def _copy(self, node: Node, follow: Follow) -> Followed:
        key = (follow, follow.cuts, node.shape)
        if key not in self._copies:
            array = self.program.nodes[follow.node]
            self._copies[key] = followed_copy(node, follow, array, self.mesh.workers)
        return self._copies[key]


def _resized(work: Boxes, labels: Sequence[Label], edge: Edge) -> Boxes:
    """The boxes that the same blocks have in an array whose chunks have other sizes."""
    extents = []
    chunks = edge.chunks or ()
    for extent, label, sizes, first in zip(
        work.extents, labels, chunks, edge.first or (0,) * len(chunks), strict=True
    ):
        places, edges = np.asarray(bounds(label.cuts)), np.asarray(bounds(sizes))[first:]
        lo, hi = (edges[np.searchsorted(places, bound)] for bound in (extent.lo, extent.hi))
        extents.append(Extent(lo, hi, extent.of))
    return replace(work, extents=tuple(extents))


def unknown_relation(node: Node, edge: Edge) -> bool:
    """True where it is unknown which blocks of an array a node's blocks read."""
    return (
        edge.chunks is not None
        and all(axis.label is None for axis in edge.axes)
        and (edge.spread or any(len(label.cuts) > 1 for label in node.labels))
    )


def reads_unknown_blocks(node: Node) -> bool:
    """True where a node may receive more along an edge than is counted.

    Blocks of other sizes than those that they are made of, one by one, may have halos.
    """
    return any(
        unknown_relation(node, edge) and not (aligned(node, edge) and edge.chunks == node.chunks)
        for edge in node.edges
    )


def aligned(node: Node, edge: Edge) -> bool:
    """True where a block of an array belongs to every block of a node that reads it whole."""
    read = tuple(len(sizes) for sizes in edge.chunks or ())
    made = tuple(len(sizes) for sizes in node.chunks)
    if made != tuple(len(label.cuts) for label in node.labels):
        return False
    if not edge.first:
        return read == made
    return all(
        first + count <= most for first, count, most in zip(edge.first, made, read, strict=True)
    )


def small_nodes(program: Program, workers: int, settings: Settings) -> set[int]:
    """Nodes with so little work that one worker may do all of it.

    These are the smallest nodes, as many as together stay below a share
    (:attr:`CandidateLimits.small_share`) of one worker's operations and of its bytes written.
    """
    work = [node.iterations * effort(node, settings.model) for node in program.nodes]
    written = [float(node.nbytes) for node in program.nodes]
    small = set(range(len(program.nodes)))
    for measure in (work, written):
        budget = settings.candidates.small_share * sum(measure) / workers
        for index in sorted(small, key=lambda index: (measure[index], index)):
            budget -= measure[index]
            if budget < 0:
                small.discard(index)
    return small


def choices(node: Node, limits: CandidateLimits) -> int:
    """Number of ways in which one axis of a mesh may divide a node."""
    return len(axis_uses(node, limits))


def _balanced(
    work: Boxes, iterations: int, workers: int, small: bool, limits: CandidateLimits
) -> Ints:
    """Indices of the candidates that divide the work evenly, or as evenly as any does."""
    everything = np.arange(len(work), dtype=np.int64)
    if small or iterations == 0:
        return everything
    uneven = work.volume().max(axis=1) * workers / iterations
    least = float(uneven.min())
    return everything[uneven <= max(limits.balance, least * limits.balance_slack)]


def _scattered(node: Node, options: Sequence[Option], chosen: Ints) -> Ints:
    """Candidates whose sums are scattered; all candidates if there are none."""
    reduced = reduced_labels(node.labels)
    divided = [
        choice
        for choice in chosen
        if options[choice].scattered(reduced) == options[choice].partial(reduced)
    ]
    return np.array(divided, dtype=np.int64) if divided else chosen


def array_labels(
    node: Node, grids: Sequence[Grid]
) -> tuple[tuple[Label, ...], tuple[Grid, ...], tuple[AxisMap, ...]]:
    """Labels, grids and maps of a kept array: one label for each of its axes.

    They may be cut where the labels of the node that makes the array may be.
    """
    labels, array_grids = [], []
    for axis, size in zip(node.out, node.shape, strict=True):
        grid = None if axis.label is None else grids[axis.label]
        if isinstance(grid, int):
            grid *= axis.width
        elif isinstance(grid, Steps):
            grid = grid if axis.width == 1 else None
        elif grid is not None:
            grid = type(grid)(position * axis.width for position in grid)
        labels.append(Label(size, Role.FREE, (size,)))
        array_grids.append(grid)
    out = tuple(AxisMap(position) for position in range(len(labels)))
    return tuple(labels), tuple(array_grids), out


def _surface(
    boxes: BoxBuilder, needs: Sequence[Boxes | None], node: Node, options: Options
) -> npt.NDArray[np.float64]:
    """Elements that the worker with the most of them reads and writes, for every candidate."""
    made = boxes.need(options, [AxisMap(axis.label) for axis in node.out], node.shape)
    total = made.volume().max(axis=1)
    for need in needs:
        if need is not None:
            total = total + need.volume().max(axis=1)
    return total


def _varied(
    options: Sequence[Option],
    labels: int,
    mesh: Mesh,
    surface: npt.NDArray[np.float64],
    most: int,
) -> Ints:
    """Indices of the candidates to keep where there are too many.

    Candidates are grouped by the number of parts of each label.  The best of every group are
    kept, then the second best, and so on, since any group may fit the neighbours.
    """
    seen: dict[object, int] = {}
    rank = np.empty(len(options), dtype=np.int64)
    for place in np.argsort(surface, kind="stable"):
        alike = tuple(mesh.parts(options[place].cutting(label)) for label in range(labels))
        rank[place] = seen[alike] = seen.get(alike, -1) + 1
    return np.sort(np.lexsort((surface, rank))[:most])
