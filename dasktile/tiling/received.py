"""Elements that workers receive: what they need minus what they hold, for pairs of candidates.

Boxes are products of ranges, so the count is a product of overlaps and exact.  Two reads of one
array by one node count as the union of their boxes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dasktile.ir import Chunks, bounds
from dasktile.tiling.blocks import Blocks
from dasktile.tiling.boxes import Boxes, Taken, paired, take
from dasktile.tiling.settings import CostModel
from dasktile.tiling.strided import Strided

Ints = npt.NDArray[np.int64]
Table = npt.NDArray[np.float64]

#: Entries of a temporary float64 array while a table is computed; it bounds memory and does not
#: change any result.
BLOCK = 2_000_000

#: Share of all pairs of a worker and a block above which all are counted (chosen: those that share
#: elements take about six times as long each as all do).
FEW = 0.15

#: Steps of a product of matrices for which OpenBLAS starts no threads (by its source).
ONE_THREAD = 2**18

#: Elements that the worker that makes a block takes of it, above the mean of the workers that take
#: some, over those that the worker that takes most does (measured: permutations and samples).
TAKEN_WHERE_MOST = 0.1

#: Time of a step of a product of matrices over that of an elementwise one (measured: one core).
MULTIPLIED = 0.06

#: Axes up to which every split in two groups is compared; of more, those between neighbours
#: (chosen: the number of splits doubles with each axis).
MOST_SPLIT = 12


def received_elements(
    held: Boxes,
    held_blocks: Sequence[Blocks],
    needs: Sequence[Boxes],
    needed_blocks: Sequence[Sequence[Blocks]],
    model: CostModel,
    second: Boxes | None = None,
    known: dict[object, Table] | None = None,
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
        Overlaps of boxes that were computed before, by their content.
    """
    rows, columns = len(held.lo), len(needs[0].lo)
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
                have = need.in_boxes(*_numbered(held, need.steps), held.active)
                if second is not None:
                    other = need.in_boxes(*_numbered(second, need.steps), second.active)
                    have = np.maximum(have, other)
                elements[:rows, column] += volume - have
            for row, blocks in enumerate(held_blocks, rows):
                elements[row, column] += volume - blocks.numbered(need.steps).common(need)
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
    if len(needs) > 1:
        needs = [need.ranges() for need in needs]
    if len(needs) > model.exact_union:
        needs = [_hull(needs)]
    columns, workers = needs[0].active.shape
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
    rows, workers, axes = boxes.lo.shape
    found = boxes.active[..., None].astype(np.float64)
    for axis in range(axes):
        is_taken = boxes.taken is not None and boxes.taken.axis == axis
        if is_taken and counts is not None and boxes.kinds is not None:
            shared = np.moveaxis(counts, 0, -1)[boxes.kinds[:, axis]]
        else:
            at = boxes.step(axis).before(edges[axis])
            lo = np.maximum(boxes.lo[..., axis, None], at[:-1])
            hi = np.minimum(boxes.hi[..., axis, None], at[1:])
            shared = np.maximum(hi - lo, 0)
        found = (found[..., None] * shared[..., None, :]).reshape(rows, workers, -1)
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
    known: dict[object, Table] | None = None,
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
    known = {} if known is None else known
    if second is not None and isinstance(held, Boxes):
        first = transfer(held, needs, model, known=known)
        return np.minimum(first, transfer(second, needs, model, known=known))
    if len(needs) > 1:
        needs = [need.ranges() for need in needs]
    if len(needs) > model.exact_union:
        return transfer(held, [_hull(needs)], model, known=known)
    rows = 1 if isinstance(held, Blocks) else len(held.lo)
    total = np.zeros((rows, len(needs[0].lo)))
    for count in range(1, len(needs) + 1):
        for group in itertools.combinations(needs, count):
            common = group[0]
            for other in group[1:]:
                common = intersection(common, other)
            missing = common.volume().sum(axis=1)[None, :] - _overlap(held, common, known)
            total += missing if count % 2 else -missing
    return np.maximum(total, 0.0)


