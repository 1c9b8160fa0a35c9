"""Making a tile within the one task that needs it, instead of before it.

A tile that several tasks read is made once, by a task of its own.  One that a single task
reads, on the worker where it is read, need not be held in memory until its turn comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dask._task_spec import Task
from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer, MaterializedLayer

from dasktile.schedule.placement import decode


def absorbed(
    layers: Mapping[str, Layer],
    dependencies: Mapping[str, set[str]],
    light: Sequence[str],
    outputs: Collection[str],
) -> tuple[dict[str, Layer], dict[str, set[str]]]:
    """Layers whose tasks make for themselves what nobody else needs.

    Parameters
    ----------
    layers, dependencies
        Of a graph.
    light
        Layers whose tasks read one tile at most, and make none that is smaller, so that
        to absorb them a task needs no more memory.  Readers come before what they read.
    outputs
        Layers that are asked for.

    Returns
    -------
    The layers and dependencies of the same graph with fewer tasks.
    """
    found, reads = dict(layers), {name: set(needed) for name, needed in dependencies.items()}
    readers: dict[str, set[str]] = {}
    for name, needed in reads.items():
        for other in needed:
            readers.setdefault(other, set()).add(name)
    for name in light:
        mine = sorted(readers.get(name, ()))
        if name not in found or name in outputs or not mine:
            continue
        if not all(_is_last(found, readers, layer) for layer in (name, *mine)):
            continue
        changed = _absorb(found, name, mine)
        for reader in changed:
            reads[reader] |= reads[name]
            for other in reads[name]:
                readers[other].add(reader)
        if not found[name]:
            for reader in mine:
                reads[reader].discard(name)
            for other in reads.pop(name):
                readers[other].discard(name)
            del found[name]
    return found, reads


def _is_last(layers: Mapping[str, Layer], readers: Mapping[str, set[str]], name: str) -> bool:
    """False for a layer that Dask may yet make one with those that read it."""
    layer = layers[name]
    if isinstance(layer, Blockwise):
        return not any(isinstance(layers[other], Blockwise) for other in readers.get(name, ()))
    return type(layer) is MaterializedLayer


def _absorb(layers: dict[str, Layer], name: str, readers: Sequence[str]) -> list[str]:
    """Take tasks of a layer into those of its readers; which of these have changed."""
    tiles = dict(layers[name])
    times: Counter[Any] = Counter()
    for reader in readers:
        for task in layers[reader].values():
            times.update(task.dependencies & tiles.keys())
    changed = []
    for reader in readers:
        tasks = dict(layers[reader])
        taken = []
        for key, task in tasks.items():
            alone = [
                read
                for read in sorted(task.dependencies & tiles.keys())
                if times[read] == 1 and _together(read, key) and type(tiles[read]) is Task
            ]
            if alone and type(task) is Task:
                tasks[key] = Task.fuse(*(tiles[read] for read in alone), task)
                taken += alone
        if taken:
            layers[reader] = _with_tasks(layers[reader], tasks)
            for read in taken:
                del tiles[read]
            changed.append(reader)
    if changed:
        layers[name] = _with_tasks(layers[name], tiles)
    return changed


def _with_tasks(layer: Layer, tasks: Mapping[Any, Any]) -> MaterializedLayer:
    return MaterializedLayer(
        tasks,
        annotations=layer.annotations,
        collection_annotations=layer.collection_annotations,
    )


def _together(read: Any, key: Any) -> bool:
    """True if two tasks are on the same worker, or nobody has said where they are."""
    first, second = decode(read[0]), decode(key[0])
    if first is None or second is None:
        return first is None and second is None
    return (
        first.follow is None
        and second.follow is None
        and first.mesh == second.mesh
        and first.position(read[1:]) == second.position(key[1:])
    )
