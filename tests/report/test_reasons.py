"""What ``explain`` says of calls that keep their chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile.capture import highlevel, unchanged
from dasktile.capture.failures import failures

#: Reasons of arrays beside those of a call.
_OTHERS = ("its chunks are already", "random numbers", "no other tiles", "tiles with", "Dask's own")

_DEPENDS = "so that its values depend on the chunks; after astype"


def matrix(dtype: str = "f8") -> da.Array:
    return da.ones((40, 40), chunks=10).astype(dtype)


def tall() -> da.Array:
    return da.from_array(np.random.default_rng(0).random((400, 5)), chunks=(50, 5))


def series(size: int = 400) -> Any:
    xr, pd = pytest.importorskip("xarray"), pytest.importorskip("pandas")
    data = da.from_array(np.random.default_rng(0).random((size, 4)), chunks=(30, 2))
    times = pd.date_range("2000-01-01", periods=size)
    return xr.DataArray(data, dims=("time", "x"), coords={"time": times}, name="tas")


def vector() -> da.Array:
    return da.from_array(np.arange(400) % 7, chunks=50)


def assigned() -> da.Array:
    x = matrix()
    x[2:5] = np.arange(40)
    return x


def summed(block: np.ndarray) -> np.ndarray:
    # for the type checker, the sum may be the number that it begins with
    return sum(np.roll(block, shift, 0) for shift in range(-3, 4))  # type: ignore[return-value]


def overlapping(halo: int) -> da.Array:
    def function(block: np.ndarray) -> np.ndarray:
        return summed(block)

    dasktile.register_kernel(function, halo={0: halo})
    return matrix().map_overlap(function, depth=4, boundary="none")


def mapped() -> Any:
    array = series()
    return pytest.importorskip("xarray").map_blocks(summed, array, template=array)


def grouped(function: str, plain: bool = False) -> Any:
    flox = pytest.importorskip("flox.xarray")
    array = series()
    month = array.time.dt.month
    result = flox.xarray_reduce(array, month, func=function)
    return result.data if plain else result


def scanned(plain: bool = False) -> Any:
    flox = pytest.importorskip("flox")
    array = series()
    if not hasattr(flox, "groupby_scan"):
        pytest.skip("this flox has no scans")
    month = array.time.dt.month.data
    result = flox.groupby_scan(array.data.T, month, func="nancumsum", axis=-1)
    return result if plain else array.T.copy(data=result)


def step(call: str) -> str:
    return f"a step of {call}, whose tasks read each other's results"


@pytest.mark.parametrize(
    ("operation", "phrase"),
    [
        (lambda: da.linalg.lstsq(tall(), tall()[:, 0]), step("lstsq")),
        (lambda: da.linalg.lstsq(tall(), tall()[:, 0])[0], step("lstsq")),
        (lambda: da.linalg.svd_compressed(matrix(), 3), step("svd_compressed")),
        (lambda: da.linalg.svd_compressed(matrix(), 3, "QR", 2)[1], step("svd_compressed")),
        (lambda: da.linalg.svd(tall())[1], step("svd")),
        (lambda: da.linalg.qr(tall()), step("qr")),
        (lambda: da.linalg.qr(tall().T)[0], step("qr")),
        (lambda: da.linalg.lu(matrix()), step("lu")),
        (lambda: da.linalg.cholesky(matrix()), step("cholesky")),
        (lambda: da.linalg.solve(matrix(), matrix()[0]), step("solve")),
        (lambda: da.linalg.solve(matrix(), matrix()[0], assume_a="pos"), step("solve")),
        (lambda: da.linalg.inv(matrix()), step("inv")),
        (lambda: da.linalg.solve_triangular(matrix(), matrix()[0]), step("solve_triangular")),
        (
            lambda: matrix("i4") @ matrix("i4"),
            f"matmul of int32 overflows within a chunk, and chunks are added in int64, {_DEPENDS}"
            "(int64) it is tiled",
        ),
        (
            lambda: matrix("?") @ matrix("?"),
            f"matmul of booleans is 'or' within a chunk and a count over several, {_DEPENDS}(int)"
            " it is tiled",
        ),
        (lambda: da.unique(vector()), "a step of unique: its chunk sizes are unknown until"),
        (lambda: da.percentile(vector(), 50), "percentile merges percentiles of chunks, so that"),
        (lambda: matrix().vindex[[1, 2], [3, 4]], "vindex: its tasks are written one by one for"),
        (assigned, "setitem: its tasks are written one by one for these chunks; one known value"),
        (
            lambda: dask.optimize(matrix() - matrix().mean(axis=0))[0],
            "its tasks are those of several operations in one layer, as dask.optimize leaves them:",
        ),
        (lambda: overlapping(1), "function in map_overlap has other values on parts of a small"),
        (lambda: overlapping(5), "function in map_overlap reads neighbours (5 along axis 0)"),
        (mapped, "the result of summed in xarray's map_blocks may depend on the chunks;"),
        (lambda: grouped("argmax"), "a step of flox's group-by nanargmax by month, whose result"),
        (lambda: grouped("argmax", True), "a step of flox's group-by nanargmax over axis 1, whose"),
        (scanned, "a step of flox's group-by nancumsum over time, whose result depends on"),
        (lambda: scanned(True), "a step of flox's group-by nancumsum over axis 1, whose result"),
    ],
)  # fmt: skip
def test_calls_have_one_reason_that_names_them(operation: Callable[[], Any], phrase: str) -> None:
    explanation = dasktile.explain(operation(), workers=4)
    reasons = {
        node.reason
        for node in explanation.nodes
        # those of unknown sizes have the same reason everywhere
        if node.reason
        and not node.reason.startswith(_OTHERS)
        and "compute_chunk_sizes" not in node.reason
    }
    assert len(reasons) == 1 and reasons.pop().startswith(phrase)


def explained(array: Any) -> dict[str, str]:
    """The reason of each operation that keeps its chunks."""
    nodes = dasktile.explain(array, workers=4).nodes
    return {node.op: node.reason for node in nodes if node.reason}


@pytest.mark.parametrize("key", [("mine", 3), 7, ("svd", 3)])
def test_names_of_layers_need_not_be_strings(key: Any) -> None:
    row = dask.delayed(np.ones)(5, dask_key_name=key)
    values = da.from_delayed(row, (5,), float)
    reasons = explained(da.linalg.svd(tall())[1] + values)
    assert reasons["getitem"] == step("svd")
    assert reasons["from-value"].startswith("its blocks are results of the delayed function")
    # of which one layer reads names of both kinds
    added = tall().map_blocks(np.add, row, dtype=float)
    assert explained(added)["add"].startswith("an argument of add is a delayed value")
    (result,) = dasktile.optimize((added,), workers=4)
    np.testing.assert_array_equal(result, added)


def test_words_that_fail_cost_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> str:
        raise KeyError("oops")

    solved = da.linalg.solve(matrix(), matrix()[0])
    monkeypatch.setattr(highlevel, "reason_for", broken)
    monkeypatch.setattr(unchanged, "call_of_step", broken)
    with pytest.raises(KeyError, match="oops"):
        dasktile.optimize(solved, workers=4)
    with dask.config.set({"dasktile.raise-errors": False}):
        reasons = explained(solved)
    assert reasons["lu"] == "there is no rule for this form of lu, which may depend on the chunks"
    assert failures.popitem()[0].endswith(".broken")
    failures.clear()


def test_functions_of_the_user_with_names_of_dasks_own() -> None:
    def unique(block: np.ndarray) -> np.ndarray:
        return block.astype(object)

    mapped = vector().map_blocks(unique, dtype=object)
    assert explained(mapped)["unique"] == "arrays of dtype object are not supported"


def test_calls_that_share_a_factorisation() -> None:
    shared = da.linalg.inv(matrix()), da.linalg.solve(matrix(), matrix()[0])
    reasons = {node.reason for node in dasktile.explain(shared, workers=4).nodes}
    assert reasons >= {step("inv and solve"), step("inv"), step("solve")}
    for one, call in zip(shared, ("inv", "solve"), strict=True):
        assert explained(one)["lu"] == step(call)


def test_polyfit() -> None:
    fit = series().polyfit("time", 1, skipna=True)
    reasons = {node.op: node.reason for node in dasktile.explain(fit, workers=4).nodes}
    assert reasons["polyfit"] == "an argument of polyfit is a delayed value, not an array"
    fit = series().polyfit("time", 1, skipna=False)
    assert step("lstsq") in {node.reason for node in dasktile.explain(fit, workers=4).nodes}


def test_rows_name_calls_of_other_packages() -> None:
    rows = dasktile.explain(mapped(), workers=4).nodes
    assert [(node.op, node.variables) for node in rows][-1] == ("map_blocks", ("tas",))
    rows = dasktile.explain(scanned(), workers=4).nodes
    assert {node.op for node in rows if "flox" in node.reason} == {"groupby_scan"}


def test_products_of_long_integers_are_tiled() -> None:
    for dtype in ("i4", "?"):
        product = matrix(dtype).astype(int) @ matrix(dtype).astype(int)
        rows = dasktile.explain(product, workers=4).nodes
        assert [node.op for node in rows].count("matmul") == 1
        assert not any("depend" in node.reason for node in rows)
