"""The candidate tilings of every node, and the box of every array that each gives a worker.

A *variable* is either a node's own tiling or, for an array with several readers, the tiling in
which it is kept for them.  A candidate names the label that each mesh axis cuts.  This determines
for every worker the box of the loop nest that it runs, the box of the result that it holds and
the box of every input that it needs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dasktile.ir import (
    AxisMap,
    Chunks,
    Edge,
    Follow,
    Kind,
    Label,
    Node,
    Picks,
    Program,
    Role,
    bounds,
)
from dasktile.tiling.follow import (
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
from dasktile.tiling.settings import CandidateLimits, CostModel, Settings
from dasktile.tiling.strided import ALL, Strided, steps_of

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Option:
    """One candidate tiling of a node or of a kept array.

    Parameters
    ----------
    mesh
        For every mesh axis, the label that it cuts, or None.
    scatter
        For every mesh axis that cuts a ``REDUCE`` label, the output axis along which the sum is
        scattered, or None where it ends on one worker.
    replicated
        For every mesh axis without a label, True where each worker along it has a replica and
        False where only the first worker has the array.
    follow
        The persisted array whose placement is followed; the mesh then cuts no label.
    second_mesh
        For an array that is replicated in two shardings, the second one: for every mesh axis,
        the array's axis that it cuts.
    order
        All mesh axes; of two that cut one label, the first one cuts it into the larger parts.
        Empty for the order of the mesh.
    """

    mesh: tuple[int | None, ...]
    scatter: tuple[int | None, ...]
    replicated: tuple[bool, ...]
    follow: Follow | None = None
    second_mesh: tuple[int | None, ...] | None = None
    order: tuple[int, ...] = ()

    def cutting(self, label: int) -> tuple[int, ...]:
        """The mesh axes that cut a label, in their order."""
        return self._ordered(axis for axis, cut in enumerate(self.mesh) if cut == label)

    def scattering(self, column: int) -> tuple[int, ...]:
        """The mesh axes along which a sum is scattered on an output axis, in their order."""
        return self._ordered(axis for axis, to in enumerate(self.scatter) if to == column)

    def _ordered(self, axes: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(axes, key=self.order.index) if self.order else axes)


#: The distinct sets of mesh axes of some candidates, and the number of that of each.
Shared = tuple[list[tuple[int, ...]], Ints]


class Options:
    """Candidates of one node, with the sets of mesh axes that they have in common.

    Many candidates cut a label by the same mesh axes; bounds are computed once for each such set.
    """

    def __init__(self, options: Iterable[Option]) -> None:
        self.options = tuple(options)
        self._by: dict[object, Shared] = {}
        self._some: dict[bytes, Options] = {}

    def some(self, chosen: Ints) -> Options:
        """Some of the candidates."""
        key = chosen.tobytes()
        if key not in self._some:
            self._some[key] = Options(self.options[choice] for choice in chosen)
        return self._some[key]

    def cutting(self, label: int) -> Shared:
        """The sets of mesh axes that cut a label, and the number of that of each candidate."""
        return self._shared(("cut", label), lambda option: option.cutting(label))

    def dividing(self, label: int, column: int) -> Shared:
        """The same for the axes that divide a label or a scattered sum along an axis."""
        return self._shared(
            ("divided", label, column),
            lambda option: option.cutting(label) + option.scattering(column),
        )

    def idle(self) -> Shared:
        """The same for the axes along which only the first worker has a part of the work."""
        return self._shared("idle", _idle)

    def scattered(self) -> Shared:
        """The same for the axes along which sums are scattered."""
        return self._shared(
            "scattered",
            lambda option: tuple(
                axis for axis, target in enumerate(option.scatter) if target is not None
            ),
        )

    def summed(self, reduced: Collection[int]) -> Shared:
        """The same for the axes that cut `reduced` labels whose sums end on one worker."""
        return self._shared(
            ("summed", *reduced),
            lambda option: tuple(
                axis
                for axis, (label, to) in enumerate(zip(option.mesh, option.scatter, strict=True))
                if to is None and label in reduced
            ),
        )

    def _shared(self, key: object, axes_of: Callable[[Option], tuple[int, ...]]) -> Shared:
        if key not in self._by:
            numbers: dict[tuple[int, ...], int] = {}
            of = [numbers.setdefault(axes_of(each), len(numbers)) for each in self.options]
            self._by[key] = list(numbers), np.array(of, dtype=np.int64)
        return self._by[key]


def _idle(option: Option) -> tuple[int, ...]:
    """The mesh axes that divide no work and make no copies."""
    return tuple(
        axis
        for axis, (label, copied) in enumerate(zip(option.mesh, option.replicated, strict=True))
        if label is None and not copied
    )


@dataclass(frozen=True, slots=True)
class Boxes:
    """A box for every candidate and worker.

    Parameters
    ----------
    lo, hi
        Bounds, (candidates, workers, axes): numbers of elements, among those of `steps`.
    active
        False where a worker has no box, (candidates, workers).
    steps
        The elements of each axis that count; empty if all of them do.
    kinds
        Numbers by which candidates share ranges, (candidates, axes + 1): candidates of one number
        have the same bounds along the axis; the last column is about `active`.  None if unknown.
    """

    lo: Ints
    hi: Ints
    active: Bools
    steps: tuple[Strided, ...] = ()
    kinds: Ints | None = None

    def volume(self) -> npt.NDArray[np.float64]:
        """Number of elements, (candidates, workers)."""
        elements: npt.NDArray[np.float64] = np.prod(self.hi - self.lo, axis=2, dtype=np.float64)
        return elements * self.active

    def step(self, axis: int) -> Strided:
        """The elements of an axis that count."""
        return self.steps[axis] if self.steps else ALL


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

    Attributes
    ----------
    made
        For every node, the index of the variable of its own tiling.
    kept
        For every node with several readers, the index of the variable of the kept array.
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
    variables: list[Variable] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    truncated: bool = False
    kept: dict[int, int] = field(default_factory=dict)
    _cache: dict[object, tuple[Options, Boxes, Boxes, tuple[Boxes | None, ...]]] = field(
        default_factory=dict, repr=False
    )
    _followed: dict[object, Followed | None] = field(default_factory=dict, repr=False)
    _copies: dict[object, Followed] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.leaders = leaders(self.program)
        small = small_nodes(self.program, self.mesh.workers, self.settings)
        for index, node in enumerate(self.program.nodes):
            self.made.append(len(self.variables))
            self.variables.append(self._own(index, node, index in small))
            if len(self.program.consumers(index)) > 1:
                self.kept[index] = len(self.variables)
                self.variables.append(self._keep(index, node))

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
        following = tuple(self._following(follow) for follow, _ in follows)
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
        boxes = _BoxBuilder(self.mesh, node.labels, grids)
        # nodes that differ in what they read, as slices of one array, share the others
        alike = ("made", node.labels, node.out, node.shape, tuple(grids), small, node.kind)
        if alike in self._cache:
            options, work, held, _ = self._cache[alike]
            return options, work, held, self._needs(node, boxes, options, shapes)
        every = self._options(node)
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
            chosen = chosen[_varied(able.options, self.mesh, surface, self.settings.max_states)]
        options = every.some(chosen)
        work, held = take(work, chosen), boxes.held(options, node.out, node.shape)
        if not is_large:
            self._cache[alike] = options, work, held, ()
        return options, work, held, self._needs(node, boxes, options, shapes)

    def _options(self, node: Node) -> Options:
        """All assignments of mesh axes to the labels of a node."""
        picks = tuple(_picks(node, self.settings.candidates))
        return _assigned(picks, len(self.mesh.shape), self.ordered)

    def _needs(
        self, node: Node, boxes: _BoxBuilder, options: Options, shapes: Sequence[tuple[int, ...]]
    ) -> tuple[Boxes | None, ...]:
        """The boxes that each worker needs along the edges of a node."""
        return tuple(
            self._need(node, edge, boxes, options, shape)
            for edge, shape in zip(node.edges, shapes, strict=True)
        )

    def _following(self, follow: Follow) -> Option:
        nothing = (None,) * len(self.mesh.shape)
        return Option(nothing, nothing, (False,) * len(self.mesh.shape), follow)

    def _follows(self, index: int, node: Node) -> list[tuple[Follow, Followed]]:
        """Arrays that a node may follow, with the blocks that workers then have."""
        follows = []
        limits = self.settings.candidates
        shapes = [self.program.nodes[edge.producer].shape for edge in node.edges]
        for follow in candidates(
            self.program,
            self.axes.members,
            self.leaders,
            index,
            self.axes.free,
            limits.max_followed,
        ):
            array = self.program.nodes[follow.node]
            edges = tuple(edge.axes for edge in node.edges)
            key = (follow, node.labels, node.out, node.shape, edges, tuple(shapes))
            if key not in self._followed:
                # the placement of the input's own chunks is fixed, however uneven it is
                most = limits.follow_balance if self.axes.free else math.inf
                self._followed[key] = followed(node, follow, array, shapes, self.mesh.workers, most)
            blocks = self._followed[key]
            if blocks is not None:
                follows.append((follow, blocks))
        return follows

    def _located(self, index: int, node: Node) -> Variable:
        """A persisted array with fixed placement: one candidate."""
        follow = Follow(node.name, index, tuple(range(len(node.shape))))
        nowhere = _BoxBuilder(self.mesh, node.labels, self.axes.grids[index]).work(Options([]))
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
        self,
        node: Node,
        edge: Edge,
        boxes: _BoxBuilder,
        options: Options,
        shape: tuple[int, ...],
    ) -> Boxes | None:
        """The box that each worker needs along an edge."""
        if not unknown_relation(node, edge):
            return boxes.need(options, edge.axes, shape, edge.within, edge.picks)
        if not aligned(node, edge):
            return None
        # block by block, in other sizes: a stencil, a trim
        return _resized(boxes.work(options), node.labels, edge.chunks or ())

    def handed(self, chunks: Chunks) -> Boxes:
        """Boxes of an array whose blocks must not be cut.

        For all ways in which the mesh can divide the blocks.
        """
        labels = tuple(Label(sum(sizes), Role.PINNED, sizes) for sizes in chunks)
        maps = tuple(AxisMap(axis) for axis in range(len(labels)))
        choices = [None, *(axis for axis, sizes in enumerate(chunks) if len(sizes) > 1)]
        nothing = (None,) * len(self.mesh.shape)
        alone = (False,) * len(self.mesh.shape)
        options = Options(
            _in_all_orders(
                (
                    Option(picks, nothing, alone)
                    for picks in itertools.product(choices, repeat=len(self.mesh.shape))
                ),
                self.ordered,
            )
        )
        layout = _BoxBuilder(self.mesh, labels, tuple(bounds(sizes) for sizes in chunks))
        return layout.need(options, maps, tuple(label.size for label in labels))

    def _keep(self, index: int, node: Node) -> Variable:
        """Replicas and other cuts of an array that several nodes read."""
        own = self.axes.kept[index]
        labels, grids, out = array_labels(node, own)
        limits = self.settings.candidates
        readers = len(self.program.consumers(index))
        paired = self.allow_replicas and readers >= limits.replica_readers
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
            options = _in_all_orders(options, self.ordered)
            boxes = _BoxBuilder(self.mesh, labels, grids)
            if paired:
                options += _in_two_shardings(options, limits)
            shared = Options(options)
            held = boxes.held(shared, out, node.shape)
            second = boxes.held_second(shared, out, node.shape) if paired else None
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
                held = take(held, chosen)
                second = None if second is None else take(second, chosen)
            needs = (held,) if second is None else (held, second)
            self._cache[key] = (Options(options), held, held, needs)
        boxed = self._cache[key]
        follows = list(
            kept(self.program, self.axes.members, self.leaders, index, limits.max_followed)
        )
        return Variable(
            index,
            True,
            boxed[0].options + tuple(map(self._following, follows)),
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


def _resized(work: Boxes, labels: Sequence[Label], chunks: Chunks) -> Boxes:
    """The boxes that the same blocks have in an array whose chunks have other sizes."""
    lo, hi = np.empty_like(work.lo), np.empty_like(work.hi)
    for axis, (label, sizes) in enumerate(zip(labels, chunks, strict=True)):
        places, edges = np.asarray(bounds(label.cuts)), np.asarray(bounds(sizes))
        for old, new in ((work.lo, lo), (work.hi, hi)):
            new[..., axis] = edges[np.searchsorted(places, old[..., axis])]
    return replace(work, lo=lo, hi=hi)


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
    """True where an edge hands an array over in as many blocks as the node has."""
    counts = tuple(len(sizes) for sizes in edge.chunks or ())
    return (
        counts
        == tuple(len(sizes) for sizes in node.chunks)
        == tuple(len(label.cuts) for label in node.labels)
    )


def effort(node: Node, model: CostModel) -> float:
    """Operations per iteration of a node, its memory traffic counted as operations."""
    if node.homes is not None:
        return 0.0  # a persisted array is not computed
    if node.kind is Kind.CONTRACT:
        return node.work
    return node.work + model.byte_work * node.itemsize


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


def _picks(node: Node, limits: CandidateLimits) -> list[tuple[int | None, int | None]]:
    """Labels that one mesh axis may cut, each with the output axis of a scattered sum."""
    free_axes = [
        axis
        for axis, (seen, size) in enumerate(zip(node.out, node.shape, strict=True))
        if size > 1 and seen.label is not None and node.labels[seen.label].role is not Role.WHOLE
    ]
    longest = sorted(free_axes, key=lambda axis: (-node.shape[axis], axis))
    targets = longest[: limits.scatter_axes]
    picks: list[tuple[int | None, int | None]] = [(None, None)]
    for position, label in enumerate(node.labels):
        pieces = len(label.cuts) if label.role is Role.PINNED else label.size
        if label.role is Role.WHOLE or pieces < 2:
            continue
        picks.append((position, None))
        if label.role is Role.REDUCE:
            picks += [(position, target) for target in targets]
    return picks


def choices(node: Node, limits: CandidateLimits) -> int:
    """Number of ways in which one axis of a mesh may divide a node."""
    return len(_picks(node, limits))


@lru_cache(maxsize=128)
def _assigned(picks: Sequence[tuple[int | None, int | None]], axes: int, ordered: bool) -> Options:
    """All assignments of mesh axes to labels and of scattered sums to output axes."""
    options = (
        Option(
            tuple(label for label, _ in each),
            tuple(target for _, target in each),
            (False,) * axes,
        )
        for each in itertools.product(picks, repeat=axes)
    )
    return Options(_in_all_orders(options, ordered))


def _in_all_orders(options: Iterable[Option], ordered: bool) -> list[Option]:
    """The options, if `ordered` with the mesh axes in every order that makes another tiling."""
    if not ordered:
        return list(options)
    return [each for option in options for each in _orders(option)]


def _orders(option: Option) -> list[Option]:
    """An option with the mesh axes in every order that makes another tiling."""
    axes = range(len(option.mesh))
    # the mesh axes that cut one label, or along which one output axis is scattered
    groups = [
        tuple(axis for axis in axes if each[axis] == value)
        for each in (option.mesh, option.scatter)
        for value in dict.fromkeys(each)
        if value is not None
    ]
    found: dict[object, Option] = {}
    for order in itertools.permutations(axes):
        seen = tuple(tuple(sorted(group, key=order.index)) for group in groups)
        # the first one is the order of the mesh
        found.setdefault(seen, replace(option, order=order) if found else option)
    return list(found.values())


def _balanced(
    work: Boxes, iterations: int, workers: int, small: bool, limits: CandidateLimits
) -> Ints:
    """Indices of the candidates that divide the work evenly, or as evenly as any does."""
    everything = np.arange(len(work.lo), dtype=np.int64)
    if small or iterations == 0:
        return everything
    uneven = work.volume().max(axis=1) * workers / iterations
    least = float(uneven.min())
    return everything[uneven <= max(limits.balance, least * limits.balance_slack)]


def _scattered(node: Node, options: Sequence[Option], chosen: Ints) -> Ints:
    """Candidates whose sums are scattered; all candidates if there are none."""
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
    """Labels, grids and maps of a kept array: one label for each of its axes.

    They may be cut where the labels of the node that makes the array may be.
    """
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


def _in_two_shardings(options: Sequence[Option], limits: CandidateLimits) -> list[Option]:
    """Pairs of shardings by all mesh axes, so that no worker has the whole array."""
    whole = [option for option in options
             if not option.order and all(cut is not None for cut in option.mesh)]  # fmt: skip
    if len(whole) > limits.max_paired:
        # only those along one axis each
        whole = [option for option in whole if len(set(option.mesh)) == 1]
    return [
        replace(first, second_mesh=second.mesh)
        for first, second in itertools.combinations(whole, 2)
    ]


def _surface(
    boxes: _BoxBuilder, needs: Sequence[Boxes | None], node: Node, options: Options
) -> npt.NDArray[np.float64]:
    """Elements that the worker with the most of them reads and writes, for every candidate."""
    made = boxes.need(options, [AxisMap(axis.label) for axis in node.out], node.shape)
    total = made.volume().max(axis=1)
    for need in needs:
        if need is not None:
            total = total + need.volume().max(axis=1)
    return total


def _varied(
    options: Sequence[Option], mesh: Mesh, surface: npt.NDArray[np.float64], most: int
) -> Ints:
    """Indices of the candidates to keep where there are too many.

    Candidates are grouped by the number of parts of each label.  The best of every group are
    kept, then the second best, and so on, since any group may fit the neighbours.
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


