"""Arrays that are held from one pass to the next, and how they can be recomputed instead.

``x - x.mean()`` reads x twice, and the second read starts when the first one has finished.  Until
then x is held, or spilled where it does not fit.  If x is read from storage, or consists of
elementwise functions of such arrays, it can be recomputed instead (rematerialisation, as compilers
do for activations).  This is done only where the values are sure to be the same, which excludes
unknown objects and unknown functions.
"""

from __future__ import annotations

from collections.abc import Sequence

from dasktile.ir import Kind, Program, Role
from dasktile.tiling.rewrite import Replica


def late_readers(program: Program) -> dict[int, tuple[int, ...]]:
    """Arrays that some node reads only after the whole array was read.

    Returns
    -------
    For each such node, the indices of the readers in a later pass.
    """
    after = _after(program)
    held: dict[int, tuple[int, ...]] = {}
    for index in range(len(program.nodes)):
        readers = program.consumers(index)
        later = 0
        for reader in readers:
            later |= after[reader]
        late = tuple(reader for reader in readers if later >> reader & 1)
        if late:
            held[index] = late
    return held


def _after(program: Program) -> list[int]:
    """For every node, the set (as bits) of nodes that start after all of its tiles are read."""
    count = len(program.nodes)
    below, after = [0] * count, [0] * count
    for index in range(count - 1, -1, -1):
        node = program.nodes[index]
        for reader in program.consumers(index):
            below[index] |= below[reader] | 1 << reader
            after[index] |= after[reader]
        whole = node.kind is Kind.OPAQUE or any(
            label.role in (Role.REDUCE, Role.SCAN, Role.WHOLE) and label.size > 1
            for label in node.labels
        )
        if whole:
            after[index] = below[index]
    return after


def held_bytes(program: Program) -> int:
    """Most bytes of arrays of :func:`late_readers` held at once, if nodes run in their order."""
    changes: dict[int, int] = {}
    for index, late in late_readers(program).items():
        size = program.nodes[index].held_bytes
        changes[index] = changes.get(index, 0) + size
        changes[max(late)] = changes.get(max(late), 0) - size
    most = now = 0
    for index in sorted(changes):
        now += changes[index]
        most = max(most, now)
    return most


def spilled_bytes(program: Program, memory: int) -> int:
    """Bytes that are spilled and read back, because held arrays exceed the memory.

    Parameters
    ----------
    memory
        Bytes that all workers together can hold.
    """
    return 2 * max(0, held_bytes(program) - memory)


def recompute(program: Program, index: int, late: Sequence[int], max_nodes: int) -> Replica | None:
    """The nodes that recompute an array for its late readers.

    None where the values might differ, where that would be expensive, or where it would take more
    than `max_nodes` nodes.
    """
    nodes: set[int] = set()
    waiting = [index]
    while waiting:
        position = waiting.pop()
        node = program.nodes[position]
        cheap = node.kind is Kind.SOURCE or (node.kind is Kind.MAP and bool(node.edges))
        same = node.repeatable and not node.pinned and not node.resident
        if not cheap or not same or len(nodes) >= max_nodes:
            return None
        if position not in nodes:
            nodes.add(position)
            waiting.extend(edge.producer for edge in node.edges)
    readers = tuple(
        (reader, position)
        for reader in late
        for position, edge in enumerate(program.nodes[reader].edges)
        if edge.producer == index
    )
    return Replica(index, readers, tuple(sorted(nodes)))
