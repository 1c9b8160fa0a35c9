"""Results of a computation on a cluster, joined in the client.

Dask adds a task to a graph that joins all blocks of a result on one worker, from which the client
receives it.  Here the client receives the blocks, a limited number of bytes at a time, and copies
those of an array into the result, so that they need not all be in memory beside it.

Where a task makes several blocks, of one result or of several, the client receives the tuple that
it returns, and takes the blocks out of it: they need no tasks of their own.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from typing import Any, Self

import numpy as np
from dask.array.core import Array
from dask.array.core import finalize as join_blocks
from dask.core import flatten
from distributed import Client, Future, as_completed, futures_of

from dasktile.lower.bundle_tasks import Path, pick
from dasktile.lower.gathered import Part, parts_of

Key = Any

#: Bytes of results that the client asks for at once, or one block (chosen).
MOST_BYTES = 64 * 2**20

#: Share of all blocks that are ready before the client asks for them: a request takes about as long
#: as a small task (chosen).
READY_SHARE = 0.05


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
    with _Gathering(client, collections, received) as gathering:
        for batch in _ready(client, gathering.start()):
            gathering.add(batch, client.gather(batch))
        return gathering.joined()


async def gather_asynchronously(
    client: Client, collections: Sequence[Any], received: Callable[[int, int], object]
) -> list[Any]:
    """As :func:`gather`, with an asynchronous client.

    Parameters
    ----------
    client, collections, received
        As for :func:`gather`.

    Returns
    -------
    The results, one for each collection.
    """
    with _Gathering(client, collections, received) as gathering:
        async for batch in _ready_asynchronously(client, gathering.start()):
            gathering.add(batch, await client.gather(batch))
        return gathering.joined()


class _Gathering:
    """Collections that are computed, and the values that have arrived of them.

    When it is left, after an error too, no task needs to run for it.

    Parameters
    ----------
    client, collections, received
        As for :func:`gather`.
    """

    def __init__(
        self, client: Client, collections: Sequence[Any], received: Callable[[int, int], object]
    ) -> None:
        self._futures: dict[Key, Future[Any]] = {}
        self._owners: dict[Key, list[_Result]] = {}
        self._received = received
        self._arrived = 0
        #: By key of a value, the blocks that are in it.
        self._blocks: dict[Key, set[Key]] = {}
        try:
            self._results = _submitted(client, collections, self._futures)
            for result in self._results:
                for key, blocks in result.places.items():
                    self._owners.setdefault(key, []).append(result)
                    self._blocks.setdefault(key, set()).update(block for block, _ in blocks)
        except BaseException:
            self._release()
            raise
        self._total = sum(map(len, self._blocks.values()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def start(self) -> list[Future[Any]]:
        """The futures of all values, of which none has arrived."""
        self._received(0, self._total)
        return [self._futures[key] for key in self._owners]

    def add(self, batch: Sequence[Future[Any]], values: Sequence[Any]) -> None:
        """Some values have arrived."""
        for future, value in zip(batch, values, strict=True):
            for result in self._owners[future.key]:
                result.add(future.key, value)
            # workers release what has arrived
            self._futures.pop(future.key).release()
            self._arrived += len(self._blocks[future.key])
        self._received(self._arrived, self._total)

    def joined(self) -> list[Any]:
        """The results, once all values have arrived."""
        return [result.joined() for result in self._results]

    def _release(self) -> None:
        for future in self._futures.values():
            future.release()


def _submitted(
    client: Client, collections: Sequence[Any], futures: dict[Key, Future[Any]]
) -> list[_Result]:
    """Start to compute collections; their futures are added to those given."""
    # the optimised expression of a dataframe may have other partitions than the collection says
    in_blocks = [collection for collection in collections if not _is_expression(collection)]
    parts = parts_of(_graph_and_keys(collection) for collection in in_blocks)
    asked = [in_tuples(collection, parts) for collection in in_blocks]
    persisted = iter(zip(asked, client.persist(asked), strict=True) if asked else ())
    results: list[_Result | None] = []
    whole: list[Any] = []
    for collection in collections:
        blocks = None
        if not _is_expression(collection):
            requested, blocks = next(persisted)
            is_in_tuples = type(requested) is _InTuples
            found = blocks.values() if is_in_tuples else futures_of(blocks)
            futures.update({future.key: future for future in found})
            blocks = collection if is_in_tuples else blocks
            kind = _Blocks if _has_known_blocks(blocks) else _Values
            result = kind(blocks, parts)
            # those of an expression within a collection may have other keys, too
            if futures.keys() >= result.places.keys():
                results.append(result)
                continue
        results.append(None)
        whole.append(collection if blocks is None else blocks)
    # Dask joins the blocks of these on a worker
    joined = client.compute(whole) if whole else []
    futures.update({future.key: future for future in joined})
    values = (_Value(future.key) for future in joined)
    return [next(values) if result is None else result for result in results]


@dataclass(frozen=True, slots=True)
class _InTuples:
    """A collection of which other keys are wanted than those of its blocks.

    When it is persisted, it becomes a dict of the futures, by key.

    Parameters
    ----------
    collection
        The collection.
    keys
        The keys.
    """

    collection: Any
    keys: list[Key]

    def __dask_graph__(self) -> Any:
        return self.collection.__dask_graph__()

    def __dask_keys__(self) -> list[Key]:
        return self.keys

    @property
    def __dask_optimize__(self) -> Any:
        # the function itself: Dask merges the graphs of collections that have the same one
        return self.collection.__dask_optimize__

    def __dask_postcompute__(self) -> Any:
        return list, ()

    def __dask_postpersist__(self) -> Any:
        return dict, ()


def in_tuples(collection: Any, parts: Mapping[Key, Part]) -> Any:
    """A collection of the values in which the blocks of another one are.

    Parameters
    ----------
    collection
        The other one; it is returned if all its blocks are values of their own.
    parts
        By key of a block, where it is.
    """
    keys = list(flatten([collection.__dask_keys__()]))
    if parts.keys().isdisjoint(keys):
        return collection
    return _InTuples(collection, list(dict.fromkeys(_part(key, parts).key for key in keys)))


def _part(key: Key, parts: Mapping[Key, Part]) -> Part:
    """Where a block is."""
    return parts.get(key) or Part(key)


def _graph_and_keys(collection: Any) -> tuple[Any, list[Key]]:
    return collection.__dask_graph__(), list(flatten([collection.__dask_keys__()]))


def _is_expression(collection: Any) -> bool:
    """Whether a collection has an expression in place of a graph, as dataframes do."""
    # of the class, because delayed values have any attribute
    return hasattr(type(collection), "expr")


def _ready(client: Client, futures: list[Future[Any]]) -> Iterator[list[Future[Any]]]:
    """Lists of futures whose results can be gathered, of limited bytes each."""
    waiting, left = as_completed(futures, loop=client.loop), len(futures)
    enough = _enough(futures)
    ready: list[Future[Any]] = []
    for completed in waiting.batches():
        ready += completed
        if len(ready) < min(enough, left):
            continue
        left -= len(ready)
        sizes = client.nbytes([future.key for future in ready], summary=False)
        yield from _divided(ready, sizes)
        ready = []


async def _ready_asynchronously(
    client: Client, futures: list[Future[Any]]
) -> AsyncIterator[list[Future[Any]]]:
    """The same with an asynchronous client."""
    waiting, left = as_completed(futures, loop=client.loop), len(futures)
    enough = _enough(futures)
    ready: list[Future[Any]] = []
    async for completed in waiting:
        ready += [completed, *waiting.next_batch(block=False)]
        if len(ready) < min(enough, left):
            continue
        left -= len(ready)
        sizes = await client.nbytes([future.key for future in ready], summary=False)
        for batch in _divided(ready, sizes):
            yield batch
        ready = []


def _enough(futures: list[Future[Any]]) -> int:
    """Number of results that are worth a request; the list is emptied, so that no future stays."""
    enough = max(1, int(READY_SHARE * len(futures)))
    futures.clear()
    return enough


def _divided(
    futures: Sequence[Future[Any]], sizes: Mapping[Key, int]
) -> Iterator[list[Future[Any]]]:
    """The same futures in lists of limited bytes."""
    batch: list[Future[Any]] = []
    total = 0
    for future in futures:
        # tasks that have failed have no size
        size = sizes.get(future.key, 0)
        if batch and total + size > MOST_BYTES:
            yield batch
            batch, total = [], 0
        batch.append(future)
        total += size
    if batch:
        yield batch


class _Result:
    """The result of a collection.

    Attributes
    ----------
    places
        By the key of every value that it is made of, the blocks in the value, and their places.
    """

    places: Mapping[Key, Sequence[tuple[Key, Path]]]

    def add(self, key: Key, value: Any) -> None:
        """A value has arrived."""
        raise NotImplementedError

    def joined(self) -> Any:
        """The result, once all values have arrived."""
        raise NotImplementedError


class _Value(_Result):
    """A result that one task makes."""

    def __init__(self, key: Key) -> None:
        self.places = {key: [(key, ())]}

    def add(self, key: Key, value: Any) -> None:
        self.value = value

    def joined(self) -> Any:
        return self.value


class _Values(_Result):
    """Values that are joined by the function of their collection.

    Parameters
    ----------
    collection
        The collection.
    parts
        By key of a block, where it is; blocks that are not there are values of their own.
    """

    def __init__(self, collection: Any, parts: Mapping[Key, Part]) -> None:
        self.nested = collection.__dask_keys__()
        places: dict[Key, list[tuple[Key, Path]]] = {}
        for key in dict.fromkeys(flatten([self.nested])):
            part = _part(key, parts)
            places.setdefault(part.key, []).append((key, part.path))
        self.places = places
        self.join, self.options = collection.__dask_postcompute__()
        self.values: dict[Key, Any] = {}

    def add(self, key: Key, value: Any) -> None:
        for block, path in self.places[key]:
            self.add_block(block, pick(value, path))

    def add_block(self, key: Key, value: Any) -> None:
        """A block has arrived."""
        self.values[key] = value

    def joined(self) -> Any:
        return self.join(_filled(self.nested, self.values), *self.options)


class _Blocks(_Values):
    """The blocks of an array; those that are NumPy arrays are copied into the result.

    Parameters
    ----------
    array
        An array of more than one block, whose chunk sizes are known.
    parts
        As for :class:`_Values`.
    """

    def __init__(self, array: Array, parts: Mapping[Key, Part]) -> None:
        super().__init__(array, parts)
        self.shape, self.dtype = array.shape, array.dtype
        starts = [list(accumulate(sizes, initial=0)) for sizes in array.chunks]
        #: By key, where in the result a block is.
        self.slices: dict[Key, tuple[slice, ...]] = {
            (array.name, *block): tuple(
                slice(start[at], start[at + 1]) for start, at in zip(starts, block, strict=True)
            )
            for block in product(*map(range, array.numblocks))
        }
        self.array: np.ndarray | None = None
        #: Keys of the blocks that are in `array`.
        self.copied: list[Key] = []

    def add_block(self, key: Key, value: Any) -> None:
        shape = tuple(part.stop - part.start for part in self.slices[key])
        if type(value) is not np.ndarray or (value.shape, value.dtype) != (shape, self.dtype):
            super().add_block(key, value)
            return
        if self.array is None:
            self.array = np.empty(self.shape, self.dtype)
        self.array[self.slices[key]] = value
        self.copied.append(key)

    def joined(self) -> Any:
        if self.array is not None:
            if not self.values:
                return self.array
            # blocks of several types are joined as Dask does
            self.values.update({key: self.array[self.slices[key]] for key in self.copied})
        return super().joined()


def _has_known_blocks(collection: Any) -> bool:
    return (
        type(collection) is Array
        and collection.npartitions > 1
        and collection.__dask_postcompute__() == (join_blocks, ())
        and not any(math.isnan(size) for size in collection.shape)
    )


def _filled(nested: Any, values: Mapping[Key, Any]) -> Any:
    """Nested lists of keys with values in place of the keys."""
    if isinstance(nested, list):
        return [_filled(part, values) for part in nested]
    return values[nested]
