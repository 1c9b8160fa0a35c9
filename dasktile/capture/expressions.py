"""From the expressions of ``dask_array`` to Dask's arrays, which :mod:`highlevel` reads.

A node of an expression says what it computes: it is written with the function of ``dask.array``
that a user would have called.  The result must have the chunks, the data type and the type of
blocks that the node has; else, and where there is no such function, the node is written with the
nodes that ``dask_array`` itself writes it with, and at last with its tasks, which stay as they are.
So both packages give the same program for the same calls.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import getitem
from typing import Any

import dask.array as da
import numpy as np
from dask.array import Array
from dask.array.core import PerformanceWarning, elemwise
from dask.array.overlap import overlap_internal
from dask.array.reductions import cumreduction
from dask.base import unpack_collections
from dask.blockwise import BlockwiseDep
from dask.blockwise import blockwise as blockwise_layer
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph
from dask.utils import key_split

from dasktile._compat.dask import Task, TaskRef, convert_legacy_graph, histogram_counts
from dasktile._compat.expressions import (
    counterpart,
    inputs_of,
    is_of_package,
    kinds,
    lowered,
    meta_of,
    name_of,
    names_in_tasks,
    simplified,
    tasks_of,
)

Read = Callable[[Any], Array]


class ExpressionReader:
    """Writes nodes of ``dask_array`` with Dask's arrays, each node once.

    Attributes
    ----------
    errors
        Exceptions of rules; nodes of which a rule failed are written otherwise.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}
        self.errors: list[Exception] = []

    def array(self, node: Any) -> Array:
        """A Dask array with the values and the chunks of a node."""
        with warnings.catch_warnings():
            # the user has seen those of dask_array
            warnings.simplefilter("ignore", PerformanceWarning)
            simple = simplified(node)
            # a rewrite of dask_array that moves a slice below a function may be wrong
            is_right = _same_chunks([simple.shape], [node.shape])
            array = self._written(simple if is_right else node)
        return _in_chunks_of(node, array)

    def _written(self, root: Any) -> Array:
        # without recursion, because expressions are deep
        waiting = [root]
        while waiting:
            node = waiting[-1]
            if name_of(node) in self._arrays:
                waiting.pop()
                continue
            inputs = [each for each in inputs_of(node) if name_of(each) not in self._arrays]
            if inputs:
                waiting += inputs
                continue
            self._arrays[name_of(node)] = self._node(node)
        return self._arrays[name_of(root)]

    def _node(self, node: Any) -> Array:
        if not all(node.chunks):
            # no blocks along an axis, where arrays of Dask have one without elements
            return da.empty(node.shape, node.dtype, chunks=_chunks(node), meta=meta_of(node))
        try:
            array = _by_rule(node, self._read)
        except Exception as error:
            self.errors.append(error)
            array = None
        if array is not None:
            return array
        simpler = lowered(node)
        if simpler is None:
            return _from_tasks(node, self._read)
        array = self._written(simpler)
        # dask_array counts too many partial results where it joins empty blocks to others
        return _in_chunks_of(node, array) if _same_chunks([array.shape], [node.shape]) else array

    def _read(self, node: Any) -> Array:
        return self._arrays[name_of(node)]


def _in_chunks_of(node: Any, array: Array) -> Array:
    """An array in the chunks of a node: a rewrite of ``dask_array`` may have chosen others."""
    return array if _same_chunks(array.chunks, _chunks(node)) else array.rechunk(_chunks(node))


def _chunks(node: Any) -> tuple[tuple[int, ...], ...]:
    """The chunks of a node, with a block of no elements along an axis without blocks."""
    return tuple(sizes or (0,) for sizes in node.chunks)


def _by_rule(node: Any, read: Read) -> Array | None:
    """A node written with a function of ``dask.array``; None if there is none for it."""
    rule = next((RULES[kind] for kind in kinds(node)[:2] if kind in RULES), None)
    if rule is None or any(map(_has_empty_block, node.dependencies())):
        return None
    try:
        array = rule(node, read)
    except (NotImplementedError, TypeError, ValueError):
        # a form that dask.array does not have
        return None
    return array if array is not None and _is_like(array, node) else None


