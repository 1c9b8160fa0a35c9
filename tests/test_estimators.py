"""Estimators of dask-ml, which need blocks of whole rows, on what `optimize` returns."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

pytest.importorskip("xarray")
pytest.importorskip("flox")

import dasktile
from benchmarks.corpus import WORKLOADS, inputs
from tests.agreement import EAGER

WORKERS = [4, 6, 8]

#: Workloads of the corpus of which the inputs are tables.
ESTIMATORS = [name for name in WORKLOADS if name.startswith("dask_ml.")]


def tables(name: str, law: str | None = None) -> list[da.Array]:
    """The tables that a workload reads, and what users compute of them first."""
    found: list[da.Array] = []

    def recorded(*arguments: Any, **keywords: Any) -> da.Array:
        if law is not None:
            keywords["law"] = law
        found.append(inputs.random(*arguments, **keywords))
        return found[-1]

    WORKLOADS[name].function(0.05, recorded)
    read = [array for array in found if array.ndim == 2]
    assert read
    x = read[0]
    return [*read, x - x.mean(axis=0), (x - x.mean(axis=0)) / x.std(axis=0), x[::2]]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_tables_keep_whole_rows(name: str, workers: int) -> None:
    for table in tables(name):
        planned = dasktile.optimize(table, workers=workers)
        # dask-ml refuses several blocks of columns
        assert planned.chunks[1] == table.chunks[1] == (table.shape[1],)
        # as do svd and qr, with which PCA and TruncatedSVD begin, blocks of fewer rows than columns
        assert min(planned.chunks[0]) >= table.shape[1]
        assert sum(planned.chunks[0]) == len(table)


@pytest.mark.parametrize("workers", WORKERS)
def test_whole_rows_are_returned_in_any_case_with_chunks(workers: int) -> None:
    cut = 0
    # unlike random numbers, zeros may be cut otherwise
    for table in tables("dask_ml.kmeans_step", "zeros"):
        with dask.config.set(EAGER):
            cut += dasktile.optimize(table, workers=workers).numblocks[1] > 1
            planned = dasktile.optimize(table, workers=workers, chunks={1: -1})
        assert planned.chunks == table.chunks
    # with 6 workers, plans with whole rows cost hardly more
    assert cut or workers == 6


@pytest.mark.parametrize("workers", WORKERS)
def test_estimators_fit(workers: int) -> None:
    pytest.importorskip("dask_ml")
    from dask_ml.cluster import KMeans
    from dask_ml.decomposition import PCA, TruncatedSVD
    from dask_ml.linear_model import LinearRegression
    from dask_ml.preprocessing import StandardScaler

    x = da.from_array(np.random.default_rng(0).normal(size=(2400, 12)), chunks=(100, 12))
    table = x - x.mean(axis=0)
    planned = dasktile.optimize(table, workers=workers)
    assert planned.chunks != table.chunks
    attributes = {
        PCA(3, svd_solver="full"): "singular_values_",
        TruncatedSVD(3): "explained_variance_",
        StandardScaler(): "var_",
    }
    with dask.config.set(scheduler="threads"):
        for estimator, name in attributes.items():
            expected = np.asarray(getattr(estimator.fit(table), name))
            np.testing.assert_allclose(getattr(estimator.fit(planned), name), expected)
            scores = estimator.fit_transform(planned)
            assert len(scores) == len(table)
            assert np.isfinite(np.asarray(scores)).all()
        regression = LinearRegression(solver="newton")
        regression.fit(planned, planned @ np.arange(12.0))
        np.testing.assert_allclose(regression.coef_, np.arange(12.0), atol=1e-6)
        # its first centres depend on the chunks
        means = KMeans(3, random_state=0, max_iter=3).fit(planned)
        assert means.cluster_centers_.shape == (3, 12)
        assert np.isfinite(means.cluster_centers_).all()
