"""Operations that keep their chunks, or did: tasks, bytes and memory of simulated runs.

    python -m benchmarks.walls [--names NAME ...] [--workers 4]

Graphs of Dask and of plans are computed in this process, and workers are simulated, as by
``python -m benchmarks.corpus --simulate``.  Inputs are blocks of random numbers.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dask.array as da
import flox
import numpy as np
from rich.console import Console

from benchmarks.corpus import Workload
from benchmarks.corpus.simulated import report, run


def _random(shape: tuple[int, ...], chunks: tuple[int, ...], seed: int = 0) -> da.Array:
    return da.random.default_rng(seed).random(shape, chunks=chunks)


def _matrix() -> da.Array:
    return _random((1600, 800), (200, 200))


def _cube() -> da.Array:
    return _random((200, 200, 200), (50, 50, 50))


def _groups(func: str, dtype: str) -> da.Array:
    data = (_random((80, 120, 730), (40, 60, 73)) * 100).astype(dtype)
    labels = np.random.default_rng(0).integers(0, 12, 730)
    result: da.Array = flox.groupby_reduce(data, labels, func=func)[0]
    return result


def _assigned(array: da.Array, index: Any, value: Any) -> da.Array:
    array = array.copy()
    array[index] = value
    return array


def _masked(function: Callable[[da.Array], da.Array]) -> da.Array:
    x = _matrix()
    return function(x[x > 0.5])


#: Expressions by name.
EXPRESSIONS: dict[str, Callable[[], Any]] = {
    "mask_mean": lambda: _masked(lambda x: x.mean()),
    "mask_std": lambda: _masked(lambda x: x.std()),
    "mask": lambda: _masked(lambda x: x),
    "compress": lambda: da.compress(
        da.from_array(np.arange(1600) % 3 == 0, chunks=200), _matrix(), axis=0
    ).sum(axis=1),
    "flatnonzero": lambda: da.flatnonzero(_matrix() > 0.99),
    "argwhere": lambda: da.argwhere(_matrix() > 0.99),
    "unique": lambda: da.unique((_matrix() * 100).astype(int)),
    "argtopk": lambda: da.argtopk(_matrix(), 3, axis=0),
    "nanargmax_by_group": lambda: _groups("nanargmax", "f8"),
    "first_integers_by_group": lambda: _groups("nanfirst", "i4"),
    "assign_slice": lambda: _assigned(_matrix(), slice(20, 500), 1.0).sum(axis=1),
    "assign_positions": lambda: _assigned(_matrix(), [1, 3, 700], 1.0).sum(axis=1),
    "pad": lambda: da.pad(_matrix(), ((1, 1), (0, 0)), mode="edge"),
    "roll": lambda: da.roll(_matrix(), 5, axis=0).sum(axis=1),
    "gradients": lambda: list(da.gradient(_cube())),
    "squared_gradients": lambda: sum(each**2 for each in da.gradient(_cube())).mean(),
}


def _workload(name: str) -> Workload:
    def build(size: float, source: object) -> list[Any]:
        made = EXPRESSIONS[name]()
        return made if isinstance(made, list) else [made]

    return Workload(name, __name__, build)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.walls",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--names", nargs="+", choices=EXPRESSIONS, default=list(EXPRESSIONS))
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args(arguments)
    workloads = [_workload(name) for name in options.names]
    with tempfile.TemporaryDirectory() as folder:
        cells = run(workloads, ["random"], 1.0, options.workers, 32, Path(folder))
    report(cells, Console(width=140))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
