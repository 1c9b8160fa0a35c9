"""Spartan's applications have the right values, tiled or not, and move the fewest bytes."""

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

#: Sizes with which iterations converge and all applications take seconds.
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
    """An application, its data and its results as lazy arrays."""
    module = applications.application(name)
    inputs = module.data(SIZES[name])
    return module, inputs, module.build(*inputs)


@cache
def untiled(name: str) -> tuple[Any, ...]:
    return computed(opened(name)[2])


def computed(built: Any) -> tuple[Any, ...]:
    """The computed results, always as a tuple."""
    (results,) = dask.compute(built, scheduler="sync")
    return results if isinstance(built, tuple) else (results,)


def checked(name: str, results: tuple[Any, ...]) -> bool:
    module, inputs, built = opened(name)
    return bool(module.check(results if isinstance(built, tuple) else results[0], *inputs))


def test_all_twelve_applications_are_listed():
    files = {path.stem for path in FOLDER.glob("*.py")}
    assert files == set(SIZES) == set(applications.SIZES)
    assert len(files) == 12
    for name in files:
        assert f"`{name}.py`" in (FOLDER / "README.md").read_text()


@pytest.mark.parametrize("name", SIZES)
def test_values_are_right_untiled_and_tiled(name):
    plain = untiled(name)
    assert checked(name, plain)
    tiled = computed(dasktile.optimize(opened(name)[2], workers=4))
    assert checked(name, tiled)
    for expected, actual in zip(plain, tiled, strict=True):
        np.testing.assert_allclose(expected, actual, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", SIZES)
def test_bytes_are_proven_fewest(name):
    explanation = dasktile.explain(opened(name)[2], workers=4)
    assert explanation.proven_optimal
    assert explanation.bytes_after == explanation.lower_bound <= explanation.bytes_before
    random = {node.op for node in explanation.nodes if "random" in node.reason}
    assert random == ({"standard_normal"} if name == "barrier_option" else set())


@pytest.mark.parametrize("name", SIZES)
def test_wrong_values_are_noticed(name):
    assert not checked(name, tuple(1.5 * value for value in untiled(name)))


def test_benchmark_plans_the_programs_of_the_examples():
    small = applications.inputs("naive_bayes", 20_000)
    real = applications.application("naive_bayes").data(20_000)
    assert [one.chunks for one in small] == [one.chunks for one in real]
    assert len({one.name for one in small}) == len(small)
    one = applications.planned("naive_bayes", 4, repeat=1, size=20_000)
    explanation = dasktile.explain(applications.application("naive_bayes").build(*real), workers=4)
    assert (one.before, one.after, one.nodes) == (
        explanation.bytes_before,
        explanation.bytes_after,
        len(explanation.nodes),
    )
    assert (one.spartan is not None) == ("spartan" in methods())


def test_benchmark_prints_its_results():
    plans = [applications.planned(name, 4, repeat=1) for name in ("pca", "black_scholes")]
    lines = applications.summary_rows(plans)
    assert {tuple(line) for line in lines} == {("experiment", "what", "paper", "ours", "note")}
    assert lines[0]["ours"] == "2 of 2 proven"
    assert "black_scholes" in applications.table(plans)


@pytest.mark.parametrize("name", ["pca", "black_scholes", "barrier_option"])
def test_script_prints_bytes_moved(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--workers", "4", "--size", str(SIZES[name])])
    applications.application(name).main()
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("4 workers, ")
    assert last.endswith(": True")
