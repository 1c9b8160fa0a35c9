"""Tasks that stay where their input is although what reads them runs elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dasktile._compat.dask import Task


class Anchored(Task):
    """A task that Dask does not make one with the task that reads it.

    The two run on different workers.  Made one, they would run on the reader's, and
    what the first reads would travel instead of what it makes: a whole tile instead of
    the slice of it that is needed.
    """

    __slots__ = ()

    @property
    def block_fusion(self) -> bool:
        return True


def anchored(tasks: Mapping[Any, Any]) -> dict[Any, Any]:
    """The tasks of a layer, none of which is to be made one with its reader."""
    return {
        key: Anchored(key, task.func, *task.args, _data_producer=task.data_producer, **task.kwargs)
        if type(task) is Task
        else task
        for key, task in tasks.items()
    }
