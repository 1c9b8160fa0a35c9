"""Four users of one store, tiers that fail, and every interleaving that can be forced.

Twice: with threads, whose switches are forced wherever a lock is taken or a tile is copied; and
played by one thread, with other work done in the middle of copies, so that a seed that fails
fails again.  Values say of which key and write they are.
"""

from __future__ import annotations

import errno
import gc
import itertools
import logging
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dasktile.runtime.settings import RuntimeSettings
from dasktile.runtime.tiers import Disk, Held, Tier
from dasktile.runtime.worker import reads as reads_module
from dasktile.runtime.worker import store as store_module
from dasktile.runtime.worker.reads import LostTileError
from dasktile.runtime.worker.store import TileStore
from dasktile.schedule.instructions import DYING, ResidencySettings
from dasktile.testing import emulated
from dasktile.testing.emulated import EmulatedArray, EmulatedDevice, use
from tests.schedule.residency_worker import check_states

#: Seconds after which somebody waits for ever.
LIMIT = 60

USERS = 4
KEYS = tuple(range(10))
SIZE = 8_000

#: Values of a key are `STRIDE` apart from those of the next one.
STRIDE = 1_000_000

INJECTED = "injected"

#: What a read may fail with.
EXCUSES = (INJECTED, "no room for", "the store is closed", "shutdown", "bytes on the device")


# Values


class Stubborn:
    """A value that cannot be serialized."""

    def __init__(self, code: int) -> None:
        self.code = code

    def __sizeof__(self) -> int:
        return SIZE // 2

    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


def code_of(value: Any) -> int:
    """The code that a value was constructed with; all of its elements must have it."""
    if isinstance(value, Stubborn):
        return value.code
    if isinstance(value, (list, tuple)):
        [code] = set(map(code_of, value))
        return code
    array = value.get() if isinstance(value, EmulatedArray) else value
    code = array.flat[0]
    assert (array == code).all(), f"torn: {np.unique(array)}"
    return int(code)


