"""Reductions of elements at boolean masks: values in any tiles, and what is recognised."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dasktile
from dasktile.capture.highlevel import capture
from dasktile.ir import Kind, Node
from tests.agreement import in_random_tiles, same
from tests.support import plan_for_workers, random_cuts
from tests.traffic import traffic

RNG = np.random.default_rng(0)
X = RNG.integers(-9, 9, (12, 10)).astype("f8")
X[3, 4] = np.nan
N = RNG.integers(-9, 9, (12, 10))
T = RNG.integers(0, 9, 12)


def _x(values: Any = X) -> da.Array:
    return da.from_array(values, chunks=((5, 4, 3), (2, 6, 2)))


def _other(values: Any = N) -> da.Array:
    return da.from_array(values, chunks=((1, 11), (10,)))


def _t() -> da.Array:
    return da.from_array(T, chunks=((5, 4, 3),))


def _operations(array: da.Array) -> list[Node]:
    captured = capture([array])
    assert captured.errors == ()
    return [node for node in captured.program.nodes if node.kind is not Kind.SOURCE]


def _is_read(array: da.Array) -> bool:
    """Whether the last operation is a reduction, and nothing is unchanged."""
    nodes = _operations(array)
    return nodes[-1].kind is Kind.FOLD and all(node.kind is not Kind.OPAQUE for node in nodes)


@pytest.mark.parametrize(
    "make",
    [
        lambda x, n, t: n[n > 2].mean(),
        lambda x, n, t: n[n > 7].var(),
        lambda x, n, t: n[t > 4].std(axis=0),
        lambda x, n, t: x[n > 2].sum(),
        lambda x, n, t: x[~(x < 3)].sum(keepdims=True),
        lambda x, n, t: n[n > 2].max(),
        lambda x, n, t: n[n == n.min()].min(),
        lambda x, n, t: n[n > 99].sum(),
        lambda x, n, t: (n[n > 2] % 5 > 1).all(),
        lambda x, n, t: (n[n > 2] % 5 > 1).any(),
        lambda x, n, t: n[n < -99].prod(),
        lambda x, n, t: (n[n > 2] * 2 + x[n > 2]).sum(),
        lambda x, n, t: (n[n > 2] - n.mean()).sum(),
        lambda x, n, t: n[t > 4].sum(axis=0),
        lambda x, n, t: n[t > 4].sum(axis=0, keepdims=True),
        lambda x, n, t: n[t > 4].mean(),
        lambda x, n, t: n[:, n[0] > 2].sum(axis=1),
        lambda x, n, t: (n[t > 4] - n.mean(axis=0)).sum(axis=0),
        lambda x, n, t: (n[t > 4] * t[t > 4][:, None]).sum(axis=0),
        lambda x, n, t: t[t > 4].max(),
        lambda x, n, t: n.ravel()[n.ravel() > 2].sum(),
        lambda x, n, t: (n.T[n.T > 2] ** 2).sum(),
    ],
)  # fmt: skip
def test_reductions_of_elements_at_masks(make: Callable[..., Any]) -> None:
    """They have the values of NumPy in any tiles."""
    with np.errstate(all="ignore"):
        expected = make(X, N, T)
    same(make(_x(), _x(N), _t()), expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda x, y, t: x[x > 2].mean(),
        lambda x, y, t: da.extract(y > 2, x).sum(),
        lambda x, y, t: da.nansum(x[y > 2]),
        lambda x, y, t: (x[x > 2] * 2 + y[x > 2]).sum(),
        lambda x, y, t: (lambda v: v[v < 5])(x[x > 2]).sum(),
        lambda x, y, t: (x[x > 2] - x.mean()).sum(),
        lambda x, y, t: x[t > 4].sum(axis=0),
        lambda x, y, t: x[t > 4].sum(),
        lambda x, y, t: x[:, y[0] > 2].any(axis=1),
        lambda x, y, t: t[t > 4].max(),
    ],
)
def test_whole_masked_reductions_are_folds(make: Callable[..., Any]) -> None:
    """Neither the selection nor a reshape is a node."""
    array = make(_x(N), _x(), _t())
    assert _is_read(array)
    assert not any(node.op in ("reshape", "ravel") for node in _operations(array))


@pytest.mark.parametrize(
    "make",
    [
        # the mean of no elements of a tile is undefined
        lambda x, t: x[t > 4].var(),
        # blocks without elements have other shapes
        lambda x, t: x[t > 4].max(axis=0),
        # which are the largest depends on the number of elements of a tile
        lambda x, t: da.topk(t[t > 4], 1),
    ],
)
def test_other_reductions_at_masks_are_unchanged(make: Callable[..., Any]) -> None:
    assert not _is_read(make(_x(N), _t()))


def test_arrays_in_other_chunks_than_their_mask() -> None:
    lazy = _x()[_other() > 2].sum()
    assert _is_read(lazy)
    same(lazy, X[N > 2].sum())


def test_masked_arrays_are_unchanged() -> None:
    masked = da.ma.masked_greater(_x(N), 5)
    assert not _is_read(masked[_x(N) > 2].sum())


def test_a_selection_with_several_readers() -> None:
    """Each reduction selects again; no elements move."""
    x = _x(N)
    chosen = x[x > 2]
    both = [chosen.sum(), chosen.mean()]
    same(both, [N[N > 2].sum(), N[N > 2].mean()])


def test_nothing_but_partial_results_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch)
    x = da.random.default_rng(0).random((400, 200), chunks=(50, 50))
    lazy = x[x > 0.5].mean()
    planned = dasktile.optimize(lazy)
    received, lost = traffic([planned], 4)
    assert lost == []
    assert sum(received.values()) <= 2000
    explained = dasktile.explain(lazy)
    assert abs(explained.bytes_predicted - sum(received.values())) <= 2000
    assert explained.run_tasks_after <= explained.run_tasks_before


_REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda m, s: s.sum(),
    "mean": lambda m, s: s.mean(),
    "any": lambda m, s: (s > 3).any(),
    "all": lambda m, s: (s > -3).all(),
    "nansum": lambda m, s: m.nansum(s),
    "count": lambda m, s: m.count_nonzero(s),
    "max": lambda m, s: s.max(),
    "var": lambda m, s: s.var(),
    "std": lambda m, s: s.std(ddof=1),
    "min": lambda m, s: s.min(),
    "prod": lambda m, s: (s * 0 + 2).prod(),
}


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    name=st.sampled_from(sorted(_REDUCTIONS)),
    kind=st.sampled_from(["f8", "i4", "?", "nan"]),
    shape=st.sampled_from([(7,), (6, 5), (4, 3, 5)]),
    share=st.sampled_from([0.05, 0.3, 1.0]),
    along=st.booleans(),
)
def test_random_masks(
    seed: int, name: str, kind: str, shape: tuple[int, ...], share: float, along: bool
) -> None:
    rng, chunks = np.random.default_rng(seed), random.Random(seed)
    values = rng.integers(-5, 6, shape).astype("f8" if kind == "nan" else kind)
    if kind == "nan":
        values[rng.random(shape) < 0.3] = np.nan
    mask = rng.random(shape[:1] if along else shape) < share
    if along and len(shape) > 1 and name in ("max", "min", "var", "std"):
        # blocks without elements have other shapes, or no mean, with which Dask fails
        mask[:] = True
    if not mask.any():
        mask.flat[0] = True

    def split(array: Any) -> da.Array:
        return da.from_array(array, chunks=tuple(random_cuts(size, chunks) for size in array.shape))

    reduce = _REDUCTIONS[name]
    lazy = reduce(da, split(values)[split(mask)])
    with np.errstate(all="ignore"):
        expected = np.asarray(reduce(np, values[mask]))
    (result,) = in_random_tiles([lazy], seed)
    assert result.dtype == lazy.dtype
    np.testing.assert_allclose(result, expected, rtol=1e-9)


# Results of unknown sizes


@pytest.mark.parametrize(
    "make",
    [
        lambda m, x, t: x[x > 2],
        lambda m, x, t: x[t > 4],
        lambda m, x, t: x[t > 4].sum(axis=1),
        lambda m, x, t: x[:, x[0] > 2] * 2,
        lambda m, x, t: m.compress(t > 4, x, axis=0),
        lambda m, x, t: m.extract(x > 2, x),
        lambda m, x, t: m.flatnonzero(x > 2),
        lambda m, x, t: m.argwhere(x > 2),
        lambda m, x, t: m.nonzero(x > 2)[1],
        lambda m, x, t: m.unique(x),
        lambda m, x, t: m.unique(t, return_counts=True)[1],
        lambda m, x, t: x[t > 99],
    ],
)
def test_results_of_unknown_sizes(make: Callable[..., Any]) -> None:
    same(make(da, _x(N), _t()), make(np, N, T))


def test_results_of_unknown_sizes_beside_others() -> None:
    """A selection, and reductions of it that are tiled and that are not."""
    x = _x(N)
    chosen = x[x > 2]
    values = N[N > 2]
    same([chosen, chosen.sum(), x.sum(axis=0)], [values, values.sum(), N.sum(axis=0)])
    same([chosen, chosen.var(), x + 1], [values, values.var(), N + 1])
    same([chosen, chosen * 2], [values, values * 2])


def test_results_of_unknown_sizes_are_made_where_their_blocks_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan_for_workers(monkeypatch)
    x = da.random.default_rng(0).random((1600, 800), chunks=(200, 200))
    lazy = da.compress(da.from_array(np.arange(1600) % 3 == 0, chunks=200), x, axis=0).sum(axis=1)
    planned, explained = dasktile.optimize(lazy), dasktile.explain(lazy)
    received, _ = traffic([planned], 4)
    assert sum(received.values()) <= 10_000
    assert abs(explained.bytes_predicted - sum(received.values())) <= 10_000
    assert explained.run_tasks_after < explained.tasks_before
    assert np.isnan(planned.chunks[0]).all()
