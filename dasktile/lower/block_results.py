"""What the functions return that Dask calls for blocks, from what is known of the blocks.

Graphs that were optimised have no layers whose annotations say this.  Elementwise functions,
reductions and products are known, and what makes blocks of random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from dask.utils import methodcaller
from numpy.lib.stride_tricks import sliding_window_view

from dasktile._compat.dask import (
    arg_agg,
    arg_chunk,
    arg_combine,
    chunk_arange,
    chunk_max,
    chunk_min,
    concatenate_shaped,
    count_block,
    einsum_block,
    matmul_block,
    mean_agg,
    mean_chunk,
    mean_combine,
    moment_agg,
    moment_chunk,
    moment_combine,
    nanarg_agg,
    nanmax_skip,
    nanmin_skip,
    random_block,
    setitem,
    sum_products,
    tensordot_block,
)
from dasktile.capture.rules.pointwise import is_pointwise
from dasktile.capture.rules.sources import is_uniform
from dasktile.capture.rules.trees import unwrap
from dasktile.lower.known import KnownResult, Shape

#: Finds a result from those that a task reads, and from its other positional arguments.
Rule = Callable[[Sequence[KnownResult], Sequence[Any]], KnownResult | None]

#: Bytes of a count, a position, and of a mean or moment unless a task says otherwise.
_NUMBER = 8


def rule_of_block(task: Any) -> Rule | None:
    """The rule of a task that calls a function of Dask, or of NumPy, for blocks; None for others.

    Parameters
    ----------
    task
        The task.
    """
    function = task.func
    if hasattr(function, "first") and hasattr(function, "funcs"):
        # tlz.compose: Dask joins partial results, then combines them
        function = function.funcs[-1]
    call = unwrap(function)
    keywords = {**call.keywords, **task.kwargs}
    if isinstance(call.function, methodcaller):
        # a method of arrays, as `reshape`
        return partial(_of_shape, keywords=keywords) if call.function.method == "reshape" else None
    if is_uniform(task.func):
        return partial(_equal, keywords=keywords)
    try:
        rule = _RULES.get(call.function)
    except TypeError:  # an unhashable callable
        return None
    if rule is None and is_pointwise(task.func, task.kwargs, len(task.args), table_only=True):
        rule = partial(_elementwise, function=call.function)
    if rule is None:
        return None

    def found(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
        return rule(sources, [*call.args, *literals], keywords=keywords)

    return found


def _elementwise(
    sources: Sequence[KnownResult],
    literals: Sequence[Any],
    function: Any,
    keywords: Mapping[str, Any],
) -> KnownResult | None:
    if not sources or not all(each.is_array for each in sources):
        return None
    shapes = [*(each.shapes[0] for each in sources), *map(np.shape, literals)]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        return None
    # enforce_dtype and others call the function that is among their keywords
    inner = next((keywords[name] for name in _WRAPPED if name in keywords), function)
    return KnownResult((shape,), _itemsize(sources, keywords, 1 if _is_test(inner) else 0))


def _is_test(function: Any) -> bool:
    """Whether an elementwise function returns whether something is true."""
    if isinstance(function, np.ufunc):
        return all(kind.endswith("->?") for kind in function.types if "O" not in kind)
    return getattr(function, "__name__", "") in _TESTS


def _itemsize(
    sources: Sequence[KnownResult], keywords: Mapping[str, Any], otherwise: float = 0
) -> float:
    """Bytes of an element: of the type among the keywords, else as given, else of the inputs."""
    dtype = keywords.get("dtype", keywords.get("astype_dtype"))
    if dtype is not None:
        return np.dtype(dtype).itemsize
    return otherwise or max(each.itemsize for each in sources)


def _reduced(shape: Shape, keywords: Mapping[str, Any]) -> Shape | None:
    """The shape of a block that was reduced along the axes among the keywords."""
    axes = keywords.get("axis")
    if axes is None:
        axes = tuple(range(len(shape)))
    axes = axes if isinstance(axes, tuple) else (axes,)
    if not all(isinstance(axis, (int, np.integer)) for axis in axes):
        return None
    places = {int(axis) % len(shape) for axis in axes}
    if keywords.get("keepdims"):
        return tuple(1 if axis in places else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in places)


def _fold(
    sources: Sequence[KnownResult],
    literals: Sequence[Any],
    keywords: Mapping[str, Any],
    itemsize: int = 0,
) -> KnownResult | None:
    """One array, reduced from a block, or from the first one of several parts of a result."""
    if not sources or not sources[0].shapes[0]:
        return None
    shape = _reduced(sources[0].shapes[0], keywords)
    size = _itemsize(sources[:1], keywords, itemsize)
    return None if shape is None else KnownResult((shape,), size)


def _counted(
    sources: Sequence[KnownResult], literals: Sequence[Any], keywords: Mapping[str, Any]
) -> KnownResult | None:
    """Sums of a block, and numbers of its elements."""
    whole = _fold(sources, literals, keywords, _NUMBER)
    return None if whole is None else KnownResult(whole.shapes * 2, whole.itemsize, is_array=False)


def _moments(
    sources: Sequence[KnownResult], literals: Sequence[Any], keywords: Mapping[str, Any]
) -> KnownResult | None:
    """The same, and the moments from the second one on."""
    counted = _counted(sources, literals, keywords)
    if counted is None:
        return None
    moments = (*counted.shapes[0], keywords.get("order", 2) - 1)
    return KnownResult((*counted.shapes, moments), counted.itemsize, is_array=False)


def _combined(
    sources: Sequence[KnownResult], literals: Sequence[Any], keywords: Mapping[str, Any]
) -> KnownResult | None:
    """Several partial results of one kind in one."""
    if not sources or not sources[0].shapes[0]:
        return None
    shape = _reduced(sources[0].shapes[0], {**keywords, "keepdims": True})
    if shape is None:
        return None
    shapes = tuple((*shape, *each[len(shape) :]) for each in sources[0].shapes)
    return KnownResult(shapes, sources[0].itemsize, sources[0].is_array)


def _positions(
    sources: Sequence[KnownResult], literals: Sequence[Any], keywords: Mapping[str, Any]
) -> KnownResult | None:
    """The extrema of a block and their positions; `literals` has functions, axes and offsets."""
    axes = next((each for each in literals if isinstance(each, tuple)), None)
    whole = _fold(sources, literals, {"axis": axes, "keepdims": True})
    return None if whole is None else KnownResult(whole.shapes, whole.itemsize + _NUMBER)


def _matrix_product(
    sources: Sequence[KnownResult], literals: Sequence[Any], keywords: Mapping[str, Any]
) -> KnownResult | None:
    """A product of stacks of matrices, with an axis for the sum before the last one."""
    if len(sources) != 2 or any(len(each.shapes[0]) < 2 for each in sources):
        return None
    left, right = (each.shapes[0] for each in sources)
    try:
        stack = np.broadcast_shapes(left[:-2], right[:-2])
    except ValueError:
        return None
    return KnownResult(((*stack, left[-2], 1, right[-1]),), _itemsize(sources, {}))


def _tensor_product(
    sources: Sequence[KnownResult], literals: Sequence[Any], keywords: Mapping[str, Any]
) -> KnownResult | None:
    """A sum of products along axes, which have the length one among those of the first block."""
    axes = keywords.get("axes", literals[0] if literals else None)
    if len(sources) != 2 or not isinstance(axes, tuple) or len(axes) != 2:
        return None
    (left, right), (first, second) = (each.shapes[0] for each in sources), axes
    first, second = (
        {axis % len(each) for axis in of} for each, of in ((left, first), (right, second))
    )
    shape = [size for axis, size in enumerate(left) if axis not in first]
    shape += [size for axis, size in enumerate(right) if axis not in second]
    for axis in sorted(first):
        shape.insert(axis, 1)
    return KnownResult((tuple(shape),), _itemsize(sources, {}))


def _einsum(
    sources: Sequence[KnownResult], literals: Sequence[Any], keywords: Mapping[str, Any]
) -> KnownResult | None:
    read, arrow, made = str(keywords.get("subscripts", "")).partition("->")
    terms = read.split(",")
    if not arrow or "." in read or len(terms) != len(sources):
        return None
    sizes: dict[str, int] = {}
    for term, source in zip(terms, sources, strict=True):
        for symbol, size in zip(term, source.shapes[0], strict=True):
            sizes[symbol] = max(size, sizes.get(symbol, 1))
    summed = (1,) * keywords.get("ncontract_inds", 0)
    dtype = {"dtype": keywords.get("kernel_dtype")}
    return KnownResult(((*(sizes[each] for each in made), *summed),), _itemsize(sources, dtype))


def _transposed(
    sources: Sequence[KnownResult], literals: Sequence[Any], keywords: Mapping[str, Any]
) -> KnownResult | None:
    axes = keywords.get("axes", literals[0] if literals else None)
    if len(sources) != 1 or not sources[0].is_array:
        return None
    [shape] = sources[0].shapes
    axes = range(len(shape))[::-1] if axes is None else axes
    return KnownResult((itemgetter(*axes, *axes[:1])(shape)[: len(axes)],), sources[0].itemsize)


def _squeezed(
    sources: Sequence[KnownResult], literals: Sequence[Any], keywords: Mapping[str, Any]
) -> KnownResult | None:
    axes = keywords.get("axis", literals[0] if literals else None)
    if len(sources) != 1 or axes is None:
        return None
    shape = _reduced(sources[0].shapes[0], {"axis": axes})
    return None if shape is None else KnownResult((shape,), sources[0].itemsize)


def _of_shape(
    sources: Sequence[KnownResult], literals: Sequence[Any], keywords: Mapping[str, Any]
) -> KnownResult | None:
    """An array in another shape."""
    shape = keywords.get("shape", literals[0] if literals else None)
    if len(sources) != 1 or not isinstance(shape, tuple) or min(shape, default=0) < 0:
        return None
    return KnownResult((tuple(map(int, shape)),), sources[0].itemsize)


def _like_first(
    sources: Sequence[KnownResult], literals: Sequence[Any], keywords: Mapping[str, Any]
) -> KnownResult | None:
    """The first array with other elements, or running sums of it."""
    if not sources or not sources[0].is_array:
        return None
    return KnownResult(sources[0].shapes, _itemsize(sources[:1], keywords))


def _windows(
    sources: Sequence[KnownResult], literals: Sequence[Any], keywords: Mapping[str, Any]
) -> KnownResult | None:
    """All windows of an array, as a view."""
    windows, axes = keywords.get("window_shape"), keywords.get("axis")
    if len(sources) != 1 or not isinstance(windows, tuple) or not isinstance(axes, tuple):
        return None
    shape = list(sources[0].shapes[0])
    for window, axis in zip(windows, axes, strict=True):
        shape[axis] -= window - 1
    return KnownResult(((*shape, *windows),), sources[0].itemsize)


def _shaped(
    sources: Sequence[KnownResult], literals: Sequence[Any], keywords: Mapping[str, Any]
) -> KnownResult | None:
    """A grid of blocks in one."""
    grid = literals[-1] if literals else None
    if not sources or not isinstance(grid, (tuple, list)) or math.prod(grid) != len(sources):
        return None
    if any(not each.is_array or len(each.shapes[0]) != len(grid) for each in sources):
        return None
    shape = []
    for axis, count in enumerate(grid):
        step = math.prod(grid[axis + 1 :])
        along = [sources[number * step].shapes[0][axis] for number in range(count)]
        shape.append(sum(along))
    return KnownResult((tuple(shape),), sources[0].itemsize)


def _equal(
    sources: Sequence[KnownResult], literals: Sequence[Any], keywords: Mapping[str, Any]
) -> KnownResult | None:
    """Equal elements in the memory of one; a literal is the shape."""
    shapes = [each for each in (keywords.get("shape"), *literals) if isinstance(each, tuple)]
    if sources or not shapes:
        return None
    [shape, *_] = shapes
    return KnownResult((shape,), _itemsize((), keywords, _NUMBER))


def _made(
    sources: Sequence[KnownResult], literals: Sequence[Any], keywords: Mapping[str, Any]
) -> KnownResult | None:
    """An array that NumPy makes of numbers: a shape, or some lengths, and perhaps a type."""
    numbers: list[Any] = [each for each in literals if isinstance(each, (int, np.integer, tuple))]
    types = [each for each in literals if isinstance(each, (type, str, np.dtype))]
    if sources or not numbers:
        return None
    shape = numbers[0] if isinstance(numbers[0], tuple) else tuple(map(int, numbers))
    dtype = {"dtype": types[0]} if types else keywords
    return KnownResult((shape,), _itemsize((), dtype, _NUMBER))


def _eye(
    sources: Sequence[KnownResult], literals: Sequence[Any], keywords: Mapping[str, Any]
) -> KnownResult | None:
    """Ones on a diagonal, the third one of the literals."""
    return _made(sources, [*literals[:2], *literals[3:]], keywords)


def _range(
    sources: Sequence[KnownResult], literals: Sequence[Any], keywords: Mapping[str, Any]
) -> KnownResult | None:
    """Numbers from a first one to a last one by steps, as many as the fourth literal says."""
    return _made(sources, literals[3:], keywords)


def _drawn(
    sources: Sequence[KnownResult], literals: Sequence[Any], keywords: Mapping[str, Any]
) -> KnownResult | None:
    """Random numbers; `literals` are a generator, a name, a state, a shape, and arguments."""
    if sources or len(literals) != 6 or not isinstance(literals[3], tuple):
        return None
    return KnownResult((literals[3],), _itemsize((), literals[5], _NUMBER))


#: Keywords with the function that a wrapper of Dask calls.
_WRAPPED = ("enforce_dtype_function", "elemwise_where_function", "_func")

#: Names of functions without a type of their results which return whether something is true.
_TESTS = frozenset({"eq", "ge", "gt", "le", "lt", "ne", "_asarray_isnull", "_isnonzero", "isclose"})

_RULES: dict[Any, Callable[..., KnownResult | None]] = {
    **dict.fromkeys((np.sum, np.prod, np.nansum, np.nanprod), _fold),
    **dict.fromkeys((np.min, np.max, chunk_min, chunk_max, nanmin_skip, nanmax_skip), _fold),
    **dict.fromkeys((np.any, np.all), partial(_fold, itemsize=1)),
    **dict.fromkeys((np.count_nonzero, count_block), partial(_fold, itemsize=_NUMBER)),
    mean_chunk: _counted,
    moment_chunk: _moments,
    **dict.fromkeys((mean_combine, moment_combine, arg_combine), _combined),
    **dict.fromkeys((mean_agg, moment_agg), partial(_fold, itemsize=_NUMBER)),
    **dict.fromkeys((arg_agg, nanarg_agg), partial(_fold, itemsize=_NUMBER)),
    arg_chunk: _positions,
    sum_products: _fold,
    matmul_block: _matrix_product,
    tensordot_block: _tensor_product,
    einsum_block: _einsum,
    np.transpose: _transposed,
    np.squeeze: _squeezed,
    np.broadcast_to: _of_shape,
    np.reshape: _of_shape,
    sliding_window_view: _windows,
    setitem: _like_first,
    **dict.fromkeys((np.cumsum, np.cumprod, np.nancumsum, np.nancumprod), _like_first),
    concatenate_shaped: _shaped,
    random_block: _drawn,
    np.zeros: _made,
    np.eye: _eye,
    chunk_arange: _range,
}
