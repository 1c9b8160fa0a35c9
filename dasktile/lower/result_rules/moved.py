"""Results that have the elements of others, in other places: slices, joins and other shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from dask.core import flatten

from dasktile.lower.known import KnownResult, Shape, known_array
from dasktile.lower.result_rules.given import Given, Rule, common_type, reduced


def _shaped(source: KnownResult, shape: Sequence[int]) -> KnownResult:
    """An array in another shape."""
    return replace(source, shapes=(tuple(map(int, shape)),))


def _sliced(given: Given) -> KnownResult | None:
    if len(given.sources) != 1 or len(given.literals) != 1 or given.is_listed:
        return None
    [source], [index] = given.sources, given.literals
    if not source.is_array:
        one = type(index) is int and 0 <= index < len(source.shapes)
        return replace(source, shapes=(source.shapes[index],), is_array=True) if one else None
    index = index if type(index) is tuple else (index,)
    sizes = iter(source.shapes[0])
    cut = []
    for part in index:
        size = 1 if part is None else next(sizes, None)
        taken = _length(part, size)
        if taken is None:
            return None
        if type(part) is not int:
            cut.append(taken)
    lists = sum(type(part) in (list, np.ndarray) for part in index)
    return _shaped(source, (*cut, *sizes)) if lists < 2 else None


def _length(part: Any, size: int | None) -> int | None:
    """Elements that a part of an index takes of some; None if that is unknown."""
    if size is None:
        return None
    if type(part) is slice:
        return len(range(*part.indices(size)))
    if type(part) in (list, np.ndarray):
        positions = np.asarray(part)
        return len(positions) if positions.ndim == 1 and positions.dtype.kind in "iu" else None
    return 1 if part is None or type(part) is int else None


def _picked(given: Given) -> KnownResult | None:
    """Elements of a block at points along several axes, in a first axis of their own."""
    if given.array is None or given.is_listed or len(given.literals) != 2:
        return None
    [shape], (index, _) = given.array.shapes, given.literals
    counts = {len(part) for part in index if not isinstance(part, slice)}
    rest = [
        len(range(*part.indices(size)))
        for part, size in zip(index, shape, strict=True)
        if isinstance(part, slice)
    ]
    return _shaped(given.array, (*counts, *rest)) if len(counts) == 1 else None


def _shuffled(given: Given) -> KnownResult | None:
    """Elements of a block at positions, the second item of a literal."""
    if len(given.literals) != 1:
        return None
    return _sliced(replace(given, arguments=[*given.sources, given.literals[0][1]]))


def _sorted_again(given: Given) -> KnownResult | None:
    """Several shuffled parts along an axis, the last one of the literals."""
    sources, axis = given.sources, given.literals[-1]
    if not sources or not all(each.is_array for each in sources) or type(axis) is not int:
        return None
    [shape] = sources[0].shapes
    whole = sum(each.shapes[0][axis] for each in sources)
    return _of_several(sources, (*shape[:axis], whole, *shape[axis + 1 :]))


def _stacked(given: Given) -> KnownResult | None:
    """Matrices below each other."""
    sources = given.sources
    if not sources or not all(each.is_array and len(each.shapes[0]) == 2 for each in sources):
        return None
    rows = sum(each.shapes[0][0] for each in sources)
    return _of_several(sources, (rows, sources[0].shapes[0][1]))


def _of_several(sources: Sequence[KnownResult], shape: Shape) -> KnownResult:
    """Arrays of one type in one."""
    return KnownResult((shape,), max(each.itemsize for each in sources), dtype=common_type(sources))


def joined(given: Given) -> KnownResult | None:
    """A grid of blocks in one; the last literal is the number of blocks along each axis.

    Parameters
    ----------
    given
        The arguments: the blocks in C order, and the grid.
    """
    sources, grid = given.sources, given.literals[-1]
    if not sources or not isinstance(grid, (tuple, list)) or math.prod(grid) != len(sources):
        return None
    if any(not each.is_array or len(each.shapes[0]) != len(grid) for each in sources):
        return None
    numbers = np.arange(len(sources)).reshape(tuple(grid))
    shape = tuple(
        sum(
            sources[number].shapes[0][axis]
            for number in np.moveaxis(numbers, axis, -1).reshape(-1, count)[0]
        )
        for axis, count in enumerate(grid)
    )
    return _of_several(sources, shape)


def _transposed(given: Given) -> KnownResult | None:
    array, axes = given.array, given.option("axes")
    if array is None or given.is_listed:
        return None
    [shape] = array.shapes
    order = range(len(shape))[::-1] if axes is None else [int(axis) for axis in axes]
    return _shaped(array, [shape[axis] for axis in order])


def _squeezed(given: Given) -> KnownResult | None:
    array, axes = given.array, given.option("axis")
    if array is None or axes is None or given.is_listed:
        return None
    return _shaped(array, reduced(array.shapes[0], axes, False))


def reshaped(given: Given) -> KnownResult | None:
    """An array in another shape.

    Parameters
    ----------
    given
        The arguments: an array, and the shape.
    """
    array, shape = given.array, given.option("shape")
    if array is None or given.is_listed or not isinstance(shape, tuple):
        return None
    return _shaped(array, shape) if math.prod(shape) == math.prod(array.shapes[0]) else None


def _broadcast_to(given: Given) -> KnownResult | None:
    """A view in another shape, which has the bytes of its array."""
    array, shape = given.array, given.option("shape")
    if array is None or not isinstance(shape, tuple):
        return None
    itemsize = array.nbytes / max(1, math.prod(shape))
    return replace(array, shapes=(shape,), itemsize=itemsize)


def _running(given: Given) -> KnownResult | None:
    """Running sums or products of an array, of whose type they are if it is not small."""
    array, options = given.array, given.keywords
    if array is None or given.is_listed or options.get("axis") is None:
        return None
    dtype = options.get("dtype")
    reduced(array.shapes[0], options["axis"], True)  # which checks the axis
    if dtype is not None:
        return known_array(array.shapes[0], dtype)
    return array if array.itemsize >= 8 else None


def _like_first(given: Given) -> KnownResult | None:
    """The first array, with other elements at some places."""
    sources = given.sources
    return sources[0] if sources and sources[0].is_array and not given.is_listed else None


def _merged_sums(given: Given) -> KnownResult | None:
    """A running sum of a block, and the sum of those before, which is added to it."""
    sources = given.sources
    if len(sources) != 2 or not all(each.is_array for each in sources):
        return None
    shape = np.broadcast_shapes(*(each.shapes[0] for each in sources))
    return KnownResult((shape,), max(each.itemsize for each in sources), dtype=common_type(sources))


def _windows(given: Given) -> KnownResult | None:
    """All windows of an array, as a view."""
    array, windows, axes = given.array, *map(given.keywords.get, ("window_shape", "axis"))
    if array is None or not isinstance(windows, tuple) or not isinstance(axes, tuple):
        return None
    shape = list(array.shapes[0])
    for window, axis in zip(windows, axes, strict=True):
        shape[axis] -= window - 1
    whole = (*shape, *windows)
    return replace(array, shapes=(whole,), base=array.nbytes)


def _only(given: Given) -> KnownResult | None:
    return given.sources[0] if len(given.sources) == 1 else None


def _held(given: Given) -> KnownResult | None:
    """A tuple of anything, as a variable of xarray."""
    size = sum(each.nbytes for each in given.sources)
    size += sum(getattr(each, "nbytes", 0) for each in flatten(given.literals, (list, tuple)))
    return KnownResult(((size,),), 1, is_array=False)


def _pair(given: Given) -> KnownResult | None:
    """A tuple of two arrays; elements of both are counted as those of the first one."""
    sources = given.sources
    if len(sources) != 2 or not all(each.is_array for each in sources):
        return None
    first, second = sources
    return KnownResult((*first.shapes, *second.shapes), first.itemsize, is_array=False)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("_operator.getitem", "dask.getitem", "dasktile.getitem_any"), _sliced),
    "dask._vindex_slice_and_transpose": _picked,
    "dask._getitem": _shuffled,
    "dask.concatenate_arrays": _sorted_again,
    "numpy.vstack": _stacked,
    "dask.concatenate_shaped": joined,
    "dasktile.join": joined,
    "numpy.transpose": _transposed,
    "dask._conj_transpose": _transposed,
    "numpy.squeeze": _squeezed,
    "numpy.reshape": reshaped,
    "numpy.broadcast_to": _broadcast_to,
    "numpy.sliding_window_view": _windows,
    **dict.fromkeys(
        ("numpy.cumsum", "numpy.cumprod", "numpy.nancumsum", "numpy.nancumprod"), _running
    ),
    **dict.fromkeys(("dask._cumsum_merge", "dask._cumprod_merge"), _merged_sums),
    "dask.setitem": _like_first,
    "builtins.tuple": _held,
    "dask.argtopk_preprocess": _pair,
    "flox._zip_index": _pair,
    "flox.identity": _only,
}
