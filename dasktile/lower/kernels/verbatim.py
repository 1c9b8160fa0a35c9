"""Unchanged parts of the graph: the same tasks, which may read other layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from dasktile._compat.dask import Alias, GraphNode, TaskRef
from dasktile.capture.base import GraphView, Verbatim, added_axes
from dasktile.capture.references import Key, head_of, with_head
from dasktile.lower.emit import EmittedLayers, LoweringContext, emit
from dasktile.lower.names import COMMON, new_layer_name
from dasktile.schedule.placement import Placement


@emit.register
def _verbatim(kernel: Verbatim, context: LoweringContext) -> EmittedLayers:
    """Write the original layers with other names for the layers that they read.

    Layers that read none of these are not written: they keep their names, and are carried
    over from the input graph.
    """
    if len(kernel.reads) != len(context.inputs):
        raise ValueError(
            f"{context.node.name!r} has {len(context.inputs)} inputs, but its kernel "
            f"has {len(kernel.reads)} names of layers to read"
        )
    view = GraphView(context.graph)
    own = kernel.layers[-1]
    renamed = {
        old: new for old, new in zip(kernel.reads, context.inputs, strict=True) if old != new
    }
    emitted = EmittedLayers()
    for name in _in_order(kernel.layers, context.graph):
        before = view.dependencies(name)
        changed = {old: renamed[old] for old in before if old in renamed}
        if name == own:
            new = context.name
        elif changed:
            # named by content, so that two nodes that share the layer write it once
            new = new_layer_name(name, tuple(changed.items()))
        else:
            continue
        reads = {changed.get(old, old) for old in before}
        if name == own and (arrays := _arrays_made(view, name)):
            homes = {array: context.homes.get(array) for array in arrays}
            common, layer, heads = _common_layer(view, name, changed, homes)
            emitted.heads |= heads
            emitted.add(common, layer, reads)
            emitted.add(new, _aliases(layer, heads[name], new), {common})
        else:
            emitted.add(new, renamed_layer(view, name, new, changed), reads)
            if not isinstance(view.layers[name], Blockwise):
                emitted.heads |= _renamed_heads(view, name, new)
        renamed[name] = new
    return emitted


def _arrays_made(view: GraphView, name: str) -> list[str]:
    """The arrays that the tasks of a layer make, sorted; none if it is one, as of most layers.

    Each of the arrays P, L and U of ``da.linalg.lu`` has a layer with the tasks of all three.
    """
    if isinstance(view.layers[name], Blockwise):
        return []
    heads = {head_of(key) for key in view.tasks(name)}
    arrays = sorted(head for head in heads if isinstance(head, str) and head in view.layers)
    return arrays if len(arrays) > 1 else []


def _common_layer(
    view: GraphView,
    name: str,
    reads: Mapping[str, str],
    homes: Mapping[str, Placement | None],
) -> tuple[str, Layer, dict[Any, str]]:
    """A layer that is the same for all arrays that its tasks make.

    Its name, the layer, and the new first items of keys by those before.
    """
    content = sorted(reads.items()), sorted(homes.items())
    tasks = view.tasks(name)
    heads = {
        head: new_layer_name(str(head), content, placement=homes.get(str(head)))
        for head in {head_of(key) for key in tasks}
    }
    subs = {key: with_head(key, heads[head_of(key)]) for key in tasks}
    mapping = _renamed_tasks(view, tasks, subs, reads)
    common = new_layer_name(COMMON, content, *map(str, subs.values()))
    layer = MaterializedLayer(mapping, annotations=view.layers[name].annotations)
    return common, layer, heads


def _aliases(common: Layer, name: str, new: str) -> MaterializedLayer:
    """The blocks of an array of a common layer, in which its name is `name`, as layer `new`."""
    return MaterializedLayer(
        {
            (other := with_head(key, new)): Alias(other, key)
            for key in common
            if head_of(key) == name
        }
    )


def _in_order(layers: tuple[str, ...], graph: HighLevelGraph) -> list[str]:
    """The layers, each after those it reads."""
    members = set(layers)
    done: dict[str, None] = {}
    stack = list(reversed(layers))
    while stack:
        name = stack[-1]
        waiting = [
            other
            for other in sorted(graph.dependencies.get(name, ()), key=str)
            if other in members and other not in done
        ]
        if waiting:
            stack.extend(waiting)
        else:
            done[stack.pop()] = None
    return list(done)


def renamed_layer(view: GraphView, name: str, new: str, reads: Mapping[str, str]) -> Layer:
    """A copy of layer `name` as layer `new`, which reads other layers.

    Parameters
    ----------
    view
        The graph.
    name, new
        Name before and after.  Keys of the layer with other names get a suffix.
    reads
        New names of layers that it reads, by their old names.  Their keys must differ in
        the name only.
    """
    layer = view.layers[name]
    if isinstance(layer, Blockwise) and not any(
        dep.produces_keys for dep in layer.io_deps.values()
    ):
        return _renamed_blockwise(view, layer, new, reads)
    tasks = view.tasks(name)
    suffix = _suffix(new)
    subs: dict[Key, Key] = {key: _renamed_key(key, name, new, suffix) for key in tasks}
    mapping = _renamed_tasks(view, tasks, subs, reads)
    return MaterializedLayer(mapping, annotations=layer.annotations)


def _suffix(new: str) -> str:
    """What first items of keys get in a copy as layer `new`, where they are not its name."""
    return new_layer_name("", new)


def _renamed_heads(view: GraphView, name: str, new: str) -> dict[Any, str]:
    """The first items of the keys in a copy of layer `name` as layer `new`, by those before."""
    suffix = _suffix(new)
    heads = {head_of(key) for key in view.tasks(name)} - {name}
    return {head: f"{head}{suffix}" for head in heads}


def _renamed_tasks(
    view: GraphView,
    tasks: Mapping[Key, GraphNode],
    own: Mapping[Key, Key],
    reads: Mapping[str, str],
) -> dict[Key, GraphNode]:
    """Tasks with other keys, `own`, which read other layers."""
    subs = dict(own)
    for task in tasks.values():
        for key in task.dependencies:
            if key not in subs:
                subs[key] = _read_key(view, key, reads)
    return {subs[key]: _substituted(task, subs, subs[key]) for key, task in tasks.items()}


def _renamed_key(key: Key, name: str, new: str, suffix: str) -> Key:
    head = head_of(key)
    return with_head(key, new if head == name else f"{head}{suffix}")


def _read_key(view: GraphView, key: Key, reads: Mapping[str, str]) -> Key:
    head = head_of(key)
    if isinstance(head, str) and head in reads:
        return with_head(key, reads[head])
    for old, new in reads.items():
        layer = view.layers.get(old)
        if layer is not None and not isinstance(layer, Blockwise) and key in layer:
            # a key that does not start with the name of its layer
            return _renamed_key(key, old, new, _suffix(new))
    return key


def _substituted(task: GraphNode, subs: Mapping[Key, Key], key: Key) -> GraphNode:
    if isinstance(task, Alias):
        return Alias(key, subs[task.target])
    changed = {old: subs[old] for old in task.dependencies if subs[old] != old}
    return task.substitute(changed, key=key)


def _renamed_blockwise(
    view: GraphView, layer: Blockwise, new: str, reads: Mapping[str, str]
) -> Blockwise:
    indices: list[tuple[Any, Any]] = []
    array: Any
    for array, symbols in layer.indices:
        if symbols is not None:
            array = array if array in layer.io_deps else reads.get(array, array)
        elif isinstance(array, TaskRef):
            array = TaskRef(_read_key(view, array.key, reads))
        elif isinstance(array, GraphNode):
            array = array.substitute(
                {key: _read_key(view, key, reads) for key in array.dependencies}
            )
        indices.append((array, symbols))
    # the task may refer to keys besides the tokens of its arguments
    subs = {key: _read_key(view, key, reads) for key in layer.task.dependencies}
    subs = {key: other for key, other in subs.items() if key != other}
    numblocks = {
        array if array in layer.io_deps else reads.get(array, array): blocks
        for array, blocks in layer.numblocks.items()
    }
    return Blockwise(
        new,
        layer.output_indices,
        layer.task.substitute(subs, key=new),
        indices,
        numblocks=numblocks,
        concatenate=layer.concatenate,
        new_axes=added_axes(layer),
        output_blocks=layer.output_blocks,
        annotations=layer.annotations,
        io_deps=layer.io_deps,
    )
