"""What only one tile is made of becomes one task, where that costs nothing."""

from __future__ import annotations

import operator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import List, Task, TaskRef
from dask.array.chunk import getitem
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from dasktile.lower.anchored import Anchored
from dasktile.lower.fuse import Limits, coned


def name(op: str, places: str = "2_0e1") -> str:
    """The name of a layer with two tiles, one on each of two workers; `op` is its hash too."""
    return f"{op}-dasktile-{places}-{op}"


def total(*values: int) -> int:
    return 1 + sum(values)


class Graph:
    """Layers of tasks ``(op, block)``."""

    def __init__(self) -> None:
        self.layers: dict[str, dict[Any, Task]] = {}
        self.dependencies: dict[str, set[str]] = {}

    def add(self, op: str, *reads: str, blocks: Any = None) -> None:
        """A layer whose tasks read the same block of others, or those that `blocks` says."""
        self.layers[name(op)] = {}
        self.dependencies[name(op)] = {name(read) for read in reads}
        for block in (0, 1):
            key = (name(op), block)
            places = [block] * len(reads) if blocks is None else blocks[block]
            refs = [TaskRef((name(read), at)) for read, at in zip(reads, places, strict=True)]
            self.layers[name(op)][key] = Task(key, total, block, *refs)

    def coned(
        self, output: str, work: int = 100, light: str = "", threads: int = 1, **sizes: int
    ) -> HighLevelGraph:
        """The graph with cones; every tile that nothing is said of has one byte."""
        size = {layer.rpartition("-")[2]: 1 for layer in self.layers} | sizes
        limits = Limits({name(op) for op in light}, set(), size, work, threads)
        layers: dict[str, Any] = {
            key: MaterializedLayer(tasks) for key, tasks in self.layers.items()
        }
        found = coned(layers, self.dependencies, set(layers), {name(output)}, limits)
        graph = HighLevelGraph(*found)
        graph.validate()
        keys = list(self.layers[name(output)])
        before = HighLevelGraph(layers, self.dependencies)
        assert dask.get(dict(graph), keys) == dask.get(dict(before), keys)
        return graph


def left(graph: HighLevelGraph) -> set[str]:
    return {layer.partition("-")[0] for layer in graph.layers}


def diamond() -> Graph:
    graph = Graph()
    graph.add("a")
    graph.add("b", "a")
    graph.add("c", "a")
    graph.add("d", "b", "c")
    return graph


def test_a_diamond_is_one_task() -> None:
    graph = diamond().coned("d")
    assert left(graph) == {"d"}
    assert len(graph) == 2
    assert not graph.dependencies[name("d")]


def test_every_thread_has_a_cone() -> None:
    assert len(left(diamond().coned("d", threads=2))) == 4


def test_what_others_read_stays() -> None:
    graph = diamond()
    graph.add("e", "d", "a")
    graph.add("f", "b", "e", blocks=[(1, 0), (0, 1)])
    # b is read on the other worker, and with it what it is made of
    assert left(graph.coned("f")) == {"f", "e", "b", "a"}


def test_outputs_stay() -> None:
    graph = diamond()
    graph.add("e", "d")
    found = graph.coned("d")
    assert left(found) == {"d", "e"}


def test_work_does_not_wait_for_other_workers() -> None:
    graph = Graph()
    graph.add("a")
    graph.add("b", "a")
    graph.add("c", "a", "b", blocks=[(1, 0), (0, 1)])
    assert left(graph.coned("c")) == {"a", "b", "c"}
    # only what is nothing much
    assert left(graph.coned("c", light="b")) == {"a", "c"}


def test_cones_make_no_more_than_they_may() -> None:
    graph = Graph()
    graph.add("a")
    for op, before in zip("bcdefgh", "abcdefg", strict=True):
        graph.add(op, before)
    assert len(left(graph.coned("h", work=8))) == 1
    assert len(left(graph.coned("h", work=4))) == 2
    assert len(left(graph.coned("h", work=2))) == 4


def test_cones_need_no_more_at_once() -> None:
    graph = Graph()
    for op in "xy":
        graph.add(op)
        graph.add(f"far{op}", op, blocks=[(1,), (0,)])
    graph.add("p", "farx")
    graph.add("q", "fary")
    graph.add("r", "p", "q")
    large = dict.fromkeys(("farx", "fary"), 1000)
    # Each of two is small, made of what is large: one after the other they need less.
    assert left(graph.coned("r", work=100, **large)) >= {"p", "q", "r"}
    assert left(graph.coned("r", work=10_000, **large)) == {"x", "y", "farx", "fary", "r"}


def test_slices_that_are_read_where_the_tile_is() -> None:
    graph = Graph()
    graph.add("a")
    slices = "rechunk-split-abc"
    graph.layers[slices] = {
        (slices, block): Anchored((slices, block), operator.neg, TaskRef((name("a"), block)))
        for block in (0, 1)
    }
    graph.dependencies[slices] = {name("a")}
    for op, shift in (("near", 0), ("far", 1)):
        graph.layers[name(op)] = {
            (name(op), block): Task((name(op), block), abs, TaskRef((slices, (block + shift) % 2)))
            for block in (0, 1)
        }
        graph.dependencies[name(op)] = {slices}
    assert left(graph.coned("near")) == {"near", "far", "a", "rechunk"}
    del graph.layers[name("far")], graph.dependencies[name("far")]
    assert left(graph.coned("near")) == {"near"}
    del graph.layers[name("near")], graph.dependencies[name("near")]
    graph.add("other")
    assert "a" in left(graph.coned("other"))