def _numbered(boxes: Boxes, steps: Sequence[Strided]) -> tuple[Ints, Ints]:
    """Bounds of boxes in which all elements count, as numbers of these elements: (lo, hi)."""
    if not steps:
        return boxes.lo, boxes.hi
    lo, hi = (
        np.stack([step.before(bound[..., axis]) for axis, step in enumerate(steps)], axis=-1)
        for bound in (boxes.lo, boxes.hi)
    )
    return lo, hi


def _spanned(boxes: Boxes) -> Boxes:
    """The boxes that boxes span, in which all elements count."""
    if not boxes.steps:
        return boxes
    spans = [
        step.span(boxes.lo[..., axis], boxes.hi[..., axis]) for axis, step in enumerate(boxes.steps)
    ]
    lo, hi = (np.stack(bound, axis=-1) for bound in zip(*spans, strict=True))
    return Boxes(lo, hi, boxes.active, kinds=boxes.kinds)


def intersection(left: Boxes, right: Boxes) -> Boxes:
    """The boxes of what both contain, for each candidate and worker."""
    active = left.active & right.active
    if left.steps != right.steps:
        meets = [left.step(axis).meet(right.step(axis)) for axis in range(left.lo.shape[-1])]
        steps = tuple(meet for meet in meets if meet is not None)
        if len(steps) < len(meets):
            return replace(left, active=np.zeros_like(active))
        (left_lo, left_hi), (right_lo, right_hi) = (
            _numbered(_spanned(boxes), steps) for boxes in (left, right)
        )
        left = Boxes(left_lo, left_hi, active, steps, left.kinds)
        right = Boxes(right_lo, right_hi, active, steps, right.kinds)
    lo = np.maximum(left.lo, right.lo)
    hi = np.maximum(np.minimum(left.hi, right.hi), lo)
    return Boxes(lo, hi, active, left.steps, _both(left.kinds, right.kinds))


def _both(left: Ints | None, right: Ints | None) -> Ints | None:
    """The kinds of candidates that are of one kind in both; None if they are unknown."""
    if left is None or right is None:
        return None
    return np.stack([paired(*columns) for columns in zip(left.T, right.T, strict=True)], axis=1)


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
    return Boxes(lo, hi, active)


def _overlap(held: Boxes | Blocks, need: Boxes, known: dict[object, Table]) -> Table:
    """Elements that workers need and hold, (candidates of the holder, of the reader)."""
    if not isinstance(held, Blocks):
        return _overlap_of_boxes(held, need, known)
    counted = None
    if need.taken is not None and need.kinds is not None:
        axis = need.taken.axis
        counted = axis, need.taken.by_block(held.edges[axis]), need.kinds[:, axis]
    blocks = held.numbered(need.steps)
    return blocks.in_boxes(need.lo, need.hi, need.active, counted)[None, :]


def _overlap_of_boxes(held: Boxes, need: Boxes, known: dict[object, Table]) -> Table:
    """:func:`_overlap` of two boxes.

    A worker's overlap is a product over the axes.  Candidates share the ranges of an axis, so the
    axes are split into two groups, and products of the one are multiplied, as matrices, by products
    of the other.  Tables of arrays that are cut alike, as those of many groups or iterations are,
    are `known` from the first one on.
    """
    held_lo, held_hi = _numbered(held, need.steps)
    held_kinds, need_kinds = _kinds(held), _kinds(need)
    factors = [
        _shared_of_taken(held_lo[..., axis], held_hi[..., axis], held_kinds[:, axis],
                         need.taken, need_kinds[:, axis])
        if need.taken is not None and need.taken.axis == axis
        else _shared(held_lo[..., axis], held_hi[..., axis], held_kinds[:, axis],
                     need.lo[..., axis], need.hi[..., axis], need_kinds[:, axis])
        for axis in range(held.lo.shape[-1])
    ]  # fmt: skip
    nothing = np.zeros((1, 1), dtype=np.int64)
    if not (held.active.all() and need.active.all()):
        begin, end = (np.broadcast_to(nothing, boxes.active.shape) for boxes in (held, need))
        factors.append(
            _shared(begin, held.active.astype(np.int64), held_kinds[:, -1],
                    end, need.active.astype(np.int64), need_kinds[:, -1])
        )  # fmt: skip
    rows, columns, workers = len(held.lo), len(need.lo), held.lo.shape[1]
    alike = (rows, columns, workers, *(part for factor in factors for part in factor.content()))
    if alike not in known:
        known[alike] = _summed(factors, rows, columns, workers)
    return known[alike]


