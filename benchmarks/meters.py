"""Local clusters whose workers count bytes moved, tasks, processor time and memory."""

from __future__ import annotations

import ctypes
import gc
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
from distributed import Client, LocalCluster, Worker, WorkerPlugin, wait
from distributed.client import futures_of

from benchmarks.buffers import Buffers
from benchmarks.network import Link, intercept
from benchmarks.sized import Sized, crossed, opened

#: Seconds between two samples of a worker's memory.
_SAMPLE = 0.01

#: Bytes: the price of one task, the default of ``dasktile.cost.task-bytes``.
TASK_BYTES = 0.8e6

#: Seconds after which a computation is cancelled.
TIMEOUT = 120


@dataclass(slots=True)
class Reading:
    """Counters of one worker.

    Parameters
    ----------
    moved
        Bytes received from other workers.
    sent
        Bytes sent to other workers.
    tasks
        Number of tasks run.
    thread_seconds, task_seconds
        Processor seconds of the thread in tasks, and wall-clock seconds in tasks.
    cpu_seconds
        Processor seconds of the whole process.
    memory
        Peak of resident memory in bytes, above its value at the start.
    buffers
        Peak of the bytes of new results, each buffer once.
    read
        Bytes that Zarr read from storage.
    """

    moved: int = 0
    sent: int = 0
    tasks: int = 0
    thread_seconds: float = 0.0
    task_seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory: int = 0
    buffers: int = 0
    read: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one computation, over all workers.

    Parameters
    ----------
    seconds
        Wall-clock seconds until the results were in the workers' memory, planning included.
    planning
        Seconds of these spent on planning.
    moved, moved_largest, sent_largest
        Bytes that workers received from each other in total; the most that one worker received;
        the most that one worker sent.
    tasks
        Number of tasks run.
    cost
        Bytes moved, plus 0.8 MB per task.
    balance, task_balance
        Largest over mean of the workers' processor seconds in tasks; the same of wall-clock
        seconds, which grow where workers share processors.
    cpu_seconds, thread_seconds
        Processor seconds of all workers, and those of their threads in tasks.
    memory
        Largest peak of resident memory of a worker in bytes, above its value at the start.
    buffers
        Largest peak of the bytes of a worker's new results, each buffer once.
    read
        Bytes that Zarr read from storage.
    """

    seconds: float
    planning: float
    moved: int
    moved_largest: int
    sent_largest: int
    tasks: int
    cost: float
    balance: float
    task_balance: float
    cpu_seconds: float
    thread_seconds: float
    memory: int
    buffers: int
    read: int

    @classmethod
    def of(cls, readings: Sequence[Reading], seconds: float, planning: float) -> Measured:
        def total(name: str) -> Any:
            return sum(getattr(reading, name) for reading in readings)

        def balance(name: str) -> float:
            mean = total(name) / len(readings)
            return max(getattr(reading, name) for reading in readings) / mean if mean else 1.0

        return cls(
            seconds=seconds,
            planning=planning,
            moved=total("moved"),
            moved_largest=max(reading.moved for reading in readings),
            sent_largest=max(reading.sent for reading in readings),
            tasks=total("tasks"),
            cost=total("moved") + TASK_BYTES * total("tasks"),
            balance=balance("thread_seconds"),
            task_balance=balance("task_seconds"),
            cpu_seconds=total("cpu_seconds"),
            thread_seconds=total("thread_seconds"),
            memory=max(reading.memory for reading in readings),
            buffers=max(reading.buffers for reading in readings),
            read=total("read"),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Run:
    """A computation.

    Parameters
    ----------
    readings
        The counters of the workers.
    seconds, planning
        Wall-clock seconds, and those of planning among them.
    processor, planning_processor
        Processor seconds of this process, and those of planning among them.
    kept
        The collections in memory.
    """

    readings: list[Reading]
    seconds: float
    planning: float
    processor: float
    planning_processor: float
    kept: list[Any]


class Meter(WorkerPlugin):
    """A worker plugin that counts, and limits the worker's link, between `start` and `stop`.

    Parameters
    ----------
    rate
        Bytes per second of the worker's link in each direction; None for no limit.
    """

    name = "dasktile-benchmark-meter"

    def __init__(self, rate: float | None = None) -> None:
        self.rate = rate

    def setup(self, worker: Worker) -> None:
        self.worker = worker
        self.process = psutil.Process()
        self.reading = Reading()
        self.active = False
        self.buffers = Buffers()
        self.sampling = threading.Event()
        self.closed = False
        self.before = 0.0
        self.link = Link(self.rate)
        intercept(worker, self.link, lambda: self.active, self._shuffled)
        self._count_reads()
        threading.Thread(target=self._sample, daemon=True).start()

    def teardown(self, worker: Worker) -> None:
        self.closed = True
        self.sampling.set()

    def start(self) -> None:
        gc.collect()
        with suppress(OSError, AttributeError):
            # Freed memory that the allocator still holds would count as used; only glibc has this.
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        self.reading = Reading()
        self.buffers = Buffers()
        self.rss = self.process.memory_info().rss
        self.before = self._processor_seconds()
        self.before_threads = self._thread_seconds()
        self.link.sent = 0
        self.active = True
        self.sampling.set()

    def stop(self) -> Reading:
        self.active = False
        self.sampling.clear()
        self.reading.buffers = self.buffers.peak
        self.reading.sent = self.link.sent
        self.reading.cpu_seconds = self._processor_seconds() - self.before
        self.reading.thread_seconds = self._thread_seconds() - self.before_threads
        return self.reading

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        if not self.active:
            return
        if start == "memory":
            self.buffers.remove(key)
        if finish != "memory":
            return
        if key in self.worker.data:
            self.buffers.add(key, self.worker.data[key])
        task = self.worker.state.tasks[key]
        if start == "flight":
            self.reading.moved += task.get_nbytes()
        elif start in ("executing", "long-running"):
            self.reading.tasks += 1
            for interval in task.startstops:
                if interval["action"] == "compute":
                    self.reading.task_seconds += interval["stop"] - interval["start"]

    def _shuffled(self, sender: str, nbytes: int) -> None:
        if self.active and sender != self.worker.address:
            self.reading.moved += nbytes

    def _processor_seconds(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system

    def _thread_seconds(self) -> float:
        return sum(
            value
            for name, value in self.worker.digests_total.items()
            if isinstance(name, tuple) and name[0] == "execute" and "thread-cpu" in name
        )

    def _sample(self) -> None:
        while self.sampling.wait() and not self.closed:
            rss = self.process.memory_info().rss
            self.reading.memory = max(self.reading.memory, rss - self.rss)
            time.sleep(_SAMPLE)

    def _count_reads(self) -> None:
        # reads of all kinds of stores go through this method
        from zarr.storage import StorePath

        get = StorePath.get

        async def counted(path: Any, *arguments: Any, **options: Any) -> Any:
            buffer = await get(path, *arguments, **options)
            if buffer is not None and self.active:
                self.reading.read += len(buffer)
            return buffer

        StorePath.get = counted  # type: ignore[method-assign]


class Held:
    """The largest number of bytes of results on any worker, sampled on the scheduler.

    Parameters
    ----------
    scheduler
        A scheduler in this process.
    """

    def __init__(self, scheduler: Any) -> None:
        self.scheduler, self.largest, self.active = scheduler, 0, True
        self.thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Held:
        self.thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.active = False
        self.thread.join()

    def _sample(self) -> None:
        while self.active:
            held = [worker.nbytes for worker in [*self.scheduler.workers.values()]]
            self.largest = max(self.largest, *held)
            time.sleep(_SAMPLE)


def _meter(worker: Worker) -> Meter:
    meter = worker.plugins[Meter.name]
    assert isinstance(meter, Meter)
    return meter


# Functions of the module, the same for all workers: `Client.run` sends them once.
def _start(dask_worker: Worker) -> None:
    _meter(dask_worker).start()


def _stop(dask_worker: Worker) -> dict[str, Any]:
    return asdict(_meter(dask_worker).stop())


class Cluster:
    """A local cluster of worker processes with a `Meter` each.

    Parameters
    ----------
    workers
        Number of workers.
    rate
        Bytes per second of every worker's link; None for no limit.
    threads
        Threads of every worker.
    """

    def __init__(self, workers: int, rate: float | None = None, threads: int = 1) -> None:
        self.workers, self.rate, self.threads = workers, rate, threads

    def __enter__(self) -> Cluster:
        self._folder = tempfile.TemporaryDirectory(prefix="dasktile-benchmark-")
        self._config = dask.config.set({"distributed.worker.memory.terminate": False})
        self._cluster = LocalCluster(
            n_workers=self.workers,
            threads_per_worker=self.threads,
            processes=True,
            dashboard_address=":0",
            silence_logs=logging.ERROR,
            local_directory=self._folder.name,
        )
        self.client = Client(self._cluster, set_as_default=False)
        self.client.register_plugin(Meter(self.rate))
        self.client.run(_warm, self._folder.name)
        self.addresses = sorted(self.client.scheduler_info(n_workers=-1)["workers"])
        return self

    def __exit__(self, *exception: object) -> None:
        self.client.close()
        self._cluster.close()
        self._config.__exit__(None, None, None)
        self._folder.cleanup()

    def start(self) -> None:
        """Reset the counters and start counting."""
        self.client.run(_start)

    def stop(self) -> list[Reading]:
        """Stop counting; returns the counters of every worker since :meth:`start`."""
        counters = self.client.run(_stop)
        names = {field.name for field in fields(Reading)}
        return [
            Reading(**{name: counters[address][name] for name in names})
            for address in self.addresses
        ]

    def persist(self, arrays: Sequence[Any]) -> list[Any]:
        """Compute arrays into the workers' memory and wait for them."""
        with self.client.as_current():
            kept = self.client.persist(list(arrays))
            _wait_for(kept)
        return kept

    def settle(self) -> None:
        """Wait until every task without a reference has been released."""
        gc.collect()
        referenced = set(self.client.futures)
        scheduler = self._cluster.scheduler
        for _ in range(200):
            # a task whose result was forgotten, but that others still depend on, is "released"
            held = [task.key for task in [*scheduler.tasks.values()] if task.state != "released"]
            if referenced.issuperset(held):
                return
            time.sleep(0.01)

    def measure(
        self,
        arrays: Sequence[Any],
        plan: Callable[[Sequence[Any]], Sequence[Any]] | None = None,
    ) -> tuple[Measured, list[Any]]:
        """Compute arrays into the workers' memory.

        Parameters
        ----------
        arrays
            The arrays to compute.
        plan
            Function applied to the arrays first; its time is measured, too.

        Returns
        -------
        The measurements, and the arrays in memory.
        """
        self.settle()
        self.start()
        run = self._run(arrays, plan)
        return Measured.of(run.readings, run.seconds, run.planning), run.kept

    def _run(
        self, arrays: Sequence[Any], plan: Callable[[Sequence[Any]], Sequence[Any]] | None
    ) -> _Run:
        """Compute arrays after :meth:`start`, and stop counting."""
        started, processor = time.perf_counter(), time.process_time()
        try:
            with self.client.as_current():
                planned = list(arrays if plan is None else plan(arrays))
                planning = time.perf_counter() - started
                planning_processor = time.process_time() - processor
                kept = self.client.persist(planned)
                _wait_for(kept)
            seconds = time.perf_counter() - started
            processor = time.process_time() - processor
        finally:
            readings = self.stop()
        return _Run(readings, seconds, planning, processor, planning_processor, kept)

    def account(
        self,
        arrays: Sequence[Any],
        plan: Callable[[Sequence[Any]], Sequence[Any]] | None = None,
    ) -> tuple[dict[str, Any], list[Any]]:
        """Compute as :meth:`measure` does, and measure this process, too.

        Returns
        -------
        Numbers by name, and the collections in memory.  ``cpu_seconds`` are those of all workers
        and of this process, where the scheduler and the client run; ``scheduler_seconds`` are its
        share, and ``task_seconds`` that of the workers' threads in tasks.  ``held`` is the peak of
        the bytes of results on one worker, as Dask counts them, and ``buffers`` counts each buffer
        once.
        """
        self.settle()
        self.start()
        with Held(self._cluster.scheduler) as held:
            run = self._run(arrays, plan)
        measured = Measured.of(run.readings, run.seconds, run.planning)
        numbers = {
            "cpu_seconds": measured.cpu_seconds + run.processor,
            "scheduler_seconds": run.processor,
            "task_seconds": measured.thread_seconds,
            "seconds": measured.seconds,
            "planning": measured.planning,
            "planning_cpu": run.planning_processor,
            "tasks": measured.tasks,
            "moved": measured.moved,
            "held": held.largest,
            "buffers": measured.buffers,
            "memory": measured.memory,
            "read": measured.read,
        }
        return numbers, run.kept

    def values(self, kept: Sequence[Any]) -> list[dict[str, Any]]:
        """Fingerprints of arrays that are in memory."""
        fingerprints = []
        with self.client.as_current():
            for array in kept:
                fingerprints.append(fingerprint(self.client.compute(array).result(TIMEOUT)))
        return fingerprints


