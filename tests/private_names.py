"""Hides private names of dask from dasktile, and checks that all values stay right.

This program is run by ``test_compat.py``: ``python -m tests.private_names PART PARTS SIZE`` hides
groups of ``SIZE`` names, and checks every ``PARTS``-th group.  Each group is hidden in a forked
process, and from dasktile only: dask itself uses most of the names.
"""

from __future__ import annotations

import importlib
import operator
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

X = np.random.default_rng(0).integers(-9, 9, (12, 10)) / 4
Y = np.random.default_rng(1).integers(-9, 9, (10, 8)) / 4
V = np.arange(24) % 7

#: Pairs of a dask array and its value; between them they use every name.
EXPRESSIONS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "sum of a product": lambda: ((x() @ y()).sum(axis=0), (X @ Y).sum(axis=0)),
    "tensordot": lambda: (da.tensordot(x(), y(), axes=1) + 1, np.tensordot(X, Y, axes=1) + 1),
    "einsum": lambda: (da.einsum("ij,jk->ki", x(), y()), np.einsum("ij,jk->ki", X, Y)),
    "masked": lambda: (da.ma.filled(da.ma.masked_array(x(), mask=x() > 1), 0).T,
                       np.where(X > 1, 0, X).T),
    "transpose": lambda: ((x() + x()[::-1]).T, (X + X[::-1]).T),
    "rechunk": lambda: (x().rechunk((5, 3)).T * 2, X.T * 2),
    "take": lambda: (x()[[3, 1, 1, 9]] + 1, X[[3, 1, 1, 9]] + 1),
    "concatenate": lambda: (da.concatenate([x(), x()]).T, np.concatenate([X, X]).T),
    "reshape": lambda: (x().reshape(120)[::2], X.reshape(120)[::2]),
    "create": lambda: (da.ones((12, 10), chunks=4) + x() + da.eye(12, chunks=4)[:, :10],
                       X + 1 + np.eye(12)[:, :10]),
    "arange": lambda: (da.arange(24, chunks=5)[::-1] + v(), np.arange(24)[::-1] + V),
    "linspace": lambda: (da.linspace(0, 1, 5, chunks=2)[::-1], np.linspace(0, 1, 5)[::-1]),
    "broadcast": lambda: (da.broadcast_to(v(), (3, 24)).T + 1, np.broadcast_to(V, (3, 24)).T + 1),
    "stored": lambda: (da.from_array(Stored(X), chunks=4).T + 1, X.T + 1),
    "inline": lambda: (da.from_array(Stored(X), chunks=4, inline_array=True).T + 1, X.T + 1),
    "not fancy": lambda: (da.from_array(Stored(X), chunks=4, fancy=False).T + 1, X.T + 1),
    "where": lambda: (da.add(x(), 1, where=x() > 0, out=x() * 2).T,
                      np.where(X > 0, X + 1, X * 2).T),
    "dtype": lambda: (da.add(x(), 1, dtype="f4").T, (X + 1).astype("f4").T),
    "ndim": lambda: (x().map_blocks(np.sin, enforce_ndim=True).T, np.sin(X).T),
    "astype": lambda: (x().astype("i8").T + 1, X.astype("i8").T + 1),
    "isnull": lambda: (da.isnull(x()).T, np.isnan(X).T),
    "choose": lambda: (da.choose(v() % 2, [v(), -v()])[::-1], np.where(V % 2, -V, V)[::-1]),
    "select": lambda: (da.select([v() > 3], [v()], 9)[::-1], np.select([V > 3], [V], 9)[::-1]),
    "nonzero": lambda: (da.count_nonzero(v()) + v()[::-1], np.count_nonzero(V) + V[::-1]),
    "fftfreq": lambda: (da.fft.fftfreq(24, chunks=5)[::-1], np.fft.fftfreq(24)[::-1]),
    "moments": lambda: (x().mean(axis=1) + x().std(axis=1), X.mean(axis=1) + X.std(axis=1)),
    "one chunk": lambda: (x(12).mean(axis=0) + x(12).var(axis=0) + da.argmax(x(12), axis=0),
                          X.mean(axis=0) + X.var(axis=0) + X.argmax(axis=0)),
    "nan moments": lambda: (da.nanmean(x(), axis=0) + da.nanvar(x(), axis=0),
                            X.mean(axis=0) + X.var(axis=0)),
    "extrema": lambda: (x().max(axis=1) - x().min(axis=1), np.ptp(X, axis=1)),
    "nan extrema": lambda: (da.nanmax(x(), axis=1) - da.nanmin(x(), axis=1), np.ptp(X, axis=1)),
    "places": lambda: (da.argmin(x(), axis=0) + da.argmax(x(), axis=0),
                       X.argmin(axis=0) + X.argmax(axis=0)),
    "nan places": lambda: (da.nanargmin(x(), axis=0) + da.nanargmax(x(), axis=0),
                           X.argmin(axis=0) + X.argmax(axis=0)),
    "topk": lambda: (da.topk(x(), 3, axis=1).T + 1, np.sort(X, axis=1)[:, :-4:-1].T + 1),
    "assigned": lambda: (_assigned(x()).T + 1, _assigned(X).T + 1),
    "argtopk": lambda: (da.argtopk(v() * 24 + da.arange(24, chunks=5), 3) + 1,
                        np.argsort(V * 24 + np.arange(24))[:-4:-1] + 1),
    "count": lambda: (da.ma.count(x(), axis=0) + 1, np.full(10, 13)),
    "mask": lambda: (v()[v() > 3].sum() + x().T.sum(axis=1), V[V > 3].sum() + X.sum(axis=0)),
    "bincount": lambda: (da.bincount(v(), minlength=7)[::-1], np.bincount(V, minlength=7)[::-1]),
    "histogram": lambda: (da.histogram(x(), bins=4, range=(-3, 3))[0][::-1],
                          np.histogram(X, bins=4, range=(-3, 3))[0][::-1]),
    "histogramdd": lambda: (da.histogramdd(y()[:, :2].rechunk((5, 2)), bins=(2, 3),
                                           range=((-3, 3), (-3, 3)))[0].sum(axis=0),
                            np.histogramdd(Y[:, :2], bins=(2, 3),
                                           range=((-3, 3), (-3, 3)))[0].sum(axis=0)),
    "cumsum": lambda: (da.cumsum(x(), axis=0).T + 1, np.cumsum(X, axis=0).T + 1),
    "cumprod": lambda: (da.cumprod(x(), axis=0).T + 1, np.cumprod(X, axis=0).T + 1),
    "parallel cumsum": lambda: (da.cumsum(x(), axis=1, method="blelloch").T,
                                np.cumsum(X, axis=1).T),
    "along an axis": lambda: (da.apply_along_axis(np.sort, 1, x()).T, np.sort(X, axis=1).T),
    "isin": lambda: (da.isin(v(), [2, 3])[::-1], np.isin(V, [2, 3])[::-1]),
    "gradient": lambda: (da.gradient(x(), axis=0).T, np.gradient(X, axis=0).T),
    "overlap": lambda: (x().map_overlap(operator.neg, depth=1, boundary="none", dtype="f8").T,
                        -X.T),
    "block number": lambda: (x().map_blocks(numbered, dtype="f8").T, X.T),
    "hook": lambda: (Hooked(x() @ y()), X @ Y),
}  # fmt: skip