@dataclass(frozen=True, slots=True)
class _Factor:
    """What candidates share along one axis.

    Parameters
    ----------
    shared
        Elements that each worker has of both, (kinds of the holder, of the reader, workers).
    held, need
        The kind of every candidate of the holder, and of the reader.
    """

    shared: Table
    held: Ints
    need: Ints

    def content(self) -> tuple[object, ...]:
        """Equal for factors of equal content."""
        arrays = self.shared, self.held, self.need
        return self.shared.shape, *(array.tobytes() for array in arrays)


def _shared(
    held_lo: Ints, held_hi: Ints, held: Ints, need_lo: Ints, need_hi: Ints, need: Ints
) -> _Factor:
    """The factor of one axis, from bounds, (candidates, workers), and kinds of candidates."""
    held, some = _first(held)
    need, others = _first(need)
    lo = np.maximum(held_lo[some, None], need_lo[None, others])
    hi = np.minimum(held_hi[some, None], need_hi[None, others])
    return _Factor(np.maximum(hi - lo, 0).astype(np.float64), held, need)


def _shared_of_taken(held_lo: Ints, held_hi: Ints, held: Ints, taken: Taken, need: Ints) -> _Factor:
    """The factor of the axis along which the reader takes elements; arguments as for `_shared`."""
    held, some = _first(held)
    return _Factor(taken.within(held_lo[some], held_hi[some]), held, need)


def _first(kinds: Ints) -> tuple[Ints, Ints]:
    """Kinds as numbers from 0 on, and the first candidate of each."""
    return _first_of(kinds.astype(np.int64, copy=False).tobytes())


@functools.lru_cache(maxsize=1024)
def _first_of(kinds: bytes) -> tuple[Ints, Ints]:
    """`_first`; arrays that are cut alike, as those of many groups, have equal kinds."""
    # faster than np.unique for the few candidates that there are
    number: dict[int, int] = {}
    first: list[int] = []
    numbers = []
    for candidate, kind in enumerate(np.frombuffer(kinds, np.int64).tolist()):
        if kind not in number:
            number[kind] = len(first)
            first.append(candidate)
        numbers.append(number[kind])
    found = np.array(numbers, dtype=np.int64), np.array(first, dtype=np.int64)
    for array in found:
        array.flags.writeable = False
    return found


class _Group:
    """Some axes, with the kinds of candidates that are alike along all of them."""

    def __init__(self, factors: Sequence[_Factor], rows: int, columns: int) -> None:
        self.factors = factors
        self.held = np.zeros(rows, dtype=np.int64)
        self.need = np.zeros(columns, dtype=np.int64)
        for factor in factors:
            self.held = paired(self.held, factor.held)
            self.need = paired(self.need, factor.need)
        self.held, self._some = _first(self.held)
        self.need, self._others = _first(self.need)

    @property
    def pairs(self) -> int:
        """Pairs of kinds."""
        return len(self._some) * len(self._others)

    def product(self, workers: slice) -> Table:
        """Elements that some workers share along the axes, (pairs of kinds, workers)."""
        count = len(range(workers.start, workers.stop))
        result = np.ones((len(self._some), len(self._others), count))
        for factor in self.factors:
            rows, columns = factor.held[self._some], factor.need[self._others]
            result *= factor.shared[rows[:, None], columns[None], workers]
        return result.reshape(self.pairs, count)

    def numbers(self) -> Ints:
        """The pair of kinds of every pair of candidates, (of the holder, of the reader)."""
        return self.held[:, None] * len(self._others) + self.need[None]


