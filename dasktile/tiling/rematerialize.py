"""What must be held from one pass over an array to the next, and what can be made again instead.

``x - x.mean()`` reads x twice, and the second time only when all of it was read once: until then
it is held, or written and read back where it does not fit.  If x is read from storage, or is
made of nothing but that, it can as well be made again (rematerialisation, as compilers do for
activations), where that is sure to give the same: not of an object or a function that nobody
knows.
"""

from __future__ import annotations

from collections.abc import Sequence

from dasktile.ir import Kind, Program, Role
from dasktile.tiling.rewrite import Replica

#: Nodes that are run again for one array at the most.
LONGEST = 8


def late_readers(program: Program) -> dict[int, tuple[int, ...]]:
    """Arrays that somebody reads only after all of them was read, and who does.

    Returns
    -------
    For each such node, the readers that come in a later pass.
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
    """For every node, the set (bits) of those that need more than a tile of it to begin."""
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
    """Bytes of such arrays that are there at once, if nodes run in their order."""
    changes: dict[int, int] = {}
    for index, late in late_readers(program).items():
        size = program.nodes[index].nbytes
        changes[index] = changes.get(index, 0) + size
        changes[max(late)] = changes.get(max(late), 0) - size
    most = now = 0
    for index in sorted(changes):
        now += changes[index]
        most = max(most, now)
    return most


def spilled_bytes(program: Program, memory: int) -> int:
    """Bytes written and read back for what does not fit.

    Parameters
    ----------
    memory
        Bytes that all workers together can hold.
    """
    return 2 * max(0, held_bytes(program) - memory)


def recompute(program: Program, index: int, late: Sequence[int]) -> Replica | None:
    """How an array is made again for its late readers; None where it cannot be."""
    nodes: set[int] = set()
    waiting = [index]
    while waiting:
        position = waiting.pop()
        node = program.nodes[position]
        cheap = node.kind is Kind.SOURCE or (node.kind is Kind.MAP and bool(node.edges))
        same = node.repeatable and not node.pinned and not node.resident
        if not cheap or not same or len(nodes) >= LONGEST:
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