def _has_empty_block(node: Any) -> bool:
    """Whether an array has an empty block beside others.

    ``da.blockwise`` drops such blocks, and then returns arrays of wrong shapes.
    """
    return any(0 in sizes and len(sizes) > 1 for sizes in getattr(node, "chunks", ()))


def _is_like(array: Array, node: Any) -> bool:
    return (
        isinstance(array, Array)
        and _same_chunks(array.chunks, node.chunks)
        and array.dtype == node.dtype
        and _type_of_blocks(array._meta) is _type_of_blocks(meta_of(node))
    )


def _type_of_blocks(meta: Any) -> type:
    # dask_array describes an array without axes by a number
    return np.ndarray if isinstance(meta, np.generic) else type(meta)


def _same_chunks(ours: Any, theirs: Any) -> bool:
    return len(ours) == len(theirs) and all(
        len(one) == len(other)
        and all(
            a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(one, other, strict=True)
        )
        for one, other in zip(ours, theirs, strict=True)
    )


def _from_tasks(node: Any, read: Read) -> Array:
    """A node with its own tasks, which read blocks of the arrays that its inputs are written as."""
    name, tasks = name_of(node), tasks_of(node)
    arrays = {each: read(each) for each in inputs_of(node)}
    if not arrays:
        return _array(node, name, tasks, ())
    if not tasks and len(arrays) == 1:
        # the tasks of the node are among those of its input, as for the factors of linalg.lu
        (below,) = arrays.values()
        layers = {**below.dask.layers, name: below.dask.layers[below.name]}
        return _with_reads(node, name, layers, below.dask.dependencies, [below])
    blocks = {
        (old, *key[1:]): key
        for each, array in arrays.items()
        for old in names_in_tasks(each)
        for key in flatten(array.__dask_keys__())
    }
    nodes = convert_legacy_graph(tasks, all_keys={*tasks, *blocks})
    inner: dict[str, Array] = {}
    for key, task in nodes.items():
        read_here = [other for other in task.dependencies if other not in tasks]
        for other in read_here:
            if other not in blocks:
                array = _array_with_task(other, arrays.values())
                inner[array.name] = array
        subs = {old: blocks[old] for old in read_here if old in blocks}
        tasks[key] = _with_function_of_dask(task.substitute(subs))
    for array in inner.values():
        # as the factors of linalg.cholesky, which read what is no block of their input
        tasks = {**array.dask.layers[array.name], **tasks}
    array = _array(node, name, tasks, arrays.values())
    if not inner:
        return array
    readers = [array, *inner.values()]
    return _with_reads(node, name, array.dask.layers, array.dask.dependencies, readers)


def _with_reads(
    node: Any,
    name: str,
    layers: Mapping[str, Any],
    reads: Mapping[str, Any],
    arrays: Iterable[Array],
) -> Array:
    """An array like a node, whose layer has the tasks of some arrays and reads what these read."""
    needs: set[str] = set().union(*(each.dask.dependencies[each.name] for each in arrays))
    return _like(node, name, HighLevelGraph(layers, {**reads, name: needs}))


def _array_with_task(key: Any, arrays: Iterable[Array]) -> Array:
    for array in arrays:
        if key in array.dask.layers[array.name]:
            return array
    raise ValueError(f"no input has the task {key}")


def _with_function_of_dask(task: Any) -> Any:
    function = counterpart(task.func) if type(task) is Task else None
    if function is None or function is task.func:
        return task
    return Task(task.key, function, *task.args, _data_producer=task.data_producer, **task.kwargs)


def _array(node: Any, name: str, layer: Any, inputs: Iterable[Any]) -> Array:
    """An array like a node, of a name, from its layer and the arrays that this reads."""
    return _like(node, name, HighLevelGraph.from_collections(name, layer, list(inputs)))


