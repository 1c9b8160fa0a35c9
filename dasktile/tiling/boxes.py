"""The box of every array that each candidate gives a worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from dasktile.ir import AxisMap, Label, Picks, Sharding, bounds
from dasktile.tiling.grid import Grid, split
from dasktile.tiling.mesh import Mesh
from dasktile.tiling.options import Option, Options, reduced_labels
from dasktile.tiling.strided import ALL, Strided, part_intervals, steps_of

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


#: Sum of the ranges in which the blocks of a take have their elements, over the length of the axis,
#: above which the elements are sent, and not the ranges (as `dasktile.lower.kernels.views` writes
#: takes, for the blocks of the plan; here those of the input count, as the others are not known).
MOST_SPANNED = 2


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """The elements along one axis of which workers need only some, and not the range between them.

    Parameters
    ----------
    axis
        The axis.
    elements
        For every kind of candidates along it, and every worker, its elements, ascending.
    """

    axis: int
    elements: tuple[tuple[Ints, ...], ...]

    def by_block(self, edges: Ints) -> npt.NDArray[np.float64]:
        """Number of elements in blocks with these bounds: (blocks, kinds, workers)."""
        return self.within(edges[:-1, None], edges[1:, None])

    def within(self, lo: Ints, hi: Ints) -> npt.NDArray[np.float64]:
        """Number of elements in ranges: (ranges, kinds, workers).

        Parameters
        ----------
        lo, hi
            The ranges, (ranges, workers): the same ones for all workers if these are one column.
        """
        counts = np.zeros((len(lo), len(self.elements), len(self.elements[0])))
        #: Workers that have the same part share its elements.
        known: dict[tuple[int, int], Ints] = {}
        for kind, by_worker in enumerate(self.elements):
            for worker, elements in enumerate(by_worker):
                column = min(worker, lo.shape[1] - 1)
                key = id(elements), column
                if key not in known:
                    after, before = (
                        np.searchsorted(elements, bound[:, column]) for bound in (hi, lo)
                    )
                    known[key] = np.maximum(after - before, 0)
                counts[:, kind, worker] = known[key]
        return counts


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
    taken
        The elements that count along one axis, by its kinds; None if all within the bounds do.
    """

    lo: Ints
    hi: Ints
    active: Bools
    steps: tuple[Strided, ...] = ()
    kinds: Ints | None = None
    taken: Taken | None = None

    def volume(self) -> npt.NDArray[np.float64]:
        """Number of elements, (candidates, workers)."""
        lengths = self.hi - self.lo
        if self.taken is not None and self.kinds is not None:
            counts = [[len(each) for each in by_worker] for by_worker in self.taken.elements]
            lengths[..., self.taken.axis] = np.array(counts)[self.kinds[:, self.taken.axis]]
        elements: npt.NDArray[np.float64] = np.prod(lengths, axis=2, dtype=np.float64)
        return elements * self.active

    def ranges(self) -> Boxes:
        """The same boxes, in which all elements between those that are taken count, too."""
        return self if self.taken is None else replace(self, taken=None)

    def step(self, axis: int) -> Strided:
        """The elements of an axis that count."""
        return self.steps[axis] if self.steps else ALL


def take(boxes: Boxes, chosen: Ints) -> Boxes:
    """The boxes of some candidates."""
    kinds = None if boxes.kinds is None else boxes.kinds[chosen]
    lo, hi, active = boxes.lo[chosen], boxes.hi[chosen], boxes.active[chosen]
    return Boxes(lo, hi, active, boxes.steps, kinds, boxes.taken)


def numbered(boxes: Boxes, steps: Sequence[Strided]) -> tuple[Ints, Ints]:
    """Bounds of boxes in which all elements count, as numbers of these elements: (lo, hi).

    Parameters
    ----------
    boxes
        The boxes.
    steps
        The elements of each axis; all of them if empty.
    """
    if not steps:
        return boxes.lo, boxes.hi
    lo, hi = (
        np.stack([step.before(bound[..., axis]) for axis, step in enumerate(steps)], axis=-1)
        for bound in (boxes.lo, boxes.hi)
    )
    return lo, hi


def paired(first: Ints, second: Ints) -> Ints:
    """Numbers that are equal where both of two numbers are equal."""
    pairs = first * (int(second.max(initial=0)) + 1) + second
    return np.unique(pairs, return_inverse=True)[1]


