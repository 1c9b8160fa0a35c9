"""Data on workers that the blocks of an array are made of, through tasks that are no arrays.

``da.from_delayed`` and ``to_dask_array`` make arrays of results of other collections.  Where these
are persisted, Dask runs the tasks on the workers that have the data.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

from dask.blockwise import Blockwise

from dasktile.capture.base import Captured, GraphView, Verbatim
from dasktile.capture.references import Key
from dasktile.ir import Kind, Node

#: Pieces of data that one block may be made of (chosen: few, such as a partition and its index).
MOST_READ = 8


def read_from_memory(captured: Captured, workers: int) -> dict[int, list[tuple[Key, ...]]]:
    """The data on workers that each block of some arrays is made of.

    Parameters
    ----------
    captured
        The program and its graph.
    workers
        Number of workers.

    Returns
    -------
    By the index of a node, for every block in C order the keys of futures, which need not be in
    the graph: ``to_delayed`` leaves them out.  Nodes that read other arrays are left out, as are
    those with a block that is made of no future, or of many, and futures that more blocks are made
    of than a worker's even share, as all blocks may be of a scattered model.
    """
    view = GraphView(captured.graph)
    read = {
        index: _futures_of(view, node)
        for index, (node, kernel) in enumerate(
            zip(captured.program.nodes, captured.kernels, strict=True)
        )
        if _is_made_of_others(node, kernel) and _may_read_futures(view, node.name)
    }
    blocks = list(itertools.chain.from_iterable(read.values()))
    counts = Counter(itertools.chain.from_iterable(blocks))
    most = -(-len(blocks) // workers)
    near = {
        index: [tuple(key for key in keys if counts[key] <= most) for keys in each]
        for index, each in read.items()
    }
    return {index: each for index, each in near.items() if all(each)}


def _is_made_of_others(node: Node, kernel: Any) -> bool:
    """Whether the blocks of an array are results of unknown tasks that read no other array."""
    is_unknown = node.kind is Kind.OPAQUE and isinstance(kernel, Verbatim)
    return is_unknown and not node.edges and not node.resident and node.size > 1


def _may_read_futures(view: GraphView, name: str) -> bool:
    """Whether the tasks of an array may read what is no array of the graph.

    Those of most arrays of which nothing is known, as random ones, read nothing.
    """
    below = view.dependencies(name)
    if below:
        return not all(isinstance(view.layers[other], Blockwise) for other in below)
    if isinstance(view.layers[name], Blockwise):
        return False
    first = next(iter(view.tasks(name).values()), None)
    return first is not None and bool(first.dependencies)


def _futures_of(view: GraphView, node: Node) -> list[tuple[Key, ...]]:
    """For every block, the futures that it is made of; none if these are many."""
    numbers = itertools.product(*(range(len(sizes)) for sizes in node.chunks))
    keys = [(node.name, *number) for number in numbers]
    tasks: Mapping[Key, Any] = {
        key: task for layer in view.needed_tasks(keys).values() for key, task in layer.items()
    }
    read: dict[Key, tuple[Key, ...]] = {}
    for key in keys:
        stack = [key]
        while stack:
            at = stack[-1]
            task = tasks.get(at)
            needs = [] if task is None or at in read else list(task.dependencies - {at})
            waiting = [other for other in needs if other not in read]
            if waiting:
                stack.extend(waiting)
                continue
            stack.pop()
            if at in read:
                continue
            if task is None:
                read[at] = (at,)  # a future, or what a future outside of the graph has
            else:
                below = dict.fromkeys(itertools.chain.from_iterable(map(read.__getitem__, needs)))
                read[at] = tuple(below) if len(below) <= MOST_READ else ()
    return [read[key] for key in keys]
