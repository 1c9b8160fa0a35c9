"""What is known of the results of tasks from what is known of their inputs.

Slices, stacks, products and factorisations of known blocks are known, and what flox's functions
make of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import getitem as operator_getitem
from typing import Any

import numpy as np
from dask.core import flatten
from dask.utils import apply

from dasktile._compat.dask import (
    Alias,
    DataNode,
    GraphNode,
    TaskRef,
    argtopk_aggregate,
    argtopk_preprocess,
    chunk_argtopk,
    fused_tasks,
    getitem,
    identity_cast,
    list_to_container,
    shuffle_concatenate,
    shuffle_getitem,
    wrapped_qr,
)
from dasktile.capture.rules.trees import unwrap
from dasktile.lower.block_results import Rule, rule_of_block
from dasktile.lower.grouped import Unique, grouped_result
from dasktile.lower.known import KnownResult
from dasktile.lower.reshard import getitem_any, join
from dasktile.lower.working import called, data_of, read_block

Key = Any

#: Functions that slice.
SLICING = (operator_getitem, getitem, getitem_any)


@dataclass(frozen=True, slots=True)
class ResultGraph:
    """What a task may read.

    Parameters
    ----------
    read
        What a key stands for that the task reads; None if its size is unknown.
    data
        The value of a key that is data of the graph, or a slice of it; None for other keys.
    inner
        What a step of a task makes, by its key; None if that is unknown.
    unique
        Finds the labels that occur in an array.
    """

    read: Callable[[Key], KnownResult | None]
    data: Callable[[Key], Any]
    inner: Callable[[Key], KnownResult | None]
    unique: Unique


def known_result(task: Any, graph: ResultGraph) -> KnownResult | None:
    """The result of a task of a graph, or within another task; None if its size is unknown.

    Parameters
    ----------
    task
        The task, or what stands for one among the arguments of another one.
    graph
        What it may read.
    """
    if isinstance(task, (Alias, TaskRef)):
        return graph.read(task.target if isinstance(task, Alias) else task.key)
    if isinstance(task, DataNode):
        return array_result(task.value)
    steps = fused_tasks(task)
    if steps:
        return _last_result(task, steps, graph)
    block = read_block(task, graph.data)
    if block is not None:
        shape, itemsize = block
        return KnownResult((shape,), itemsize)
    function = getattr(task, "func", None)
    if function is None:
        return None
    if function is apply and task.args[0] is np.full_like:
        return _filled(*task.args[1:])
    rule = _joined if function is join else _RULES.get(_name(function))
    if rule is None:
        rule = _rule_of_arguments(task, graph)
    if rule is None:
        return None
    sources, literals = [], []
    for argument in _flat(task.args):
        value = data_of(argument, graph.data)
        if not _is_task(argument) or (not _is_task(value) and _is_literal(value)):
            literals.append(value)
            continue
        source = known_result(argument, graph)
        if source is None:
            return None
        sources.append(source)
    return rule(sources, literals)


def _is_literal(value: Any) -> bool:
    """Whether data of the graph is an argument as others are, and no block."""
    return value is not None and not (isinstance(value, np.ndarray) and value.ndim)


def _rule_of_arguments(task: Any, graph: ResultGraph) -> Rule | None:
    """The rule of a function whose result depends on more than its inputs; None for others."""
    function, call = task.func, unwrap(task.func)
    if call.function is np.zeros_like:
        return partial(_zeros_like, **{**call.keywords, **task.kwargs})
    if call.function in (chunk_argtopk, argtopk_aggregate):
        positions = call.function is argtopk_aggregate
        return partial(_largest_pairs, positions, **{**call.keywords, **task.kwargs})
    if any(_name(part).startswith("flox.") for part in called(function)):
        labels = data_of(task.args[1], graph.data) if len(task.args) > 1 else None
        return partial(_of_groups, function, labels, graph.unique)
    return rule_of_block(task)


def _last_result(task: Any, steps: Mapping[Key, Any], graph: ResultGraph) -> KnownResult | None:
    """The result of a task that runs several, that of the last one of them."""
    last, names, *arguments = task.args[1:]
    given = dict(zip(names, arguments, strict=False))

    def known(key: Key) -> Any:
        return data_of(given.get(key, steps.get(key, TaskRef(key))), graph.data)

    @cache
    def result(key: Key) -> KnownResult | None:
        if key in steps:
            return graph.inner(key) or known_result(steps[key], inner)
        return known_result(given[key], graph) if key in given else graph.read(key)

    inner = replace(graph, read=result, data=known)
    return result(last)


def _is_task(argument: Any) -> bool:
    return isinstance(argument, (GraphNode, TaskRef))


def _flat(arguments: Iterable[Any]) -> Iterator[Any]:
    """The arguments of a task; those in lists and tuples of tasks one by one."""
    for argument in arguments:
        if getattr(argument, "func", None) in (tuple, list_to_container, identity_cast):
            yield from _flat(argument.args)
        else:
            yield argument


def array_result(value: Any) -> KnownResult | None:
    """An array of the graph; None for other values.

    Parameters
    ----------
    value
        Any value.
    """
    return KnownResult((value.shape,), value.itemsize) if isinstance(value, np.ndarray) else None


def _name(function: Any) -> str:
    """The module and the name of a function; modules of a package below its first one count."""
    module = str(getattr(function, "__module__", ""))
    return f"{module.partition('.')[0]}.{getattr(function, '__name__', '')}"


def _sliced(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    if len(sources) != 1 or len(literals) != 1:
        return None
    [source], [index] = sources, literals
    if not source.is_array:
        one = type(index) is int and 0 <= index < len(source.shapes)
        return KnownResult((source.shapes[index],), source.itemsize) if one else None
    [shape] = source.shapes
    index = index if type(index) is tuple else (index,)
    sizes = iter(shape)
    cut = []
    for part in index:
        size = 1 if part is None else next(sizes, None)
        taken = _length(part, size)
        if taken is None:
            return None
        if type(part) is not int:
            cut.append(taken)
    lists = sum(type(part) in (list, np.ndarray) for part in index)
    return KnownResult(((*cut, *sizes),), source.itemsize) if lists < 2 else None


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


def _shuffled(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    """Elements of a block at positions, the second item of a literal."""
    return _sliced(sources, [literals[0][1]]) if len(literals) == 1 else None


def _sorted_again(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    """Several shuffled parts along an axis, the last one of the literals."""
    if not sources or not all(each.is_array for each in sources) or type(literals[-1]) is not int:
        return None
    axis, [shape] = literals[-1], sources[0].shapes
    whole = sum(each.shapes[0][axis] for each in sources)
    return KnownResult(((*shape[:axis], whole, *shape[axis + 1 :]),), sources[0].itemsize)


def _factors(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    """The factors Q and R of a matrix."""
    if not _are_matrices(sources, 1):
        return None
    [source] = sources
    rows, columns = source.shapes[0]
    inner = min(rows, columns)
    return KnownResult(((rows, inner), (inner, columns)), source.itemsize, is_array=False)


def _stacked(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    if not sources or not _are_matrices(sources, len(sources)):
        return None
    rows = sum(each.shapes[0][0] for each in sources)
    return KnownResult(((rows, sources[0].shapes[0][1]),), sources[0].itemsize)


def _joined(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    """A grid of blocks in one, see `join`."""
    [grid] = literals
    if not sources or not all(each.is_array for each in sources):
        return None
    numbers = np.arange(len(sources)).reshape(grid)
    shape = tuple(
        sum(
            sources[number].shapes[0][axis]
            for number in np.moveaxis(numbers, axis, -1).reshape(-1, count)[0]
        )
        for axis, count in enumerate(grid)
    )
    return KnownResult((shape,), sources[0].itemsize)


def _product(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    if not _are_matrices(sources[:1], 1) or len(sources) != 2 or not sources[1].is_array:
        return None
    first, second = sources
    return KnownResult(((first.shapes[0][0], *second.shapes[0][1:]),), first.itemsize)


def _are_matrices(sources: Sequence[KnownResult], count: int) -> bool:
    """Whether there are so many results, all of them matrices."""
    return len(sources) == count and all(
        each.is_array and len(each.shapes[0]) == 2 for each in sources
    )


def _triangular(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    """The factors P, L and U of a square matrix."""
    if not _are_matrices(sources, 1):
        return None
    return replace(sources[0], shapes=sources[0].shapes * 3, is_array=False)


def _singular(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    """The factors U and V of a matrix, and its singular values between them."""
    factors = _factors(sources, literals)
    if factors is None:
        return None
    left, right = factors.shapes
    return replace(factors, shapes=(left, left[1:], right))


def _zeros_like(
    sources: Sequence[KnownResult],
    literals: Sequence[Any],
    shape: tuple[int, ...] | None = None,
    dtype: Any = None,
    **options: Any,
) -> KnownResult | None:
    """Zeros of a given shape, of the type of an array among the literals: a meta."""
    like = dtype if dtype is not None else getattr(literals[0] if literals else None, "dtype", None)
    if shape is None or like is None or sources:
        return None
    return KnownResult((tuple(shape),), np.dtype(like).itemsize)


def _percentiles(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    """Percentiles of a block, and the number of its elements."""
    wanted = [each for each in literals if isinstance(each, np.ndarray)]
    return KnownResult((wanted[0].shape, (1,)), 8, is_array=False) if len(wanted) == 1 else None


def _transposed(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    if not _are_matrices(sources, 1) or literals:
        return None
    return replace(sources[0], shapes=(sources[0].shapes[0][::-1],))


def _broadcast(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    """An elementwise function of arrays of one type."""
    if not sources or not all(each.is_array for each in sources):
        return None
    try:
        shape = np.broadcast_shapes(*(each.shapes[0] for each in sources))
    except ValueError:
        return None
    return KnownResult((shape,), max(each.itemsize for each in sources))


def _like_last(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    """A result of the shape of the last input: a sum, or a solution."""
    return sources[-1] if sources and all(each.is_array for each in sources) else None


def _only(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    return sources[0] if len(sources) == 1 else None


def _filled(like: Any, options: Any) -> KnownResult | None:
    """Equal elements, before the first block of a running sum: a meta, their value and dtype."""
    shape = dict(options).get("shape")
    if type(like) is not tuple or not isinstance(shape, tuple):
        return None
    return KnownResult((shape,), like[-1].itemsize)


def _held(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    """A tuple of anything, as a variable of xarray."""
    size = sum(each.nbytes for each in sources)
    size += sum(getattr(each, "nbytes", 0) for each in flatten(literals, (list, tuple)))
    return KnownResult(((size,),), 1, is_array=False)


def _pair(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    """A tuple of two arrays; elements of both are counted as those of the first one."""
    if len(sources) != 2 or not all(each.is_array for each in sources):
        return None
    first, second = sources
    return KnownResult((*first.shapes, *second.shapes), first.itemsize, is_array=False)


def _largest_pairs(
    positions: bool,
    sources: Sequence[KnownResult],
    literals: Sequence[Any],
    k: int,
    axis: tuple[int, ...],
    keepdims: bool,
) -> KnownResult | None:
    """The largest of several tuples of elements and positions, or the positions alone."""
    if not sources or any(each.is_array or len(each.shapes) != 2 for each in sources):
        return None
    shape, [along] = sources[0].shapes[0], axis
    count = min(abs(k), sum(each.shapes[0][along] for each in sources))
    shape = (*shape[:along], count, *shape[along + 1 :])
    if positions:
        return KnownResult((shape,), np.dtype(np.intp).itemsize)
    return KnownResult((shape, shape), sources[0].itemsize, is_array=False)


def _of_groups(
    function: Any,
    labels: Any,
    unique: Unique,
    sources: Sequence[KnownResult],
    literals: Sequence[Any],
) -> KnownResult | None:
    return grouped_result(function, sources, labels, unique)


#: By the name of a function, the result that follows from those of its inputs and from literals.
_RULES: Mapping[str, Rule] = {
    **{_name(function): _sliced for function in SLICING},
    _name(shuffle_getitem): _shuffled,
    _name(shuffle_concatenate): _sorted_again,
    **{_name(function): _factors for function in (np.linalg.qr, wrapped_qr)},
    "numpy.vstack": _stacked,
    "numpy.dot": _product,
    "numpy.svd": _singular,
    "scipy.lu": _triangular,
    "dask._cumsum_merge": _broadcast,
    "dask._cumprod_merge": _broadcast,
    "builtins.tuple": _held,
    "builtins.sum": _like_last,
    "dask.percentile": _percentiles,
    _name(argtopk_preprocess): _pair,
    "flox._zip_index": _pair,
    "flox.identity": _only,
    "dask._cholesky_lower": _like_last,
    "dask._conj_transpose": _transposed,
    "dask._solve_triangular_lower": _like_last,
    "dask.solve_triangular_safe": _like_last,
}
