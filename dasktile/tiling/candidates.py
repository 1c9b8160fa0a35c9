"""The candidate tilings of every node, and which box of every array each worker then has.

A *variable* is either a node's own tiling or, for an array with several readers, the
tiling it is kept in for them.  A candidate says for each axis of the mesh which label it
cuts; from that follow, for every worker, the box of the loop nest it runs, the box of the
result it holds and the box of every input it needs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from dasktile.ir import AxisMap, Chunks, Edge, Follow, Kind, Label, Node, Program, Role, bounds
from dasktile.tiling.follow import (
    UNEVEN,
    Followed,
    candidates,
    followed,
    followed_copy,
    kept,
    leaders,
    resident,
)
from dasktile.tiling.grid import Axes, Grid, split
from dasktile.tiling.mesh import Mesh

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: Largest worker's work over the mean that a candidate may have; more only where the
#: chunks that a node must keep allow no better.
BALANCE = 1.1

#: Operations in the time of one byte to or from memory: a core multiplies matrices at tens
#: of GFLOP/s and adds arrays at a few GB/s.
BYTE_WORK = 5.0

#: Readers that an array must have to be kept in two tilings at once.
SEVERAL = 3

#: Tilings of one array that are paired each with each.
MOST_PAIRED = 9

#: Nodes that together do less than this share of one worker's work need not be divided.
SMALL = 0.05


@dataclass(frozen=True, slots=True)
class Option:
    """One candidate.

    Parameters
    ----------
    mesh
        For every mesh axis, the label it cuts or None.
    scatter
        For every mesh axis that cuts a ``REDUCE`` label, the output axis along which
        the sum is divided again, or None where it ends on one worker.
    replicated
        For every mesh axis without a label, True where each worker along it has a copy
        and False where only the first has it.
    follow
        The array that all work goes to instead; nothing is then cut by the mesh.
    also
        For an array that is kept in two tilings at once, the second: for every mesh axis,
        the axis of the array that it cuts.
    """

    mesh: tuple[int | None, ...]
    scatter: tuple[int | None, ...]
    replicated: tuple[bool, ...]
    follow: Follow | None = None
    second_mesh: tuple[int | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Boxes:
    """A box per candidate and worker: bounds (candidates, workers, axes), and who has one.

    `density` is the share of the elements within the bounds that are meant (a strided
    slice touches every other one).
    """

    lo: Ints
    hi: Ints
    active: Bools
    density: float = 1.0

    def volume(self) -> npt.NDArray[np.float64]:
        """Elements, (candidates, workers)."""
        elements: npt.NDArray[np.float64] = np.prod(self.hi - self.lo, axis=2, dtype=np.float64)
        return elements * self.active * self.density


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice to make.

    Parameters
    ----------
    node
        Index of the node.
    keep
        True for the choice of how the node's array is kept for its readers.
    options
        The candidates.
    work
        The loop nest's box.
    held
        The result's box.
    needs
        For every edge, the box read; None where nothing ties the node's blocks to those
        of the array.
    followed
        The same for the candidates that follow an array; they come after those of boxes.
    also
        The result's second box, where some candidates have one; nobody's for the others.
    """

    node: int
    keep: bool
    options: tuple[Option, ...]
    work: Boxes
    held: Boxes
    needs: tuple[Boxes | None, ...]
    followed: tuple[Followed, ...] = ()
    held_second: Boxes | None = None


