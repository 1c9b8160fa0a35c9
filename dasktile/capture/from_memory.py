"""Which data on workers the tasks of unchanged parts of a graph read.

``da.from_delayed`` and ``to_dask_array`` make arrays of results of other collections.  Where these
are persisted, Dask runs the tasks on the workers that have the data.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

from dask.blockwise import Blockwise

from dasktile._compat.dask import Alias, getitem
from dasktile.capture.base import Captured, GraphView, Verbatim
from dasktile.capture.references import Key
from dasktile.ir import Kind, Node

#: Pieces of data that one block may be made of (chosen: few, such as a partition and its index).
MOST_READ = 8

#: Bytes of other arrays that an array reads, over its own, up to which its data decides where its
#: blocks are made (chosen: a mask and its axes).
SMALL = 0.1


@dataclass(frozen=True, slots=True)
class DataOfArray:
    """What the tasks of an array read that may be in memory.

    Parameters
    ----------
    blocks
        For every block, in C order, the keys of the data that it is made of; empty if it is made of
        more than `MOST_READ` pieces.  Those of which it has slices only are left out where it has
        others as a whole: slices are made where their data is.
    makers
        For every block, the key of the task that makes it: another one where it is an alias.
    tasks
        By the key of a task, the keys of the data that it reads itself.
    """

    blocks: Sequence[Sequence[Key]]
    makers: Sequence[Key]
    tasks: Mapping[Key, Sequence[Key]]


def data_of_arrays(captured: Captured) -> dict[int, DataOfArray]:
    """The data that the tasks of unchanged arrays read, by the index of their node.

    The data need not be in the graph, from which ``to_delayed`` takes it.  Arrays that read none
    are left out, and so are those that read large other arrays: the plan decides where these are.

    Parameters
    ----------
    captured
        The program and its graph.
    """
    view = GraphView(captured.graph)
    found: dict[int, DataOfArray] = {}
    for index, kernel in enumerate(captured.kernels):
        node = captured.program.nodes[index]
        if node.kind is not Kind.OPAQUE or node.resident:
            continue
        others = {edge.producer for edge in node.edges}
        if sum(captured.program.nodes[other].nbytes for other in others) > SMALL * node.nbytes:
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
    if not direct:
        return DataOfArray((), (), {})
    return DataOfArray(
        _below(blocks, tasks, direct), [_maker(block, tasks) for block in blocks], direct
    )


def _maker(block: Key, tasks: Mapping[Key, Any]) -> Key:
    """The key of the task that a block is the result of."""
    while isinstance(task := tasks.get(block), Alias) and task.target in tasks:
        block = task.target
    return block


def _below(
    blocks: Sequence[Key], tasks: Mapping[Key, Any], direct: Mapping[Key, Sequence[Key]]
) -> list[tuple[Key, ...]]:
    """For every block, the data that it is made of; none if these are many pieces."""
    needs = {
        key: [read for read in task.dependencies if read in tasks and read != key]
        for key, task in tasks.items()
    }
    found: dict[Key, dict[Key, bool] | None] = {}
    for key in TopologicalSorter(needs).static_order():
        whole = not _takes_slice(tasks[key])
        below = [found[read] for read in needs[key]]
        found[key] = _joined([dict.fromkeys(direct.get(key, ()), True), *below], whole)
    pieces = [found.get(block) or {} for block in blocks]
    return [tuple(key for key in each if each[key] or not any(each.values())) for each in pieces]


def _joined(parts: Iterable[Mapping[Key, bool] | None], whole: bool) -> dict[Key, bool] | None:
    """Several pieces of data, and whether each is read as a whole; None if they are many."""
    pieces: dict[Key, bool] = {}
    for part in parts:
        if part is None:
            return None
        for key, read in part.items():
            pieces[key] = pieces.get(key, False) or (read and whole)
    return pieces if len(pieces) <= MOST_READ else None


def _takes_slice(task: Any) -> bool:
    """Whether a task takes a part of an array by slices, one along each axis."""
    if getattr(task, "func", None) not in (operator.getitem, getitem) or len(task.args) != 2:
        return False
    index = task.args[1]
    return type(index) is tuple and any(
        type(part) is slice and (part.start, part.stop) != (None, None) for part in index
    )
