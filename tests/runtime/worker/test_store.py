"""Results are spilled and read back, and none is lost, stale or leaked."""

from __future__ import annotations

import errno
import os
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dasktile._compat.distributed import storage
from dasktile.runtime.settings import RuntimeSettings
from dasktile.runtime.tiers import Disk, Held
from dasktile.runtime.worker.reads import LostTileError
from dasktile.runtime.worker.store import TileStore
from dasktile.schedule.instructions import ResidencySettings
from dasktile.schedule.residency import Residency

LIMIT = 30
SIZE = 80_000


def tile(number: int) -> np.ndarray:
    return np.full(SIZE // 8, float(number))


class Made:
    """A store for a few tiles in memory, and its disk."""

    def __init__(self, directory: Path, tiles: float, disk: int | None = None, **options: Any):
        self.disk = Disk(str(directory))
        self.store = TileStore([self.disk], ResidencySettings((int(tiles * SIZE), disk), **options))

    def fill(self, keys: str) -> None:
        """Insert a tile for every key, filled with the number of the key."""
        for number, key in enumerate(keys):
            self.store[key] = tile(number)
        self.settle()

    def settle(self) -> None:
        self.store._engine.wait_all(LIMIT)

    def files(self) -> int:
        return len(os.listdir(self.disk.directory))

    def fast(self) -> str:
        return "".join(sorted(map(str, self.store.fast)))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Made]]:
    made: list[Made] = []

    def make(tiles: float, disk: int | None = None, **options: Any) -> Made:
        made.append(Made(tmp_path, tiles, disk, **options))
        return made[-1]

    yield make
    for one in made:
        one.store.close()
    assert not list(tmp_path.iterdir())


def test_a_mapping(make: Callable[..., Made]) -> None:
    one = make(2.5)
    store = one.store
    one.fill("abcd")
    assert list(store) == list("abcd")
    assert len(store) == 4
    assert "a" in store
    assert "x" not in store
    assert one.fast() == "cd"
    assert one.files() == 2
    for number, key in enumerate("abcd"):
        np.testing.assert_array_equal(store[key], tile(number))
    with pytest.raises(KeyError):
        store["x"]
    with pytest.raises(KeyError):
        del store["x"]
    with pytest.raises(NotImplementedError, match="use del"):
        store.pop("a")
    store["a"] = tile(9)
    assert store["a"][0] == 9
    assert len(store) == 4
    for key in "abcd":
        del store[key]
    one.settle()
    assert (len(store), one.files(), store.spilled_total) == (0, 0, (0, 0))


def test_totals(make: Callable[..., Made]) -> None:
    one = make(2.5)
    store = one.store
    one.fill("abc")
    memory, disk = store.spilled_total
    assert memory == SIZE
    assert SIZE <= disk < SIZE + 1000
    assert set(store.slow) == {"a"}
    assert set(store.fast) == {"b", "c"}
    store["a"]
    one.settle()
    # one of the others went, and the copy of a is kept
    memory, disk = store.spilled_total
    assert SIZE <= memory < 2 * SIZE
    assert disk >= 2 * SIZE
    assert store.cumulative_metrics["disk-write", "count"] == 2
    assert store.cumulative_metrics["disk-read", "count"] == 1
    assert store.cumulative_metrics["disk-read", "bytes"] >= SIZE


def test_arrays_are_read_back_unchanged(make: Callable[..., Made]) -> None:
    one = make(0.1)
    values = {
        "fortran": np.asfortranarray(np.arange(20000.0).reshape(100, 200)),
        ("tuple", 1): np.arange(5000, dtype=">i4"),
        3: np.array(["x" * 100, None] * 100, dtype=object),
        "x" * 3000: np.ma.masked_greater(np.arange(5000), 7),
        "/../a\0b": {"a": [np.ones(1000), "text" * 500]},
    }
    for key, value in values.items():
        one.store[key] = value
    one.settle()
    assert one.files() >= len(values) - 1
    actual = one.store["fortran"]
    assert actual.flags.f_contiguous
    assert actual.flags.writeable
    np.testing.assert_array_equal(actual, values["fortran"])
    assert one.store["tuple", 1].dtype == ">i4"
    assert one.store[3].tolist() == values[3].tolist()
    assert one.store["x" * 3000].mask.sum() == 4992
    assert one.store["/../a\0b"]["a"][1] == "text" * 500


