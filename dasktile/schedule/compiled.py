"""Loops over arrays, compiled where numba is installed and as they are where it is not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar, cast

import numpy.typing as npt

#: Whether loops are compiled.
COMPILED = find_spec("numba") is not None

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function of arrays and numbers; what it computes stays the same.

    It is compiled when one of them is called first: numba takes longer to import than all of
    this package, and most processes never plan.  The code is kept on disk beside the module,
    so that a process compiles nothing that another one has.
    """
    lazy = _LazyFunction(function)
    _LAZY.append(lazy)
    return cast(F, lazy)


class _LazyFunction:
    """A function that is compiled, with all others, when it is called first."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.fast: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        if self.fast is None:
            _compile_all()
        assert self.fast is not None
        return self.fast(*arguments)


_LAZY: list[_LazyFunction] = []


def _compile_all() -> None:
    """Compile what waits for it, and let all of it call each other without a detour."""
    fast: Callable[[Callable[..., Any]], Any] = _uncompiled
    with suppress(ImportError):  # an extra: everything is the same without it, and slower
        import numba

        fast = partial(_jit, numba)
    for lazy in _LAZY:
        if lazy.fast is None:
            lazy.fast = fast(lazy.function)
    for lazy in _LAZY:
        names = lazy.function.__globals__
        for name, value in list(names.items()):
            if isinstance(value, _LazyFunction) and value.fast is not None:
                names[name] = value.fast


def _uncompiled(function: Callable[..., Any]) -> Any:
    return function


def _jit(numba: Any, function: Callable[..., Any]) -> Any:
    try:
        return numba.njit(cache=True, error_model="numpy")(function)
    except RuntimeError:  # there is nowhere to keep it
        return numba.njit(error_model="numpy")(function)


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
