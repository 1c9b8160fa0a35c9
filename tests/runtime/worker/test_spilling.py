"""Workers with a store: right results, swapped in before tasks and peers read them."""

from __future__ import annotations

import gc
import math
import random
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from heapq import heappop
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import (
    Client,
    Event,
    LocalCluster,
    Worker,
    wait,
    worker_client,
)
from distributed.collections import HeapSet
from distributed.spill import SpillBuffer

import dasktile
from dasktile._compat.distributed import execution
from dasktile.runtime.nextuse import NextUses
from dasktile.runtime.worker.spilling import Spilling
from dasktile.runtime.worker.store import TileStore
from dasktile.schedule.patience import Patience
from dasktile.schedule.residency import Residency
from tests.support import BY_TARGET

LIMIT = 60
SIZE = 200_000


@pytest.fixture
def quiet() -> Iterator[None]:
    """Let the budget ignore the memory of the test's process."""
    with dask.config.set(BY_TARGET):
        yield


def stores(cluster: LocalCluster) -> list[TileStore]:
    actual = [worker.data for worker in cluster.workers.values()]
    assert all(isinstance(store, TileStore) for store in actual)
    return actual


def watched(store: Any) -> list[str]:
    """Names of the threads that have waited for a value to be read back."""
    names: list[str] = []
    fetched = store._fetch

    def fetch(key: Any) -> Any:
        names.append(threading.current_thread().name)
        return fetched(key)

    store._fetch = fetch
    return names


@contextmanager
def spilling(tiles: int, threads: int = 1, workers: int = 1, stored: bool = True) -> Iterator[Any]:
    """A cluster in this process with memory for a number of tiles per worker, and its client."""
    limit = tiles * SIZE
    with (
        LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            processes=False,
            dashboard_address=None,
            memory_limit=f"{limit} B",
            data=dasktile.worker_data(limit) if stored else None,
        ) as cluster,
        Client(cluster) as client,
    ):
        if stored:
            dasktile.enable(client)
        yield cluster, client


def spilling_of(worker: Worker) -> Spilling:
    plugin: Any = worker.plugins["dasktile"]
    spilling = plugin.plugin.spilling
    assert isinstance(spilling, Spilling)
    return spilling


@pytest.mark.parametrize("threads", (1, 2, 3))
def test_results_larger_than_memory(quiet: None, threads: int) -> None:
    with spilling(20, threads=threads, workers=2) as (cluster, client):
        waited = [watched(store) for store in stores(cluster)]
        rng = np.random.default_rng(0)
        X = rng.random((40 * 25, 1000))
        x = client.persist(da.from_array(X, chunks=(25, 1000)))
        wait(x, timeout=LIMIT)
        assert all(store.spilled_total.memory > 0 for store in stores(cluster))
        np.testing.assert_allclose((x - x.mean(axis=0)).sum().compute(), 0, atol=1e-6)
        np.testing.assert_allclose((x.T @ x).compute(), X.T @ X)
        np.testing.assert_array_equal(x.compute(), X)
        assert not any(waited)
        for worker in cluster.workers.values():
            assert spilling_of(worker).errors == 0
        del x
        deadline(lambda: not any(map(len, stores(cluster))))


def deadline(condition: Any) -> None:
    done = threading.Event()
    for _ in range(LIMIT * 50):
        if condition():
            return
        done.wait(0.02)
    raise AssertionError("not in time")


def ways(worker: Worker) -> list[Any]:
    """The attributes and handlers of a worker that are replaced."""
    handlers = [worker.handlers[name] for name in ("get_data", "update_data")]
    return [worker.data, worker.state.data, worker.execute, worker.gather_dep, *handlers]


