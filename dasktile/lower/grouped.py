"""Sizes of what flox's steps of a group-by return: dicts of arrays with an element for each group.

The number of groups is that of the expected ones, or of those that occur among the labels of a
block, if these are data of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dasktile._compat.flox import FloxNames, flox_names
from dasktile.capture.rules.group_trees import step_call
from dasktile.capture.rules.groups import MOMENTS
from dasktile.capture.rules.trees import unwrap
from dasktile.lower.known import KnownResult

#: Finds the labels that occur in an array, ascending.
Unique = Callable[[np.ndarray], np.ndarray]


def grouped_result(
    function: Any, inputs: Sequence[KnownResult], labels: Any, unique: Unique
) -> KnownResult | None:
    """The result of a step of a group-by; None for other functions, and if its size is unknown.

    Parameters
    ----------
    function
        What a task calls.
    inputs
        The results that it reads, first the array or all partial results.
    labels
        The labels of the elements of the array, if they are data of the graph.
    unique
        Finds the labels that occur in an array.
    """
    flox = flox_names()
    if flox is None or not inputs:
        return None
    call = step_call(flox, function)
    first, options = inputs[0], call.keywords
    if call.function in (flox.chunk, flox.argchunk, flox.reduce):
        groups = options.get("expected_groups")
        if groups is None and isinstance(labels, np.ndarray):
            groups = unique(labels)
        return None if groups is None else _of_block(flox, call.function, options, first, groups)
    if call.function is flox.extract:
        return None if first.groups is None else replace(first, is_array=True, groups=None)
    if any(each.groups is None for each in inputs):
        return None
    if call.function is flox.reindex:
        return _with_groups(first, options["unique_groups"])
    if call.function in (flox.combine, flox.grouped):
        return _combined(inputs)
    if call.function is flox.aggregate:
        groups = options.get("expected_groups")
        combined = _combined(inputs)
        return _final(options, combined if groups is None else _with_groups(combined, groups))
    return None


def _of_block(
    flox: FloxNames, function: Any, options: Mapping[str, Any], block: KnownResult, groups: Any
) -> KnownResult | None:
    """The partial result of a block, or its groups if none of them is in another block."""
    kept = block.shapes[0][: -len(options["axis"])]
    result = KnownResult(((*kept, len(groups)),), 0.0, is_array=False, groups=groups)
    if function is flox.reduce:
        return _final(options, result)
    sizes = _element_bytes(flox, options.get("func"), options.get("dtype"))
    return None if sizes is None else replace(result, itemsize=float(sizes))


def _element_bytes(flox: FloxNames, functions: Any, dtypes: Any) -> int | None:
    """Bytes of a partial result for each group; None for a function of the user's own."""
    if not isinstance(functions, tuple) or not isinstance(dtypes, tuple):
        return None
    total = 0
    for function, dtype in zip(functions, dtypes, strict=True):
        is_moments = unwrap(function).function is flox.moments
        if dtype is None or not (is_moments or isinstance(function, str)):
            return None
        total += np.dtype(dtype).itemsize * (MOMENTS if is_moments else 1)
    return total


def _combined(inputs: Sequence[KnownResult]) -> KnownResult:
    """Partial results of several blocks in one, with the groups of all of them."""
    found = list({id(each.groups): each.groups for each in inputs}.values())
    return _with_groups(
        inputs[0], found[0] if len(found) == 1 else np.unique(np.concatenate(found))
    )


def _with_groups(result: KnownResult, groups: Any) -> KnownResult:
    """The same elements for other groups."""
    shapes = tuple((*shape[:-1], len(groups)) for shape in result.shapes)
    return replace(result, shapes=shapes, groups=groups)


def _final(options: Mapping[str, Any], result: KnownResult) -> KnownResult:
    """What is computed of partial results: one array, in a dict."""
    agg = options["agg"]
    # quantiles have an axis of their own
    added = tuple(axis.size for axis in agg.new_dims if not axis.is_scalar)
    [shape] = result.shapes
    dtype = np.dtype(agg.dtype["final"])
    return replace(result, shapes=((*added, *shape),), itemsize=float(dtype.itemsize), dtype=dtype)