class History:
    """The history of a key: codes of its values, None for a deletion."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.codes: list[int | None] = [None]
        #: How many of the writes have ended.
        self.done = 0

    def write(self, code: int | None, do: Callable[[], object]) -> None:
        """With the lock held."""
        self.codes.append(code)
        do()
        self.done = len(self.codes) - 1

    def since(self, first: int) -> list[int | None]:
        """The codes that a read which began at `first` may return."""
        return self.codes[first:]

    @property
    def newest(self) -> int | None:
        return self.codes[-1]


# What goes wrong


class Chaos:
    """Decides which copies fail, and where threads yield."""

    def __init__(self, seed: int, faults: float) -> None:
        self._rng = random.Random(seed)
        self._faults = faults
        self.failed_loads = 0

    def store(self) -> None:
        draw = self._rng.random()
        if draw < self._faults:
            raise OSError(errno.ENOSPC, INJECTED)
        if draw < 1.3 * self._faults:
            raise TypeError(INJECTED)

    def load(self) -> None:
        draw = self._rng.random()
        if draw < self._faults:
            self.failed_loads += 1
            raise (MemoryError if draw < self._faults / 2 else ValueError)(INJECTED)

    def pause(self) -> None:
        draw = self._rng.random()
        if draw < 0.01:
            time.sleep(draw / 100)
        elif draw < 0.2:
            time.sleep(0)


class Shaky(Tier):
    """A tier whose copies may fail, with other actions in the middle of a copy."""

    def __init__(self, tier: Tier, chaos: Chaos, meanwhile: Callable[[], object]) -> None:
        self.name = tier.name
        self.tier = tier
        self.chaos = chaos
        self.meanwhile = meanwhile

    def store(self, value: Any) -> Held:
        self.meanwhile()
        self.chaos.store()
        held = self.tier.store(value)
        self.meanwhile()
        return held

    def load(self, held: Held) -> Any:
        self.meanwhile()
        self.chaos.load()
        try:
            value = self.tier.load(held)
        except MemoryError:
            self.chaos.failed_loads += 1
            raise
        self.meanwhile()
        return value

    def free(self, held: Held) -> None:
        self.tier.free(held)

    def recycle(self, held: Held) -> bool:
        return self.tier.recycle(held)

    def close(self) -> None:
        self.tier.close()


class Yielding:
    """A lock that yields to other threads before it is acquired."""

    def __init__(self, lock: Any, pause: Callable[[], object]) -> None:
        self.lock = lock
        self.pause = pause

    def acquire(self, *args: Any, **kwargs: Any) -> bool:
        return self.lock.acquire(*args, **kwargs)

    def release(self) -> None:
        self.lock.release()

    def __enter__(self) -> None:
        self.pause()
        self.lock.acquire()

    def __exit__(self, *args: object) -> None:
        self.lock.release()
        self.pause()


# A store and what is known of it


@dataclass(frozen=True)
class Kind:
    """What is tested.

    Attributes
    ----------
    device
        Whether there are three tiers.
    in_place
        Whether users change what they have asked for; reads of a key then wait for that.
    faults
        How often a copy fails.
    tiles
        How many the first tier has room for.
    disk
        How many the last has room for, None for any number.
    closes
        Whether the store is closed in the middle.
    threads
        For each direction between two tiers.
    """

    device: bool = False
    in_place: bool = False
    faults: float = 0.05
    tiles: float = 4.5
    disk: float | None = None
    closes: bool = False
    threads: int = 1

    def __str__(self) -> str:
        return "-".join(
            (
                "device" if self.device else "host",
                f"{self.tiles}",
                *(name for name in ("in_place", "closes") if getattr(self, name)),
                *([f"disk{self.disk}"] if self.disk is not None else []),
                *([] if self.faults else ["sound"]),
                *([f"threads{self.threads}"] if self.threads > 1 else []),
            )
        )


KINDS = (
    Kind(),
    Kind(faults=0, tiles=0.5, threads=2),
    Kind(disk=3, tiles=2.5),
    Kind(in_place=True, threads=2),
    Kind(closes=True),
    Kind(device=True),
    Kind(device=True, faults=0, tiles=2.5),
    Kind(device=True, in_place=True, disk=3),
    Kind(device=True, closes=True, threads=2),
)


class World:
    """A store, and the history of its keys."""

    def __init__(self, kind: Kind, seed: int, directory: Path, play: Play | None = None) -> None:
        self.kind = kind
        self.play = play
        self.chaos = Chaos(seed, kind.faults)
        self.histories = {key: History() for key in KEYS}
        self.numbers = itertools.count(1)
        #: Memory with a row for every key, which may come again.
        self.page: Any = None
        # three tiles: files are written over, and removed
        self.held = Disk(str(directory), spare=int(3.5 * SIZE) if seed % 2 else 0)
        self.device: EmulatedDevice | None = None
        meanwhile = self.chaos.pause if play is None else play.meanwhile
        tiers: list[Tier] = [Shaky(self.held, self.chaos, meanwhile)]
        below = None if kind.disk is None else int(kind.disk * SIZE)
        self.capacity: list[int | None] = [int(kind.tiles * SIZE), below]
        if kind.device:
            # of which tasks take some without saying so
            self.device = use(EmulatedDevice(int((kind.tiles + 1.5) * SIZE)))
            tiers.insert(0, Shaky(self.device.host(1 << 30), self.chaos, meanwhile))
            self.capacity.insert(1, int(2.5 * SIZE))
        settings = ResidencySettings(tuple(self.capacity), keep_clean=not kind.in_place)
        # one thread that plays all has nobody to wait for
        runtime = RuntimeSettings() if play is None else RuntimeSettings(room_pause=0)
        self.store = TileStore(tiers, settings, kind.threads, device=self.device, runtime=runtime)
        self.closed = False
        self._count_failed()
        if play is None:
            self._let_others_go_first()
        else:
            play.take(self.store, kind.threads)

    def _let_others_go_first(self) -> None:
        store: Any = self.store
        pause = self.chaos.pause
        store._lock = Yielding(store._lock, pause)
        store._engine._lock = Yielding(store._engine._lock, pause)
        store._engine._idle = threading.Condition(store._engine._lock)

    def close(self) -> None:
        self.closed = True
        self.store.close()

    def _count_failed(self) -> None:
        """Count a failed load once all waiting requests are notified, which may be later."""
        store: Any = self.store
        failed = store._copy_failed

        def count(unit: Any, copy: Any, error: BaseException) -> None:
            failed(unit, copy, error)
            self.chaos.failed_loads += copy.target < copy.source

        store._copy_failed = count

    def wait(self, event: threading.Event, meanwhile: Callable[[], object] | None = None) -> None:
        if self.play is not None:
            self.play.until(event.is_set, self._help)
        for _ in range(LIMIT * 50):
            if event.wait(0.02):
                return
            # as a worker does now and then
            self.store.age()
            if meanwhile is not None:
                meanwhile()
        raise AssertionError("a request is not answered")

    def _help(self) -> None:
        """Age the store and end requests, as would happen after a while on a worker."""
        for _ in range(2):
            self.store.age()
        assert self.play is not None
        for user in self.play.all:
            user.end_answered()

    def check_empty(self) -> None:
        """Check that after the deletion of all keys nothing is left and nothing waits."""
        store = self.store
        if self.play is not None:
            self.play.drain()
        store._engine.wait_all(LIMIT)
        assert not len(store)
        assert not list(store)
        assert not store.slow
        residency = store._residency
        assert not any(residency.used), residency.used
        assert not any(residency._freeing), residency._freeing
        assert (residency._active_fetches, residency.prefetches.size) == (0, 0)
        for left in (
            *(store._values, store._entries, store._memories, store._waiting, store._small),
            *(residency._tiles, residency._removed, residency._shared, residency._requests),
            *(residency._queued, residency._waiting, residency._dying),
        ):
            assert not left, left
        assert store.spilled_total == (0, 0)
        if not self.closed:
            assert os.listdir(self.held.directory) == []
            assert (self.held._spare.nbytes, self.held._spare.stored) == (0, 0)
        if self.device is not None:
            self.page = None
            gc.collect()
            assert self.device.used == 0


# Users


@dataclass
class Asked:
    """A request that is not released yet."""

    name: int
    keys: Sequence[int]
    there: threading.Event
    #: How far the writes of every key were.
    since: Sequence[int]
    failed_loads: int
    answers: list[None] = field(default_factory=list)


class User:
    """A user of a store whose actions are random."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.store = world.store
        self.rng = random.Random(seed)
        self.asked: list[Asked] = []
        self.did: Counter[str] = Counter()
        #: The counts of the store when they were last read: they never decrease.
        self.counts: dict[tuple[str, str], float] = {}

    #: How often each is done, and whether it waits for copies.
    ACTS = (
        ("put", 22, False),
        ("put_row", 6, False),
        ("put_again", 3, False),
        ("put_part", 5, False),
        ("delete", 9, False),
        ("read", 18, True),
        ("ask", 14, False),
        ("finish", 14, True),
        ("give_up", 3, False),
        ("urge", 2, False),
        ("expect", 5, False),
        ("look", 5, False),
        ("age", 2, False),
        ("resize", 3, False),
        ("squeeze", 2, False),
        ("evict", 2, True),
        ("settle", 1, True),
        ("inspect", 2, False),
        ("allocate", 3, False),
        ("mutate", 8, True),
    )

    def step(self, may_wait: bool = True) -> None:
        acts = [one for one in self.ACTS if may_wait or not one[2]]
        [(act, _, _)] = self.rng.choices(acts, [weight for _, weight, _ in acts])
        self.did[act] += 1
        getattr(self, act)()

    def end(self) -> None:
        while self.asked:
            self.finish()

    # Writing

    def put(self) -> None:
        key = self.rng.choice(KEYS)
        with self._locked(key) as free:
            if free:
                code = self._code(key)
                with suppress(MemoryError):
                    value = self._made(code)
                    history = self.world.histories[key]
                    history.write(code, partial(self._set, key, value))

    def put_row(self) -> None:
        """A view of memory that other keys share, or a value that the store had before."""
        key = self.rng.choice(KEYS)
        with self._locked(key) as free, suppress(MemoryError):
            if free:
                if self.world.page is None or self.rng.random() < 0.3:
                    codes = np.array([[self._code(key)] for key in KEYS])
                    self.world.page = self._placed(np.repeat(codes, 1 + SIZE // 32, axis=1))
                row = self.world.page[key]
                self.world.histories[key].write(code_of(row), partial(self._set, key, row))

    def put_again(self) -> None:
        """The same object."""
        key = self.rng.choice(KEYS)
        with self._locked(key) as free:
            value = self.store.fast.get(key)
            if free and value is not None:
                self._delete(key)
                if self.rng.random() < 0.5:
                    value = value[::-1] if isinstance(value, np.ndarray) else value
                self.world.histories[key].write(code_of(value), partial(self._set, key, value))

    def put_part(self) -> None:
        """A part of a tuple of another key, as a task picks it."""
        key, other = self.rng.sample(KEYS, 2)
        with self._locked(key) as free:
            value = self.store.fast.get(other)
            if free and not self.world.kind.in_place and isinstance(value, tuple):
                part = self.rng.choice(value)
                self.world.histories[key].write(code_of(part), partial(self._set, key, part))

    def _set(self, key: int, value: Any) -> None:
        self.store[key] = value

    def delete(self) -> None:
        key = self.rng.choice(KEYS)
        with self._locked(key) as free:
            if free and self.world.histories[key].newest is not None:
                self._delete(key)
            elif free:
                with pytest.raises(KeyError):
                    self._delete(key)

    def _delete(self, key: int) -> None:
        self.world.histories[key].write(None, partial(self.store.__delitem__, key))

    def mutate(self) -> None:
        """Change a value as a task does, where that is allowed."""
        key = self.rng.choice(KEYS)
        with self._locked(key) as free:
            history = self.world.histories[key]
            if not (self.world.kind.in_place and free and history.newest is not None):
                return
            there = threading.Event()
            name = self.store.request([key], there.set, urgent=True)
            self.world.wait(there)
            value = self.store.fast.get(key)
            if isinstance(value, (np.ndarray, EmulatedArray)):
                assert code_of(value) == history.newest
                code = self._code(key)
                history.write(code, partial(value.__setitem__, Ellipsis, code))
            self.store.release(name)

    def _code(self, key: int) -> int:
        return key * STRIDE + next(self.world.numbers)

    def _made(self, code: int) -> Any:
        draw = self.rng.random()
        if draw < 0.05:
            return Stubborn(code)
        if draw < 0.1:
            return np.full(3, code)
        array = np.full(self.rng.randrange(SIZE // 16, SIZE // 6), code)
        if draw < 0.25:
            return array
        if draw < 0.3:
            return [self._placed(array[:-9]), array[:-8]]
        if draw < 0.45:
            # what a task returns that runs several others
            part = self._placed(array)
            first = np.full(self.rng.randrange(1, SIZE // 6), code)
            return self.rng.choice([(first, part), (part, (first, part[::-1])), (part, part)])
        return self._placed(array)

    def _placed(self, array: np.ndarray) -> Any:
        return array if self.world.device is None else self.world.device.asarray(array)

    def _locked(self, key: int) -> Locked:
        return Locked(self.world.histories[key].lock, self.world.play is None)

    # Reading

    def read(self) -> None:
        key = self.rng.choice(KEYS)
        if self.world.kind.in_place:
            with self._locked(key) as free:
                if free:
                    self._read(key)
        else:
            self._read(key)

    def _read(self, key: int) -> None:
        history = self.world.histories[key]
        first = history.done
        code: int | None = None
        try:
            code = code_of(self.store[key])
        except KeyError:
            pass
        except LostTileError as error:
            assert any(excuse in str(error) for excuse in EXCUSES), error
            return
        assert code in history.since(first), f"{code} of {history.since(first)}"

    # Asking

    def ask(self) -> None:
        if len(self.asked) == 2:
            return
        keys = self.rng.sample(KEYS, self.rng.randrange(4))
        since = [self.world.histories[key].done for key in keys]
        there = threading.Event()
        answers: list[None] = []

        def then() -> None:
            answers.append(None)
            there.set()

        room = self.rng.choice((0, 0, SIZE, 3 * SIZE))
        now = self.rng.choice((None, self.rng.random()))
        failed = self.world.chaos.failed_loads
        try:
            name = self.store.request(keys, then, room, now, self.rng.random() < 0.1)
        except KeyError:
            histories = [self.world.histories[key] for key in keys]
            assert any(
                None in history.since(first)
                for history, first in zip(histories, since, strict=True)
            )
            return
        self.asked.append(Asked(name, keys, there, since, failed, answers))

    def finish(self) -> None:
        """Wait for a request, and read its values."""
        if not self.asked:
            return
        one = self.asked.pop(self.rng.randrange(len(self.asked)))
        if self.asked or self.world.play is not None:
            self.store.urge(one.name)
        # users who have got something, and wait for more, would wait for each other
        self.world.wait(one.there, self.end_answered)
        self._check(one)

    def end_answered(self) -> None:
        for one in [one for one in self.asked if one.there.is_set()]:
            self.asked.remove(one)
            self._check(one)

    def _check(self, one: Asked) -> None:
        for key, first in zip(one.keys, one.since, strict=True):
            self._is_there(key, first, one.failed_loads)
        self.store.release(one.name)
        assert len(one.answers) == 1

    def _is_there(self, key: int, first: int, failed_loads: int) -> None:
        history = self.world.histories[key]
        is_there = key in self.store.fast
        unchanged = len(history.codes) == first + 1 and history.newest is not None
        sound = self.world.chaos.failed_loads == failed_loads and not self.world.closed
        assert is_there or not unchanged or not sound, f"{key} is not where it was asked for"

    def give_up(self) -> None:
        if self.asked:
            self.store.release(self.asked.pop().name)

    def urge(self) -> None:
        if self.asked:
            self.store.urge(self.rng.choice(self.asked).name)

    # Room and order

    def expect(self) -> None:
        uses = (None, self.rng.random(), self.rng.random(), float("inf"), DYING)
        self.store.expect({key: self.rng.choice(uses) for key in self.rng.sample(KEYS, 3)})

    def look(self) -> None:
        self.store.set_upcoming(self.rng.sample(KEYS, 4))

    def age(self) -> None:
        self.store.age()

    def resize(self) -> None:
        tier = self.rng.randrange(len(self.world.capacity))
        whole = self.world.capacity[tier]
        self.store.resize(tier, whole and int(whole * self.rng.choice((0, 0.5, 1, 1, 2))))

    def squeeze(self) -> None:
        tier = self.rng.randrange(len(self.world.capacity))
        self.store.shrink_to(tier, self.rng.randrange(4 * SIZE))

    def evict(self) -> None:
        self.store.evict()

    def settle(self) -> None:
        self.store.wait_for_writes()

    def inspect(self) -> None:
        store = self.store
        with store._lock:
            check_states(store._residency)
        assert set(store) <= set(KEYS)
        assert min(store.spilled_total) >= 0
        assert min(store.report()["held"].values()) >= 0
        assert set(store.slow) <= set(KEYS)
        assert len(store) <= len(KEYS)
        counts = store.cumulative_metrics
        assert all(counts.get(label, 0) >= count for label, count in self.counts.items())
        self.counts = counts

    def allocate(self) -> None:
        """Allocate memory on the device outside of the store."""
        if self.world.device is not None:
            with suppress(MemoryError):
                taken = self.world.device.asarray(np.zeros(SIZE // 8))
                del taken


class Locked:
    """A lock that blocks if other threads run, and only tries if none does."""

    def __init__(self, lock: Any, waits: bool) -> None:
        self.lock = lock
        self.waits = waits

    def __enter__(self) -> bool:
        self.has = self.lock.acquire(blocking=self.waits)
        return self.has

    def __exit__(self, *args: object) -> None:
        if self.has:
            self.lock.release()


# One thread that plays all


class Play:
    """Runs the work of a store's threads in one thread, in an order given by a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.all: list[User] = []
        #: Those that do something in the middle of copies.
        self.users: list[User] = []
        self.queues: dict[str, list[Callable[[], None]]] = {}
        self.running: Counter[str] = Counter()
        self.depth = 0
        self.errors: list[BaseException] = []

    def take(self, store: Any, threads: int) -> None:
        self.store = store
        self.threads = threads
        for name in store._pools:
            self.queues[name] = []
            store._engine._lanes[name] = partial(self._queue, name)
            store._pools[name].shutdown()
            store._pools[name] = SimpleNamespace(shutdown=self.drain)
        push = store._start_copy
        store._start_copy = lambda copy: Pushed(self, push(copy))
        store._engine.wait_all = store._engine.wait_pushed = lambda timeout=None: self.drain()

    def _queue(self, name: str, run: Callable[[], None], priority: int) -> None:
        """Add work to a lane, at any place that priorities might give it."""
        queue = self.queues[name]
        queue.insert(self.rng.choice((0, len(queue), self.rng.randint(0, len(queue)))), run)

    def step(self) -> bool:
        """Run one step of one thread; False if no thread can run."""
        able = [
            name
            for name, queue in self.queues.items()
            if queue and self.running[name] < self.threads
        ]
        if not able:
            return False
        name = self.rng.choice(able)
        self.running[name] += 1
        try:
            self.queues[name].pop(0)()
        finally:
            self.running[name] -= 1
        return True

    def meanwhile(self) -> None:
        """Run other actions in the middle of a copy."""
        if self.depth == 3:
            return
        self.depth += 1
        try:
            for _ in range(self.rng.choice((0, 0, 1, 2, 4))):
                self.store._copying.now = True
                if self.users and self.rng.random() < 0.7:
                    self.rng.choice(self.users).step(may_wait=False)
                else:
                    self.step()
        except BaseException as error:
            # to the store it is a copy that has failed
            self.errors.append(error)
            raise
        finally:
            self.depth -= 1
            self.store._copying.now = True

    def drain(self) -> None:
        while self.step():
            pass

    def until(self, true: Callable[[], bool], help_: Callable[[], object] | None = None) -> None:
        helped = 0
        while not true():
            if not self.step():
                assert help_ is not None and helped < LIMIT, "somebody waits for ever"
                help_()
                helped += 1


class Pushed:
    """A future that runs further steps while it is waited for."""

    def __init__(self, play: Play, future: Future[Any]) -> None:
        self.play = play
        self.future = future

    def exception(self) -> BaseException | None:
        self.play.until(self.future.done)
        return self.future.exception()


def playing(play: Play) -> SimpleNamespace:
    """Replaces the module `threading` in the store."""

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            play.until(self.is_set)
            return True

    return SimpleNamespace(
        Event=Event, RLock=threading.RLock, local=threading.local, get_ident=threading.get_ident
    )


# Tests


@pytest.fixture(autouse=True, scope="module")
def quick_collections() -> Iterator[None]:
    """Hide the objects of earlier tests from the garbage collector.

    It runs after every play with a device.  In a process that has run many tests, a collection
    of all objects takes longer than the play.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A new device, frequent thread switches, and no log of intended failures."""
    monkeypatch.setattr(emulated, "_current", [])
    before = sys.getswitchinterval()
    # records keep what is in the frames of tracebacks
    for name in (store_module.__name__, "distributed.protocol.pickle"):
        monkeypatch.setattr(logging.getLogger(name), "disabled", True)
    yield
    sys.setswitchinterval(before)


def end(world: World, directory: Path) -> None:
    for key in list(world.store):
        world.histories[key].write(None, partial(world.store.__delitem__, key))
    world.check_empty()
    world.store.close()
    assert not list(directory.iterdir())


def threaded(kind: Kind, seed: int, steps: int, directory: Path) -> None:
    world = World(kind, seed, directory)
    users = [User(world, USERS * seed + number) for number in range(USERS)]
    errors: list[BaseException] = []

    def work(user: User) -> None:
        try:
            for number in range(steps):
                if errors:
                    break
                if kind.closes and user is users[0] and number == steps // 2:
                    world.close()
                user.step()
            user.end()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(user,), daemon=True) for user in users]
    sys.setswitchinterval(1e-6)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT)
    stuck = [thread.name for thread in threads if thread.is_alive()]
    if errors:
        raise AssertionError(f"{kind}, seed {seed}") from errors[0]
    assert not stuck
    end(world, directory)


def played(kind: Kind, seed: int, steps: int, directory: Path, monkeypatch: Any) -> None:
    play = Play(seed)
    with monkeypatch.context() as patch:
        patch.setattr(reads_module, "threading", playing(play))
        world = World(kind, seed, directory, play)
        play.all = play.users = [User(world, USERS * seed + number) for number in range(USERS)]
        try:
            for number in range(steps):
                if kind.closes and number == steps * 3 // 4:
                    world.close()
                if play.rng.random() < 0.6:
                    play.rng.choice(play.users).step()
                else:
                    play.step()
            play.users = []
            for user in play.all:
                user.end()
            end(world, directory)
        except BaseException as error:
            raise AssertionError(f"{kind}, seed {seed}") from (play.errors or [error])[0]
        if play.errors:
            raise AssertionError(f"{kind}, seed {seed}") from play.errors[0]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_threads(kind: Kind, tmp_path: Path) -> None:
    threaded(kind, 0, 250, tmp_path)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_played(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(25):
        played(kind, seed, 150, tmp_path, monkeypatch)


def test_bytes_of_a_deleted_tuple(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The removal of one part of a deleted tuple drops another part from the host's memory."""
    played(Kind(device=True), 1048, 200, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_threads_for_long(kind: Kind, tmp_path: Path) -> None:
    for seed in range(1, 60):
        threaded(kind, seed, 500, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_played_for_long(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(25, 500):
        played(kind, seed, 200, tmp_path, monkeypatch)