def _like(node: Any, name: str, graph: HighLevelGraph) -> Array:
    return Array(graph, name, node.chunks, dtype=node.dtype, meta=meta_of(node))


def _from_array(node: Any, read: Read) -> Array | None:
    array, region, chunks = node.operand("array"), node.operand("_region"), node.chunks
    name = name_of(node)
    index: tuple[slice, ...] = ()
    if region is not None:
        index = tuple(region)
        if isinstance(array, np.ndarray):
            array, index = array[index], ()
        else:
            # the same blocks of the whole array, with what is around them
            bounds = [cut.indices(size)[:2] for cut, size in zip(index, array.shape, strict=True)]
            if any(cut.step not in (None, 1) for cut in index):
                return None
            chunks = tuple(
                tuple(size for size in (start, *sizes, whole - stop) if size)
                for (start, stop), sizes, whole in zip(bounds, chunks, array.shape, strict=True)
            )
            name += "-whole"
    whole = da.from_array(
        array,
        chunks=chunks,
        name=name,
        lock=node.operand("lock"),
        asarray=node.operand("asarray"),
        fancy=node.operand("fancy"),
        getitem=counterpart(node.operand("getitem")),
        meta=node.operand("meta"),
        inline_array=node.operand("inline_array"),
    )
    return whole[index] if index else whole


def _elemwise(node: Any, read: Read) -> Array | None:
    if node.operand("where") is not True or node.user_kwargs:
        return _blockwise(node, read)
    arguments = [_argument(each, read) for each in node.elemwise_args]
    return elemwise(counterpart(node.operand("op")), *arguments, dtype=node.operand("dtype"))


def _argument(value: Any, read: Read) -> Any:
    return read(value) if hasattr(value, "dependencies") and hasattr(value, "chunks") else value


def _blockwise(node: Any, read: Read) -> Array | None:
    pairs = [
        (counterpart(value), None) if symbols is None else (_argument(value, read), tuple(symbols))
        for value, symbols in zip(node.args[::2], node.args[1::2], strict=True)
    ]
    options = {name: counterpart(value) for name, value in node.kwargs.items()}
    if any(isinstance(value, BlockwiseDep) for value, _ in pairs):
        return _blockwise_with_positions(node, pairs, options)
    return da.blockwise(
        counterpart(node.func),
        tuple(node.out_ind),
        *itertools.chain(*pairs),
        token=key_split(name_of(node)),
        dtype=node.dtype,
        adjust_chunks=node.adjust_chunks,
        new_axes=node.new_axes,
        align_arrays=node.align_arrays,
        concatenate=node.concatenate,
        meta=meta_of(node),
        **options,
    )


def _blockwise_with_positions(
    node: Any, pairs: Sequence[tuple[Any, Any]], options: Mapping[str, Any]
) -> Array | None:
    """What map_blocks of dask.array does for a function that gets the positions of blocks."""
    if unpack_collections([value for value, symbols in pairs if symbols is None], options)[0]:
        return None  # collections among the other arguments
    arrays = [value for value, _ in pairs if isinstance(value, Array)]
    named = [(value.name if isinstance(value, Array) else value, axes) for value, axes in pairs]
    name = name_of(node)
    layer = blockwise_layer(
        counterpart(node.func),
        name,
        tuple(node.out_ind),
        *itertools.chain(*named),
        numblocks={array.name: array.numblocks for array in arrays},
        dependencies=arrays,
        new_axes=node.new_axes,
        concatenate=node.concatenate,
        **options,
    )
    return _array(node, name, layer, arrays)