@dataclass
class BoxBuilder:
    """Builds the boxes of options.

    Parameters
    ----------
    mesh
        The workers.
    labels, grids
        The labels of a node, and where each may be cut.
    known
        Ranges that were found, by the size of a label, the identity of its grid, and a set of mesh
        axes or several of them.  Builders for one mesh may share it, as long as it exists no longer
        than their grids.
    """

    mesh: Mesh
    labels: Sequence[Label]
    grids: Sequence[Grid]
    known: dict[object, tuple[Ints, Ints]] = field(default_factory=dict)

    def range(self, label: int, cut_by: tuple[int, ...]) -> tuple[Ints, Ints]:
        """The range of a label that each worker has where these mesh axes cut it: (lo, hi)."""
        size, grid = self.labels[label].size, self.grids[label]
        key = size, id(grid), cut_by
        if key not in self.known:
            edges = np.asarray(split(size, self.mesh.parts(cut_by), grid), dtype=np.int64)
            index = self.mesh.digits(cut_by)
            self.known[key] = edges[index], edges[index + 1]
        return self.known[key]

    def ranges(self, label: int, cuts: Sequence[tuple[int, ...]]) -> tuple[Ints, Ints]:
        """:meth:`range` for several sets of mesh axes: (lo, hi), each (sets, workers)."""
        key = self.labels[label].size, id(self.grids[label]), ("sets", *cuts)
        if key not in self.known:
            found = [self.range(label, cut_by) for cut_by in cuts]
            shape = (len(cuts), self.mesh.workers)
            lo, hi = (np.array([pair[end] for pair in found]).reshape(shape) for end in (0, 1))
            self.known[key] = lo, hi
        return self.known[key]

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
        the axis of `picks`, the range of these elements is read, or they alone if they are in
        ranges that have much in common.
        """
        taken = None
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
            if picks is not None and picks.axis == column and self._is_whole(axis):
                cuts, of = options.cutting(picks.label)
                spans = _spans(picks, *self.ranges(picks.label, cuts))
                lo[:, :, column], hi[:, :, column] = spans[0][of], spans[1][of]
                kinds[:, column] = of
                taken = self._taken(picks, cuts, size)
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
        return Boxes(lo, hi, active, steps, kinds, taken)

    def _is_whole(self, axis: AxisMap) -> bool:
        """Whether all iterations read the same part of an axis."""
        return axis.label is None or self.labels[axis.label].size == 1

    def _taken(self, picks: Picks, cuts: Sequence[tuple[int, ...]], size: int) -> Taken | None:
        """The elements that each worker reads, for several sets of mesh axes; None for ranges."""
        own = np.asarray(bounds(self.labels[picks.label].cuts), dtype=np.int64)
        lo, hi = _spans(picks, own[:-1], own[1:])
        if int((hi - lo).sum()) <= MOST_SPANNED * size:
            return None
        values, ends = np.array(picks.runs, dtype=np.int64).T
        index = np.repeat(values, np.diff(ends, prepend=0))
        parts: dict[tuple[int, int], Ints] = {}
        elements = []
        for begin, end in (self.range(picks.label, cut_by) for cut_by in cuts):
            pairs = list(zip(begin.tolist(), end.tolist(), strict=True))
            for first, last in pairs:
                if (first, last) not in parts:
                    parts[first, last] = np.unique(index[first:last])
            elements.append(tuple(parts[pair] for pair in pairs))
        return Taken(picks.axis, tuple(elements))

    def held(self, options: Options, out: Sequence[AxisMap], shape: Sequence[int]) -> Boxes:
        """The box of the finished result that each worker holds."""
        lo, hi, kinds = self._empty(len(options.options), len(out))
        summed, of = options.summed(reduced_labels(self.labels))
        running, kinds[:, -1] = self._running(options)
        active = running & np.array([self.mesh.first(axes) for axes in summed])[of]
        kinds[:, -1] = paired(kinds[:, -1], of)
        for column, (axis, size) in enumerate(zip(out, shape, strict=True)):
            if axis.label is None:
                lo[:, :, column], hi[:, :, column] = 0, size
                continue
            cuts, of = options.holding(column)
            begin, end = self.ranges(axis.label, cuts)
            lo[:, :, column], hi[:, :, column] = begin[of] * axis.width, end[of] * axis.width
            kinds[:, column] = of
        return Boxes(lo, hi, active, kinds=kinds)

    def held_second(self, options: Options, out: Sequence[AxisMap], shape: Sequence[int]) -> Boxes:
        """The box that each worker holds in the second sharding; inactive without one."""
        shardings = [option.second or Sharding.on_one(len(shape)) for option in options.options]
        boxes = self.held(Options(Option(each, each) for each in shardings), out, shape)
        has = np.array([option.second is not None for option in options.options], dtype=bool)
        assert boxes.kinds is not None
        kinds = boxes.kinds.copy()
        kinds[:, -1] = paired(kinds[:, -1], has.astype(np.int64))
        return replace(boxes, active=boxes.active & has[:, None], kinds=kinds)

    def _running(self, options: Options) -> tuple[Bools, Ints]:
        """True for workers that have a part of the work, and which candidates are alike."""
        idle, of = options.idle(len(self.mesh.shape))
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
    if axis.breaks:
        breaks = np.asarray(axis.breaks, dtype=np.int64)
        return breaks[lo], breaks[hi]
    if axis.parts:
        begin, end = part_intervals(axis, lo, hi)
        return begin, np.where(hi > lo, end, begin)
    first = axis.start + axis.step * lo
    last = axis.start + axis.step * (hi - 1)
    begin = np.clip(np.minimum(first, last), 0, size)
    end = np.clip(np.maximum(first, last) + axis.width, 0, size)
    return begin, np.where(hi > lo, np.maximum(begin, end), begin)