@dataclass
class Space:
    """All variables of a program.

    Parameters
    ----------
    program, mesh, axes
        What is tiled, for whom, and where it may be cut.
    max_states
        Candidates of one variable at the most.
    copy_limit
        Bytes of one array that a single worker may hold copied, or None.
    twice
        Whether arrays may be kept in two tilings at once.
    lean
        Whether to leave out tilings that hardly ever pay: sums that end on one worker, and
        arrays that are kept on some workers only, where they could be divided.

    Attributes
    ----------
    truncated
        Whether some node has more candidates than that: nothing is known of those left out.
    """

    program: Program
    mesh: Mesh
    axes: Axes
    max_states: int
    copy_limit: int | None = None
    allow_replicas: bool = False
    lean: bool = False
    variables: list[Variable] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    truncated: bool = False
    kept: dict[int, int] = field(default_factory=dict)
    _cache: dict[object, tuple[tuple[Option, ...], Boxes, Boxes, tuple[Boxes | None, ...]]] = field(
        default_factory=dict, repr=False
    )
    _followed: dict[object, Followed | None] = field(default_factory=dict, repr=False)
    _copies: dict[object, Followed] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.leaders = leaders(self.program)
        small = small_nodes(self.program, self.mesh.workers)
        for index, node in enumerate(self.program.nodes):
            self.made.append(len(self.variables))
            self.variables.append(self._own(index, node, index in small))
            if len(self.program.consumers(index)) > 1:
                self.kept[index] = len(self.variables)
                self.variables.append(self._keep(index, node))

    def source(self, node: int) -> int:
        """The variable that says where readers of a node's array find it."""
        return self.kept.get(node, self.made[node])

    def _own(self, index: int, node: Node, small: bool) -> Variable:
        grids = self.axes.grids[index]
        shapes = tuple(self.program.nodes[edge.producer].shape for edge in node.edges)
        if node.homes is not None:
            return self._located(index, node)
        follows = self._follows(index, node)
        key = (node.labels, node.out, node.shape, grids, small, shapes, node.kind,
               tuple((edge.axes, edge.chunks, edge.within) for edge in node.edges))  # fmt: skip
        if key not in self._cache:
            options = list(_options(node, self.mesh))
            boxes = _Layout(self.mesh, node.labels, grids)
            work = boxes.work(options)
            chosen = _balanced(work, node.iterations, self.mesh.workers, small)
            if self.lean and not small:
                divided = _scattered(node, options, chosen)
                self.truncated |= len(divided) < len(chosen)
                chosen = divided
            needs = [self._need(node, edge, boxes, options, shape)
                     for edge, shape in zip(node.edges, shapes, strict=True)]  # fmt: skip
            if len(chosen) > self.max_states:
                self.truncated = True
                surface = _surface(boxes, needs, node, options)[chosen]
                alike = [options[choice] for choice in chosen]
                chosen = chosen[_varied(alike, self.mesh, surface, self.max_states)]
            options = [options[choice] for choice in chosen]
            held = boxes.held(options, node.out, node.shape)
            self._cache[key] = (tuple(options), _take(work, chosen), held,
                                tuple(None if need is None else _take(need, chosen)
                                      for need in needs))  # fmt: skip
        boxed = self._cache[key]
        following = tuple(self._following(follow) for follow, _ in follows)
        return Variable(
            index,
            False,
            boxed[0] + following,
            *boxed[1:],
            followed=tuple(blocks for _, blocks in follows),
        )

    def _following(self, follow: Follow) -> Option:
        nothing = (None,) * len(self.mesh.shape)
        return Option(nothing, nothing, (False,) * len(self.mesh.shape), follow)

    def _follows(self, index: int, node: Node) -> list[tuple[Follow, Followed]]:
        """Arrays that a node may follow, and what that comes to."""
        follows = []
        shapes = [self.program.nodes[edge.producer].shape for edge in node.edges]
        for follow in candidates(
            self.program, self.axes.members, self.leaders, index, self.axes.free
        ):
            array = self.program.nodes[follow.node]
            edges = tuple(edge.axes for edge in node.edges)
            key = (follow, node.labels, node.out, node.shape, edges, tuple(shapes))
            if key not in self._followed:
                # the input's own chunks are where they are, however uneven that is
                most = UNEVEN if self.axes.free else math.inf
                self._followed[key] = followed(node, follow, array, shapes, self.mesh.workers, most)
            blocks = self._followed[key]
            if blocks is not None:
                follows.append((follow, blocks))
        return follows

    def _located(self, index: int, node: Node) -> Variable:
        """An array that is where it is."""
        follow = Follow(node.name, index, tuple(range(len(node.shape))))
        nowhere = _Layout(self.mesh, node.labels, self.axes.grids[index]).work([])
        return Variable(
            index,
            False,
            (self._following(follow),),
            nowhere,
            nowhere,
            (),
            (resident(node, self.mesh.workers),),
        )

    def _need(
        self, node: Node, edge: Edge, boxes: _Layout, options: list[Option], shape: tuple[int, ...]
    ) -> Boxes | None:
        """What each worker needs along an edge."""
        if not unknown_relation(node, edge):
            return boxes.need(options, edge.axes, shape, edge.within)
        if not aligned(node, edge):
            return None
        # block for block, although in other sizes: a stencil, a trim
        return self.handed(edge.chunks or (), options)

    def handed(self, chunks: Chunks, options: Sequence[Option] | None = None) -> Boxes:
        """An array laid out in blocks that nothing may cut.

        In any way that the mesh allows, or as `options` divide the axes.
        """
        labels = tuple(Label(sum(sizes), Role.PINNED, sizes) for sizes in chunks)
        maps = tuple(AxisMap(axis) for axis in range(len(labels)))
        if options is None:
            choices = [None, *(axis for axis, sizes in enumerate(chunks) if len(sizes) > 1)]
            nothing = (None,) * len(self.mesh.shape)
            alone = (False,) * len(self.mesh.shape)
            options = [
                Option(picks, nothing, alone)
                for picks in itertools.product(choices, repeat=len(self.mesh.shape))
            ]
        layout = _Layout(self.mesh, labels, tuple(bounds(sizes) for sizes in chunks))
        return layout.need(options, maps, tuple(label.size for label in labels))

    def _keep(self, index: int, node: Node) -> Variable:
        """Copies and other cuts of an array that several nodes read."""
        own = self.axes.kept[index]
        labels, grids, out = array_labels(node, own)
        # with two readers, the second tiling is as cheaply made for the second of them
        paired = self.allow_replicas and len(self.program.consumers(index)) >= SEVERAL
        key = ("keep", labels, grids, node.itemsize, paired)
        if key not in self._cache:
            choices: list[tuple[int | None, bool]] = [(None, False), (None, True)]
            choices += [(axis, False) for axis, label in enumerate(labels) if label.size > 1]
            options = [
                Option(tuple(label for label, _ in picks), (None,) * len(picks),
                       tuple(replicated for _, replicated in picks))
                for picks in itertools.product(choices, repeat=len(self.mesh.shape))
            ]  # fmt: skip
            if self.lean and node.size >= self.mesh.workers:
                self.truncated = True
                options = [
                    option for option in options
                    if all(cut is not None or copied
                           for cut, copied in zip(option.mesh, option.replicated, strict=True))
                ]  # fmt: skip
            boxes = _Layout(self.mesh, labels, grids)
            if paired:
                options += _in_two_tilings(options)
            held = boxes.held(options, out, node.shape)
            second = boxes.second(options, out, node.shape) if paired else None
            if self.copy_limit is not None:
                most = held.volume()
                if second is not None:
                    most = most + second.volume()
                copies = np.array(
                    [
                        any(option.replicated) or option.second_mesh is not None
                        for option in options
                    ],
                    dtype=bool,
                )
                within = most.max(axis=1) * node.itemsize <= self.copy_limit
                chosen = np.flatnonzero(~copies | within)
                options = [options[choice] for choice in chosen]
                held = _take(held, chosen)
                second = None if second is None else _take(second, chosen)
            needs = (held,) if second is None else (held, second)
            self._cache[key] = (tuple(options), held, held, needs)
        boxed = self._cache[key]
        follows = list(kept(self.program, self.axes.members, self.leaders, index))
        return Variable(
            index,
            True,
            boxed[0] + tuple(map(self._following, follows)),
            *boxed[1:],
            followed=tuple(self._copy(node, follow) for follow in follows),
            held_second=boxed[3][1] if len(boxed[3]) > 1 else None,
        )

    def _copy(self, node: Node, follow: Follow) -> Followed:
        key = (follow, node.shape)
        if key not in self._copies:
            array = self.program.nodes[follow.node]
            self._copies[key] = followed_copy(node, follow, array, self.mesh.workers)
        return self._copies[key]


