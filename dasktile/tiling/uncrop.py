"""The plan of a part of a program as one of the whole: what :mod:`dasktile.tiling.crop` cut off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dasktile.ir import (
    Chunks,
    Follow,
    Node,
    Program,
    Range,
    Ranges,
    Role,
    Sharding,
    Share,
    TiledProgram,
    Tiling,
    Where,
    axis_ranges,
    output_chunks,
)
from dasktile.ir.block_numbers import are_short, unless_all
from dasktile.tiling.crop import edges_read, is_needed, within
from dasktile.tiling.plan import Price, TilingPlan
from dasktile.tiling.rewrite import extended_as, is_copy

#: The sizes of the pieces before and after a range.
_Around = tuple[tuple[int, ...], tuple[int, ...]]

#: For every array and axis, the number of the first block of its range, and that of all blocks.
_Blocks = Sequence[Sequence[tuple[int, int]]]


def uncropped(plan: TilingPlan, program: Program, ranges: Sequence[Ranges]) -> TilingPlan | None:
    """The plan of a cropped program for the whole one, of which it computes the same.

    Parameters
    ----------
    plan
        The plan of the cropped program.
    program
        The whole program.
    ranges
        For every node of the whole program, the range of every label that was not cut off.

    Returns
    -------
    The plan; None if no name can say which blocks of persisted arrays its tiles follow.
    """
    if plan.origin is not None:
        before, part, origin = program, plan.program, plan.origin
        edges = [edges_read(before, index, own) for index, own in enumerate(ranges)]
        program = extended_as(before, part, origin, edges)
        ranges = [
            axis_ranges(before.nodes[index], ranges[index])
            if is_copy(part, number, origin)
            else ranges[index]
            for number, index in enumerate(origin)
        ]
    are_read = [is_needed(node, own) for node, own in zip(program.nodes, ranges, strict=True)]
    plan = replace(
        plan,
        program=program,
        before=_without_unread(plan.before, are_read),
        after=_without_unread(plan.after, are_read),
    )
    if plan.tiled is None:
        return plan
    tiled = plan.tiled
    along = [axis_ranges(node, own) for node, own in zip(program.nodes, ranges, strict=True)]
    # of every array, where its blocks begin among those of the whole, which has so many
    blocks = [tuple((len(_around(sizes, place)[0]), len(sizes)) for sizes, place in
                    zip(node.chunks, own, strict=True))
              for node, own in zip(program.nodes, along, strict=True)]  # fmt: skip
    tilings = tuple(
        _whole(node, tiling, own, blocks) if some else _undecided(node)
        for node, tiling, own, some in zip(
            program.nodes, tiled.tilings, ranges, are_read, strict=True
        )
    )
    kept, kept_at = dict(tiled.kept), dict(tiled.kept_at)
    for index, chunks in tiled.kept.items():
        around = list(map(_around, program.nodes[index].chunks, along[index]))
        kept[index] = tuple(map(_joined, around, chunks))
        if index in kept_at:
            kept_at[index] = _extended(kept_at[index], chunks, around, blocks)
    # of an output all is needed, but maybe not of what it follows
    final = {
        (index, chunks): _extended(where, chunks, [((), ())] * len(chunks), blocks)
        for (index, chunks), where in tiled.final.items()
    }
    whole = replace(
        tiled,
        program=program,
        tilings=tilings,
        kept=kept,
        kept_at=kept_at,
        final=final,
        ranges=tuple(ranges),
    )
    return replace(plan, tiled=whole) if _is_named(whole) else None


def _without_unread(price: Price, is_read: Sequence[bool]) -> Price:
    """A price without the tasks of arrays that are not computed."""
    tasks = zip(price.tasks, is_read, strict=True)
    return replace(price, tasks=tuple(count if some else 0 for count, some in tasks))


def _whole(node: Node, tiling: Tiling, ranges: Ranges, blocks: _Blocks) -> Tiling:
    """The tiling of a whole node, with the tiles of its ranges."""
    around = [_around(label.cuts, own) for label, own in zip(node.labels, ranges, strict=True)]
    edges = [
        ((), ()) if axis.label is None else _times(axis.width, around[axis.label])
        for axis in node.out
    ]
    return replace(
        tiling,
        cuts=tuple(map(_joined, around, tiling.cuts)),
        chunks=tuple(map(_joined, edges, tiling.chunks)),
        work_at=tiling.work_at and _extended(tiling.work_at, tiling.cuts, around, blocks),
        held_at=tiling.held_at and _extended(tiling.held_at, tiling.chunks, edges, blocks),
    )


def _around(sizes: Sequence[int], place: Range) -> _Around:
    """The pieces before and after a range."""
    if place == (0, sum(sizes)):
        return (), ()
    return within(sizes, 0, place[0]), within(sizes, place[1], sum(sizes))


def _times(width: int, around: _Around) -> _Around:
    """The pieces of an axis that the pieces of its label make."""
    before, after = around
    return tuple(width * size for size in before), tuple(width * size for size in after)


def _joined(around: _Around, sizes: Sequence[int]) -> tuple[int, ...]:
    """The pieces in a range with those around it."""
    return (*around[0], *sizes, *around[1])


def _extended(
    where: Where,
    chunks: Chunks,
    around: Sequence[_Around],
    blocks: _Blocks,
) -> Where:
    """The placement of pieces of these sizes with those around them.

    These are on the first and the last worker, or follow blocks that are beside the followed ones.
    """
    if isinstance(where, Follow):
        numbers = []
        array = zip(where.dims, where.numbers, blocks[where.node], strict=True)
        for dim, own, (first, count) in array:
            inner = [first + at for at in own or range(1 if dim is None else len(chunks[dim]))]
            if dim is not None:
                step = -1 if inner[-1] < inner[0] else 1
                ahead = [inner[0] - step * at for at in range(len(around[dim][0]), 0, -1)]
                behind = [inner[-1] + step * (1 + at) for at in range(len(around[dim][1]))]
                inner = [min(max(at, 0), count - 1) for at in (*ahead, *inner, *behind)]
            numbers.append(unless_all(inner, count))
        return replace(where, numbers=tuple(numbers))
    dims = []
    for share, (before, after) in zip(where.dims, around, strict=True):
        runs = list(share.runs)
        if runs:
            runs[0] += len(before)
            runs[-1] += len(after)
        dims.append(Share(share.by, tuple(runs)))
    return Sharding(tuple(dims), where.replicated)


def _is_named(tiled: TiledProgram) -> bool:
    """Whether names of layers can say which blocks of persisted arrays the tiles follow."""
    places = [
        *(where for tiling in tiled.tilings for where in (tiling.work_at, tiling.held_at)),
        *tiled.kept_at.values(),
        *tiled.final.values(),
    ]
    return all(are_short(where.numbers) for where in places if isinstance(where, Follow))


def _undecided(node: Node) -> Tiling:
    """The tiling of a node whose array is not needed: the input's own chunks, on one worker."""
    cuts = tuple((label.size,) if label.role is Role.WHOLE else label.cuts for label in node.labels)
    work, held = Sharding.on_one(len(node.labels)), Sharding.on_one(len(node.shape))
    return Tiling(cuts, output_chunks(node, cuts), work, held)
