"""The table of the tilings that methods choose."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.callbacks import Callback
from dask.core import flatten

import dasktile
from dasktile.ir import Program
from dasktile.report.comparison import comparison
from dasktile.tiling.plan import Price, TilingPlan


def test_every_method_that_moves_the_proven_least_is_optimal() -> None:
    x = da.ones((400, 400), chunks=100)
    table = dasktile.compare(x + x.T, workers=4)
    least = [choice for choice in table if choice.bytes == table["auto"].bytes]
    assert table["auto"].proven_optimal and len(least) > 1
    assert all(choice.proven_optimal for choice in least)
    assert not any(choice.proven_optimal for choice in table if choice not in least)
    assert str(table).count("proven optimal") == len(least)


def test_the_bound_is_of_tilings_that_use_all_workers_evenly() -> None:
    # of 4 workers, the input's own chunks use 2, and move less
    rows = da.ones((400, 400), chunks=((300, 100), (400,)))
    table = dasktile.compare(rows.map_blocks(abs) @ rows, workers=4)
    assert table["none"].bytes < table.lower_bound == table["auto"].bytes
    assert not any(choice.proven_optimal for choice in table)
    text = " ".join(str(table).split())
    assert "of tilings that use all workers evenly" in text.splitlines()[0]
    assert "the lower bound does not hold for them" in text
    (row,) = (line for line in str(table).splitlines() if line.startswith("none "))
    assert row.split()[3] == "-"


def plan_of(moved: int, bound: int, proven: bool) -> TilingPlan:
    price = Price((moved,), (0,), (1,), (1.0,), (8,))
    return TilingPlan(Program((), ()), 4, "", price, price, None, bound, proven)


def test_the_bound_of_one_mesh_is_none_for_another() -> None:
    table = comparison(4, [("auto", plan_of(9, 9, True)), ("soybean", plan_of(7, 0, False))])
    assert table.lower_bound == 0 and not any(choice.proven_optimal for choice in table)
    assert "no lower bound of the moved bytes is known" in str(table)


def test_without_the_exact_method_no_bound_is_known() -> None:
    x = da.ones((400, 400), chunks=100)
    table = dasktile.compare(x + x.T, workers=4, methods="spartan")
    assert str(table).startswith("4 workers; no lower bound of the moved bytes is known")


def test_auto_is_the_tiling_that_optimize_chooses() -> None:
    # fewer tasks would be cheaper, but move more bytes than the input's own chunks
    x = da.ones((4000, 4000), chunks=500).sum(axis=0)
    table, explanation = dasktile.compare(x, workers=4), dasktile.explain(x, workers=4)
    assert explanation.changed
    assert table["auto"].bytes == explanation.bytes_after
    assert table["auto"].tasks == explanation.tasks_after


def test_tables_fit_80_columns() -> None:
    x = da.ones((4000, 4000), chunks=500)
    refused = "a reason of many words, " * 10
    name = "a method with a name that is very long indeed"
    plans = [("auto", plan_of(10**15, 10**14, False)), ("none", plan_of(1, 0, False))]
    table = comparison(4, [*plans, (name, plans[0][1]), ("exhaustive", refused)], refused)
    for text in map(str, (table, dasktile.compare(x + x.T, workers=4))):
        assert max(map(len, text.splitlines())) <= 80
    assert " ".join(str(table).split()).count("a reason of many words") == 20


class Held(Callback):
    """Bytes of the inputs and results of the largest task; slices count as arrays."""

    def __init__(self) -> None:
        self.sizes: dict[Any, int] = {}
        self.largest = 0

    def _posttask(self, key: Any, result: Any, dsk: Any, state: Any, worker: Any) -> None:
        self.sizes[key] = int(getattr(result, "nbytes", 0))
        inputs = sum(self.sizes.get(other, 0) for other in getattr(dsk[key], "dependencies", ()))
        self.largest = max(self.largest, self.sizes[key] + inputs)


@pytest.mark.parametrize(
    "expression",
    [
        lambda x, rows: x.map_overlap(lambda block: block + 1, depth=1),
        lambda x, rows: x.rechunk((400, 10)) + 1,
        lambda x, rows: x @ x,
        lambda x, rows: rows.T @ rows,
        lambda x, rows: x.cumsum(axis=0),
        lambda x, rows: x.map_blocks(lambda block: block * 2) + x.T,
    ],
)
def test_largest_task_of_the_input(expression: Any) -> None:
    x = da.from_array(np.ones((400, 400)), chunks=50)
    rows = da.from_array(np.ones((2000, 300)), chunks=(100, 300))
    y = expression(x, rows)
    with Held() as held:
        dask.get(dict(y.dask), list(flatten(y.__dask_keys__())))
    peak = dasktile.compare(y, workers=4, methods="none")["none"].peak
    assert held.largest <= 1.05 * peak <= 1.1 * held.largest


def test_the_largest_task_combines_partial_results() -> None:
    rows = da.from_array(np.ones((2000, 300)), chunks=(100, 300))
    y = rows.T @ rows
    with Held() as held:
        tiled = dasktile.optimize(y, workers=4)
        dask.get(dict(tiled.dask), list(flatten(tiled.__dask_keys__())))
    assert held.largest == 5 * y.nbytes == dasktile.compare(y, workers=4)["auto"].peak


def test_methods_are_one_name_or_several() -> None:
    x = da.ones((40, 40), chunks=10)
    for given in ("auto", ["auto"], ("auto", "auto"), iter(["auto"])):
        assert [choice.method for choice in dasktile.compare(x, methods=given)] == ["auto"]
    default = [choice.method for choice in dasktile.compare(x)]
    for given in (None, [], ()):
        assert [choice.method for choice in dasktile.compare(x, methods=given)] == default


@pytest.mark.parametrize(
    ("methods", "error", "got"),
    [
        ("best", ValueError, "got 'best'"),
        (["auto", "best"], ValueError, "got 'best'"),
        (3, TypeError, "got 3 of type int"),
        ([None], TypeError, "got None of type NoneType"),
    ],
)
def test_errors_name_the_methods(methods: Any, error: type[Exception], got: str) -> None:
    with pytest.raises(error, match=f"methods must be one or several of 'auto', .*; {got}"):
        dasktile.compare(1, methods=methods)


def test_a_method_that_was_not_compared() -> None:
    x = da.from_array(np.ones((40, 40)), chunks=10)
    comparison = dasktile.compare(x + 1, workers=4, methods=["none", "spartan"])
    assert repr(comparison) == "<Comparison: 4 workers, moved: none 0 B, spartan 0 B>"
    with pytest.raises(
        KeyError, match="'auto' was not compared; the methods are 'none', 'spartan'"
    ):
        comparison["auto"]


def test_nothing_to_compare() -> None:
    assert repr(dasktile.compare(1)) == "<Comparison: 1 worker, moved: nothing to tile>"
    assert str(dasktile.compare(1)) == "no dask arrays to tile"