def unknown_relation(node: Node, edge: Edge) -> bool:
    """True where nothing says which blocks of an array a node's blocks read."""
    return (
        edge.chunks is not None
        and all(axis.label is None for axis in edge.axes)
        and any(len(label.cuts) > 1 for label in node.labels)
    )


def aligned(node: Node, edge: Edge) -> bool:
    """True where an array is handed over in just as many blocks as the node has."""
    counts = tuple(len(sizes) for sizes in edge.chunks or ())
    return (
        counts
        == tuple(len(sizes) for sizes in node.chunks)
        == tuple(len(label.cuts) for label in node.labels)
    )


def effort(node: Node) -> float:
    """Operations per iteration of a node, its memory traffic counted as operations."""
    if node.homes is not None:
        return 0.0  # nothing is left to do
    if node.kind is Kind.CONTRACT:
        return node.work
    return node.work + BYTE_WORK * node.itemsize


def small_nodes(program: Program, workers: int) -> set[int]:
    """Nodes whose work is so little that one worker may do all of it.

    The smallest nodes, as many as together stay below a twentieth of a worker's share,
    both of the operations and of the bytes written.
    """
    work = [node.iterations * effort(node) for node in program.nodes]
    written = [float(node.nbytes) for node in program.nodes]
    small = set(range(len(program.nodes)))
    for measure in (work, written):
        budget = SMALL * sum(measure) / workers
        for index in sorted(small, key=lambda index: (measure[index], index)):
            budget -= measure[index]
            if budget < 0:
                small.discard(index)
    return small


