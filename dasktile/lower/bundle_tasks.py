"""What workers run for a bundle and for a pick, and what such a task contains.

The module is small: every worker that runs a bundle imports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dask.core import flatten

from dasktile._compat.dask import fused_tasks, is_fused
from dasktile._compat.merged_parts import keys_of_parts
from dasktile.schedule.placement import MARK

Key = Any

#: The place of a result in a value: indices of nested tuples; empty for the value itself.
Path = tuple[int, ...]


def run_bundle(
    tasks: Iterable[Any],
    returned: Any,
    reads: Iterable[Iterable[tuple[Key, Path]]],
    *values: Any,
) -> Any:
    """Run the tasks of a bundle; each result is released once its last reader has run.

    Parameters
    ----------
    tasks
        The tasks, each after its inputs.
    returned
        The key of the result that is returned, or a list of keys and of such lists, for which
        nested tuples are returned.
    reads, values
        For every input, the keys of the results in it and their places, and its value.
    """
    tasks = tuple(tasks)
    known: dict[Key, Any] = {}
    for parts, value in zip(reads, values, strict=True):
        for key, path in parts:
            known[key] = pick(value, path)
    readers: dict[Key, int] = dict.fromkeys(flatten([returned]), 1)
    for task in tasks:
        for read in task.dependencies:
            readers[read] = readers.get(read, 0) + 1
    for task in tasks:
        known[task.key] = task(known)
        for read in task.dependencies:
            readers[read] -= 1
            if not readers[read]:
                del known[read]
    return _collected(returned, known)


def tasks_in(task: Any) -> tuple[Any, ...]:
    """The tasks that a bundle runs, each after its inputs; empty for any other task."""
    return tuple(task.args[0]) if getattr(task, "func", None) is run_bundle else ()


def returned_by(task: Any) -> Any:
    """The key that a bundle returns the result of, or nested lists of keys; None for others."""
    return task.args[1] if getattr(task, "func", None) is run_bundle else None


def keys_in(task: Any) -> tuple[Key, ...]:
    """Keys of the tasks that a bundle or a fused task runs, inputs first; empty for others."""
    if not runs_tasks(task):
        return ()
    parts = tasks_in(task) or tuple(fused_tasks(task).values())
    own: Sequence[Key] = [part.key for part in parts]
    # not for graphs without a plan
    if any(type(name) is str and MARK in name for name in own):
        own = keys_of_parts(own, task.key)
    keys: list[Key] = []
    for key, part in zip(own, parts, strict=True):
        if runs_tasks(part):
            keys += keys_in(part)
        keys.append(key)
    return tuple(keys)


def runs_tasks(task: Any) -> bool:
    """Whether a task is a bundle or a fused task; called for every task of all graphs."""
    function = getattr(task, "func", None)
    return function is run_bundle or is_fused(function)


def has_bundle(task: Any) -> bool:
    """Whether a task is a bundle, or one is fused into it."""
    if not runs_tasks(task):
        return False
    return task.func is run_bundle or any(map(has_bundle, fused_tasks(task).values()))


def is_pick(task: Any) -> bool:
    """Whether a task returns a part of a bundle's value, and does nothing else."""
    return getattr(task, "func", None) is pick


def reader_in(task: Any, key: Key) -> Key | None:
    """The key of the first task in a bundle or a fused task that reads an input of that.

    Parameters
    ----------
    task
        Any task.
    key
        Key of one of its inputs.

    Returns
    -------
    None if the task is another one, or does not read the input.
    """
    if getattr(task, "func", None) is not run_bundle:
        for part in fused_tasks(task).values():
            if key in part.dependencies:
                return reader_in(part, key) or part.key
        return None
    _, _, places, *inputs = task.args
    for parts, read in zip(places, inputs, strict=True):
        if read.key == key:
            results = {result for result, _ in parts}
            for part in task.args[0]:
                for result in results.intersection(part.dependencies):
                    return reader_in(part, result) or part.key
    return None


def pick(value: Any, path: Path) -> Any:
    """A part of nested tuples.

    Parameters
    ----------
    value
        The tuples.
    path
        The index in each of them, from the outermost.
    """
    for index in path:
        value = value[index]
    return value


def _collected(keys: Any, known: Mapping[Key, Any]) -> Any:
    if isinstance(keys, list):
        return tuple(_collected(part, known) for part in keys)
    return known[keys]
