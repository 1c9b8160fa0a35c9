"""Writing reductions and running reductions for other tiles.

A reduction becomes a step that makes a partial result of every tile, and a tree over the
partials: first those of one worker are combined, then, where the result is divided again,
the partials are cut into its pieces, and only then does anything travel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from dask.blockwise import blockwise
from dask.highlevelgraph import MaterializedLayer
from dask.typing import Key

from dasktile._compat.dask import Alias, List, Task, TaskRef
from dasktile.capture.references import head_of
from dasktile.capture.rules.folds import ArgFold, Fold
from dasktile.capture.rules.scans import Scan
from dasktile.ir import Follow, Share, Where, bounds, output_chunks
from dasktile.lower.anchored import Anchored
from dasktile.lower.emit import Emission, Emitted, emit
from dasktile.lower.names import slices_of
from dasktile.lower.reshard import FAN_IN, within

Block = tuple[int, ...]
Tasks = dict[Any, Any]


@emit.register
def emit_fold(kernel: Fold, emission: Emission) -> Emitted:
    """Write a tree reduction."""
    emitted = Emitted()
    name = emission.step("chunk", emission.work_at)
    symbols = tuple(range(len(emission.node.labels)))
    counts = tuple(map(len, emission.tiling.cuts))
    pairs = [part for source in emission.inputs for part in (source, symbols)]
    layer = blockwise(
        kernel.chunk, name, symbols, *pairs, numblocks=dict.fromkeys(emission.inputs, counts)
    )
    emitted.add(name, layer, set(emission.inputs))
    _combined(kernel, emission, emitted, name)
    return emitted


@emit.register
def emit_arg_fold(kernel: ArgFold, emission: Emission) -> Emitted:
    """Write a reduction to the place of an extremum."""
    emitted = Emitted()
    name = emission.step("chunk", emission.work_at)
    source = emission.inputs[0]
    starts = [bounds(cuts)[:-1] for cuts in emission.tiling.cuts]
    tasks: Tasks = {}
    for block in itertools.product(*(range(len(start)) for start in starts)):
        corner = tuple(start[at] for start, at in zip(starts, block, strict=True))
        place = corner[kernel.axes[0]] if kernel.flat is None else (corner, kernel.flat)
        key = (name, *block)
        tasks[key] = Task(key, kernel.chunk, TaskRef((source, *block)), kernel.axes, place)
    emitted.add(name, MaterializedLayer(tasks), {source})
    _combined(kernel, emission, emitted, name)
    return emitted


def _combined(kernel: Fold | ArgFold, emission: Emission, emitted: Emitted, partials: str) -> None:
    """Write the tree over the layer `partials`, whose blocks are those of the labels."""
    counts = list(map(len, emission.tiling.cuts))
    shares = emission.work_at
    if isinstance(kernel, Fold) and emission.leader is not None and not _divided(emission):
        _owned(kernel, emission, emitted, partials, counts)
        return
    workers = [_workers(emission, label) if label in kernel.axes else 1
               for label in range(len(counts))]  # fmt: skip
    level = 0
    if any(parts > 1 for parts in workers) and not isinstance(shares, Follow):
        # what one worker has is combined there, however many workers there are
        local = [
            count // parts if label in kernel.axes else 1
            for label, (count, parts) in enumerate(zip(counts, workers, strict=True))
        ]
        while math.prod(local) > 1:
            groups = _fan_in(local, kernel.axes)
            parts = [_parts(here, group, count // here)
                     for here, group, count in zip(local, groups, counts, strict=True)]  # fmt: skip
            shares = tuple(share.grouped(part) for share, part in zip(shares, parts, strict=True))
            partials = _level(kernel, emission, emitted, partials, parts, level, shares)
            counts = [len(part) for part in parts]
            local = [-(-here // group) for here, group in zip(local, groups, strict=True)]
            level += 1
    pieces = _pieces(emission)
    if pieces is not None:
        partials = _cut(emission, emitted, partials, counts, pieces)
        counts = [len(pieces[label]) if label in pieces else count
                  for label, count in enumerate(counts)]  # fmt: skip
    ends_at = emission.ends_at
    while math.prod(counts[axis] for axis in kernel.axes) > FAN_IN:
        reduced = [count if label in kernel.axes else 1 for label, count in enumerate(counts)]
        groups = _fan_in(reduced, kernel.axes)
        parts = [_parts(count, group) for count, group in zip(counts, groups, strict=True)]
        partials = _level(kernel, emission, emitted, partials, parts, level, ends_at)
        counts = [len(part) for part in parts]
        level += 1
    _finish(kernel, emission, emitted, partials, counts)


def _divided(emission: Emission) -> bool:
    """True where an axis that no label loops over (the bins of a histogram) is cut."""
    return any(
        axis.label is None and len(sizes) > 1
        for axis, sizes in zip(emission.node.out, emission.tiling.chunks, strict=True)
    )


def _owned(
    kernel: Fold, emission: Emission, emitted: Emitted, partials: str, counts: Sequence[int]
) -> None:
    """Write the end of a reduction that follows an array: first what each worker has.

    Which partials meet first makes no difference to the functions that reductions are
    recognised by; it would to the first of equal extrema (:class:`ArgFold`).
    """
    # they are where the partials are that they read
    name = emission.step("combine0", None)
    combined: Tasks = {}
    tasks: Tasks = {}
    out = [axis.label for axis in emission.node.out]
    for block in itertools.product(
        *(range(1 if label is None else counts[label]) for label in out)
    ):
        at = {label: place for label, place in zip(out, block, strict=True) if label is not None}
        groups: dict[int, list[Block]] = {}
        for full in itertools.product(
            *([at[label]] if label in at else range(count) for label, count in enumerate(counts))
        ):
            groups.setdefault(emission.owner(full), []).append(full)
        terms: list[Key] = []
        for number, place in enumerate(sorted(groups)):
            key: Key = (name, *block, number)
            if len(groups[place]) == 1:
                terms.append((partials, *groups[place][0]))
                continue
            combined[key] = Task(
                key, kernel.combine, _listed([(partials, *full) for full in groups[place]], kernel)
            )
            terms.append(key)
        key = (emission.name, *block)
        tasks[key] = Task(key, kernel.aggregate, _listed(terms, kernel))
    if combined:
        emitted.add(name, MaterializedLayer(combined), {partials})
    reads = {key for task in tasks.values() for key in task.dependencies}
    layers = {head_of(key) for key in reads}
    emitted.add(emission.name, MaterializedLayer(tasks), {str(layer) for layer in layers})


def _listed(keys: Sequence[Key], kernel: Fold) -> Any:
    """References in a list for the first reduced axis; along the others there is one."""
    nested: list[Any] = [TaskRef(key) for key in keys]
    for _ in kernel.axes[1:]:
        nested = [List(ref) for ref in nested]
    return List(*nested)


def _workers(emission: Emission, label: int) -> int:
    """How many workers share a label; every tile for itself where that is not even."""
    parts = math.prod(
        size for size, cut in zip(emission.mesh, emission.tiling.mesh, strict=False) if cut == label
    )
    count = len(emission.tiling.cuts[label])
    return parts if count % parts == 0 else count


def _fan_in(counts: Sequence[int], axes: Sequence[int]) -> list[int]:
    """How many neighbours to combine along every axis, the last axis first."""
    groups, room = [1] * len(counts), FAN_IN
    for axis in reversed(axes):
        groups[axis] = min(counts[axis], room)
        room //= groups[axis]
    return groups


def _parts(count: int, group: int, times: int = 1) -> list[range]:
    """Ranges of `group` neighbours in each of `times` runs of `count` blocks."""
    return [
        range(run * count + lo, run * count + min(lo + group, count))
        for run in range(times)
        for lo in range(0, count, group)
    ]


def _level(
    kernel: Fold | ArgFold,
    emission: Emission,
    emitted: Emitted,
    partials: str,
    parts: Sequence[Sequence[range]],
    level: int,
    where: Where,
) -> str:
    """Combine ranges of neighbouring partials."""
    name = emission.step(f"combine{level}", where)
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
    at = len(head)
    if at == len(spans):
        return TaskRef((name, *head))
    if at in axes:
        return List(*(_nested(name, spans, axes, (*head, index)) for index in spans[at]))
    (index,) = spans[at]
    return _nested(name, spans, axes, (*head, index))


def _pieces(emission: Emission) -> dict[int, list[tuple[int, int, int]]] | None:
    """How the result is divided further than the labels are cut, if it is.

    Returns
    -------
    For every label that an output axis loops over, its pieces: the block that holds each
    and the range of it within the block.
    """
    node, tiling = emission.node, emission.tiling
    if output_chunks(node, tiling.cuts) == tiling.chunks:
        return None
    found = {}
    for axis, chunks in zip(node.out, tiling.chunks, strict=True):
        if axis.label is not None:
            found[axis.label] = within(chunks, tiling.cuts[axis.label])
    whole = all(len(pieces) == len(tiling.cuts[label]) for label, pieces in found.items())
    return None if whole else found


def _cut(
    emission: Emission,
    emitted: Emitted,
    partials: str,
    counts: Sequence[int],
    pieces: Mapping[int, Sequence[tuple[int, int, int]]],
) -> str:
    """Cut every partial into the pieces of the result."""
    name = slices_of(emission.name)
    tasks: Tasks = {}
    ranges = [range(len(pieces[label]) if label in pieces else count)
              for label, count in enumerate(counts)]  # fmt: skip
    for block in itertools.product(*ranges):
        source, index = list(block), [slice(None)] * len(block)
        for label, own in pieces.items():
            source[label], lo, hi = own[block[label]]
            index[label] = slice(lo, hi)
        key = (name, *block)
        tasks[key] = Anchored(key, piece, TaskRef((partials, *source)), tuple(index))
    emitted.add(name, MaterializedLayer(tasks), {partials})
    return name


def piece(partial: Any, index: tuple[slice, ...]) -> Any:
    """A part of a partial result, which may be a dict of arrays."""
    if isinstance(partial, dict):
        return {field: values[index] for field, values in partial.items()}
    return partial[index]


def _finish(
    kernel: Fold | ArgFold,
    emission: Emission,
    emitted: Emitted,
    partials: str,
    counts: Sequence[int],
) -> None:
    """Make the tiles of the result."""
    node, chunks = emission.node, emission.tiling.chunks
    divided = _divided(emission)
    name = emission.name
    if divided:
        held = emission.held_at
        name = emission.step(
            "whole",
            held
            if isinstance(held, Follow)
            else tuple(
                Share() if axis.label is None else share
                for axis, share in zip(node.out, held, strict=True)
            ),
        )
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
    # an axis that no label loops over (the bins of a histogram) is there only at the end
    parts: Tasks = {}
    for block in itertools.product(*(range(len(sizes)) for sizes in chunks)):
        source, index = list(block), [slice(None)] * len(block)
        for at, (axis, sizes) in enumerate(zip(node.out, chunks, strict=True)):
            if axis.label is None:
                edges = bounds(sizes)
                source[at] = 0
                index[at] = slice(edges[block[at]], edges[block[at] + 1])
        key = (emission.name, *block)
        parts[key] = Task(key, piece, TaskRef((name, *source)), tuple(index))
    emitted.add(emission.name, MaterializedLayer(parts), {name})


@emit.register
def emit_scan(kernel: Scan, emission: Emission) -> Emitted:
    """Write a running reduction: tiles scanned at once, carries handed on, merged in."""
    emitted = Emitted()
    name, source, axis = emission.name, emission.inputs[0], kernel.axis
    scanned, carried, ends = (
        emission.step(what, emission.work_at) for what in ("scan", "carry", "end")
    )
    counts = tuple(map(len, emission.tiling.cuts))
    if counts[axis] == 1:
        symbols = tuple(range(len(counts)))
        layer = blockwise(kernel.function, name, symbols, source, symbols,
                          numblocks={source: counts})  # fmt: skip
        emitted.add(name, layer, {source})
        return emitted
    edge = tuple(slice(-1, None) if at == axis else slice(None) for at in range(len(counts)))
    if kernel.serial:
        _emit_serial(kernel, emission, emitted, counts, edge)
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
    kernel: Scan, emission: Emission, emitted: Emitted, counts: Block, edge: tuple[slice, ...]
) -> None:
    """Write a running reduction whose tiles each start where the one before has ended."""
    name, source, axis = emission.name, emission.inputs[0], kernel.axis
    ends = emission.step("end", emission.work_at)
    tiles: Tasks = {}
    for block in itertools.product(*map(range, counts)):
        tile: Key = (name, *block)
        read = TaskRef((source, *block))
        if block[axis] == 0:
            tiles[tile] = Task(tile, kernel.function, read)
            continue
        before = (*block[:axis], block[axis] - 1, *block[axis + 1 :])
        # within the layer: two layers would have to read each other
        carry: Key = (ends, *before)
        tiles[carry] = Task(carry, piece, TaskRef((name, *before)), edge)
        tiles[tile] = Task(tile, kernel.merge, TaskRef(carry), read)
    emitted.add(name, MaterializedLayer(tiles), {source})
