"""Clusters with a memory budget and a disk rate, whose workers count the bytes they spill."""

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
from benchmarks.traces import record_graph, recorded, start_recording
from dasktile.runtime.tiers import Disk
from dasktile.runtime.worker.store import TileStore

#: Fraction of a worker's memory that its results may take.
TARGET = 0.6

#: Seconds between two ticks of a worker's event loop, and the delay that is not counted.
_TICK, _LATE = 0.005, 0.02

#: Seconds after which a computation is cancelled.
TIMEOUT = 300

#: Methods of the mappings of results that block the event loop.  Not all mappings have all.
_METHODS = (
    "__getitem__", "__setitem__", "__delitem__", "evict",
    "request", "release", "urge", "expect", "look", "settle",
)  # fmt: skip


@dataclass(slots=True)
class Reading:
    """Counters of one worker.

    Parameters
    ----------
    read, written
        Bytes read back from disk, and written to it.
    reads, writes
        Number of values read back and written.
    late
        Seconds by which ticks of the event loop were more than 20 ms late, in total.
    in_data
        Seconds that the event loop spent in the mapping of the worker's results.
    held
        Peak of the bytes of results in memory.
    live
        Peak of the bytes of results in memory and on disk.
    on_disk
        Bytes read from disk and written to it; with a device these are not `read` and `written`.
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
    """A worker plugin that counts spilled bytes and the time that spilling blocks the event loop.

    Parameters
    ----------
    rate
        Bytes per second of the worker's disk; None for the rate of the machine.
    trace
        Whether to record the requests to the store.
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
    """Rate and traffic of a worker's disk."""

    rate: float | None
    bytes: int = 0
    #: Held during a transfer: a disk has one transfer at a time.
    lock: threading.Lock = field(default_factory=threading.Lock)


# Methods of classes are replaced once in a process.  They look up the meter or disk here, by the
# id of the object that they are called on.
_METERS: dict[int, Meter] = {}
_DISKS: dict[int, _Disk] = {}


def _disk_of(data: Any) -> Any:
    if isinstance(data, SpillBuffer):
        return data._slow_uncached.d
    if hasattr(data, "disk_func"):
        # the mapping of dask-cuda
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
        result = method(self, *arguments)
        disk = _DISKS.get(id(self))
        if disk is not None:
            with disk.lock:
                disk.bytes += size(result, *arguments)
                if disk.rate is not None:
                    time.sleep(size(result, *arguments) / disk.rate)
        return result

    return slow


def _bytes_written(result: Any, *arguments: Any) -> int:
    if result is not None:
        return int(result.size)
    value = arguments[-1]
    return sum(map(nbytes, value)) if isinstance(value, (list, tuple)) else nbytes(value)


def _bytes_read(result: Any, argument: Any) -> int:
    # the argument is a key, or a tier's record of a value, which has its size
    return int(getattr(argument, "size", 0)) or nbytes(result)


def _meter(worker: Worker) -> Meter:
    meter = worker.plugins[Meter.name]
    assert isinstance(meter, Meter)
    return meter


def _stop(dask_worker: Worker) -> dict[str, Any]:
    return asdict(_meter(dask_worker).stop())


def _trace(dask_worker: Worker) -> Any:
    return recorded(dask_worker.data) if isinstance(dask_worker.data, TileStore) else None


def _record_graph(dask_worker: Worker) -> None:
    if isinstance(dask_worker.data, TileStore):
        record_graph(dask_worker.data)


def install(client: Client, setting: Setting) -> None:
    """Make workers keep their results in dasktile's store."""
    if setting.device is not None:
        dasktile.enable(client, device=setting.device)
    else:
        dasktile.enable(client)


@dataclass(frozen=True, slots=True)
class Setting:
    """The configuration of workers.

    Parameters
    ----------
    budget
        Bytes of results in memory of each worker; None for unlimited memory.
    processes
        Whether each worker has a process of its own.
    rate
        Bytes per second of each worker's disk; None for the rate of the machine.
    limit
        Memory limit of each worker in bytes, with all thresholds of distributed; None if only
        results count.
    device
        Kind of the device that has the budget; None for the memory of the host.
    host
        Bytes of results in the host's memory of each worker with a device; None for unlimited
        memory.
    threads
        Threads of each worker.
    """

    budget: int | None
    processes: bool = False
    rate: float | None = None
    limit: int | None = None
    device: str | None = None
    host: int | None = None
    threads: int = 2


