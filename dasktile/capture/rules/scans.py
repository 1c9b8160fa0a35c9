"""Recogniser of running sums and products, and of the fills of xarray."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from dask.blockwise import Blockwise

from dasktile._compat.dask import (
    Alias,
    Task,
    available,
    cumprod_merge,
    cumsum_merge,
    prefixscan_combine,
    prefixscan_first,
)
from dasktile._compat.xarray import fill_names
from dasktile.capture.base import ArrayInfo, GraphView, Input, NotRecognised, Operation
from dasktile.capture.references import Key, reference
from dasktile.capture.rules.trees import Step, read_step, unwrap
from dasktile.ir import AxisMap, Kind, Label, Role

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Scan:
    """A running reduction along one label.

    Parameters
    ----------
    function
        Scans one tile.
    merge
        ``merge(carry, scanned tile)`` is the finished tile; ``merge(carry, last slice)``
        is the next carry.
    axis
        The label.
    serial
        True if tiles are scanned one after the other, because the separate scan of a tile may
        overflow.  Then ``merge(carry, tile)`` is the finished tile, whose
        last slice is the next carry.
    """

    function: Callable[[Any], Any]
    merge: Callable[[Any, Any], Any]
    axis: int
    serial: bool = False


@dataclass(frozen=True, slots=True)
class ScanFunctions:
    """The functions of a scan: those that may merge a carry, and the total of a block."""

    merges: tuple[Function, ...]
    total: Function


SCANS: Mapping[Function, ScanFunctions] = {
    np.cumsum: ScanFunctions(tuple(filter(available, (cumsum_merge, operator.add))), np.sum),
    np.cumprod: ScanFunctions(tuple(filter(available, (cumprod_merge, operator.mul))), np.prod),
    np.nancumsum: ScanFunctions((operator.add,), np.nansum),
    np.nancumprod: ScanFunctions((operator.mul,), np.nanprod),
}


def _functions_of(function: Any) -> ScanFunctions | None:
    """The functions of a scan that begins with `function`; None if it is not supported."""
    try:
        if function in SCANS:
            return SCANS[function]
    except TypeError:  # an unhashable callable
        return None
    fill = fill_names()
    if fill is None or function is not fill.fill:
        return None
    return ScanFunctions((fill.merge,), fill.last)


def recognise_scan(view: GraphView, name: str) -> Operation | NotRecognised | None:
    """Running sums and products and fills, in dask's sequential and parallel forms."""
    layer = view.layers.get(name)
    array = view.array(name)
    if layer is None or array is None or isinstance(layer, Blockwise) or layer.annotations:
        return None
    if not array.shape or any(0 in sizes for sizes in array.chunks) or not len(layer):
        return None
    sources = view.dependencies(name)
    if not 1 <= len(sources) <= 2 or not _plausible(layer, name, len(array.shape)):
        return None
    scan, source = _sequential(view, array) or _parallel(view, array) or (None, "")
    if scan is None:
        return None
    read = view.array(source)
    if read is None or read.chunks != array.chunks or read.dtype.kind not in "biufc":
        return None
    if array.dtype.kind not in "biufc":
        return None
    function = unwrap(scan.function).function
    op = function.__name__ if function in SCANS else "fill"
    if array.dtype == np.float16 and function in SCANS:
        return NotRecognised(f"{op} of float16 is rounded differently in other chunks")
    if array.dtype.kind in "fc":
        scan = _exact(scan)
    labels = tuple(
        Label(size, Role.SCAN if axis == scan.axis else Role.FREE, cuts)
        for axis, (size, cuts) in enumerate(zip(array.shape, array.chunks, strict=True))
    )
    maps = tuple(AxisMap(axis) for axis in range(len(labels)))
    return Operation(op, Kind.SCAN, labels, maps, scan, (Input(source, maps),),
                 partial=float(array.dtype.itemsize), work=2.0)  # fmt: skip


def _plausible(layer: Mapping[Any, Any], name: str, ndim: int) -> bool:
    """Whether the first block may be part of a scan: a cheap check before all tasks are read."""
    task = layer.get((name,) + (0,) * ndim)
    if isinstance(task, Alias):
        return True
    if isinstance(task, Task):
        return task.func is prefixscan_first
    return isinstance(task, tuple) and (
        task[:1] == (prefixscan_first,) or (name, "extra") + (0,) * ndim in layer
    )


def _sequential(view: GraphView, array: ArrayInfo) -> tuple[Scan, str] | None:
    """The sequential form: every block is scanned, then the carries are merged in order."""
    blocks = _scanned_blocks(view, array)
    if blocks is None:
        return None
    step, axis, functions = blocks
    merges = _carry_merges(view.tasks(array.name), array, view.dependencies(array.name)[0], axis)
    merge = None if merges is None else _only_merge(merges, functions)
    if merge is None:
        return None
    function = partial(step.call.function, axis=axis, **step.call.keywords)
    return Scan(function, merge, axis), step.inputs[0]


def _scanned_blocks(view: GraphView, array: ArrayInfo) -> tuple[Step, int, ScanFunctions] | None:
    """The one layer read, which scans every block separately, with its axis and functions."""
    sources = view.dependencies(array.name)
    step = read_step(view, sources[0])
    if len(sources) != 1 or step is None or len(step.inputs) != 1 or step.call.args:
        return None
    functions, axis = SCANS.get(step.call.function), step.axis
    if functions is None or not set(step.call.keywords) <= {"dtype"} or step.keepdims is not None:
        return None
    if not isinstance(axis, int) or not 0 <= axis < len(array.shape):
        return None
    return None if step.blocks != array.numblocks else (step, axis, functions)