def _picks(node: Node) -> list[tuple[int | None, int | None]]:
    """What one axis of a mesh may cut, with where the sums go."""
    free_axes = [
        axis
        for axis, (seen, size) in enumerate(zip(node.out, node.shape, strict=True))
        if size > 1 and seen.label is not None and node.labels[seen.label].role is not Role.WHOLE
    ]
    # sums are scattered along the two longest axes at most: more choices, never fewer bytes
    targets = sorted(free_axes, key=lambda axis: (-node.shape[axis], axis))[:2]
    picks: list[tuple[int | None, int | None]] = [(None, None)]
    for position, label in enumerate(node.labels):
        pieces = len(label.cuts) if label.role is Role.PINNED else label.size
        if label.role is Role.WHOLE or pieces < 2:
            continue
        picks.append((position, None))
        if label.role is Role.REDUCE:
            picks += [(position, target) for target in targets]
    return picks


def choices(node: Node) -> int:
    """In how many ways one axis of a mesh may divide a node."""
    return len(_picks(node))


def _options(node: Node, mesh: Mesh) -> Iterator[Option]:
    """Every assignment of mesh axes to labels, with where the sums go."""
    for picks in itertools.product(_picks(node), repeat=len(mesh.shape)):
        yield Option(
            tuple(label for label, _ in picks),
            tuple(target for _, target in picks),
            (False,) * len(picks),
        )


def _balanced(work: Boxes, iterations: int, workers: int, small: bool) -> Ints:
    """Candidates that divide the work evenly, or as evenly as any."""
    everything = np.arange(len(work.lo), dtype=np.int64)
    if small or iterations == 0:
        return everything
    uneven = work.volume().max(axis=1) * workers / iterations
    return everything[uneven <= max(BALANCE, float(uneven.min()) * 1.02)]


def _scattered(node: Node, options: Sequence[Option], chosen: Ints) -> Ints:
    """Candidates whose sums are divided again, if there are any."""
    divided = [
        choice
        for choice in chosen
        if all(
            label is None or target is not None or node.labels[label].role is not Role.REDUCE
            for label, target in zip(options[choice].mesh, options[choice].scatter, strict=True)
        )
    ]
    return np.array(divided, dtype=np.int64) if divided else chosen


