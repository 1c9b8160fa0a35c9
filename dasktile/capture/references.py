"""References: the parts of a task that stand for the result of another task.

All code of this package that reads keys uses these functions.  The rules are those of dask:

* A ``TaskRef``, an ``Alias`` and a future name the key themselves.
* In a task written as a tuple, a string, a number or a tuple is a reference where it equals a
  key of the graph, by hash and by ``==`` as in a dict: ``("x", numpy.int64(1))`` is the key
  ``("x", 1)``.
* The value of a ``DataNode`` is data, even if it equals a key.

The first item of a key is its *head*; it is usually, but not always, the name of its layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain, product
from operator import itemgetter
from typing import Any

from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer, MaterializedLayer

from dasktile._compat.dask import Alias, GraphNode, Task, TaskRef, fused_tasks
from dasktile.capture.blockwise_tasks import blockwise_tasks
from dasktile.capture.overlaps import overlap_of

Key = Any

#: Blocks of an array whose keys are put into a set, at most: a lookup takes a tenth of the time of
#: comparing numbers (chosen: a set of so many takes some milliseconds).
MOST_KEYS = 1 << 16


def is_block_number(value: Any, count: int) -> bool:
    """Whether a value equals one of the block numbers ``0 ... count - 1``, as in a dict."""
    if type(value) is int:
        return 0 <= value < count
    try:
        hash(value)
        number = int(getattr(value, "real", value))
        return 0 <= number < count and value in {number}
    except (TypeError, ValueError, OverflowError):
        return False


def is_block(key: Key, name: str, numblocks: Sequence[int]) -> bool:
    """Whether a key is that of a block of the array `name`."""
    if not isinstance(key, tuple) or len(key) != len(numblocks) + 1:
        return False
    if not isinstance(key[0], str) or key[0] != name:
        return False
    for number, count in zip(key[1:], numblocks, strict=True):
        # nearly all are plain integers, which need no call
        if type(number) is int:
            if not 0 <= number < count:
                return False
        elif not is_block_number(number, count):
            return False
    return True


def block_keys(name: str, numblocks: Sequence[int]) -> frozenset[Key]:
    """The keys of all blocks of the array `name`."""
    return frozenset(product((name,), *map(range, numblocks)))


def head_of(key: Key) -> Any:
    """The first item of a key: usually the name of its layer."""
    return key[0] if isinstance(key, tuple) and key else key


def heads_of(name: str, layer: Layer) -> Iterable[Any]:
    """The first items of the keys of a layer that is not Blockwise: usually only its name."""
    overlap = overlap_of(name, layer)
    if overlap is not None:
        return (overlap.name, overlap.part)
    return dict.fromkeys(heads(tasks_of(layer)))


def heads(keys: Iterable[Key]) -> list[Any]:
    """As :func:`head_of` for every key, without a call for each tuple."""
    keys = list(keys)
    try:
        if set(map(type, keys)) == {tuple}:
            return list(map(itemgetter(0), keys))
    except IndexError:  # an empty tuple
        pass
    return list(map(head_of, keys))


def flat(keys: Any) -> list[Key]:
    """Keys that are nested in lists, in their order.

    Dask's own function has a generator for every list, and an array one list for every key.
    """
    level = [keys]
    while any(issubclass(kind, list) for kind in set(map(type, level))):
        lists = (item if isinstance(item, list) else (item,) for item in level)
        level = list(chain.from_iterable(lists))
    return level


def keys_by_head(keys: Iterable[Key]) -> dict[Any, list[Key]]:
    """Some keys by their heads."""
    keys = list(keys)
    every = heads(keys)
    if len(set(every)) == 1:
        return {every[0]: keys}
    by_head: dict[Any, list[Key]] = {}
    for head, key in zip(every, keys, strict=True):
        by_head.setdefault(head, []).append(key)
    return by_head


def tasks_of(layer: Layer) -> Mapping[Key, Any]:
    """The tasks of a layer in a dict: a look-up in a layer itself calls functions of it."""
    if isinstance(layer, MaterializedLayer):
        return layer.mapping
    return blockwise_tasks(layer) if type(layer) is Blockwise else dict(layer)


def listed_tuples(tasks: Iterable[Any]) -> set[Key] | None:
    """The tuples in nested lists that tasks call functions of; None for other tasks.

    If they are keys, these are the keys that the tasks read.  Dask's reductions have such tasks.
    """
    items: list[Any] = []
    for task in tasks:
        if type(task) is not tuple or not task or not callable(task[0]):
            return None
        items.extend(task[1:])
    while (kinds := set(map(type, items))) == {list}:
        items = list(chain.from_iterable(items))
    try:
        return set(items) if kinds == {tuple} else None
    except TypeError:  # an unhashable value is not a key
        return None


def with_head(key: Key, head: Any) -> Key:
    """The key with its head replaced."""
    return (head, *key[1:]) if isinstance(key, tuple) else head


def reference(argument: Any) -> Key:
    """The key that an argument of a task stands for, None if it is not a reference."""
    if isinstance(argument, TaskRef):
        return argument.key
    # dask converts a key in a tuple task to an Alias
    return argument.target if isinstance(argument, Alias) else None


def references(node: GraphNode) -> Sequence[Key]:
    """The keys that a task reads, each once, from left to right.

    The order is that of the arguments; it does not depend on hashes.
    """
    needs = node.dependencies
    if len(needs) < 2:
        return tuple(needs)
    mentioned = dict.fromkeys(key for key in _mentioned(node) if key in needs)
    return (*mentioned, *sorted(needs - mentioned.keys(), key=repr))


def in_order_of_reads(
    tasks: Mapping[Key, GraphNode | None], ends: Iterable[Key]
) -> dict[Key, GraphNode | None]:
    """Tasks, each after those that it reads, from left to right.

    The order does not depend on hashes, as that of a graph does after ``dask.optimize``.

    Parameters
    ----------
    tasks
        The tasks by key; None for a key of which the layer has the future.
    ends
        Keys that the others are for, in an order that does not depend on hashes.  Tasks that they
        do not depend on are last, as they are given.
    """
    ordered: dict[Key, GraphNode | None] = {}
    seen = set[Key]()
    stack = [(key, False) for key in ends if key in tasks]
    stack.reverse()
    while stack:
        key, is_next = stack.pop()
        if is_next:
            ordered[key] = tasks[key]
        elif key not in seen:
            seen.add(key)
            stack.append((key, True))
            task = tasks[key]
            reads = () if task is None else references(task)
            stack.extend((read, False) for read in reversed(reads) if read in tasks)
    return {**ordered, **tasks}


def _mentioned(part: Any) -> Iterator[Key]:
    """The keys in a task, and in tasks that Dask fused into it, from the last one on."""
    #: By the names that fused tasks have for them, other fused tasks, and what they read.
    fused: dict[Key, Any] = {}
    stack = [part]
    while stack:
        item = stack.pop()
        if (key := reference(item)) is not None:
            if key in fused:
                stack.append(fused.pop(key))
            else:
                yield key
        elif isinstance(item, Task):
            if parts := fused_tasks(item):
                _, last, names, *reads = item.args
                fused.update(zip(names, reads, strict=True))
                fused.update(parts)
                stack.append(fused.pop(last, None))
            else:
                stack.extend(reversed([*item.args, *item.kwargs.values()]))
        elif isinstance(item, (list, tuple)):
            stack.extend(reversed(item))
        elif isinstance(item, dict):
            stack.extend(reversed(item.values()))


def read_by(layer: Blockwise) -> Iterable[Key]:
    """Names of layers, and keys, that a Blockwise layer reads; its tasks are not generated."""
    for argument, symbols in layer.indices:
        if symbols is not None:
            yield argument
        elif (key := reference(argument)) is not None:
            yield key
        elif isinstance(argument, GraphNode):
            yield from references(argument)
    yield from references(layer.task)


class Keys:
    """A container of the keys of some layers; tasks of Blockwise layers are not generated.

    Parameters
    ----------
    layers
        The layers, by name.
    heads
        For every layer that is not Blockwise, the heads of its keys.
    """

    def __init__(self, layers: Mapping[str, Layer], heads: Mapping[str, Iterable[Any]]) -> None:
        #: A lookup in such a layer itself, or in one of overlaps, would generate all its tasks.
        self._blockwise: dict[Any, Blockwise] = {}
        self._numblocks: dict[Any, tuple[int, ...]] = {}
        #: The names of all other layers, by the heads of their keys.
        self._others: dict[Any, list[str]] = {}
        #: The keys of the blocks of layers that were asked for.
        self._keys: dict[Any, frozenset[Key]] = {}
        self._layers = layers
        for name, layer in layers.items():
            if isinstance(layer, Blockwise):
                dims = layer.dims
                self._blockwise[name] = layer
                self._numblocks[name] = tuple(dims[symbol] for symbol in layer.output_indices)
                continue
            overlap = overlap_of(name, layer)
            if overlap is not None:
                self._numblocks[name] = overlap.numblocks
            for head in heads[name]:
                if overlap is None or head != name:
                    self._others.setdefault(head, []).append(name)

    def __contains__(self, key: Key) -> bool:
        return self.owner(key) is not None

    def have(self, keys: Set[Key]) -> bool:
        """Whether all of some tuples are keys, in less time than to look up each of them."""
        left = keys
        for head in set(heads(keys)):
            layer = self._blockwise.get(head)
            if layer is not None and layer.output_blocks is None:
                left = left - (self._blocks(head) or set())
        return all(key in self for key in left)

    def _blocks(self, head: Any) -> frozenset[Key] | None:
        """The keys of all blocks of a layer that is not generated; None if they are many."""
        if head not in self._keys and math.prod(self._numblocks[head]) <= MOST_KEYS:
            self._keys[head] = block_keys(head, self._numblocks[head])
        return self._keys.get(head)

    def _is_block(self, key: Key, head: Any) -> bool:
        """Whether a key is of a layer whose tasks are not generated."""
        numblocks = self._numblocks.get(head)
        if numblocks is None:
            return False
        keys = self._blocks(head)
        if key not in keys if keys is not None else not is_block(key, head, numblocks):
            return False
        layer = self._blockwise.get(head)
        blocks = None if layer is None else layer.output_blocks
        return blocks is None or tuple(key[1:]) in blocks

    def owner(self, key: Key) -> str | None:
        """The layer that contains a key, or None."""
        try:
            head = head_of(key)
            if self._is_block(key, head):
                return str(head)
            for name in self._others.get(head, ()):
                if key in self._layers[name]:
                    return name
        except TypeError:  # an unhashable value is not a key
            pass
        return None
