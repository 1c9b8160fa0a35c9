"""Spartan's applications give the right values, tiled or not, and the fewest bytes."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile.tiling import methods

pytest.importorskip("sklearn", minversion="1.4")

from benchmarks.papers import applications

#: Large enough for iterations to converge, small enough for all to take seconds.
SIZES = {
    "ridge_regression": 4000,
    "logistic_regression": 4000,
    "kmeans": 1000,
    "als": 800,
    "svm": 4000,
    "naive_bayes": 1000,
    "ssvd": 1000,
    "pca": 1000,
    "conjugate_gradient": 200,
    "cholesky": 200,
    "black_scholes": 1000,
    "barrier_option": 20_000,
}

FOLDER = Path(__file__).parents[2] / "examples" / "applications"


@cache
def opened(name: str) -> tuple[ModuleType, tuple[da.Array, ...], Any]:
    """An application, its data and what it makes of them."""
    module = applications.application(name)
    inputs = module.data(SIZES[name])
    return module, inputs, module.build(*inputs)


@cache
def untiled(name: str) -> tuple[Any, ...]:
    return computed(opened(name)[2])


def computed(built: Any) -> tuple[Any, ...]:
    """The results, as a tuple even of one."""
    (found,) = dask.compute(built, scheduler="sync")
    return found if isinstance(built, tuple) else (found,)


def checked(name: str, found: tuple[Any, ...]) -> bool:
    module, inputs, built = opened(name)
    return bool(module.check(found if isinstance(built, tuple) else found[0], *inputs))


def test_there_are_twelve():
    files = {path.stem for path in FOLDER.glob("*.py")}
    assert files == set(SIZES) == set(applications.SIZES)
    assert len(files) == 12
    for name in files:
        assert f"`{name}.py`" in (FOLDER / "README.md").read_text()


@pytest.mark.parametrize("name", SIZES)
def test_values_are_right_as_they_are_and_tiled(name):
    plain = untiled(name)
    assert checked(name, plain)
    found = computed(dasktile.optimize(opened(name)[2], workers=4))
    assert checked(name, found)
    for one, other in zip(plain, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", SIZES)
def test_bytes_are_proven_fewest(name):
    told = dasktile.explain(opened(name)[2], workers=4)
    assert told.proven_optimal
    assert told.bytes_after == told.lower_bound <= told.bytes_before
    random = {node.op for node in told.nodes if "random" in node.reason}
    assert random == ({"standard_normal"} if name == "barrier_option" else set())


@pytest.mark.parametrize("name", SIZES)
def test_wrong_values_are_noticed(name):
    assert not checked(name, tuple(1.5 * one for one in untiled(name)))


def test_benchmark_plans_what_the_examples_build():
    small = applications.inputs("naive_bayes", 20_000)
    real = applications.application("naive_bayes").data(20_000)
    assert [one.chunks for one in small] == [one.chunks for one in real]
    assert len({one.name for one in small}) == len(small)
    one = applications.planned("naive_bayes", 4, repeat=1, size=20_000)
    told = dasktile.explain(applications.application("naive_bayes").build(*real), workers=4)
    assert (one.before, one.after, one.nodes) == (
        told.bytes_before,
        told.bytes_after,
        len(told.nodes),
    )
    assert (one.spartan is not None) == ("spartan" in methods())


def test_benchmark_says_what_it_found():
    found = [applications.planned(name, 4, repeat=1) for name in ("pca", "black_scholes")]
    lines = applications.summary_rows(found)
    assert {tuple(line) for line in lines} == {("experiment", "what", "paper", "ours", "note")}
    assert lines[0]["ours"] == "2 of 2 proven"
    assert "black_scholes" in applications.table(found)


@pytest.mark.parametrize("name", ["pca", "black_scholes", "barrier_option"])
def test_script_says_what_moves(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--workers", "4", "--size", str(SIZES[name])])
    applications.application(name).main()
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("4 workers, ")
    assert last.endswith(": True")
