"""Where results of Dask's own graph are that got workers: the names of their tasks say it.

The name of such a result says nothing, as its blocks are in no order on a grid of workers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dasktile._compat.dask import Alias
from dasktile.capture.base import Captured
from dasktile.capture.references import Key, head_of
from dasktile.ir import Kind, Node, Program
from dasktile.lower.bundle_tasks import keys_in
from dasktile.schedule.homes import positions_of
from dasktile.schedule.placement import decode, is_written


def with_homes_of_results(captured: Captured, workers: int) -> Captured:
    """A program in which results of plans whose names say no workers have those of their tasks.

    Parameters
    ----------
    captured
        The program.
    workers
        Number of workers.
    """
    nodes = list(captured.program.nodes)
    for index, node in enumerate(nodes):
        if node.kind is not Kind.OPAQUE or node.resident or node.homes:
            continue
        if is_written(node.name) and decode(node.name) is None:
            homes = _homes(captured, node, workers)
            if homes is not None:
                nodes[index] = replace(node, homes=tuple((home,) for home in homes))
    if nodes == list(captured.program.nodes):
        return captured
    return replace(captured, program=Program(tuple(nodes), captured.program.outputs))


def _homes(captured: Captured, node: Node, workers: int) -> list[int] | None:
    """The mesh position of every block of an array, in C order; None if some are unknown."""
    layer = captured.graph.layers[node.name]
    homes: list[int] = []
    for block in itertools.product(*(range(len(sizes)) for sizes in node.chunks)):
        key: Key = (node.name, *block)
        home = None if key not in layer else _home(layer[key], workers)
        if home is None:
            return None
        homes.append(home)
    return homes


def _home(task: Any, workers: int) -> int | None:
    """The mesh position of a task: by its own name, else that of all that it reads."""
    own = next(
        (home for key in _own_keys(task) if (home := _position(key, workers)) is not None), None
    )
    if own is not None:
        return own
    reads = {_position(key, workers) for key in task.dependencies}
    return reads.pop() if len(reads) == 1 else None


def _own_keys(task: Any) -> Iterator[Key]:
    """The keys of what a task runs, or stands for, the last one first."""
    if type(task) is Alias:
        yield task.target
    yield from reversed(keys_in(task))


def _position(key: Key, workers: int) -> int | None:
    """The mesh position that a key gives on so many workers; None if it gives none."""
    placement = decode(head_of(key)) if type(key) is tuple else None
    there = positions_of(placement, workers)
    if placement is None or there is None:
        return None
    position = placement.position_of(key[1:])
    return None if position is None else there[position]
