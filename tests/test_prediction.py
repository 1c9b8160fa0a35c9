"""Of several plans, the one whose run is predicted to cost least."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.highlevelgraph import HighLevelGraph

import dasktile
from benchmarks.corpus.simulated import simulated
from dasktile import cheapest, choice, pipeline, predicted, prediction, small_graphs
from dasktile._compat.dask import Task
from dasktile.cluster.target import Machine
from dasktile.ir import Sharding, Share
from dasktile.lower.names import new_layer_name
from dasktile.lower.writer import Lowered
from dasktile.planning import Candidate
from dasktile.prediction import (
    CLEARLY_LESS,
    LEAST_SECONDS,
    MEMORY_EXPONENT,
    Prediction,
    predict_input,
    rough_cost,
    work_seconds,
)
from dasktile.schedule.homes import Homes
from dasktile.schedule.peaks import simulate
from dasktile.schedule.placed_tasks import PlacedTasks
from dasktile.schedule.placement import Placement
from dasktile.schedule.ranks import rank_of
from tests.support import plan_for_workers
from tests.traffic import traffic


@pytest.fixture(autouse=True)
def four_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plan for workers of a cluster, on which tasks run where they are planned.

    Each plan is made anew: tests change what decides.
    """
    plan_for_workers(monkeypatch)
    with dask.config.set({"dasktile.reuse-plans": False}):
        yield


def noise(shape: tuple[int, ...], chunks: Any) -> da.Array:
    return da.random.default_rng(0).random(shape, chunks=chunks)


def rechunked_sum() -> da.Array:
    """Small blocks that Dask joins; a sum needs no join."""
    return noise((2250, 2250), 150).rechunk(580).sum()


def residuals() -> da.Array:
    x = noise((160, 160, 160), 32)
    return (x - x.mean(axis=0)).sum()


def neighbours() -> da.Array:
    x = noise((1000, 1000), 100).rechunk((200, 500))
    return x.sum(axis=0)


EXPRESSIONS = [rechunked_sum, residuals, neighbours]


