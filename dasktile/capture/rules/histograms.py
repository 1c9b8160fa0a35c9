"""Recogniser of ``da.histogramdd`` and ``da.histogram2d``: counts of several arrays at once.

Dask computes the histogram of every block, in a tuple, and adds them in a tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from dask.blockwise import Blockwise

from dasktile._compat.dask import histogramdd_multiarg, histogramdd_rect
from dasktile.capture.base import ArrayInfo, GraphView, Input, Operation
from dasktile.capture.rules.fold_table import is_precise
from dasktile.capture.rules.folds import Fold, add_rows
from dasktile.capture.rules.trees import Blocks, read_level, read_step, read_tree
from dasktile.ir import AxisMap, Kind, Label, Role


@dataclass(frozen=True, slots=True)
class _Counts:
    """The layer that counts every block.

    Parameters
    ----------
    samples
        Arrays whose blocks are counted: one for each coordinate, or one of them all.
    weights
        The weights, one for each element; None without any.
    bins, limits
        Arguments `bins` and `range` of :func:`numpy.histogramdd`.
    """

    samples: tuple[ArrayInfo, ...]
    weights: ArrayInfo | None
    bins: Any
    limits: Any


def joint_histogram(view: GraphView, name: str) -> Operation | None:
    """A histogram of several arrays, or of the columns of one."""
    level, out = read_level(view, name), view.array(name)
    if level is None or out is None or level.call.function is not np.sum:
        return None
    tree = read_tree(view, name, _counted_blocks)
    step = read_step(view, tree.step) if tree else None
    if tree is None or step is None or tree.last.axes != (0,) or tree.last.keepdims:
        return None
    calls = (step.call, tree.last.call, *((tree.between.call,) if tree.between else ()))
    if any(call.function is not np.sum or set(call.keywords) - {"dtype"} for call in calls):
        return None
    if step.axis != (0,) or step.keepdims is not True or not is_precise(out.dtype, step.call):
        return None
    counts = _read(view, step.inputs[0])
    if counts is None:
        return None
    arrays = (*counts.samples, *(() if counts.weights is None else (counts.weights,)))
    first, dtype = counts.samples[0], np.dtype(tree.last.call.keywords.get("dtype", out.dtype))
    labels = [Label(first.shape[0], Role.REDUCE, first.chunks[0])]
    if len(first.shape) > 1:
        labels.append(Label(first.shape[1], Role.WHOLE, first.chunks[1]))
    fold = Fold(
        partial(joint_counts, counts.bins, counts.limits, counts.weights is not None),
        partial(add_rows, dtype=dtype, keepdims=True),
        partial(add_rows, dtype=dtype, keepdims=False),
        (0,),
    )
    maps = tuple(AxisMap(axis) for axis in range(len(labels)))
    return Operation(
        op="histogramdd",
        kind=Kind.FOLD,
        labels=tuple(labels),
        out=(AxisMap(None),) * len(out.shape),
        kernel=fold,
        inputs=tuple(Input(array.name, maps) for array in arrays),
        partial=float(dtype.itemsize),
        work=8.0,
    )


def joint_counts(bins: Any, limits: Any, weighted: bool, *arrays: Any) -> Any:
    """The histogram of one tile, along a new first axis; the last array may be weights."""
    samples, weights = (arrays[:-1], arrays[-1]) if weighted else (arrays, None)
    sample = samples[0] if samples[0].ndim == 2 else samples
    counts, _ = np.histogramdd(sample, bins=bins, range=limits, weights=weights)
    return counts[np.newaxis]


def _counted_blocks(view: GraphView, name: str) -> Blocks | None:
    """Number of blocks of a step that adds the histogram of each block; None for others."""
    step = read_step(view, name)
    counts = _read(view, step.inputs[0]) if step and len(step.inputs) == 1 else None
    return step.blocks if step and counts else None


def _read(view: GraphView, name: str) -> _Counts | None:
    """Read the layer that counts every block; None for any other."""
    layer = view.layers.get(name)
    if layer is None or isinstance(layer, Blockwise) or layer.annotations or not len(layer):
        return None
    tasks: Mapping[Any, Any] = dict(layer)
    first = next(iter(tasks.values()))
    if type(first) is not tuple or len(first) < 5:
        return None
    function, *keys, bins, limits, weights = first
    if function is not histogramdd_rect and function is not histogramdd_multiarg:
        return None
    if any(type(key) is not tuple for key in keys):
        return None
    samples = [view.array(str(key[0])) for key in keys]
    weighted = None if weights is None else view.array(str(weights[0]))
    known = tuple(sample for sample in samples if sample is not None)
    if len(known) != len(samples) or (weighted is None) is not (weights is None):
        return None
    wide = function is histogramdd_rect
    if any(len(array.shape) != 1 + wide or array.dtype.kind not in "biuf" for array in known):
        return None
    counted = (*known, *(() if weighted is None else (weighted,)))
    if any(array.chunks != known[0].chunks or 0 in array.chunks[0] for array in counted):
        return None
    if (wide and (len(known) > 1 or len(known[0].chunks[1]) > 1)) or len(tasks) != len(
        known[0].chunks[0]
    ):
        return None
    zeros = next(iter(tasks))[2:]
    for block in range(len(tasks)):
        task = tasks.get((name, block, *zeros))
        read = [(array.name, block, *((0,) if wide else ())) for array in counted]
        if type(task) is not tuple or task[0] is not function or len(task) != len(first):
            return None
        if task[-3] is not bins or task[-2] is not limits:
            return None
        if [*task[1:-3], *(() if weighted is None else (task[-1],))] != read:
            return None
    return _Counts(known, weighted, bins, limits)


RECOGNISERS = (joint_histogram,)