def take(boxes: Boxes, chosen: Ints) -> Boxes:
    """The boxes of some candidates."""
    kinds = None if boxes.kinds is None else boxes.kinds[chosen]
    return Boxes(boxes.lo[chosen], boxes.hi[chosen], boxes.active[chosen], boxes.steps, kinds)


def paired(first: Ints, second: Ints) -> Ints:
    """Numbers that are equal where both of two numbers are equal."""
    pairs = first * (int(second.max(initial=0)) + 1) + second
    return np.unique(pairs, return_inverse=True)[1]


@dataclass
class _BoxBuilder:
    """Builds the boxes of options; bounds by label and set of mesh axes are cached."""

    mesh: Mesh
    labels: Sequence[Label]
    grids: Sequence[Grid]
    _ranges: dict[tuple[int, tuple[int, ...]], tuple[Ints, Ints]] = field(default_factory=dict)

    def range(self, label: int, cut_by: tuple[int, ...]) -> tuple[Ints, Ints]:
        """The range of a label that each worker has where these mesh axes cut it: (lo, hi)."""
        if (label, cut_by) not in self._ranges:
            edges = np.asarray(
                split(self.labels[label].size, self.mesh.parts(cut_by), self.grids[label]),
                dtype=np.int64,
            )
            index = self.mesh.digits(cut_by)
            self._ranges[label, cut_by] = edges[index], edges[index + 1]
        return self._ranges[label, cut_by]

    def ranges(self, label: int, cuts: Sequence[tuple[int, ...]]) -> tuple[Ints, Ints]:
        """:meth:`range` for several sets of mesh axes: (lo, hi), each (sets, workers)."""
        found = [self.range(label, cut_by) for cut_by in cuts]
        shape = (len(cuts), self.mesh.workers)
        lo, hi = (np.array([pair[end] for pair in found]).reshape(shape) for end in (0, 1))
        return lo, hi

    def work(self, options: Options) -> Boxes:
        """The box of the loop nest that each worker runs."""
        maps = tuple(AxisMap(position) for position in range(len(self.labels)))
        sizes = tuple(label.size for label in self.labels)
        return self.need(options, maps, sizes)

    def need(
        self,
        options: Options,
        axes: Sequence[AxisMap],
        shape: Sequence[int],
        within: tuple[int, int, int] | None = None,
        picks: Picks | None = None,
    ) -> Boxes:
        """The box of an array that each worker's loop nest reads.

        Where `within` is ``(label, lo, hi)``, only these iterations of the label read it.  Along
        the axis of `picks`, the range of these elements is read.
        """
        lo, hi, kinds = self._empty(len(options.options), len(axes))
        active, kinds[:, -1] = self._running(options)
        steps = steps_of(axes, [label.size for label in self.labels])
        if within is not None:
            label, first, last = within
            cuts, of = options.cutting(label)
            begin, end = self.ranges(label, cuts)
            active = active & ((begin < last) & (end > first))[of]
            kinds[:, -1] = paired(kinds[:, -1], of)
        for column, (axis, size) in enumerate(zip(axes, shape, strict=True)):
            if axis.label is None and picks is not None and picks.axis == column:
                cuts, of = options.cutting(picks.label)
                spans = _spans(picks, *self.ranges(picks.label, cuts))
                lo[:, :, column], hi[:, :, column] = spans[0][of], spans[1][of]
                kinds[:, column] = of
                continue
            if axis.label is None:
                lo[:, :, column], hi[:, :, column] = 0, size
                continue
            cuts, of = options.cutting(axis.label)
            begin, end = self.ranges(axis.label, cuts)
            if within is not None and axis.label == within[0]:
                begin = np.clip(begin, within[1], within[2])
                end = np.clip(end, within[1], within[2])
            if steps and steps[column] is not ALL:
                length = self.labels[axis.label].size
                bounds_of = _numbers(axis, steps[column], begin, end, length, size)
            else:
                bounds_of = _interval(axis, begin, end, size)
            lo[:, :, column], hi[:, :, column] = bounds_of[0][of], bounds_of[1][of]
            kinds[:, column] = of
        return Boxes(lo, hi, active, steps, kinds)

    def held(self, options: Options, out: Sequence[AxisMap], shape: Sequence[int]) -> Boxes:
        """The box of the finished result that each worker holds."""
        lo, hi, kinds = self._empty(len(options.options), len(out))
        reduced = [at for at, label in enumerate(self.labels) if label.role is Role.REDUCE]
        summed, of = options.summed(reduced)
        running, kinds[:, -1] = self._running(options)
        active = running & np.array([self.mesh.first(axes) for axes in summed])[of]
        kinds[:, -1] = paired(kinds[:, -1], of)
        for column, (axis, size) in enumerate(zip(out, shape, strict=True)):
            if axis.label is None:
                lo[:, :, column], hi[:, :, column] = 0, size
                continue
            cuts, of = options.dividing(axis.label, column)
            begin, end = self.ranges(axis.label, cuts)
            lo[:, :, column], hi[:, :, column] = begin[of] * axis.width, end[of] * axis.width
            kinds[:, column] = of
        return Boxes(lo, hi, active, kinds=kinds)

    def held_second(self, options: Options, out: Sequence[AxisMap], shape: Sequence[int]) -> Boxes:
        """The box that each worker holds in the second sharding; inactive without one."""
        nothing = (None,) * len(self.mesh.shape)
        second = [replace(option, mesh=option.second_mesh or nothing) for option in options.options]
        boxes = self.held(Options(second), out, shape)
        has = np.array([option.second_mesh is not None for option in options.options], dtype=bool)
        assert boxes.kinds is not None
        kinds = boxes.kinds.copy()
        kinds[:, -1] = paired(kinds[:, -1], has.astype(np.int64))
        return replace(boxes, active=boxes.active & has[:, None], kinds=kinds)

    def _running(self, options: Options) -> tuple[Bools, Ints]:
        """True for workers that have a part of the work, and which candidates are alike."""
        idle, of = options.idle()
        first = [self.mesh.first(axes) for axes in idle]
        return np.array(first, dtype=bool).reshape(len(idle), self.mesh.workers)[of], of

    def _empty(self, options: int, axes: int) -> tuple[Ints, Ints, Ints]:
        shape = (options, self.mesh.workers, axes)
        kinds = np.zeros((options, axes + 1), dtype=np.int64)
        return np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64), kinds


