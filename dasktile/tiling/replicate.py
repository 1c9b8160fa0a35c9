"""Which readers of an array that is kept in two tilings read the second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dasktile.tiling.candidates import Boxes, Space
from dasktile.tiling.cost import Costs, transfer
from dasktile.tiling.rewrite import Second


def second_copies(costs: Costs, states: Sequence[int]) -> list[Second]:
    """The arrays that an assignment keeps in two tilings."""
    space = costs.space
    found = []
    for node, at in space.kept.items():
        option = space.variables[at].options[states[at]]
        if option.also is not None:
            readers = _readers(space, states, node, at)
            if readers:
                found.append(Second(node, tuple(readers)))
    return found


def _readers(space: Space, states: Sequence[int], node: int, at: int) -> list[tuple[int, int]]:
    """Edges along which fewer bytes come from the second tiling than from the first."""
    kept = space.variables[at]
    also = kept.also
    assert also is not None
    first, second = _row(kept.held, states[at]), _row(also, states[at])
    made, own = space.variables[space.made[node]], states[space.made[node]]
    if own < len(made.held.lo):
        # what is there already is the first; the copy is made of it
        have = _row(made.held, own)
        if transfer(have, [second])[0, 0] < transfer(have, [first])[0, 0]:
            first, second = second, first
    readers = []
    for reader in space.program.consumers(node):
        place = space.made[reader]
        variable, state = space.variables[place], states[place]
        for number, edge in enumerate(space.program.nodes[reader].edges):
            need = variable.needs[number] if number < len(variable.needs) else None
            if edge.producer != node or need is None or state >= len(need.lo):
                continue
            row = [_row(need, state)]
            if transfer(second, row)[0, 0] < transfer(first, row)[0, 0]:
                readers.append((reader, number))
    return readers


def _row(boxes: Boxes, state: int) -> Boxes:
    one = np.array([state])
    return replace(boxes, lo=boxes.lo[one], hi=boxes.hi[one], active=boxes.active[one])
