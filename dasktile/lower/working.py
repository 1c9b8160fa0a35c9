"""Bytes that tasks hold while they run, besides their inputs and their results.

Most functions of NumPy write into their result at once.  Some copy their input, as those that skip
NaNs and those that join partial results before they reduce them, and zarr decodes several stored
chunks at the same time.  The same rules hold for the tasks of Dask's own graphs and for those of
plans.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from dasktile._compat.dask import (
    DataNode,
    TaskRef,
    arg_chunk,
    concatenate2,
    fused_tasks,
    getter,
    getter_inline,
    getter_nofancy,
    is_fused,
    mean_agg,
    mean_combine,
    moment_agg,
    moment_chunk,
    moment_combine,
    wrapped_qr,
)
from dasktile._compat.flox import flox_names
from dasktile.capture.rules.sources import store_of
from dasktile.lower.run_order import live_bytes

Key = Any

#: Functions that read a part of a stored array.
_READING = (getter, getter_nofancy, getter_inline, operator.getitem)

#: Stored chunks that zarr decodes at the same time: the default of its ``async.concurrency``.
_DECODED_AT_ONCE = 10

#: Bytes that zarr holds for such a chunk, over those of its elements (measured: the chunk as it is
#: stored, here hardly compressed, and its elements).
_DECODED = 2.0

#: Bytes that functions hold, as a share of those of their inputs (measured with float64; the
#: moments of float32 hold twice as much).
_COPIED: dict[Any, float] = {
    np.nansum: 1.125,
    np.nanprod: 1.125,
    moment_chunk: 2.0,
    arg_chunk: 1.0,
    concatenate2: 1.0,
    mean_combine: 0.5,
    mean_agg: 0.5,
    moment_combine: 0.75,
    moment_agg: 0.75,
    wrapped_qr: 1.0,
    np.linalg.qr: 1.0,
}

#: The same for the step of flox, which sorts a copy, of twice the bytes for float32, and replaces
#: NaNs in another one (measured: 2 to 6).
_GROUPED = 4.0

#: Bytes that flox holds to combine partial results, over those of the result for each of them: they
#: get all groups, and are joined (measured: 0.9 to 2).
_GROUPS_JOINED = 1.5

#: Transforms that copy real numbers to complex ones first, which take as many bytes as the result
#: (measured with float64; for float32, of which they make complex128, four times as many).
_MADE_COMPLEX = frozenset({np.fft.fft, np.fft.ifft})

#: Transforms that hold the results along one axis while they make those along the next.
_BY_AXIS = frozenset(
    {np.fft.fft2, np.fft.ifft2, np.fft.fftn, np.fft.ifftn}
    | {np.fft.rfft2, np.fft.irfft2, np.fft.rfftn, np.fft.irfftn}
)


def working_bytes(
    task: Any, inputs: Mapping[Key, int], size: int, value: Callable[[Key], Any]
) -> int:
    """Bytes that a task holds while it runs, besides its inputs and its result.

    Parameters
    ----------
    task
        The task.
    inputs
        Bytes of the results that it reads, by key.
    size
        Bytes of its result.
    value
        The value of a key that is data of the graph; None for other keys.
    """
    steps = fused_tasks(task)
    if steps:
        return _fused_bytes(task, steps, inputs, size, value)
    function = getattr(task, "func", None)
    if function is None:
        return 0
    if function in _READING:
        return _decoded_bytes(task.args[0], task.args[1], value) if len(task.args) >= 2 else 0
    every = sum(inputs.values())
    held = 0.0
    for part in (task.kwargs.get("sum"), *called(function)):
        if part is None:
            continue
        if str(getattr(part, "__module__", "")).startswith("flox."):
            held += _held_by_flox(part, size * len(inputs), every)
        elif callable(part):
            held += _COPIED.get(part, 0.0) * every
            if part in _BY_AXIS or (part in _MADE_COMPLEX and every < size):
                held += size
    return int(held)


class LightTasks:
    """Tells which tasks of a graph surely hold nothing besides their inputs and their results.

    Most functions are those of many tasks, so that it is found once for each of them.
    """

    def __init__(self) -> None:
        #: By the identity of a function that tasks of the graph call, whether it holds nothing.
        self._known: dict[int, bool] = {}

    def has(self, task: Any) -> bool:
        """Whether a task holds nothing else while it runs, whatever the sizes of its inputs.

        Parameters
        ----------
        task
            The task.
        """
        function = getattr(task, "func", None)
        if function is None:
            return True
        if task.kwargs and task.kwargs.get("sum") is not None:
            return False
        known = self._known.get(id(function))
        if known is None:
            known = self._known[id(function)] = _holds_nothing(function)
        return known

    def have(self, tasks: Sequence[Any]) -> bool:
        """Whether all of some tasks hold nothing else while they run; many call one function.

        Parameters
        ----------
        tasks
            The tasks.
        """
        if not any(getattr(task, "kwargs", None) for task in tasks):
            tasks = list({id(getattr(task, "func", None)): task for task in tasks}.values())
        return all(map(self.has, tasks))


def _holds_nothing(function: Any) -> bool:
    """Whether a function holds nothing besides its inputs and its result."""
    return not (is_fused(function) or function in _READING or any(map(_may_hold, called(function))))


def _may_hold(part: Any) -> bool:
    """Whether a function without other functions in it may hold something besides its result."""
    if str(getattr(part, "__module__", "")).startswith("flox."):
        return True
    return callable(part) and (part in _COPIED or part in _BY_AXIS or part in _MADE_COMPLEX)


def _held_by_flox(function: Any, results: int, inputs: int) -> float:
    """Bytes that a function of flox holds, of results for each input and of inputs of some size."""
    flox = flox_names()
    if flox is not None and function in (flox.chunk, flox.reduce):
        return _GROUPED * inputs
    if flox is not None and function in (flox.combine, flox.aggregate):
        return _GROUPS_JOINED * max(results, inputs)
    return 0.0


def called(function: Any) -> Iterator[Any]:
    """The functions within partials and compositions, and those that moments sum with.

    Parameters
    ----------
    function
        What a task calls.
    """
    if isinstance(function, partial):
        yield function.keywords.get("sum")
        yield from called(function.func)
    elif hasattr(function, "first") and hasattr(function, "funcs"):
        # tlz.compose, of toolz or of cytoolz
        for part in (function.first, *function.funcs):
            yield from called(part)
    else:
        yield function


def _decoded_bytes(array: Any, index: Any, value: Callable[[Key], Any]) -> int:
    """Bytes that zarr holds to read a part of an array, besides that part; 0 for other arrays."""
    store = store_of(data_of(array, value))
    index = data_of(index, value)
    if not type(store).__module__.startswith("zarr.") or type(index) is not tuple:
        return 0
    # zarr computes them anew each time
    read, chunks, shape = 1, store.chunks, store.shape
    for part, chunk, length in zip(index, chunks, shape, strict=False):
        if type(part) is slice:
            lo, hi, _ = part.indices(length)
            read *= max(1, -(-hi // chunk) - lo // chunk)
    chunk_bytes = math.prod(chunks) * store.dtype.itemsize
    return int(min(read, _DECODED_AT_ONCE) * _DECODED * chunk_bytes)


def data_of(argument: Any, value: Callable[[Key], Any]) -> Any:
    """The value of an argument of a task; None if it is no data.

    Parameters
    ----------
    argument
        The argument.
    value
        The value of a key that is data of the graph; None for other keys.
    """
    if isinstance(argument, TaskRef):
        argument = value(argument.key)
    return argument.value if isinstance(argument, DataNode) else argument


def _fused_bytes(
    task: Any,
    steps: Mapping[Key, Any],
    inputs: Mapping[Key, int],
    size: int,
    value: Callable[[Key], Any],
) -> int:
    """Bytes that a task holds which runs several, besides its inputs and its result.

    The sizes of their results are guesses: that of what is read of a store, else that of the
    largest input.
    """
    last, names, *arguments = task.args[1:]
    #: By what the steps call them, the arguments of the task.
    outside = dict(zip(names, arguments, strict=False))
    sizes = {
        name: inputs.get(argument.key, 0)
        for name, argument in outside.items()
        if isinstance(argument, TaskRef)
    }

    def known(key: Key) -> Any:
        return data_of(outside.get(key, TaskRef(key)), value)

    working: dict[Key, int] = {}
    order = _inputs_first(steps, last)
    for name in order:
        step = steps[name]
        reads = {read: sizes.get(read, 0) for read in step.dependencies}
        sizes[name] = size if name == last else _guessed_bytes(step, reads, known)
        working[name] = working_bytes(step, reads, sizes[name], known)
    live = live_bytes(
        order,
        lambda name: steps[name].dependencies,
        sizes.__getitem__,
        returned=(last,),
        working=working.__getitem__,
    )
    return max(0, live - size)


def _guessed_bytes(task: Any, reads: Mapping[Key, int], value: Callable[[Key], Any]) -> int:
    """Bytes of a result: those of what is read of a store, else those of the largest input."""
    block = read_block(task, value)
    if block is not None:
        shape, dtype = block
        return math.prod(shape) * int(dtype.itemsize)
    return max(reads.values(), default=0)


def read_block(task: Any, value: Callable[[Key], Any]) -> tuple[tuple[int, ...], Any] | None:
    """The shape and the type of what a task reads of a store; None for other tasks.

    Parameters
    ----------
    task
        Any task.
    value
        The value of a key that is data of the graph; None for other keys.
    """
    if getattr(task, "func", None) not in _READING or len(task.args) < 2:
        return None
    store, index = (data_of(argument, value) for argument in task.args[:2])
    dtype, shape = getattr(store, "dtype", None), getattr(store, "shape", ())
    if dtype is None or type(index) is not tuple or len(index) != len(shape):
        return None
    if not all(type(part) in (slice, int) for part in index):
        return None
    read = (
        len(range(*part.indices(length)))
        for part, length in zip(index, shape, strict=True)
        if type(part) is slice
    )
    return tuple(read), dtype


def _inputs_first(steps: Mapping[Key, Any], last: Key) -> list[Key]:
    """The keys of some tasks that the last one needs, each after its inputs."""
    order: dict[Key, None] = {}
    stack = [last]
    while stack:
        waiting = [
            read for read in steps[stack[-1]].dependencies if read in steps and read not in order
        ]
        if waiting:
            stack += sorted(waiting, key=str)
        else:
            order[stack.pop()] = None
    return list(order)
