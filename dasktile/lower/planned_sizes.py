"""Bytes of results as the plan knows them: tiles, and steps of its operations."""

from __future__ import annotations

import math
from operator import getitem
from typing import Any

import numpy as np

from dasktile.capture.references import head_of, is_block
from dasktile.lower.bundle_limits import BundleLimits
from dasktile.lower.known import KnownResult
from dasktile.schedule.placement import SLICE_PREFIX, is_written

Key = Any


class PlannedSizes:
    """Finds the results whose bytes the plan knows.

    Parameters
    ----------
    limits
        The tiles of the plan, and the bytes of other results.
    """

    def __init__(self, limits: BundleLimits) -> None:
        self._limits = limits
        #: By the name of a layer that holds an array, the blocks along each axis.
        self._numblocks = {
            name: tuple(map(len, chunks)) for name, (chunks, _) in limits.tiles.items()
        }

    def size(self, task: Any, key: Key) -> int | None:
        """Bytes of the result of a task; None for results that the plan does not know.

        Parameters
        ----------
        task, key
            The task, and its key.
        """
        if key in self._limits.inner:
            return self._limits.inner[key]
        name = str(head_of(key))
        if name.startswith(SLICE_PREFIX):
            return None
        value = getattr(task, "value", None)
        if type(value) is tuple:
            # the positions of a step that takes elements, which has the token of its tiles
            return sum(getattr(part, "nbytes", 0) for part in value)
        if isinstance(value, np.ndarray):
            # its layer may say otherwise: Dask describes positions by the blocks that they are of
            return value.nbytes
        if _is_step(key):
            return None
        tile = self._tile(key)
        if tile is not None:
            shape, itemsize = tile
            return math.ceil(math.prod(shape) * itemsize)
        size = self._limits.size.get(name)
        # Dask's own steps have the token of their array, too, and results of their own
        return self.of_token(key) if size is None and is_written(name) else size

    def of_token(self, key: Key) -> int | None:
        """Bytes of the tiles of whose token a result is; None if that is unknown."""
        return self._limits.size.get(str(head_of(key)).rpartition("-")[2])

    def tile(self, key: Key) -> KnownResult | None:
        """A tile of an array of the plan, or a worker's copy of one; None for other results."""
        tile = self._tile(key)
        return None if tile is None else KnownResult((tile[0],), tile[1])

    def _tile(self, key: Key) -> tuple[tuple[int, ...], float] | None:
        """The shape of a tile, and bytes of an element; None for other results."""
        name = str(head_of(key))
        chunks, itemsize = self._limits.tiles.get(name, ((), 0))
        if not itemsize or _is_step(key):
            return None
        if type(key) is tuple and len(key) == len(chunks) + 2:
            # the first number of a copy is its place
            key = (name, *key[2:])
        if not is_block(key, name, self._numblocks[name]):
            return None
        # block numbers may be of any type that equals an integer
        places = [at if type(at) is int else int(getattr(at, "real", at)) for at in key[1:]]
        return tuple(map(getitem, chunks, places)), itemsize


def _is_step(key: Key) -> bool:
    """Whether a key has the name of an array and is of no block, as those of running sums."""
    return type(key) is tuple and any(type(at) is str for at in key[1:])
