"""The program: one kind of node for every array operation.

A :class:`Node` is a loop nest over a few *labels*.  An :class:`AxisMap`, an affine window, maps a
label to each axis of the output and of every array that the node reads.  The :class:`Role` of a
label defines the meaning of a cut.  Elementwise operations, contractions, reductions, scans,
transforms along an axis, slices, flips, concatenation, stencils and reshapes differ only in roles
and maps.  A transpose or a broadcast is no node, only an order of labels on an edge.

This module contains sizes and names only: no arrays, no Dask, no machine.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any

#: Workers for which a plan distinguishes positions; of more workers, neighbours form groups.  The
#: limit bounds the size of tables and of the placement in layer names.
MAX_WORKERS = 4096

#: The reason of an array whose tasks are those of a plan, bundled maybe.
ALREADY_TILED = "already tiled by dasktile; to plan it again, optimise the whole expression"

#: Chunk sizes along every axis of an array, as dask writes them.
Chunks = tuple[tuple[int, ...], ...]

#: The shape of an array, and the type of its elements.
ArrayType = tuple[tuple[int, ...], Any]

#: A half-open range of elements along one axis, read with a step: (start, stop, step).
Window = tuple[int, int, int]

#: A half-open range of a label or an axis: (start, stop).
Range = tuple[int, int]

#: A range of every label of a node.
Ranges = tuple[Range, ...]

#: The end of a run.
_END = itemgetter(1)


class Role(enum.Enum):
    """The meaning of cutting a label, for the operation that loops over it."""

    #: May be cut anywhere; tiles are independent.  Where an axis map is wider than one element,
    #: every tile also reads the halo: the edges of its neighbours.
    FREE = "free"
    #: May be cut anywhere; the partial results are then combined.
    REDUCE = "reduce"
    #: The kernel needs the label in one piece (FFT axis, sort axis, core dimension).
    WHOLE = "whole"
    #: May be cut; a carry then runs from each piece to the next.
    SCAN = "scan"
    #: Keeps the cuts of the input (random sources, user functions, persisted data).
    PINNED = "pinned"


class Kind(enum.Enum):
    """The kinds of node; each is lowered by a function of its own."""

    #: Generated or read on any worker, in any tiles: creation, lazy arrays, NumPy arrays.
    SOURCE = "source"
    #: One block function per tile: elementwise, transpose, fft, gufunc, broadcast.
    MAP = "map"
    #: A product summed over labels: matmul, tensordot, einsum, outer.
    CONTRACT = "contract"
    #: A tree reduction.
    FOLD = "fold"
    #: A running reduction along one label.
    SCAN = "scan"
    #: Elements selected and moved; none are computed.
    VIEW = "view"
    #: Unchanged: its chunks and tasks are those of the input.
    OPAQUE = "opaque"


@dataclass(frozen=True, slots=True)
class Label:
    """One loop of a node.

    Parameters
    ----------
    size
        Number of iterations.
    role
        The meaning of a cut.
    cuts
        Chunk sizes along it in the input graph, which sum to `size`.
    """

    size: int
    role: Role
    cuts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AxisMap:
    """The elements of an axis that one iteration of a label reads or writes.

    Iteration ``t`` uses ``[start + step * t, start + step * t + width)``, clipped to
    the axis.  The identity is ``AxisMap(label)``; a slice ``x[a::s]`` is
    ``start=a, step=s``; a flip is ``start=n - 1, step=-1``; operand number ``k`` of a
    concatenation has ``start=-offset``; a stencil of depth ``d`` has
    ``start=-d, width=2 * d + 1``; a reshape that merges ``(8, 6)`` into ``48`` maps the
    label of size 8 to the merged axis with ``step=width=6``.

    ``label=None`` means that every iteration uses the whole axis, as for an axis of size one that
    is broadcast.

    Windows of several sizes, one after the other, as the days of months, have `breaks`: iteration
    ``t`` reads ``[breaks[t], breaks[t + 1])``, and `step` and `width` are the largest size.

    Blocks that are read whole and have other sizes than those of the label, as those of which a
    mask selects parts, have `parts`: for each, the iteration after its last and the element after
    its last; `step` and `width` are then a rough ratio of sizes.
    """

    label: int | None
    start: int = 0
    step: int = 1
    width: int = 1
    breaks: tuple[int, ...] = ()
    parts: tuple[tuple[int, int], ...] = ()

    @property
    def identity(self) -> bool:
        plain = (self.start, self.step, self.width, self.breaks, self.parts) == (0, 1, 1, (), ())
        return self.label is not None and plain

    def interval(self, lo: int, hi: int, size: int) -> tuple[int, int]:
        """Elements that iterations ``[lo, hi)`` span on an axis of `size`: (start, stop)."""
        if self.label is None:
            return 0, size
        if self.breaks:
            return self.breaks[lo], self.breaks[hi]
        if self.parts:
            begin = bisect_right(self.parts, lo, key=itemgetter(0))
            end = bisect_left(self.parts, hi, key=itemgetter(0))
            return (self.parts[begin - 1][1] if begin else 0), self.parts[end][1]
        first = self.start + self.step * lo
        last = self.start + self.step * (hi - 1)
        begin, end = min(first, last), max(first, last) + self.width
        begin = min(max(begin, 0), size)
        return begin, max(begin, min(end, size))


@dataclass(frozen=True, slots=True)
class Picks:
    """The elements of an axis that a take reads, where no affine window is as narrow.

    Parameters
    ----------
    axis
        The axis of the array that is read.
    label
        The label whose iterations each read one element.
    runs
        The elements in the order of the iterations that read them, each with the number of the
        iteration after the last that reads it in a row.
    """

    axis: int
    label: int
    runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """One array that a node reads.

    Parameters
    ----------
    producer
        Index of the node that makes the array.
    axes
        One map per axis of the producer's array.
    chunks
        If given, the node reads the array in exactly these chunks, because it is unknown how it
        uses them; `axes` then contains only the maps that are known.
    within
        If given, ``(label, lo, hi)``: only iterations of the label in ``[lo, hi)`` read
        the array.  Operand number ``k`` of a stack is read within ``(label, k, k + 1)``.
    spread
        True where several tasks of an unchanged operation read the array, each in some of its
        `chunks`: not all of it is needed on one worker.
    picks
        If given, the elements of one axis that iterations read; all of them read the same part of
        it by `axes`, unless an affine window is narrow.
    first
        If given, for every axis the number, among the `chunks`, of the block that belongs to the
        node's first one, where only a part of both arrays is needed.
    """

    producer: int
    axes: tuple[AxisMap, ...]
    chunks: Chunks | None = None
    within: tuple[int, int, int] | None = None
    spread: bool = False
    picks: Picks | None = None
    first: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a reduction by groups, whose partial results have those of their tile only.

    Parameters
    ----------
    count
        Number of groups in the result.
    runs
        The groups in the order of the iterations of the reduced label, any integers, each with the
        number of the iteration after the last that is in it in a row.
    """

    count: int
    runs: tuple[tuple[int, int], ...]

    def within(self, lo: int, hi: int) -> int:
        """Number of groups in iterations ``[lo, hi)``; those without a group count as one more."""
        return len(self.present(lo, hi))

    def present(self, lo: int, hi: int) -> set[int]:
        """The groups in iterations ``[lo, hi)``."""
        return set(_within(self.runs, lo, hi))