def array_labels(
    node: Node, grids: Sequence[Grid]
) -> tuple[tuple[Label, ...], tuple[Grid, ...], tuple[AxisMap, ...]]:
    """An array's axes as labels of their own, cut where the node that makes it may be."""
    labels, array_grids = [], []
    for axis, size in zip(node.out, node.shape, strict=True):
        grid = None if axis.label is None else grids[axis.label]
        if isinstance(grid, int):
            grid *= axis.width
        elif grid is not None:
            grid = type(grid)(position * axis.width for position in grid)
        labels.append(Label(size, Role.FREE, (size,)))
        array_grids.append(grid)
    out = tuple(AxisMap(position) for position in range(len(labels)))
    return tuple(labels), tuple(array_grids), out


def _in_two_tilings(options: Sequence[Option]) -> list[Option]:
    """Pairs of tilings that both divide an array evenly, so that no worker has it all."""
    whole = [option for option in options
             if all(cut is not None for cut in option.mesh)]  # fmt: skip
    if len(whole) > MOST_PAIRED:
        # each along one axis only
        whole = [option for option in whole if len(set(option.mesh)) == 1]
    return [
        replace(first, second_mesh=second.mesh)
        for first, second in itertools.combinations(whole, 2)
    ]


def _surface(
    boxes: _Layout, needs: Sequence[Boxes | None], node: Node, options: list[Option]
) -> npt.NDArray[np.float64]:
    """Elements that the busiest worker reads and makes, for every candidate."""
    made = boxes.need(options, [AxisMap(axis.label) for axis in node.out], node.shape)
    total = made.volume().max(axis=1)
    for need in needs:
        if need is not None:
            total = total + need.volume().max(axis=1)
    return total


def _varied(
    options: Sequence[Option], mesh: Mesh, surface: npt.NDArray[np.float64], most: int
) -> Ints:
    """Which candidates to keep of too many.

    The best of every way to divide the labels into numbers of parts, then the second best
    of each, and so on: neighbours may want any of them.
    """
    seen: dict[object, int] = {}
    rank = np.empty(len(options), dtype=np.int64)
    for place in np.argsort(surface, kind="stable"):
        parts: dict[int | None, int] = {}
        for label, size in zip(options[place].mesh, mesh.shape, strict=True):
            parts[label] = parts.get(label, 1) * size
        alike = frozenset(parts.items())
        rank[place] = seen[alike] = seen.get(alike, -1) + 1
    return np.sort(np.lexsort((surface, rank))[:most])


def _take(boxes: Boxes, chosen: Ints) -> Boxes:
    return replace(boxes, lo=boxes.lo[chosen], hi=boxes.hi[chosen], active=boxes.active[chosen])


