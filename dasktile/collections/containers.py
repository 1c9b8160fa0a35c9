"""Dask collections in containers, as ``dask.base.unpack_collections`` finds them; trees too.

A ``DataTree`` of xarray is no collection of Dask.  Its datasets are found like those of a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dask.base import unpack_collections

from dasktile.collections.unpack import datasets_of, is_tree, tree_of


def unpack(
    *given: Any, traverse: bool = True
) -> tuple[list[Any], Callable[[Sequence[Any]], tuple[Any, ...]]]:
    """The dask collections in some objects, each once, and a function that puts others there.

    Parameters
    ----------
    *given
        Collections, trees, and lists, tuples, dicts and other containers of them.
    traverse
        False to look for collections in no containers.
    """
    trees: list[Any] = []
    without = [_without_trees(each, trees, traverse) for each in given]
    datasets = [datasets_of(tree) for tree in trees]
    nodes = [dataset for each in datasets for dataset in each.values()]
    found, repack = unpack_collections(*without, *nodes, traverse=traverse)

    def put(others: Sequence[Any]) -> tuple[Any, ...]:
        if not found:
            return given
        values = repack(others)
        if not trees:
            return tuple(values)
        nodes: Iterator[Any] = iter(values[len(given) :])
        new = [
            tree_of(tree, {path: next(nodes) for path in each})
            for tree, each in zip(trees, datasets, strict=True)
        ]
        return tuple(_with_trees(*each, new) for each in zip(without, values, strict=False))

    return list(found), put


@dataclass(frozen=True)
class _Place:
    """Where a tree was.

    Parameters
    ----------
    number
        Number of the tree.
    """

    number: int


def _without_trees(value: Any, trees: list[Any], traverse: bool) -> Any:
    """The same value with places instead of trees, which are added to `trees`."""
    if is_tree(value):
        trees.append(value)
        return _Place(len(trees) - 1)
    if traverse and type(value) in (list, tuple):
        return type(value)(_without_trees(each, trees, traverse) for each in value)
    if traverse and type(value) is dict:
        return {key: _without_trees(each, trees, traverse) for key, each in value.items()}
    return value


def _with_trees(given: Any, value: Any, trees: Sequence[Any]) -> Any:
    """Other trees in the places of a result; `given` is what `_without_trees` made of it."""
    if type(given) is _Place:
        return trees[given.number]
    if type(given) in (list, tuple):
        parts = zip(given, value, strict=True)
        return type(given)(_with_trees(each, part, trees) for each, part in parts)
    if type(given) is dict:
        return {key: _with_trees(each, value[key], trees) for key, each in given.items()}
    return value
