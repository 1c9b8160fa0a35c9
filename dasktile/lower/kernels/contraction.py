"""Products summed over labels, tile by tile.

Where the cut of a summed label is local to a worker, the products are added up one
after the other, so that no more than one partial result is alive; every part of the
worker mesh has a chain of its own.  What the parts come to is then summed, and, where
the result is divided again, every partial result is cut first, so that no worker
receives more of it than it keeps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

from dask.highlevelgraph import MaterializedLayer

from dasktile._compat.dask import Alias, GraphNode, Task, TaskRef, getitem
from dasktile.capture.rules.blockwise import Contract
from dasktile.ir import Follow, Share, output_chunks
from dasktile.lower.anchored import Anchored
from dasktile.lower.emit import Emission, Emitted, emit
from dasktile.lower.kernels.blas import accumulate, multiply, total
from dasktile.lower.names import slices_of
from dasktile.lower.reshard import FAN_IN, within

Key = tuple[Any, ...]
Block = tuple[int, ...]


@emit.register
def _contract(kernel: Contract, emission: Emission) -> Emitted:
    node, tiling, name = emission.node, emission.tiling, emission.name
    counts = [len(cuts) for cuts in tiling.cuts]
    coarse = output_chunks(node, tiling.cuts)
    scattered = coarse != tiling.chunks
    summed = [label for label in range(len(counts)) if label not in kernel.output]
    parts = [_parts(emission, label, counts[label]) for label in summed]
    of_mesh = _groups(summed, counts, parts)
    partial = emission.step("partial", emission.work_at)

    results: dict[Key, GraphNode] = {}
    steps: dict[Key, GraphNode] = {}
    partials: dict[Block, list[Key]] = {}
    for block in product(*(range(len(sizes)) for sizes in coarse)):
        full = [0] * len(counts)
        for label, at in zip(kernel.output, block, strict=True):
            full[label] = at
        groups = of_mesh if emission.leader is None else _owned(emission, summed, counts, full)
        direct = len(groups) == 1 and not scattered
        last: list[Key] = []
        for group in groups:
            before: Key | None = None
            for number, chosen in enumerate(group):
                for label, at in zip(summed, chosen, strict=True):
                    full[label] = at
                operands = _operands(emission, full)
                if direct and number == len(group) - 1:
                    key, layer = (name, *block), results
                else:
                    key, layer = (partial, *full), steps
                if before is None:
                    layer[key] = Task(key, multiply, kernel, *operands)
                else:
                    layer[key] = Task(key, accumulate, kernel, TaskRef(before), *operands)
                before = key
            if before is not None and not direct:
                last.append(before)
        if not direct:
            partials[block] = last

    emitted = Emitted()
    inputs = set(emission.inputs)
    if steps:
        emitted.add(partial, MaterializedLayer(steps), inputs)
    if scattered:
        pieces, sums = _scattered(emission, coarse, partials)
        scatter = slices_of(name)
        emitted.add(scatter, MaterializedLayer(pieces), {partial})
        emitted.add(name, MaterializedLayer(sums), {scatter})
        return emitted
    reads = {partial} if steps else set()
    if results:
        reads |= inputs
    for block, keys in partials.items():
        _summed(emission, (name, *block), keys, results)
    emitted.add(name, MaterializedLayer(results), reads)
    return emitted


def _parts(emission: Emission, label: int, blocks: int) -> int:
    """How many parts of the worker mesh share a label."""
    sizes = zip(emission.tiling.mesh, emission.mesh, strict=False)
    return max(1, min(blocks, math.prod(size for cut, size in sizes if cut == label)))


def _groups(
    summed: Sequence[int], counts: Sequence[int], parts: Sequence[int]
) -> list[list[Block]]:
    """The blocks of the summed labels, divided among the parts of the mesh, in order."""
    found: dict[Block, list[Block]] = {}
    for chosen in product(*(range(counts[label]) for label in summed)):
        part = tuple(
            at * share // counts[label]
            for at, share, label in zip(chosen, parts, summed, strict=True)
        )
        found.setdefault(part, []).append(chosen)
    return list(found.values())


def _owned(
    emission: Emission, summed: Sequence[int], counts: Sequence[int], full: Sequence[int]
) -> list[list[Block]]:
    """The same where the work follows an array: a chain for everybody who has some of it."""
    found: dict[int, list[Block]] = {}
    block = list(full)
    for chosen in product(*(range(counts[label]) for label in summed)):
        for label, at in zip(summed, chosen, strict=True):
            block[label] = at
        found.setdefault(emission.owner(block), []).append(chosen)
    return [found[place] for place in sorted(found)]


def _operands(emission: Emission, full: Sequence[int]) -> list[TaskRef]:
    found = []
    for number, (edge, name) in enumerate(zip(emission.node.edges, emission.inputs, strict=True)):
        block = (0 if axis.label is None else full[axis.label] for axis in edge.axes)
        copy = (emission.owner(full),) if number in emission.copied else ()
        found.append(TaskRef((name, *copy, *block)))
    return found


def _summed(
    emission: Emission, key: Key, terms: Sequence[Key], tasks: dict[Key, GraphNode]
) -> None:
    """Write the sum of `terms` as `key`, by a tree where they are many."""
    level = 0
    held = emission.held_at
    where = held.after(2) if isinstance(held, Follow) else (Share(), Share(), *held)
    name = emission.step("sum", where)
    while len(terms) > FAN_IN:
        grouped = []
        for number, at in enumerate(range(0, len(terms), FAN_IN)):
            some = terms[at : at + FAN_IN]
            between = (name, level, number, *key[1:])
            tasks[between] = Task(between, total, *map(TaskRef, some))
            grouped.append(between)
        terms = grouped
        level += 1
    if len(terms) == 1:
        tasks[key] = Alias(key, terms[0])
    else:
        tasks[key] = Task(key, total, *map(TaskRef, terms))


def _scattered(
    emission: Emission,
    coarse: Sequence[Sequence[int]],
    partials: dict[Block, list[Key]],
) -> tuple[dict[Key, GraphNode], dict[Key, GraphNode]]:
    """The pieces of the partial results, and their sums in the finer chunks."""
    name, fine = emission.name, emission.tiling.chunks
    axes = [within(sizes, outer) for sizes, outer in zip(fine, coarse, strict=True)]
    scatter = slices_of(name)
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
        _summed(emission, (name, *block), terms, sums)
    return pieces, sums
