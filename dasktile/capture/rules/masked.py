"""Recogniser of plain arrays that are computed from masked ones, element by element.

How blocks of masked arrays are joined depends on the values that fill them, so that they are not
cut into other tiles.  With all layers between two plain arrays as one operation, no tile is masked.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from dask.blockwise import Blockwise, rewrite_blockwise
from dask.utils import typename

from dasktile._compat.dask import Task, chunk_astype, masked_block
from dasktile.capture.base import ArrayInfo, GraphView, Operation, Recogniser, added_axes
from dasktile.capture.rules.blockwise import has_aligned_axes, mapped
from dasktile.capture.rules.pointwise import is_pointwise, is_scalar

#: Functions of masked arrays whose results are plain.
_PLAIN: Mapping[Any, int] = {np.ma.filled: 1, np.ma.getdata: 1, np.ma.getmaskarray: 1}

#: Functions whose results are masked, each with the most positional arguments that it may have.
_MASKED: Mapping[Any, int] = {
    **dict.fromkeys((np.ma.masked_equal, np.ma.masked_not_equal, np.ma.masked_values), 2),
    **dict.fromkeys((np.ma.masked_greater, np.ma.masked_greater_equal), 2),
    **dict.fromkeys((np.ma.masked_less, np.ma.masked_less_equal, np.ma.masked_where), 2),
    **dict.fromkeys((np.ma.masked_inside, np.ma.masked_outside, np.ma.where), 3),
    **dict.fromkeys((np.ma.masked_invalid, np.ma.fix_invalid), 1),
    masked_block: 2,
}


def is_masked(view: GraphView, name: str) -> bool:
    """Whether the blocks of a layer are noted as masked arrays."""
    layer = view.layers.get(name)
    notes = (layer.collection_annotations or {}) if layer is not None else {}
    return notes.get("chunk_type") == typename(np.ma.MaskedArray)


def plain_of_masked(view: GraphView, name: str) -> Operation | None:
    """Data, masks or filled elements of arrays that functions of plain arrays mask."""
    last, result = view.layers[name], view.array(name)
    if result is None or not isinstance(last, Blockwise) or not _calls(last, _PLAIN):
        return None
    members: dict[str, Blockwise] = {}
    stack = [name]
    while stack:
        member = stack.pop()
        if member in members:
            continue
        layer, info = view.layers[member], view.array(member)
        if not isinstance(layer, Blockwise) or info is None or not _is_alone(view, layer, info):
            return None
        masked = [source for source in layer.numblocks if is_masked(view, source)]
        if member != name and not _keeps_elements(layer, bool(masked)):
            return None
        if masked and member != name and not _is_read_once(view, member):
            return None
        members[member] = layer
        stack.extend(masked)
    if len(members) < 2:
        return None
    operation = mapped(view, rewrite_blockwise(list(members.values())), result)
    if operation is None:
        return None
    return replace(operation, work=float(len(members)), repeatable=True)


def _is_alone(view: GraphView, layer: Blockwise, info: ArrayInfo) -> bool:
    """Whether a layer computes each block from blocks at the same place, and nothing else."""
    if layer.annotations or layer.output_blocks or layer.io_deps or layer.concatenate:
        return False
    if added_axes(layer) or not has_aligned_axes(layer) or not isinstance(layer.task, Task):
        return False
    if info.dtype.hasobject or info.dtype.kind == "V":
        return False
    return mapped(view, layer, info) is not None


def _calls(layer: Blockwise, functions: Mapping[Any, int]) -> bool:
    """Whether a layer calls one of some functions, with arguments that all elements share."""
    task = layer.task
    try:
        most = functions.get(getattr(task, "func", None), 0)
    except TypeError:  # an unhashable callable
        return False
    return len(task.args) <= most and all(map(is_scalar, task.kwargs.values()))


def _keeps_elements(layer: Blockwise, reads_masked: bool) -> bool:
    """Whether a layer computes a masked array element by element."""
    if _calls(layer, _MASKED):
        return True
    task, function = layer.task, layer.task.func
    # other functions of the table look at all elements of masked arrays, or lose their masks
    is_kept = isinstance(function, np.ufunc) or function is chunk_astype
    is_kept = is_kept or getattr(function, "__module__", "") == operator.add.__module__
    return is_kept and reads_masked and is_pointwise(function, task.kwargs, len(task.args), True)


def _is_read_once(view: GraphView, name: str) -> bool:
    """Whether no other layer would have a masked array computed again."""
    return name not in view.roots and len(view.graph.dependents.get(name, ())) == 1


RECOGNISERS: tuple[Recogniser, ...] = (plain_of_masked,)