def test_attached_and_detached(quiet: None) -> None:
    with spilling(20, threads=2, stored=False) as (cluster, client):
        [worker] = cluster.workers.values()
        before = ways(worker)
        X = np.random.default_rng(0).random((40 * 25, 1000))
        x = client.persist(da.from_array(X, chunks=(25, 1000)))
        wait(x, timeout=LIMIT)
        dasktile.enable(client)
        [store] = stores(cluster)
        assert len(store) == 40
        # results in files stay there
        assert not before[0].memory
        assert before[0].disk
        np.testing.assert_array_equal((x + 1).compute(), X + 1)
        dasktile.disable(client)
        assert ways(worker) == before
        assert len(worker.data) == 40
        assert not len(store)
        np.testing.assert_array_equal((x + 1).compute(), X + 1)


def test_disabled_stores_are_freed(quiet: None) -> None:
    with spilling(20, stored=False) as (cluster, client):
        [worker] = cluster.workers.values()
        freed = []
        for number in range(3):
            dasktile.enable(client)
            [store] = stores(cluster)
            freed.append(weakref.ref(store))
            # the worker calls its handlers
            assert client.gather(client.scatter([number])) == [number]
            del store
            dasktile.disable(client)

        def all_are() -> bool:
            gc.collect()
            return not any(one() for one in freed)

        deadline(all_are)
        assert worker.status.name == "running"


