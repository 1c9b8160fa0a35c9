"""Recognisers of layers that only move elements: slices, takes, concatenations, rechunks.

The operation is not derived from the name of the layer.  Its tasks are run on positions (see
:mod:`dasktile.capture.rules.provenance`).  Positions with a constant step along every axis become
an affine map.  Several such stretches along one axis are a concatenation, a stack or a roll.
Other positions along one axis are a take.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer
from dask.utils import key_split

from dasktile._compat.dask import Alias, DataNode, Task
from dasktile.capture.base import (
    ArrayInfo,
    GraphView,
    Input,
    NotRecognised,
    Operation,
    Rechunked,
    Recogniser,
)
from dasktile.capture.rules.positions import (
    NotTraceable,
    Positions,
    UnknownFunction,
    move_of,
)
from dasktile.capture.rules.provenance import Trace
from dasktile.capture.rules.reshapes import coarsen, repeat, reshape
from dasktile.capture.rules.slabs import Slab, slabs_of
from dasktile.capture.rules.stencils import sliding, stencil
from dasktile.capture.settings import SETTINGS
from dasktile.ir import AxisMap, Kind, Label, Picks, Role


@dataclass(frozen=True, slots=True)
class Gather:
    """Every tile is one window of the input, with its axes in any order.

    Parameters
    ----------
    order
        For every output axis its input axis, or None if the input repeats along it.  Of any
        other input axis one position is read.
    """

    order: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Output positions ``[lo, hi)`` of a :class:`Concatenate`; `order` is as in a Gather."""

    lo: int
    hi: int
    order: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Concatenate:
    """Consecutive pieces along one output axis, with one edge for each, in order."""

    axis: int
    pieces: tuple[Piece, ...]
    #: The lowering requests windows of the inputs, instead of inputs that are resharded whole.
    fetches: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, eq=False)
class Take:
    """Arbitrary positions of one input axis.

    Parameters
    ----------
    order
        As in a :class:`Gather`.
    axis
        The input axis.
    index
        The positions along the input axis, one for every position of its output axis.
    cells
        The chunk sizes of the input axis in the input graph.
    """

    order: tuple[int | None, ...]
    axis: int
    index: np.ndarray[Any, np.dtype[np.int64]]
    cells: tuple[int, ...]
    #: The lowering requests windows of the inputs, instead of inputs that are resharded whole.
    fetches: ClassVar[bool] = True


def has_p2p_rechunks(graph: HighLevelGraph) -> bool:
    """Whether a graph has a rechunk by the P2P shuffle of distributed.

    Parameters
    ----------
    graph
        The graph.
    """
    return any(map(_is_p2p_rechunk, graph.layers.values()))


def _is_p2p_rechunk(layer: Layer) -> bool:
    return type(layer).__name__ == "P2PRechunkLayer"


def rechunk_p2p(view: GraphView, name: str) -> Rechunked | None:
    """A rechunk by the P2P shuffle of distributed."""
    layer: Any = view.layers[name]
    if not _is_p2p_rechunk(layer):
        return None
    try:
        source, chunks, kept = layer.name_input, layer.chunks, np.all(layer.keepmap)
    except AttributeError:
        return None
    return Rechunked(source) if kept and _is_rechunk(view, name, source, chunks) else None


def _is_rechunk(view: GraphView, name: str, source: str, chunks: Any) -> bool:
    new, old = view.array(name), view.array(source)
    if new is None or old is None or new.chunks != tuple(map(tuple, chunks)):
        return False
    return new.shape == old.shape and new.dtype == old.dtype


def moves(view: GraphView, name: str) -> Operation | Rechunked | NotRecognised | None:
    """A layer whose tasks only move elements."""
    layer, info = view.layers[name], view.array(name)
    if info is None or not _may_only_move(layer) or not all(map(all, info.chunks)):
        return None
    try:
        trace = Trace(view, name)
        return _view_operation(view, info, *slabs_of(view, trace, info))
    except UnknownFunction:
        return None
    except NotTraceable as error:
        return NotRecognised(f"{key_split(name)}: {error}")


def _may_only_move(layer: Layer) -> bool:
    """Whether the first task, other than data, may only move elements."""
    if isinstance(layer, Blockwise):
        # With io_deps it is a source; without, it may be a transpose.
        function = getattr(layer.task, "func", None)
        return not layer.io_deps and move_of(function) is not None
    if not isinstance(layer, MaterializedLayer) or len(layer) > SETTINGS.max_traced_tasks:
        return False
    for value in layer.mapping.values():
        if isinstance(value, DataNode):
            if isinstance(value.value, tuple):  # an index array in a tuple
                continue
            return False
        if isinstance(value, Alias):
            return True
        if isinstance(value, Task):
            return move_of(value.func) is not None
        if type(value) is not tuple or not value:
            return False
        return move_of(value[0]) is not None if callable(value[0]) else True
    return False