def test_small_values_stay(make: Callable[..., Made]) -> None:
    one = make(1)
    for number in range(300):
        one.store[number] = number
    one.store["a"] = tile(1)
    one.store["b"] = tile(2)
    one.settle()
    assert len(one.store) == 302
    assert one.store[7] == 7
    assert one.files() == 1
    del one.store[7]
    assert 7 not in one.store


def test_views_count_once(make: Callable[..., Made]) -> None:
    one = make(2.5)
    base = tile(1)
    one.store["a"] = base
    one.store["t"] = base.reshape(100, -1).T
    one.store["part"] = base[:5000]
    one.store["other"] = tile(2)
    one.settle()
    assert one.files() == 0
    del base
    one.store["more"] = tile(3)
    one.settle()
    assert one.fast() == "moreother"
    np.testing.assert_array_equal(one.store["t"], tile(1).reshape(100, -1).T)


def test_evict_frees_the_first_value(make: Callable[..., Made]) -> None:
    one = make(5)
    for number, key in enumerate("abc"):
        one.store[key] = tile(number)
    assert one.store.evict() == SIZE
    assert one.fast() == "bc"
    assert one.store.evict() == SIZE
    assert one.store.evict() == SIZE
    assert one.store.evict() == -1
    assert not one.store.fast
    np.testing.assert_array_equal(one.store["b"], tile(1))
    assert one.fast() == "b"


class Stubborn:
    def __sizeof__(self) -> int:
        return SIZE

    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


def test_values_that_cannot_be_serialized_stay(
    make: Callable[..., Made], caplog: pytest.LogCaptureFixture
) -> None:
    one = make(1.5)
    stubborn = Stubborn()
    one.store["stubborn"] = stubborn
    for number in range(4):
        one.store[number] = tile(number)
        one.settle()
    assert one.store["stubborn"] is stubborn
    assert one.files() == 4
    assert caplog.text.count("Failed to serialize 'stubborn'") == 1


