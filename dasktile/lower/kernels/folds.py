"""Writing reductions and running reductions for other tiles.

A reduction is a task for every tile, which makes a partial result, and a tree of tasks that
combine partials.  First the partials of one worker are combined.  Then, where the result has
finer chunks, the partials are cut into these.  Only these pieces are sent between workers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dask.blockwise import blockwise
from dask.highlevelgraph import MaterializedLayer
from dask.typing import Key

from dasktile._compat.dask import Alias, List, Task, TaskRef
from dasktile.capture.references import head_of
from dasktile.capture.rules.folds import ArgFold, Fold
from dasktile.capture.rules.groups import GroupFold
from dasktile.capture.rules.scans import Scan
from dasktile.ir import Sharding, Where, bounds, output_chunks
from dasktile.lower.anchored import Anchored
from dasktile.lower.emit import EmittedLayers, LoweringContext, emit
from dasktile.lower.names import CARRY, CHUNK, END, slices_layer_name
from dasktile.lower.reshard import within

Block = tuple[int, ...]
Tasks = dict[Any, Any]


@emit.register
def emit_fold(kernel: Fold, context: LoweringContext) -> EmittedLayers:
    """Write a tree reduction."""
    emitted = EmittedLayers()
    name = context.step(CHUNK, context.work_at)
    symbols = tuple(range(len(context.node.labels)))
    counts = tuple(map(len, context.tiling.cuts))
    reads = kernel.symbols or (symbols,) * len(context.inputs)
    pairs = [part for pair in zip(context.inputs, reads, strict=True) for part in pair]
    numblocks = {
        source: tuple(1 if axis.label is None else counts[axis.label] for axis in edge.axes)
        for source, edge in zip(context.inputs, context.node.edges, strict=True)
    }
    layer = blockwise(kernel.chunk, name, symbols, *pairs, numblocks=numblocks)
    emitted.add(name, layer, set(context.inputs))
    _write_tree(kernel, context, emitted, name)
    return emitted


@emit.register
def emit_arg_fold(kernel: ArgFold, context: LoweringContext) -> EmittedLayers:
    """Write a reduction to the index of an extremum."""
    emitted = EmittedLayers()
    name = context.step(CHUNK, context.work_at)
    source = context.inputs[0]
    starts = [bounds(cuts)[:-1] for cuts in context.tiling.cuts]
    tasks: Tasks = {}
    for block in itertools.product(*(range(len(start)) for start in starts)):
        corner = tuple(start[at] for start, at in zip(starts, block, strict=True))
        place = corner[kernel.axes[0]] if kernel.flat is None else (corner, kernel.flat)
        key = (name, *block)
        tasks[key] = Task(key, kernel.chunk, TaskRef((source, *block)), kernel.axes, place)
    emitted.add(name, MaterializedLayer(tasks), {source})
    _write_tree(kernel, context, emitted, name)
    return emitted


def _write_tree(
    kernel: Fold | ArgFold, context: LoweringContext, emitted: EmittedLayers, partials: str
) -> None:
    """Write the tree over the layer `partials`, which has a block for each of the labels'."""
    counts = list(map(len, context.tiling.cuts))
    fan_in = context.settings.fan_in
    work = context.work_at
    ordered = isinstance(kernel, GroupFold) and kernel.ordered
    follows = context.leader is not None and not _divided(context)
    if isinstance(kernel, Fold) and follows and not ordered:
        _write_followed(kernel, context, emitted, partials, counts)
        return
    level = 0
    runs = [_runs(context, label) if label in kernel.axes else [1] * count
            for label, count in enumerate(counts)]  # fmt: skip
    if any(len(runs[label]) > 1 for label in kernel.axes) and isinstance(work, Sharding):
        # partials of one worker are combined on it first
        while math.prod(map(_longest, runs)) > 1:
            groups = _fan_in(list(map(_longest, runs)), kernel.axes, fan_in)
            parts = [_parts(lengths, group) for lengths, group in zip(runs, groups, strict=True)]
            work = work.grouped(parts)
            partials = _level(kernel, context, emitted, partials, parts, level, work)
            counts = [len(part) for part in parts]
            runs = [
                [-(-length // group) for length in lengths]
                for lengths, group in zip(runs, groups, strict=True)
            ]
            level += 1
    pieces = _pieces(context)
    if pieces is not None:
        cut = kernel.piece if isinstance(kernel, GroupFold) else piece
        partials = _cut(context, emitted, partials, counts, pieces, cut)
        counts = [len(pieces[label]) if label in pieces else count
                  for label, count in enumerate(counts)]  # fmt: skip
    result_at = context.result_at
    while math.prod(counts[axis] for axis in kernel.axes) > fan_in:
        reduced = [count if label in kernel.axes else 1 for label, count in enumerate(counts)]
        groups = _fan_in(reduced, kernel.axes, fan_in)
        parts = [_parts([count], group) for count, group in zip(counts, groups, strict=True)]
        partials = _level(kernel, context, emitted, partials, parts, level, result_at)
        counts = [len(part) for part in parts]
        level += 1
    _finish(kernel, context, emitted, partials, counts)


def _divided(context: LoweringContext) -> bool:
    """True where an output axis without a label (the bins of a histogram) is cut."""
    return any(
        axis.label is None and len(sizes) > 1
        for axis, sizes in zip(context.node.out, context.tiling.chunks, strict=True)
    )


def _write_followed(
    kernel: Fold,
    context: LoweringContext,
    emitted: EmittedLayers,
    partials: str,
    counts: Sequence[int],
) -> None:
    """Write the tree of a reduction that follows an array: each worker's partials first.

    The functions by which reductions are recognised do not depend on the order in which
    partials are combined.  The first of equal extrema (:class:`ArgFold`) and of groups would.
    """
    # without a placement: these tasks run where their inputs are
    name = context.step("combine0", None)
    combined: Tasks = {}
    tasks: Tasks = {}
    out = [axis.label for axis in context.node.out]
    for block in itertools.product(
        *(range(1 if label is None else counts[label]) for label in out)
    ):
        index_of = {
            label: index for label, index in zip(out, block, strict=True) if label is not None
        }
        groups: dict[int, list[Block]] = {}
        for full in itertools.product(
            *(
                [index_of[label]] if label in index_of else range(count)
                for label, count in enumerate(counts)
            )
        ):
            groups.setdefault(context.home_position(full), []).append(full)
        terms: list[Key] = []
        for number, position in enumerate(sorted(groups)):
            key: Key = (name, *block, number)
            if len(groups[position]) == 1:
                terms.append((partials, *groups[position][0]))
                continue
            combined[key] = Task(
                key,
                kernel.combine,
                _listed([(partials, *full) for full in groups[position]], kernel),
            )
            terms.append(key)
        key = (context.name, *block)
        tasks[key] = Task(key, kernel.aggregate, _listed(terms, kernel))
    if combined:
        emitted.add(name, MaterializedLayer(combined), {partials})
    reads = {key for task in tasks.values() for key in task.dependencies}
    layers = {head_of(key) for key in reads}
    emitted.add(context.name, MaterializedLayer(tasks), {str(layer) for layer in layers})


def _listed(keys: Sequence[Key], kernel: Fold) -> Any:
    """References in a list for the first reduced axis; lists for the others have one item."""
    nested: list[Any] = [TaskRef(key) for key in keys]
    for _ in kernel.axes[1:]:
        nested = [List(ref) for ref in nested]
    return List(*nested)


def _runs(context: LoweringContext, label: int) -> list[int]:
    """Numbers of neighbouring blocks along a label that each worker has."""
    count = len(context.tiling.cuts[label])
    work = context.work_at
    if isinstance(work, Sharding) and work.dims[label].by:
        return [run for run in work.dims[label].runs if run]
    return [count]


def _longest(runs: Sequence[int]) -> int:
    return max(runs, default=1)


def _fan_in(counts: Sequence[int], axes: Sequence[int], limit: int) -> list[int]:
    """Number of neighbours to combine along every axis, at most `limit`, last axis first."""
    groups, room = [1] * len(counts), limit
    for axis in reversed(axes):
        groups[axis] = min(counts[axis], room)
        room //= groups[axis]
    return groups


def _parts(runs: Sequence[int], group: int) -> list[range]:
    """Ranges of at most `group` neighbours in each of several runs of blocks."""
    ends = bounds(runs)
    return [
        range(lo, min(lo + group, end))
        for start, end in zip(ends[:-1], ends[1:], strict=True)
        for lo in range(start, end, group)
    ]


def _level(
    kernel: Fold | ArgFold,
    context: LoweringContext,
    emitted: EmittedLayers,
    partials: str,
    parts: Sequence[Sequence[range]],
    level: int,
    where: Where,
) -> str:
    """Combine ranges of neighbouring partials."""
    name = context.step(f"combine{level}", where)
    tasks: Tasks = {}
    for block in itertools.product(*(range(len(part)) for part in parts)):
        key = (name, *block)
        spans = [part[at] for part, at in zip(parts, block, strict=True)]
        tasks[key] = Task(key, kernel.combine, _nested(partials, spans, kernel.axes))
    emitted.add(name, MaterializedLayer(tasks), {partials})
    return name


def _nested(
    name: str, spans: Sequence[Sequence[int]], axes: Sequence[int], head: Block = ()
) -> Any:
    """References to blocks, in a list for every reduced axis; the others have one block."""
    axis = len(head)
    if axis == len(spans):
        return TaskRef((name, *head))
    if axis in axes:
        return List(*(_nested(name, spans, axes, (*head, index)) for index in spans[axis]))
    (index,) = spans[axis]
    return _nested(name, spans, axes, (*head, index))


def _pieces(context: LoweringContext) -> dict[int, list[tuple[int, int, int]]] | None:
    """The pieces of the result where its chunks are finer than the cuts of the labels.

    Returns
    -------
    For every label of an output axis, its pieces: the block that contains each, and its range
    in the block.  None where the chunks are the cuts.
    """
    node, tiling = context.node, context.tiling
    if output_chunks(node, tiling.cuts) == tiling.chunks:
        return None
    pieces = {}
    for axis, chunks in zip(node.out, tiling.chunks, strict=True):
        if axis.label is not None:
            pieces[axis.label] = within(chunks, tiling.cuts[axis.label])
    whole = all(len(parts) == len(tiling.cuts[label]) for label, parts in pieces.items())
    return None if whole else pieces


def _cut(
    context: LoweringContext,
    emitted: EmittedLayers,
    partials: str,
    counts: Sequence[int],
    pieces: Mapping[int, Sequence[tuple[int, int, int]]],
    cut: Callable[[Any, tuple[slice, ...]], Any],
) -> str:
    """Cut every partial into the pieces of the result."""
    name = slices_layer_name(context.name)
    tasks: Tasks = {}
    ranges = [range(len(pieces[label]) if label in pieces else count)
              for label, count in enumerate(counts)]  # fmt: skip
    for block in itertools.product(*ranges):
        source, index = list(block), [slice(None)] * len(block)
        for label, own in pieces.items():
            source[label], lo, hi = own[block[label]]
            index[label] = slice(lo, hi)
        key = (name, *block)
        tasks[key] = Anchored(key, cut, TaskRef((partials, *source)), tuple(index))
    emitted.add(name, MaterializedLayer(tasks), {partials})
    return name


def piece(partial: Any, index: tuple[slice, ...]) -> Any:
    """A part of a partial result, which may be a dict of arrays."""
    if isinstance(partial, dict):
        return {field: values[index] for field, values in partial.items()}
    return partial[index]


def _finish(
    kernel: Fold | ArgFold,
    context: LoweringContext,
    emitted: EmittedLayers,
    partials: str,
    counts: Sequence[int],
) -> None:
    """Write the last tasks of the tree, which make the tiles of the result."""
    node, chunks = context.node, context.tiling.chunks
    divided = _divided(context)
    name = context.name
    if divided:
        held = context.held_at
        if isinstance(held, Sharding):
            held = held.seen([None if axis.label is None else dim
                              for dim, axis in enumerate(node.out)])  # fmt: skip
        name = context.step("whole", held)
    tasks: Tasks = {}
    spans = [range(count) if label in kernel.axes else range(1)
             for label, count in enumerate(counts)]  # fmt: skip
    for block in itertools.product(
        *(range(1 if axis.label is None else counts[axis.label]) for axis in node.out)
    ):
        for axis, at in zip(node.out, block, strict=True):
            if axis.label is not None:
                spans[axis.label] = range(at, at + 1)
        key = (name, *block)
        tasks[key] = Task(key, kernel.aggregate, _nested(partials, spans, kernel.axes))
    emitted.add(name, MaterializedLayer(tasks), {partials})
    if not divided:
        return
    # an axis without a label (the bins of a histogram) is complete only in the result
    parts: Tasks = {}
    for block in itertools.product(*(range(len(sizes)) for sizes in chunks)):
        source, index = list(block), [slice(None)] * len(block)
        for at, (axis, sizes) in enumerate(zip(node.out, chunks, strict=True)):
            if axis.label is None:
                edges = bounds(sizes)
                source[at] = 0
                index[at] = slice(edges[block[at]], edges[block[at] + 1])
        key = (context.name, *block)
        parts[key] = Task(key, piece, TaskRef((name, *source)), tuple(index))
    emitted.add(context.name, MaterializedLayer(parts), {name})


@emit.register
def emit_scan(kernel: Scan, context: LoweringContext) -> EmittedLayers:
    """Write a running reduction: scan all tiles in parallel, then merge the carries in."""
    emitted = EmittedLayers()
    name, source, axis = context.name, context.inputs[0], kernel.axis
    scanned, carried, ends = (context.step(what, context.work_at) for what in ("scan", CARRY, END))
    counts = tuple(map(len, context.tiling.cuts))
    if counts[axis] == 1:
        symbols = tuple(range(len(counts)))
        layer = blockwise(kernel.function, name, symbols, source, symbols,
                          numblocks={source: counts})  # fmt: skip
        emitted.add(name, layer, {source})
        return emitted
    edge = tuple(slice(-1, None) if at == axis else slice(None) for at in range(len(counts)))
    if kernel.serial:
        _emit_serial(kernel, context, emitted, counts, edge)
        return emitted
    tiles: Tasks = {}
    scans: Tasks = {}
    carries: Tasks = {}
    last: Tasks = {}
    for block in itertools.product(*map(range, counts)):
        at = block[axis]
        before = (*block[:axis], at - 1, *block[axis + 1 :])
        tile: Key = (name, *block)
        scan: Key = (scanned, *block)
        end: Key = (ends, *block)
        scans[scan] = Task(scan, kernel.function, TaskRef((source, *block)))
        more = at + 1 < counts[axis]
        if more:
            last[end] = Task(end, piece, TaskRef(scan), edge)
        if at == 0:
            tiles[tile] = Alias(tile, scan)
            continue
        # the end of the first tile is the first carry
        carry = TaskRef((ends if at == 1 else carried, *before))
        tiles[tile] = Task(tile, kernel.merge, carry, TaskRef(scan))
        if more:
            key: Key = (carried, *block)
            carries[key] = Task(key, kernel.merge, carry, TaskRef(end))
    emitted.add(scanned, MaterializedLayer(scans), {source})
    emitted.add(ends, MaterializedLayer(last), {scanned})
    reads = {scanned, ends}
    if carries:
        emitted.add(carried, MaterializedLayer(carries), {ends})
        reads.add(carried)
    emitted.add(name, MaterializedLayer(tiles), reads)
    return emitted


def _emit_serial(
    kernel: Scan,
    context: LoweringContext,
    emitted: EmittedLayers,
    counts: Block,
    edge: tuple[slice, ...],
) -> None:
    """Write a running reduction in which each tile depends on the end of the one before."""
    name, source, axis = context.name, context.inputs[0], kernel.axis
    ends = context.step(END, context.work_at)
    tiles: Tasks = {}
    for block in itertools.product(*map(range, counts)):
        tile: Key = (name, *block)
        read = TaskRef((source, *block))
        if block[axis] == 0:
            tiles[tile] = Task(tile, kernel.function, read)
            continue
        before = (*block[:axis], block[axis] - 1, *block[axis + 1 :])
        # in the same layer: two layers would have a cyclic dependency
        carry: Key = (ends, *before)
        tiles[carry] = Task(carry, piece, TaskRef((name, *before)), edge)
        tiles[tile] = Task(tile, kernel.merge, TaskRef(carry), read)
    emitted.add(name, MaterializedLayer(tiles), {source})