# --- from the whole array to a node ----------------------------------------------------


def _view_operation(
    view: GraphView, info: ArrayInfo, slabs: Sequence[Slab], axis: int
) -> Operation | Rechunked:
    uneven = [
        [
            number
            for number, (source, runs) in enumerate(zip(slab.sources, slab.runs, strict=True))
            if source is not None and (len(runs) > 1 or not isinstance(runs[0], range))
        ]
        for slab in slabs
    ]
    if len(slabs) == 1 and uneven[0]:
        (slab,), (number, *others) = slabs, uneven[0]
        if others:
            raise NotTraceable("irregular positions along several axes")
        runs, source, read = slab.runs[number], view.array(slab.name), slab.sources[number]
        assert source is not None and read is not None
        # Few stretches are a concatenation; many are a take, and so are those of an axis whose
        # positions are repeated, as of a climatology that is subtracted from a time series.
        most = min(len(info.chunks[number]) + SETTINGS.extra_stretches, source.shape[read])
        if len(runs) > most or _irregular(runs):
            return _take(view, info, slab, number)
        axis = number
    elif any(number != axis for numbers in uneven for number in numbers):
        raise NotTraceable("irregular positions along one axis, several arrays along another")
    pieces = [piece for slab in slabs for piece in _stretches(slab, axis)]
    if len(pieces) == 1 and _is_identity(view, info, pieces[0]):
        return Rechunked(pieces[0].name)

    builder = _Builder(view, info, {axis} if len(pieces) > 1 else set())
    inputs = [builder.input(piece, axis) for piece in pieces]
    kernel: Gather | Concatenate
    if len(pieces) == 1:
        kernel = Gather(pieces[0].sources)
    else:
        kernel = Concatenate(axis, tuple(Piece(p.lo, p.hi, p.sources) for p in pieces))
        inputs = [builder.bounded(*both, axis) for both in zip(inputs, pieces, strict=True)]
    return builder.operation(kernel, inputs)


def _irregular(runs: Iterable[Positions]) -> bool:
    return any(not isinstance(run, range) for run in runs)


def _stretches(slab: Slab, axis: int) -> list[Slab]:
    """A slab, cut along one axis into stretches of positions with a constant step."""
    if not slab.runs or slab.sources[axis] is None or len(slab.runs[axis]) == 1:
        if slab.runs and slab.sources[axis] is not None and _irregular(slab.runs[axis]):
            raise NotTraceable("irregular positions in one of several arrays")
        return [slab]
    if _irregular(slab.runs[axis]):
        raise NotTraceable("irregular positions in one of several arrays")
    stretches, start = [], slab.lo
    for run in slab.runs[axis]:
        runs = (*slab.runs[:axis], [run], *slab.runs[axis + 1 :])
        stretches.append(Slab(slab.name, slab.sources, slab.fixed, runs, start, start + len(run)))
        start += len(run)
    return stretches


def _is_identity(view: GraphView, info: ArrayInfo, slab: Slab) -> bool:
    source = view.array(slab.name)
    return (
        source is not None
        and source.shape == info.shape
        and slab.sources == tuple(range(len(info.shape)))
        and all(runs[0] == range(size) for runs, size in zip(slab.runs, info.shape, strict=True))
    )


