"""Tasks that Dask does not fuse with their readers, which run on other workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dasktile._compat.dask import Task


class Anchored(Task):
    """A task that Dask does not fuse with the task that reads it.

    The two run on different workers.  Fused, they would run on the reader's worker, and the
    inputs of the first would be sent there instead of its result: a whole tile instead of
    the slice of it that is needed.
    """

    __slots__ = ()

    @property
    def block_fusion(self) -> bool:
        return True


def anchor_tasks(tasks: Mapping[Any, Any]) -> dict[Any, Any]:
    """The tasks of a layer, none of which Dask fuses with its readers."""
    return {
        key: Anchored(key, task.func, *task.args, _data_producer=task.data_producer, **task.kwargs)
        if type(task) is Task
        else task
        for key, task in tasks.items()
    }