def test_results_that_can_be_moved_neither_way_stay_in_both_mappings(
    quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any) -> None:
        raise OSError("the disk fails")

    with spilling(20, stored=False) as (cluster, client):
        [worker] = cluster.workers.values()
        own = worker.data
        dasktile.enable(client)
        [store] = stores(cluster)
        tiles = client.map(lambda number: np.full(SIZE // 8, number), range(4), pure=False)
        wait(tiles, timeout=LIMIT)
        set_one = SpillBuffer.__setitem__

        def set_two(buffer: SpillBuffer, key: Any, value: Any) -> None:
            set_one(buffer, key, value) if len(buffer) < 2 else fails()

        monkeypatch.setattr(SpillBuffer, "__setitem__", set_two)
        monkeypatch.setattr("dasktile.runtime.worker.takeover.take_over", fails)
        dasktile.disable(client)
        monkeypatch.undo()
        assert (len(own), len(store), len(worker.data)) == (2, 2, 4)
        expected = [number * SIZE // 8 for number in range(4)]
        assert client.gather(client.map(np.sum, tiles, pure=False)) == expected
        monkeypatch.setattr("dasktile.runtime.worker.takeover.take_over", fails)
        dasktile.enable(client)
        monkeypatch.undo()
        assert client.gather(client.map(np.sum, tiles, pure=False)) == expected
        dasktile.enable(client, prefetch=False)
        assert worker.data is store
        assert not own
        assert all(tile.key in store for tile in tiles)
        assert client.gather(client.map(np.sum, tiles, pure=False)) == expected
        dasktile.disable(client)
        assert worker.data is own
        assert client.gather(client.map(np.sum, tiles, pure=False)) == expected


def test_results_that_cannot_be_read_back_are_recomputed(quiet: None) -> None:
    with spilling(2, threads=2) as (cluster, client):
        [store] = stores(cluster)
        tiles = client.map(lambda number: np.full(SIZE // 8, number), range(3), pure=False)
        wait(tiles, timeout=LIMIT)
        store._engine.wait_all(LIMIT)
        for held in store.slow.values():
            store._tiers[0].free(held)
        results = client.map(np.sum, tiles)
        assert client.gather(results) == [number * SIZE / 8 for number in range(3)]
        assert client.submit(lambda: 5).result(LIMIT) == 5


def test_tasks_that_wait_for_submitted_tasks(quiet: None) -> None:
    def inner(x: np.ndarray) -> float:
        return float(x.sum())

    def outer(x: np.ndarray, tiles: list[Any]) -> float:
        with worker_client() as client:
            sums = client.map(inner, tiles, pure=False)
            return sum(client.gather(sums)) + float(x[0]) + client.gather(tiles[-1])[0]

    with spilling(3) as (_, client):
        tiles = client.map(lambda number: np.full(SIZE // 8, number), range(6), pure=False)
        wait(tiles, timeout=LIMIT)
        actual = client.submit(outer, tiles[0], _Hidden(tiles)).result(LIMIT)
        assert actual == 15 * (SIZE // 8) + 5


def test_tasks_wait_for_nothing_and_nothing_is_ranked_while_memory_is_rather_empty(
    quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        method = getattr(owner, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return method(*arguments, **options)

        monkeypatch.setattr(owner, name, counted)

    count(TileStore, "request")
    count(Spilling, "_request")
    count(Residency, "_update_rank")
    count(Residency, "_next_instructions")
    count(NextUses, "next_use")
    count(execution, "next_tasks")
    with spilling(tiles=100) as (cluster, client):
        counts.clear()
        array = da.ones((20, SIZE // 8), chunks=(1, -1))
        assert (array + array.sum(axis=0)).sum().compute() == 21 * 20 * (SIZE // 8)
        (store,) = stores(cluster)
        assert store.tracks_nothing
        # called in regular checks, too
        counts.pop("_next_instructions", None)
        assert counts.keys() == {"request", "_request"}
        assert counts["request"] >= 20
        # the client reads the result
        assert counts["_request"] == 1
    with spilling(tiles=10) as (cluster, client):
        # with little memory all of them are called
        big = client.persist(da.random.default_rng(0).random((40, SIZE // 8), chunks=(1, -1)))
        wait(big, timeout=LIMIT)
        big.sum().compute()
        assert counts.keys() >= {"_request", "_update_rank", "next_use", "next_tasks"}


@pytest.mark.parametrize("count, expected", [(1, [1]), (3, [1, 2, 3]), (9, [1, 2, 3, 4])])
def test_the_next_tasks_include_those_that_need_resources(count: int, expected: list[int]) -> None:
    ready, constrained = (HeapSet(key=attrgetter("priority")) for _ in range(2))
    tasks = {number: Prioritised((number,)) for number in range(1, 5)}
    for number, heap in ((4, ready), (2, ready), (3, constrained), (1, constrained)):
        heap.add(tasks[number])
    worker: Any = SimpleNamespace(state=SimpleNamespace(ready=ready, constrained=constrained))
    assert [task.priority[0] for task in execution.next_tasks(worker, count)] == expected
    ready.clear()
    constrained.clear()
    assert execution.next_tasks(worker, count) == []


@pytest.mark.parametrize("seed", range(20))
def test_the_next_tasks_of_many_are_those_that_a_sort_would_put_first(seed: int) -> None:
    rng = random.Random(seed)
    ready, constrained = (HeapSet(key=attrgetter("priority")) for _ in range(2))
    tasks = [Prioritised((rng.randrange(50), number)) for number in range(100)]
    worker: Any = SimpleNamespace(state=SimpleNamespace(ready=ready, constrained=constrained))
    for _ in range(300):
        task = rng.choice(tasks)
        # what is removed and added again is in the heap more than once
        (ready.discard if task in ready else ready.add)(task)
        expected = sorted(ready, key=attrgetter("priority"))[:4]
        assert execution.next_tasks(worker, 4) == expected


def test_many_removed_tasks_are_not_walked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ready: HeapSet[Prioritised] = HeapSet(key=attrgetter("priority"))
    tasks = [Prioritised((number,)) for number in range(1000)]
    for task in tasks:
        ready.add(task)
    for task in tasks[:900]:
        ready.discard(task)
    worker: Any = SimpleNamespace(state=SimpleNamespace(ready=ready, constrained=()))
    visited: list[Any] = []

    def visit(following: Any) -> Any:
        visited.append(heappop(following))
        return visited[-1]

    monkeypatch.setattr(execution, "heappop", visit)
    assert execution.next_tasks(worker, 4) == tasks[900:904]
    assert len(visited) == 4


@pytest.mark.parametrize("form", ("none", "empty", "tasks", "pairs", "a dict"))
def test_the_next_tasks_where_a_heap_has_another_form(form: str) -> None:
    tasks = [Prioritised((number,)) for number in (3, 1, 2)]

    class Other(HeapSet[Prioritised]):
        @property
        def _heap(self) -> Any:
            if form == "none":
                raise AttributeError("_heap")
            return {"empty": [], "tasks": tasks, "pairs": [(each, 0) for each in tasks]}.get(
                form, {}
            )

        def peekn(self, n: int) -> Iterator[Prioritised]:
            return iter(sorted(tasks, key=attrgetter("priority"))[:n])

        def __len__(self) -> int:
            return len(tasks)

    ready = Other.__new__(Other)
    worker: Any = SimpleNamespace(state=SimpleNamespace(ready=ready, constrained=()))
    assert execution.next_tasks(worker, 2) == [tasks[1], tasks[2]]


@dataclass(eq=False)
class Prioritised:
    priority: tuple[int, ...]


STARTED, RELEASED = threading.Event(), threading.Event()


def holds(*tiles: np.ndarray) -> bool:
    STARTED.set()
    return RELEASED.wait(LIMIT)


def releases(*tiles: np.ndarray) -> None:
    RELEASED.set()


def test_tasks_exceed_the_memory_limit_only_where_nothing_proceeds(quiet: None) -> None:
    checks: list[bool] = []
    computes = True
    STARTED.clear()
    RELEASED.clear()

    def processor() -> float:
        checks.append(computes)
        return sum(checks) * 1000.0

    with spilling(6, threads=2) as (cluster, client):
        [worker] = cluster.workers.values()
        [store] = stores(cluster)
        one = spilling_of(worker)
        one._clock = lambda: 5.0 * len(checks)
        one._processor = processor
        one._patience = Patience(5.0, 0.25, math.inf)
        one.settings = replace(one.settings, room_timeout=0.001)
        tiles = client.map(lambda number: np.full(SIZE // 8, number), range(6), pure=False)
        wait(tiles, timeout=LIMIT)
        capacity = store.capacity(0)
        first = client.submit(holds, *tiles[:2])
        assert STARTED.wait(LIMIT)
        # it waits for the memory of the first one's inputs, and the first one waits for it
        second = client.submit(releases, *tiles[2:4])
        deadline(lambda: len(checks) > 50)
        assert not RELEASED.is_set()
        assert store.used(0) <= capacity
        computes = False
        assert first.result(LIMIT)
        second.result(LIMIT)


@pytest.mark.parametrize("again", [False, True])
def test_a_task_that_waits_for_memory_while_the_store_is_removed(
    quiet: None, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    STARTED.clear()
    RELEASED.clear()
    repeated: list[Any] = []
    run_later = execution.run_later

    def record(key: Any, stimulus: str) -> Any:
        repeated.append(key)
        return run_later(key, stimulus)

    monkeypatch.setattr(execution, "run_later", record)
    with spilling(6, threads=2, stored=False) as (cluster, client):
        [worker] = cluster.workers.values()
        dasktile.enable(client)
        old = spilling_of(worker)
        old.settings = replace(old.settings, room_timeout=10 * LIMIT)
        tiles = client.map(lambda number: np.full(SIZE // 8, number), range(6), pure=False)
        wait(tiles, timeout=LIMIT)
        first = client.submit(holds, *tiles[:2])
        assert STARTED.wait(LIMIT)
        second = client.submit(releases, *tiles[2:4])
        deadline(lambda: old._waits)
        assert not RELEASED.is_set()
        if again:
            # the first setup of another store, as after other options
            dasktile.enable(client, prefetch=False)
            assert spilling_of(worker) is not old
        else:
            dasktile.disable(client)
        assert first.result(LIMIT)
        second.result(LIMIT)
        assert not old._requests
        if again:
            assert spilling_of(worker).errors == 0
        assert repeated == []


class _Hidden(list[Any]):
    """A list that Dask does not traverse."""


def is_finite(use: float | None) -> bool:
    """Whether a next use is known (it is None until the scheduler's hint arrives) and finite."""
    return use is not None and math.isfinite(use)


def test_hints_include_the_readers_of_later_graphs(quiet: None) -> None:
    def slow(number: int, started: str) -> int:
        Event(started).wait(LIMIT)
        return number

    with spilling(20) as (cluster, client):
        [worker] = cluster.workers.values()
        uses = spilling_of(worker).uses
        tiles = client.map(lambda number: np.full(10_000, number), range(4), pure=False)
        wait(tiles, timeout=LIMIT)
        keys = [tile.key for tile in tiles]
        deadline(lambda: [uses.next_use(key) for key in keys] == [math.inf] * 4)
        # nobody knew of these when the tiles were made
        first = client.submit(slow, 1, "go", priority=1)
        sums = client.map(lambda tile, _: float(tile.sum()), tiles, [first] * 4)
        deadline(lambda: all(is_finite(uses.next_use(key)) for key in keys))
        Event("go", client=client).set()
        assert client.gather(sums) == [10_000 * number for number in range(4)]
        deadline(lambda: [uses.next_use(key) for key in keys] == [math.inf] * 4)
        # what the client does not want any more, and no task reads, is about to be removed
        tile = client.submit(np.full, 10_000, 7.0)
        reader = client.submit(slow, tile, "later")
        tile.release()
        deadline(lambda: uses.next_use(tile.key) is not None)
        Event("later", client=client).set()
        wait(reader, timeout=LIMIT)
        deadline(lambda: tile.key not in worker.data)


def test_workers_that_join_get_the_store(quiet: None) -> None:
    with spilling(20, stored=False) as (cluster, client):
        dasktile.enable(client)
        cluster.scale(2)
        client.wait_for_workers(2, timeout=LIMIT)
        deadline(lambda: all(isinstance(w.data, TileStore) for w in cluster.workers.values()))
        dasktile.disable(client)
        assert not any(isinstance(w.data, TileStore) for w in cluster.workers.values())


def test_enabled_again_and_during_a_computation(quiet: None) -> None:
    with spilling(20, stored=False) as (cluster, client):
        [worker] = cluster.workers.values()
        tiles = client.map(lambda number: np.full(10_000, number), range(30), pure=False)
        wait(tiles, timeout=LIMIT)
        gate = client.submit(lambda: Event("on").wait(LIMIT), priority=1)
        sums = client.map(lambda tile, _: float(tile.sum()), tiles, [gate] * 30)
        dasktile.enable(client)
        store = worker.data
        uses = spilling_of(worker).uses
        # of tasks that were there before
        deadline(lambda: all(is_finite(uses.next_use(tile.key)) for tile in tiles))
        dasktile.enable(client)
        assert worker.data is store
        Event("on", client=client).set()
        assert client.gather(sums) == [10_000 * number for number in range(30)]
        dasktile.enable(client, prefetch=False)
        assert worker.data is not store
        assert len(worker.data) == len(tiles) + len(sums) + 1


class Bad:
    """A value that can be kept in memory, but not serialized."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __sizeof__(self) -> int:
        return 15_000_000


def test_results_that_cannot_be_moved_back_stay(quiet: None) -> None:
    with spilling(50, stored=False) as (cluster, client):
        [worker] = cluster.workers.values()
        dasktile.enable(client)
        store = worker.data
        bad = client.submit(Bad)
        tiles = client.map(lambda number: np.full(10_000, number), range(8), pure=False)
        wait([bad, *tiles], timeout=LIMIT)
        dasktile.disable(client)
        assert worker.data is store
        assert len(store) == 9
        assert client.submit(np.sum, tiles[3]).result(LIMIT) == 30_000


def test_a_mapping_of_the_user_stays() -> None:
    with (
        LocalCluster(
            n_workers=1, processes=False, dashboard_address=None, memory_limit="1 GB", data=dict
        ) as cluster,
        Client(cluster) as client,
    ):
        dasktile.enable(client)
        [worker] = cluster.workers.values()
        assert type(worker.data) is dict
        assert client.submit(sum, [1, 2]).result(LIMIT) == 3
