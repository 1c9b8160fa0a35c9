"""References and data in tasks."""

from __future__ import annotations

import decimal
import warnings
from collections import namedtuple
from collections.abc import Callable
from itertools import permutations
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import Alias, DataNode, List, Task, TaskRef, convert_legacy_graph
from dask.blockwise import Blockwise
from dask.graph_manipulation import clone
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

import dasktile
import dasktile.planning
from dasktile._compat.dask import execute_subgraph
from dasktile.capture.base import GraphView
from dasktile.capture.highlevel import capture, capture_graph
from dasktile.capture.references import (
    Keys,
    head_of,
    in_order_of_reads,
    is_block,
    is_block_number,
    references,
    with_head,
)
from dasktile.capture.undeclared import UndeclaredReadError, declare_reads
from dasktile.errors import InconsistentGraphWarning
from tests.operations.handwritten import FORMS, NUMBERS, raw_alias, raw_task, same
from tests.support import accept_all_plans

Named = namedtuple("Named", "head block")

X = np.arange(24.0).reshape(4, 6)


def source() -> da.Array:
    """Two by two blocks of a Blockwise layer."""
    return da.from_array(X, chunks=(2, 3)) + 1


def by_hand(array: da.Array, form: Callable[..., Any], own: Any = int, read: Any = int) -> da.Array:
    tasks = {}
    for block in np.ndindex(array.numblocks):
        key = ("by-hand", *map(own, block))
        tasks[key] = form(key, (array.name, *map(read, block)))
    graph = HighLevelGraph.from_collections("by-hand", tasks, dependencies=[array])
    return da.Array(graph, "by-hand", array.chunks, meta=array._meta)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Everything is rewritten, for four workers."""
    accept_all_plans(monkeypatch)
    monkeypatch.setattr(dasktile.planning, "_moves_more", lambda *_: False)
    settings = {
        "dasktile.workers": 4,
        "dasktile.cost.task-bytes": 1,
        "dasktile.tiling.min-tile": 1,
        "dasktile.raise-errors": True,
    }
    with dask.config.set(settings):
        yield


@pytest.mark.parametrize("number", [*NUMBERS, bool, np.bool_, decimal.Decimal, complex])
def test_values_equal_to_block_numbers_are_block_numbers(number: Any) -> None:
    for value in (0, 1):
        assert is_block_number(number(value), 2) == (number(value) in dict.fromkeys(range(2)))


@pytest.mark.parametrize(
    "value",
    [2, -1, np.int64(2), np.int64(-1), 0.5, np.nan, np.inf, "0", None, (0,), [0], np.array(0)],
)
def test_other_values_are_not_block_numbers(value: Any) -> None:
    assert not is_block_number(value, 2)


def test_keys_equal_those_of_a_dict() -> None:
    array = source()
    layer = array.dask.layers[array.name]
    assert isinstance(layer, Blockwise)
    keys = Keys({array.name: layer}, {})
    written = dict(layer)
    name = array.name
    for key in [
        *((name, number(1), number(0)) for number in NUMBERS),
        (name, 2, 0),
        (name, 0),
        (name, 0, 0, 0),
        (name, "0", 0),
        ("other", 0, 0),
        name,
        (),
        (name,),
        (np.str_(name), 0, 1),
    ]:
        assert (key in keys) == (key in written), key
    assert (name, [0], 0) not in keys
    assert (name, np.zeros(2), 0) not in keys
    assert [name, 0, 0] not in keys


def test_named_tuples_that_equal_keys_are_keys() -> None:
    name = "x"
    layer = MaterializedLayer({(name, 0): 1})
    keys = Keys({name: layer}, {name: {name}})
    assert Named(name, 0) in keys
    assert keys.owner(Named(name, np.int64(0))) == name
    assert is_block(Named(name, 0), name, (1,))
    assert head_of(Named(name, 0)) == name
    assert with_head(Named(name, 0), "y") == ("y", 0)


def test_culled_blocks_are_not_keys() -> None:
    array = source()
    culled, _ = array.dask.layers[array.name].cull({(array.name, 0, 0)}, set())
    keys = Keys({array.name: culled}, {})
    assert (array.name, np.int64(0), 0) in keys
    assert (array.name, 1, 0) not in keys


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("form", FORMS)
def test_references_are_those_of_dask(form: Any, number: Any) -> None:
    array = by_hand(source(), form, read=number)
    view = GraphView(array.dask)
    whole = convert_legacy_graph(dict(array.dask))
    for key, node in view.tasks(array.name).items():
        assert node.dependencies == whole[key].dependencies
        assert set(references(node)) == whole[key].dependencies


#: Tasks of one layer, by whether all that they read is in nested lists of keys.
LISTED: dict[str, tuple[bool, list[Any]]] = {
    "lists": (True, [[("a", 0, 0), ("a", 0, 1)], [("a", 1, 0)]]),
    "nested lists": (True, [[[("a", 0, 0)], [("a", 1, 0), ("b", 1)]], [[("b", 0)]]]),
    "other numbers": (True, [[("a", np.int64(0), 0.0)], [("b", True)]]),
    "no lists": (True, [("a", 0, 0), ("b", 1)]),
    "lists of other depths": (False, [[("a", 0, 0)], [[("a", 0, 0)]]]),
    "no key": (False, [[("a", 0, 0)], [("a", 0, 9)]]),
    "no key, materialised": (False, [[("a", 0, 0)], [("b", 9)]]),
    "a key that is not declared": (False, [[("c", 0)], [("a", 0, 0)]]),
    "a task": (False, [[(same, ("a", 0, 0))], [("a", 0, 0)]]),
    "numbers": (False, [[("a", 0, 0), 1], [("a", 1, 0)]]),
    "an unhashable tuple": (False, [[("a", slice(0))], [("a", 1, 0)]]),
    "nothing": (False, [[], []]),
}


@pytest.mark.parametrize("name", LISTED)
def test_keys_in_lists_are_those_that_dask_finds(name: str) -> None:
    is_listed, arguments = LISTED[name]
    array = da.ones((4, 4), chunks=2, name="a")
    layers = {
        **array.dask.layers,
        "b": MaterializedLayer({("b", 0): 1, ("b", 1): 2}),
        "c": MaterializedLayer({("c", 0): 1}),
        "d": MaterializedLayer({("d", i): (same, each) for i, each in enumerate(arguments)}),
    }
    graph = HighLevelGraph(layers, {"a": set(), "b": set(), "c": set(), "d": {"a", "b"}})
    listed = GraphView(graph).listed_keys("d")
    assert (listed is not None) == is_listed
    if listed is not None:
        tasks = GraphView(graph).tasks("d").values()
        assert listed == frozenset().union(*(task.dependencies for task in tasks))


def test_references_come_from_left_to_right() -> None:
    keys = [("x", number) for number in range(6)]
    inner = Task(None, same, TaskRef(keys[3]))
    task = Task("y", same, TaskRef(keys[5]), List(TaskRef(keys[1]), inner), block=Alias(keys[4]))
    assert references(task) == (keys[5], keys[1], keys[3], keys[4])
    assert references(DataNode("y", keys[0])) == ()


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_references_of_fused_tasks_do_not_depend_on_the_order_of_their_inputs(
    names: tuple[str, str],
) -> None:
    # Dask lists them in the order of a set: first in a step that is fused again, then in the whole
    keys = {"a": ("x", 1), "b": ("x", 0)}
    parts = {
        "first": Task("first", same, TaskRef("a"), TaskRef("b")),
        "second": Task("second", same, TaskRef("first")),
    }
    reads = tuple(TaskRef(keys[name]) for name in names)
    step = Task("step", execute_subgraph, parts, "second", names, *reads)
    last = Task("last", same, TaskRef("step"))
    tasks = {"last": last, "step": step}
    inner = tuple(keys[name] for name in names)
    whole = Task("whole", execute_subgraph, tasks, "last", inner, *map(TaskRef, inner))
    assert references(step) == references(whole) == (keys["a"], keys["b"])


def test_tasks_of_a_layer_are_ordered_by_their_reads() -> None:
    def task(key: Any, *reads: Any) -> Task:
        return Task(key, same, *map(TaskRef, reads))

    tasks = [task("a", "b", "c"), task("b", "d"), task("c", "d", "outside"), task("d"), task("e")]
    for order in permutations(tasks[:4]):
        given = {each.key: each for each in [tasks[4], *order]}
        assert list(in_order_of_reads(given, ["a"])) == ["d", "b", "c", "a", "e"]
    assert list(in_order_of_reads({"future": None}, ["future", "other"])) == ["future"]


@pytest.mark.parametrize("own", NUMBERS)
@pytest.mark.parametrize("form", FORMS)
def test_layers_by_hand_compute_the_same_with_the_hook(eager: None, form: Any, own: Any) -> None:
    array = (by_hand(source(), form, own, np.int64) + 1).rechunk((4, 2)).sum(axis=0)
    expected = (X + 2).sum(axis=0)
    with dask.config.set(array_optimize=dasktile.array_optimize):
        np.testing.assert_array_equal(array.compute(scheduler="sync"), expected)
    np.testing.assert_array_equal(dasktile.optimize(array).compute(scheduler="sync"), expected)


@pytest.mark.parametrize("form", [raw_task, raw_alias])
def test_undeclared_reads_are_declared(form: Any) -> None:
    array = source()
    whole = by_hand(array, form, read=np.int64).dask
    dependencies = {**whole.dependencies, "by-hand": set()}
    graph = HighLevelGraph(whole.layers, dependencies)
    assert declare_reads(GraphView(graph)).graph.dependencies == whole.dependencies
    assert declare_reads(GraphView(whole)).graph is whole


def test_layers_that_read_each_other_are_refused() -> None:
    layers = {
        "a": MaterializedLayer({"a": (same, "b0"), "a1": (same, 1)}),
        "b": MaterializedLayer({"b": (same, "a1"), "b0": (same, 1)}),
    }
    graph = HighLevelGraph(layers, {"a": set(), "b": set()})
    with pytest.raises(UndeclaredReadError, match=r"the layers '.' and '.' read each other"):
        declare_reads(GraphView(graph))


def test_reads_of_keys_that_are_not_blocks_are_refused() -> None:
    array = da.from_array(X, chunks=(2, 3)).rechunk((4, 2))
    inner = next(key for key in array.dask.layers[array.name] if key[0] != array.name)
    tasks = {("by-hand", 0): (same, inner)}
    graph = HighLevelGraph.from_collections("by-hand", tasks, dependencies=[array])
    with pytest.raises(UndeclaredReadError, match="not one of its blocks"):
        declare_reads(GraphView(graph))


def test_an_array_beside_its_clone_is_unchanged_with_a_warning(eager: None) -> None:
    array = da.from_array(np.arange(6), chunks=2).rechunk(3) + 1
    both = array + clone(array, seed=1)
    expected = 2 * (np.arange(6) + 1)
    with pytest.raises(UndeclaredReadError):
        capture([both])
    with (
        dask.config.set(array_optimize=dasktile.array_optimize),
        pytest.warns(InconsistentGraphWarning, match="not one of its blocks"),
    ):
        result = both.compute(scheduler="sync")
    np.testing.assert_array_equal(result, expected)
    advice = r"clone and bind make .* omit=<the rechunked arrays>, or persist these arrays first$"
    for call in (dasktile.optimize, dasktile.explain):
        with pytest.warns(InconsistentGraphWarning, match=advice) as caught:
            result = call(both)
        assert [warning.filename for warning in caught] == [__file__]
        assert result is both or "omit=<the rechunked arrays>" in str(result)


def test_clones_without_the_rechunked_arrays_are_tiled(eager: None) -> None:
    rechunked = da.from_array(np.arange(6), chunks=2).rechunk(3)
    persisted = rechunked.persist(scheduler="sync") + 1
    for array, omit in ((rechunked + 1, rechunked), (persisted, None)):
        both = array + clone(array, omit=omit, seed=1)
        with warnings.catch_warnings():
            warnings.simplefilter("error", InconsistentGraphWarning)
            assert dasktile.optimize(both) is not both
        np.testing.assert_array_equal(both.compute(scheduler="sync"), 2 * (np.arange(6) + 1))


def test_groups_along_two_dimensions_have_the_same_means_with_the_hook(eager: None) -> None:
    """Flox writes aliases with numpy's integers as block numbers."""
    pytest.importorskip("flox")
    xarray = pytest.importorskip("xarray")
    array = xarray.DataArray(da.from_array(X, chunks=(2, 3)), dims=("x", "y"))
    labels = xarray.DataArray(np.arange(24).reshape(4, 6) % 3, dims=("x", "y"), name="label")
    with dask.config.set(array_optimize=dasktile.array_optimize):
        result = array.groupby(labels).mean().compute(scheduler="sync")
    np.testing.assert_array_equal(result, [10.5, 11.5, 12.5])


def test_arrays_that_other_arrays_of_a_dataset_read_are_tiled_by_the_hook(
    eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layer that combines the arrays of a dataset does not declare those that others read."""
    xarray = pytest.importorskip("xarray")
    lazy = da.from_array(X, chunks=(2, 3))
    dataset = xarray.Dataset({"x": (("a", "b"), lazy), "y": (("a", "b"), lazy + 1)})
    dataset["z"] = dataset.y.T @ dataset.x
    programs = []
    monkeypatch.setattr(
        dasktile.planning,
        "capture_graph",
        lambda *arguments: programs.append(capture_graph(*arguments)) or programs[-1],
    )
    with dask.config.set(array_optimize=dasktile.array_optimize):
        [result] = dask.compute(dataset, scheduler="sync")
    assert len(programs) == 1 and len(programs[0].program.outputs) == 3
    for name, expected in {"x": X, "y": X + 1, "z": ((X + 1) * X).sum()}.items():
        np.testing.assert_array_equal(result[name], expected)
