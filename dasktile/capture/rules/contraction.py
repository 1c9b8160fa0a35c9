"""Recogniser of products summed over axes: ``matmul``, ``tensordot``, ``einsum``.

dask writes them as a Blockwise layer of products, in which every summed axis has size one per
block, and a tree of sums over these blocks.  The tree is recognised from its root and becomes
one node.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

import numpy as np
from dask.blockwise import Blockwise

from dasktile._compat.dask import (
    Task,
    chunk_sum,
    einsum_block,
    getitem,
    matmul_block,
    sum_products,
    tensordot_block,
)
from dasktile.capture.base import (
    ArrayInfo,
    GraphView,
    NotRecognised,
    Operation,
    Recogniser,
    added_axes,
)
from dasktile.capture.corrections import called_function
from dasktile.capture.rules.blockwise import Contract, Operands, operands
from dasktile.capture.rules.trees import Call, read_level, read_tree, unwrap
from dasktile.capture.titles import call_of_layer
from dasktile.ir import AxisMap, Kind, Label, Role

#: The block functions of products, and the names of the operations.
_PRODUCTS = (
    (matmul_block, "matmul"),
    (tensordot_block, "tensordot"),
    (einsum_block, "einsum"),
)


def contraction(view: GraphView, name: str) -> Operation | NotRecognised | None:
    """A sum of products in any of the forms that dask writes."""
    layer, info = view.layers[name], view.array(name)
    if info is None:
        return None
    if isinstance(layer, Blockwise):
        if layer.task.func is einsum_block:
            return _operation(view, layer, info) or _declined(view, layer)
        product = layer if _product(layer) else _product_below(view, name)
        return None if product is None else _declined(view, product)
    product = _squeezed(view, name) or _summed(view, name)
    if product is None:
        product = _product_below(view, name)
        return None if product is None else _declined(view, product)
    return _operation(view, product, info) or _declined(view, product)


def _declined(view: GraphView, layer: Blockwise) -> NotRecognised | None:
    """Why a product is unchanged; None if that is because of what it reads."""
    if any(view.array(read) is None for read in layer.numblocks if read not in layer.io_deps):
        return None
    read, call = operands(view, layer), _product(layer)
    common = np.result_type(*(array.dtype for array in read.arrays)) if read else np.dtype(float)
    if layer.task.kwargs.get("kernel_dtype") not in (None, common):
        common = np.dtype(float)
    depends = "so that its values depend on the chunks; after astype({}) it is tiled"
    if common.kind == "b":
        reason = f"{call} of booleans is 'or' within a chunk and a count over several, "
        return NotRecognised(reason + depends.format("int"))
    if common.kind in "iu" and common.itemsize < 8:
        wide = "int64" if common.kind == "i" else "uint64"
        reason = f"{call} of {common} overflows within a chunk, and chunks are added in {wide}, "
        return NotRecognised(reason + depends.format(wide))
    return NotRecognised(
        f"{call} of these dtypes or arguments may have other values in other chunks"
    )


def _product_below(view: GraphView, name: str) -> Blockwise | None:
    """The layer of products whose blocks a layer sums, maybe after others; None for another one."""
    # by name first, as functions of layers are found slowly
    while call_of_layer(name) == "matmul" and _sums(unwrap(called_function(view.layers[name])[0])):
        names = view.dependencies(name)
        if len(names) != 1:
            return None
        [name] = names
        layer = view.layers[name]
        if isinstance(layer, Blockwise) and _product(layer):
            return layer
    return None


def _operation(view: GraphView, layer: Blockwise, info: ArrayInfo) -> Operation | None:
    summed = _summed_symbols(layer)
    read = operands(view, layer)
    if summed is None or read is None:
        return None
    kept = tuple(symbol for symbol in layer.output_indices if symbol not in summed)
    if not set(read.sizes) >= {*kept, *summed}:
        return None
    if tuple(read.sizes[symbol] for symbol in kept) != info.chunks:
        return None
    if not _exact(layer, read, info):
        return None
    # summed labels in the order of the operands
    order = list(dict.fromkeys(itertools.chain(kept, *read.symbols)))
    labels = {symbol: number for number, symbol in enumerate(order)}
    inputs = read.inputs(labels)
    return Operation(
        op=_product(layer),
        kind=Kind.CONTRACT,
        labels=tuple(
            Label(
                sum(read.sizes[symbol]),
                Role.FREE if symbol in kept else Role.REDUCE,
                read.sizes[symbol],
            )
            for symbol in order
        ),
        out=tuple(AxisMap(number) for number in range(len(kept))),
        kernel=Contract(
            spec=tuple(tuple(axis.label for axis in source.axes) for source in inputs),
            output=tuple(range(len(kept))),
            dtype=info.dtype,
            kwargs=_keywords(layer),
        ),
        inputs=inputs,
        partial=float(info.dtype.itemsize) if summed else 0.0,
        work=float(len(inputs)),
    )


def _product(layer: Blockwise) -> str:
    """Name of the operation of a layer of products; empty for any other layer."""
    for function, operation in _PRODUCTS:
        if layer.task.func is function:
            return operation
    return ""


def _exact(layer: Blockwise, read: Operands, info: ArrayInfo) -> bool:
    """True if the values do not depend on the chunks, except for rounding.

    dask multiplies in the dtype of the operands and adds in a wider one, so the overflow of
    small integers depends on the chunks.  So do booleans, whose sum within a block is "or".
    """
    common = np.result_type(*(array.dtype for array in read.arrays))
    wanted = layer.task.kwargs.get("kernel_dtype")
    return (
        common == info.dtype
        and common.kind in "iufc"
        and (wanted is None or np.dtype(wanted) == common)
    )


def _keywords(layer: Blockwise) -> dict[str, Any]:
    if layer.task.func is not einsum_block:
        return {}
    return {"optimize": layer.task.kwargs.get("optimize", False)}


def _summed_symbols(layer: Blockwise) -> tuple[str, ...] | None:
    """Symbols summed after a layer of products; None if its form is not supported."""
    function, kwargs, outer = layer.task.func, layer.task.kwargs, layer.output_indices
    symbols = [symbols for _, symbols in layer.indices]
    if layer.concatenate or added_axes(layer) or any(names is None for names in symbols):
        return None
    names = [names for names in symbols if names is not None]
    if function is matmul_block:
        if kwargs or len(names) != 2 or len(outer) < 3:
            return None
        batch, (row, inner, column) = outer[:-3], outer[-3:]
        fits = names == [(*batch, row, inner), (*batch, inner, column)]
        return (inner,) if fits else None
    if function is tensordot_block:
        return _tensordot_symbols(kwargs, names, outer)
    return _einsum_symbols(kwargs, names, outer)


def _tensordot_symbols(
    kwargs: dict[str, Any], names: list[tuple[str, ...]], outer: tuple[str, ...]
) -> tuple[str, ...] | None:
    if set(kwargs) != {"axes", "is_sparse"} or kwargs["is_sparse"] or len(names) != 2:
        return None
    left, right = names
    summed = tuple(left[axis] for axis in kwargs["axes"][0])
    if summed != tuple(right[axis] for axis in kwargs["axes"][1]):
        return None
    if outer != (*left, *(symbol for symbol in right if symbol not in summed)):
        return None
    # For negative axes dask may compute blocks of the wrong shape.  The node then has the shape
    # that dask declares, and the values of the tensordot.
    return summed if len(set(outer)) == len(outer) else None


def _einsum_symbols(
    kwargs: dict[str, Any], names: list[tuple[str, ...]], outer: tuple[str, ...]
) -> tuple[str, ...] | None:
    if set(kwargs) - {"subscripts", "kernel_dtype", "ncontract_inds", "optimize"}:
        return None
    sources, _, result = kwargs["subscripts"].partition("->")
    letters: dict[str, str] = {}
    for term, symbols in zip(sources.split(","), names, strict=True):
        for letter, symbol in zip(term, symbols, strict=True):
            if letters.setdefault(letter, symbol) != symbol:
                return None
    count = len(result)
    if len(set(letters.values())) != len(letters) or len(outer) != len(letters):
        return None
    fits = tuple(letters[letter] for letter in result) == outer[:count]
    return outer[count:] if fits and len(outer) - count == kwargs["ncontract_inds"] else None


def _squeezed(view: GraphView, name: str) -> Blockwise | None:
    """The layer of products of a matmul with one block along the summed axis."""
    below = view.dependencies(name)
    product = view.layers.get(below[0]) if len(below) == 1 else None
    if not isinstance(product, Blockwise) or product.task.func is not matmul_block:
        return None
    count = len(product.output_indices)
    index = (*(slice(None) for _ in range(count - 2)), 0, slice(None))
    if product.dims[product.output_indices[-2]] != 1:
        return None
    for key, task in view.tasks(name).items():
        if not isinstance(task, Task) or task.func not in (operator.getitem, getitem):
            return None
        if task.args[1] != index or set(task.dependencies) != {(below[0], *key[1:-1], 0, key[-1])}:
            return None
    return product


def _summed(view: GraphView, name: str) -> Blockwise | None:
    """The layer of products below a tree of sums."""
    last = read_level(view, name)
    if last is None or last.keepdims or last.call.args or not _sums(last.call):
        return None
    tree = read_tree(view, name, _step_blocks)
    if tree is None or (tree.between is not None and not _sums(tree.between.call)):
        return None
    step = view.layers[tree.step]
    product = view.layers[view.dependencies(tree.step)[0]]
    if not isinstance(step, Blockwise) or not isinstance(product, Blockwise):
        return None
    if tuple(step.task.kwargs["axis"]) != last.axes:
        return None
    summed = _summed_symbols(product)
    if summed is None or {product.output_indices[axis] for axis in last.axes} != set(summed):
        return None
    return product


def _step_blocks(view: GraphView, name: str) -> tuple[int, ...] | None:
    """Numbers of blocks of a layer that sums every block of products along an axis."""
    step = view.layers.get(name)
    if not isinstance(step, Blockwise) or len(step.indices) != 1:
        return None
    call = unwrap(step.task.func)
    below = view.dependencies(name)
    product = view.layers[below[0]] if len(below) == 1 else None
    if not isinstance(product, Blockwise) or not _product(product):
        return None
    if not _sums(call) or set(step.task.kwargs) != {"axis", "keepdims"}:
        return None
    if not step.task.kwargs["keepdims"] or step.indices[0] != (below[0], step.output_indices):
        return None
    return tuple(step.dims[symbol] for symbol in step.output_indices)


def _sums(call: Call) -> bool:
    plain = not call.args and set(call.keywords) <= {"dtype"}
    return plain and call.function in (sum_products, chunk_sum)


RECOGNISERS: tuple[Recogniser, ...] = (contraction,)
