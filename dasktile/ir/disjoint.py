"""Sets that are merged: every item points to another one of its set, or to itself."""

from __future__ import annotations

from typing import Any, TypeVar

_Item = TypeVar("_Item")


def root(parent: Any, item: _Item) -> _Item:
    """The item that stands for a set; the way to it becomes shorter.

    Parameters
    ----------
    parent
        For every item, another one of its set: a list or a dict.  To merge two sets, let the root
        of one point to that of the other.
    item
        An item of the set.
    """
    while parent[item] != item:
        parent[item] = parent[parent[item]]
        item = parent[item]
    return item
