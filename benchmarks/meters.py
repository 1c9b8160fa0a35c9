"""Clusters whose workers count what they do."""

from __future__ import annotations

import ctypes
import gc
import logging
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
from distributed import Client, LocalCluster, Worker, WorkerPlugin, wait
from distributed.client import futures_of

from benchmarks.network import Link, intercept
from benchmarks.sized import Sized, crossed, opened

#: Seconds between two looks at a worker's memory.
_SAMPLE = 0.01

#: Bytes that one task is worth, as in dasktile's settings.
TASK_BYTES = 0.8e6

#: Seconds after which a computation is given up.
TIMEOUT = 120


@dataclass(slots=True)
class Reading:
    """What one worker did.

    Parameters
    ----------
    moved
        Bytes that it received from other workers.
    sent
        Bytes that it sent to other workers.
    tasks
        Tasks that it ran.
    thread_seconds, task_seconds
        What tasks took: processor time of their thread, and time by the clock.
    cpu_seconds
        Processor time of the whole process.
    memory
        Bytes of its resident memory at its largest, over what it was at the start.
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
    read: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """What one computation took, of all workers together.

    Parameters
    ----------
    seconds
        Until the results were in the workers' memory, planning included.
    planning
        The part of them that planning took.
    moved, moved_largest, sent_largest
        Bytes that workers received from each other; the worker that received most; and what the
        worker sent that sent most.
    tasks
        Tasks that workers ran.
    cost
        Bytes moved and 0.8 MB per task.
    balance, task_balance
        Processor seconds in tasks of the worker that had most, over their mean; the same of
        seconds by the clock, which workers that share processors make longer.
    cpu_seconds
        Processor time of the workers.
    memory
        Peak of the largest worker, over what it had at the start.
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
    memory: int
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
            memory=max(reading.memory for reading in readings),
            read=total("read"),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Meter(WorkerPlugin):
    """Counts what a worker does, and limits its link, between `start` and `stop`.

    Parameters
    ----------
    rate
        Bytes per second that the worker can send, and receive; None for no limit.
    """

    name = "dasktile-benchmark-meter"

    def __init__(self, rate: float | None = None) -> None:
        self.rate = rate

    def setup(self, worker: Worker) -> None:
        self.worker = worker
        self.process = psutil.Process()
        self.reading = Reading()
        self.active = False
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
        if sys.platform == "linux":
            # Memory that was freed but not given back would count as used.
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        self.reading = Reading()
        self.rss = self.process.memory_info().rss
        self.before = self._processor_seconds()
        self.before_threads = self._thread_seconds()
        self.link.sent = 0
        self.active = True
        self.sampling.set()

    def stop(self) -> Reading:
        self.active = False
        self.sampling.clear()
        self.reading.sent = self.link.sent
        self.reading.cpu_seconds = self._processor_seconds() - self.before
        self.reading.thread_seconds = self._thread_seconds() - self.before_threads
        return self.reading

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        if finish != "memory" or not self.active:
            return
        task = self.worker.state.tasks[key]
        if start == "flight":
            self.reading.moved += task.get_nbytes()
        elif start in ("executing", "long-running"):
            self.reading.tasks += 1
            for one in task.startstops:
                if one["action"] == "compute":
                    self.reading.task_seconds += one["stop"] - one["start"]

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
        # every kind of store is read through this
        from zarr.storage import StorePath

        get = StorePath.get

        async def counted(path: Any, *arguments: Any, **options: Any) -> Any:
            found = await get(path, *arguments, **options)
            if found is not None and self.active:
                self.reading.read += len(found)
            return found

        StorePath.get = counted  # type: ignore[method-assign]


def _meter(worker: Worker) -> Meter:
    meter = worker.plugins[Meter.name]
    assert isinstance(meter, Meter)
    return meter


# The same function for all workers; sending it once is quicker than a method of each.
def _start(dask_worker: Worker) -> None:
    _meter(dask_worker).start()


def _stop(dask_worker: Worker) -> dict[str, Any]:
    return asdict(_meter(dask_worker).stop())


