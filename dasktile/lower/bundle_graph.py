"""The graph with bundles: its layers and tasks, and what is known of the memory of each task."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from dasktile._compat.dask import Alias, Task, TaskRef
from dasktile.capture.references import head_of
from dasktile.lower.anchored import Anchored, anchor_tasks
from dasktile.lower.bundle_layout import BundleLayout
from dasktile.lower.bundle_tasks import Path, pick, run_bundle
from dasktile.lower.gathered import Part
from dasktile.lower.layers import in_place_of
from dasktile.lower.names import BUNDLES, new_layer_name, part_layer_name
from dasktile.lower.placed import GraphMemory, TaskMemory, guessed_share, task_memory
from dasktile.lower.run_order import live_bytes
from dasktile.lower.runs import Run
from dasktile.lower.tasks import GraphTasks
from dasktile.schedule.placement import MARK

Key = Any


def graph_with_bundles(layout: BundleLayout) -> HighLevelGraph:
    """The new graph.

    It has the layers of frozen tasks and of data, a layer for each phase, and the layers of
    outputs.  A layer depends on those of lower phases, and no layer on that of an output.

    Parameters
    ----------
    layout
        Its keys, and where every result is.
    """
    tasks = layout.tasks
    phases = layout.table.phases
    #: Layers whose tasks are written anew.
    computed = {
        tasks.layer[number]
        for number, reads in enumerate(tasks.reads)
        if reads or number in layout.run_of or number in layout.changed
    }
    #: By layer: the tasks that stay in it, and those in new layers, by phase.
    original: dict[str, dict[Key, Any]] = {}
    new: dict[tuple[int, str], dict[Key, Any]] = {}
    outputs: dict[str, dict[Key, Any]] = {}
    for number, name in enumerate(tasks.layer):
        if number in tasks.frozen or name not in computed:
            original.setdefault(name, {})[tasks.keys[number]] = tasks.tasks[number]
            continue
        if block := _block_made_elsewhere(layout, number):
            outputs.setdefault(name, {}).update(block)
        if number in layout.run_of:
            continue
        key, task = _single(layout, number)
        if number in tasks.kept and number not in layout.shared:
            outputs.setdefault(name, {})[key] = task
        else:
            # annotations are those of a layer
            part = name if tasks.graph.layers[name].annotations else ""
            new.setdefault((phases[number], part), {})[key] = task
    ends = {layout.names.get(name, name): name for name in tasks.wanted}
    for at, run in enumerate(layout.runs):
        for key, task in _bundle_and_picks(layout, at):
            name = ends.get(head_of(key), "")
            group = outputs.setdefault(name, {}) if name else None
            if group is None:
                group = new.setdefault((phases[run.tasks[0]], ""), {})
            group[key] = task
    layers = dict(_same_layer(tasks, name, kept) for name, kept in original.items())
    for (phase, part), group in sorted(new.items(), key=lambda item: item[0]):
        name = new_layer_name(BUNDLES, layout.token, phase, part)
        layers[name] = _layer(group, tasks.graph.layers.get(part))
    for name, group in outputs.items():
        before = tasks.graph.layers[name]
        # blocks that are not wanted may be frozen
        frozen = original.get(name, {}) if name not in layout.names else {}
        layers[layout.names.get(name, name)] = in_place_of(before, {**frozen, **group})
    return _connected(layers, tasks.graph.layers)


def _block_made_elsewhere(layout: BundleLayout, number: int) -> dict[Key, Any]:
    """By key, a block of an output that has another key, too, or is in a tuple."""
    if number not in layout.tasks.kept:
        return {}
    key = layout.output_key(number)
    if key in layout.taken:
        part = layout.taken[key]
        return {key: Anchored(key, pick, TaskRef(part.key), part.path)}
    return {key: Alias(key, layout.key_of[number])} if number in layout.shared else {}


def _single(layout: BundleLayout, number: int) -> tuple[Key, Any]:
    """The key and the task of a task in no run; it may read bundles and picks."""
    tasks = layout.tasks
    task, key = tasks.tasks[number], layout.key_of[number]
    parts = [layout.part_read(read, number) for read in tasks.reads[number]]
    same = all(
        not part.path and part.key == tasks.keys[read]
        for part, read in zip(parts, tasks.reads[number], strict=True)
    )
    if type(task) is Alias:
        [part] = parts or [Part(task.target)]
        if part.path:
            return key, Anchored(key, pick, TaskRef(part.key), part.path)
        return key, Alias(key, part.key)
    if same and number not in layout.wrapped:
        new = task.substitute({}, key=key)
    else:
        reads, places = _inputs(layout, [number])
        own = tasks.keys[number]
        if number in layout.wrapped:
            own = layout.wrapped_key(number)
            task = task.substitute({}, key=own)
        new = type(task)(key, run_bundle, (task,), own, places, *map(TaskRef, reads))
    return key, anchor_tasks({key: new})[key] if _leaves(layout, number) else new


def _leaves(layout: BundleLayout, number: int) -> bool:
    """Whether the result of a task that has its home by its new name is read elsewhere."""
    tasks = layout.tasks
    home = tasks.places[number]
    if number not in layout.changed or home is None:
        return False
    return any(tasks.places[reader] not in (None, home) for reader in tasks.readers[number])


def _bundle_and_picks(layout: BundleLayout, at: int) -> Iterator[tuple[Key, Any]]:
    """The keys and tasks of a bundle and its picks."""
    tasks = layout.tasks
    run, key = layout.runs[at], layout.key[at]
    steps = tuple(tasks.tasks[number] for number in run.tasks)
    reads, places = _inputs(layout, run.tasks)
    free = all(read in tasks.number and tasks.is_free(tasks.number[read]) for read in reads)
    is_root = free and any(task.data_producer for task in steps)
    # Dask fuses an alias with its bundle, and the only reader of a block that keeps its name
    kind = Anchored if MARK in str(head_of(key)) and at not in layout.alias else Task
    yield (
        key,
        kind(
            key,
            run_bundle,
            steps,
            layout.value[at],
            places,
            *map(TaskRef, reads),
            _data_producer=is_root,
        ),
    )
    if at in layout.alias:
        yield layout.alias[at], Alias(layout.alias[at], key)
    for own, path in layout.picks[at]:
        yield own, Anchored(own, pick, TaskRef(key), path)


def _inputs(
    layout: BundleLayout, readers: Sequence[int]
) -> tuple[list[Key], list[list[tuple[Key, Path]]]]:
    """What some tasks read from other tasks.

    The keys, and for each of them the results in its value: their keys and places.
    """
    tasks = layout.tasks
    #: Tasks of the graph whose results are there.
    seen = set(readers)
    inputs: dict[Key, list[tuple[Key, Path]]] = {}
    for reader in readers:
        for read in tasks.outside.get(reader, ()):
            inputs.setdefault(read, [(read, ())])
        for number in tasks.reads[reader]:
            if number not in seen:
                seen.add(number)
                part = layout.part_read(number, reader)
                inputs.setdefault(part.key, []).append((tasks.keys[number], part.path))
    return list(inputs), list(inputs.values())


def _same_layer(tasks: GraphTasks, name: str, kept: Mapping[Key, Any]) -> tuple[str, Layer]:
    """The name and the layer of tasks that stay as they are, without those not needed."""
    layer = tasks.graph.layers[name]
    if not tasks.graph.dependencies[name]:
        return name, layer
    new = in_place_of(layer, kept)
    is_whole = len(kept) == len(layer) or name in tasks.wanted
    return name if is_whole else part_layer_name(name, kept), new


def _layer(tasks: Mapping[Key, Any], before: Layer | None) -> MaterializedLayer:
    """A layer of tasks with the annotations of another layer."""
    return MaterializedLayer(tasks, annotations=before.annotations if before else None)


def _connected(layers: Mapping[str, Layer], before: Mapping[str, Layer]) -> HighLevelGraph:
    """A graph of layers, with the layers that each of them reads.

    Parameters
    ----------
    layers, before
        The layers, and those of the input graph.
    """
    owner = {key: name for name, layer in layers.items() for key in layer}
    dependencies: dict[str, set[str]] = {}
    for name, layer in layers.items():
        # a layer of the input graph reads no other
        tasks = () if layer is before.get(name) else layer.values()
        reads = {owner[read] for task in tasks for read in task.dependencies if read in owner}
        dependencies[name] = reads - {name}
    return HighLevelGraph(dict(layers), dependencies)


def memory_of_bundles(layout: BundleLayout) -> GraphMemory:
    """What is known of the memory of each task of the new graph.

    Parameters
    ----------
    layout
        Its keys, and where every result is.
    """
    tasks = layout.tasks
    named = {
        number
        for number in layout.changed
        if number not in tasks.kept
        or number in layout.wrapped
        or layout.named_home(number) == tasks.places[number]
    }
    memory = {
        layout.key_of[number]: task_memory(tasks, number, is_named=number in named)
        for number in range(len(tasks.keys))
        if number not in layout.run_of
    }
    for at, run in enumerate(layout.runs):
        place = tasks.homes[run.tasks[0]] if tasks.limits.mesh else None
        returned = layout.returned[at]
        views = _views(tasks, returned)
        size = sum(tasks.sizes[number] for number in returned)
        shared = size - sum(_held(tasks, number, views) for number in returned)
        working = _live(tasks, run, returned, views) - size + shared
        memory[layout.key[at]] = TaskMemory(size, working, place, shared=shared)
        if at in layout.alias:
            memory[layout.alias[at]] = TaskMemory(size, 0, place)
        # a bundle that is read as a whole has no picks
        for (own, _), results in zip(layout.picks[at], run.picks, strict=False):
            size = sum(tasks.sizes[number] for number in results)
            memory[own] = TaskMemory(size, 0, place, is_part=True)
        for number in returned:
            if number in tasks.kept and (own := layout.output_key(number)) in layout.taken:
                memory[own] = TaskMemory(tasks.sizes[number], 0, place, is_part=True)
    return GraphMemory(memory, guessed_share(tasks))


def _views(tasks: GraphTasks, returned: Sequence[int]) -> set[int]:
    """The results that a run returns beside the arrays of which they are views."""
    views = tasks.views
    if not views:
        return set()
    together = set(returned)
    return {number for number in together if views.get(number) in together}


def _held(tasks: GraphTasks, number: int, views: Collection[int]) -> int:
    """Bytes that a result of a run takes where it is made."""
    return 0 if number in views else tasks.held.get(number, tasks.sizes[number])


def _live(tasks: GraphTasks, run: Run, returned: Sequence[int], views: Collection[int]) -> int:
    """Bytes of the results of a run that are in memory at the same time."""
    return live_bytes(
        run.tasks,
        tasks.reads.__getitem__,
        lambda number: _held(tasks, number, views),
        returned,
        tasks.working.__getitem__,
    )