def _reduction(node: Any, read: Read) -> Array:
    weights = node.operand("weights")
    return da.reduction(
        read(node.operand("array")),
        counterpart(node.operand("chunk")),
        counterpart(node.operand("aggregate")),
        axis=node.operand("axis"),
        keepdims=node.operand("keepdims"),
        dtype=node.operand("dtype"),
        split_every=node.operand("split_every"),
        combine=counterpart(node.operand("combine")),
        name=node.operand("name"),
        concatenate=node.operand("concatenate"),
        output_size=node.operand("output_size"),
        meta=node.operand("meta"),
        weights=None if weights is None else read(weights),
    )


def _arg_reduction(node: Any, read: Read) -> Array | None:
    """``argmin`` and the like: partial reductions of the positions in every block."""
    below = node
    while "PartialReduce" in kinds(below):
        below = below.operand("array")
    if "ArgChunk" not in kinds(below):
        return None
    search = below.operand("chunk_func")
    function = getattr(da, search.args[1].__name__.lstrip("_"))
    axes = below.operand("axis")
    array = below.operand("array")
    ravel = not axes or (below.operand("ravel") and len(array.chunks) > 1)
    return function(
        read(array),
        axis=None if ravel else axes[0],
        keepdims=len(node.chunks) == len(array.chunks),
        split_every=node.operand("split_every"),
    )


def _broadcast(node: Any, read: Read) -> Array:
    return da.broadcast_to(read(node.operand("array")), node.shape, chunks=node.chunks)


def _coarsen(node: Any, read: Read) -> Array:
    reduction = node.operand("reduction")
    if is_of_package(reduction):
        # as dask.array does with its own functions
        reduction = getattr(np, reduction.__name__)
    return da.coarsen(
        reduction,
        read(node.operand("x")),
        node.operand("axes"),
        trim_excess=node.operand("trim_excess"),
        **(node.operand("kwargs") or {}),
    )


def _filled(node: Any, read: Read) -> Array:
    options = {"dtype": node.dtype, "chunks": node.chunks, "meta": node.operand("meta")}
    kind = kinds(node)[0]
    if kind == "Full":
        return da.full(node.shape, node.operand("kwargs")["fill_value"], **options)
    return getattr(da, kind.lower())(node.shape, **options)


def _arange(node: Any, read: Read) -> Array:
    bounds = [node.operand(name) for name in ("start", "stop", "step")]
    return da.arange(*bounds, chunks=node.chunks, dtype=node.dtype)


def _linspace(node: Any, read: Read) -> Array:
    start, stop, num = (node.operand(name) for name in ("start", "stop", "num"))
    return da.linspace(
        start, stop, num, endpoint=node.operand("endpoint"), chunks=node.chunks, dtype=node.dtype
    )


def _scan(node: Any, read: Read, method: str) -> Array | None:
    if not all(size > 0 for size in node.chunks[node.operand("axis")]):
        return None  # dask.array takes the last element of every block, which has none
    return cumreduction(
        counterpart(node.operand("func")),
        counterpart(node.operand("binop")),
        0 if method == "blelloch" else node.operand("ident"),
        read(node.operand("array")),
        axis=node.operand("axis"),
        dtype=node.dtype,
        method=method,
        preop=counterpart(node.operand("preop")) if method == "blelloch" else None,
    )


def _stencil(node: Any, read: Read) -> Array:
    return da.map_overlap(
        node.operand("func"),
        *map(read, node.arrays),
        depth=list(node.operand("depth")),
        boundary=list(node.operand("boundary")),
        trim=node.operand("trim_output"),
        align_arrays=False,
        allow_rechunk=node.operand("allow_rechunk"),
        **(node.operand("kwargs") or {}),
    )


def _shuffled(node: Any, read: Read) -> Array:
    positions = np.concatenate(
        [np.asarray(group, dtype=np.intp) for group in node.operand("indexer")]
    )
    return da.take(read(node.operand("array")), positions, axis=node.operand("axis"))


def _at_points(node: Any, read: Read) -> Array:
    array, points = read(node.operand("array")), node.operand("dict_indexes")
    return array.vindex[tuple(points.get(axis, slice(None)) for axis in range(array.ndim))]