class _Builder:
    """Builder of an operation: labels of the output axes, and maps of the inputs to them.

    `always` are output axes that have a label even if their size is one.
    """

    def __init__(self, view: GraphView, info: ArrayInfo, always: set[int]):
        self.view = view
        self.info = info
        self.labels: list[Label] = []
        self.out: list[AxisMap] = []
        for axis, (size, cuts) in enumerate(zip(info.shape, info.chunks, strict=True)):
            if size == 1 and axis not in always:
                self.out.append(AxisMap(None))
            else:
                self.out.append(AxisMap(len(self.labels)))
                self.labels.append(Label(size, Role.FREE, cuts))
        self._point: int | None = None

    def input(self, slab: Slab, axis: int, special: Mapping[int, AxisMap] | None = None) -> Input:
        """The input of a slab at ``[lo, hi)`` of output axis `axis`."""
        source = self.view.array(slab.name)
        assert source is not None
        maps: list[AxisMap] = []
        shown = {of: number for number, of in enumerate(slab.sources) if of is not None}
        fixed = dict(slab.fixed)
        for number, size in enumerate(source.shape):
            if special and number in special:
                maps.append(special[number])
            elif size == 1:
                maps.append(AxisMap(None))
            elif number in fixed:
                maps.append(self.span(fixed[number], 1))
            elif self.out[shown[number]].label is None:
                maps.append(self.span(slab.runs[shown[number]][0][0], 1))
            else:
                run = slab.runs[shown[number]][0]
                assert isinstance(run, range)
                step = run.step if len(run) > 1 else 1
                start = run[0] - (step * slab.lo if shown[number] == axis else 0)
                maps.append(AxisMap(self.out[shown[number]].label, start, step))
        return Input(slab.name, tuple(maps))

    def bounded(self, read: Input, slab: Slab, axis: int) -> Input:
        """The input of one of several slabs, with the range of iterations that read it.

        The range is omitted where the ends of the array imply it: an operand of a
        concatenation has no elements at the other iterations.
        """
        source, label = self.view.array(slab.name), self.out[axis].label
        assert source is not None and label is not None
        for window, size in zip(read.axes, source.shape, strict=True):
            if window.label == label:
                around = [t for t in (slab.lo - 1, slab.hi) if 0 <= t < self.info.shape[axis]]
                if all(not 0 <= window.start + window.step * t < size for t in around):
                    return read
        return replace(read, within=(label, slab.lo, slab.hi))

    def span(self, start: int, width: int) -> AxisMap:
        """A part of an input axis that every tile reads: it has a label of size one."""
        if self._point is None:
            self._point = len(self.labels)
            self.labels.append(Label(1, Role.WHOLE, (1,)))
        return AxisMap(self._point, int(start), 1, int(width))

    def operation(self, kernel: Any, inputs: Sequence[Input]) -> Operation:
        return Operation(
            op=key_split(self.info.name),
            kind=Kind.VIEW,
            labels=tuple(self.labels),
            out=tuple(self.out),
            kernel=kernel,
            inputs=tuple(inputs),
        )


def _take(view: GraphView, info: ArrayInfo, slab: Slab, number: int) -> Operation:
    axis, source = slab.sources[number], view.array(slab.name)
    assert axis is not None and source is not None
    index = np.concatenate([np.asarray(run, dtype=np.int64) for run in slab.runs[number]])
    builder = _Builder(view, info, {number})
    special = {axis: _cover(builder, number, index, source.shape[axis])}
    runs = tuple([run[0]] if run else run for run in slab.runs)
    plain = Slab(slab.name, slab.sources, slab.fixed, runs, 0, 0)
    inputs = [
        replace(builder.input(plain, -1, special), picks=_picks(builder, axis, number, index))
    ]
    return builder.operation(Take(slab.sources, axis, index, source.chunks[axis]), inputs)


def _picks(
    builder: _Builder, axis: int, number: int, index: np.ndarray[Any, np.dtype[np.int64]]
) -> Picks | None:
    """The elements that a take reads, for their ranges; None if there are too many stretches."""
    label = builder.out[number].label
    starts = np.flatnonzero(np.diff(index, prepend=-1))
    if label is None or len(starts) > SETTINGS.runs:
        return None
    ends = np.append(starts[1:], len(index))
    runs = zip(index[starts].tolist(), ends.tolist(), strict=True)
    return Picks(axis, label, tuple(runs))


def _cover(
    builder: _Builder, number: int, index: np.ndarray[Any, np.dtype[np.int64]], size: int
) -> AxisMap:
    """The window of an axis with the positions of a take; it moves with the output if it can."""
    low, high = int(index.min()), int(index.max())
    if len(index) > 1:
        step = round((int(index[-1]) - int(index[0])) / (len(index) - 1))
        offsets = index - step * np.arange(len(index))
        width = int(offsets.max() - offsets.min()) + 1
        if step >= 1 and max(width, step) * SETTINGS.window_gain <= high - low + 1:
            # At least as wide as its step, so that there is no gap between windows.
            return AxisMap(builder.out[number].label, int(offsets.min()), step, max(width, step))
    if (low, high) == (0, size - 1):
        return AxisMap(None)
    return builder.span(low, high - low + 1)


RECOGNISERS: tuple[Recogniser, ...] = (
    rechunk_p2p,
    reshape,
    repeat,
    coarsen,
    sliding,
    stencil,
    moves,
)

__all__ = ["RECOGNISERS", "Concatenate", "Gather", "Piece", "Take"]
