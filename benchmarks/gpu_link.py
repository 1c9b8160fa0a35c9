"""Bytes a second between a GPU and the host: those of the link, and of dasktile's tier."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import cupy
import numpy as np
from dask_cuda.device_host_file import device_to_host, host_to_device

from dasktile.runtime.tiers.cuda import CupyHost

#: Bytes that are copied in each direction in one measurement.
TOTAL = 1 << 30

#: Page-locked memory of the tier: it holds what is stored at once.
LOCKED = 4 * TOTAL


def link(rounds: int = 5) -> dict[str, float]:
    """Bytes a second of CUDA's own copies of `TOTAL` bytes of page-locked memory."""
    here, there = (cupy.cuda.alloc_pinned_memory(TOTAL) for _ in range(2))
    first, second = (cupy.zeros(TOTAL, np.uint8) for _ in range(2))
    up, down = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    pageable = np.ones(TOTAL, np.uint8)

    def copy(upwards: bool, downwards: bool) -> None:
        if upwards:
            first.data.copy_from_host_async(here.ptr, TOTAL, up)
        if downwards:
            second.data.copy_to_host_async(there.ptr, TOTAL, down)
        up.synchronize()
        down.synchronize()

    def from_pageable() -> None:
        first.data.copy_from_host_async(pageable.ctypes.data, TOTAL, up)
        up.synchronize()

    def to_pageable() -> None:
        second.data.copy_to_host_async(pageable.ctypes.data, TOTAL, down)
        down.synchronize()

    return {
        "up": TOTAL / seconds_of(lambda: copy(True, False), rounds),
        "down": TOTAL / seconds_of(lambda: copy(False, True), rounds),
        "both": 2 * TOTAL / seconds_of(lambda: copy(True, True), rounds),
        "pageable up": TOTAL / seconds_of(from_pageable, rounds),
        "pageable down": TOTAL / seconds_of(to_pageable, rounds),
    }


def tier(size: int, rounds: int = 5) -> dict[str, float]:
    """Bytes a second of dasktile's tier, with tiles of `size` bytes.

    Returns
    -------
    ``first down``, with page-locked memory allocated meanwhile; ``up``, ``down`` and ``both`` with
    that memory; the same ``beside`` products of matrices; and ``compute``, seconds of these
    products beside copies over their seconds alone.
    """
    host = CupyHost(LOCKED)
    count = max(1, TOTAL // size)
    tiles = [cupy.full(size // 8, number, "f8") for number in range(count)]
    others = [cupy.full(size // 8, -number, "f8") for number in range(count)]
    cupy.cuda.Device().synchronize()
    start = time.perf_counter()
    stored = [host.store(tile) for tile in tiles]
    made = {"first down": TOTAL / (time.perf_counter() - start)}

    def up() -> None:
        for held in stored:
            host.load(held)

    def down() -> None:
        for held in [host.store(tile) for tile in others]:
            host.free(held)

    def both() -> None:
        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(up), pool.submit(down)]:
                done.result()

    for held, tile in zip(stored, tiles, strict=True):
        assert bool((host.load(held) == tile).all())
    directions: Sequence[tuple[str, Callable[[], None], int]] = (
        ("up", up, TOTAL), ("down", down, TOTAL), ("both", both, 2 * TOTAL),
    )  # fmt: skip
    for name, copy, total in directions:
        copy()
        made[name] = total / seconds_of(copy, rounds)
    with Computing() as computing:
        for name, copy, total in directions:
            made[f"{name} beside"] = total / seconds_of(copy, rounds)
    made["compute"] = computing.slowdown
    host.close()
    return made


def theirs(size: int, rounds: int = 5) -> dict[str, float]:
    """Bytes a second of dask-cuda's functions that copy a value to the host and back."""
    count = max(1, TOTAL // size)
    tiles = [cupy.full(size // 8, number, "f8") for number in range(count)]
    stored = [device_to_host(tile) for tile in tiles]
    return {
        "down": TOTAL / seconds_of(lambda: [device_to_host(tile) for tile in tiles], rounds),
        "up": TOTAL / seconds_of(lambda: [host_to_device(held) for held in stored], rounds),
    }


class Computing:
    """Products of matrices in a thread of their own, while copies are measured.

    Attributes
    ----------
    slowdown
        Seconds of a product beside copies over those alone, known at the end.
    """

    def __init__(self, side: int = 8192) -> None:
        self._matrix = cupy.full((side, side), 0.5, "f4")
        self._stop = threading.Event()
        self._seconds: list[float] = []
        self.slowdown = 0.0

    def __enter__(self) -> Computing:
        self._multiply()
        self._alone = min(self._multiply() for _ in range(5))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self.slowdown = median(self._seconds) / self._alone

    def _run(self) -> None:
        while not self._stop.is_set():
            self._seconds.append(self._multiply())

    def _multiply(self) -> float:
        """Seconds of some products on the device."""
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        for _ in range(10):
            self._matrix @ self._matrix
        end.record()
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, end)) / 1e3


def seconds_of(work: Callable[[], Any], rounds: int) -> float:
    """Median of the seconds of some rounds."""
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        cupy.cuda.Stream.null.synchronize()
        taken.append(time.perf_counter() - start)
    return median(taken)