def test_annotated_layers_are_left_alone() -> None:
    graph = diamond()
    layers: dict[str, Any] = {
        key: MaterializedLayer(
            tasks, annotations={"resources": {"GPU": 1}} if key == name("b") else None
        )
        for key, tasks in graph.layers.items()
    }
    limits = Limits((), (), {}, 100)
    found, _ = coned(layers, graph.dependencies, set(layers), {name("d")}, limits)
    assert found[name("b")].annotations == {"resources": {"GPU": 1}}
    assert len(found[name("b")]) == 2
    assert name("a") in found


@pytest.mark.parametrize("places", ["", "2_f0123456789.0"])
def test_places_that_are_not_known(places: str) -> None:
    names = [f"{op}-dasktile-{places + '-' if places else ''}{op}" for op in "ab"]
    first = {(names[0], 0): Task((names[0], 0), int, 3)}
    second = {(names[1], 0): Task((names[1], 0), abs, TaskRef((names[0], 0)))}
    layers: dict[str, Any] = {
        names[0]: MaterializedLayer(first),
        names[1]: MaterializedLayer(second),
    }
    found, _ = coned(
        layers,
        {names[0]: set(), names[1]: {names[0]}},
        set(names),
        {names[1]},
        Limits((), (), {}, 100),
    )
    # following the same block, they are on the same worker, wherever that is
    assert (len(found) == 1) == bool(places)


def test_every_thread_keeps_work_where_one_task_reads_the_others() -> None:
    """Many tasks of a layer in one cone are work for one thread."""
    graph = Graph()
    for op in "abcd":
        graph.add(op)
    graph.add("e", *"abcd")
    chain = name("chain")
    graph.layers[chain] = {}
    graph.dependencies[chain] = {name("e")}
    for block in (0, 1):
        before = (name("e"), block)
        for step in range(4):
            # all at the home of the block
            key = (chain, block, step)
            graph.layers[chain][key] = Task(key, total, step, TaskRef(before))
            before = key
    graph.layers[name("f")] = {
        (name("f"), block): Task((name("f"), block), total, block, TaskRef((chain, block, 3)))
        for block in (0, 1)
    }
    graph.dependencies[name("f")] = {chain}
    assert left(graph.coned("f")) == {"f"}
    assert "chain" in left(graph.coned("f", threads=2))


def test_what_is_elsewhere_is_not_drawn_here() -> None:
    """Dask makes one task of two if the second reads nothing but the first."""
    graph = Graph()
    for op in "tl":
        graph.add(op)
    graph.add("p", "t")
    graph.add("r", "p", "l", blocks=((1, 0), (0, 1)))
    assert {"p", "l", "r"} <= left(graph.coned("r", light="l"))
    # unless the part goes to another task too
    graph.add("o", "p")
    graph.add("s", "r", "o", blocks=((0, 1), (1, 0)))
    assert "l" not in left(graph.coned("s", light="l"))


def test_keys_that_are_no_tiles() -> None:
    graph = diamond()
    for key in [(name("b"), "extra", 0), name("c")]:
        graph.layers[key[0] if isinstance(key, tuple) else key][key] = Task(key, total, 5)
    assert "d" in left(graph.coned("d"))


@pytest.mark.parametrize("reads", (False, True))
def test_cones_that_read_tiles_are_no_roots(reads: bool) -> None:
    graph = Graph()
    graph.add("r")
    graph.add("f")
    graph.add("o", "f")
    graph.add("m", *(("r", "f") if reads else ("r",)))
    graph.add("s", "m", "o")
    for key, task in graph.layers[name("r")].items():
        graph.layers[name("r")][key] = Task(key, total, *task.args, _data_producer=True)
    found = graph.coned("s", work=2, light="r", s=9)
    assert "r" not in left(found)
    for block in (0, 1):
        assert found[name("m"), block].data_producer == (not reads)


def test_dask_does_not_look_into_cones() -> None:
    """Its array optimisation takes a slice of a slice for the only one."""
    graph = diamond()
    graph.layers[name("e")] = {}
    graph.dependencies |= {name("e"): set(), name("a"): {name("e")}}
    parts = {"a": (slice(2, 8),), "b": (slice(0, 1),), "c": (slice(1, 3),)}
    for block in (0, 1):
        key = (name("e"), block)
        graph.layers[name("e")][key] = Task(key, np.arange, 10)
        for op, part in parts.items():
            read = (name("e" if op == "a" else "a"), block)
            key = (name(op), block)
            graph.layers[name(op)][key] = Task(key, getitem, TaskRef(read), part)
        key = (name("d"), block)
        reads = [TaskRef((name(op), block)) for op in "bc"]
        graph.layers[name("d")][key] = Task(key, np.concatenate, List(*reads))
    layers: dict[str, Any] = {key: MaterializedLayer(tasks) for key, tasks in graph.layers.items()}
    limits = Limits(set(), set(), {}, 100)
    found = HighLevelGraph(*coned(layers, graph.dependencies, set(layers), {name("d")}, limits))
    assert left(found) == {"d"}
    keys = list(found)
    optimized = da.optimize(found, keys)
    for value in (*dask.get(optimized, keys), *dask.get(dict(found), keys)):
        assert value.tolist() == [2, 3, 4]
