"""Slices of tiles that are cut where the tile is, so that only the slice travels."""

from __future__ import annotations

from dask._task_spec import Task


class Slice(Task):
    """A task that Dask does not make one with the task that reads it.

    The two may run on different workers; made one, they would run on the reader's, and
    the whole tile would be sent there to be sliced.
    """

    __slots__ = ()

    @property
    def block_fusion(self) -> bool:
        return True
