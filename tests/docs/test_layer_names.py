"""The names of layers that the documentation explains are those that plans have."""

from __future__ import annotations

import re
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile.lower import names
from dasktile.schedule.placement import MARK, SLICE_PREFIX
from dasktile.schedule.ranks import BUNDLE
from tests.support import plan_for_workers

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "dashboard.md"


def explained() -> set[str]:
    """The names in the table, without the points that stand for an operation."""
    page = PAGE.read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| layer \|.*?(?=^$)", page, re.MULTILINE | re.DOTALL)
    first = [row.split("|")[1] for row in table.splitlines()[2:]]
    return {name.removeprefix("...") for cell in first for name in re.findall(r"`([^`]+)`", cell)}


def test_constants_are_explained() -> None:
    constants = (names.RETILE, names.JOIN, names.KEPT, names.COMMON, names.CHUNK, names.CARRY,
                 names.END, names.BUNDLES, BUNDLE, SLICE_PREFIX)  # fmt: skip
    assert {
        f"-{name}" if f"-{name}" in explained() else name.rstrip("-") for name in constants
    } <= (explained())


@pytest.mark.parametrize("bundle", [0, 32])
def test_layers_of_plans_are_explained(monkeypatch: pytest.MonkeyPatch, bundle: int) -> None:
    plan_for_workers(monkeypatch, 4)
    monkeypatch.setitem(dask.config.config["dasktile"], "bundle", bundle)
    x = da.from_array(np.ones((400, 400)), chunks=(400, 20))
    y = da.random.default_rng(0).random((400, 400), chunks=(50, 400))
    given = [x.T @ x, x - x.mean(axis=0), da.cumsum(y, axis=0), (x + 1).sum(axis=1), y @ x, y.T + x,
             x.std(), da.fft.fft(x, axis=0)]  # fmt: skip
    for array in given:
        own = {node.op for node in dasktile.explain(array).nodes}
        for layer in dasktile.optimize(array).dask.layers:
            operation, mark, _ = layer.partition(MARK)
            if not mark or operation in own or operation in explained():
                continue
            assert any(operation.endswith(step) for step in explained() if step[0] == "-"), layer
