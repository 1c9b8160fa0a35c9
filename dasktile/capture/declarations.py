"""Whether functions do on small blocks what users declared with ``register_kernel``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dasktile.capture.user_kernels import KernelUse, is_registered_here

#: What is said of a function whose declaration is wrong.
CONTRADICTED = "has other values on parts of a small block than its registration allows"

#: Elements along an axis that is cut, without halos, and elements of a sample at the most.
_LENGTH, _MOST_ELEMENTS = 4, 10_000

#: Results of checks, by the function, which its registration keeps, and all that the sample depends
#: on; as many as are remembered.
_checked: dict[Any, bool] = {}
_MOST_CHECKED = 1_000


def contradicts(
    function: Any,
    use: KernelUse,
    arguments: Sequence[Any],
    kwargs: Mapping[str, Any],
    shape: Sequence[int],
) -> bool:
    """Whether a function has other values on parts of a sample than its declaration allows.

    A function that fails on the sample, or has results of another shape, is not judged.

    Parameters
    ----------
    function, use
        The function, and what was declared of it.
    arguments
        Its positional arguments: a pair of a dtype and a shape for each array, and other values.
    kwargs
        Its keyword arguments.
    shape
        Of the result.
    """
    if not is_registered_here(function):
        # in a process that runs no functions of users, as the scheduler
        return False
    key = (id(function), repr(use), repr(arguments), repr(kwargs), len(shape))
    if key not in _checked:
        if len(_checked) >= _MOST_CHECKED:
            _checked.clear()

        def run(values: Sequence[Any]) -> Any:
            # of copies, which the function may change
            return function(*map(_copied, values), **kwargs)

        try:
            with np.errstate(all="ignore"):
                _checked[key] = _differs(run, use, arguments, shape)
        except Exception:
            _checked[key] = False
    return _checked[key]


def _differs(
    run: Callable[[Sequence[Any]], Any], use: KernelUse, arguments: Sequence[Any], shape: Any
) -> bool:
    ndim = len(shape)
    whole = {axis % ndim for axis in use.whole_axes}
    halo = use.depths(ndim) or {}
    lengths = [
        size if axis in whole else _LENGTH + 4 * halo.get(axis, 0)
        for axis, size in enumerate(shape)
    ]
    if np.prod(lengths) > _MOST_ELEMENTS:
        return False
    rng = np.random.default_rng(0)
    sample = [
        _sample(rng, argument[0], argument[1], lengths) if isinstance(argument, tuple) else argument
        for argument in arguments
    ]
    expected = run(sample)
    if np.shape(expected) != tuple(lengths):
        return False
    for axis in set(range(ndim)) - whole:
        depth, middle = halo.get(axis, 0), lengths[axis] // 2
        # elements near the ends may be trimmed, as map_overlap with a boundary does
        for start, stop in ((depth, middle), (middle, lengths[axis] - depth)):
            low, high = start - depth, stop + depth
            parts = [_part(value, axis - ndim, low, high) for value in sample]
            inner = _part(run(parts), axis - ndim, start - low, stop - low)
            if not _agree(inner, _part(expected, axis - ndim, start, stop)):
                return True
    return False


def _sample(
    rng: np.random.Generator, dtype: np.dtype[Any], shape: Sequence[int], lengths: Sequence[int]
) -> np.ndarray[Any, Any]:
    """Random elements; axes of size one stay so."""
    last = lengths[len(lengths) - len(shape) :]
    sizes = [1 if size == 1 else length for size, length in zip(shape, last, strict=True)]
    if dtype.kind in "iu":
        return rng.integers(0, 50, size=sizes).astype(dtype)
    numbers = rng.normal(size=sizes)
    if dtype.kind == "b":
        return numbers > 0
    if dtype.kind not in "fc":
        raise TypeError(dtype)
    return numbers.astype(dtype)


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def _part(value: Any, axis: int, start: int, stop: int) -> Any:
    """Elements of an array along an axis, counted from the last; all of them if it has size one."""
    if not isinstance(value, np.ndarray) or value.ndim < -axis or value.shape[axis] == 1:
        return value
    index: list[Any] = [slice(None)] * value.ndim
    index[axis] = slice(start, stop)
    return value[tuple(index)]


def _agree(values: Any, expected: Any) -> bool:
    if np.shape(values) != np.shape(expected):
        return False
    wanted = np.asarray(expected)
    if wanted.dtype.kind not in "fc" or not wanted.size:
        return bool(np.array_equal(values, wanted))
    error = 1e4 * np.finfo(wanted.dtype).eps
    largest = np.max(np.abs(wanted), where=np.isfinite(wanted), initial=0)
    return bool(np.allclose(values, wanted, rtol=error, atol=error * largest, equal_nan=True))