def _within(runs: Sequence[tuple[int, int]], lo: int, hi: int) -> list[int]:
    """The values of the runs that iterations ``[lo, hi)`` are in."""
    if hi <= lo:
        return []
    first = bisect_right(runs, lo, key=_END)
    last = bisect_left(runs, hi, lo=first, key=_END)
    return [value for value, _ in runs[first : last + 1]]


@dataclass(frozen=True, slots=True)
class Node:
    """One operation of the expression, and its result.

    Parameters
    ----------
    name
        Name of the array in the input graph.
    op
        Name of the operation for users: ``"matmul"``, ``"sum"``, ``"getitem"``.
    kind
        See :class:`Kind`.
    labels
        The loop nest.
    out
        One map per output axis.  ``label=None`` is an axis in one piece.
    shape, dtype, itemsize
        Of the output array; `itemsize` in bytes.
    chunks
        Of the output array in the input graph.
    edges
        The arrays read, in the order in which the kernel takes them.
    partial
        Bytes of one element of a partial result where a ``REDUCE`` label is cut (the partial of
        a mean has a sum and a count), and of one element of a carry where a ``SCAN`` label is.
    work
        Floating-point operations per iteration of the whole loop nest.
    stored
        For data read from storage: chunk sizes of the store along every axis.  A stored chunk
        that the tiling cuts is read once for every part.
    resident
        True for a persisted array, which is in the cluster's memory: its chunks are fixed, and
        moving it costs bytes.
    homes
        For a resident array, if known: for every block, in C order, the mesh positions of the
        workers that have it.  For an array whose blocks are made of other data in memory: where
        each is made, as most of its data is there, or as a plan has divided them.
    reason
        Why the node stays unchanged; empty if it does not.
    root
        True for an array whose blocks, in the chunks of the input graph, are made by one task
        each, which reads no other array: it may run on the worker that reads most of its block.
    repeatable
        True if recomputing the array is sure to give the same elements.
    groups
        For a reduction by groups along the last label, the only reduced one, if partial results
        have only the groups of their tile: these groups.
    copy
        Number of this replica, for an array of which the plan has replicas; 0 for the first.
    windows
        Elements of the array for each that is in memory: moving windows are views.
    user_function
        True for a function that the user registered.  Nobody knows how long it takes, so that its
        tiles may be small.
    has_inner_tasks
        True for an unchanged array that is made in more tasks than it has blocks.  The others make
        no array of the program: the workers that have its blocks may have little of the work.
    """

    name: str
    op: str
    kind: Kind
    labels: tuple[Label, ...]
    out: tuple[AxisMap, ...]
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    chunks: Chunks
    edges: tuple[Edge, ...] = ()
    partial: float = 0.0
    work: float = 1.0
    stored: Chunks | None = None
    resident: bool = False
    homes: tuple[tuple[int, ...], ...] | None = None
    reason: str = ""
    root: bool = False
    repeatable: bool = False
    groups: Groups | None = None
    copy: int = 0
    windows: int = 1
    user_function: bool = False
    has_inner_tasks: bool = False

    @property
    def size(self) -> int:
        """Number of elements of the output array."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the output array."""
        return self.size * self.itemsize

    @property
    def held_bytes(self) -> int:
        """Bytes of the output array in memory."""
        return self.nbytes // self.windows

    @property
    def iterations(self) -> int:
        """Size of the whole loop nest."""
        return math.prod(label.size for label in self.labels)

    @property
    def pinned(self) -> bool:
        """True where the node keeps the chunks of the input."""
        return self.kind is Kind.OPAQUE or any(label.role is Role.PINNED for label in self.labels)


