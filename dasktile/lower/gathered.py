"""Blocks of outputs that the client takes out of the tuples that bundles return.

The blocks are tasks of the graph, picks, so that the arrays are Dask's like any others.  Where the
client joins the blocks itself, it asks for a tuple in place of all picks from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from dasktile.capture.references import head_of
from dasktile.lower.bundle_tasks import Path, is_pick, pick, returned_by
from dasktile.lower.names import is_of_bundles

Key = Any


@dataclass(frozen=True, slots=True)
class Part:
    """Where a result is: a key of a graph, and the place in its value.

    Parameters
    ----------
    key
        The key.
    path
        Indices of nested tuples; empty for the value itself.
    """

    key: Key
    path: Path = ()


def parts_of(wanted: Iterable[tuple[Any, Collection[Key]]]) -> dict[Key, Part]:
    """By key, where results are in tuples of which nothing else is wanted than such results.

    A tuple with other results is left out, so that the client does not receive these.

    Parameters
    ----------
    wanted
        Graphs, and the keys of each that are wanted.
    """
    parts: dict[Key, Part] = {}
    #: By the key of a tuple, its parts.
    paths: dict[Key, frozenset[Path]] = {}
    for graph, keys in wanted:
        bundles = _bundles(graph)
        if not bundles:
            continue
        for key in keys:
            task = _task(graph, key)
            if not is_pick(task):
                continue
            source, path = task.args
            if source.key not in paths:
                paths[source.key] = frozenset(_paths(_value(bundles, source.key)))
            parts[key] = Part(source.key, path)
    found: dict[Key, set[Path]] = {}
    for part in parts.values():
        found.setdefault(part.key, set()).add(part.path)
    return {key: part for key, part in parts.items() if found[part.key] == paths[part.key]}


def _bundles(graph: Any) -> list[Mapping[Key, Any]]:
    """The layers of a graph that have bundles."""
    if not isinstance(graph, HighLevelGraph):
        return []
    return [layer for name, layer in graph.layers.items() if is_of_bundles(name)]


def _task(graph: HighLevelGraph, key: Key) -> Any:
    """The task of a wanted key, if it may be a pick; None for others."""
    layer = graph.layers.get(head_of(key))
    # to look up a key of another layer, Dask would make all of its tasks
    return layer.get(key) if isinstance(layer, MaterializedLayer) else None


def _value(bundles: Iterable[Mapping[Key, Any]], key: Key) -> Any:
    """The keys that a bundle returns, or a pick from one, in nested lists; None if unknown."""
    task: Any = next((layer[key] for layer in bundles if key in layer), None)
    if not is_pick(task):
        return returned_by(task)
    source, path = task.args
    whole = _value(bundles, source.key)
    return None if whole is None else pick(whole, path)


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """The places of all keys in nested lists."""
    if isinstance(value, list):
        for index, part in enumerate(value):
            yield from _paths(part, (*path, index))
    else:
        yield path
