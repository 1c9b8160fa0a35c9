"""Values that are read together decide as much as those that are read one by one."""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from operator import add, getitem
from typing import Any

import numpy as np
from dask._task_spec import Alias, Dict, List, Task, TaskRef
from hypothesis import given
from hypothesis import strategies as st

from dasktile.capture.columns import column, keys_column
from dasktile.capture.literals import Names


class Other(Task):
    """A task of another type."""

    __slots__ = ()


#: Names that a graph has, and one that it lacks.
HEADS = ("x", "y-0123456789abcdef0123456789abcdef")
OTHER = "z"

#: Arrays and data types that several tasks may share.
ARRAYS = (np.arange(3), np.arange(1, 4), np.arange(3.0))
DTYPES = (np.dtype("f4"), np.dtype("f8"))

numbers = st.integers(-2, 2)
keys = st.one_of(
    st.sampled_from(HEADS),
    st.builds(
        lambda head, place: (head, *place), st.sampled_from(HEADS), st.lists(numbers, max_size=2)
    ),
)
plain = st.one_of(
    numbers,
    st.none(),
    st.booleans(),
    st.sampled_from(("text", "0123456789abcdef0123456789abcdef", OTHER, *HEADS)),
    st.sampled_from((0.5, 1.5)),
    st.sampled_from(ARRAYS),
    st.sampled_from(DTYPES),
    st.sampled_from((add, np.add, int)),
    st.builds(slice, st.one_of(st.none(), numbers), numbers),
    st.builds(TaskRef, keys),
    st.builds(lambda key: Alias("own", key), keys),
    keys,
)


