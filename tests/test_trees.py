"""Trees of xarray datasets are optimised and computed as a whole."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dasktile
from tests.agreement import EAGER

xr = pytest.importorskip("xarray")
# trees are in xarray since 2024.10, and 2024.7 is supported
if not hasattr(xr, "DataTree"):
    pytest.skip("this release of xarray has no trees", allow_module_level=True)


def tree() -> Any:
    """Anomalies of two models, one of them below the other, with a shared coordinate."""
    values = np.random.default_rng(0).random((24, 16))

    def dataset(name: str, chunks: tuple[int, int], factor: float) -> Any:
        data = xr.DataArray(da.from_array(factor * values, chunks=chunks), dims=("time", "x"))
        return xr.Dataset({name: data - data.mean("time"), "number": 5})

    coarse = dataset("coarse", (3, 16), 1.0).assign_coords(x=np.arange(16.0))
    return xr.DataTree.from_dict(
        {
            "/": coarse,
            "/fine": dataset("fine", (24, 4), 2.0),
            "/empty/deep": dataset("c", (4, 4), 3),
        },
        name="models",
    )


def test_all_nodes_are_tiled_together() -> None:
    given = tree()
    with dask.config.set(EAGER):
        planned = dasktile.optimize(given)
        told = dasktile.explain(given)
    assert sum(node.op == "sub" for node in told.nodes) == 3
    assert planned is not given
    assert planned.name == "models"
    assert [node.path for node in planned.subtree] == [node.path for node in given.subtree]
    assert planned["fine"].coords["x"].equals(given["fine"].coords["x"])
    assert planned.chunksizes != given.chunksizes
    xr.testing.assert_allclose(planned.compute(), given.compute())


def test_a_part_of_a_tree() -> None:
    part = tree()["empty"]
    with dask.config.set(EAGER):
        planned = dasktile.optimize(part)
    xr.testing.assert_allclose(planned.compute().dataset, part.compute().dataset)
    np.testing.assert_allclose(planned["deep"]["c"].values, part["deep"]["c"].values)


def test_chunks_are_kept_or_chosen() -> None:
    given = tree()
    with dask.config.set(EAGER):
        kept = dasktile.optimize(given, keep_chunks=True)
        chosen = dasktile.optimize(given, chunks={"time": 8})
    assert kept.chunksizes == given.chunksizes
    assert all(sizes["time"] == (8, 8, 8) for sizes in chosen.chunksizes.values() if sizes)
    xr.testing.assert_allclose(chosen.compute(), given.compute())


def test_trees_are_computed() -> None:
    given = tree()
    computed, total = dasktile.compute(given, da.ones(10, chunks=5).sum())
    assert not computed.chunksizes["/fine"] and float(total) == 10
    xr.testing.assert_allclose(computed, given.compute())


def test_trees_in_containers_are_computed() -> None:
    given, x = tree(), da.ones(10, chunks=5)
    [nested], by_name, alone = dasktile.compute(
        [(given,)], {"a": given, "x": x.sum()}, given["fine"]
    )
    for computed in (nested[0], by_name["a"]):
        xr.testing.assert_allclose(computed, given.compute())
    assert float(by_name["x"]) == 10
    xr.testing.assert_allclose(alone.dataset, given["fine"].compute().dataset)
    (computed,) = dasktile.compute(given, traverse=False)
    assert not any(computed.chunksizes.values())
    ((kept,),) = dasktile.compute([given], traverse=False)
    assert kept is given


def test_chunks_by_dimension_apply_to_the_nodes_that_have_it() -> None:
    data = {
        "/a": xr.Dataset({"v": (("t", "u"), da.ones((12, 20), chunks=4))}),
        "/b": xr.Dataset({"w": ("t", da.ones(12, chunks=4))}),
    }
    given = xr.DataTree.from_dict(data)
    chosen = dasktile.optimize(given, chunks={"u": 10, "t": 6})
    assert chosen.chunksizes["/a"] == {"t": (6, 6), "u": (10, 10)}
    assert chosen.chunksizes["/b"] == {"t": (6, 6)}
    with pytest.raises(ValueError, match="z"):
        dasktile.optimize(given, chunks={"z": 10})


def test_a_tree_in_memory_is_returned() -> None:
    given = tree().compute()
    assert dasktile.optimize(given) is given
    assert dasktile.optimize(given, chunks={"time": 4}) is given
    assert dasktile.compute(given) == (given,)
    computed, _ = dasktile.compute(given, da.ones(10, chunks=5))
    assert computed is given


def test_the_order_of_a_tree() -> None:
    given = tree()
    schedule = dasktile.plan({"models": given}, memory_limit="1 MB", workers=1)
    ordered = schedule.apply()
    assert list(ordered) == ["models"]
    assert [node.path for node in ordered["models"].subtree] == [
        node.path for node in given.subtree
    ]
    xr.testing.assert_allclose(ordered["models"].compute(), given.compute())