def _summed(factors: Sequence[_Factor], rows: int, columns: int, workers: int) -> Table:
    """The product of factors, summed over workers, (candidates of the holder, of the reader)."""
    left, right = (_Group(some, rows, columns) for some in _split(factors, rows, columns))
    total = np.zeros((left.pairs, right.pairs))
    step = max(1, BLOCK // (left.pairs + right.pairs))
    for start in range(0, workers, step):
        part = slice(start, min(start + step, workers))
        if right.factors:
            _add_product(total, left.product(part), right.product(part))
        else:
            total[:, 0] += left.product(part).sum(axis=1)
    elements: Table = np.take(total, left.numbers() * right.pairs + right.numbers())
    return elements


def _add_product(total: Table, left: Table, right: Table) -> None:
    """Add the product of matrices (pairs, workers), in blocks that take one thread.

    Threads of a BLAS library spend more time on waiting for each other than such products take.
    """
    side = max(1, math.isqrt(ONE_THREAD // max(1, left.shape[1])))
    for row in range(0, len(left), side):
        for column in range(0, len(right), side):
            rows, columns = slice(row, row + side), slice(column, column + side)
            total[rows, columns] += left[rows] @ right[columns].T


def _split(
    factors: Sequence[_Factor], rows: int, columns: int
) -> tuple[list[_Factor], list[_Factor]]:
    """Factors in two groups, such that the product takes least time."""

    def pairs(some: Sequence[_Factor]) -> int:
        made = math.prod(len(factor.shared) for factor in some)
        read = math.prod(factor.shared.shape[1] for factor in some)
        return min(made, rows) * min(read, columns)

    def operations(groups: tuple[list[_Factor], list[_Factor]]) -> float:
        left, right = map(pairs, groups)
        multiplied = left * right * MULTIPLIED if groups[1] else 0.0
        return multiplied + sum(pairs(some) * len(some) for some in groups)

    splits = []
    rest = factors[1:]
    choices: Iterable[tuple[bool, ...]] = itertools.product((False, True), repeat=len(rest))
    if len(factors) > MOST_SPLIT:
        choices = (
            tuple(axis >= first for axis in range(len(rest))) for first in range(len(factors))
        )
    for chosen in choices:
        right = [factor for factor, is_right in zip(rest, chosen, strict=True) if is_right]
        left = [
            *factors[:1],
            *(each for each, is_right in zip(rest, chosen, strict=True) if not is_right),
        ]
        splits.append((left, right))
    return min(splits, key=operations)


def _kinds(boxes: Boxes) -> Ints:
    """The kinds of candidates along each axis, found by comparing bounds where not known."""
    if boxes.kinds is not None:
        return boxes.kinds
    parts = [*np.moveaxis(boxes.lo, -1, 0)], [*np.moveaxis(boxes.hi, -1, 0)]
    columns = [_alike(lo, hi) for lo, hi in zip(*parts, strict=True)]
    return np.stack([*columns, _alike(boxes.active)], axis=1)


def _alike(*parts: npt.NDArray[Any]) -> Ints:
    """Numbers that are equal for candidates whose rows are equal."""
    first: dict[bytes, int] = {}
    rows = (b"".join(part[row].tobytes() for part in parts) for row in range(len(parts[0])))
    return np.array([first.setdefault(row, len(first)) for row in rows], dtype=np.int64)