class Cluster:
    """A local cluster of one-threaded processes with meters.

    Parameters
    ----------
    workers
        How many.
    rate
        Bytes per second of every worker's link; None for no limit.
    """

    def __init__(self, workers: int, rate: float | None = None) -> None:
        self.workers, self.rate = workers, rate

    def __enter__(self) -> Cluster:
        self._folder = tempfile.TemporaryDirectory(prefix="dasktile-benchmark-")
        self._config = dask.config.set({"distributed.worker.memory.terminate": False})
        self._cluster = LocalCluster(
            n_workers=self.workers,
            threads_per_worker=1,
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
        """Count from now on."""
        self.client.run(_start)

    def stop(self) -> list[Reading]:
        """What every worker did since :meth:`start`."""
        found = self.client.run(_stop)
        known = {field.name for field in fields(Reading)}
        return [
            Reading(**{name: found[address][name] for name in known}) for address in self.addresses
        ]

    def persist(self, arrays: Sequence[Any]) -> list[Any]:
        """Compute arrays into the workers' memory and wait for them."""
        with self.client.as_current():
            kept = self.client.persist(list(arrays))
            _finished(kept)
        return kept

    def settle(self) -> None:
        """Wait until the workers hold nothing that nobody refers to."""
        gc.collect()
        wanted = set(self.client.futures)
        scheduler = self._cluster.scheduler
        for _ in range(200):
            # what was computed and is kept for another computation is "released"
            held = [task.key for task in [*scheduler.tasks.values()] if task.state != "released"]
            if wanted.issuperset(held):
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
            What to compute.
        plan
            Changes them first; that it takes time counts.

        Returns
        -------
        What that took, and the arrays in memory.
        """
        self.settle()
        self.start()
        started = time.perf_counter()
        try:
            with self.client.as_current():
                planned = list(arrays if plan is None else plan(arrays))
                planning = time.perf_counter() - started
                kept = self.client.persist(planned)
                _finished(kept)
            seconds = time.perf_counter() - started
        finally:
            readings = self.stop()
        return Measured.of(readings, seconds, planning), kept

    def values(self, kept: Sequence[Any]) -> list[dict[str, Any]]:
        """Fingerprints of arrays that are in memory."""
        found = []
        with self.client.as_current():
            for array in kept:
                found.append(fingerprint(self.client.compute(array).result(TIMEOUT)))
        return found


#: What inputs are: files; in memory in the files' chunks, wherever Dask put them; in memory in
#: chunks along the other axes; in memory as the engine wants them, if it can say so.
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
        Where.
    workload
        What.
    mode
        One of `MODES`.
    folder
        Where its inputs were written.
    xp
        The array module.
    plan
        Changes collections before they are computed, within the time measured.
    predict
        Says something about the expression, which is added to the result.
    values
        Add the fingerprints of the results.

    Returns
    -------
    A dict of numbers, ready for JSON.
    """
    # Dask rechunks in another way where there is a client
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
            name: xp.from_zarr(str(folder / name), chunks=crossed(one.shape, one.chunks))
            for name, one in workload.inputs.items()
        }
    if mode == "placed" and plan is not None:
        # the inputs as the plan of the whole expression wants them
        lazy = [*inputs.values(), *workload.build(inputs, xp)]
        inputs = dict(zip(inputs, plan(lazy)[: len(inputs)], strict=True))
    if mode != "free":
        inputs = dict(zip(inputs, cluster.persist(list(inputs.values())), strict=True))
    arrays = workload.build(inputs, xp)
    # first: afterwards workers have copies of what they received
    predicted = predict(arrays) if predict else {}
    measured, kept = cluster.measure(arrays, plan)
    found = {**measured.to_dict(), **predicted}
    if values:
        found["values"] = cluster.values(kept)
    return found


def _finished(kept: Sequence[Any]) -> None:
    futures = futures_of(kept)
    wait(futures, timeout=TIMEOUT)
    for future in futures:
        if future.status == "error":
            future.result()


def _warm(folder: str) -> None:
    """Import what workers will need, which would be counted with the first expression."""
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

#: A small array is compared as a whole, of a large one so many elements and sums.
_SAMPLED, _SUMS = 10_000, 64


def fingerprint(array: Any) -> dict[str, Any]:
    """What two arrays can be compared by, in kilobytes, and kept as JSON.

    Elements, all or a sample at positions that depend on the size only, the sums of equal
    stretches, and the sums of the absolute values of those.
    """
    array = np.asarray(array)
    flat = array.reshape(-1)
    if np.iscomplexobj(flat):
        flat = flat.view(flat.real.dtype)
    places = np.arange(flat.size)
    if flat.size > _SAMPLED:
        places = np.random.default_rng(flat.size).integers(flat.size, size=_SAMPLED)
    stretches = np.array_split(flat, min(_SUMS, max(1, flat.size)))
    return {
        "shape": list(array.shape),
        "elements": flat[places].astype(float).tolist(),
        "largest": float(np.abs(flat).max(initial=0)),
        "sums": [float(one.sum()) for one in stretches],
        "sizes": [float(np.abs(one).sum()) for one in stretches],
    }


def same(one: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> bool:
    """Whether the values of two lists of arrays agree, up to rounding."""
    if len(one) != len(other):
        return False
    for left, right in zip(one, other, strict=True):
        if left["shape"] != right["shape"]:
            return False
        small = 1e-8 * max(left["largest"], 1e-300)
        if not np.allclose(
            left["elements"], right["elements"], rtol=1e-6, atol=small, equal_nan=True
        ):
            return False
        error = np.abs(np.subtract(left["sums"], right["sums"]))
        if not (error <= 1e-8 * np.asarray(left["sizes"])).all():
            return False
    return True
