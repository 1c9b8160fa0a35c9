"""SwapAdvisor's genetic algorithm: its chromosomes, its published examples, and its results."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.algorithms.allocate import Pool
from benchmarks.papers.algorithms.chromosomes import (
    averaged,
    blocks_of,
    cross_orders,
    cross_pools,
    extended,
    fill_cnt,
    mutate_cls,
    mutate_cnt,
    mutate_order,
    repair_cls,
    repair_cnt,
    survival,
)
from benchmarks.papers.algorithms.genetic import Evolved, Seed, in_classes, swapadvisor
from dasktile.schedule.simulate import HostLink
from dasktile.schedule.taskgraph import TaskGraph, taskgraph

SIZES = np.array([1, 2, 3, 4])


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def chains(count: int = 3, length: int = 5) -> TaskGraph:
    """Chains that share a parameter at every step, in the order of chains."""
    size = [4] * length + [1 + link % 2 for _ in range(count) for link in range(length)]
    reads, writes = [], []
    for chain in range(count):
        for link in range(length):
            made = length + chain * length + link
            reads.append([link] if not link else [link, made - 1])
            writes.append([made])
    kept = [length + chain * length + length - 1 for chain in range(count)]
    return taskgraph([1.0] * len(reads), size, reads, writes, None, range(length), kept)


def loads(graph: TaskGraph) -> int:
    """A model of the time in a pool: one second for each change of the parameter."""
    parameters = [int(graph.reads[op][0]) for op in range(len(graph))]

    def evaluate(order: np.ndarray, pool: Pool) -> float:
        used = [parameters[op] for op in order.tolist()]
        changes = sum(a != b for a, b in zip(used, used[1:], strict=False))
        return 1.0 + changes + 1.0 / int(pool.counts.sum())

    return evaluate


def test_orders_cross_as_in_figure_4_5() -> None:
    # Five nodes: 1 -> 4, 2 -> 3 -> 4 or the like; the first child is drawn there.
    one, other = ints(1, 2, 3, 4, 5) - 1, ints(2, 3, 4, 1, 5) - 1
    first, second = cross_orders(one, other, 3)
    assert (first + 1).tolist() == [2, 3, 4, 1, 5]
    assert (second + 1).tolist() == [1, 2, 3, 4, 5]


def test_pools_cross_and_are_repaired_as_in_figure_4_6() -> None:
    one, other = (ints(1, 1, 1, 1), ints(4)), (ints(1, 2, 2, 2), ints(8, 1))
    assert extended(*one).tolist() == [4, 4, 4, 4]
    assert extended(*other).tolist() == [8, 1, 1, 1]
    (cls1, cnt1), (cls2, cnt2) = cross_pools(one, other, 2)
    assert (cls1.tolist(), cnt1.tolist()) == ([1, 2, 2, 2], [8, 3])
    assert (cls2.tolist(), cnt2.tolist()) == ([1, 1, 2, 2], [4, 1])
    blocks = blocks_of(cls1, SIZES)
    assert blocks.tolist() == [1, 4]
    # 20 MB do not fit into 12
    assert repair_cnt(cnt1, blocks, 12, ints(0, 0)).tolist() == [4, 2]
    assert repair_cnt(cnt2, blocks_of(cls2, SIZES), 12, ints(0, 0)).tolist() == [4, 1]


def test_repair_of_classes_is_minimal() -> None:
    assert repair_cls(ints(1, 2, 1, 1)).tolist() == [1, 2, 2, 2]
    assert repair_cls(ints(1, 1, 3, 3)).tolist() == [1, 2, 3, 3]
    assert repair_cls(ints(1, 1, 2, 3)).tolist() == [1, 1, 2, 3]


def test_repair_keeps_the_objects_that_operations_need() -> None:
    assert repair_cnt(ints(8, 3), ints(1, 4), 12, ints(0, 3)).tolist() == [0, 3]
    # the least objects exceed the capacity
    assert repair_cnt(ints(1, 1), ints(1, 4), 12, ints(2, 3)).tolist() == [2, 3]


cls_lists = st.lists(st.booleans(), max_size=9).map(
    lambda steps: np.concatenate([[1], 1 + np.cumsum(np.array(steps, dtype=np.int64))])
)


@settings(deadline=None)
@given(cls_lists, st.floats(0, 1), st.integers(0, 99), st.data())
def test_operators_keep_valid_size_classes(
    cls: np.ndarray, rate: float, seed: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    sizes = np.arange(1, len(cls) + 1) * 10
    other = mutate_cls(cls, rate, rng)
    cnt = np.arange(1, cls[-1] + 1)
    cut = data.draw(st.integers(1, len(cls)))
    for made, counts in (
        (other, averaged(other, extended(cls, cnt))),
        *cross_pools((cls, cnt), (other, averaged(other, extended(cls, cnt))), cut),
    ):
        assert made[0] == 1
        assert set(np.diff(made).tolist()) <= {0, 1}
        assert len(counts) == made[-1]
        blocks = blocks_of(made, sizes)
        fixed = repair_cnt(mutate_cnt(counts, rate, rng), blocks, 200, np.zeros_like(blocks))
        assert 0 <= int(fixed @ blocks) <= 200
        filled = fill_cnt(fixed, blocks, 200, rng)
        assert (filled >= fixed).all()
        assert int(filled @ blocks) <= 200


@given(st.integers(0, 99), st.floats(0, 1), st.integers(1, 15))
@settings(max_examples=30, deadline=None)
def test_operators_keep_valid_orders(seed: int, rate: float, cut: int) -> None:
    graph = chains()
    rng = np.random.default_rng(seed)
    one = mutate_order(graph, np.arange(len(graph)), 1.0, rng)
    other = mutate_order(graph, one, rate, rng)
    assert mutate_order(graph, one, 0.0, rng).tolist() == one.tolist()
    for order in (one, other, *cross_orders(one, other, cut)):
        graph.check_order(order)


def test_survival_is_the_softmax_of_equation_4_1() -> None:
    seconds = np.array([1.0, 1.1, math.inf])
    assert survival(seconds, 1.0) == pytest.approx([1 / (1 + np.exp(-0.1)), 0.47502081, 0.0])
    # selection pressure is low as printed, and higher at a low temperature
    assert survival(seconds, 1.0, 0.02)[1] < 0.01
    assert survival(np.array([math.inf, math.inf]), math.inf).tolist() == [0.5, 0.5]


def search(seed: int = 0, **how: object) -> Evolved:
    graph = chains()
    arguments = {"population": 16, "evaluations": 160, **how}
    return swapadvisor(graph, 40, loads(graph), np.random.default_rng(seed), **arguments)


def test_results_are_deterministic() -> None:
    one, other = search(), search()
    assert one.history == other.history
    assert one.best.order.tolist() == other.best.order.tolist()
    assert one.pool.counts.tolist() == other.pool.counts.tolist()


@pytest.mark.parametrize("literal", [False, True])
def test_results_can_run(literal: bool) -> None:
    result = search(literal=literal)
    graph = chains()
    graph.check_order(result.best.order)
    assert result.pool.bytes <= 40
    assert (graph.size <= result.pool.blocks[result.pool.of]).all()
    assert result.best.seconds == loads(graph)(result.best.order, result.pool)
    assert result.best.seconds <= min(best for best, _, _ in result.history)


def test_elites_never_get_worse() -> None:
    best = [generation[0] for generation in search(evaluations=400).history]
    assert best == sorted(best, reverse=True)


def test_selection_pressure_improves_on_the_literal_algorithm() -> None:
    ours, literal = search(evaluations=800), search(evaluations=800, literal=True)
    assert ours.history[-1][1] < literal.history[-1][1]


def test_seeds_survive() -> None:
    graph = chains()
    good = np.arange(len(graph)).reshape(3, 5).T.ravel()
    seconds = loads(graph)(good, Pool(ints(0), ints(1), ints(40)))
    assert (
        search(evaluations=16, seeds=[Seed(good, np.ones(graph.data_count))]).best.seconds
        < seconds + 1
    )


def test_swaps_are_planned_for_each_pool() -> None:
    graph = chains()
    evaluate = in_classes(graph, HostLink(8.0, 8.0, None))
    order = np.arange(len(graph))
    pools = [Pool(np.zeros(20, np.int64), ints(4), ints(count)) for count in (2, 3, 9, 20)]
    seconds = [evaluate(order, pool) for pool in pools]
    # no operation fits, then some wait for parameters, and at last each is swapped in once
    assert seconds[0] == math.inf
    assert seconds[1:] == sorted(seconds[1:], reverse=True)
    assert seconds[-1] == len(graph) + 0.5
    result = swapadvisor(
        graph, 20, evaluate, np.random.default_rng(0), population=8, evaluations=200
    )
    assert len(graph) < result.best.seconds < seconds[1]


def test_searches_are_bounded() -> None:
    assert search(generations=2).evaluations == 48
    assert search(evaluations=40).evaluations == 48
    calls = []
    assert search(stop=lambda: bool(calls.append(0) or len(calls) > 1)).evaluations == 32


def test_memory_too_small_for_all_pools_gives_infinite_time() -> None:
    graph = taskgraph([1.0, 1.0], [3, 4, 5], [[0], [1]], [[1], [2]], None, [0], [2])
    result = swapadvisor(
        graph, 9, lambda *_: 1.0, np.random.default_rng(0), population=4, evaluations=40
    )
    # 3 + 4, then 4 + 5 bytes: one class of two objects needs 10
    assert result.best.seconds == math.inf


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"population": 1}, "population must be at least 2"),
        ({"mutation": 1.5}, "mutation must be from 0 to 1"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"elites": -1}, "elites must be at least 0"),
        ({"seeds": [Seed([0], np.ones(20))]}, "an order must have each of 15 operations once"),
    ],
)
def test_wrong_arguments(how: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        search(**how)