def test_a_full_disk(
    make: Callable[..., Made], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = make(1.5)
    full = True
    store = one.disk.store

    def maybe(value: Any) -> Held:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return store(value)

    monkeypatch.setattr(one.disk, "store", maybe)
    for number, key in enumerate("abcd"):
        one.store[key] = tile(number)
        one.settle()
    assert one.fast() == "abcd"
    assert caplog.text.count("Spill to disk failed; keeping data in memory") == 1
    assert one.store.evict() == -1
    full = False
    assert one.store.evict() > 0
    one.settle()
    assert len(one.store.fast) == 1
    for number, key in enumerate("abcd"):
        np.testing.assert_array_equal(one.store[key], tile(number))


def test_a_limit_of_the_disk(make: Callable[..., Made]) -> None:
    one = make(1.5, disk=2 * SIZE + 2000)
    for number, key in enumerate("abcdef"):
        one.store[key] = tile(number)
        one.settle()
    assert one.files() == 2
    assert len(one.store.fast) == 4
    for number, key in enumerate("abcdef"):
        np.testing.assert_array_equal(one.store[key], tile(number))


def test_a_missing_file(make: Callable[..., Made], caplog: pytest.LogCaptureFixture) -> None:
    one = make(1.5)
    one.fill("ab")
    for name in os.listdir(one.disk.directory):
        os.remove(os.path.join(one.disk.directory, name))
    for _ in range(2):
        with pytest.raises(LostTileError, match="'a' could not be read back: FileNotFound"):
            one.store["a"]
    assert "a" in one.store
    assert "'a' could not be read back" in caplog.text
    del one.store["a"]
    one.store["a"] = tile(5)
    assert one.store["a"][0] == 5


def test_a_failed_read_can_be_repeated(
    make: Callable[..., Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make(1.5)
    one.fill("ab")
    load = one.disk.load
    monkeypatch.setattr(one.disk, "load", lambda held: 1 / 0)
    there = threading.Event()
    name = one.store.request(["a"], there.set)
    assert there.wait(LIMIT)
    assert "a" not in one.store.fast
    one.store.release(name)
    with pytest.raises(LostTileError, match="ZeroDivisionError"):
        one.store["a"]
    monkeypatch.setattr(one.disk, "load", load)
    np.testing.assert_array_equal(one.store["a"], tile(0))


def test_a_read_inside_a_request_is_served(make: Callable[..., Made]) -> None:
    one = make(2.5)
    one.fill("abcd")
    there = threading.Event()
    first = one.store.request(["a", "b"], there.set)
    assert there.wait(LIMIT)
    second = one.store.request(["c", "d"], there.set)
    assert one.store["d"][0] == 3
    one.store.urge(second)
    one.settle()
    assert set(one.store.fast) == set("abcd")
    one.store.release(first)
    one.store.release(second)


def test_closing_a_store_ends_all_waits(make: Callable[..., Made]) -> None:
    one = make(1.5)
    one.fill("abc")
    one.store.request(["c"], lambda: None)
    there = threading.Event()
    one.store.request(["a", "b"], there.set)
    one.store.close()
    assert there.wait(LIMIT)
    with pytest.raises(LostTileError, match=r"shutdown|closed"):
        one.store["a"]
    one.store.close()


class Broken(Stubborn):
    def __reduce__(self) -> Any:
        raise OSError("no such file")


def test_an_oserror_of_a_value_is_no_full_disk(make: Callable[..., Made]) -> None:
    one = make(1.5)
    one.store["broken"] = Broken()
    for number in range(3):
        one.store[number] = tile(number)
        one.settle()
    assert one.files() == 3


def test_values_are_inserted_whole_or_not_at_all(make: Callable[..., Made]) -> None:
    one = make(1.5)

    def broken(key: Any) -> float:
        return 1 / 0

    one.store.next_use = broken
    with pytest.raises(ZeroDivisionError):
        one.store["a"] = tile(1)
    assert "a" not in one.store
    assert not len(one.store)


def test_a_file_that_is_cut(make: Callable[..., Made]) -> None:
    one = make(1.5)
    one.fill("ab")
    [name] = os.listdir(one.disk.directory)
    os.truncate(os.path.join(one.disk.directory, name), 1000)
    with pytest.raises(LostTileError):
        one.store["a"]


def test_requested_values_stay_in_memory(make: Callable[..., Made]) -> None:
    one = make(2.5)
    one.fill("abcd")
    there = threading.Event()
    name = one.store.request(["a", "b"], there.set)
    assert there.wait(LIMIT)
    assert {"a", "b"} <= set(one.store.fast)
    one.store["e"] = tile(4)
    one.settle()
    assert {"a", "b"} <= set(one.store.fast)
    one.store.release(name)
    one.store["f"] = tile(5)
    one.settle()
    assert not {"a", "b"} <= set(one.store.fast)
    with pytest.raises(KeyError):
        one.store.request(["x"], there.set)


def test_the_directory_is_private_and_removed(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path / "made"))
    if os.name == "posix":
        assert os.stat(disk.directory).st_mode & 0o777 == 0o700
    disk.store(tile(1))
    del disk
    assert not list((tmp_path / "made").iterdir())


def test_settings_fit_the_tiers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a capacity for memory and each of 1 tiers, not 3"):
        TileStore([Disk(str(tmp_path))], ResidencySettings((1, 1, None)))


@pytest.mark.parametrize("keep_clean", (True, False))
def test_threads(make: Callable[..., Made], keep_clean: bool) -> None:
    """Four threads write, read, request and delete; no read returns an old or torn value."""
    one = make(6, keep_clean=keep_clean)
    store = one.store

    def work(seed: int) -> None:
        rng = random.Random(seed)
        mine: dict[Any, float] = {}
        for number in range(250):
            choice = rng.random()
            if choice < 0.35 or not mine:
                key = (seed, rng.randrange(12))
                mine[key] = seed * 1000 + number
                store[key] = tile(seed * 1000 + number)
            elif choice < 0.7:
                key = rng.choice(list(mine))
                value = store[key]
                assert value[0] == value[-1] == mine[key]
            elif choice < 0.85:
                keys = rng.sample(list(mine), min(3, len(mine)))
                there = threading.Event()
                name = store.request(keys, there.set)
                assert there.wait(LIMIT)
                for key in keys:
                    assert store.fast[key][0] == mine[key]
                store.release(name)
            else:
                key = rng.choice(list(mine))
                del mine[key]
                del store[key]
        for key, value in mine.items():
            assert store[key][0] == value
            del store[key]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4), timeout=LIMIT))
    one.settle()
    assert (len(store), one.files(), store.spilled_total) == (0, 0, (0, 0))
    assert store._residency.used == [0, 0]