def nested(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    items = st.lists(values, max_size=3)
    return st.one_of(
        items,
        items.map(tuple),
        st.dictionaries(st.sampled_from(("axis", "out", 1, True, 1.0, (1,))), values, max_size=2),
        st.builds(lambda args: (add, *args), items),
        st.builds(lambda args: Task("own", add, *args), items),
        st.builds(lambda args: Task("own", getitem, *args, axis=1), items),
        st.builds(lambda args: List(*args), items),
        st.builds(lambda value: Dict({"a": value}), values),
    )


values = st.recursive(plain, nested, max_leaves=4)


def names_of_graph() -> Names:
    names = Names()
    for head in HEADS:
        names.number(head)
    return names


def together(items: Sequence[Any]) -> tuple[Any, ...]:
    names = names_of_graph()
    return marshal.dumps(column(names, items), 2), names.constants.digest(), names.facts


def one_by_one(items: Sequence[Any]) -> tuple[Any, ...]:
    names = names_of_graph()
    return marshal.dumps(names.literals(items), 2), names.constants.digest(), names.facts


def copied(value: Any) -> Any:
    """Equal values in other containers, tasks and references, with the same functions."""
    if type(value) in (list, tuple):
        return type(value)(map(copied, value))
    if type(value) is dict:
        return {key: copied(item) for key, item in value.items()}
    if type(value) is Task:
        return Task(value.key, value.func, *map(copied, value.args), **value.kwargs)
    return TaskRef(value.key) if type(value) is TaskRef else value


def without_unknown(seen: tuple[Any, ...]) -> tuple[Any, ...] | None:
    return None if seen[1] is None else seen


@given(st.lists(values, min_size=1, max_size=5), st.data())
def test_values_read_together_are_told_apart_like_those_read_alone(
    items: list[Any], data: st.DataObject
) -> None:
    """Lists with other values, in another order, or with other repetitions."""
    other = list(items)
    other[data.draw(st.integers(0, len(items) - 1))] = data.draw(values)
    repeated = st.lists(st.sampled_from(items), min_size=len(items), max_size=len(items))
    pairs = [(items, other), (data.draw(repeated), data.draw(repeated))]
    for one, two in pairs:
        if without_unknown(together(one)) == without_unknown(together(two)):
            assert without_unknown(one_by_one(one)) == without_unknown(one_by_one(two))
    assert together(items) == together(copied(items))


DIFFERENT: list[list[Any]] = [
    [[1, 2], [3]],
    [[1], [2, 3]],
    [[1, 2, 3], [4]],
    [("x", 0), ("x", 1)],
    [("x", 0), ("y-0123456789abcdef0123456789abcdef", 1)],
    ["x", ("x",)],
    [("x",), "x"],
    [("x",), ("x",)],
    [(1, 2), [1, 2]],
    [[1, 2], (1, 2)],
    [slice(0, 1), slice(1, None)],
    [slice(0, 1), slice(1, 2)],
    [slice(0, 1), 1],
    [1, True],
    [1, 1],
    [None, 1],
    [TaskRef(("x", 0)), 0],
    [Task("a", add, 1, 2), Task("a", getitem, 1, 2)],
    [Task("a", add, 1, 2), Task("a", add, 1, 2)],
    [Task("a", add, 1, 2), Task("a", add, 1, axis=2)],
    [Task("a", add, 1, axis=2), Task("a", add, 1, 2)],
    [Task("a", add, 1, axis=2), Task("a", add, 1, keys=2)],
    [List(1, 2), Task("a", add, 1, 2)],
    [{"axis": 1}, {"axis": 2}],
    [{"axis": 1}, {"keys": 1}],
    [(add, 1), (getitem, 1)],
    [(add, 1), (add, 1)],
    [add, getitem],
    [add, add],
    [np.dtype("f4"), np.dtype("f8")],
    [np.dtype("f4"), np.dtype("f4")],
    [0.5, 1.5],
    [1, None, 1],
    [1, 1, None],
    [add, getitem, add],
    [add, getitem, getitem],
    [("x",), "x", "x"],
    ["x", ("x",), "x"],
    [{1: 5}, {1: 5}],
    [{1: 5}, {True: 5}],
    [{1: 5}, {1.0: 5}],
    [{(1,): 5}, {(1,): 5}],
    [{(1,): 5}, {(True,): 5}],
    [{"out": 1}, {"out": 1}],
    [{"axis": 1}, {"axis": 1}],
    [{"out": ("x", 0)}, {"out": ("x", 0)}],
    [{("x", 0): Task("a", add, 1, 2)}, {("x", 0): Task("a", add, 1, 2)}],
    [{("x", 1): Task("a", add, 1, 2)}, {("x", 1): Task("a", add, 1, 2)}],
    ["text", "text"],
    ["text", "z"],
    [Task("a", add, 1), Task("a", add, 1, _data_producer=True)],
    [Task("a", add, 1, _data_producer=True), Task("a", add, 1)],
    [List(1, 2), List(1, 2)],
    [Other("a", add, 1, 2), Other("a", add, 1, 2)],
    [Task("a", add, 1, axis=2), Task("a", add, 1, axis=2)],
    [Task("a", add, 1, keys=2), Task("a", add, 1, keys=2)],
    [[], [1]],
    [[1], []],
    [(), (1,)],
]


def test_lists_of_values_are_told_apart() -> None:
    seen = {repr(together(items)) for items in DIFFERENT}
    assert len(seen) == len(DIFFERENT)


def test_a_key_is_the_same_however_a_task_refers_to_it() -> None:
    places = [("x", 0), ("x", 1)]
    assert together(places) == together([TaskRef(key) for key in places])


def test_keys_of_a_graph_are_read_together() -> None:
    names = names_of_graph()
    tag, *_ = keys_column(names, [("x", 0), ("x", 1)])
    assert tag == "keys"
    seen = [
        marshal.dumps(keys_column(names, each), 2)
        for each in (
            [("x", 0), ("x", 1)],
            [("x", 0), (HEADS[1], 1)],
            [(HEADS[1], 0), (HEADS[1], 1)],
            [("x", 0, 1)],
            [("x", 0), ("x", 1), ("x", 2)],
            ["x", ("x", 1)],
            ["x", ("x",)],
            [("x",), "x"],
            [("x",), ("x", 1)],
            [("x", np.int64(0)), ("x", 1)],
            [("x", 0), ("x", True)],
        )
    ]
    assert len(set(seen)) == len(seen)


def test_empty_values_that_a_function_may_fill_are_handed_on() -> None:
    names = names_of_graph()
    empty: list[Any] = [[], [], {}, {}]
    column(names, empty)
    assert [id(each) for each in names.constants.objects] == list(map(id, empty))


def test_a_key_that_the_graph_lacks_has_no_constants() -> None:
    """Nobody knows what a task reads that refers to a key of another graph."""
    for reads in ([TaskRef((OTHER, 0))], [TaskRef(("x", 0)), TaskRef((OTHER, 0))]):
        names = names_of_graph()
        column(names, reads)
        assert names.constants.digest() is None