@dataclass
class _Layout:
    """Turns options into boxes, remembering the bounds of every label and set of axes."""

    mesh: Mesh
    labels: Sequence[Label]
    grids: Sequence[Grid]
    _ranges: dict[tuple[int, tuple[int, ...]], tuple[Ints, Ints]] = field(default_factory=dict)

    def range(self, label: int, cut_by: tuple[int, ...]) -> tuple[Ints, Ints]:
        """Each worker's range of a label that these mesh axes cut: (lo, hi), per worker."""
        if (label, cut_by) not in self._ranges:
            edges = np.asarray(
                split(self.labels[label].size, self.mesh.parts(cut_by), self.grids[label]),
                dtype=np.int64,
            )
            index = self.mesh.digits(cut_by)
            self._ranges[label, cut_by] = edges[index], edges[index + 1]
        return self._ranges[label, cut_by]

    def work(self, options: Sequence[Option]) -> Boxes:
        maps = tuple(AxisMap(position) for position in range(len(self.labels)))
        sizes = tuple(label.size for label in self.labels)
        return self.need(options, maps, sizes)

    def need(
        self,
        options: Sequence[Option],
        axes: Sequence[AxisMap],
        shape: Sequence[int],
        within: tuple[int, int, int] | None = None,
    ) -> Boxes:
        """What the loop nest's boxes touch of an array, `within` part of a label."""
        lo, hi = self._empty(len(options), len(axes))
        active = np.empty((len(options), self.mesh.workers), dtype=bool)
        density = math.prod(min(1.0, axis.width / abs(axis.step)) for axis in axes)
        for row, option in enumerate(options):
            active[row] = self._running(option)
            if within is not None:
                label, first, last = within
                begin, end = self.range(label, _cut_by(option.mesh, label))
                active[row] &= (begin < last) & (end > first)
            for column, (axis, size) in enumerate(zip(axes, shape, strict=True)):
                if axis.label is None:
                    lo[row, :, column], hi[row, :, column] = 0, size
                    continue
                begin, end = self.range(axis.label, _cut_by(option.mesh, axis.label))
                lo[row, :, column], hi[row, :, column] = _interval(axis, begin, end, size)
        return Boxes(lo, hi, active, density)

    def held(
        self, options: Sequence[Option], out: Sequence[AxisMap], shape: Sequence[int]
    ) -> Boxes:
        """What of the result each worker has in the end."""
        lo, hi = self._empty(len(options), len(out))
        active = np.empty((len(options), self.mesh.workers), dtype=bool)
        for row, option in enumerate(options):
            summed_on_one = tuple(
                axis
                for axis, (label, target) in enumerate(
                    zip(option.mesh, option.scatter, strict=True)
                )
                if label is not None and target is None
                and self.labels[label].role is Role.REDUCE
            )  # fmt: skip
            active[row] = self._running(option) & self.mesh.first(summed_on_one)
            for column, (axis, size) in enumerate(zip(out, shape, strict=True)):
                if axis.label is None:
                    lo[row, :, column], hi[row, :, column] = 0, size
                    continue
                cut_by = _cut_by(option.mesh, axis.label) + tuple(
                    axis_of_mesh
                    for axis_of_mesh, target in enumerate(option.scatter)
                    if target == column
                )
                begin, end = self.range(axis.label, cut_by)
                lo[row, :, column], hi[row, :, column] = begin * axis.width, end * axis.width
        return Boxes(lo, hi, active)

    def second(
        self, options: Sequence[Option], out: Sequence[AxisMap], shape: Sequence[int]
    ) -> Boxes:
        """What of an array each worker has in its second tiling, nothing where there is none."""
        nothing = (None,) * len(self.mesh.shape)
        boxes = self.held(
            [replace(option, mesh=option.second_mesh or nothing) for option in options], out, shape
        )
        has = np.array([option.second_mesh is not None for option in options], dtype=bool)
        return replace(boxes, active=boxes.active & has[:, None])

    def _running(self, option: Option) -> Bools:
        idle = tuple(
            axis
            for axis, (label, copied) in enumerate(zip(option.mesh, option.replicated, strict=True))
            if label is None and not copied
        )
        return self.mesh.first(idle)

    def _empty(self, options: int, axes: int) -> tuple[Ints, Ints]:
        shape = (options, self.mesh.workers, axes)
        return np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)


def _cut_by(mesh: Sequence[int | None], label: int) -> tuple[int, ...]:
    return tuple(axis for axis, cut in enumerate(mesh) if cut == label)


def _interval(axis: AxisMap, lo: Ints, hi: Ints, size: int) -> tuple[Ints, Ints]:
    """:meth:`AxisMap.interval` for many ranges at once; empty ranges stay empty."""
    if axis.identity:
        return lo, hi
    first = axis.start + axis.step * lo
    last = axis.start + axis.step * (hi - 1)
    begin = np.clip(np.minimum(first, last), 0, size)
    end = np.clip(np.maximum(first, last) + axis.width, 0, size)
    return begin, np.where(hi > lo, np.maximum(begin, end), begin)
