"""Tasks are made again of their columns as they were."""

from __future__ import annotations

import operator
import pickle
from typing import Any

import numpy as np
import pytest

from dasktile._compat.dask import Alias, DataNode, List, Task, TaskRef
from dasktile.lower.anchored import Anchored
from dasktile.lower.packed import pack_tasks, unpack_tasks
from tests.graphs_alike import difference

BLOCKS = [(i, j) for i in range(7) for j in range(3)]

#: An object that is part of many tasks.
SHARED = [1, 2]


def ref(name: str, *block: int) -> TaskRef:
    return TaskRef((name, *block))


def product(i: int, j: int) -> Task:
    return Task(("x", i, j), operator.mul, ref("a", i), ref("b", j, 300 * i))


def fused(i: int, j: int) -> Any:
    first = Task(("y", i), operator.neg, ref("a", i))
    return Task.fuse(first, Task(("x", i, j), operator.add, ref("y", i), ref("b", j)))


TASKS = {
    "references": {("x", *block): product(*block) for block in BLOCKS},
    "fused": {("x", *block): fused(*block) for block in BLOCKS},
    "some fused": {("x", i, j): (fused if i % 3 else product)(i, j) for i, j in BLOCKS},
    "anchored": {
        ("x", i, j): (Anchored if i % 2 else Task)(("x", i, j), len, ref("a", i)) for i, j in BLOCKS
    },
    "options": {
        ("x", i, j): Task(("x", i, j), sorted, ref("a", i), key=j, reverse=ref("b", j))
        for i, j in BLOCKS
    },
    "roots": {("x", i): Task(("x", i), list, _data_producer=i > 2) for i in range(9)},
    "other keys": {("z", i): Task(("x", i), len, ref("a", i)) for i in range(9)},
    "equal keys": {("x", i): Task(("x", np.int64(i)), len, ref("a", i)) for i in range(9)},
    "large numbers": {
        ("x", -i, 10**i): Task(("x", -i, 10**i), len, ref("a", 10**i), 2**70 + i) for i in range(25)
    },
    "numbers of other types": {
        ("x", i): Task(("x", i), max, i % 2 == 0, float(i), np.int64(i), ref("a", i))
        for i in range(9)
    },
    "texts": {("x", i): Task(("x", i), len, f"text {i}", "text") for i in range(9)},
    "lists of keys": {
        ("x", i): Task(("x", i), sum, List(*(ref("a", i, j) for j in range(i)))) for i in range(9)
    },
    "other nodes": {
        ("x", i): DataNode(("x", i), (i, SHARED)) if i % 2 else Alias(("x", i), ("a", i))
        for i in range(9)
    },
    "tuples": {("x", i): (operator.add, ("a", i), [("b", i)], ()) for i in range(9)},
    "dicts": {("x", i): Task(("x", i), dict, {"a": i, i: None}, {}) for i in range(9)},
    "one": {("x", 0): product(0, 0)},
    "none": {},
}


@pytest.mark.parametrize("name", TASKS)
def test_tasks_are_equal_and_in_the_same_order(name: str) -> None:
    tasks: dict[Any, Any] = TASKS[name]
    again = unpack_tasks(pickle.loads(pickle.dumps(pack_tasks(tasks, set()))))
    assert not difference(again, tasks)
    assert list(map(repr, again)) == list(map(repr, tasks))


def test_an_object_of_many_tasks_stays_one_object() -> None:
    tasks = {("x", i): Task(("x", i), len, SHARED if i % 2 else [i]) for i in range(9)}
    again = unpack_tasks(pickle.loads(pickle.dumps(pack_tasks(tasks, set()))))
    [shared] = {id(again["x", i].args[0]) for i in range(1, 9, 2)}
    assert shared != id(SHARED)
    assert len({id(again["x", i].args[0]) for i in range(0, 9, 2)}) == 5


def test_numbers_of_blocks_are_not_pickled_one_by_one() -> None:
    keys = [("x", i) for i in range(10_000)]
    tasks = {key: Task(key, operator.neg, ref("a", key[1])) for key in keys}
    pickled = pickle.dumps(pack_tasks(tasks, set()))
    # two bytes for each of two numbers
    assert len(pickled) < 4.1 * len(tasks)
    assert not difference(unpack_tasks(pickle.loads(pickled)), tasks)


def test_objects_that_are_handed_on_are_not_taken_apart() -> None:
    options = [{"a": i} for i in range(9)]
    tasks = {("x", i): Task(("x", i), len, options[i], ref("a", i)) for i in range(9)}
    for whole in ({id(options[3])}, {id(tasks["x", 3])}):
        again = unpack_tasks(pack_tasks(tasks, whole))
        assert again["x", 3].args[0] is options[3]
        assert (again["x", 3] is tasks["x", 3]) == (id(tasks["x", 3]) in whole)
        assert not difference(again, tasks)
