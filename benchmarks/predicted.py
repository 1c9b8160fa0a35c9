"""Bytes that workers receive from each other, beside the predicted ones, whatever the way in.

    python -m benchmarks.predicted [--workers 4 6 8] [--names NAME ...] [--ways WAY ...]
        [--modes free persisted crossed placed] [--out benchmarks/results/predicted.json]

Every expression runs on single-threaded workers of this process that send each other bytes over
sockets.  Seconds mean nothing here, and sizes are small, because bytes do not depend on the
machine.  Values are compared with those of Dask.

Expressions: those of `benchmarks.sized`, those of `benchmarks.corpus`, those of `EXPRESSIONS`, and
those of `IN_MEMORY`.
Modes, of `benchmarks.sized` only: as in `benchmarks.placement`.  Ways: see `WAYS`.

Bytes *predicted* are the `bytes_predicted` of ``explain``, *booked* those of ``metrics``, and
*Dask* those that plain Dask moves for the same expression; it rechunks by tasks here, as bytes of
its P2P shuffles are not counted.  Bytes with which ``compute`` joins its result on one worker are
left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import math
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import xarray as xr
from distributed import Client, LocalCluster, WorkerPlugin, wait
from rich.console import Console
from rich.table import Table

import dasktile
from benchmarks import corpus
from benchmarks.corpus.values import agree, flattened
from benchmarks.meters import MODES
from benchmarks.placement import BEYOND_DASK
from benchmarks.sized import Sized, crossed, opened, sized, write
from dasktile.report.formatting import format_bytes
from dasktile.runtime.scheduler.plugin import TileSchedulerPlugin

#: Relative error of a prediction up to which it counts as right, and bytes up to which it always
#: does: small results, counts beside sums, headers.
NEAR, SMALL = 0.05, 100_000

#: Sizes of the expressions of `benchmarks.sized` and `benchmarks.corpus`.
SIZE, CORPUS_SIZE = 0.2, 0.1

Collections = Sequence[Any]

# Expressions ------------------------------------------------------------------------


def _random(shape: tuple[int, ...], chunks: tuple[int, ...]) -> da.Array:
    return da.random.default_rng(len(shape) + sum(shape)).random(shape, chunks=chunks)


def _tensordot() -> Collections:
    x, y = _random((40, 30, 60, 50), (10, 15, 30, 25)), _random((60, 50, 70), (30, 25, 35))
    return [da.tensordot(x, y, axes=((2, 3), (0, 1)))]


def _pairwise() -> Collections:
    x, y = _random((1200, 20), (150, 20)), _random((900, 20), (150, 20))
    return [((x[:, None, :] - y[None, :, :]) ** 2).sum(axis=2)]


def _einsum() -> Collections:
    return [
        da.einsum("rqs,sp->rqp", _random((60, 70, 80), (15, 35, 40)), _random((80, 90), (40, 45)))
    ]


def _daily(days: int = 730) -> xr.DataArray:
    times = pd.date_range("2001-01-01", periods=days, freq="D")
    data = _random((days, 40, 60), (73, 40, 60))
    return xr.DataArray(data, dims=("time", "lat", "lon"), coords={"time": times})


def _anomalies_by(key: str) -> Collections:
    grouped = _daily().groupby(f"time.{key}")
    return [grouped - grouped.mean("time")]


def _monthly() -> Collections:
    return [_daily().resample(time="MS").mean()]


def _attention() -> Collections:
    tokens, width = 512, 256
    x = _random((4, tokens, width), (2, 128, 256))
    q, k, v, out = (_random((width, width + number), (128, 256)) for number in range(4))
    q, k, v, out = (weights[:, :width] for weights in (q, k, v, out))
    scores = da.einsum("bqd,bkd->bqk", x @ q, x @ k) / np.sqrt(width)
    weights = da.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return [x + da.einsum("bqk,bkd->bqd", weights, x @ v) @ out]


def _chain() -> Collections:
    a, b = _random((1200, 400), (150, 400)), _random((1200, 1200), (300, 300))
    return [a.T @ b @ a]


def _nmf() -> Collections:
    v, w, h = (
        _random((2000, 600), (250, 300)),
        _random((2000, 16), (250, 16)),
        _random((16, 600), (16, 300)),
    )
    for _ in range(2):
        h = h * (w.T @ v) / (w.T @ w @ h + 1e-9)
        w = w * (v @ h.T) / (w @ (h @ h.T) + 1e-9)
    return [w, h]


def _square(side: int = 600, chunk: int = 150) -> da.Array:
    return _random((side, side), (chunk, chunk)) + side * da.eye(side, chunks=chunk)


def _solve() -> Collections:
    return [da.linalg.solve(_square(), _random((600, 300), (150, 150)))]


def _inverse() -> Collections:
    return [da.linalg.inv(_square())]


def _svd() -> Collections:
    u, s, v = da.linalg.svd(_random((8000, 40), (500, 40)))
    return [abs(u), s, abs(v)]


def _product_rows() -> Collections:
    x = _random((4000, 300), (100, 300))
    return [(x @ x.T)[:400].sum(axis=0)]


def _product_block() -> Collections:
    x = _random((4000, 300), (100, 300))
    return [(x @ x.T)[800:1200, 2000:]]


def _square_rows() -> Collections:
    x = _random((1600, 1600), (200, 200))
    return [(x @ x)[600:800].sum()]


def _anomalies_of_a_year() -> Collections:
    days = _random((1460, 60, 90), (73, 30, 45))
    return [(days - days.mean(axis=0))[365:730].std(axis=0)]


def _months_of_files() -> Collections:
    files = [_random((30, 60, 90), (30, 60, 90)) * number for number in range(24)]
    joined = da.concatenate(files)
    return [(joined[300:360] - joined.mean(axis=0)).max(axis=(1, 2))]


def _smoothed_part() -> Collections:
    x = _random((2000, 400), (100, 400))
    smoothed = x.map_overlap(np.sort, depth={0: 2, 1: 0}, boundary="none")
    return [smoothed[900:1300]]


#: Single expressions, each on arrays of random numbers in blocks that cannot be cut otherwise.
EXPRESSIONS: dict[str, Callable[[], Collections]] = {
    "tensordot": _tensordot,
    "pairwise": _pairwise,
    "einsum": _einsum,
    "anomalies_by_day": partial(_anomalies_by, "dayofyear"),
    "anomalies_by_month": partial(_anomalies_by, "month"),
    "monthly": _monthly,
    "attention_residual": _attention,
    "atba": _chain,
    "nmf": _nmf,
    "solve": _solve,
    "inverse": _inverse,
    "svd": _svd,
    "product_rows": _product_rows,
    "product_block": _product_block,
    "square_rows": _square_rows,
    "anomalies_of_a_year": _anomalies_of_a_year,
    "months_of_files": _months_of_files,
    "smoothed_part": _smoothed_part,
}


#: Functions of one persisted array, whose blocks are on the workers where Dask computed them.
IN_MEMORY: dict[str, Callable[[da.Array], da.Array]] = {
    "differences": lambda x: da.diff(x, axis=0),
    "slices": lambda x: x[1:, 1:] - x[:-1, :-1],
    "gradient": lambda x: da.gradient(x, axis=0),
    "windows": lambda x: da.lib.stride_tricks.sliding_window_view(x, 5, axis=0).mean(axis=2),
    "padded": lambda x: da.pad(x, ((2, 2), (0, 0)), mode="edge") * 2,
    "rolled": lambda x: da.roll(x, 3, axis=0) + x,
    "stacked": lambda x: da.stack([x, x * 2]).max(axis=0),
    "running_sum": lambda x: da.nancumsum(x, axis=0),
    "anomalies": lambda x: (x - x.mean(axis=0)) / x.std(axis=0),
    "with_transposed": lambda x: x.T + x,
    "reversed": lambda x: x[::-1] + x,
    "twice": lambda x: da.concatenate([x, x + 1]).sum(axis=0),
    "lower_triangle": da.tril,
}


def _in_memory(
    function: Callable[[da.Array], da.Array], persist: Callable[[Any], Any], _: Any
) -> Collections:
    [x] = persist([_random((2000, 2000), (250, 500))])
    return [function(x)]


@dataclass(frozen=True)
class Case:
    """An expression.

    Parameters
    ----------
    name
        Its name, with its mode.
    build
        Builds the collections, given a function that computes inputs into the workers' memory and
        one that plans inputs together with the results.
    """

    name: str
    build: Callable[[Callable[[Any], Any], Callable[..., Any]], Collections]


def cases(folder: Path, modes: Sequence[str] = MODES, size: float = SIZE) -> list[Case]:
    """All expressions; the inputs of some are written to a folder when these are built."""
    found = [
        Case(f"{name} {mode}", partial(_workload, workload, mode, folder / name))
        for name, workload in sized(size).items()
        for mode in modes
        if (name, mode) not in BEYOND_DASK
    ]
    found += [
        Case(name, lambda *_, entry=entry: entry.function(CORPUS_SIZE))
        for name, entry in corpus.WORKLOADS.items()
    ]
    found += [Case(name, lambda *_, build=build: build()) for name, build in EXPRESSIONS.items()]
    return found + [
        Case(f"in_memory.{name}", partial(_in_memory, function))
        for name, function in IN_MEMORY.items()
    ]


def _workload(
    workload: Sized,
    mode: str,
    folder: Path,
    persist: Callable[[Any], Any],
    plan: Callable[..., Any],
) -> Collections:
    if not folder.exists():
        write(workload, folder)
    inputs = opened(workload, folder, da)
    if mode == "crossed":
        inputs = {
            name: da.from_zarr(str(folder / name), chunks=crossed(source.shape, source.chunks))
            for name, source in workload.inputs.items()
        }
    if mode == "placed":
        planned = plan(*inputs.values(), *workload.build(inputs, da))
        inputs = dict(zip(inputs, planned, strict=False))
    if mode != "free":
        inputs = dict(zip(inputs, persist(list(inputs.values())), strict=True))
    return workload.build(inputs, da)


# Ways -------------------------------------------------------------------------------


def _datasets(collections: Collections) -> list[Any]:
    """Collections as datasets of one variable each."""
    return [
        each if isinstance(each, xr.Dataset)
        else xr.Dataset({"values": each if isinstance(each, xr.DataArray)
                         else ([f"d{axis}" for axis in range(each.ndim)], each)})
        for each in collections
    ]  # fmt: skip


def _arrays(collections: Collections) -> list[da.Array]:
    return [
        array
        for each in collections
        for array in (
            [each[name].data for name in sorted(map(str, each))]
            if isinstance(each, xr.Dataset)
            else [getattr(each, "data", each) if isinstance(each, xr.DataArray) else each]
        )
    ]


def _persist(planned: Collections, folder: Path) -> list[Any]:
    kept = list(dask.persist(*planned))
    wait(kept)
    return kept


def _compute(planned: Collections, folder: Path) -> list[Any]:
    return list(dask.compute(*planned))


class _File:
    """An array in a file, which every worker writes to."""

    def __init__(self, path: Path, array: da.Array) -> None:
        self.path, self.dtype, self.shape = str(path), array.dtype, array.shape
        self.map("w+").flush()

    def __setitem__(self, index: Any, value: np.ndarray) -> None:
        self.map("r+")[index] = value

    def map(self, mode: Any) -> np.ndarray:
        return np.memmap(self.path, self.dtype, mode, shape=self.shape)


def _files(arrays: Sequence[da.Array], folder: Path) -> list[_File]:
    return [_File(folder / str(number), array) for number, array in enumerate(arrays)]


def _store(planned: Collections, folder: Path) -> list[Any]:
    arrays = _arrays(planned)
    files = _files(arrays, folder)
    da.store(arrays, files, lock=False)
    return [np.array(file.map("r")) for file in files]


def _to_be_stored(collections: Collections, folder: Path) -> list[Any]:
    """What Dask computes when it stores collections, which the hook plans as a whole."""
    arrays = _arrays(collections)
    return [da.store(arrays, _files(arrays, folder), lock=False, compute=False)]


def _zarr(planned: Collections, folder: Path) -> list[Any]:
    arrays = _arrays(planned)
    stores = [str(folder / str(number)) for number in range(len(arrays))]
    dask.compute(
        *(array.to_zarr(store, compute=False) for array, store in zip(arrays, stores, strict=True))
    )
    return [da.from_zarr(store) for store in stores]


def _in_client(planned: Collections, folder: Path) -> list[Any]:
    return list(dasktile.compute(*planned))


def _slabs(collections: Collections) -> list[da.Array]:
    """Arrays in blocks along their first axis, which `to_npy_stack` makes otherwise."""
    return [
        array.rechunk(dict.fromkeys(range(1, array.ndim), -1))
        for array in _arrays(collections)
        if array.ndim
    ]


def _npy(planned: Collections, folder: Path) -> list[Any]:
    for number, array in enumerate(planned):
        da.to_npy_stack(str(folder / str(number)), array)
    return [da.from_npy_stack(str(folder / str(number))) for number in range(len(planned))]


@dataclass(frozen=True)
class Way:
    """How collections are planned and computed.

    Parameters
    ----------
    end
        Computes planned collections, with a folder for files.
    keep_chunks
        Whether results keep their chunks.
    hook
        Whether Dask's setting plans them instead of ``optimize``.
    before
        Applied to the collections first.
    rechunk
        Applied before that, and for plain Dask, too.
    explained
        What is planned, given the collections and a folder: that is what ``explain`` is asked.
    """

    end: Callable[[Collections, Path], list[Any]]
    keep_chunks: bool = False
    hook: bool = False
    before: Callable[[Collections], Collections] = list
    rechunk: Callable[[Collections], Collections] = list
    explained: Callable[[Collections, Path], Collections] = lambda collections, folder: collections


WAYS: dict[str, Way] = {
    "persist": Way(_persist),
    "compute": Way(_compute),
    "dasktile.compute": Way(_in_client),
    "keep_chunks": Way(_persist, keep_chunks=True),
    "hook": Way(_compute, hook=True, keep_chunks=True),
    "hook, persist": Way(_persist, hook=True, keep_chunks=True),
    "store": Way(_store),
    "hook, store": Way(_store, hook=True, keep_chunks=True, explained=_to_be_stored),
    "to_zarr": Way(_zarr, keep_chunks=True),
    "to_npy_stack": Way(_npy, keep_chunks=True, rechunk=_slabs),
    "datasets": Way(_persist, before=_datasets),
    "dask.optimize": Way(_persist, before=lambda collections: dask.optimize(*collections)),
}


# Measurements -----------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """Counts of one expression on one way; bytes are those that workers receive.

    Parameters
    ----------
    workers, name, way
        What was run.
    predicted, simulated
        Bytes by ``explain``: those predicted, and *as it runs*; None if there is no simulation.
    booked
        Bytes predicted by ``metrics``.
    received, stock
        Bytes received with the plan, and with plain Dask.
    tasks_predicted, tasks
        Tasks *as it runs*, and those that ran.
    placed
        Tasks that had a home worker, as a share of those that ran.
    same
        Whether values agree with those of Dask.
    error
        What failed; empty if nothing did.
    """

    workers: int
    name: str
    way: str
    predicted: int | None = 0
    simulated: int | None = None
    booked: int = 0
    received: int = 0
    stock: int = 0
    tasks_predicted: int | None = None
    tasks: int = 0
    placed: float = 0.0
    same: bool = True
    error: str = ""

    @property
    def ratio(self) -> float:
        """Bytes received over predicted, both with `SMALL` added."""
        return (self.received + SMALL) / ((self.predicted or 0) + SMALL)

    def complaint(self) -> str:
        """How a cell is outside of the goal; empty if it is not."""
        if self.error:
            return self.error
        found = [
            f"{name} {'nothing' if other is None else format_bytes(other)}, received"
            f" {format_bytes(self.received)}"
            for name, other in (("predicted", self.predicted), ("booked", self.booked))
            if not is_near(self.received, other)
        ]
        if self.received > self.stock + SMALL:
            found.append(f"received {format_bytes(self.received)}, Dask {format_bytes(self.stock)}")
        if not self.same:
            found.append("DIFFERENT values")
        return "; ".join(found)


def is_near(received: int, predicted: int | None) -> bool:
    """Whether a prediction counts as right."""
    return predicted is not None and abs(received - predicted) <= max(SMALL, NEAR * predicted)


class _Received(WorkerPlugin):
    """Counts bytes that a worker receives from others."""

    name = "benchmark-received"

    def __init__(self) -> None:
        self.total = 0

    def setup(self, worker: Any) -> None:
        self.worker = worker

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        if (start, finish) == ("flight", "memory"):
            waiting = self.worker.state.tasks[key].waiters
            if not waiting or not all(_joins(task.key) for task in waiting):
                self.total += self.worker.state.tasks[key].get_nbytes()


def _joins(key: Any) -> bool:
    """Whether a task joins the blocks of a result on one worker."""
    return str(key).startswith("finalize-")


@contextmanager
def cluster(workers: int) -> Iterator[Client]:
    """A client of single-threaded workers of this process that send bytes over sockets."""
    with (
        dask.config.set({"array.rechunk.method": "tasks", "distributed.worker.memory.spill": False,
                         "distributed.worker.memory.target": False,
                         "distributed.worker.memory.pause": False,
                         "distributed.scheduler.active-memory-manager.start": False}),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=False,
            protocol="tcp",
            dashboard_address=":0",
            silence_logs=logging.ERROR,
        ) as local,
        Client(local) as client,
    ):  # fmt: skip
        yield client


def _end_of_stock(way: Way) -> Callable[[Collections, Path], list[Any]]:
    """How plain Dask computes: to a file only where that re-cuts blocks, which moves bytes."""
    return _zarr if way.end is _zarr else _persist


def measure_stock(case: Case, way: Way, workers: int) -> tuple[int, list[np.ndarray]]:
    """Bytes received with plain Dask, and the values."""
    with cluster(workers) as client, tempfile.TemporaryDirectory() as folder:
        client.register_plugin(_Received())
        collections = way.rechunk(case.build(lambda x: _persist(x, Path()), lambda *x: x))
        plugins = [worker.plugins[_Received.name] for worker in client.cluster.workers.values()]
        before = sum(plugin.total for plugin in plugins)
        kept = _end_of_stock(way)(collections, Path(folder))
        received = sum(plugin.total for plugin in plugins) - before
        return received, flattened(dask.compute(*kept))


def measure(case: Case, way_name: str, workers: int, stock: int, values: list[np.ndarray]) -> Cell:
    """Run one expression on one way."""
    way = WAYS[way_name]
    options = {"keep_chunks": way.keep_chunks}
    # workers that share one interpreter stall, and their tasks would run elsewhere
    with (
        dask.config.set({"distributed.scheduler.work-stealing": False}),
        cluster(workers) as client,
        tempfile.TemporaryDirectory() as folder,
    ):
        dasktile.enable(client)
        roots = client.cluster.scheduler.plugins[TileSchedulerPlugin.name].roots
        roots.settings = replace(roots.settings, stall_timeout=math.inf)
        inputs: list[Any] = []  # Dask loses blocks that only an optimised graph refers to

        def persist(arrays: Collections) -> list[Any]:
            inputs.extend(kept := _persist(arrays, Path()))
            return kept

        plan = partial(dasktile.optimize, workers=client)
        collections = way.before(way.rechunk(case.build(persist, plan)))
        explained = way.explained(collections, Path(folder))
        explanation = dasktile.explain(*explained, **options, by_hook=way.hook)
        hook = {"array_optimize": dasktile.array_optimize} if way.hook else {}
        dasktile.metrics(client, reset=True)
        with dask.config.set(hook):
            planned = collections if way.hook else dasktile.optimize(list(collections), **options)
            results = way.end(planned, Path(folder))
        counts = dasktile.metrics(client)
        actual = flattened(dask.compute(*results))
    joined = sum(layer.received for name, layer in counts.layers.items() if _joins(name))
    return Cell(
        workers,
        case.name,
        way_name,
        predicted=explanation.bytes_predicted,
        simulated=explanation.received_after,
        booked=counts.bytes_predicted,
        received=counts.bytes_received - joined,
        stock=stock,
        tasks_predicted=explanation.run_tasks_after,
        tasks=counts.tasks,
        placed=counts.placed / max(1, counts.tasks),
        same=agree(values, actual),
    )


def run(
    chosen: Sequence[Case],
    workers: Sequence[int],
    ways: Sequence[str],
    done: Callable[[list[Cell]], None] = lambda cells: None,
) -> list[Cell]:
    """Run expressions on all ways; `done` is called after each expression with all cells so far."""
    cells: list[Cell] = []
    for case, count in itertools.product(chosen, workers):
        stock: dict[Any, tuple[int, list[np.ndarray]]] = {}
        for name in ways:
            way = WAYS[name]
            try:
                key = way.rechunk, _end_of_stock(way)
                if key not in stock:
                    stock[key] = measure_stock(case, way, count)
                cells.append(measure(case, name, count, *stock[key]))
            except Exception as error:
                traceback.print_exc()
                text = f"{type(error).__name__}: {error}"[:200]
                cells.append(Cell(count, case.name, name, error=text))
        done(cells)
    return cells


def report(cells: Sequence[Cell], console: Console) -> None:
    """Print all cells, and those outside of the goal."""
    table = Table()
    for title in ("expression", "workers", "way"):
        table.add_column(title)
    for title in (
        "predicted", "simulated", "booked", "received", "Dask", "ratio", "tasks predicted", "run",
        "placed",
    ):  # fmt: skip
        table.add_column(title, justify="right")
    for cell in cells:
        sizes = (cell.predicted, cell.simulated, cell.booked, cell.received, cell.stock)
        table.add_row(
            cell.name,
            str(cell.workers),
            cell.way,
            *("" if size is None else format_bytes(size) for size in sizes),
            f"{cell.ratio:.2f}",
            "" if cell.tasks_predicted is None else f"{cell.tasks_predicted:,}",
            f"{cell.tasks:,}",
            f"{cell.placed:.2f}",
        )
    console.print(table)
    outside = [cell for cell in cells if cell.complaint()]
    console.print(f"{len(cells) - len(outside)} of {len(cells)} are within the goal; outside are:")
    for cell in outside:
        console.print(f"  {cell.workers} workers, {cell.name}, {cell.way}: {cell.complaint()}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 1 if values differ or something failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.predicted",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 6, 8])
    parser.add_argument("--names", nargs="+", metavar="NAME", help="first letters of expressions")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--size", type=float, default=SIZE, help="of benchmarks.sized")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/predicted.json"))
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")

    def save(cells: list[Cell]) -> None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps([asdict(cell) for cell in cells], indent=1) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        chosen = [
            case
            for case in cases(Path(folder), options.modes, options.size)
            if not options.names or case.name.startswith(tuple(options.names))
        ]
        cells = run(chosen, options.workers, options.ways, save)
    save(cells)
    report(cells, Console(width=160))
    return int(any(cell.error or not cell.same for cell in cells))


if __name__ == "__main__":
    raise SystemExit(main())
