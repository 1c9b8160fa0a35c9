"""Which data on workers the tasks of unchanged parts of a graph read.

``da.from_delayed`` and ``to_dask_array`` make arrays of results of other collections.  Where these
are persisted, Dask runs the tasks on the workers that have the data.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

from dask.blockwise import Blockwise

from dasktile._compat.dask import Alias, Task, fused_tasks, getitem
from dasktile.capture.base import Captured, GraphView, Verbatim
from dasktile.capture.references import Key, reference
from dasktile.capture.rules.fold_table import FIRST_STEPS
from dasktile.capture.rules.trees import unwrap
from dasktile.capture.seen import is_installed
from dasktile.ir import Kind, Node

#: The share of each piece of data that is read, by its key.
Pieces = dict[Key, float]

#: Pieces of data that one block may be made of (chosen: few, such as a partition and its index).
MOST_READ = 8

#: The share of a block that a reduction passes on (chosen: next to nothing).
REDUCED = 0.01

#: Share of the largest piece of a block up to which a piece is left out, if there are many (chosen:
#: as the edges of a block's neighbours).
SMALL_PIECE = 0.1

#: Bytes of other arrays that an array reads, as a share of its own, up to which its data decides
#: where its blocks are made (chosen: a mask and its axes).
SMALL_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class DataOfArray:
    """What the tasks of an array read that may be in memory.

    Parameters
    ----------
    blocks
        For every block, in C order, the keys of the data that it is made of, and which share of
        each it reads, roughly.  Empty if it is made of more than `MOST_READ` pieces.
    makers
        For every block, the key of the task that makes it: another one where it is an alias.
    tasks
        By the key of a task, the keys of the data that it reads itself.
    only_for
        By the key of such a task, the number of the only block that is made of its result; tasks of
        several blocks are left out.
    is_quick
        Whether all functions are of installed packages.  Those of the user may take long.
    """

    blocks: Sequence[Mapping[Key, float]]
    makers: Sequence[Key]
    tasks: Mapping[Key, Sequence[Key]]
    only_for: Mapping[Key, int]
    is_quick: bool = True


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
        if (
            sum(captured.program.nodes[other].nbytes for other in others)
            > SMALL_SHARE * node.nbytes
        ):
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
        return DataOfArray((), (), {}, {})
    needs = {
        key: [read for read in task.dependencies if read in tasks and read != key]
        for key, task in tasks.items()
    }
    inputs_first = list(TopologicalSorter(needs).static_order())
    only = _only_blocks(blocks, needs, inputs_first)
    return DataOfArray(
        _below(node, blocks, tasks, direct, needs, inputs_first),
        [_maker(block, tasks) for block in blocks],
        direct,
        {key: number for key in direct if (number := only.get(key)) is not None},
        all(map(_calls_packages, tasks.values())),
    )


def _calls_packages(task: Any) -> bool:
    """Whether a task, into which others may be fused, calls only functions of packages."""
    steps = fused_tasks(task)
    if steps:
        return all(map(_calls_packages, steps.values()))
    if not isinstance(task, Task):
        return True
    function = unwrap(task.func).function
    inner = (each for each in task.args if isinstance(each, Task))
    # objects that can be called have no name
    is_known = is_installed(function) or is_installed(type(function))
    return is_known and all(map(_calls_packages, inner))


def _maker(block: Key, tasks: Mapping[Key, Any]) -> Key:
    """The key of the task that a block is the result of."""
    while isinstance(task := tasks.get(block), Alias) and task.target in tasks:
        block = task.target
    return block


def _only_blocks(
    blocks: Sequence[Key], needs: Mapping[Key, Sequence[Key]], inputs_first: Sequence[Key]
) -> dict[Key, int | None]:
    """By the key of a task, the number of the only block made of its result; None for several."""
    only: dict[Key, int | None] = {key: number for number, key in enumerate(blocks)}
    for key in reversed(inputs_first):
        number = only.get(key)
        for read in needs[key]:
            only[read] = number if only.get(read, number) == number else None
    return only


def _below(
    node: Node,
    blocks: Sequence[Key],
    tasks: Mapping[Key, Any],
    direct: Mapping[Key, Sequence[Key]],
    needs: Mapping[Key, Sequence[Key]],
    inputs_first: Iterable[Key],
) -> list[Pieces]:
    """For every block, the shares of data that it is made of; none if these are many pieces."""
    # data has about the shape of the blocks that are made of it
    shape = [max(sizes, default=0) for sizes in node.chunks]
    found: dict[Key, Pieces | None] = {}
    for key in inputs_first:
        read: dict[Key, Pieces | None] = {each: {each: 1.0} for each in direct.get(key, ())}
        read |= {each: found[each] for each in needs[key]}
        found[key] = _pieces(tasks[key], read, shape)
    return [found.get(block) or {} for block in blocks]


def _pieces(task: Any, read: Mapping[Key, Pieces | None], shape: Sequence[int]) -> Pieces | None:
    """The shares of data that a task is made of; None if these are many pieces.

    Parameters
    ----------
    task
        The task, into which others may be fused.
    read
        The same of what it reads.
    shape
        Of the data, roughly.
    """
    if steps := fused_tasks(task):
        _, last, names, *reads = task.args
        inside = dict(read) | {
            name: read.get(reference(each), {}) for name, each in zip(names, reads, strict=True)
        }
        ordered = TopologicalSorter(
            {
                key: [each for each in step.dependencies if each in steps]
                for key, step in steps.items()
            }
        )
        for key in ordered.static_order():
            inside[key] = _pieces(steps[key], inside, shape)
        return inside[last]
    # slices of what a task reads may be tasks among its arguments
    inner = [each for each in getattr(task, "args", ()) if isinstance(each, Task)]
    nested = set().union(*(each.dependencies for each in inner))
    own = [each for each in task.dependencies if each not in nested or _is_argument(task, each)]
    parts = [_pieces(each, read, shape) for each in inner]
    pieces = _joined([*parts, *(read.get(each, {}) for each in own)])
    part = _part(task, shape)
    return pieces and {each: share * part for each, share in pieces.items()}


def _is_argument(task: Any, key: Key) -> bool:
    """Whether a task reads a result as a whole, as an argument of its own."""
    return any(reference(each) == key for each in task.args)


def _joined(parts: Iterable[Mapping[Key, float] | None]) -> Pieces | None:
    """Several pieces of data and the shares of them that are read; None if they are many.

    Where there are many, small shares are left out, as those of a mean of all.
    """
    pieces: Pieces = {}
    for part in parts:
        if part is None:
            return None
        for key, share in part.items():
            pieces[key] = max(share, pieces.get(key, 0.0))
    if len(pieces) <= MOST_READ:
        return pieces
    least = max(REDUCED, SMALL_PIECE * max(pieces.values()))
    large = {key: share for key, share in pieces.items() if share > least}
    return large if len(large) <= MOST_READ else None


def _part(task: Any, shape: Sequence[int]) -> float:
    """The share of its input that a task passes on, if that has a shape."""
    function = getattr(task, "func", None)
    if function is not None and unwrap(function).function in FIRST_STEPS:
        return REDUCED
    if function not in (operator.getitem, getitem) or len(task.args) != 2:
        return 1.0
    index = task.args[1]
    if type(index) is not tuple or len(index) != len(shape):
        return 1.0
    return math.prod(
        _length(part, size) / max(1, size) if type(part) is slice else 1.0
        for part, size in zip(index, shape, strict=True)
    )


def _length(part: slice, size: int) -> int:
    """Elements of a slice of an axis of about `size`, but not more than that.

    Data that is cut into several blocks has a longer axis than these.
    """
    ends = [abs(end) for end in (part.start, part.stop) if isinstance(end, int)]
    return min(size, len(range(*part.indices(max(size, *ends, 0)))))