@pytest.mark.parametrize("make", EXPRESSIONS)
def test_a_plan_needs_no_more_memory_than_dask(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # memory counts although the arrays are small
    monkeypatch.setattr(cheapest, "SMALL_PEAK", 0)
    monkeypatch.setattr(cheapest, "ENOUGH_PEAK", 0)
    monkeypatch.setattr(prediction, "LEAST_PEAK", 0)
    array = make()
    optimized = dasktile.optimize(array)
    (stock_tasks, stock), (tasks, planned) = simulated([array], 4), simulated([optimized], 4)
    # tasks that are ready at the same time run in any order
    assert max(planned.peaks) <= 1.02 * max(stock.peaks)
    assert planned.moved <= stock.moved
    assert tasks < stock_tasks / 4
    np.testing.assert_allclose(*dask.compute(array, optimized, scheduler="sync"), atol=1e-9)


@pytest.mark.parametrize("make", EXPRESSIONS)
def test_the_usual_plan_is_replaced_only_by_a_cheaper_one(make: Any) -> None:
    chosen, usual = (
        simulated([dasktile.optimize(make(), method=method)], 4)[1] for method in ("auto", "exact")
    )
    cost = Prediction(chosen.seconds, chosen.moved, max(chosen.peaks)).cost
    assert cost <= 1.05 * Prediction(usual.seconds, usual.moved, max(usual.peaks)).cost
    stock = simulated([make()], 4)[1]
    assert chosen.moved <= usual.moved + 0.06 * stock.moved


@pytest.mark.parametrize("make", EXPRESSIONS)
def test_explain_shows_the_plan_that_optimize_carries_out(make: Any) -> None:
    told = dasktile.explain(make())
    _, run = simulated([dasktile.optimize(make())], 4)
    assert told.results_after == pytest.approx(max(run.results), rel=0.05, abs=100)


def test_what_is_computed_with_an_optimised_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks run where its plan says, also before a new plan."""
    plan_for_workers(monkeypatch, 3)
    rng = np.random.default_rng(0)
    f, b = (da.from_array(rng.random((4000, 120)), chunks=(rows, 120)) for rows in (200, 100))
    optimized = dasktile.optimize((f - f.mean(axis=0)) @ b.T[:, :1000])
    for make in (lambda: optimized + 1, lambda: optimized[:10], lambda: optimized.T):
        lazy = make()
        told = dasktile.explain(lazy)
        before, after = (simulated([each], 3)[1] for each in (lazy, dasktile.optimize(lazy)))
        assert told.received_before == pytest.approx(before.moved, rel=0.01)
        assert after.moved <= before.moved


def test_sums_of_products_get_one_term_each_in_turn() -> None:
    """The factors of a product of many small blocks need not be in memory together."""
    x, y = (da.random.default_rng(seed).random((2400, 2400), chunks=300) for seed in range(2))
    array = x @ y
    optimized = dasktile.optimize(array)
    keys = list(optimized.__dask_graph__())
    assert sum(rank_of(key) is not None for key in keys) > len(keys) / 2
    (_, stock), (_, planned) = simulated([array], 4), simulated([optimized], 4)
    assert planned.moved < 0.5 * stock.moved
    # a quarter of the result and half of each factor would be 57 MB
    assert max(planned.peaks) < 36e6 < max(stock.peaks)
    np.testing.assert_allclose(*dask.compute(array, optimized, scheduler="sync"))


def test_the_input_is_unchanged_if_its_own_graph_is_better_in_every_respect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    array = noise((4000, 100), 100).sum(axis=0)
    assert dasktile.optimize(array) is not array
    worse = Prediction(100.0, 10**9, 10**9)
    monkeypatch.setattr("dasktile.predicted.predict_plan", lambda *_: worse)
    assert dasktile.optimize(array) is array
    told = dasktile.explain(array)
    assert not told.changed
    assert told.peak_before == told.peak_after
    assert "Dask's own graph is predicted to cost less" in " ".join(str(told).split())


def test_slices_of_blocks_that_nothing_else_reads_are_no_tasks_of_their_own() -> None:
    for array in (noise((2750, 2750), 250)[::3], noise((1000, 1000), 250)[5:, 7:]):
        assert simulated([dasktile.optimize(array)], 4)[0] <= simulated([array], 4)[0]


def test_other_methods_are_not_replaced() -> None:
    # with its own chunks this is a quarter of the tasks
    assert "method 'none'" in str(dasktile.explain(rechunked_sum(), method="none"))


def test_an_error_of_the_prediction_leaves_the_usual_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    for name in ("input_tasks", "predict_plan"):
        monkeypatch.setattr(predicted, name, fails)
    with dask.config.set({"dasktile.raise-errors": False}):
        assert dasktile.optimize(residuals()) is not None
        assert dasktile.explain(residuals()).peak_after is None
    with dask.config.set({"dasktile.raise-errors": True}), pytest.raises(ZeroDivisionError):
        dasktile.optimize(residuals())


def test_the_cost_of_a_run() -> None:
    run = Prediction(2.0, 100, 10**9)
    assert Prediction(2.0, 100, 5 * 10**8).cost == pytest.approx(run.cost / 2**0.5)
    slower = Prediction(4.0 + LEAST_SECONDS, 100, 10**9)
    assert slower.cost == pytest.approx(2 * run.cost)
    # of little memory, less is worth nothing
    assert Prediction(2.0, 100, 10**6).cost == Prediction(2.0, 100, 10**3).cost < run.cost
    assert rough_cost(100, 1000) < rough_cost(200, 1000)
    assert 0 < CLEARLY_LESS < 1


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ((2.0, 100, 10**8), True),
        ((2.0, 99, 10**8), False),
        ((1.99, 100, 10**8), True),
        ((1.9, 100, 10**8), False),
        ((2.0, 100, 9 * 10**7), True),
        ((2.0, 100, 7 * 10**7), False),
    ],
)
def test_one_run_dominates_another(other: tuple[float, int, int], expected: bool) -> None:
    assert Prediction(2.0, 100, 10**8).dominates(Prediction(*other)) is expected


def test_less_of_little_memory_is_no_advantage() -> None:
    assert Prediction(2.0, 100, 2**22).dominates(Prediction(2.0, 100, 2**20))


@pytest.mark.parametrize(("moved", "expected"), [(10**6, True), (10**8, True), (10**9, False)])
def test_a_run_is_cheaper_on_a_slow_network_too(moved: int, expected: bool) -> None:
    other = Prediction(2.0, 10**6, 1000)
    assert Prediction(1.0, moved, 1000).is_clearly_cheaper(other, workers=4) is expected
    assert not Prediction(1.9, 10**6, 1000).is_clearly_cheaper(other, workers=4)
    # time is not given up for memory that there is, but for memory that there is not
    assert not Prediction(2.1, 10**6, 10).is_clearly_cheaper(other, workers=4)
    spills = Prediction(2.0, 10**6, 10**9, room=10**8)
    assert Prediction(2.1, 10**6, 10, room=10**8).is_clearly_cheaper(spills, workers=4)


def test_the_input_is_unchanged_if_its_own_graph_costs_clearly_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    array = noise((4000, 100), 100).sum(axis=0)
    told = dasktile.explain(array)
    assert told.changed
    own = Prediction(1.0, 10**6, told.peak_before)
    monkeypatch.setattr("dasktile.predicted.InputRun.prediction", own)
    for seconds, changed in ((0.9, True), (2.0, False)):
        run = Prediction(seconds, 0, told.peak_before)
        monkeypatch.setattr("dasktile.predicted.predict_plan", lambda *_, run=run: run)
        assert (dasktile.optimize(array) is not array) is changed


def test_explain_says_whether_the_results_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(room: int | None) -> str:
        plan_for_workers(monkeypatch, room=room)
        return " ".join(str(dasktile.explain(noise((2000, 2000), 500) + 1)).split())

    assert "7.6 MiB on one worker" in told(10**8)
    assert "while tasks run: fits" in told(10**8)
    assert ": about 3.8 MiB spill, as 3.8 MiB fit" in told(4_000_000)
    assert "7.6 MiB on one worker" in told(None)
    assert "fit" not in told(None)


def test_a_run_that_spills_costs_more() -> None:
    fits, spills = (Prediction(1.0, 0, 10**9, room) for room in (2 * 10**9, 5 * 10**8))
    assert fits.spilled == 0
    assert spills.spilled == 5 * 10**8
    assert fits.cost < spills.cost


def test_memory_counts_more_where_functions_take_long() -> None:
    fast = Prediction(seconds=1.0, moved=0, peak=100_000_000)
    small = Prediction(seconds=1.9, moved=0, peak=40_000_000)
    assert fast.cost < small.cost
    assert replace(fast, work=10.0).cost > replace(small, work=10.0).cost
    assert rough_cost(10, 10, work=1.0) > rough_cost(10, 10)
    one, four = Machine(1), Machine(2, 2)
    assert work_seconds(10**9, one) == 4 * work_seconds(10**9, four) > 0


def test_tiles_are_small_where_the_graph_of_the_input_is_too_large_to_be_simulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = da.from_array(np.ones((4000, 2000)), chunks=(8, 2000))
    y = (da.sqrt(x + 1) * 2).sum()
    monkeypatch.setattr(predicted, "MAX_TASKS", 300)
    monkeypatch.setattr(choice, "MAX_TASKS", 300)
    result, plan = dasktile.optimize(y), dasktile.explain(y)
    assert plan.peak_before is None
    assert "more than 300 tasks" in plan.unpredicted
    # a worker has 16 MB of x
    _, run = simulated([result], 4)
    assert max(run.peaks) < 9e6
    assert plan.peak_after is not None
    assert plan.peak_after < 13e6


def test_plans_are_compared_although_sizes_are_guesses() -> None:
    """The function makes bytes that nobody knows, of blocks that are read as they are."""

    def halves(block: np.ndarray) -> list[np.ndarray]:
        return [block[::2], block[1::2]]

    x = noise((4000, 50), (20, 50))
    parts = [dask.delayed(halves)(block) for block in x.to_delayed().flatten()]
    first = [da.from_delayed(part[0], (10, 50), x.dtype) for part in parts]
    y = da.concatenate(first).sum(axis=0) + x.mean(axis=0)
    assert dasktile.explain(y).results_after is None
    _, run = simulated([dasktile.optimize(y)], 4)
    _, stock = simulated([y], 4)
    assert run.seconds < stock.seconds
    np.testing.assert_allclose(dasktile.optimize(y).compute(), y.compute())


def stacked() -> da.Array:
    """Blocks of delayed functions, whose sizes are those of the arrays made of them."""
    parts = [dask.delayed(np.full)((100, 100), number) for number in range(80)]
    return da.stack([da.from_delayed(part, (100, 100), float) for part in parts])


@pytest.mark.parametrize(
    "reduce", [lambda x: x.sum(axis=0), lambda x: (x * 2 + 1).sum(axis=(1, 2)), lambda x: x.T[0]]
)
def test_delayed_blocks_are_made_where_they_are_needed(reduce: Any) -> None:
    array = reduce(stacked())
    told = dasktile.explain(array)
    optimized = dasktile.optimize(array)
    (tasks, planned), (stock_tasks, stock) = simulated([optimized], 4), simulated([array], 4)
    assert tasks < stock_tasks / 4
    # tuples of results have some bytes of their own
    assert planned.moved <= min(stock.moved, 3 * 80_000 + 1000)
    # every worker makes its share
    assert max(planned.peaks) < 2 * min(planned.peaks)
    assert told.received_before is not None
    assert told.received_after == pytest.approx(planned.moved, rel=0.05, abs=1000)
    np.testing.assert_allclose(*dask.compute(array, optimized, scheduler="sync"))


def test_kept_arrays_may_have_more_axes_than_labels() -> None:
    array = da.fft.fftshift(da.ones((1, 2, 2, 2)))
    np.testing.assert_array_equal(dasktile.optimize(array).compute(), np.ones((1, 2, 2, 2)))


class Store:
    """An array-like of ones in storage."""

    def __init__(self, shape: tuple[int, ...], chunks: tuple[int, ...]) -> None:
        self.shape, self.chunks, self.dtype, self.ndim = shape, chunks, np.dtype(float), len(shape)

    def __getitem__(self, index: Any) -> np.ndarray:
        return np.broadcast_to(1.0, self.shape)[index]


ONE_TASK = {
    "created": lambda: (da.ones((4000, 4000), chunks=-1) + 1).sum(),
    "product": lambda: (da.ones((1000, 1000), chunks=-1) @ da.ones((1000, 1000), chunks=-1)).sum(),
    "stored": lambda: (da.from_array(Store((4000, 4000), (500, 4000)), chunks=-1) * 2).sum(),
}


@pytest.mark.parametrize("name", ONE_TASK)
def test_work_is_spread_although_one_task_is_predicted_to_be_faster(name: str) -> None:
    # the time that functions take is not known
    told = dasktile.explain(ONE_TASK[name]())
    assert told.changed
    assert told.balance_after < 1.1 < told.balance_before


@pytest.mark.parametrize("function", [da.linalg.qr, da.linalg.svd])
def test_sizes_of_decompositions_are_known(function: Any) -> None:
    x = noise((4000, 20), (200, 20))
    parts = list(function(x))
    told = dasktile.explain(*parts)
    _, run = simulated(parts, 4)
    assert told.results_before == pytest.approx(max(run.results), rel=0.2)
    assert told.received_before == pytest.approx(run.moved, rel=0.2)


def test_sizes_of_sums_of_delayed_blocks_are_known() -> None:
    x = da.random.default_rng(0).random((4000, 200), chunks=(100, 200))
    total = sum((2 * x).to_delayed().flatten())
    told = dasktile.explain(da.from_delayed(total, (100, 200), float) / 2)
    assert told.received_before is not None and not told.unpredicted


@pytest.mark.parametrize("lower", [False, True])
def test_sizes_within_a_cholesky_decomposition_are_known(lower: bool) -> None:
    x = noise((800, 800), (200, 200))
    factor = da.linalg.cholesky(x @ x.T + 800 * da.eye(800, chunks=200), lower=lower)
    told = dasktile.explain(factor)
    assert not told.unpredicted
    _, run = simulated([factor], 4)
    assert told.results_before == pytest.approx(max(run.results), rel=0.2)
    assert told.received_before == pytest.approx(run.moved, rel=0.2)


def test_a_limit_of_the_user_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 20_000_000
    plan_for_workers(monkeypatch, memory_limit=limit, limit_given=True)
    x = da.from_array(Store((4000, 4000), (500, 4000)), chunks=(1000, 4000))
    for array in ((x + 1).sum(axis=1), x.max(axis=0), x.rechunk(-1).sum()):
        assert dasktile.explain(array).changed


def test_no_plan_that_reads_less_is_given_up() -> None:
    x = da.from_array(Store((4000, 4000), (4000, 250)), chunks=(1000, 4000))
    told = dasktile.explain((x + 1).sum())
    assert told.changed
    assert told.read_after < told.read_before


@pytest.mark.parametrize(
    ("name", "arrays"), [("mean", 1), ("nanmean", 2), ("var", 3), ("nanstd", 3), ("sum", 1)]
)
def test_sizes_of_first_steps_of_reductions(name: str, arrays: int) -> None:
    x = noise((4000, 500), (1000, 500))
    array = getattr(da, name)(x, axis=0)
    # four results of the first step, of one row, are combined by one task
    _, run = simulated([array], 4)
    told = dasktile.explain(array, method="none")
    assert told.results_before == pytest.approx(max(run.results), rel=0.1)
    assert told.results_before >= 4 * arrays * 500 * 8


def _smoothed(block: np.ndarray) -> np.ndarray:
    return block - block.mean()


def test_tasks_around_undeclared_functions_are_bundled() -> None:
    array = da.map_overlap(_smoothed, noise((1000, 1000), 100), depth=1, boundary="reflect")
    (before, stock), (after, planned) = simulated([array], 4), simulated(
        [dasktile.optimize(array)], 4
    )  # fmt: skip
    assert after < before / 3
    assert planned.moved < stock.moved / 4
    np.testing.assert_allclose(
        *dask.compute(array, dasktile.optimize(array), scheduler="sync"), atol=1e-9
    )


def test_bundles_of_fewer_bytes_where_these_cost_less(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Any] = []
    predict = predicted.predict_plan

    def noted(*arguments: Any) -> Any:
        runs.append(predict(*arguments))
        return runs[-1]

    def tasks(array: da.Array) -> int:
        return sum(map(len, array.dask.layers.values()))

    monkeypatch.setattr(predicted, "predict_plan", noted)
    # any memory beyond that of the result is too much
    monkeypatch.setattr(cheapest, "MORE_MEMORY", 1)
    x, y = (da.random.default_rng(n).random(25_000_000, chunks=100_000) for n in range(2))
    smaller = dasktile.optimize(x + y)
    first, *_, last = runs
    assert last.cost < CLEARLY_LESS * first.cost
    monkeypatch.setattr(cheapest, "FAR_LESS", math.inf)
    assert tasks(dasktile.optimize(x + y)) != tasks(smaller)


def symmetric() -> da.Array:
    """Blocks of which every pair is on two workers."""
    x = noise((4000, 4000), 200)
    return (x + x.T).sum(axis=0)


def factors() -> da.Array:
    """Two factors of each block: the small ones are summed before the large ones are read."""
    q, r = da.linalg.qr(noise((200_000, 20), (2000, 20)))
    return (q - r.sum()).sum(axis=0)


@pytest.mark.parametrize("make", [symmetric, factors])
def test_no_plan_needs_much_more_memory_than_the_input(make: Any) -> None:
    array = make()
    stock, planned = (simulated([x], 4)[1] for x in (array, dasktile.optimize(array)))
    most = max(1.25 * max(stock.peaks), 2**25)
    assert max(planned.peaks) <= most
    assert planned.seconds < 0.9 * stock.seconds


def test_memory_decides_between_plans_that_are_faster_than_the_input() -> None:
    before = Prediction(8.0, 0, 2**26)
    large = replace(before, seconds=2.0, peak=2**28)
    small = replace(before, seconds=4.0)
    slow = replace(before, seconds=8.0)

    def better(run: Prediction, other: Prediction) -> bool:
        planned: Any = None
        plans = (Candidate(planned, before=before, after=after) for after in (run, other))
        return cheapest._is_better(*plans)

    assert better(small, large)
    assert not better(large, small)
    # a run that takes as long as the input is no gain
    assert not better(slow, large)
    # neither needs more than the input: the one that costs less
    assert better(replace(large, peak=2**26), small)
    assert better(replace(small, peak=2**20), replace(large, peak=2**23)) == (
        2 * 2 ** (-3 * MEMORY_EXPONENT) < CLEARLY_LESS
    )


def test_a_graph_of_which_few_tasks_are_needed_is_only_culled() -> None:
    x = noise((2000, 2000), 50).rechunk(100) + 1
    few = x[:30, :30]
    new = dasktile.optimize(few)
    assert new.name == few.name
    assert sum(map(len, new.dask.layers.values())) < 10
    told = dasktile.explain(few)
    assert not told.changed
    text = " ".join(str(told).split())
    assert "the few tasks that are needed take less time than a plan" in text
    for more in (x[0], x.sum()):
        assert dasktile.optimize(more) is not more


def test_many_tasks_are_planned_however_few_of_a_graph_they_are() -> None:
    x = noise((8000, 8000), 50)
    few = (x + x.T)[:1000, :1000].sum()
    assert dasktile.optimize(few) is not few


def test_elements_at_positions_of_a_dask_array_are_small() -> None:
    # Dask notes the elements of every block times the positions
    x = noise((400_000,), (20_000,))
    positions = (noise((2000,), (400,)) * 400_000).astype(int)
    array = x[positions]
    told = dasktile.explain(array)
    assert told.results_before is not None and told.results_before < 4e6
    (before, _), (after, planned) = (
        simulated([each], 4) for each in (array, dasktile.optimize(array))
    )
    assert after < before / 2
    assert planned.moved < 1e6
    np.testing.assert_array_equal(*dask.compute(array, dasktile.optimize(array)))


def test_a_root_and_the_only_slice_of_it_are_one_task() -> None:
    array = noise((1000, 1000), (100, 100))[::3].copy()
    new = dasktile.optimize(array, keep_chunks=True)
    # Dask adds an alias to every chain that it fuses
    (fused,) = dask.optimize(new)
    assert len(dict(fused.dask)) == 100 == math.prod(array.numblocks)
    np.testing.assert_array_equal(*dask.compute(array, new))


def test_graphs_of_plans_that_cannot_pay_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """To write the graph of a plan of very many tasks takes longer than it could save."""
    written = []
    lower = predicted.lower_plan

    def counted(*arguments: Any) -> Any:
        written.append(arguments)
        return lower(*arguments)

    monkeypatch.setattr(predicted, "lower_plan", counted)
    x, y = (noise((3000, 3000), (100, 100)) for _ in range(2))
    array = (x.rechunk(300) * y.T.rechunk(300)).sum(axis=0)
    dasktile.optimize(array)
    usual = len(written)
    written.clear()
    monkeypatch.setattr(cheapest, "rough_cost", lambda *_: math.inf)
    dasktile.optimize(array)
    assert len(written) == 1 < usual


def test_tasks_of_further_plans_are_taken_for_bundled_like_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lower, written = predicted.lower_plan, []

    def counted(request: Any, planned: Any) -> Any:
        written.append(sum(planned.plan.after.tasks))
        return lower(request, planned)

    monkeypatch.setattr(predicted, "lower_plan", counted)
    x, y = noise((6000, 40), (300, 40)), noise((6000, 40), (300, 40))
    array = (x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1) - 2 * x @ y.T
    numbers = []
    for factor in (1e-9, cheapest.BETTER_BUNDLED, 1e9):
        monkeypatch.setattr(cheapest, "BETTER_BUNDLED", factor)
        written.clear()
        dasktile.optimize(array)
        numbers.append(len(written))
    assert numbers[0] == 1 < numbers[1] <= numbers[2]


def test_smaller_bundles_are_written_only_if_their_tasks_leave_a_gain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written, counts = [], []
    resized = Lowered.resized

    def noted(lowered: Lowered, share: float, may_pay: Any) -> Lowered:
        def pays(tasks: int) -> bool:
            counts.append(tasks)
            return may_pay(tasks)

        new = resized(lowered, share, pays)
        smaller = resized(lowered, share)
        if smaller is not lowered:
            # no more tasks are counted than run, else the bound would be none
            run = predicted.predict_plan(smaller, Machine(4, order=tuple("0123")))
            assert run is not None and counts[-1] <= run.tasks
        written.append(new is not lowered)
        return new

    monkeypatch.setattr(Lowered, "resized", noted)
    for rows in (1000, 100, 20):
        x = noise((4000, 400), (rows, 400))
        dasktile.optimize(x - x.mean(axis=0), (x.T @ x) @ noise((400, 4000), (400, rows)))
    # both happened: a graph was written, and one was not worth it
    assert True in written and False in written


@pytest.mark.parametrize(
    "build",
    [
        lambda: (noise((1200, 1200), 400) + 1).sum(axis=0),
        # most blocks of a cube are not needed
        lambda: noise((224,) * 3, 32)[(slice(0, 78),) * 3],
    ],
)
def test_a_small_graph_has_no_plan(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    small = build()
    told = dasktile.explain(small)
    assert not told.changed and told.verdict == small_graphs.SMALL
    monkeypatch.setattr(choice, "plan_request", lambda *_, **__: pytest.fail("a plan is made"))
    monkeypatch.setattr(choice, "candidate", lambda *_, **__: pytest.fail("a plan is made"))
    assert dasktile.optimize(small) is small


@pytest.mark.parametrize(
    "large",
    [
        # many tasks, memory, bytes that workers receive, and a product on one worker
        lambda: (noise((1200, 1200), 100) + 1).sum(axis=0),
        lambda: (noise((6000, 6000), 2000) + 1).sum(axis=0),
        lambda: noise((2000, 2000), (250, 2000)).rechunk((2000, 250)) + 1,
        lambda: noise((1200, 1200), 400).rechunk(-1) @ noise((1200, 1200), -1),
    ],
)
def test_other_graphs_have_plans(large: Any) -> None:
    assert dasktile.explain(large()).verdict != small_graphs.SMALL


def test_a_missing_simulation_has_a_reason() -> None:
    x = da.from_array(np.ones((110, 110)), chunks=1)
    array = (x + 1).sum(axis=0)
    explanation = dasktile.explain(array, workers=4)
    assert explanation.run_tasks_before is None
    assert explanation.run_tasks_after is not None
    text = " ".join(str(explanation).split())
    because = "not predicted, as the graph has more than 10,000 tasks before Dask"
    assert f"what it moves and holds, is {because}" in text
    assert f"fuses them ({len(dict(array.dask)):,} as it is" in text
    assert dasktile.explain((x[:20] + 1).sum(axis=0), workers=4).unpredicted == ""


def test_results_of_unknown_sizes_are_no_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many elements are selected is unknown, and so are the bytes that are sent."""
    plan_for_workers(monkeypatch, 4)
    x = da.random.default_rng(0).random((400, 400), chunks=(50, 50))
    explanation = dasktile.explain(da.unique((x * 10).astype(int)))
    assert explanation.received_after is None
    because = "the sizes of many results are unknown, of getitem, unique; bytes received for these"
    assert because in explanation.unpredicted


def test_unknown_sizes_of_the_plan_alone_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels of a group-by may be data of Dask's graph, and joined of tiles in that of the plan."""
    plan_for_workers(monkeypatch, 4)
    monkeypatch.setattr(choice, "unknown_sizes", lambda *_: ())
    x = da.random.default_rng(0).random((400, 400), chunks=(50, 50))
    explanation = dasktile.explain(da.unique((x * 10).astype(int)))
    assert "the sizes of many results are unknown, of getitem, unique" in explanation.unpredicted


def test_arguments_of_delayed_functions_are_said_not_to_be_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan_for_workers(monkeypatch, 4)
    x = da.random.default_rng(0).random((4000, 4000), chunks=(500, 500))
    norm = da.from_delayed(dask.delayed(np.linalg.norm)((x @ x.T).sum(axis=0)), (), float)
    text = " ".join(str(dasktile.explain(x - norm)).split())
    assert "unknown, of arguments of delayed functions; bytes received for these are not" in text


def test_what_a_plan_takes_is_shown_where_only_its_input_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan_for_workers(monkeypatch, 4)
    shuffle = pytest.importorskip("distributed.shuffle")
    x = noise((800, 800), (100, 100))
    rows = shuffle.rechunk_p2p(
        x, ((50,) * 16, (800,)), threshold=1, block_size_limit=10**8, balance=False
    )
    explanation = dasktile.explain(rows.sum(axis=0))
    # as many as a cluster runs, whatever the sizes of their results
    assert explanation.run_tasks_before == 125
    assert explanation.received_before is None and explanation.results_before is None
    text = " ".join(str(explanation).split())
    assert f"as it runs: {explanation.run_tasks_after} tasks instead of 125" in text
    assert "what Dask's own graph moves and holds is not predicted, as the sizes of many" in text


def test_sizes_of_the_largest_elements_with_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask notes the elements of the array that the largest ones are searched in."""
    plan_for_workers(monkeypatch, 4)
    rng = da.random.default_rng(0)
    scores = rng.random((400, 64), chunks=(50, 64)) @ rng.random((64, 6000), chunks=(64, 500))
    explanation = dasktile.explain(da.argtopk(scores, 10, axis=1))
    assert explanation.changed
    assert explanation.received_before is not None and explanation.received_after is not None
    assert explanation.received_after <= explanation.received_before


def test_a_bound_says_that_it_counts_what_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch, 4)
    x = da.random.default_rng(0).random((800, 800), chunks=100)
    product = da.exp(x @ x.T)
    part = dasktile.explain(product[:400, :400] @ product[400:, 400:])
    whole = dasktile.explain(product)
    assert whole.lower_bound
    assert whole.grids == "any grid of 4 workers"
    assert part.counts_unneeded and not whole.counts_unneeded
    assert "if all blocks of all arrays were computed" in " ".join(str(part).split())


def noted_inputs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that has an item for each graph of Dask's own that is simulated from now on."""
    noted: list[Any] = []

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            noted.append(arguments)
            return function(*arguments, **options)

        return call

    for module, name in (
        (predicted, "input_tasks"),
        (choice, "predicted_input"),
        (small_graphs, "predicted_input"),
    ):
        monkeypatch.setattr(module, name, noting(getattr(module, name)))
    return noted


def test_dasks_graph_is_not_simulated_where_a_plan_is_far_better(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulated_inputs = noted_inputs(monkeypatch)
    array = noise((1000, 1000), (20, 20)).sum(axis=0)
    quick = dasktile.optimize(array)
    assert not simulated_inputs
    # what explain shows is complete
    assert dasktile.explain(array).peak_before is not None and simulated_inputs
    monkeypatch.setattr(cheapest, "_takes_less_time", lambda *_: False)
    assert dasktile.optimize(array).dask.layers.keys() == quick.dask.layers.keys()
    # few of the tasks are needed: they do not take far more time than the plan
    monkeypatch.undo()
    plan_for_workers(monkeypatch)
    simulated_inputs = noted_inputs(monkeypatch)
    dasktile.optimize(noise((1000, 1000), (100, 100)).sum(axis=0)[:100])
    assert simulated_inputs


def test_chains_that_dask_fuses_are_few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch, 16, 4)
    x = noise((4000, 400), (100, 400))
    for number in range(10):
        x = x * 1.5 + number
    array = x[:, ::2].sum(axis=0)
    told = dasktile.explain(array)
    # Dask runs 94 tasks of 934: they get workers
    assert told.keeps_all_chunks and told.run_tasks_after <= told.run_tasks_before == 94


def test_plans_that_may_take_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Any] = []
    takes_less_time = cheapest._takes_less_time
    monkeypatch.setattr(cheapest, "_takes_less_time", lambda *each: compared.append(each))
    array = noise((2000, 2000), (50, 50)).sum(axis=0)
    dasktile.optimize(array)
    [(plan, stock)] = compared
    run = Prediction(0.001, 0, 2**20, None, 4, 2**20)
    assert takes_less_time(replace(plan, after=run), stock)
    # the scheduler takes a millisecond for each of the 1,600 tasks of Dask
    assert takes_less_time(replace(plan, after=replace(run, seconds=1.5)), stock)
    assert not takes_less_time(replace(plan, after=replace(run, seconds=2.5)), stock)
    assert not takes_less_time(replace(plan, after=replace(run, guessed=0.5)), stock)
    assert not takes_less_time(replace(plan, after=replace(run, room=2**19)), stock)
    # whatever memory the input needs, its run costs more than a second
    assert stock.costs_more(replace(run, seconds=1.0).cost)
    assert not stock.costs_more(replace(run, seconds=3.0).cost)
    assert stock.prediction is not None
    assert not stock.costs_more(stock.prediction.cost)


