"""What is known of the results of tasks from what is known of their inputs.

Here tasks are read; :mod:`.result_rules` has a rule for each function that they call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from operator import getitem as operator_getitem
from typing import Any

import numpy as np
from dask.utils import apply

from dasktile._compat.dask import (
    Alias,
    DataNode,
    GraphNode,
    TaskRef,
    fused_tasks,
    getitem,
    identity_cast,
    list_to_container,
)
from dasktile.lower.grouped import Unique, grouped_result
from dasktile.lower.known import KnownResult, known_array
from dasktile.lower.reshard import getitem_any
from dasktile.lower.result_rules import name_of, rule_of
from dasktile.lower.result_rules.given import Given
from dasktile.lower.result_rules.made import filled
from dasktile.lower.working import called, data_of, read_block

Key = Any

#: Functions that slice.
SLICING = (operator_getitem, getitem, getitem_any)

#: Functions of tasks that stand for a list or a tuple of results.
_CONTAINERS = (tuple, list_to_container, identity_cast)


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


#: An argument that is None.
_NONE = DataNode(None, None)


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
        return known_array(*block)
    function = getattr(task, "func", None)
    if function is None:
        return None
    if function is apply and task.args[0] is np.full_like:
        return filled(*task.args[1:])
    rule = rule_of(task)
    grouping = rule is None and any(name_of(part).startswith("flox.") for part in called(function))
    if rule is None and not grouping:
        return None
    arguments = []
    for argument in _flat(task.args):
        known = _known_argument(argument, graph)
        if isinstance(known, KnownResult) and known.base is not None:
            known = replace(known, base=None)
        if known is None and _is_task(argument) and not _is_none(argument, graph):
            return None
        arguments.append(known)
    given = Given(arguments, task.kwargs, _has_list(task))
    if rule is not None:
        return rule.result(given)
    labels = data_of(task.args[1], graph.data) if len(task.args) > 1 else None
    return grouped_result(function, given.sources, labels, graph.unique)


def _known_argument(argument: Any, graph: ResultGraph) -> Any:
    """What is known of a result that a task reads; the value of other arguments.

    Data of the graph counts as a result if it is an array with axes.
    """
    if not _is_task(argument):
        return argument
    value = data_of(argument, graph.data)
    if not _is_task(value) and value is not None:
        return array_result(value) if isinstance(value, np.ndarray) and value.ndim else value
    return known_result(argument, graph)


def _last_result(task: Any, steps: Mapping[Key, Any], graph: ResultGraph) -> KnownResult | None:
    """The result of a task that runs several, that of the last one of them."""
    last, names, *arguments = task.args[1:]
    given = dict(zip(names, arguments, strict=False))

    def known(key: Key) -> Any:
        argument = given.get(key, steps.get(key, TaskRef(key)))
        return _NONE if _is_none(argument, graph) else data_of(argument, graph.data)

    @cache
    def result(key: Key) -> KnownResult | None:
        if key in steps:
            return graph.inner(key) or known_result(steps[key], inner)
        return known_result(given[key], graph) if key in given else graph.read(key)

    inner = replace(graph, read=result, data=known)
    return result(last)


def _is_none(argument: Any, graph: ResultGraph) -> bool:
    """Whether an argument is None as data of the graph: `ResultGraph.data` tells None of others."""
    value = graph.data(argument.key) if isinstance(argument, TaskRef) else argument
    return isinstance(value, DataNode) and value.value is None


def _is_task(argument: Any) -> bool:
    return isinstance(argument, (GraphNode, TaskRef))


def _has_list(task: Any) -> bool:
    return any(getattr(argument, "func", None) in _CONTAINERS for argument in task.args)


def _flat(arguments: Iterable[Any]) -> Iterator[Any]:
    """The arguments of a task; those in lists and tuples of tasks one by one."""
    for argument in arguments:
        if getattr(argument, "func", None) in _CONTAINERS:
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
    return known_array(value.shape, value.dtype) if isinstance(value, np.ndarray) else None
