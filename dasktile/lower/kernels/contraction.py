"""Products summed over labels, tile by tile.

The products of one worker are accumulated by a chain of tasks, so that only one partial sum
is in memory at a time.  Every part of the worker mesh has its own chain.  The partial sums of
all parts are then added.  Where the result has finer chunks than the partial sums, these are
cut first, so that no worker receives more of them than it keeps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, product, repeat
from typing import Any

from dask.highlevelgraph import MaterializedLayer

from dasktile._compat.dask import Alias, GraphNode, Task, TaskRef, getitem
from dasktile.capture.rules.blockwise import Contract
from dasktile.ir import Sharding, bounds, output_chunks
from dasktile.lower.anchored import Anchored
from dasktile.lower.emit import EmittedLayers, LoweringContext, emit
from dasktile.lower.kernels.blas import accumulate, multiply, total
from dasktile.lower.names import slices_layer_name
from dasktile.lower.reshard import within

Key = tuple[Any, ...]
Block = tuple[int, ...]


@emit.register
def _contract(kernel: Contract, context: LoweringContext) -> EmittedLayers:
    node, tiling, name = context.node, context.tiling, context.name
    counts = [len(cuts) for cuts in tiling.cuts]
    coarse = output_chunks(node, tiling.cuts)
    finer = coarse != tiling.chunks
    summed = [label for label in range(len(counts)) if label not in kernel.output]
    mesh_groups = _groups(summed, counts, [_runs(context, label) for label in summed])
    partial = context.step("partial", context.work_at)
    #: For every block of the result, and every part of the mesh, the blocks of the loop nest.
    chains: list[tuple[Block, list[list[Block]]]] = []
    for block in product(*(range(len(sizes)) for sizes in coarse)):
        full = [0] * len(counts)
        for label, at in zip(kernel.output, block, strict=True):
            full[label] = at
        groups = (
            mesh_groups
            if context.leader is None
            else _groups_by_home(context, summed, counts, full)
        )
        chains.append((block, [list(_full_blocks(full, summed, group)) for group in groups]))
    every = [full for _, groups in chains for group in groups for full in group]
    operands = _operands(context, every)

    results: dict[Key, GraphNode] = {}
    steps: dict[Key, GraphNode] = {}
    partials: dict[Block, list[Key]] = {}
    for block, groups_of_block in chains:
        direct = len(groups_of_block) == 1 and not finer
        last: list[Key] = []
        for group in groups_of_block:
            before: Key | None = None
            for number, full_block in enumerate(group):
                if direct and number == len(group) - 1:
                    key, layer = (name, *block), results
                else:
                    key, layer = (partial, *full_block), steps
                if before is None:
                    layer[key] = Task(key, multiply, kernel, *next(operands))
                else:
                    layer[key] = Task(key, accumulate, kernel, TaskRef(before), *next(operands))
                before = key
            if before is not None and not direct:
                last.append(before)
        if not direct:
            partials[block] = last

    emitted = EmittedLayers()
    inputs = set(context.inputs)
    if steps:
        emitted.add(partial, MaterializedLayer(steps), inputs)
    if finer:
        pieces, sums = _sum_pieces(context, coarse, partials)
        scatter = slices_layer_name(name)
        emitted.add(scatter, MaterializedLayer(pieces), {partial})
        emitted.add(name, MaterializedLayer(sums), {scatter})
        return emitted
    reads = {partial} if steps else set()
    if results:
        reads |= inputs
    for block, keys in partials.items():
        _summed(context, (name, *block), keys, results)
    emitted.add(name, MaterializedLayer(results), reads)
    return emitted


def _runs(context: LoweringContext, label: int) -> tuple[int, ...]:
    """Blocks of a label in each of the parts into which the mesh divides it."""
    work = context.tiling.work_at
    runs = work.dims[label].runs if isinstance(work, Sharding) else ()
    return runs or (len(context.tiling.cuts[label]),)


def _groups(
    summed: Sequence[int], counts: Sequence[int], runs: Sequence[Sequence[int]]
) -> list[list[Block]]:
    """The blocks of the summed labels, divided among the parts of the mesh, in order."""
    ends = [bounds(each)[1:] for each in runs]
    groups: dict[Block, list[Block]] = {}
    for chosen in product(*(range(counts[label]) for label in summed)):
        part = tuple(bisect_right(end, at) for end, at in zip(ends, chosen, strict=True))
        groups.setdefault(part, []).append(chosen)
    return list(groups.values())


def _groups_by_home(
    context: LoweringContext, summed: Sequence[int], counts: Sequence[int], full: Sequence[int]
) -> list[list[Block]]:
    """The same where the node follows an array: a group for every worker that has blocks."""
    groups: dict[int, list[Block]] = {}
    block = list(full)
    for chosen in product(*(range(counts[label]) for label in summed)):
        for label, at in zip(summed, chosen, strict=True):
            block[label] = at
        groups.setdefault(context.home_position(block), []).append(chosen)
    return [groups[position] for position in sorted(groups)]


def _full_blocks(
    full: list[int], summed: Sequence[int], chosen: Sequence[Block]
) -> Iterator[Block]:
    """A block of the loop nest with each of some blocks of the summed labels."""
    for at in chosen:
        for label, number in zip(summed, at, strict=True):
            full[label] = number
        yield tuple(full)


def _operands(context: LoweringContext, every: Sequence[Block]) -> Iterator[tuple[TaskRef, ...]]:
    """For every block of the loop nest, the blocks of the inputs that it reads.

    Many read the same block, which is one object for all of them.
    """
    columns = list(zip(*every, strict=True))
    operands: list[Iterator[TaskRef]] = []
    for number, (edge, name) in enumerate(zip(context.node.edges, context.inputs, strict=True)):
        numbers: list[Iterable[int]] = [
            repeat(0) if axis.label is None else columns[axis.label] for axis in edge.axes
        ]
        if number in context.copied:
            numbers.insert(0, map(context.home_position, every))
        keys = list(islice(zip(repeat(name), *numbers, strict=False), len(every)))
        refs = {key: TaskRef(key) for key in dict.fromkeys(keys)}
        operands.append(map(refs.__getitem__, keys))
    return zip(*operands, strict=True)


def _summed(
    context: LoweringContext, key: Key, terms: Sequence[Key], tasks: dict[Key, GraphNode]
) -> None:
    """Write the sum of `terms` as `key`, as a tree if there are many."""
    level = 0
    name = context.step("sum", context.held_at.after(2))
    fan_in = context.settings.fan_in
    while len(terms) > fan_in:
        sums: list[Key] = []
        for number, start in enumerate(range(0, len(terms), fan_in)):
            group = terms[start : start + fan_in]
            if len(group) == 1:
                sums += group
                continue
            partial = (name, level, number, *key[1:])
            tasks[partial] = Task(partial, total, *map(TaskRef, group))
            sums.append(partial)
        terms = sums
        level += 1
    if len(terms) == 1:
        tasks[key] = Alias(key, terms[0])
    else:
        tasks[key] = Task(key, total, *map(TaskRef, terms))


def _sum_pieces(
    context: LoweringContext,
    coarse: Sequence[Sequence[int]],
    partials: dict[Block, list[Key]],
) -> tuple[dict[Key, GraphNode], dict[Key, GraphNode]]:
    """Tasks that cut the partial sums into finer chunks, and tasks that add these pieces."""
    name, fine = context.name, context.tiling.chunks
    axes = [within(sizes, outer) for sizes, outer in zip(fine, coarse, strict=True)]
    scatter = slices_layer_name(name)
    pieces: dict[Key, GraphNode] = {}
    sums: dict[Key, GraphNode] = {}
    for block in product(*(range(len(axis)) for axis in axes)):
        places = [axis[at] for axis, at in zip(axes, block, strict=True)]
        part = tuple(slice(lo, hi) for _, lo, hi in places)
        terms = []
        for number, whole in enumerate(partials[tuple(place[0] for place in places)]):
            key = (scatter, number, *block)
            pieces[key] = Anchored(key, getitem, TaskRef(whole), part)
            terms.append(key)
        _summed(context, (name, *block), terms, sums)
    return pieces, sums