#: Where inputs are at the start: in files; in memory in the files' chunks, placed by Dask's
#: scheduler; in memory in chunks along the other axes; in memory in the tiles of the engine's plan,
#: if it has one.
MODES = ("free", "persisted", "crossed", "placed")


def run_cell(
    cluster: Cluster,
    workload: Sized,
    mode: str,
    folder: Path,
    xp: Any,
    *,
    plan: Callable[[Sequence[Any]], Sequence[Any]] | None = None,
    predict: Callable[[Sequence[Any]], dict[str, Any]] | None = None,
    values: bool = False,
) -> dict[str, Any]:
    """Run a workload once.

    Parameters
    ----------
    cluster
        The cluster to run on.
    workload
        The workload to run.
    mode
        One of `MODES`.
    folder
        The folder of its input files.
    xp
        The array module.
    plan
        Function applied to the collections before they are computed, within the time measured.
    predict
        Function of the expression, whose result is added to the returned dict.
    values
        Whether to add the fingerprints of the results.

    Returns
    -------
    A dict of numbers, ready for JSON.
    """
    # the default method of rechunking depends on whether there is a client
    with cluster.client.as_current():
        return _run_cell(cluster, workload, mode, folder, xp, plan, predict, values)


def _run_cell(
    cluster: Cluster,
    workload: Sized,
    mode: str,
    folder: Path,
    xp: Any,
    plan: Callable[[Sequence[Any]], Sequence[Any]] | None,
    predict: Callable[[Sequence[Any]], dict[str, Any]] | None,
    values: bool,
) -> dict[str, Any]:
    inputs = opened(workload, folder, xp)
    if mode == "crossed":
        inputs = {
            name: xp.from_zarr(str(folder / name), chunks=crossed(source.shape, source.chunks))
            for name, source in workload.inputs.items()
        }
    if mode == "placed" and plan is not None:
        # the inputs in the tiles of the plan for the whole expression
        lazy = [*inputs.values(), *workload.build(inputs, xp)]
        inputs = dict(zip(inputs, plan(lazy)[: len(inputs)], strict=True))
    if mode != "free":
        inputs = dict(zip(inputs, cluster.persist(list(inputs.values())), strict=True))
    arrays = workload.build(inputs, xp)
    # before the computation: afterwards workers have replicas of what they received
    predicted = predict(arrays) if predict else {}
    measured, kept = cluster.measure(arrays, plan)
    cell = {**measured.to_dict(), **predicted}
    if values:
        cell["values"] = cluster.values(kept)
    return cell