@dataclass(frozen=True, slots=True)
class Program:
    """Nodes in topological order, and those of them that are outputs.

    Parameters
    ----------
    nodes
        Every edge points to a smaller index.
    outputs
        Indices of the nodes whose arrays are results, in the caller's order.
    is_part
        True for the needed part of another program: operations may read a part of an array of
        which others read more.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    is_part: bool = False
    _consumers: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        readers: list[list[int]] = [[] for _ in self.nodes]
        for index, node in enumerate(self.nodes):
            for edge in node.edges:
                if readers[edge.producer][-1:] != [index]:
                    readers[edge.producer].append(index)
        object.__setattr__(self, "_consumers", tuple(map(tuple, readers)))

    def consumers(self, index: int) -> tuple[int, ...]:
        """Indices of the nodes that read node `index`."""
        return self._consumers[index]

    def downstream(self, marked: Sequence[bool]) -> list[bool]:
        """For every node, whether it is marked or is computed from a marked node."""
        result = list(marked)
        for index, node in enumerate(self.nodes):
            result[index] |= any(result[edge.producer] for edge in node.edges)
        return result


def bounds(cuts: Sequence[int]) -> tuple[int, ...]:
    """Chunk sizes as boundaries: ``(3, 4)`` is ``(0, 3, 7)``."""
    return tuple(accumulate(cuts, initial=0))


def windows(axis: AxisMap, cuts: Sequence[int] | None, size: int) -> tuple[Window, ...]:
    """The window of a producer's axis that each block of a label reads.

    Parameters
    ----------
    axis
        Map from the label to the axis.
    cuts
        Chunk sizes of the label; ignored, and may be None, where the axis has no label.
    size
        Size of the axis.

    Returns
    -------
    One (start, stop, step) per block, elements in the order in which the label visits
    them: for a negative step ``start > stop`` and stop may be -1.
    """
    if axis.label is None or cuts is None:
        return ((0, size, 1),)
    edges = bounds(cuts)
    if axis.identity and edges[-1] <= size:
        # most axes: each block reads its own elements
        return tuple([(lo, hi, 1) if lo < hi else (0, 0, 1) for lo, hi in pairwise(edges)])
    ranges: list[Window] = []
    for lo, hi in zip(edges[:-1], edges[1:], strict=True):
        if abs(axis.step) == axis.width or axis.width > 1 or axis.step == 1:
            begin, end = axis.interval(lo, hi, size) if hi > lo else (0, 0)
            if axis.step < 0:
                ranges.append((end - 1, begin - 1, -1))
            else:
                ranges.append((begin, end, 1))
        elif hi == lo:
            ranges.append((0, 0, 1))
        else:
            first = axis.start + axis.step * lo
            last = axis.start + axis.step * (hi - 1)
            ranges.append((first, last + (1 if axis.step > 0 else -1), axis.step))
    return tuple(ranges)


def axis_ranges(node: Node, ranges: Ranges) -> tuple[Range, ...]:
    """The range of every axis of a node's array that a range of every label makes."""
    along = []
    for axis, size in zip(node.out, node.shape, strict=True):
        lo, hi = (0, size) if axis.label is None else ranges[axis.label]
        along.append((lo, hi) if axis.label is None else (axis.width * lo, axis.width * hi))
    return tuple(along)


