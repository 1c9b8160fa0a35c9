"""Reductions: the first step of a block, and the steps that combine the results of several."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dasktile.lower.known import KnownResult, Shape, known_array
from dasktile.lower.result_rules.given import Given, Rule, reduced

#: Functions whose results have the type of the block, if it is no small integer.
_KEEPING_TYPE = (np.sum, np.prod, np.min, np.max)


def of_block(function: Any, given: Given) -> KnownResult | None:
    """What a function returns that reduces one block: an array, or a dict of arrays.

    A call with a block of two elements along each axis says which arrays, and their types.

    Parameters
    ----------
    function, given
        The function and its arguments.
    """
    block = given.array
    if block is None or len(given.arguments) > 1 or given.is_listed:
        return None
    if block.dtype is None:
        # sums and extrema of numbers of eight bytes and more have as many
        keeps_type = function in _KEEPING_TYPE and block.itemsize >= 8
        return of_joined(given) if keeps_type else None
    options = given.keywords
    shape = reduced(block.shapes[0], options.get("axis"), options.get("keepdims"))
    arrays = _arrays(function, len(block.shapes[0]), block.dtype, tuple(sorted(options.items())))
    if len(arrays) == 1:
        return known_array(shape, arrays[0].dtype)
    shapes = tuple(() if each.is_one else (*shape, *each.more) for each in arrays)
    sizes = list(map(math.prod, shapes))
    nbytes = sum(size * each.dtype.itemsize for size, each in zip(sizes, arrays, strict=True))
    return KnownResult(shapes, nbytes / max(1, sum(sizes)), is_array=False)


class _Part(NamedTuple):
    """An array of a partial result.

    Parameters
    ----------
    dtype
        Its type.
    more
        Lengths of its axes behind those of the block, as moments have one.
    is_one
        Whether it is one number that is broadcast, as equal counts are.
    """

    dtype: np.dtype[Any]
    more: Shape
    is_one: bool


@lru_cache(maxsize=256)
def _arrays(
    function: Any, axes: int, dtype: np.dtype[Any], options: tuple[tuple[str, Any], ...]
) -> tuple[_Part, ...]:
    """The arrays that a function makes of a block of two elements along each axis."""
    keywords = dict(options)
    with np.errstate(all="ignore"):
        found = function(np.zeros((2,) * axes, dtype), **keywords)
    kept = len(reduced((2,) * axes, keywords.get("axis"), keywords.get("keepdims")))
    values = found.values() if isinstance(found, Mapping) else [found]
    return tuple(
        _Part(each.dtype, each.shape[kept:], each.size > 1 and not any(each.strides))
        for each in map(np.asanyarray, values)
    )


def of_joined(given: Given) -> KnownResult | None:
    """A sum, or an extremum, of blocks that are joined along the axes that are reduced.

    The other axes of all blocks are those of the first.

    Parameters
    ----------
    given
        The arguments.
    """
    sources = given.sources
    if not sources or given.literals or not all(each.is_array for each in sources):
        return None
    first, options = sources[0], given.keywords
    shape = reduced(first.shapes[0], options.get("axis"), options.get("keepdims"))
    dtype = options.get("dtype", first.dtype)
    return KnownResult((shape,), first.itemsize) if dtype is None else known_array(shape, dtype)


def _combined(given: Given) -> KnownResult | None:
    """Several partial results of one kind in one; all have the arrays of the first."""
    sources = given.sources
    if not sources:
        return None
    first = sources[0]
    shape = reduced(_of_part(first), given.keywords.get("axis"), True)
    # counts that were broadcast are whole arrays now
    shapes = tuple((*shape, *each[len(shape) :]) for each in first.shapes)
    return KnownResult(shapes, first.itemsize, first.is_array)


def _finished(given: Given) -> KnownResult | None:
    """A mean, a moment or positions of extrema; means have another type than doubles if asked."""
    sources, options = given.sources, given.keywords
    if not sources:
        return None
    shape = reduced(_of_part(sources[0]), options.get("axis"), options.get("keepdims"))
    return known_array(shape, options.get("dtype") or np.float64)


def _of_part(part: KnownResult) -> Shape:
    """The shape of a partial result; one of its arrays may be a count, of a single element."""
    return next((shape for shape in part.shapes if shape), ())


def _positions(given: Given) -> KnownResult | None:
    """The extrema of a block and their positions.

    Behind the functions that find both, the arguments are the block, its axes, and an offset.
    """
    block = given.array
    axes = [each for each in given.literals if isinstance(each, tuple)][:1]
    if block is None or not axes:
        return None
    shape = reduced(block.shapes[0], axes[0], True)
    return KnownResult((shape,), block.itemsize + np.dtype(np.intp).itemsize)


def _largest_pairs(given: Given) -> KnownResult | None:
    """The largest of several tuples of elements and positions."""
    sources, options = given.sources, given.keywords
    if not sources or any(each.is_array or len(each.shapes) != 2 for each in sources):
        return None
    shape, [along] = sources[0].shapes[0], options["axis"]
    count = min(abs(options["k"]), sum(each.shapes[0][along] for each in sources))
    shape = (*shape[:along], count, *shape[along + 1 :])
    return KnownResult((shape, shape), sources[0].itemsize, is_array=False)


def _largest_positions(given: Given) -> KnownResult | None:
    """The positions of the largest elements alone."""
    pairs = _largest_pairs(given)
    return None if pairs is None else known_array(pairs.shapes[0], np.intp)


#: Names of functions that reduce one block.
OF_BLOCK = frozenset({
    *("numpy.sum", "numpy.prod", "numpy.nansum", "numpy.nanprod", "numpy.min", "numpy.max"),
    *("numpy.any", "numpy.all", "numpy.count_nonzero", "dask.chunk_min", "dask.chunk_max"),
    *("dask._nanmin_skip", "dask._nanmax_skip", "dask._chunk_count"),
    *("dask.mean_chunk", "dask.moment_chunk"),
})  # fmt: skip

#: Names of functions that reduce blocks which Dask has joined along the reduced axes.
OF_JOINED = frozenset({
    *("numpy.sum", "numpy.prod", "numpy.min", "numpy.max", "numpy.any", "numpy.all"),
    *("dask.chunk_min", "dask.chunk_max", "dask._nanmin_skip", "dask._nanmax_skip"),
})  # fmt: skip

RULES: dict[str, Rule] = {
    **dict.fromkeys(("dask.mean_combine", "dask.moment_combine", "dask.arg_combine"), _combined),
    **dict.fromkeys(("dask.mean_agg", "dask.moment_agg"), _finished),
    **dict.fromkeys(("dask.arg_agg", "dask.nanarg_agg"), _finished),
    "dask.arg_chunk": _positions,
    "dask._chunk_sum": of_joined,
    "dask.argtopk": _largest_pairs,
    "dask.argtopk_aggregate": _largest_positions,
}
