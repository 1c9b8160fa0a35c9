"""What was decided for a computation is looked up for the same computation with other keys."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import dask
import dask.array as da
import dask.tokenize
import numpy as np
import pytest
from dask.highlevelgraph import HighLevelGraph

import dasktile
from dasktile import api, choice, decisions, small_graphs, templates
from dasktile.cluster.target import Machine
from dasktile.planning import Candidate
from dasktile.recent import recently_used
from tests.agreement import EAGER
from tests.expressions import grown, outputs

#: Workers on which tasks run where a plan places them.
WORKERS = 4


def cluster(workers: int = WORKERS, **options: Any) -> Machine:
    order = tuple(map(str, range(workers)))
    return Machine(workers, order=order, who_has=lambda blocks: {}, room=2**30, **options)


@contextmanager
def salted(salt: str) -> Iterator[None]:
    """Other tokens in all names of keys."""
    original = dask.tokenize._tokenize

    def tokenize(*args: Any, **kwargs: Any) -> str:
        return original((salt,), *args, **kwargs)

    with mock.patch.object(dask.tokenize, "_tokenize", tokenize):
        yield


def twice(seed: int) -> list[list[da.Array]]:
    """The arrays of a random expression, twice, with other tokens in the names of keys."""
    expressions = []
    for salt in "ab":
        with salted(salt):
            expressions.append([value.lazy for value in outputs(grown(random.Random(seed)))])
    return expressions


@contextmanager
def planning() -> Iterator[list[Candidate]]:
    """The plans that are chosen anew, and not looked up."""
    chosen: list[Candidate] = []
    choose = choice._chosen

    def spy(*args: Any) -> Candidate:
        chosen.append(choose(*args))
        return chosen[-1]

    with mock.patch.object(choice, "_chosen", spy):
        yield chosen


@contextmanager
def machine(target: Machine) -> Iterator[None]:
    """Workers to plan for, also where a graph takes less time than a plan."""
    always = mock.patch.object(small_graphs, "MOST_SMALL", 0)
    with always, mock.patch.object(api, "machine", lambda *_: target):
        yield


def arrays(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def tasks_of(collections: Sequence[Any]) -> dict[Any, Any]:
    """For every key: the function, and the keys that are read."""
    graph = HighLevelGraph.merge(*(array.__dask_graph__() for array in collections))
    return {
        key: (getattr(task, "func", type(task)), getattr(task, "dependencies", ()))
        for key, task in graph.items()
    }


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")
@pytest.mark.parametrize("config", [{}, EAGER])
def test_a_plan_that_is_looked_up_is_that_of_planning_anew(config: dict[str, Any]) -> None:
    looked_up = 0
    with machine(cluster()), dask.config.set(config):
        for seed in range(25):
            keep_chunks = seed % 3 == 0
            expressions = twice(seed)
            templates.forget()
            with planning() as chosen:
                dasktile.optimize(*expressions[0], keep_chunks=keep_chunks)
                first = len(chosen)
                templates._store.clear()
                again = arrays(dasktile.optimize(*expressions[1], keep_chunks=keep_chunks))
                looked_up += first
                assert len(chosen) == first
                with dask.config.set({"dasktile.reuse-plans": False}):
                    anew = arrays(dasktile.optimize(*expressions[1], keep_chunks=keep_chunks))
                assert len(chosen) == 2 * first
            assert [array.name for array in again] == [array.name for array in anew]
            assert [array.chunks for array in again] == [array.chunks for array in anew]
            assert tasks_of(again) == tasks_of(anew)
            # names of keys decide nothing
            assert not first or chosen[0].before == chosen[1].before
            assert not first or chosen[0].after == chosen[1].after
    assert looked_up > 15


def double(block: Any) -> Any:
    return 2 * block


def triple(block: Any) -> Any:
    return 3 * block


def program(
    side: int = 400,
    chunk: Any = 100,
    dtype: str = "f8",
    factor: float = 0.5,
    start: int = 0,
    positions: Sequence[int] = (5, 3, 210),
    axis: int = 0,
    function: Callable[[Any], Any] = double,
    seed: int = 0,
    reader: bool = False,
    outputs: int = 1,
) -> list[da.Array]:
    """A computation, of which every argument may be another one."""
    rng = np.random.default_rng(seed)
    data = da.from_array(rng.random((side, side)).astype(dtype), chunks=chunk)
    noise = da.random.default_rng(seed).random((side, side), chunks=chunk).astype(dtype)
    x = (data @ noise) * factor
    y = x[start:].map_blocks(function, dtype=x.dtype) - x[start:].mean(axis=axis)
    z = y[:, list(positions)].sum(axis=0)
    if reader:
        z = z + x.sum()
    return [z, y, x][:outputs]


@pytest.mark.parametrize("change", [{"factor": 0.25}, {"seed": 1}, {"factor": 2.0, "seed": 7}])
def test_data_and_constants_do_not_decide(change: dict[str, Any]) -> None:
    with machine(cluster()), planning() as chosen:
        dasktile.optimize(*program())
        result = dasktile.optimize(*program(**change))
        assert len(chosen) == 1
    [expected] = dask.compute(*program(**change), scheduler="sync")
    np.testing.assert_allclose(result.compute(scheduler="sync"), expected)


@pytest.mark.parametrize(
    "change",
    [
        {"side": 401},
        {"chunk": 50},
        {"chunk": ((100, 100, 150, 50), 100)},
        {"dtype": "f4"},
        {"start": 1},
        {"positions": (5, 4, 210)},
        {"positions": (5, 3, 210, 7)},
        {"axis": 1},
        {"function": triple},
        {"reader": True},
        {"outputs": 2},
    ],
)
def test_what_decides_is_planned_anew(change: dict[str, Any]) -> None:
    with machine(cluster()), planning() as chosen:
        dasktile.optimize(*program())
        dasktile.optimize(*program(**change))
        assert len(chosen) == 2


@pytest.mark.parametrize(
    "target",
    [
        cluster(3),
        cluster(threads=2),
        cluster(memory_limit=2**20),
        Machine(WORKERS),
        Machine(WORKERS, order=("a", "b", "c", "d"), who_has=lambda blocks: {}, room=2**20),
    ],
)
def test_another_machine_is_planned_for_anew(target: Machine) -> None:
    with planning() as chosen:
        with machine(cluster()):
            dasktile.optimize(*program())
        with machine(target):
            dasktile.optimize(*program())
        assert len(chosen) == 2


@pytest.mark.parametrize(
    "config",
    [
        {"dasktile.tiling.min-tile": 1},
        {"dasktile.cost.task-bytes": 1},
        {"dasktile.bundle": 4},
        {"dasktile.method": "spartan"},
        {"optimization.fuse.active": False},
        {"dasktile.reuse-plans": False},
    ],
)
def test_another_setting_is_planned_for_anew(config: dict[str, Any]) -> None:
    with machine(cluster()), planning() as chosen:
        dasktile.optimize(*program())
        with dask.config.set(config):
            dasktile.optimize(*program())
        assert len(chosen) == 2


def test_chunks_that_are_kept_decide() -> None:
    with machine(cluster()), planning() as chosen:
        dasktile.optimize(*program())
        dasktile.optimize(*program(), keep_chunks=True)
        assert len(chosen) == 2


def test_stored_chunks_decide() -> None:
    class Store:
        ndim, shape, dtype = 2, (400, 400), np.dtype("f8")

        def __init__(self, chunks: tuple[int, int]) -> None:
            self.chunks = chunks

        def __getitem__(self, index: Any) -> Any:
            return np.ones(self.shape)[index]

    with machine(cluster()), planning() as chosen:
        for chunks in ((50, 50), (50, 50), (100, 50)):
            x = da.from_array(Store(chunks), chunks=100, name=False)
            dasktile.optimize(x.T @ x)
        assert len(chosen) == 2


def test_places_of_persisted_blocks_decide() -> None:
    def holding(shift: int) -> Machine:
        def who_has(blocks: Any) -> dict[Any, list[str]]:
            return {key: [str((sum(key[1:]) + shift) % WORKERS)] for key in blocks}

        return Machine(WORKERS, order=tuple("0123"), who_has=who_has, room=2**30)

    with planning() as chosen:
        for seed, shift in ((0, 0), (1, 0), (2, 1)):
            x = da.random.default_rng(seed).random((400, 400), chunks=100)
            with machine(holding(shift)):
                dasktile.optimize(x.persist(scheduler="sync") @ np.eye(400))
        assert len(chosen) == 2


def test_needed_blocks_decide() -> None:
    def planned(x: da.Array, last: int) -> None:
        keys = [(x.name, i, j) for i in range(last) for j in range(4)]
        dasktile.array_optimize(x.__dask_graph__(), keys)

    with machine(cluster()), planning() as chosen:
        for seed, last in ((0, 4), (1, 4), (2, 2), (3, 2)):
            [*_, x] = program(seed=seed, outputs=3)
            planned(x, last)
        assert len(chosen) == 2


def test_decisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    few = recently_used(2, 2**20, lambda decision: 1)
    monkeypatch.setattr(decisions, "_store", few)
    monkeypatch.setattr(templates, "_store", recently_used(1, 1, lambda template: 2))
    with machine(cluster()), planning() as chosen:
        for side in (250, 300, 400, 300):
            dasktile.optimize(*program(side))
        assert len(chosen) == 3
        dasktile.optimize(*program(250))
        assert len(chosen) == 4
    assert len(few) == 2
    few.n = 1
    with machine(cluster()):
        dasktile.optimize(*program(260))
    assert not few


def test_decisions_hold_no_arrays_and_no_graphs() -> None:
    import gc
    import weakref

    class Data(np.ndarray):
        """An array of which there are weak references."""

    with machine(cluster()):
        data = np.random.default_rng(0).random((400, 400)).view(Data)
        x = da.from_array(data, chunks=100)
        y = x.T @ x
        dasktile.optimize(y)
        held = [weakref.ref(data), weakref.ref(y.__dask_graph__())]
        del data, x, y
        gc.collect()
        assert decisions._store
        assert [each() for each in held] == [None, None]


def gradient(data: np.ndarray[Any, Any], numbers: np.ndarray[Any, Any]) -> da.Array:
    places = np.cumsum(0.5 + np.abs(numbers[:, 0]))
    x = da.from_array(data, chunks=(30, 40))
    return da.gradient(x * 2 - x.mean(axis=1, keepdims=True), places, axis=0)


def histogram(data: np.ndarray[Any, Any], numbers: np.ndarray[Any, Any]) -> da.Array:
    bins = np.cumsum(0.1 + np.abs(numbers[:20, 0]))
    x = da.from_array(data, chunks=(30, 40)) - 1
    return da.histogram(x, bins=bins)[0]


def digitized(data: np.ndarray[Any, Any], numbers: np.ndarray[Any, Any]) -> da.Array:
    bins = np.sort(numbers[:20, 0])
    x = da.from_array(data, chunks=(30, 40)).rechunk((40, 30))
    return da.digitize(x, bins).sum(axis=0)


def scaled(data: np.ndarray[Any, Any], numbers: np.ndarray[Any, Any]) -> da.Array:
    """By a function that keeps data."""
    x = da.from_array(data, chunks=(30, 40)).T
    return x.map_blocks(lambda block: block * numbers[0, 0], dtype=float).sum(axis=0)


@pytest.mark.parametrize("make", [gradient, histogram, digitized, scaled])
def test_a_plan_that_is_looked_up_has_its_own_data(make: Callable[..., da.Array]) -> None:
    rng = np.random.default_rng(0)
    with machine(cluster()), dask.config.set(EAGER):
        templates.forget()
        for turn in range(3):
            array = make(rng.normal(size=(120, 120)), rng.normal(size=(120, 120)))
            with planning() as chosen:
                planned = dasktile.optimize(array)
            assert len(chosen) == (turn == 0)
            np.testing.assert_allclose(
                *dask.compute(planned, array, scheduler="sync"), rtol=1e-9, atol=1e-12
            )
