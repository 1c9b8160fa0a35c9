"""Bytes that each worker receives under one tiling: the busiest one may take longest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dasktile.tiling.blocks import Blocks
from dasktile.tiling.boxes import Boxes, numbered, take
from dasktile.tiling.candidates import Variable
from dasktile.tiling.cost import Costs
from dasktile.tiling.received import intersection

Floats = npt.NDArray[np.float64]


def received_by_worker(costs: Costs, states: Sequence[int]) -> Floats:
    """Bytes that each worker receives, (workers,); they sum up to what the tables have.

    The bytes of each table are divided as what workers need and lack of the array, several reads of
    one node counted one by one, and those of partial results as the results.  Blocks that are made
    where they are read are received evenly.

    Parameters
    ----------
    costs
        The tables.
    states
        The candidate of every variable.
    """
    total = np.zeros(costs.space.mesh.workers)
    for index, variable in enumerate(costs.space.variables):
        if own := float(costs.own[index][states[index]]):
            held = _held(variable, states[index])
            total += own * _shares(held.volume().reshape(-1))
    #: Nodes that are cut alike share their tables.
    known: dict[tuple[int, int, int], Floats] = {}
    for (source, index), table in costs.between.items():
        row, column = states[source], states[index]
        if moved := float(table[row, column]):
            key = id(table), row, column
            if key not in known and costs.is_moving(source, index, states):
                known[key] = np.full(len(total), moved / len(total))
            elif key not in known:
                variables = costs.space.variables
                reads = costs.reads[source, index]
                lacked = _lacked(variables[source], row, variables[index], column, reads)
                known[key] = moved * _shares(lacked)
            total += known[key]
    return total


def _shares(elements: Floats) -> Floats:
    """The share of each worker; all have the same of nothing."""
    whole = elements.sum()
    return elements / whole if whole > 0 else np.full(len(elements), 1 / len(elements))


def _lacked(
    source: Variable, row: int, reader: Variable, column: int, reads: Sequence[int]
) -> Floats:
    """Elements that each worker needs for a reader and does not hold.

    Parameters
    ----------
    source, row
        The variable of the array that is read, and its candidate.
    reader, column
        The variable that reads it, and its candidate.
    reads
        Positions of the edges that read it.
    """
    held = _held(source, row)
    total = np.zeros(source.held.active.shape[1])
    follows = column - len(reader.options) + len(reader.followed)
    for position in reads:
        if follows >= 0:
            blocks = reader.followed[follows].needs[position]
            total += blocks.volume() - _common(held, blocks)
            continue
        boxes = reader.needs[position]
        if boxes is not None:
            need = take(boxes, np.array([column])).ranges()
            total += need.volume()[0] - _common(held, need)
    return np.maximum(total, 0.0)


def _held(variable: Variable, state: int) -> Boxes | Blocks:
    """What each worker holds of an array, in its first sharding."""
    blocks = state - len(variable.options) + len(variable.followed)
    if blocks >= 0:
        return variable.followed[blocks].held
    return take(variable.held, np.array([state]))


def _common(held: Boxes | Blocks, need: Boxes | Blocks) -> Floats:
    """Elements that each worker holds and needs."""
    if isinstance(need, Blocks):
        if isinstance(held, Blocks):
            return held.numbered(need.steps).common(need)
        return need.in_boxes(*numbered(held, need.steps), held.active)[0]
    if isinstance(held, Blocks):
        return held.numbered(need.steps).in_boxes(need.lo, need.hi, need.active)[0]
    return intersection(held, need).volume()[0]