def _carry_merges(
    tasks: Mapping[Any, Any], array: ArrayInfo, scanned: str, axis: int
) -> list[Function] | None:
    """The functions that merge carries into scanned blocks; None if the tasks differ."""
    last = tuple(
        slice(-1, None) if number == axis else slice(None) for number in range(len(array.shape))
    )
    merges: list[Function] = []
    for block in itertools.product(*map(range, array.numblocks)):
        task, carry = tasks.get((array.name, *block)), tasks.get((array.name, "extra", *block))
        if block[axis] == 0:
            if not isinstance(task, Alias) or task.target != (scanned, *block):
                return None
            continue
        if type(task) is not Task or type(carry) is not Task:
            return None
        previous = tuple(number - 1 if i == axis else number for i, number in enumerate(block))
        carried = (array.name, "extra", *previous)
        if not _is_carry(carry, carried, (scanned, *previous), last):
            return None
        if [*map(reference, task.args)] != [(array.name, "extra", *block), (scanned, *block)]:
            return None
        merges += [task.func, carry.func]
    return merges if len(tasks) == 2 * _count_blocks(array) else None


def _is_carry(carry: Task, carried: Key, block: Key, last: tuple[slice, ...]) -> bool:
    """Whether a carry is that of the previous block, merged with the last slice of that block."""
    if len(carry.args) != 2 or reference(carry.args[0]) != carried:
        return False
    end = carry.args[1]
    return (
        isinstance(end, Task)
        and end.func is operator.getitem
        and reference(end.args[0]) == block
        and end.args[1:] == (last,)
    )


def _only_merge(merges: Sequence[Function], functions: ScanFunctions) -> Function | None:
    """The one function of all merges, a default without merges; None if not supported."""
    merge = merges[0] if merges else functions.merges[0]
    same = all(other is merge for other in merges)
    return merge if same and any(merge is known for known in functions.merges) else None


def _parallel(view: GraphView, array: ArrayInfo) -> tuple[Scan, str] | None:
    """The parallel form: sums of blocks are combined in a tree, then merged into the scans."""
    name, ndim = array.name, len(array.shape)
    tasks = view.tasks(name)
    head = tasks.get((name,) + (0,) * ndim)
    if not isinstance(head, Task) or len(head.args) != 4:
        return None
    function, first, axis, dtype = head.args
    key = reference(first)
    if not isinstance(key, tuple) or not isinstance(axis, int) or not 0 <= axis < ndim:
        return None
    functions, source = _functions_of(function), key[0]
    others = [other for other in view.dependencies(name) if other != source]
    if functions is None or source not in view.layers:
        return None
    if array.numblocks[axis] > 1 and not _sums_blocks(view, others, source, functions, axis):
        return None
    merge: Function | None = None
    for key, task in tasks.items():
        if type(task) is not Task or key[0] != name:
            return None
        block, args = key[1:], list(task.args)
        if len(block) != ndim:
            merge = merge or task.func
            mismatch = task.func is not merge
        else:
            begins = block[axis] == 0
            step = prefixscan_first if begins else prefixscan_combine
            if not begins and len(args) == 6:
                merge = merge or args[1]
                mismatch = args.pop(1) is not merge
                args.pop(1)
            else:
                mismatch = not begins
            mismatch = mismatch or task.func is not step or args[0] is not function
            mismatch = (
                mismatch or reference(args[1]) != (source, *block) or args[2:] != [axis, dtype]
            )
        if mismatch:
            return None
    merge = merge or functions.merges[0]
    if not any(merge is known for known in functions.merges):
        return None
    return Scan(partial(function, axis=axis, dtype=dtype), merge, axis), source


def _sums_blocks(
    view: GraphView, names: list[str], source: str, functions: ScanFunctions, axis: int
) -> bool:
    step = read_step(view, names[0]) if len(names) == 1 else None
    return (
        step is not None
        and step.call.function is functions.total
        and step.inputs == (source,)
        and (step.axis, step.keepdims) == (axis, True)
        and not step.call.args
        and set(step.call.keywords) <= {"dtype"}
    )


def _exact(scan: Scan) -> Scan:
    """The scan with serial tiles for a running product.

    The product of a tile after a zero may overflow to infinity, and zero times infinity is NaN,
    while the running product over all elements is zero.
    """
    call = unwrap(scan.function)
    if call.function not in (np.cumprod, np.nancumprod):
        return scan
    merge = partial(
        running_product,
        axis=scan.axis,
        dtype=call.keywords.get("dtype"),
        skip=call.function is np.nancumprod,
    )
    return Scan(scan.function, merge, scan.axis, serial=True)


def running_product(carry: Any, tile: Any, axis: int, dtype: Any, skip: bool) -> Any:
    """The running product of a tile, starting with `carry`; `skip` treats NaN as one."""
    if skip:
        tile = np.where(np.isnan(tile), np.ones((), tile.dtype), tile)
    product = np.cumprod(np.concatenate([carry, tile], axis=axis), axis=axis, dtype=dtype)
    return product[(slice(None),) * axis + (slice(1, None),)]


def _count_blocks(array: ArrayInfo) -> int:
    count = 1
    for blocks in array.numblocks:
        count *= blocks
    return count
