"""The table of elementwise functions.

The structure of a layer does not show whether its function is elementwise:
``map_blocks(np.sort)`` has the same structure as ``map_blocks(np.sin)``.  So functions are
accepted by identity: NumPy ufuncs, operators, and a table of elementwise functions.  A function of
the user is accepted if it is registered, or if its code only calls such functions.
"""

from __future__ import annotations

import datetime
import functools
import numbers
import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from dasktile._compat.dask import (
    GraphNode,
    Task,
    TaskRef,
    apply_and_enforce,
    asarray_isnull,
    chunk_astype,
    delayed_swap,
    enforce_dtype,
    execute_subgraph,
    fftfreq_block,
    handle_where,
    isnonzero,
    safe_sqrt,
    select_block,
    variadic_choose,
)
from dasktile._compat.flox import is_elementwise as is_group_number
from dasktile.capture.tracing import traced_depths
from dasktile.capture.user_kernels import lookup

_OPERATORS = (
    "abs add and_ eq floordiv ge gt inv invert le lshift lt mod mul ne neg or_ pos pow"
    " rshift sub truediv xor"
)

#: Functions of dask's own modules.
_PRIVATE = (
    *(chunk_astype, fftfreq_block, safe_sqrt, asarray_isnull),
    *(isnonzero, select_block, variadic_choose),
)

#: Elementwise functions, each with the names of the keyword arguments that may be arrays,
#: because the function uses the whole of them for every element.
_TABLE: dict[Any, frozenset[str]] = {
    **{getattr(operator, name): frozenset() for name in _OPERATORS.split()},
    **{
        function: frozenset()
        for function in (
            *(np.angle, np.around, np.clip, np.fix, np.i0, np.imag, np.iscomplex),
            *(np.isclose, np.isneginf, np.isposinf, np.isreal, np.nan_to_num, np.real),
            *(np.round, np.sinc, np.where),
        )
    },
    np.digitize: frozenset({"bins"}),
    **{function: frozenset() for function in _PRIVATE},
}

#: The number of positional arguments with which a function is elementwise: ``np.where(x)``
#: is not, and neither is ``np.digitize(x, bins)`` if the bins are a dask array.
_POSITIONAL = {np.where: 3, np.digitize: 1}

_UFUNC_KEYWORDS = {"dtype", "casting", "order", "subok", "where", "out"}

_SCALARS = (
    *(numbers.Number, str, bytes, np.generic, np.dtype, type, type(None)),
    *(datetime.datetime, datetime.date, datetime.timedelta),
)


def is_scalar(value: Any) -> bool:
    """True for a literal that is the same for every element."""
    if isinstance(value, np.ndarray):
        return value.ndim == 0
    return isinstance(value, _SCALARS)


def is_pointwise(
    function: Any, kwargs: Mapping[str, Any], arguments: int, table_only: bool = False
) -> bool:
    """True if a call computes every element from the input elements at the same position.

    Parameters
    ----------
    function
        The function that the task calls; wrappers of dask are unwrapped.
    kwargs
        Keyword arguments of the call.
    arguments
        Number of positional arguments.
    table_only
        Accept only functions of the table, none that users registered or wrote.
    """
    kwargs = dict(kwargs)
    while True:
        use = lookup(function)
        if use is not None:
            return use.elementwise and not table_only
        if function is enforce_dtype:
            kwargs.pop("enforce_dtype", None)
            function = kwargs.pop("enforce_dtype_function")
        elif function is handle_where:
            function = kwargs.pop("elemwise_where_function")
            arguments -= 2
        elif function is apply_and_enforce:
            # the wrapper of map_blocks(..., enforce_ndim=True)
            kwargs.pop("expected_ndim", None)
            function = kwargs.pop("_func")
        elif isinstance(function, functools.partial) and function.func is delayed_swap:
            # an operator of delayed results, called with its operands in the other order
            function, *others = function.args
            arguments += len(others)
        elif isinstance(function, functools.partial):
            if not all(is_scalar(value) for value in function.args):
                return False
            kwargs = {**function.keywords, **kwargs}
            arguments += len(function.args)
            function = function.func
        else:
            break
    if isinstance(function, np.ufunc):
        objects = all(set(kind) <= set("O->") for kind in function.types)
        shape = function.signature is None and function.nout == 1 and not objects
        return (
            shape
            and arguments == function.nin
            and set(kwargs) <= _UFUNC_KEYWORDS
            and all(map(is_scalar, kwargs.values()))
        )
    if isinstance(function, np.vectorize):
        return (
            not table_only
            and function.signature is None
            and not function.excluded
            and function.otypes is not None
            and all(map(is_scalar, kwargs.values()))
        )
    if is_group_number(function, kwargs):
        return True
    try:
        arrays = _TABLE.get(function)
    except TypeError:  # an unhashable callable
        return False
    if arrays is None:
        depths = None if table_only else traced_depths(function, kwargs, arguments)
        return depths is not None and not any(depths.values())
    if arguments != _POSITIONAL.get(function, arguments):
        return False
    return all(is_scalar(value) for name, value in kwargs.items() if name not in arrays)


def is_pointwise_task(task: Task, table_only: bool = False) -> bool:
    """Whether a task is elementwise; of a fused task, all inner tasks."""
    fused = _fused(task)
    if fused is None:
        return is_pointwise(task.func, task.kwargs, len(task.args), table_only)
    for inner in fused.values():
        if not isinstance(inner, Task) or not is_pointwise_task(inner, table_only):
            return False
        for value in inner.args:
            if not isinstance(value, TaskRef) and not is_scalar(value):
                return False
    return True


def _fused(task: Task) -> Mapping[Any, GraphNode] | None:
    """The inner tasks of a fused task, or None."""
    if task.func is not execute_subgraph or not task.args:
        return None
    inner = task.args[0]
    return inner if isinstance(inner, Mapping) else None