def _spans(picks: Picks, lo: Ints, hi: Ints) -> tuple[Ints, Ints]:
    """The ranges of elements that ranges of iterations read: (start, stop)."""
    pairs = np.stack([lo, hi], axis=-1).reshape(-1, 2)
    ranges, of = np.unique(pairs, axis=0, return_inverse=True)
    spans = np.array([picks.span(*each) for each in ranges.tolist()], dtype=np.int64)
    found = spans.reshape(-1, 2)[of.reshape(-1)].reshape(*lo.shape, 2)
    return found[..., 0], found[..., 1]


def _numbers(
    axis: AxisMap, step: Strided, lo: Ints, hi: Ints, length: int, size: int
) -> tuple[Ints, Ints]:
    """Numbers of the elements that iterations of a label of some length read, one each."""
    if axis.step < 0:
        lo, hi = length - hi, length - lo
    first, last = step.before(np.array([0, size]))
    return np.clip(lo, first, last), np.clip(hi, first, last)


def _interval(axis: AxisMap, lo: Ints, hi: Ints, size: int) -> tuple[Ints, Ints]:
    """:meth:`AxisMap.interval` for many ranges at once; empty ranges stay empty."""
    if axis.identity:
        # of several arrays one after the other, the first one is shorter than the loop
        return np.minimum(lo, size), np.minimum(hi, size)
    first = axis.start + axis.step * lo
    last = axis.start + axis.step * (hi - 1)
    begin = np.clip(np.minimum(first, last), 0, size)
    end = np.clip(np.maximum(first, last) + axis.width, 0, size)
    return begin, np.where(hi > lo, np.maximum(begin, end), begin)
