"""Elements that workers receive: what they need minus what they hold, for pairs of candidates.

Boxes are products of ranges, so the count is a product of overlaps and exact.  Two reads of one
array by one node count as the union of their boxes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dasktile.ir import Chunks, bounds
from dasktile.tiling.blocks import Blocks
from dasktile.tiling.boxes import Boxes, numbered, take
from dasktile.tiling.extents import Extent
from dasktile.tiling.overlaps import BLOCK, Overlaps
from dasktile.tiling.settings import CostModel

Ints = npt.NDArray[np.int64]
Table = npt.NDArray[np.float64]

#: Share of all pairs of a worker and a block above which all are counted (chosen: those that share
#: elements take about six times as long each as all do).
FEW = 0.15

#: Elements that the worker that makes a block takes of it, above the mean of the workers that take
#: some, over those that the worker that takes most does (measured: permutations and samples).
TAKEN_WHERE_MOST = 0.1


def received_elements(
    held: Boxes,
    held_blocks: Sequence[Blocks],
    needs: Sequence[Boxes],
    needed_blocks: Sequence[Sequence[Blocks]],
    model: CostModel,
    second: Boxes | None = None,
    known: Overlaps | None = None,
) -> Table:
    """Elements that workers must receive, for candidates of boxes and those that follow.

    Parameters
    ----------
    held, held_blocks
        What each worker holds: candidates that are boxes, then those that are blocks.
    needs, needed_blocks
        The same for what it needs; several reads count as their union.
    model
        Constants of the cost model.
    second
        The boxes of a second sharding that each worker holds as well.
    known
        Overlaps of boxes that were computed before; new ones are added.
    """
    rows, columns = len(held), len(needs[0])
    elements = np.zeros((rows + len(held_blocks), columns + len(needed_blocks)))
    if rows and columns:
        elements[:rows, :columns] = transfer(held, needs, model, second, known)
    if columns:
        for row, blocks in enumerate(held_blocks, rows):
            elements[row, :columns] = transfer(blocks, needs, model)[0]
    for column, reads in enumerate(needed_blocks, columns):
        for need in _united(reads):
            volume = float(need.volume().sum())
            if rows:
                have = need.in_boxes(*numbered(held, need.steps), held.active).sum(axis=1)
                if second is not None:
                    other = need.in_boxes(*numbered(second, need.steps), second.active)
                    have = np.maximum(have, other.sum(axis=1))
                elements[:rows, column] += volume - have
            for row, blocks in enumerate(held_blocks, rows):
                elements[row, column] += volume - blocks.numbered(need.steps).common(need).sum()
    return np.maximum(elements, 0.0)


def made_where_read(
    chunks: Chunks,
    needs: Sequence[Boxes],
    needed_blocks: Sequence[Sequence[Blocks]],
    model: CostModel,
) -> Table:
    """Elements that workers receive if each block is made on the worker that reads most of it.

    A block of which workers take elements is made on nearly any of them: the scheduler knows how
    many tasks read it, and not how many elements these take.

    Parameters
    ----------
    chunks
        Chunks of the array.
    needs, needed_blocks, model
        As for :func:`received_elements`.
    """
    edges = [np.asarray(bounds(sizes), dtype=np.int64) for sizes in chunks]
    needs = _distinct(needs)
    if len(needs) > model.exact_union:
        needs = [_hull(needs)]
    columns, workers = len(needs[0]), needs[0].workers
    elements = np.zeros(columns + len(needed_blocks))
    # the union of the reads is a sum of what each two, three ... of them have in common
    groups = [
        (1 if count % 2 else -1, group)
        for count in range(1, len(needs) + 1)
        for group in itertools.combinations(needs, count)
    ]
    taken = needs[0].taken
    counts = None if taken is None else taken.by_block(edges[taken.axis])
    entries = workers * math.prod(map(len, chunks))
    step = max(1, BLOCK // max(1, entries))
    for start in range(0, columns, step):
        part = np.arange(start, min(start + step, columns))
        common = [
            (sign, functools.reduce(intersection, (take(need, part) for need in group)))
            for sign, group in groups
        ]
        found = _received_by_few(common, edges) if step == 1 else None
        if found is None:
            found_of = [sign * _by_block(boxes, edges, counts) for sign, boxes in common]
            read = np.sum(found_of, axis=0)
            total = read.sum(axis=1)
            if counts is not None:
                mean = total / np.maximum((read > 0).sum(axis=1), 1)
                here = mean + TAKEN_WHERE_MOST * (read.max(axis=1) - mean)
            else:
                here = read.max(axis=1)
            found = (total - here).sum(axis=1)
        elements[part] = found
    whole = Blocks(tuple(edges), np.ones((1, *map(len, chunks)), dtype=bool))
    for column, reads in enumerate(needed_blocks, columns):
        # several reads that follow arrays are received one by one
        for need in _united(reads):
            by_worker = whole.numbered(need.steps).by_block(need)
            elements[column] += (by_worker.sum(axis=0) - by_worker.max(axis=0)).sum()
    return elements


def _received_by_few(reads: Sequence[tuple[int, Boxes]], edges: Sequence[Ints]) -> float | None:
    """Elements that workers receive for one candidate, if each reads few of the blocks, else None.

    Parameters
    ----------
    reads
        What each worker reads is the sum of these boxes, each with its sign.
    edges
        Bounds of the blocks along each axis.
    """
    if any(boxes.taken is not None for _, boxes in reads):
        return None
    numblocks = [len(bound) - 1 for bound in edges]
    blocks = math.prod(numblocks)
    spans = [_spans(boxes, edges) for _, boxes in reads]
    workers = len(spans[0][1])
    if sum(int(counts.prod(axis=1).sum()) for _, counts in spans) > FEW * workers * blocks:
        return None
    # pairs of a worker and a block that it reads, and the elements of it that it reads
    pairs, shares = [], []
    for (sign, boxes), (first, counts) in zip(reads, spans, strict=True):
        totals = counts.prod(axis=1)
        worker = np.repeat(np.arange(workers), totals)
        rest = np.arange(len(worker)) - np.repeat(np.cumsum(totals) - totals, totals)
        block, share = np.zeros(len(worker), dtype=np.int64), np.full(len(worker), float(sign))
        for axis, bound in enumerate(edges):
            at = boxes.step(axis).before(bound)
            behind = counts[:, axis + 1 :].prod(axis=1)[worker]
            index = first[worker, axis] + rest // behind
            rest = rest % behind
            lo = np.maximum(boxes.lo[0, worker, axis], at[index])
            share *= np.maximum(np.minimum(boxes.hi[0, worker, axis], at[index + 1]) - lo, 0)
            block = block * numblocks[axis] + index
        pairs.append(worker * blocks + block)
        shares.append(share)
    pair, position = np.unique(np.concatenate(pairs), return_inverse=True)
    read = np.bincount(position, np.concatenate(shares), len(pair))
    most = np.zeros(blocks)
    np.maximum.at(most, pair % blocks, read)
    return float(read.sum() - most.sum())


def _spans(boxes: Boxes, edges: Sequence[Ints]) -> tuple[Ints, Ints]:
    """The first block that each worker reads, and how many it reads: (workers, axes)."""
    firsts, counts = [], []
    for axis, bound in enumerate(edges):
        at = boxes.step(axis).before(bound)
        lo, hi = boxes.lo[0, :, axis], boxes.hi[0, :, axis]
        first = np.searchsorted(at, lo, side="right") - 1
        some = boxes.active[0] & (hi > lo)
        firsts.append(np.where(some, first, 0))
        counts.append(np.where(some, np.searchsorted(at, hi, side="left") - first, 0))
    return np.stack(firsts, axis=1), np.stack(counts, axis=1)


def _by_block(boxes: Boxes, edges: Sequence[Ints], counts: Table | None) -> Table:
    """Elements that each worker has of each block: (candidates, workers, blocks).

    `counts` are those that are taken, by block along their axis, kind and worker.
    """
    found = boxes.active[..., None].astype(np.float64)
    for axis, extent in enumerate(boxes.extents):
        is_taken = boxes.taken is not None and boxes.taken.axis == axis
        if is_taken and counts is not None:
            shared = np.moveaxis(counts, 0, -1)
        else:
            at = boxes.step(axis).before(edges[axis])
            lo = np.maximum(extent.lo[..., None], at[:-1])
            shared = np.maximum(np.minimum(extent.hi[..., None], at[1:]) - lo, 0)
        found = found[..., None] * shared[extent.of][..., None, :]
        found = found.reshape(len(boxes), boxes.workers, -1)
    return found


def _united(reads: Sequence[Blocks]) -> list[Blocks]:
    """The union of reads on one grid; reads on other grids count separately, which is no less."""
    unions: list[Blocks] = []
    for read in reads:
        for index, other in enumerate(unions):
            both = other.union(read)
            if both is not None:
                unions[index] = both
                break
        else:
            unions.append(read)
    return unions


def transfer(
    held: Boxes | Blocks,
    needs: Sequence[Boxes],
    model: CostModel,
    second: Boxes | None = None,
    known: Overlaps | None = None,
) -> Table:
    """Elements that workers must receive, (candidates of the holder, of the reader).

    Parameters
    ----------
    held
        What each worker holds.
    needs
        What it needs; several boxes count as their union.
    model
        Constants of the cost model.
    second
        The boxes of a second sharding that it holds as well; a reader reads one of the two.
    known
        As for :func:`received_elements`.
    """
    known = Overlaps() if known is None else known
    if second is not None and isinstance(held, Boxes):
        first = transfer(held, needs, model, known=known)
        return np.minimum(first, transfer(second, needs, model, known=known))
    needs = _distinct(needs)
    if len(needs) > model.exact_union:
        return transfer(held, [_hull(needs)], model, known=known)
    rows = 1 if isinstance(held, Blocks) else len(held)
    total = np.zeros((rows, len(needs[0])))
    for count in range(1, len(needs) + 1):
        for group in itertools.combinations(needs, count):
            common = group[0]
            for other in group[1:]:
                common = intersection(common, other)
            missing = known.volume(common)[None, :] - _overlap(held, common, known)
            total += missing if count % 2 else -missing
    return np.maximum(total, 0.0)


def overcounts(needs: Sequence[Boxes], model: CostModel) -> bool:
    """Whether several reads may count elements that none of them reads.

    Parameters
    ----------
    needs
        What each worker needs.
    model
        Constants of the cost model.
    """
    if len(needs) < 2:
        return False
    taken = any(need.taken is not None for need in needs)
    needs = _distinct(needs)
    return len(needs) > 1 and (taken or (len(needs) > model.exact_union and not _fill_hull(needs)))


def _distinct(needs: Sequence[Boxes]) -> list[Boxes]:
    """Several reads, equal ones once; if several are left, of all elements in their boxes."""
    found: list[Boxes] = []
    for need in needs:
        if not any(_are_equal(need, other) for other in found):
            found.append(need)
    return found if len(found) < 2 else [need.ranges() for need in found]


def _are_equal(first: Boxes, second: Boxes) -> bool:
    """Whether two reads are of the same elements."""
    return first is second or (
        first.steps == second.steps
        and first.taken is second.taken
        and first.present.is_equal(second.present)
        and all(map(Extent.is_equal, first.extents, second.extents))
    )


def _fill_hull(needs: Sequence[Boxes]) -> bool:
    """Whether the union of boxes is their bounding box, as of shifts along one axis."""
    first = needs[0]
    if any(need.steps or not np.array_equal(need.active, first.active) for need in needs):
        return False
    lo, hi = np.stack([need.lo for need in needs]), np.stack([need.hi for need in needs])
    lo, hi = lo[:, first.active], hi[:, first.active]
    differ = ((lo != lo[0]) | (hi != hi[0])).any(axis=0)
    if (differ.sum(axis=-1) > 1).any() or (hi <= lo).any():
        return False
    order = np.argsort(lo, axis=0, kind="stable")
    lo, hi = np.take_along_axis(lo, order, 0), np.take_along_axis(hi, order, 0)
    return bool((lo[1:] <= np.maximum.accumulate(hi, axis=0)[:-1]).all())


def _spanned(boxes: Boxes) -> Boxes:
    """The boxes that boxes span, in which all elements count."""
    if not boxes.steps:
        return boxes
    spans = map(Extent.spanned, boxes.extents, boxes.steps)
    return Boxes(tuple(spans), boxes.present)


def intersection(left: Boxes, right: Boxes) -> Boxes:
    """The boxes of what both contain, for each candidate and worker."""
    present = left.present.meet(right.present)
    steps = left.steps
    if left.steps != right.steps:
        meets = [left.step(axis).meet(right.step(axis)) for axis in range(len(left.extents))]
        steps = tuple(meet for meet in meets if meet is not None)
        if len(steps) < len(meets):
            nowhere = np.zeros((1, left.workers), dtype=bool)
            nothing = Extent.where(nowhere, np.zeros(len(left), dtype=np.int64))
            return replace(left, present=nothing)
        left, right = (
            Boxes(tuple(map(Extent.numbered, _spanned(boxes).extents, steps)), boxes.present)
            for boxes in (left, right)
        )
    return Boxes(tuple(map(Extent.meet, left.extents, right.extents)), present, steps)


def _hull(needs: Sequence[Boxes]) -> Boxes:
    """The bounding box of many boxes, used because the reads of a stencil almost coincide."""
    first, *others = map(_spanned, needs)
    lo, hi, active = first.lo, first.hi, first.active
    for other in others:
        empty = (hi <= lo).any(axis=2, keepdims=True)
        none = (other.hi <= other.lo).any(axis=2, keepdims=True)
        lo, hi = (
            np.where(empty, other.lo, np.where(none, lo, np.minimum(lo, other.lo))),
            np.where(empty, other.hi, np.where(none, hi, np.maximum(hi, other.hi))),
        )
        active = active | other.active
    return Boxes.of_bounds(lo, hi, active)


def _overlap(held: Boxes | Blocks, need: Boxes, known: Overlaps) -> Table:
    """Elements that workers need and hold, (candidates of the holder, of the reader)."""
    if not isinstance(held, Blocks):
        return known.overlap(held, need)
    counted = None
    if need.taken is not None:
        axis = need.taken.axis
        counted = axis, need.taken.by_block(held.edges[axis]), need.extents[axis].of
    blocks = held.numbered(need.steps)
    return blocks.in_boxes(need.lo, need.hi, need.active, counted).sum(axis=1)[None, :]
