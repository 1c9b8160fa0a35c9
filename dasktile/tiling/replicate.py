"""The readers of an array's second sharding, where it is replicated in two shardings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dasktile.tiling.boxes import take
from dasktile.tiling.candidates import Space
from dasktile.tiling.cost import Costs
from dasktile.tiling.received import transfer
from dasktile.tiling.rewrite import Replica


def find_replicas(costs: Costs, states: Sequence[int]) -> list[Replica]:
    """The arrays that an assignment replicates in two shardings, with the readers of the second."""
    space = costs.space
    replicas = []
    for node, index in space.kept.items():
        option = space.variables[index].options[states[index]]
        if option.second is not None:
            readers = _readers(space, states, node, index)
            if readers:
                replicas.append(Replica(node, tuple(readers)))
    return replicas


def _readers(space: Space, states: Sequence[int], node: int, index: int) -> list[tuple[int, int]]:
    """Edges along which fewer bytes come from the second sharding than from the first."""
    kept = space.variables[index]
    model = space.settings.model
    second_boxes = kept.held_second
    assert second_boxes is not None
    first, second = (
        take(kept.held, np.array([states[index]])),
        take(second_boxes, np.array([states[index]])),
    )
    made, own = space.variables[space.made[node]], states[space.made[node]]
    if own < len(made.held):
        # the first sharding is the cheaper one to make from the computed array
        have = take(made.held, np.array([own]))
        if transfer(have, [second], model)[0, 0] < transfer(have, [first], model)[0, 0]:
            first, second = second, first
    readers = []
    for reader in space.program.consumers(node):
        place = space.made[reader]
        variable, state = space.variables[place], states[place]
        for number, edge in enumerate(space.program.nodes[reader].edges):
            need = variable.needs[number] if number < len(variable.needs) else None
            if edge.producer != node or need is None or state >= len(need):
                continue
            row = [take(need, np.array([state]))]
            if transfer(second, row, model)[0, 0] < transfer(first, row, model)[0, 0]:
                readers.append((reader, number))
    return readers
