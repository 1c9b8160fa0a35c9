"""Which data on workers the tasks of unchanged parts of a graph read.

``da.from_delayed`` and ``to_dask_array`` make arrays of results of other collections.  Where these
are persisted, Dask runs the tasks on the workers that have the data.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

from dask.blockwise import Blockwise

from dasktile.capture.base import Captured, GraphView, Verbatim
from dasktile.capture.references import Key
from dasktile.ir import Kind, Node

#: Pieces of data that one block may be made of (chosen: few, such as a partition and its index).
MOST_READ = 8


@dataclass(frozen=True, slots=True)
class DataOfArray:
    """What the tasks of an array read that may be in memory.

    Parameters
    ----------
    blocks
        For every block, in C order, the keys of the data that it is made of; empty if it is made of
        more than `MOST_READ` pieces.
    tasks
        By the key of a task, the keys of the data that it reads itself.
    """

    blocks: Sequence[Sequence[Key]]
    tasks: Mapping[Key, Sequence[Key]]


def data_of_arrays(captured: Captured) -> dict[int, DataOfArray]:
    """The data that the tasks of unchanged arrays read, by the index of their node.

    The data need not be in the graph, from which ``to_delayed`` takes it.  Arrays that read none
    are left out, and so are those that read other arrays: the plan decides where these are.

    Parameters
    ----------
    captured
        The program and its graph.
    """
    view = GraphView(captured.graph)
    found: dict[int, DataOfArray] = {}
    for index, kernel in enumerate(captured.kernels):
        node = captured.program.nodes[index]
        if node.kind is not Kind.OPAQUE or node.resident or node.edges:
            continue
        if isinstance(kernel, Verbatim) and not all(
            isinstance(view.layers[name], Blockwise) for name in kernel.layers
        ):
            made = _data_of(view, node, kernel)
            if made.tasks:
                found[index] = made
    return found


def _data_of(view: GraphView, node: Node, kernel: Verbatim) -> DataOfArray:
    tasks: dict[Key, Any] = {}
    for name in kernel.layers:
        tasks.update(view.tasks(name))
    direct = {
        key: data
        for key, task in tasks.items()
        if (data := [read for read in task.dependencies if read not in tasks])
    }
    numbers = itertools.product(*(range(len(sizes)) for sizes in node.chunks))
    blocks = [(node.name, *number) for number in numbers]
    return DataOfArray(_below(blocks, tasks, direct) if direct else (), direct)


def _below(
    blocks: Sequence[Key], tasks: Mapping[Key, Any], direct: Mapping[Key, Sequence[Key]]
) -> list[tuple[Key, ...]]:
    """For every block, the data that it is made of; none if these are many pieces."""
    needs = {
        key: [read for read in task.dependencies if read in tasks and read != key]
        for key, task in tasks.items()
    }
    found: dict[Key, tuple[Key, ...] | None] = {}
    for key in TopologicalSorter(needs).static_order():
        below = [found[read] for read in needs[key]]
        found[key] = _joined([tuple(direct.get(key, ())), *below])
    return [found.get(block) or () for block in blocks]


def _joined(parts: Iterable[tuple[Key, ...] | None]) -> tuple[Key, ...] | None:
    """Several pieces of data, each once; None if they are many."""
    pieces: dict[Key, None] = {}
    for part in parts:
        if part is None:
            return None
        pieces.update(dict.fromkeys(part))
    return tuple(pieces) if len(pieces) <= MOST_READ else None
