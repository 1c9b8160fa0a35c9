"""Results of a computation on a cluster, joined in the client.

Dask adds a task to a graph that joins all blocks of a result on one worker, from which the client
receives it.  Here the client receives the blocks, a limited number of bytes at a time, and copies
those of an array into the result, so that they need not all be in memory beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, product
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.array.core import finalize as join_blocks
from dask.core import flatten
from dask.utils import is_arraylike
from distributed import Client, Future, as_completed, futures_of

Key = Any

#: Bytes of results that the client asks for at once (chosen).
MOST_BYTES = 64 * 2**20

#: Blocks of unknown size that the client asks for at once (chosen).
MOST_BLOCKS = 100


def gather(
    client: Client, collections: Sequence[Any], received: Callable[[int, int], object]
) -> list[Any]:
    """Compute collections on a cluster, and join their blocks here.

    Parameters
    ----------
    client
        A client of the cluster that is not asynchronous.
    collections
        Dask collections.
    received
        Called with the number of blocks that have arrived and that of all, after every arrival.

    Returns
    -------
    The results, one for each collection.
    """
    persisted = client.persist(list(collections))
    parts = [_parts_of(collection) for collection in persisted]
    futures = {future.key: future for future in futures_of(persisted)}
    del persisted
    #: By key, the parts of results that a value belongs to.
    wanted: dict[Key, list[_Parts]] = {}
    for part in parts:
        for key in part.keys:
            wanted.setdefault(key, []).append(part)
    sizes = {key: max(part.nbytes(key) for part in owners) for key, owners in wanted.items()}
    waiting = as_completed([futures[key] for key in wanted], loop=client.loop)
    arrived = 0
    received(arrived, len(wanted))
    try:
        for completed in waiting.batches():
            for batch in _batches(completed, sizes):
                for future, value in zip(batch, client.gather(batch), strict=True):
                    for part in wanted[future.key]:
                        part.add(future.key, value)
                    # workers release what has arrived
                    futures.pop(future.key).release()
                arrived += len(batch)
                received(arrived, len(wanted))
    finally:
        # after an error, the other tasks need not run
        for future in futures.values():
            future.release()
    return [part.result() for part in parts]


def _batches(futures: list[Future[Any]], sizes: Mapping[Key, int]) -> Iterator[list[Future[Any]]]:
    """Lists of futures, of limited bytes each."""
    batch: list[Future[Any]] = []
    total = 0
    for future in futures:
        size = sizes[future.key]
        if batch and total + size > MOST_BYTES:
            yield batch
            batch, total = [], 0
        batch.append(future)
        total += size
    if batch:
        yield batch


class _Parts:
    """The values of a collection, from which its result is made.

    Parameters
    ----------
    collection
        The collection, in the memory of the workers.
    """

    def __init__(self, collection: Any) -> None:
        self.nested = collection.__dask_keys__()
        self.keys = list(dict.fromkeys(flatten([self.nested])))
        self.finish, self.extra = collection.__dask_postcompute__()
        self.values: dict[Key, Any] = {}

    def nbytes(self, key: Key) -> int:
        """Bytes of a value, or a guess."""
        return MOST_BYTES // MOST_BLOCKS

    def add(self, key: Key, value: Any) -> None:
        """A value has arrived."""
        self.values[key] = value

    def result(self) -> Any:
        """The result, once all values have arrived."""
        return self.finish(_filled(self.nested, self.values), *self.extra)


class _Blocks(_Parts):
    """The blocks of an array; those that are NumPy arrays are copied into the result.

    Parameters
    ----------
    array
        An array of more than one block, whose chunk sizes are known.
    """

    def __init__(self, array: Array) -> None:
        super().__init__(array)
        self.shape, self.dtype = array.shape, array.dtype
        starts = [list(accumulate(sizes, initial=0)) for sizes in array.chunks]
        #: By key, the part of the result that a block is.
        self.part: dict[Key, tuple[slice, ...]] = {
            (array.name, *block): tuple(
                slice(start[at], start[at + 1]) for start, at in zip(starts, block, strict=True)
            )
            for block in product(*map(range, array.numblocks))
        }
        self.joined: np.ndarray | None = None
        #: Keys of the blocks that are in `joined`.
        self.copied: list[Key] = []

    def nbytes(self, key: Key) -> int:
        sizes = (part.stop - part.start for part in self.part[key])
        return math.prod(sizes) * self.dtype.itemsize

    def add(self, key: Key, value: Any) -> None:
        shape = tuple(part.stop - part.start for part in self.part[key])
        if type(value) is not np.ndarray or (value.shape, value.dtype) != (shape, self.dtype):
            super().add(key, value)
            return
        if self.joined is None:
            self.joined = np.empty(self.shape, self.dtype)
        self.joined[self.part[key]] = value
        self.copied.append(key)

    def result(self) -> Any:
        if self.joined is not None and not self.values:
            return self.joined
        # blocks of several types are joined as Dask does
        for key in self.copied:
            assert self.joined is not None
            self.values[key] = self.joined[self.part[key]]
        return super().result()


def _parts_of(collection: Any) -> _Parts:
    if (
        type(collection) is Array
        and collection.npartitions > 1
        and collection.__dask_postcompute__() == (join_blocks, ())
        and is_arraylike(collection._meta)
        and not any(math.isnan(size) for size in collection.shape)
    ):
        return _Blocks(collection)
    return _Parts(collection)


def _filled(nested: Any, values: Mapping[Key, Any]) -> Any:
    """Nested lists of keys with values in place of the keys."""
    if isinstance(nested, list):
        return [_filled(part, values) for part in nested]
    return values[nested]
