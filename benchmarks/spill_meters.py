"""Workers that have too little memory, count what they spill, and can have a slow disk."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any

import dask
import dask.array as da
import numpy as np
import zict
from distributed import Client, LocalCluster, Worker, WorkerPlugin, wait
from distributed.spill import SpillBuffer
from distributed.utils import nbytes

import dasktile
from benchmarks import spill_device
from benchmarks.spill_workloads import Run, Spilled, input_of
from benchmarks.traces import graph_comes, recorded, start_recording
from dasktile.runtime.tiers import Disk
from dasktile.runtime.worker.store import TileStore
from dasktile.testing.emulated import EmulatedArray

#: Part of a worker's memory that its results may take.
TARGET = 0.6

#: Seconds between two ticks of a worker's event loop, and how late one may be.
_TICK, _LATE = 0.005, 0.02

#: Seconds after which a computation is given up.
TIMEOUT = 300

#: What an event loop waits for: methods of the mapping, those that only one has included.
_METHODS = (
    "__getitem__", "__setitem__", "__delitem__", "evict",
    "request", "release", "urge", "expect", "look", "settle",
)  # fmt: skip


@dataclass(slots=True)
class Reading:
    """What one worker did.

    Parameters
    ----------
    read, written
        Bytes read back from disk, and written to it.
    reads, writes
        How many values that were.
    late
        Seconds by which ticks of the event loop came later than 20 ms after their time.
    in_data
        Seconds that the event loop spent in the mapping of the worker's results.
    held
        Bytes of results in memory, at most.
    live
        Bytes of results in memory and on disk, at most.
    on_disk
        Bytes read from disk and written to it, where that is not `read` and `written`.
    """

    read: int = 0
    written: int = 0
    reads: int = 0
    writes: int = 0
    late: float = 0.0
    in_data: float = 0.0
    held: int = 0
    live: int = 0
    on_disk: int = 0


class Meter(WorkerPlugin):
    """Counts what a worker spills, and how long its event loop waits for that.

    Parameters
    ----------
    rate
        Bytes per second of the worker's disk; None for that of the machine.
    trace
        Whether to record what the store is asked for.
    """

    name = "dasktile-benchmark-spill-meter"

    def __init__(self, rate: float | None = None, trace: bool = False) -> None:
        self.rate = rate
        self.trace = trace

    def setup(self, worker: Worker) -> None:
        self.worker = worker
        self.reading = Reading()
        self.inside = False
        self.thread = threading.get_ident()
        _instrument()
        _METERS[id(worker.data)] = self
        self.disk = _DISKS[id(_disk_of(worker.data))] = _Disk(self.rate)
        if self.trace and isinstance(worker.data, TileStore):
            start_recording(worker.data)
        self._ticking = asyncio.ensure_future(self._tick())

    def teardown(self, worker: Worker) -> None:
        self._ticking.cancel()
        _METERS.pop(id(worker.data), None)
        _DISKS.pop(id(_disk_of(worker.data)), None)

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        if finish == "memory":
            live = self.worker.state.nbytes
            spilled = getattr(self.worker.data, "spilled_total", None)
            held = live - (spilled.memory if spilled else 0)
            self.reading.live = max(self.reading.live, live)
            self.reading.held = max(self.reading.held, held)

    def stop(self) -> Reading:
        self._ticking.cancel()
        metrics = getattr(self.worker.data, "cumulative_metrics", {})
        for name, label in (("read", "disk-read"), ("written", "disk-write")):
            setattr(self.reading, name, int(metrics.get((label, "bytes"), 0)))
        self.reading.reads = int(metrics.get(("disk-read", "count"), 0))
        self.reading.writes = int(metrics.get(("disk-write", "count"), 0))
        self.reading.on_disk = self.disk.bytes
        return self.reading

    async def _tick(self) -> None:
        while True:
            due = time.perf_counter() + _TICK
            await asyncio.sleep(_TICK)
            self.reading.late += max(0.0, time.perf_counter() - due - _LATE)


@dataclass(slots=True)
class _Disk:
    """What a worker does on its disk."""

    rate: float | None
    bytes: int = 0
    #: A disk does one thing at a time.
    lock: threading.Lock = field(default_factory=threading.Lock)


# Methods of classes are replaced once in a process; these say of which objects they are counted.
_METERS: dict[int, Meter] = {}
_DISKS: dict[int, _Disk] = {}


def _disk_of(data: Any) -> Any:
    if isinstance(data, SpillBuffer):
        return data._slow_uncached.d
    if hasattr(data, "disk_func"):
        # of dask-cuda
        return data.disk_func.d
    return next((tier for tier in getattr(data, "_tiers", ()) if isinstance(tier, Disk)), None)


@functools.cache
def _instrument() -> None:
    mappings: list[Any] = [SpillBuffer, TileStore]
    if spill_device.has_dask_cuda():
        mappings.append(import_module("dask_cuda.device_host_file").DeviceHostFile)
    for mapping in mappings:
        for name in _METHODS:
            if hasattr(mapping, name):
                setattr(mapping, name, _timed(getattr(mapping, name)))
    for disk, write, read in (
        (zict.File, "__setitem__", "__getitem__"),
        (Disk, "store", "load"),
    ):
        setattr(disk, write, _slow(getattr(disk, write), _bytes_written))
        setattr(disk, read, _slow(getattr(disk, read), _bytes_read))


def _timed(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def timed(self: Any, *arguments: Any, **options: Any) -> Any:
        meter = _METERS.get(id(self))
        if meter is None or meter.inside or threading.get_ident() != meter.thread:
            return method(self, *arguments, **options)
        meter.inside = True
        start = time.perf_counter()
        try:
            return method(self, *arguments, **options)
        finally:
            meter.reading.in_data += time.perf_counter() - start
            meter.inside = False

    return timed


def _slow(method: Callable[..., Any], size: Callable[..., int]) -> Callable[..., Any]:
    @functools.wraps(method)
    def slow(self: Any, *arguments: Any) -> Any:
        found = method(self, *arguments)
        disk = _DISKS.get(id(self))
        if disk is not None:
            with disk.lock:
                disk.bytes += size(found, *arguments)
                if disk.rate is not None:
                    time.sleep(size(found, *arguments) / disk.rate)
        return found

    return slow


def _bytes_written(found: Any, *arguments: Any) -> int:
    if found is not None:
        return int(found.size)
    value = arguments[-1]
    return sum(map(nbytes, value)) if isinstance(value, (list, tuple)) else nbytes(value)


def _bytes_read(found: Any, what: Any) -> int:
    # a key's bytes, or what a tier says of a value
    return int(getattr(what, "size", 0)) or nbytes(found)


def _meter(worker: Worker) -> Meter:
    meter = worker.plugins[Meter.name]
    assert isinstance(meter, Meter)
    return meter


def _stop(dask_worker: Worker) -> dict[str, Any]:
    return asdict(_meter(dask_worker).stop())


def _trace(dask_worker: Worker) -> Any:
    return recorded(dask_worker.data) if isinstance(dask_worker.data, TileStore) else None


def _comes(dask_worker: Worker) -> None:
    if isinstance(dask_worker.data, TileStore):
        graph_comes(dask_worker.data)


def install(client: Client, setting: Setting) -> None:
    """Have workers keep their results as dasktile does."""
    if setting.device:
        dasktile.enable(client, device="emulated")
    else:
        dasktile.enable(client)


@dataclass(frozen=True, slots=True)
class Setting:
    """What workers are like.

    Parameters
    ----------
    budget
        Bytes of results that each may have in memory; None for any.
    processes
        Whether they have processes of their own.
    rate
        Bytes per second of their disks; None for that of the machine.
    limit
        Bytes of each, with all thresholds of distributed; None to have results count alone.
    device
        Whether the budget is that of a device, which is emulated.
    host
        Bytes of results that each may have in the host's memory below a device; None for any.
    threads
        Of each.
    """

    budget: int | None
    processes: bool = False
    rate: float | None = None
    limit: int | None = None
    device: bool = False
    host: int | None = None
    threads: int = 2


@contextlib.contextmanager
def cluster(
    engine: str, workers: int, setting: Setting, trace: bool = False
) -> Iterator[tuple[Client, int]]:
    """A cluster of workers, and a client.

    Parameters
    ----------
    engine
        ``stock``, ``dasktile`` or ``planned``, which is the same with an order of
        :func:`dasktile.plan`; with a device, ``dask-cuda`` or ``dasktile``.
    workers
        How many.
    setting
        What they are like.
    trace
        Whether to record what they read.
    """
    memory: dict[str, Any] = {"spill-compression": False}
    limit = setting.limit
    on_host = setting.host if setting.device else setting.budget
    if limit is None:
        memory |= {"target": TARGET, "spill": False, "pause": False, "terminate": False}
        limit = 0 if on_host is None else round(on_host / TARGET)
    data = None
    if setting.device:
        data = spill_device.data_of(engine, setting.budget, limit or None, on_host)
    config = {f"distributed.worker.memory.{name}": value for name, value in memory.items()}
    with (
        dask.config.set(config),
        tempfile.TemporaryDirectory(prefix="dasktile-benchmark-") as folder,
        LocalCluster(
            n_workers=workers,
            threads_per_worker=setting.threads,
            processes=setting.processes,
            dashboard_address=":0",
            silence_logs=logging.ERROR,
            local_directory=folder,
            memory_limit=limit,
            data=data,
        ) as started,
        Client(started) as client,
    ):
        if engine in ("dasktile", "planned"):
            install(client, setting)
        client.register_plugin(Meter(setting.rate, trace))
        yield client


def run_once(
    engine: str,
    workload: Spilled,
    mode: str,
    setting: Setting,
    scale: float = 1.0,
    trace: bool = False,
) -> tuple[dict[str, Any], list[np.ndarray[Any, Any]], list[Any]]:
    """Run a workload once, on a cluster of its own.

    Parameters
    ----------
    engine, setting, trace
        As for :func:`cluster`.
    workload, mode, scale
        What to run.

    Returns
    -------
    Numbers of all workers together, of which bytes held and seconds are those of the worker that
    has most; the results; and a trace of each worker.
    """
    gc.collect()
    kept: list[Any] = []
    device = spill_device.new_device() if setting.device else None
    make, put = (spill_device.input_on_device, device.asarray) if device else (input_of, np.asarray)
    with cluster(engine, workload.workers, setting, trace) as client:

        def comes() -> None:
            if trace:
                client.run(_comes)

        def planned(*arrays: Any) -> Any:
            if engine != "planned":
                return arrays
            budget = workload.workers * (setting.budget or 0)
            found = dasktile.plan(*arrays, memory_limit=budget, workers=1).apply()
            return found if len(arrays) > 1 else (found,)

        def keep(*arrays: Any) -> list[Any]:
            comes()
            found = client.persist(list(planned(*arrays)))
            wait(found, timeout=TIMEOUT)
            kept.extend(found)
            return found

        def source(name: str, shape: tuple[int, ...], chunks: tuple[int, ...]) -> Any:
            made = make(name, shape, chunks)
            return keep(made)[0] if mode == "persisted" else made

        def compute(array: Any) -> Any:
            comes()
            return client.compute(*planned(array)).result(TIMEOUT)

        started = time.perf_counter()
        results = workload.run(Run(source, keep, compute, scale, put))
        seconds = time.perf_counter() - started
        readings = [Reading(**found) for found in client.run(_stop).values()]
        traces = [one for one in client.run(_trace).values() if one] if trace else []
        found = {**total(readings), "seconds": seconds}
        if device is not None:
            # those of all workers; values for comparison are copied afterwards
            found |= {**device.counts(), "held": device.peak}
            found["moved"] = found["read"] + found["written"]
        values = [_value(one) for one in results]
        # nothing is spilled any more while workers close
        kept.clear()
    return found, values, traces


def _value(result: Any) -> np.ndarray[Any, Any]:
    """A small array to compare results by, on the host."""
    if isinstance(result, da.Array):
        result = result.sum(axis=0).compute()
    return np.asarray(result.get() if isinstance(result, EmulatedArray) else result)


def total(readings: Sequence[Reading]) -> dict[str, Any]:
    """Sums of bytes moved over workers, and the most that one held or waited."""
    largest = ("held", "live", "late", "in_data")
    found = {
        name: (max if name in largest else sum)(getattr(one, name) for one in readings)
        for name in Reading.__slots__
    }
    return {**found, "moved": found["read"] + found["written"]}
