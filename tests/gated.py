"""Computations whose tasks block until a gate file exists, and checks of their end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, Event, Scheduler, wait
from distributed.utils_test import gen_cluster

import dasktile
from dasktile.runtime.install import NAME
from dasktile.runtime.scheduler.plugin import TileSchedulerPlugin
from dasktile.runtime.scheduler.roots import HELD

#: Seconds after which a wait fails.  Starting a process may take a minute on a loaded machine.
LIMIT = 300

#: Settings with which each of three workers reads eight tiles, and gets two tasks at once.
SMALL_TILES = {"dasktile.tiling.usual-task": "4 kB", "dasktile.raise-errors": True}

VALUES = np.random.default_rng(0).random((480, 24))
EXPECTED = (VALUES - VALUES.mean(axis=0)).T @ VALUES

three_workers = gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)] * 3,
    timeout=LIMIT,
    config=SMALL_TILES,
    worker_kwargs={"memory_limit": 0},  # with a limit, paused workers resume by themselves
)


class Gated:
    """An array whose reads block until the gate file exists."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate
        self.shape, self.dtype, self.ndim = VALUES.shape, VALUES.dtype, VALUES.ndim

    def __getitem__(self, index: Any) -> np.ndarray:
        deadline = time.monotonic() + LIMIT
        while not self.gate.exists():
            assert time.monotonic() < deadline, "the gate file was not created"
            time.sleep(0.01)
        return VALUES[index]


def source(gate: Path) -> da.Array:
    meta = np.empty((0, 0), VALUES.dtype)
    return da.from_array(Gated(gate), chunks=(10, 24), asarray=False, meta=meta)


def planned(gate: Path) -> da.Array:
    a = source(gate)
    y = dasktile.optimize((a - a.mean(axis=0)).T @ a, workers=3)
    assert len({key for key in y.dask if HELD not in str(key) and NAME in str(key)}) > 24
    return y


async def until(true: Callable[[], Any]) -> None:
    # before the time-out of the test, so that a failure says what was waited for
    deadline = time.monotonic() + 0.8 * LIMIT
    while not true():
        assert time.monotonic() < deadline, "took too long"
        await asyncio.sleep(0.01)


def plugin_of(s: Scheduler) -> TileSchedulerPlugin:
    plugin = s.plugins[NAME]
    assert isinstance(plugin, TileSchedulerPlugin)
    return plugin


async def under_way(c: Client, s: Scheduler, gate: Path) -> Any:
    """Start a computation; returns its future when every worker reads and has held root tasks."""
    future = c.compute(planned(gate))
    await until_held(s)
    return future


async def until_held(s: Scheduler) -> None:
    plugin = plugin_of(s)

    def full() -> bool:
        return all(ws.processing for ws in s.running) and bool(s.running)

    try:
        await until(
            lambda: len(plugin.roots.ready) == 3 and full() and not plugin.roots.release_requested
        )
    except AssertionError as error:
        ready = {home: len(held) for home, held in plugin.roots.ready.items()}
        works = {ws.address: (ws.status, list(ws.processing)) for ws in s.workers.values()}
        states = Counter(ts.state for ts in s.tasks.values())
        raise AssertionError(
            f"{error}: ready {ready}, held {Counter(plugin.roots.homes.values())}, workers {works},"
            f" homes {plugin.homes.workers}, {states},"
            f" errors {plugin.errors}"
        ) from error
    assert restricted_to(s, HELD)


def restricted_to(s: Scheduler, address: str) -> list[Any]:
    return [ts for ts in s.tasks.values() if address in (ts.worker_restrictions or ())]


async def check(future: Any, expected: np.ndarray = EXPECTED) -> None:
    np.testing.assert_allclose(await asyncio.wait_for(future, LIMIT), expected)


async def finish(s: Scheduler, futures: Any) -> None:
    """Let tasks that wait for the event ``go`` run, and check that nothing is left."""
    await Event("go").set()
    await wait(futures, timeout=LIMIT)
    await nothing_stuck(s)


async def nothing_stuck(s: Scheduler, errors: bool = False) -> None:
    """Wait until no task is waiting, and check that no root task is held."""
    await until(lambda: all(ts.state in ("memory", "released") for ts in s.tasks.values()))
    assert not s.unrunnable
    assert not restricted_to(s, HELD)
    plugin = s.plugins.get(NAME)
    if plugin is not None:
        assert isinstance(plugin, TileSchedulerPlugin)
        assert not plugin.roots.holding
        await until(lambda: not plugin.roots.any_ready)
        assert bool(plugin.errors) == errors