def _from_delayed(node: Any, read: Read) -> Array:
    return da.from_delayed(node.operand("value"), node.shape, dtype=node.dtype, meta=meta_of(node))


def _gufunc_result(node: Any, read: Read) -> Array:
    """One result of a gufunc, whose blocks have the keys that apply_gufunc of dask.array gives."""
    array, position = read(node.operand("array")), node.operand("i")
    prefix, _, token = array.name.rpartition("-")
    name, cores = f"{prefix}_{position}-{token}", (0,) * len(node.operand("ocd"))
    keys = list(flatten(array.__dask_keys__()))
    several = node.operand("nout")
    tasks = {(name, *key[1:], *cores): (getitem, key, position) if several else key for key in keys}
    return _array(node, name, tasks, [array])


def _histogram(node: Any, read: Read) -> Array | None:
    """The counts of every block, which a sum adds."""
    edges = [node.operand(name) for name in ("bins", "range_start", "range_stop")]
    if any(hasattr(edge, "dependencies") for edge in edges):
        return None
    bins, *bounds = edges
    weights = node.operand("weights")
    arrays = [read(each) for each in (node.operand("array"), weights) if each is not None]
    blocks = zip(*(flatten(array.__dask_keys__()) for array in arrays), strict=True)
    name, bins_range = name_of(node), [bins, tuple(bounds)]
    tasks = {}
    for row, (key, *others) in enumerate(blocks):
        arguments = TaskRef(key), bins_range, *map(TaskRef, others)
        tasks[name, row, 0] = Task((name, row, 0), histogram_counts, *arguments)
    return _array(node, name, tasks, arrays)


def _joined(node: Any, read: Read) -> Array:
    return da.concatenate(
        list(map(read, node.args)), axis=node.operand("axis"), allow_unknown_chunksizes=True
    )


#: For the name of a node's class, or of its base class, how a node is written.
RULES: Mapping[str, Callable[[Any, Read], Array | None]] = {
    "Arange": _arange,
    "Blocks": lambda node, read: read(node.operand("array")).blocks[tuple(node.operand("index"))],
    "Blockwise": _blockwise,
    "BroadcastTo": _broadcast,
    "BroadcastTrick": _filled,
    "ChunksFreeze": lambda node, read: read(node.operand("array")).rechunk(node.chunks),
    "Coarsen": _coarsen,
    "Concatenate": _joined,
    "CumReduction": lambda node, read: _scan(node, read, "sequential"),
    "CumReductionBlelloch": lambda node, read: _scan(node, read, "blelloch"),
    "Elemwise": _elemwise,
    "ExpandDims": lambda node, read: da.expand_dims(
        read(node.operand("array")), tuple(node.operand("axes"))
    ),
    "FromArray": _from_array,
    "FromDelayed": _from_delayed,
    "GUfuncLeafExpr": _gufunc_result,
    "HistogramBinned": _histogram,
    "Linspace": _linspace,
    "MapOverlap": _stencil,
    "OverlapInternal": lambda node, read: overlap_internal(
        read(node.operand("array")), node.operand("axes")
    ),
    "PartialReduce": _arg_reduction,
    "Rechunk": lambda node, read: read(node.operand("array")).rechunk(node.chunks),
    "Reduction": _reduction,
    "Reshape": lambda node, read: read(node.operand("array")).reshape(node.shape),
    "RootAlias": lambda node, read: read(node.operand("array")),
    "Shuffle": _shuffled,
    "SliceSlicesIntegers": lambda node, read: read(node.operand("array"))[
        tuple(node.operand("index"))
    ],
    "Squeeze": lambda node, read: da.squeeze(
        read(node.operand("array")), axis=node.operand("axis")
    ),
    "Stack": lambda node, read: da.stack(list(map(read, node.args)), axis=node.operand("axis")),
    "Transpose": lambda node, read: read(node.operand("array")).transpose(node.operand("axes")),
    "VIndexArray": _at_points,
}
