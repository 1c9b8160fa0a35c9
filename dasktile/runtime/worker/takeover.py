"""Moves the results of a worker from one mapping to another.

Except for spilled values that cannot be taken over where they are, nothing here reads or writes
many results at once on the event loop: a worker that handles no message for long is taken for dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from functools import partial
from typing import Any

from dasktile._compat import dask_cuda
from dasktile._compat.distributed import storage
from dasktile.runtime.tiers import Foreign, Held, Packed, packed_by_distributed
from dasktile.runtime.worker.reads import LostTileError
from dasktile.runtime.worker.store import TileStore

Data = MutableMapping[Any, Any]


def take_over(
    source: Data, store: TileStore, size_of: Callable[[Any], int | None] | None = None
) -> None:
    """Take over all values of a mapping.

    Values that distributed or dask-cuda have spilled stay where they are, and are read when they
    are needed.  Where that is not possible, they are read one by one: together they may be more
    than fits in memory.

    Parameters
    ----------
    source
        The mapping.
    store
        A store without any of its keys.
    size_of
        Returns the bytes of a value, as the scheduler counts them; None if they are unknown.

    Raises
    ------
    Exception
        An exception of one of the mappings, after all values were moved back.
    """
    on_host: list[Any] = []
    try:
        if store.host == 0:
            is_all = _adopt_files(source, store)
        else:
            buffers = dask_cuda.buffers(source)
            is_all = buffers is not None
            if buffers is not None:
                is_all = _adopt_files_of_dask_cuda(source, buffers, store, size_of)
                is_all &= _adopt_frames(buffers, store, size_of, on_host)
        in_memory = type(source) is dict or is_all
        keys = [key for key in dask_cuda.keys(source) if key not in store]
        move_all(source, store, keys, _nothing if in_memory else store.wait_for_writes)
    except BaseException:
        store.give_back()
        for key in on_host:
            with suppress(KeyError):
                del store[key]
        raise
    for key in on_host:
        # the store has the same buffers
        del source[key]


def _adopt_files(source: Data, store: TileStore) -> bool:
    """Take over the files of distributed's mapping; whether nothing else is spilled."""
    files = storage.spilled_sizes(source)
    for key, (size, stored) in files.items():
        load = partial(storage.spilled_values(source).__getitem__, key)
        store.adopt(key, Held(Foreign(load, source, key), stored), size)
    disk = getattr(source, "disk", None)
    return isinstance(disk, Mapping) and len(disk) == len(files)


def _adopt_files_of_dask_cuda(
    source: Data,
    buffers: dask_cuda.Buffers,
    store: TileStore,
    size_of: Callable[[Any], int | None] | None,
) -> bool:
    """Take over the files of dask-cuda's mapping; whether nothing else is on disk."""
    is_all = True
    for key, read in buffers.on_disk.items():
        size = None if size_of is None else size_of(key)
        if size is None:
            is_all = False
            continue
        is_of_device = key in buffers.device_keys
        load = partial(_packed, read) if is_of_device else read
        home = 0 if is_of_device else store.host
        store.adopt(key, Held(Foreign(load, source, key), size), size, home=home)
    return is_all


def _adopt_frames(
    buffers: dask_cuda.Buffers,
    store: TileStore,
    size_of: Callable[[Any], int | None] | None,
    adopted: list[Any],
) -> bool:
    """Take over values of the device that dask-cuda's mapping has in the memory of the host.

    Both mappings have them afterwards, with the same buffers; their keys are added to `adopted`.
    Whether these are all such values.
    """
    for key, (header, frames) in buffers.on_host.items():
        if not store.adopt_serialized(key, header, frames, size_of and size_of(key)):
            return False
        adopted.append(key)
    return True


def _packed(read: Callable[[], Any]) -> Packed:
    """A value of the device in a file of dask-cuda, as the tier of the host's memory has it."""
    return packed_by_distributed(*dask_cuda.parts(read()))


