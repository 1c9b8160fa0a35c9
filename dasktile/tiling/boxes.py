"""The box of every array that each candidate gives a worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dasktile.ir import AxisMap, Label, Picks, Sharding, bounds
from dasktile.tiling.extents import Bools, Extent, Ints, Taken
from dasktile.tiling.grid import Grid, split
from dasktile.tiling.mesh import Mesh
from dasktile.tiling.options import Option, Options, reduced_labels
from dasktile.tiling.strided import ALL, Strided, part_intervals, steps_of

#: Sum of the ranges in which the blocks of a take have their elements, over the length of the axis,
#: above which the elements are sent, and not the ranges (as `dasktile.lower.kernels.views` writes
#: takes, for the blocks of the plan; here those of the input count, as the others are not known).
MOST_SPANNED = 2


@dataclass(frozen=True, eq=False)
class Boxes:
    """A box for every candidate and worker.

    Parameters
    ----------
    extents
        Bounds along each axis: numbers of elements, among those of `steps`.
    present
        As along one more axis, which workers have a box.
    steps
        The elements of each axis that count; empty if all of them do.
    taken
        The elements that count along one axis, by its kinds; None if all within the bounds do.
    """

    extents: tuple[Extent, ...]
    present: Extent
    steps: tuple[Strided, ...] = ()
    taken: Taken | None = None

    @classmethod
    def of_bounds(cls, lo: Ints, hi: Ints, active: Bools, steps: tuple[Strided, ...] = ()) -> Boxes:
        """Boxes of these bounds.

        Parameters
        ----------
        lo, hi
            Bounds, (candidates, workers, axes).
        active
            False where a worker has no box, (candidates, workers).
        steps
            The elements of each axis that count.
        """
        extents = (Extent.alike(lo[..., axis], hi[..., axis]) for axis in range(lo.shape[-1]))
        present = Extent.alike(np.zeros(active.shape, np.int64), active.astype(np.int64))
        return cls(tuple(extents), present, steps)

    def __len__(self) -> int:
        """Number of candidates."""
        return len(self.present.of)

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self.present.hi.shape[1]

    @cached_property
    def lo(self) -> Ints:
        """First elements, (candidates, workers, axes)."""
        return self._by_candidate([extent.lo for extent in self.extents])

    @cached_property
    def hi(self) -> Ints:
        """Elements after the last, (candidates, workers, axes)."""
        return self._by_candidate([extent.hi for extent in self.extents])

    @cached_property
    def active(self) -> Bools:
        """False where a worker has no box, (candidates, workers)."""
        active: Bools = self.present.hi[self.present.of] > 0
        return active

    def _by_candidate(self, bounds_of: Sequence[Ints]) -> Ints:
        found = np.empty((len(self), self.workers, len(self.extents)), dtype=np.int64)
        for axis, (bound, extent) in enumerate(zip(bounds_of, self.extents, strict=True)):
            found[..., axis] = bound[extent.of]
        return found

    def volume(self) -> npt.NDArray[np.float64]:
        """Number of elements, (candidates, workers)."""
        elements = self.present.hi[self.present.of].astype(np.float64)
        for axis, extent in enumerate(self.extents):
            lengths = extent.hi - extent.lo
            if self.taken is not None and self.taken.axis == axis:
                lengths = np.array(
                    [[len(each) for each in by_worker] for by_worker in self.taken.elements]
                )
            elements *= lengths[extent.of]
        return elements

    def ranges(self) -> Boxes:
        """The same boxes, in which all elements between those that are taken count, too."""
        return self if self.taken is None else replace(self, taken=None)

    def step(self, axis: int) -> Strided:
        """The elements of an axis that count."""
        return self.steps[axis] if self.steps else ALL


def take(boxes: Boxes, chosen: Ints) -> Boxes:
    """The boxes of some candidates."""
    extents = tuple(extent.take(chosen) for extent in boxes.extents)
    return replace(boxes, extents=extents, present=boxes.present.take(chosen))


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
    extents = (extent.numbered(step) for extent, step in zip(boxes.extents, steps, strict=True))
    found = replace(boxes, extents=tuple(extents))
    return found.lo, found.hi


@dataclass(frozen=True, slots=True)
class Known:
    """What builders of boxes for one mesh share, as long as it exists no longer than their grids.

    Parameters
    ----------
    ranges
        By the size of a label, the identity of its grid, and a set of mesh axes or several of them,
        the ranges that workers have.
    extents, boxes
        By their content, so that what is cut alike is the same object.
    running
        By the candidates, the workers that have a part of the work.
    """

    ranges: dict[object, tuple[Ints, Ints]] = field(default_factory=dict)
    extents: dict[object, Extent] = field(default_factory=dict)
    boxes: dict[object, Boxes] = field(default_factory=dict)
    running: dict[Options, Extent] = field(default_factory=dict)

    def extent(self, lo: Ints, hi: Ints, of: Ints) -> Extent:
        """The extent of these ranges of kinds of candidates."""
        key = len(lo), lo.tobytes(), hi.tobytes(), of.tobytes()
        if key not in self.extents:
            self.extents[key] = Extent(lo, hi, of)
        return self.extents[key]

    def boxed(
        self,
        extents: tuple[Extent, ...],
        present: Extent,
        steps: tuple[Strided, ...] = (),
        taken: Taken | None = None,
    ) -> Boxes:
        """The boxes of these extents."""
        key = extents, present, steps, taken
        if key not in self.boxes:
            self.boxes[key] = Boxes(*key)
        return self.boxes[key]


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
        What was found before.
    """

    mesh: Mesh
    labels: Sequence[Label]
    grids: Sequence[Grid]
    known: Known = field(default_factory=Known)

    def range(self, label: int, cut_by: tuple[int, ...]) -> tuple[Ints, Ints]:
        """The range of a label that each worker has where these mesh axes cut it: (lo, hi)."""
        size, grid = self.labels[label].size, self.grids[label]
        key = size, id(grid), cut_by
        if key not in self.known.ranges:
            edges = np.asarray(split(size, self.mesh.parts(cut_by), grid), dtype=np.int64)
            index = self.mesh.digits(cut_by)
            self.known.ranges[key] = edges[index], edges[index + 1]
        return self.known.ranges[key]

    def ranges(self, label: int, cuts: Sequence[tuple[int, ...]]) -> tuple[Ints, Ints]:
        """:meth:`range` for several sets of mesh axes: (lo, hi), each (sets, workers)."""
        key = self.labels[label].size, id(self.grids[label]), ("sets", *cuts)
        if key not in self.known.ranges:
            found = [self.range(label, cut_by) for cut_by in cuts]
            shape = (len(cuts), self.mesh.workers)
            lo, hi = (np.array([pair[end] for pair in found]).reshape(shape) for end in (0, 1))
            self.known.ranges[key] = lo, hi
        return self.known.ranges[key]

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
        present = self._running(options)
        steps = steps_of(axes, [label.size for label in self.labels])
        if within is not None:
            label, first, last = within
            cuts, of = options.cutting(label)
            begin, end = self.ranges(label, cuts)
            reading = present.meet(Extent.where((begin < last) & (end > first), of))
            present = self.known.extent(reading.lo, reading.hi, reading.of)
        extents = []
        for column, (axis, size) in enumerate(zip(axes, shape, strict=True)):
            if picks is not None and picks.axis == column and self._is_whole(axis):
                cuts, of = options.cutting(picks.label)
                extents.append(Extent(*spans_of(picks, *self.ranges(picks.label, cuts)), of))
                taken = self._taken(picks, cuts, size)
                continue
            if axis.label is None:
                extents.append(self._everything(options, size))
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
            extents.append(self.known.extent(*bounds_of, of))
        return self.known.boxed(tuple(extents), present, steps, taken)

    def _is_whole(self, axis: AxisMap) -> bool:
        """Whether all iterations read the same part of an axis."""
        return axis.label is None or self.labels[axis.label].size == 1

    def _taken(self, picks: Picks, cuts: Sequence[tuple[int, ...]], size: int) -> Taken | None:
        """The elements that each worker reads, for several sets of mesh axes; None for ranges."""
        own = np.asarray(bounds(self.labels[picks.label].cuts), dtype=np.int64)
        lo, hi = spans_of(picks, own[:-1], own[1:])
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
        summed, of = options.summed(reduced_labels(self.labels))
        ends = np.array([self.mesh.first(axes) for axes in summed], dtype=bool)
        finished = Extent.where(ends.reshape(len(summed), self.mesh.workers), of)
        extents = []
        for column, (axis, size) in enumerate(zip(out, shape, strict=True)):
            if axis.label is None:
                extents.append(self._everything(options, size))
                continue
            cuts, of = options.holding(column)
            begin, end = self.ranges(axis.label, cuts)
            extents.append(self.known.extent(begin * axis.width, end * axis.width, of))
        present = self._running(options)
        if not finished.hi.all():
            both = finished if present.hi.all() else present.meet(finished)
            present = self.known.extent(both.lo, both.hi, both.of)
        return self.known.boxed(tuple(extents), present)

    def held_second(self, options: Options, out: Sequence[AxisMap], shape: Sequence[int]) -> Boxes:
        """The box that each worker holds in the second sharding; inactive without one."""
        shardings = [option.second or Sharding.on_one(len(shape)) for option in options.options]
        boxes = self.held(Options(Option(each, each) for each in shardings), out, shape)
        has = np.array([option.second is not None for option in options.options], dtype=bool)
        several = Extent.where(
            np.repeat([[False], [True]], self.mesh.workers, axis=1), has.astype(np.int64)
        )
        return replace(boxes, present=boxes.present.meet(several))

    def _running(self, options: Options) -> Extent:
        """The workers that have a part of the work."""
        if options not in self.known.running:
            idle, of = options.idle(len(self.mesh.shape))
            first = np.array([self.mesh.first(axes) for axes in idle], dtype=bool)
            some = Extent.where(first.reshape(len(idle), self.mesh.workers), of)
            self.known.running[options] = self.known.extent(some.lo, some.hi, of)
        return self.known.running[options]

    def _everything(self, options: Options, size: int) -> Extent:
        """A whole axis for every worker and candidate."""
        nothing = np.zeros((1, self.mesh.workers), dtype=np.int64)
        of = np.zeros(len(options.options), dtype=np.int64)
        return self.known.extent(nothing, nothing + size, of)


def spans_of(picks: Picks, lo: Ints, hi: Ints) -> tuple[Ints, Ints]:
    """The ranges of elements that ranges of iterations of a take read.

    Parameters
    ----------
    picks
        The elements that each iteration reads.
    lo, hi
        The first iteration of every range, and the one after the last.

    Returns
    -------
    The first element of every range, and the one after the last; 0 and 0 for no iterations.
    """
    values, ends = np.array(picks.runs, dtype=np.int64).reshape(-1, 2).T
    # the runs that the iterations of each range are in, from the first one up to the last
    first = np.searchsorted(ends, lo, side="right")
    stop = np.minimum(np.searchsorted(ends, hi, side="left") + 1, len(ends))
    some = (hi > lo) & (first < stop)
    start, end = np.zeros(lo.shape, dtype=np.int64), np.zeros(lo.shape, dtype=np.int64)
    if some.any():
        edges = np.stack([first[some], stop[some]], axis=-1).ravel()
        # what is behind the last run is in no range
        padded = np.append(values, 0)
        start[some] = np.minimum.reduceat(padded, edges)[::2]
        end[some] = np.maximum.reduceat(padded, edges)[::2] + 1
    return start, end


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