def _wait_for(kept: Sequence[Any]) -> None:
    futures = futures_of(kept)
    wait(futures, timeout=TIMEOUT)
    for future in futures:
        if future.status == "error":
            future.result()


def _warm(folder: str) -> None:
    """Import the modules that tasks use, so that the first measurement does not include it."""
    import dask.array as da
    import zarr

    path = Path(tempfile.mkdtemp(dir=folder)) / "warm"
    file = zarr.create_array(
        str(path), shape=(64, 64), chunks=(32, 32), dtype="f8", compressors=None
    )
    file[...] = np.ones((64, 64))
    x = da.from_zarr(str(path))
    da.fft.fft((x @ x).rechunk((64, 32)), axis=0).compute(scheduler="sync")
    da.einsum("ij,kj->ik", x, x).compute(scheduler="sync")


# Values -----------------------------------------------------------------------------

#: Number of elements in a fingerprint (all of them in a smaller array), and number of sums.
_SAMPLED, _SUMS = 10_000, 64


def fingerprint(array: Any) -> dict[str, Any]:
    """A summary of an array, of some kilobytes of JSON, by which arrays are compared.

    It has elements (all, or a sample at positions that depend on the size only), the sums of
    segments of equal length, and the sums of the absolute values of these segments.
    """
    array = np.asarray(array)
    flat = array.reshape(-1)
    if np.iscomplexobj(flat):
        flat = flat.view(flat.real.dtype)
    positions = np.arange(flat.size)
    if flat.size > _SAMPLED:
        positions = np.random.default_rng(flat.size).integers(flat.size, size=_SAMPLED)
    segments = np.array_split(flat, min(_SUMS, max(1, flat.size)))
    return {
        "shape": list(array.shape),
        "elements": flat[positions].astype(float).tolist(),
        "largest": float(np.abs(flat).max(initial=0)),
        "sums": [float(segment.sum()) for segment in segments],
        "sizes": [float(np.abs(segment).sum()) for segment in segments],
    }


def same(first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]) -> bool:
    """Whether the values of two lists of arrays agree, up to rounding."""
    if len(first) != len(second):
        return False
    for left, right in zip(first, second, strict=True):
        if left["shape"] != right["shape"]:
            return False
        tolerance = 1e-8 * max(left["largest"], 1e-300)
        if not np.allclose(
            left["elements"], right["elements"], rtol=1e-6, atol=tolerance, equal_nan=True
        ):
            return False
        error = np.abs(np.subtract(left["sums"], right["sums"]))
        if not (error <= 1e-8 * np.asarray(left["sizes"])).all():
            return False
    return True
