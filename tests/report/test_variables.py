"""Explanations of xarray objects name their variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile.collections.unpack import _ordinal

xr = pytest.importorskip("xarray")


def dataset(names: tuple[str, str] = ("tas", "pr")) -> Any:
    arrays = [
        da.from_array(np.full((400, 60), fill), chunks=(50, 60)) for fill in range(len(names))
    ]
    return xr.Dataset(
        {name: (("time", "place"), array) for name, array in zip(names, arrays, strict=True)}
    )


def variables(explanation: dasktile.Explanation) -> dict[str, str]:
    """The operation that makes a variable, by the variable's name."""
    return {name: node.op for node in explanation.nodes for name in node.variables}


def test_variables_of_a_dataset(tmp_path: Path) -> None:
    anomalies = dataset() - dataset().mean("time")
    anomalies["largest"] = anomalies.tas.max("time")
    explanation = dasktile.explain(anomalies, workers=4)
    assert variables(explanation) == {"tas": "sub", "pr": "sub", "largest": "nanmax"}
    lines = explanation.table().splitlines()
    assert lines[1].split()[0] == "variable"
    (row,) = (number for number, line in enumerate(lines) if line.split()[0] == "largest")
    assert "nanmax" in lines[row - 1]
    page = explanation._repr_html_()
    assert "nanmax<br/><b>largest</b>" in page and "the variables of the dataset" in page
    assert ">largest</" in explanation.visualize(tmp_path / "plan.svg").read_text()
    assert explanation.to_dict()["nodes"][-1]["variables"] == ["largest"]


def test_arrays_without_variables_have_the_same_table_as_before() -> None:
    explanation = dasktile.explain(dataset().tas.data.sum(axis=0), workers=4)
    assert variables(explanation) == {}
    assert "variable" not in explanation.table() + explanation._repr_html_()


def test_reasons_name_variables() -> None:
    data = dataset()
    data["sorted"] = data.tas.copy(data=data.tas.data.map_blocks(np.sort))
    text = " ".join(str(dasktile.explain(data, workers=4)).split())
    assert "sort (sorted): there is no rule" in text


def test_variables_of_other_objects() -> None:
    data = dataset()
    assert variables(dasktile.explain([data.tas.max("time")], workers=4)) == {"tas": "max"}
    assert variables(dasktile.explain(data.tas.rename(None) + 1, workers=4)) == {}
    data["same"] = data.tas
    (row, _) = dasktile.explain(data, workers=4).nodes
    assert row.variables == ("tas", "same")
    some = data.tas.data[data.tas.data[:, 0] > 0]
    unknown = xr.Dataset({"some": (("kept", "place"), some)})
    assert "some" in variables(dasktile.explain(unknown, workers=4))


def test_variables_of_several_objects_with_the_same_names() -> None:
    first, second = dataset(), dataset() * 2
    second["only"] = second.pr + 1
    expected = {"1st tas": "array", "1st pr": "array", "2nd tas": "mul", "2nd pr": "mul"}
    expected |= {"only": "add"}
    assert variables(dasktile.explain(first, second, workers=4)) == expected
    assert variables(dasktile.explain({"a": first}, [0, second], workers=4)) == expected
    text = str(dasktile.explain(first, second, workers=4))
    assert "1st tas" in text and "2nd tas" in text
    # one array in two objects has one name
    pair = dasktile.explain(first, first.rename(pr="rain"), workers=4)
    assert {node.variables for node in pair.nodes} == {("tas",), ("pr", "rain")}
    mixed = dasktile.explain(first.tas, first, second.tas, workers=4)
    assert {node.variables for node in mixed.nodes} >= {("1st tas", "2nd tas"), ("3rd tas",)}


@pytest.mark.skipif(not hasattr(xr, "DataTree"), reason="this release of xarray has no trees")
def test_a_tree_is_one_object() -> None:
    data = dataset()
    tree = xr.DataTree.from_dict({"/": data[["tas"]], "/daily": data[["tas", "pr"]] + 1})
    shown = variables(dasktile.explain(tree, data + 2, workers=4))
    assert shown == {"1st tas": "array", "daily/tas": "add", "daily/pr": "add"} | {
        "2nd tas": "add",
        "pr": "add",
    }


@pytest.mark.parametrize(
    ("number", "text"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (22, "22nd")]
)
def test_ordinals(number: int, text: str) -> None:
    assert _ordinal(number) == text


def test_variables_of_what_optimize_returned() -> None:
    x = da.from_array(np.ones((2000, 800)), chunks=(100, 800))
    data = xr.Dataset({"gram": (("a", "b"), x.T @ x)})
    data["largest"] = data.gram.max("a")
    optimised = dasktile.optimize(data, workers=4).rename(gram="product")
    explanation = dasktile.explain(optimised, workers=4)
    assert explanation.planned
    assert variables(explanation).keys() == {"product", "largest"}


@pytest.mark.skipif(not hasattr(xr, "DataTree"), reason="this release of xarray has no trees")
def test_variables_of_a_tree() -> None:
    data = dataset()
    tree = xr.DataTree.from_dict({"/": data[["tas"]], "/high/daily": data[["pr"]] + 1})
    expected = {"tas": "array", "high/daily/pr": "add"}
    assert variables(dasktile.explain(tree, workers=4)) == expected


def test_variables_whose_last_step_is_a_rechunk() -> None:
    data = xr.DataArray(da.from_array(np.ones((730, 60)), chunks=(50, 60)), dims=("t", "l"))
    doubled = xr.Dataset({"a": data * 2})
    for explanation in (
        dasktile.explain(doubled.chunk(t=100), workers=4),
        dasktile.explain(doubled, workers=4, chunks={"t": 100}),
    ):
        assert explanation.nodes[-1].variables == ("a",)


def test_tiles_of_results_have_workers() -> None:
    data = xr.DataArray(da.from_array(np.ones((400, 60)), chunks=(50, 60)), dims=("t", "l"))
    array, doubled = dasktile.explain(data * 2, workers=4).nodes
    assert doubled.homes == array.homes != ()
