"""Loops over arrays, compiled where numba is installed and as they are where it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy.typing as npt

try:
    import numba
except ImportError:  # an extra: everything is the same without it, and slower
    numba: Any = None  # type: ignore[no-redef]

#: Whether loops are compiled.
COMPILED = numba is not None

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function of arrays and numbers; what it computes stays the same.

    The code is kept on disk beside the module, so that a process compiles nothing that
    another one has.
    """
    if numba is None:
        return function
    fast: Any = numba.njit(cache=True, error_model="numpy")(function)
    return cast(F, fast)


# Binary heaps of (key, item) inside a stretch of two arrays that starts at `base`.  The
# greatest key is on top; of equal keys the smaller item, so that the order in which things
# were put decides nothing.


@compiled
def heap_put(
    keys: npt.NDArray[Any],
    items: npt.NDArray[Any],
    base: int,
    count: int,
    key: float,
    item: int,
) -> int:
    """Put an entry on a heap of `count` entries; returns how many it has then."""
    at = base + count
    while at > base:
        up = base + (at - base - 1) // 2
        above = keys[up]
        if above > key or (above == key and items[up] <= item):
            break
        keys[at] = above
        items[at] = items[up]
        at = up
    keys[at] = key
    items[at] = item
    return count + 1


@compiled
def heap_drop(keys: npt.NDArray[Any], items: npt.NDArray[Any], base: int, count: int) -> int:
    """Take the top entry off a heap of `count` entries; returns how many it has then."""
    count -= 1
    end = base + count
    key, item = keys[end], items[end]
    at = base
    while True:
        child = base + 2 * (at - base) + 1
        if child >= end:
            break
        right = child + 1
        if right < end and (
            keys[right] > keys[child]
            or (keys[right] == keys[child] and items[right] < items[child])
        ):
            child = right
        if key > keys[child] or (key == keys[child] and item <= items[child]):
            break
        keys[at] = keys[child]
        items[at] = items[child]
        at = child
    keys[at] = key
    items[at] = item
    return count