class Stored:
    """An array-like that is sliced when a chunk is computed."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.shape, self.dtype, self.ndim = values.shape, values.dtype, values.ndim

    def __getitem__(self, index: Any) -> np.ndarray:
        return self.values[index]


class Hooked:
    """An array that is tiled when it is computed."""

    def __init__(self, array: da.Array) -> None:
        self.array = array


def numbered(block: np.ndarray, block_id: Any = None) -> np.ndarray:
    return block + 0 * block_id[0]


def _assigned(array: Any) -> Any:
    array = array.copy()
    array[2:5] = 1
    return array


def x(rows: int = 4) -> da.Array:
    return da.from_array(X, chunks=(rows, 4))


def y() -> da.Array:
    return da.from_array(Y, chunks=(4, 8))


def v() -> da.Array:
    return da.from_array(V, chunks=5)


def hide(hidden: Collection[str]) -> None:
    """Unload dasktile, and make its look-ups of these names in dask fail."""
    for module in [name for name in sys.modules if name.split(".")[0] == "dasktile"]:
        del sys.modules[module]
    find = importlib.import_module

    def import_module(module: str, package: str | None = None) -> Any:
        # the name that is looked up, a local variable of the caller
        name = sys._getframe(1).f_locals.get("name")
        if f"{module}.{name}" in hidden:
            raise AttributeError(name)
        return find(module, package)

    importlib.import_module = import_module


def check(hidden: Sequence[str]) -> None:
    """Without these names all values are right, and there is one warning for each."""
    hide(hidden)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        dasktile = importlib.import_module("dasktile")
        compat = importlib.import_module("dasktile._compat.dask")
        agreement = importlib.import_module("tests.agreement")
        support = importlib.import_module("tests.support")
        support.accept_all_plans(pytest.MonkeyPatch())
        dasktile.register_kernel(operator.neg, halo={0: 1, 1: 1})
        off = compat.missing(compat.CAPTURE)
        tile = (lambda _: []) if off else (lambda array: agreement.in_random_tiles([array], 1))
        changed = [name for name in EXPRESSIONS if rewritten(dasktile, name, tile)]
    missing = [name for name in compat.NAMES if not name.exists]
    assert {name.path for name in missing} == set(hidden)
    own = [str(entry.message) for entry in warned if entry.category.__module__ == "dasktile.errors"]
    assert len(own) == len(hidden), own
    assert all(any(f" {path}:" in message for message in own) for path in hidden), own
    if off:
        assert not changed
        assert off[0] in str(dasktile.explain(x() @ y()))
    else:
        assert len(changed) > len(EXPRESSIONS) // 2, changed


def rewritten(dasktile: Any, name: str, tile: Callable[[da.Array], Any]) -> bool:
    """Whether an expression is rewritten.  Checks its value, also in random tiles."""
    array, value = EXPRESSIONS[name]()
    if isinstance(array, Hooked):
        tiled = array = array.array
        with dask.config.set(array_optimize=dasktile.array_optimize):
            results = [array.compute()]
    else:
        tiled = dasktile.optimize(array)
        results = [tiled.compute(), *tile(array)]
    for result in results:
        # sums of quarters and their products are exact, those of means nearly
        np.testing.assert_allclose(result, value, rtol=1e-12, atol=1e-12, err_msg=name)
    return tiled is not array


SETTINGS = {
    "scheduler": "sync",
    "dasktile.raise-errors": True,
    "dasktile.workers": 4,
    "dasktile.cost.task-bytes": 1,
    "dasktile.tiling.min-tile": 1,
}


def groups(size: int) -> list[list[str]]:
    """All names in groups; names without which capture is off are in separate groups.

    Neighbours in the table, which belong to the same operations, are in different groups.
    """
    compat = importlib.import_module("dasktile._compat.dask")
    result = []
    for needed in (False, True):
        paths = [name.path for name in compat.NAMES if (compat.CAPTURE in name.features) is needed]
        count = -(-len(paths) // size)
        result += [paths[start::count] for start in range(count)]
    return result


def main(part: int, parts: int, size: int) -> int:
    """Check some groups, each in a process of its own; returns the number of failures."""
    importlib.import_module("dasktile.tiling.planner")
    failed = 0
    chosen = groups(size)[part::parts]
    with dask.config.set(SETTINGS):
        for hidden in chosen:
            child = os.fork()
            if not child:
                status = 1
                try:
                    check(hidden)
                    status = 0
                except BaseException:
                    print(f"without {', '.join(hidden)}:")
                    traceback.print_exc(file=sys.stdout)
                sys.stdout.flush()
                os._exit(status)
            failed += os.waitpid(child, 0)[1] != 0
    print(f"{sum(map(len, chosen))} names, {failed} failures")
    return failed


if __name__ == "__main__":
    sys.exit(bool(main(*map(int, sys.argv[1:]))))
