"""Loops over arrays, compiled if numba is installed, else run by Python."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar, cast

import numpy.typing as npt

#: Whether numba is installed, so that loops are compiled.
COMPILED = find_spec("numba") is not None

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function of arrays and numbers; its results stay the same.

    All functions are compiled at the first call of any of them: numba takes longer to import
    than the whole package, and most processes never plan.  numba caches the machine code on disk
    beside the module, so that other processes need not compile it.
    """
    lazy = _LazyFunction(function)
    _LAZY.append(lazy)
    return cast(F, lazy)


class _LazyFunction:
    """A function that is compiled, with all others, at the first call."""

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
    """Compile all functions; in their modules, replace the wrappers by the compiled functions."""
    fast: Callable[[Callable[..., Any]], Any] = _uncompiled
    with suppress(ImportError):  # optional: without numba the results are the same, and slower
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
    except RuntimeError:  # no writable directory for the cache
        return numba.njit(error_model="numpy")(function)


# Binary heaps of (key, item) in two arrays, from index `base` on.  The greatest key is on top; of
# equal keys the smaller item, so that the order of insertion has no influence.


@compiled
def heap_put(
    keys: npt.NDArray[Any],
    items: npt.NDArray[Any],
    base: int,
    count: int,
    key: float,
    item: int,
) -> int:
    """Add an entry to a heap of `count` entries; returns the new number of entries."""
    slot = base + count
    while slot > base:
        parent = base + (slot - base - 1) // 2
        above = keys[parent]
        if above > key or (above == key and items[parent] <= item):
            break
        keys[slot] = above
        items[slot] = items[parent]
        slot = parent
    keys[slot] = key
    items[slot] = item
    return count + 1


@compiled
def heap_drop(keys: npt.NDArray[Any], items: npt.NDArray[Any], base: int, count: int) -> int:
    """Remove the top entry of a heap of `count` entries; returns the new number of entries."""
    count -= 1
    end = base + count
    key, item = keys[end], items[end]
    slot = base
    while True:
        child = base + 2 * (slot - base) + 1
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
        keys[slot] = keys[child]
        items[slot] = items[child]
        slot = child
    keys[slot] = key
    items[slot] = item
    return count
