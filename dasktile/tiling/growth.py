"""The number of tasks that a memory limit makes, before tiles are chosen."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from dasktile.ir import AxisMap, Kind, Node, Program, Role
from dasktile.report.formatting import format_limit
from dasktile.tiling.local import MemoryLimitError

#: Tasks of a plan up to which no memory limit is refused (chosen: they take some seconds).
FEW_TASKS = 3000


class TooManyTasksError(MemoryLimitError):
    """A memory limit makes far more tasks than the input has.

    Allowed are 3,000, or ``dasktile.tiling.many-tasks`` for each of the input's.

    Parameters
    ----------
    limit
        The memory limit in bytes.
    tasks, is_bound
        Tasks of the plan, or a lower bound.
    before
        Tasks of the input.
    allowed
        Tasks for each of the input's that are allowed.
    larger
        A larger limit, and the tasks that it makes, in words; empty if none is known.

    Examples
    --------
    >>> import dask.array as da
    >>> import dasktile
    >>> x = da.ones((400, 400), chunks=100)
    >>> dasktile.optimize(x.T @ x, workers=4, memory_limit="1 KiB")
    Traceback (most recent call last):
    ...
    dasktile.tiling.growth.TooManyTasksError: ...
    """

    def __init__(
        self,
        limit: int,
        tasks: int,
        is_bound: bool,
        before: int,
        allowed: float,
        larger: str = "",
    ) -> None:
        super().__init__(limit, tasks, is_bound, before, allowed, larger)
        self.limit, self.tasks, self.is_bound = limit, tasks, is_bound
        self.before, self.allowed, self.larger = before, allowed, larger

    def __str__(self) -> str:
        least = "at least " if self.is_bound else ""
        larger = f", such as {self.larger}" if self.larger else ""
        return (
            f"memory_limit of {format_limit(self.limit)} makes {least}{self.tasks:,} tasks instead"
            f" of {self.before:,}, and at most {most_tasks(self.before, self.allowed):,.0f} are"
            f" allowed: {self.allowed:g} for each of the input's, or {FEW_TASKS:,} if that is more."
            f" Give a larger limit{larger}, or set dasktile.tiling.many-tasks to more than"
            f" {self.allowed:g}"
        )

    def with_larger(self, larger: str) -> TooManyTasksError:
        """The same error with a larger limit."""
        return TooManyTasksError(
            self.limit, self.tasks, self.is_bound, self.before, self.allowed, larger
        )


def most_tasks(before: int, allowed: float) -> float:
    """Tasks that a plan within a memory limit may have.

    Parameters
    ----------
    before
        Tasks of the input.
    allowed
        Tasks for each of them that are allowed.
    """
    return max(allowed * before, FEW_TASKS)


def least_tasks(program: Program, limit: int) -> int:
    """A lower bound of the tasks of any tiling within a memory limit; nothing is searched.

    Nodes whose chunks cannot be cut do not count.  Of nodes that may be fused with their only
    reader, the one with most tasks counts.

    Parameters
    ----------
    program
        The program to tile.
    limit
        Bytes that the tiles of one task may take.

    Returns
    -------
    The bound; 0 if some node does not fit in any tiles.
    """
    total = 0
    # by the index of a node, tasks of it and of nodes that are fused with it
    fused = [0] * len(program.nodes)
    for index, node in enumerate(program.nodes):
        if not node.pinned and node.stored is None:
            tasks = _least_tasks(program, index, limit)
            if not tasks:
                return 0
            fused[index] = max(fused[index], tasks)
        readers = program.consumers(index)
        if len(readers) == 1 and program.nodes[readers[0]].kind in (Kind.MAP, Kind.VIEW):
            fused[readers[0]] = max(fused[readers[0]], fused[index])
        else:
            total += fused[index]
    return total


def _least_tasks(program: Program, index: int, limit: int) -> int:
    """The bound for one node; 0 if it does not fit in any tiles.

    A tile of extents `t` has an operand of at least ``bytes[j] * prod(t[i] for i in labels[j])``
    bytes for each array `j`, and these sum to `limit` at most.  If the same weight `w` is given to
    some arrays, and all weights of a label sum to 1 at least, then the iterations of the tile are
    at most ``prod(operand[j] / bytes[j]) ** w``, which is largest for operands of equal size.
    """
    node = program.nodes[index]
    free = {
        number
        for number, label in enumerate(node.labels)
        if label.role is not Role.WHOLE and label.size > 1
    }
    operands = [_operand(node, node.out, node.shape, node.itemsize, free)]
    if node.kind is Kind.VIEW:
        # a view reads as many bytes as it writes, from any number of arrays
        operands *= 2
    else:
        for edge in node.edges:
            made = program.nodes[edge.producer]
            operands.append(_operand(node, edge.axes, made.shape, made.itemsize, free))
    # arrays that grow with the same labels are like one
    sizes: Counter[frozenset[int]] = Counter()
    for size, labels in operands:
        sizes[labels] += size
    left = limit - sizes.pop(frozenset(), 0)
    used = frozenset[int]().union(*sizes)
    if left <= 0:
        return 0
    if not used:
        return 1
    whole = {used: sizes[used]} if used in sizes else sizes
    largest = min(_iterations(left, sizes, used), _iterations(left, whole, used))
    if largest < 1:
        return 0
    return math.ceil(math.prod(node.labels[number].size for number in used) / largest)


def _operand(
    node: Node, axes: Iterable[AxisMap], shape: tuple[int, ...], itemsize: int, free: set[int]
) -> tuple[int, frozenset[int]]:
    """Bytes of an array in a tile of one iteration, and labels with which they grow."""
    size, labels = itemsize, set()
    for axis, length in zip(axes, shape, strict=True):
        if axis.label is None:
            size *= length
        elif length < node.labels[axis.label].size or not axis.step or axis.width < 1:
            continue
        elif axis.label in free:
            labels.add(axis.label)
        else:
            size *= node.labels[axis.label].size
    return size, frozenset(labels)


def _iterations(limit: int, sizes: Mapping[frozenset[int], int], used: frozenset[int]) -> float:
    """The most iterations of a tile whose operands take `limit` bytes together."""
    weight = 1 / min(sum(label in labels for labels in sizes) for label in used)
    share = limit / len(sizes)
    return math.prod((share / size) ** weight for size in sizes.values())