def move_all(
    source: Data,
    target: Data,
    keys: Iterable[Any],
    after_each: Callable[[], object],
) -> None:
    """Move values, or none if one of them cannot be moved.

    Values are moved one by one, so that at most one is in both mappings.

    Parameters
    ----------
    source, target
        The mappings.
    keys
        Keys of the values.
    after_each
        Called after each value.

    Raises
    ------
    Exception
        An exception of one of the mappings, after all values were moved back.
    """
    moved_keys = []
    try:
        for key in keys:
            value = source[key]
            moved_keys.append(key)
            target[key] = value
            del value
            del source[key]
            after_each()
    except BaseException:
        for key in moved_keys:
            if key not in source:
                source[key] = target[key]
            with suppress(KeyError):
                del target[key]
        raise


def _nothing() -> None:
    """Wait for nothing."""


class Handover(MutableMapping[Any, Any]):
    """The results of a worker while they are moved from a store to another mapping.

    Parameters
    ----------
    store
        The store.
    target
        The other mapping.
    size_of
        As for :func:`take_over`.
    is_crowded
        Whether the process has so much memory that the target should write values to disk.

    Attributes
    ----------
    store, target
        The two mappings.
    ended
        Set when the move has ended: the worker has another mapping than this one, unless values
        could be moved neither to the target nor back.
    """

    def __init__(
        self,
        store: TileStore,
        target: Data,
        size_of: Callable[[Any], int | None] | None = None,
        is_crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        self.store = store
        self.target = target
        self._size_of = size_of
        self._is_crowded = is_crowded
        #: False while values of the target may still be deleted for the store.
        self._settled = False
        self.ended = asyncio.Event()

    def __getitem__(self, key: Any) -> Any:
        return self.store[key] if key in self.store else self.target[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._settled:
            with suppress(KeyError):
                del self.store[key]
            self.target[key] = value
            return
        self.store[key] = value
        with suppress(KeyError):
            del self.target[key]

    def __delitem__(self, key: Any) -> None:
        del (self.store if key in self.store else self.target)[key]

    def __contains__(self, key: object) -> bool:
        return key in self.store or key in self.target

    def __iter__(self) -> Iterator[Any]:
        # files that the store has taken over are in both
        return iter(dict.fromkeys([*self.store, *dask_cuda.keys(self.target)]))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def spilled_total(self) -> tuple[int, int]:
        """As that of distributed's mapping."""
        memory, disk = self.store.spilled_total
        others = getattr(self.target, "spilled_total", (0, 0))
        return memory + others[0], disk + others[1]

    async def move(self) -> None:
        """Move all values one by one; other work of the event loop runs in between.

        Raises
        ------
        Exception
            An exception of one of the mappings; all values are in the store then, or in both if
            some could not be moved to it.
        """
        store = self.store
        loop = asyncio.get_running_loop()
        store.give_back()
        # what was deleted before may still have to be deleted from the target
        await loop.run_in_executor(None, store.wait_all)
        self._settled = True
        try:
            # those in memory first: the others need its room
            while store:
                fast = [key for key in store if key in store.fast]
                for key in fast or list(store):
                    await self._move_one(key)
                    await self._make_room()
        except BaseException:
            self._settled = False
            self.undo()
            raise

    def undo(self) -> None:
        """Move all values to the store.

        Raises
        ------
        Exception
            An exception of one of the mappings; all values are in the store or in the target then.
        """
        for key in [key for key in dask_cuda.keys(self.target) if key in self.store]:
            # the value in the store is the latest one
            del self.target[key]
        take_over(self.target, self.store, self._size_of)

    async def _make_room(self) -> None:
        """Let the target write values to disk until the process has less memory.

        Its limit counts values only, and values may arrive faster than the worker looks at the
        memory of its process.
        """
        evict = getattr(self.target, "evict", None)
        while evict is not None and self._is_crowded():
            written = evict()
            if not isinstance(written, int) or written <= 0:
                return
            await asyncio.sleep(0)

    async def _move_one(self, key: Any) -> None:
        store = self.store
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        if key not in store:
            return
        request = store.request([key], lambda: loop.call_soon_threadsafe(ready.set), urgent=True)
        try:
            await ready.wait()
            if key not in store:
                return
            if key not in store.fast:
                raise LostTileError(f"{key!r} could not be read back")
            self.target[key] = store[key]
            del store[key]
        finally:
            store.release(request)
        await asyncio.sleep(0)
