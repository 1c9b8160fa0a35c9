"""Moving all results of a worker from one mapping to another, or none of them."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any

Data = MutableMapping[Any, Any]


def move(source: Data, target: Data, settle: Callable[[], object] = lambda: None) -> None:
    """Move all values.

    They are moved one by one, so that they are not in memory twice.

    Parameters
    ----------
    source, target
        Mappings.
    settle
        Called after each.

    Raises
    ------
    Exception
        What the mappings raise, once those that were moved are back.
    """
    moved = []
    try:
        for key in list(source):
            value = source[key]
            moved.append(key)
            target[key] = value
            del value
            del source[key]
            settle()
    except BaseException:
        for key in moved:
            if key not in source:
                source[key] = target[key]
            with suppress(KeyError):
                del target[key]
        raise