@pytest.mark.parametrize(
    ("peak", "small", "compared", "lean"),
    [
        (2**21, None, False, False),  # hardly any memory
        (2**23, None, False, False),  # little memory
        (2**24, None, False, False),  # Dask's own tasks cost more with however little memory
        (2**25, None, True, False),
        (2**25, 2**22, False, True),  # small tiles need less
        (2**23 + 1, 2**22, False, True),
        (2**27, 2**25, True, True),
    ],
)
def test_dasks_graph_is_simulated_where_a_plan_needs_memory(
    peak: int, small: int | None, compared: bool, lean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs: list[Any] = []

    def smaller(request: Any, captured: Any, tables: Any, plans: Any, _: Any) -> list[Candidate]:
        [usual] = plans
        return plans if small is None else [usual, replace(usual, after=replace(run, peak=small))]

    run = Prediction(0.01, 0, peak, None, 4, peak)
    monkeypatch.setattr(cheapest, "_takes_less_time", lambda *_: True)
    monkeypatch.setattr(
        cheapest, "with_own_prediction", lambda _, plan, __: replace(plan, after=run)
    )
    monkeypatch.setattr(cheapest, "_with_smaller_tiles", smaller)
    monkeypatch.setattr(
        predicted, "input_tasks", lambda *each: inputs.append(each) or (None, math.inf)
    )
    plans: list[Candidate] = []

    def chosen(request: Any, read: Any) -> Candidate:
        plan = choice.chosen_plan(request, read)
        assert plan is not None
        plans.append(plan)
        return plan

    monkeypatch.setattr(pipeline, "chosen_plan", chosen)
    dasktile.optimize(noise((2000, 2000), (50, 50)).sum(axis=0))
    assert bool(inputs) is compared
    if not compared:
        [plan] = plans
        assert plan.after is not None
        assert plan.after.peak == (small if lean else peak)


def test_own_chunks_are_not_joined_for_several_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan with the input's own chunks needs little memory: three gradients read each block."""
    plan_for_workers(monkeypatch, 4)
    x = da.random.default_rng(0).random((200, 200, 200), chunks=(50, 50, 50))
    explanation = dasktile.explain(sum(each**2 for each in da.gradient(x)).mean())
    assert explanation.changed
    # a quarter of the array, and little more
    assert explanation.results_after <= 1.25 * x.nbytes / 4
    assert explanation.results_after <= explanation.results_before
    assert explanation.run_tasks_after <= explanation.run_tasks_before


def test_combined_results_have_the_groups_of_their_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block has three months of ten years; those of a worker have all months."""
    xarray, pandas = pytest.importorskip("xarray"), pytest.importorskip("pandas")
    pytest.importorskip("flox")
    plan_for_workers(monkeypatch, 4)
    days = pandas.date_range("2001-01-01", periods=2920, freq="D")
    data = da.random.default_rng(0).random((2920, 80, 120), chunks=(73, 80, 120))
    array = xarray.DataArray(data, dims=("time", "lat", "lon"), coords={"time": days})
    first = array.groupby("time.month").first()
    planned, explanation = dasktile.optimize(first), dasktile.explain(first)
    received, _ = traffic([planned.data], 4)
    assert explanation.received_after == pytest.approx(sum(received.values()), rel=0.05)


@pytest.mark.parametrize("meshes", [[6], [6, 7], [5, 6, 12]])
@pytest.mark.parametrize("workers", [5, 6, 7, 12])
def test_tasks_of_a_plan_for_other_workers_run_where_the_scheduler_puts_them(
    workers: int, meshes: list[int]
) -> None:
    """Plans of several meshes; of one of six positions six of twelve workers would be idle."""
    layers: dict[str, dict[Any, Task]] = {}
    for size in meshes:
        sharding = Sharding((Share((0,), (1,) * size),))
        head = new_layer_name("sum", size, placement=Placement((size,), sharding))
        layers[head] = {(head, at): Task((head, at), np.zeros, 1000) for at in range(size)}
    graph = HighLevelGraph(layers, {head: set() for head in layers})
    order = tuple(map(str, range(workers)))
    machine = Machine(workers, 1, order=order, who_has=lambda blocks: {})
    seen: list[PlacedTasks] = []

    def simulated(tasks: PlacedTasks, *rest: Any) -> Any:
        seen.append(tasks)
        return simulate(tasks, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dasktile.prediction.simulate", simulated)
        predict_input(graph, {head: list(tasks) for head, tasks in layers.items()}, machine)
    there: list[int | None] = []
    for size, head in zip(meshes, layers, strict=True):
        homes = Homes(order).layer(head)
        there += [None if homes is None else int(homes.home((at,)) or 0) for at in range(size)]
    assert sorted(seen[0].homes, key=str) == sorted(there, key=str)


def test_means_of_masked_arrays_have_small_partial_results() -> None:
    x = da.ma.masked_less(noise((3000, 2000), (300, 500)), 0.5)
    told = dasktile.explain(da.ma.filled(x - x.mean(axis=0), 0).sum(axis=1))
    # Dask describes the first step of a mean as it describes the array
    assert told.changed
    assert told.bytes_predicted <= x.nbytes / 100
