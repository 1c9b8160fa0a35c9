"""The workers of tasks that the plan does not place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from dask._task_spec import DataNode, Task

from dasktile.lower.places import places_of
from dasktile.lower.settings import DEFAULTS, LowerSettings
from dasktile.schedule.edges import readers_of


@dataclass
class Graph:
    """Tasks that read some others with a lower number, and the places of some of them."""

    reads: list[list[int]]
    planned: dict[int, int]
    data: set[int] = field(default_factory=set)
    free: set[int] = field(default_factory=set)
    positions: int = 2
    settings: LowerSettings = DEFAULTS

    def __post_init__(self) -> None:
        count = len(self.reads)
        self.tasks: list[Any] = [
            DataNode(number, 0) if number in self.data else Task(number, max)
            for number in range(count)
        ]
        self.readers = readers_of(self.reads)
        self.inputs_first = list(range(count))
        self.sizes = [100] * count
        self.guessed: set[int] = set()
        self.outside: dict[int, list[Any]] = {}

    def moved(self, number: int) -> list[int]:
        return self.reads[number]

    def is_cut(self, number: int) -> bool:
        return False

    def may_run(self, number: int) -> bool:
        return number not in self.data

    def location(self, number: int) -> int | None:
        return self.planned.get(number)

    def may_move(self, number: int) -> bool:
        return number in self.free


@pytest.mark.parametrize("length", [1, 2])
def test_chains_from_data_of_the_graph_run_where_they_are_read(length: int) -> None:
    """As the reads of a stored array that is data, by functions that are not recognised."""
    # data; chains of some tasks for each of six blocks; the blocks, and two tasks that read each
    chains = [
        [0] if step == 0 else [6 * step + at - 5] for step in range(length) for at in range(6)
    ]
    first = len(chains) + 1
    blocks = [[first - 6 + at] for at in range(6)]
    readers = [[first + at % 6] for at in range(12)]
    places = {first + at: int(at > 2) for at in range(6)}
    places |= {first + 6 + at: int(at % 6 > 2) for at in range(12)}
    graph = Graph([[], *chains, *blocks, *readers], places, data={0})
    expected = [None, *[int(at > 2) for _ in range(length) for at in range(6)]]
    assert places_of(graph)[:first] == expected


def test_inputs_made_for_one_task_alone_are_made_where_its_others_are() -> None:
    """As stored blocks that are read beside results of the plan, whatever the sizes of both."""
    # data, two reads of it, two results that the plan places, and a task for each read and result
    graph = Graph([[], [0], [0], [], [], [1, 3], [2, 4]], {3: 1, 4: 0}, data={0})
    graph.sizes[1] = graph.sizes[2] = 1000
    assert places_of(graph) == [None, 1, 0, 1, 0, 1, 0]


def test_inputs_of_several_tasks_do_not_follow_one_of_them() -> None:
    graph = Graph([[], [0], [], [], [1, 2], [1, 3]], {2: 1, 3: 0}, data={0})
    graph.sizes[1] = 1000
    assert places_of(graph)[1] is None


def test_blocks_that_may_be_anywhere_run_where_most_bytes_are_for_them() -> None:
    """A result that another task receives on the same worker is not counted again."""
    # results on three workers, a task that reads the first on the second worker, and blocks
    reads = [[], [], [], [0], [0, 2], [0, 1]]
    planned = {0: 0, 1: 1, 2: 2, 3: 1, 4: 1, 5: 2}
    assert places_of(Graph(reads, planned, positions=3))[4:] == [1, 2]
    assert places_of(Graph(reads, planned, positions=3, free={4, 5}))[4:] == [2, 1]


@pytest.mark.parametrize("size, expected", [(900, 3), (50, 0)])
def test_results_of_many_are_joined_where_they_are_read(size: int, expected: int) -> None:
    """If they are as large as their parts: sums are made where most of their parts are."""
    parts = 9
    reads: list[list[int]] = [*([] for _ in range(parts)), list(range(parts)), [parts]]
    planned = {part: (0, 0, 0, 0, 1, 1, 1, 2, 2)[part] for part in range(parts)}
    graph = Graph(reads, planned | {parts + 1: 3}, positions=4)
    graph.sizes[parts] = size
    assert places_of(graph)[parts] == expected


def test_little_from_anywhere_does_not_keep_a_task_from_its_other_inputs() -> None:
    graph = Graph([[], [], [], [0, 1, 2], [0]], {1: 0, 2: 1}, positions=2)
    graph.sizes[0], graph.sizes[2] = 10, 150
    assert places_of(graph)[:4] == [None, 0, 1, 1]


def test_tasks_run_where_data_in_memory_is() -> None:
    """Steps of an operation, each of a block of data, whose results are read elsewhere."""
    graph = Graph(reads=[[], [], [0], [1], [2, 3]], planned={0: 0, 1: 1, 4: 0}, data={0, 1})
    assert places_of(graph) == [0, 1, 0, 1, 0]


def test_data_in_memory_is_cut_where_it_is() -> None:
    """Not where its slices are read, as data that comes with the graph."""

    class Cut(Graph):
        def is_cut(self, number: int) -> bool:
            return number in (2, 3)

    reads = [[], [], [0], [0], [1, 2], [1, 3]]
    for planned, there in ({0: 2}, 2), ({}, 0):
        graph = Cut(reads, {**planned, 4: 0, 5: 1}, data={0, 1}, positions=3)
        graph.sizes[0] = 2**20
        assert places_of(graph)[2:4] == [there, there]