@pytest.mark.parametrize(
    "view",
    (
        lambda x: x.T,
        lambda x: x[::-1],
        lambda x: x[:, ::-1].T,
        lambda x: x.reshape(20, -1),
        lambda x: x.view("i8"),
        lambda x: x.view("M8[ns]"),
    ),
)
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("first", (True, False))
def test_views_are_written_once(
    make: Callable[..., Made], view: Callable[[Any], Any], order: str, first: bool
) -> None:
    one = make(2.5)
    store = one.store
    x = np.asarray(np.random.default_rng(0).random((100, 100)), order=order)  # type: ignore
    wanted = x.copy(order="K")
    y = view(x)
    if not np.shares_memory(x, y):
        pytest.skip("no view")
    values = {"x": x, "y": y}
    for key in values if first else ["y", "x"]:
        store[key] = values[key]
    del x, y, values
    for key in "abc":
        store[key] = np.full(10_000, 1.0)
    one.settle()
    assert not {"x", "y"} & set(store.fast)
    assert store.cumulative_metrics["disk-write", "count"] == 2
    assert store.spilled_total.memory >= 3 * 80_000
    again = store["y"]
    np.testing.assert_array_equal(again, view(wanted))
    assert again.strides == view(wanted).strides
    assert again.flags.writeable
    assert np.shares_memory(again, store["x"])
    np.testing.assert_array_equal(store["x"], wanted)
    assert store.cumulative_metrics["disk-read", "count"] == 1
    # what is made a view of now is one with it too
    one.settle()
    writes, used = store.cumulative_metrics["disk-write", "count"], store.used(0)
    store["z"] = store["x"].T
    assert store.used(0) == used
    assert np.shares_memory(store["z"], again)
    del store["y"], again
    for key in "de":
        store[key] = np.full(10_000, 1.0)
    one.settle()
    # both have the file that there is already
    assert not {"x", "z"} & set(store.fast)
    assert store.cumulative_metrics["disk-write", "count"] == writes + 1
    assert np.shares_memory(store["x"], store["z"])
    del store["x"]
    one.settle()
    np.testing.assert_array_equal(store["z"], wanted.T)
    for key in list(store):
        del store[key]
    one.settle()
    assert (len(store), one.files(), store.spilled_total) == (0, 0, (0, 0))


def test_views_are_needed_when_the_first_is(make: Callable[..., Made]) -> None:
    one = make(2.5)
    store = one.store
    uses: dict[str, float | None] = {"x": 9, "y": 1, "a": 5, "b": 6, "c": 7, "d": 2}
    store.next_use = uses.get
    x = np.ones((100, 100))
    store["x"], store["y"] = x, x.T
    for key in "abc":
        store[key] = np.full(10_000, 1.0)
    one.settle()
    assert {"x", "y"} <= set(store.fast)
    store.expect({"y": 9})
    store["d"] = np.full(10_000, 1.0)
    one.settle()
    assert not {"x", "y"} & set(store.fast)
    store.expect({"y": None})
    del store["y"]
    np.testing.assert_array_equal(store["x"], x)


# Tuples


def test_parts_of_a_tuple_are_spilled_one_by_one(make: Callable[..., Made]) -> None:
    one = make(2.5)
    value = (tile(0), (tile(1), 7), np.arange(3))
    one.store["t"] = value
    assert one.store["t"] is value
    del value
    one.store["a"] = tile(2)
    one.settle()
    # one of two parts was written, and the tuple is not in memory
    assert one.files() == 1
    assert one.store.used(0) == 2 * SIZE
    assert "t" not in one.store.fast
    assert one.store.spilled_total.memory == pytest.approx(SIZE, rel=0.01)
    first, (second, number), small = one.store["t"]
    assert number == 7
    np.testing.assert_array_equal(first, tile(0))
    np.testing.assert_array_equal(second, tile(1))
    np.testing.assert_array_equal(small, np.arange(3))
    assert one.store.cumulative_metrics["disk-read", "count"] == 1
    del one.store["t"]
    one.settle()
    assert one.store.spilled_total.memory in (0, pytest.approx(SIZE, rel=0.01))