@contextlib.contextmanager
def cluster(
    engine: str, workers: int, setting: Setting, trace: bool = False, device: Any = None
) -> Iterator[tuple[Client, int]]:
    """A cluster of workers, and a client.

    Parameters
    ----------
    engine
        ``stock``, ``dasktile`` or ``planned``, which is ``dasktile`` with an order of
        :func:`dasktile.plan`; with a device, ``dask-cuda``, ``dasktile`` or ``dict``, which never
        spills.
    workers
        Number of workers.
    setting
        Their configuration.
    trace
        Whether to record the requests to the workers' stores.
    device
        The device of the setting, if that has one.
    """
    memory: dict[str, Any] = {"spill-compression": False}
    limit = setting.limit
    on_host = setting.host if setting.device else setting.budget
    if limit is None:
        memory |= {"target": TARGET, "spill": False, "pause": False, "terminate": False}
        limit = 0 if on_host is None else round(on_host / TARGET)
    data = None
    if device is not None:
        data = spill_device.data_of(engine, device, setting.budget, limit or None, on_host)
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
        The workload, its mode and its scale.

    Returns
    -------
    The measurements; the results; and a trace of each worker.  The measurements are sums over
    workers, except for bytes held and seconds, which are maxima over workers.  With plans,
    ``expected`` are the bytes that these move in both directions.
    """
    gc.collect()
    kept: list[Any] = []
    expected = 0
    device = None if setting.device is None else spill_device.new_device(setting.device)
    make, put = (spill_device.input_on_device, device.asarray) if device else (input_of, np.asarray)
    with cluster(engine, workload.workers, setting, trace, device) as client:

        def before_graph() -> None:
            if trace:
                client.run(_record_graph)

        def planned(*arrays: Any) -> Any:
            if engine != "planned":
                return arrays
            nonlocal expected
            budget = workload.workers * (setting.budget or 0)
            plan = dasktile.plan(*arrays, memory_limit=budget, workers=1)
            expected += plan.swap_in_bytes + plan.swap_out_bytes
            applied = plan.apply()
            return applied if len(arrays) > 1 else (applied,)

        def keep(*arrays: Any) -> list[Any]:
            before_graph()
            persisted = client.persist(list(planned(*arrays)))
            wait(persisted, timeout=TIMEOUT)
            kept.extend(persisted)
            return persisted

        def source(name: str, shape: tuple[int, ...], chunks: tuple[int, ...]) -> Any:
            array = make(name, shape, chunks)
            return keep(array)[0] if mode == "persisted" else array

        def compute(array: Any) -> Any:
            before_graph()
            return client.compute(*planned(array)).result(TIMEOUT)

        started = time.perf_counter()
        results = workload.run(Run(source, keep, compute, scale, put))
        seconds = time.perf_counter() - started
        readings = [Reading(**counters) for counters in client.run(_stop).values()]
        traces = (
            [recording for recording in client.run(_trace).values() if recording] if trace else []
        )
        measurements = {**total(readings), "seconds": seconds}
        if engine == "planned":
            measurements["expected"] = expected
        if device is not None:
            # the counts of all workers, before the results are copied for comparison
            measurements |= {**device.counts(), "held": device.peak}
            measurements["moved"] = measurements["read"] + measurements["written"]
        values = [_value(result) for result in results]
        # released here, so that nothing is spilled while workers close
        kept.clear()
    return measurements, values, traces


def _value(result: Any) -> np.ndarray[Any, Any]:
    """A small array on the host, by which results are compared."""
    if isinstance(result, da.Array):
        result = result.sum(axis=0).compute()
    return np.asarray(result.get() if hasattr(result, "get") else result)


def total(readings: Sequence[Reading]) -> dict[str, Any]:
    """Sums over workers; for bytes held and for seconds, maxima over workers."""
    maxima = ("held", "live", "late", "in_data")
    totals = {
        name: (max if name in maxima else sum)(getattr(reading, name) for reading in readings)
        for name in Reading.__slots__
    }
    return {**totals, "moved": totals["read"] + totals["written"]}