def output_chunks(node: Node, cuts: Sequence[Sequence[int]]) -> Chunks:
    """Chunks of a node's array if its labels have these cuts, before any scatter."""
    chunks: list[tuple[int, ...]] = []
    for axis, size in zip(node.out, node.shape, strict=True):
        if axis.label is None:
            chunks.append((size,))
        else:
            chunks.append(tuple(axis.width * cut for cut in cuts[axis.label]))
    return tuple(chunks)


def validate(program: Program) -> None:
    """Check that a program is well formed.

    Raises
    ------
    ValueError
        If it is not; the message names the node and the error.
    """
    for index, node in enumerate(program.nodes):
        where = f"node {index} ({node.op} {node.name!r})"
        if len(node.out) != len(node.shape) or len(node.chunks) != len(node.shape):
            raise ValueError(f"{where}: {len(node.out)} output maps, shape {node.shape}")
        for position, label in enumerate(node.labels):
            if sum(label.cuts) != label.size:
                raise ValueError(
                    f"{where}: cuts of label {position} sum to {sum(label.cuts)}, not {label.size}"
                )
        for axis, size in zip(node.out, node.shape, strict=True):
            if axis.label is None:
                continue
            if (
                axis.start
                or axis.step != axis.width
                or axis.step * node.labels[axis.label].size != size
            ):
                raise ValueError(f"{where}: output map {axis} does not cover an axis of {size}")
        for edge in node.edges:
            if not 0 <= edge.producer < index:
                raise ValueError(f"{where}: reads node {edge.producer}, which is not before it")
            if len(edge.axes) != len(program.nodes[edge.producer].shape):
                shape = program.nodes[edge.producer].shape
                raise ValueError(f"{where}: {len(edge.axes)} maps for an array of {shape}")
            _check_labels(where, edge.axes, len(node.labels))
    for index in program.outputs:
        if not 0 <= index < len(program.nodes):
            raise ValueError(f"output {index} is not a node")


def _check_labels(where: str, axes: Iterable[AxisMap], count: int) -> None:
    for axis in axes:
        if axis.label is not None and not 0 <= axis.label < count:
            raise ValueError(f"{where}: label {axis.label} does not exist")
