"""Moves all results of a worker from one mapping to another."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any

Data = MutableMapping[Any, Any]


def move_all(source: Data, target: Data, after_each: Callable[[], object] = lambda: None) -> None:
    """Move all values, or none if one of them cannot be moved.

    Values are moved one by one, so that at most one is in both mappings.

    Parameters
    ----------
    source, target
        The mappings.
    after_each
        Called after each value.

    Raises
    ------
    Exception
        An exception of one of the mappings, after all values were moved back.
    """
    moved_keys = []
    try:
        for key in list(source):
            value = source[key]
            moved_keys.append(key)
            target[key] = value
            del value
            del source[key]
            after_each()
    except BaseException:
        for key in moved_keys:
            if key not in source:
                source[key] = target[key]
            with suppress(KeyError):
                del target[key]
        raise