def test_a_tuple_and_a_part_of_it_take_memory_once(make: Callable[..., Made]) -> None:
    one = make(2.5)
    value = (tile(0), tile(1))
    one.store["t"] = value
    one.store["part"] = value[1]
    assert one.store.used(0) == 2 * SIZE
    assert one.fast() == "partt"
    del one.store["t"], value
    assert one.store.used(0) == SIZE
    np.testing.assert_array_equal(one.store["part"], tile(1))
    one.fill("abc")
    assert "part" not in one.store.fast
    again = (one.store["part"], tile(5))
    one.store["t"] = again
    one.settle()
    np.testing.assert_array_equal(one.store["t"][0], one.store["part"])
    np.testing.assert_array_equal(one.store["part"], tile(1))


def test_the_part_that_no_task_needs_soon_is_spilled_first(make: Callable[..., Made]) -> None:
    one = make(3.5)
    one.store.next_use = {"t": 9.0, "soon": 1.0, "a": 2.0, "b": 3.0}.get
    value = (tile(0), tile(1))
    one.store["t"] = value
    one.store["soon"] = value[0]
    del value
    one.store["a"], one.store["b"] = tile(2), tile(3)
    one.settle()
    assert set(one.store.fast) == {"a", "b", "soon"}
    assert one.files() == 1


def test_a_tuple_with_many_parts_is_spilled_as_a_whole(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path))
    settings = ResidencySettings((3 * SIZE, None))
    store = TileStore([disk], settings, runtime=RuntimeSettings(max_parts=2))
    store["t"] = tuple(tile(number) for number in range(3))
    store["a"] = tile(3)
    store._engine.wait_all(LIMIT)
    assert set(store.fast) == {"a"}
    assert len(os.listdir(disk.directory)) == 1
    np.testing.assert_array_equal(store["t"][2], tile(2))
    store.close()


def test_nothing_is_decided_while_memory_is_rather_empty(make: Callable[..., Made]) -> None:
    one = make(6.5)
    store = one.store
    one.fill("abc")
    assert store.tracks_nothing
    assert (store.used(0), store.report()["held"]["memory"]) == (3 * SIZE, 3 * SIZE)
    assert (list(store), len(store), "a" in store) == (["a", "b", "c"], 3, True)
    # a request of new values waits for nothing, and one of unknown keys is an error
    ready = threading.Event()
    store.release(store.request("ab", ready.set, room=1))
    assert ready.is_set()
    with pytest.raises(KeyError):
        store.request("x", ready.set)
    store["b"] = tile(7)
    del store["c"]
    assert (store.used(0), store["b"][0]) == (2 * SIZE, 7)
    # the next uses that count are those when the residency gets to know the values
    store.next_use = dict.fromkeys("acdefg", 1.0).__or__({"b": 9.0}).get
    one.fill("cdef")
    assert not store.tracks_nothing
    assert store.used(0) == 6 * SIZE
    store["g"] = tile(6)
    one.settle()
    assert "b" not in store.fast
    assert "a" in store.fast
    for key in "abcdefg":
        del store[key]
    one.settle()
    assert store.tracks_nothing
    assert (len(store), store.used(0), one.files()) == (0, 0, 0)


