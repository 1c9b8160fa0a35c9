"""A demo: array expressions of stored arrays on a local cluster, with and without dasktile.

Bytes and tasks are counted, and memory is sampled, in the workers themselves.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import psutil
from distributed import Client, LocalCluster, Worker, WorkerPlugin, wait
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import dasktile
from dasktile.report.formatting import format_bytes

try:
    import zarr
except ImportError:
    _HAVE_ZARR = False  # the demo then writes .npy files
else:
    _HAVE_ZARR = True

#: Seconds between two measurements of a worker's memory.
_SAMPLE = 0.01


@dataclass(frozen=True, slots=True)
class Stored:
    """An array in a file: its shape and the chunks that it is stored in."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """An expression of stored arrays.

    Parameters
    ----------
    name
        The expression, in words.
    stored
        The arrays that it reads, by name.
    expression
        Function of these arrays, passed by name, that returns the result.
    """

    name: str
    stored: Mapping[str, Stored]
    expression: Callable[..., da.Array]


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one computation.

    Parameters
    ----------
    moved
        Bytes that workers received from each other.
    tasks
        Tasks that workers ran.
    memory
        Peak memory of a worker in bytes, above that at the start; the largest of all workers.
    seconds
        Time until the result was in the workers' memory, planning included.
    """

    moved: int
    tasks: int
    memory: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Result:
    """Measurements of a workload without and with dasktile; `same` is whether values agree."""

    name: str
    stock: Measured
    tiled: Measured
    same: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def workloads(size: float = 1.0) -> list[Workload]:
    """The expressions; `size` scales the length of every axis."""

    def n(length: int, multiple: int = 8) -> int:
        return max(1, round(length * size / multiple)) * multiple

    side, rows, columns = n(2400), n(160_000), n(256)
    days, cells, targets = n(3200), n(6000), n(1200)
    sequence = n(1024)
    squares = Stored((side, side), (side // 4, side // 4))
    by_rows = Stored((side, side), (side // 8, side))
    words = Stored((4, 8, sequence, 64), (4, 8, sequence // 8, 64))

    def attention(q: da.Array, k: da.Array, v: da.Array) -> da.Array:
        scores = da.exp(da.einsum("bhqd,bhkd->bhqk", q, k) / 8)
        weights = scores / scores.sum(axis=-1, keepdims=True)
        return da.einsum("bhqk,bhkd->bhqd", weights, v)

    return [
        Workload(
            "A @ B, both stored by rows",
            {"a": by_rows, "b": by_rows},
            lambda a, b: a @ b,
        ),
        Workload(
            "X.T @ X, a tall X stored by columns",
            {"x": Stored((rows, columns), (rows, columns // 8))},
            lambda x: x.T @ x,
        ),
        Workload(
            "(A @ B) + (C @ (D @ E)), stored in squares",
            dict.fromkeys("abcde", squares),
            lambda a, b, c, d, e: (a @ b) + (c @ (d @ e)),
        ),
        Workload(
            "anomalies of a field, then regridded by a dense matrix",
            {
                "field": Stored((days, cells), (days // 16, cells)),
                "weights": Stored((cells, targets), (cells // 4, targets // 4)),
            },
            lambda field, weights: (field - field.mean(axis=0)) @ weights,
        ),
        Workload(
            "attention with einsum, stored by sequence",
            dict.fromkeys("qkv", words),
            attention,
        ),
    ]


def run(workers: int = 4, size: float = 1.0) -> list[Result]:
    """Run every workload twice on a new local cluster.

    Parameters
    ----------
    workers
        Worker processes, of one thread each.
    size
        Scales the length of every axis.
    """
    every = workloads(size)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
    with _temporary_directory() as folder, bar:
        step = bar.add_task("starting workers", total=1 + 3 * len(every))
        with _cluster(workers, folder) as client:
            bar.advance(step)
            results = []
            for number, workload in enumerate(every):
                bar.update(step, description=f"{workload.name}: writing files")
                place = Path(folder) / str(number)
                place.mkdir()
                arrays = {
                    name: _store(stored, place / name, seed)
                    for seed, (name, stored) in enumerate(workload.stored.items())
                }
                bar.advance(step)
                bar.update(step, description=f"{workload.name}: dask")
                expression = workload.expression(**arrays)
                stock, expected = _measure(client, lambda: expression)  # noqa: B023
                bar.advance(step)
                bar.update(step, description=f"{workload.name}: dasktile")
                dasktile.enable(client)
                tiled, values = _measure(
                    client,
                    lambda: dasktile.optimize(expression, workers=client),  # noqa: B023
                )
                dasktile.disable(client)
                bar.advance(step)
                same = bool(np.allclose(expected, values, rtol=1e-6, atol=1e-8))
                results.append(Result(workload.name, stock, tiled, same))
            bar.update(step, description="done")
    return results


def report(results: list[Result]) -> None:
    """Print a table of the measurements."""
    table = Table(title="measured in the workers", title_justify="left")
    table.add_column("expression")
    for title in ("moved", "tasks", "peak memory", "seconds"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("values")
    for result in results:
        table.add_row(result.name, style="bold")
        for name, measured in (("dask", result.stock), ("dasktile", result.tiled)):
            last = measured is result.tiled
            table.add_row(
                f"  {name}",
                format_bytes(measured.moved),
                str(measured.tasks),
                format_bytes(measured.memory),
                f"{measured.seconds:.1f}",
                ("equal" if result.same else "DIFFERENT") if last else "",
                end_section=last,
            )
    Console().print(table)
    print("moved: bytes that workers received from each other, in all")
    print("peak memory: of the worker with the highest, above its memory at the start")


# Files ------------------------------------------------------------------------------


def _store(stored: Stored, path: Path, seed: int) -> da.Array:
    """Write random numbers to a file and open it as a dask array."""
    values = np.random.default_rng(seed).random(stored.shape) - 0.5
    if _HAVE_ZARR:
        file = zarr.create_array(
            str(path), shape=stored.shape, chunks=stored.chunks, dtype="f8", compressors=None
        )
        file[...] = values
    else:
        np.save(path.with_suffix(".npy"), values)
    return _open(path, stored.chunks)


def _open(path: Path, chunks: tuple[int, ...]) -> da.Array:
    if _HAVE_ZARR:
        return da.from_zarr(str(path))
    return da.from_array(np.load(path.with_suffix(".npy"), mmap_mode="r"), chunks=chunks)


# The cluster and its meters ---------------------------------------------------------


class Meter(WorkerPlugin):
    """Worker plugin that counts received bytes and tasks, and samples memory."""

    name = "dasktile-demo-meter"

    def setup(self, worker: Worker) -> None:
        self.worker = worker
        self.process = psutil.Process()
        self.stopped = threading.Event()
        self.reset()
        threading.Thread(target=self._sample, daemon=True).start()

    def teardown(self, worker: Worker) -> None:
        self.stopped.set()

    def reset(self) -> None:
        _free_memory()
        self.moved = self.tasks = 0
        self.start = self.peak = self.process.memory_info().rss

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        if finish == "memory" and start == "flight":
            self.moved += self.worker.state.tasks[key].get_nbytes()
        elif finish == "memory" and start == "executing":
            self.tasks += 1

    def _sample(self) -> None:
        while not self.stopped.wait(_SAMPLE):
            self.peak = max(self.peak, self.process.memory_info().rss)


def _free_memory() -> None:
    """Return memory to the system: what was freed but is still held would count as used."""
    gc.collect()
    with suppress(OSError, AttributeError):
        # only glibc has this
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _temporary_directory() -> tempfile.TemporaryDirectory[str]:
    # on Windows files that are still mapped cannot be removed
    return tempfile.TemporaryDirectory(prefix="dasktile-demo-", ignore_cleanup_errors=True)


def _reset(dask_worker: Worker) -> None:
    meter = dask_worker.plugins[Meter.name]
    assert isinstance(meter, Meter)
    meter.reset()


def _read(dask_worker: Worker) -> tuple[int, int, int]:
    meter = dask_worker.plugins[Meter.name]
    assert isinstance(meter, Meter)
    return meter.moved, meter.tasks, meter.peak - meter.start


@contextmanager
def _cluster(workers: int, folder: str) -> Iterator[Client]:
    with (
        dask.config.set({"distributed.worker.memory.terminate": False}),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            silence_logs=logging.ERROR,
            local_directory=folder,
        ) as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(Meter())
        warm = Path(folder) / "warm"
        _store(Stored((64, 64), (32, 32)), warm, 0)
        client.run(_warm, warm)
        yield client


def _warm(path: Path) -> None:
    """Import modules that tasks need, so that the first expression is not charged for them."""
    x = _open(path, (32, 32))
    da.einsum("ij,kj->ik", x @ x, x).compute(scheduler="sync")


def _measure(client: Client, make: Callable[[], da.Array]) -> tuple[Measured, Any]:
    """Compute an array; return the measurements and the values."""
    client.run(_reset)
    start = time.perf_counter()
    result = make().persist()
    wait(result)
    seconds = time.perf_counter() - start
    counts = list(client.run(_read).values())
    values = result.compute()
    measured = Measured(
        moved=sum(moved for moved, _, _ in counts),
        tasks=sum(tasks for _, tasks, _ in counts),
        memory=max(memory for _, _, memory in counts),
        seconds=seconds,
    )
    return measured, values