def test_a_value_is_measured_once(
    make: Callable[..., Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []
    safe_sizeof = storage.safe_sizeof

    def count(value: Any) -> int:
        measured.append(int(value.flat[0]))
        return safe_sizeof(value)

    monkeypatch.setattr(storage, "safe_sizeof", count)
    one = make(3.5)
    one.fill("ab")
    assert not one.store.tracks_nothing
    one.fill("cd")
    one.settle()
    assert measured == [0, 1, 0, 1]


def test_upcoming_values_in_memory_are_no_event(
    make: Callable[..., Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make(2.5)
    one.fill("abc")
    one.settle()
    assert one.fast() == "bc"
    events: list[Any] = []
    set_upcoming = Residency.set_upcoming

    def record(residency: Residency, keys: Any, further: Any) -> Any:
        events.append((len(keys), len(further)))
        return set_upcoming(residency, keys, further)

    monkeypatch.setattr(Residency, "set_upcoming", record)
    one.store.set_upcoming("b", "bc")
    assert events == []
    # only what is on disk is passed on, and then forgotten
    one.store.set_upcoming("b", "ca")
    one.store.set_upcoming("c", "b")
    one.store.set_upcoming("c", "b")
    assert events == [(0, 1), (0, 0)]


def test_values_that_were_read_last_are_evicted_last(make: Callable[..., Made]) -> None:
    one = make(4.5)
    one.fill("ab")
    assert one.store.tracks_nothing
    one.store["a"]
    one.fill("cde")
    assert one.fast() == "acde"


@pytest.mark.parametrize("event", ["evict", "shrink", "resize"])
def test_untracked_values_are_evicted_when_memory_is_needed(
    make: Callable[..., Made], event: str
) -> None:
    one = make(10)
    one.fill("ab")
    one.store["a"]
    assert one.store.tracks_nothing
    if event == "evict":
        assert one.store.evict() == SIZE
    elif event == "shrink":
        one.store.shrink_to(0, SIZE)
    else:
        one.store.resize(0, int(1.5 * SIZE))
    one.settle()
    # a was read last
    assert one.fast() == "a"
    np.testing.assert_array_equal(one.store["b"], tile(1))


def test_values_of_requests_stay_when_memory_fills(make: Callable[..., Made]) -> None:
    one = make(4.5)
    one.fill("ab")
    request = one.store.request("a", lambda: None)
    ended = one.store.request("b", lambda: None)
    one.store.release(ended)
    one.store.expect({"a": 100.0})
    one.store.next_use = dict.fromkeys("bcdef", 1.0).__or__({"a": 100.0}).get
    one.fill("cdef")
    assert "a" in one.store.fast
    one.store.release(request)
    one.fill("c")
    assert "a" not in one.store.fast


def test_views_of_one_buffer_are_counted_once_while_untracked(make: Callable[..., Made]) -> None:
    one = make(10)
    base = tile(1)
    for key in "abcd":
        one.store[key] = base[: len(base) // 2]
    assert one.store.tracks_nothing
    assert one.store.used(0) == SIZE
    for key in "abc":
        del one.store[key]
    assert one.store.used(0) == SIZE
    del one.store["d"]
    assert one.store.used(0) == 0


class Watched(Disk):
    """A disk whose reads and writes are recorded, and wait for the test."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.gate = threading.Event()
        self.began = threading.Semaphore(0)
        self.read: list[Any] = []
        self.at_read: list[Any] = []
        self.watch: Callable[[], Any] = lambda: None

    def store(self, value: Any) -> Held:
        self.began.release()
        assert self.gate.wait(LIMIT)
        return super().store(value)

    def load(self, held: Held) -> Any:
        self.began.release()
        self.at_read.append(self.watch())
        assert self.gate.wait(LIMIT)
        value = super().load(held)
        self.read.append(value[0])
        return value


def watched(tmp_path: Path, tiles: float, **options: Any) -> tuple[TileStore, Watched]:
    disk = Watched(str(tmp_path))
    disk.gate.set()
    return TileStore([disk], ResidencySettings((int(tiles * SIZE), None), **options)), disk


def test_a_read_starts_when_the_memory_of_what_it_replaces_is_free(tmp_path: Path) -> None:
    store, disk = watched(tmp_path, 2.1)
    values: dict[str, weakref.ref[Any]] = {}
    store.next_use = lambda key: -ord(key)
    for number, key in enumerate("abc"):
        value = tile(number)
        values[key] = weakref.ref(value)
        store[key] = value
        del value
    store.wait_all()
    assert set(store.fast) == {"b", "c"}
    disk.gate.clear()
    disk.watch = lambda: values["b"]() is None
    while disk.began.acquire(blocking=False):
        pass
    ready = threading.Event()
    request = store.request(["a"], ready.set, now=0)
    assert disk.began.acquire(timeout=LIMIT)
    assert disk.at_read == []
    disk.gate.set()
    assert ready.wait(LIMIT)
    assert disk.at_read == [True]
    store.release(request)
    store.close()


def test_a_read_that_a_task_waits_for_overtakes_those_ahead(tmp_path: Path) -> None:
    store, disk = watched(tmp_path, 6.1, prefetch=3)
    store.next_use = lambda key: -key
    for number in range(10):
        store[number] = tile(number)
    store.wait_all()
    assert set(store.fast) == set(range(4, 10))
    for number in range(6, 10):
        del store[number]
    disk.gate.clear()
    while disk.began.acquire(blocking=False):
        pass
    store.set_upcoming([0, 1, 2])
    # the nearest is being read, and two wait
    assert disk.began.acquire(timeout=LIMIT)
    ready = threading.Event()
    request = store.request([0], ready.set, now=0)
    other = store.request([3], ready.set, now=0)
    disk.gate.set()
    store.wait_all()
    assert disk.read == [2.0, 0.0, 3.0, 1.0]
    for each in (request, other):
        store.release(each)
    store.close()
