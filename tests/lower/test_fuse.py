"""Tasks of one worker are fused with their only reader, where that costs nothing."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import List, Task, TaskRef
from dask.array.chunk import getitem
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

import dasktile
from dasktile._compat.dask import fused_tasks, run_fused
from dasktile.lower.anchored import Anchored
from dasktile.lower.fuse import fuse
from dasktile.lower.fusible import FuseLimits
from tests.graphs_alike import difference
from tests.support import plan_for_workers


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
        """A layer whose tasks read the same block of others, or those of `blocks`."""
        self.layers[name(op)] = {}
        self.dependencies[name(op)] = {name(read) for read in reads}
        for block in (0, 1):
            key = (name(op), block)
            places = [block] * len(reads) if blocks is None else blocks[block]
            refs = [TaskRef((name(read), at)) for read, at in zip(reads, places, strict=True)]
            self.layers[name(op)][key] = Task(key, total, block, *refs)

    def fused(
        self, output: str, work: int = 100, light: str = "", threads: int = 1, **sizes: int
    ) -> HighLevelGraph:
        """The graph after fusion; tiles have one byte, except for those in `sizes`."""
        size = {layer.rpartition("-")[2]: 1 for layer in self.layers} | sizes
        limits = FuseLimits({name(op) for op in light}, set(), size, work, work // 4, threads)
        layers: dict[str, Any] = {
            key: MaterializedLayer(tasks) for key, tasks in self.layers.items()
        }
        graph = fuse(layers, self.dependencies, set(layers), {name(output)}, limits).graph
        graph.validate()
        keys = list(self.layers[name(output)])
        before = HighLevelGraph(layers, self.dependencies)
        assert dask.get(dict(graph), keys) == dask.get(dict(before), keys)
        return graph


def ops(graph: HighLevelGraph) -> set[str]:
    return {layer.partition("-")[0] for layer in graph.layers}


def diamond() -> Graph:
    graph = Graph()
    graph.add("a")
    graph.add("b", "a")
    graph.add("c", "a")
    graph.add("d", "b", "c")
    return graph


def test_blocks_that_are_read_twice_are_read_group_by_group() -> None:
    graph = Graph()
    for group in range(4):
        blocks = [f"block{group}{number}" for number in range(4)]
        for block in blocks:
            graph.add(block)
        graph.add(f"mean{group}", *blocks)
        for block in blocks:
            graph.add(f"part{block}", block, f"mean{group}")
    # the sum has the blocks in another order than the means
    ends = [f"partblock{group}{number}" for number in range(4) for group in range(4)]
    graph.add("sum", *ends)
    fused = graph.fused("sum", work=1000, sum=0, **dict.fromkeys(ends, 0))
    running: list[int] = []

    def count(known: Mapping[Any, Any]) -> None:
        running.append(sum("block" in key[0] and "part" not in key[0] for key in known))

    [task, _] = fused.layers[name("sum")].values()
    steps = {key: Observed(step, count) for key, step in fused_tasks(task).items()}
    assert len(steps) == 37
    run_fused(steps, *task.args[1:])
    # those of one mean, of 16
    assert max(running) == 4


@dataclass(frozen=True)
class Observed:
    """A task, and a function that gets the results in memory before the task runs."""

    task: Any
    observe: Callable[[Mapping[Any, Any]], None]

    @property
    def dependencies(self) -> Any:
        return self.task.dependencies

    def __call__(self, known: Mapping[Any, Any]) -> Any:
        self.observe(known)
        return self.task(known)


def test_a_diamond_is_one_task() -> None:
    graph = diamond().fused("d")
    assert ops(graph) == {"d"}
    assert len(graph) == 2
    assert not graph.dependencies[name("d")]


def test_fused_tasks_have_the_parts_that_dask_gives_them() -> None:
    graph = diamond().fused("d")
    fused = [task for layer in graph.layers.values() for task in layer.values()]
    assert len(fused) == 2
    for task in fused:
        expected = Task.fuse(*fused_tasks(task).values())
        assert not difference(task.args, expected.args)
        assert (task.key, task.dependencies) == (expected.key, expected.dependencies)


def test_every_thread_keeps_a_task() -> None:
    assert len(ops(diamond().fused("d", threads=2))) == 4


def test_tasks_with_other_readers_are_not_fused() -> None:
    graph = diamond()
    graph.add("e", "d", "a")
    graph.add("f", "b", "e", blocks=[(1, 0), (0, 1)])
    # b has a reader on the other worker, so it is no part of d; a is read by b and by e
    assert ops(graph.fused("f")) == {"f", "e", "b", "a"}


def test_outputs_are_not_fused() -> None:
    graph = diamond()
    graph.add("e", "d")
    fused = graph.fused("d")
    assert ops(fused) == {"d", "e"}


def test_only_light_tasks_are_fused_with_readers_of_other_workers() -> None:
    graph = Graph()
    graph.add("a")
    graph.add("b", "a")
    graph.add("c", "a", "b", blocks=[(1, 0), (0, 1)])
    assert ops(graph.fused("c")) == {"a", "b", "c"}
    # a light task is
    assert ops(graph.fused("c", light="b")) == {"a", "c"}


def test_results_of_a_fused_task_are_limited_in_bytes() -> None:
    graph = Graph()
    graph.add("a")
    for op, before in zip("bcdefgh", "abcdefg", strict=True):
        graph.add(op, before)
    assert len(ops(graph.fused("h", work=8))) == 1
    assert len(ops(graph.fused("h", work=4))) == 2
    assert len(ops(graph.fused("h", work=2))) == 4


def test_fused_tasks_read_no_more_bytes_at_once() -> None:
    graph = Graph()
    for op in "xy":
        graph.add(op)
        graph.add(f"far{op}", op, blocks=[(1,), (0,)])
    graph.add("p", "farx")
    graph.add("q", "fary")
    graph.add("r", "p", "q")
    large = dict.fromkeys(("farx", "fary"), 1000)
    # p and q are small and their inputs large: separate tasks need less memory at a time
    assert ops(graph.fused("r", work=100, **large)) >= {"p", "q", "r"}
    assert ops(graph.fused("r", work=10_000, **large)) == {"x", "y", "farx", "fary", "r"}


def test_slices_are_fused_if_all_readers_are_where_the_tile_is() -> None:
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
    assert ops(graph.fused("near")) == {"near", "far", "a", "rechunk"}
    del graph.layers[name("far")], graph.dependencies[name("far")]
    assert ops(graph.fused("near")) == {"near"}
    del graph.layers[name("near")], graph.dependencies[name("near")]
    graph.add("other")
    assert "a" in ops(graph.fused("other"))


def test_annotated_layers_are_not_fused() -> None:
    graph = diamond()
    layers: dict[str, Any] = {
        key: MaterializedLayer(
            tasks, annotations={"resources": {"GPU": 1}} if key == name("b") else None
        )
        for key, tasks in graph.layers.items()
    }
    limits = FuseLimits((), (), {}, 100, 25)
    fused = fuse(layers, graph.dependencies, set(layers), {name("d")}, limits).graph.layers
    assert fused[name("b")].annotations == {"resources": {"GPU": 1}}
    assert len(fused[name("b")]) == 2
    assert name("a") in fused


@pytest.mark.parametrize("places", ["", "2_f0123456789.0"])
def test_tasks_without_a_home_are_fused_only_if_they_follow_the_same_block(places: str) -> None:
    names = [f"{op}-dasktile-{places + '-' if places else ''}{op}" for op in "ab"]
    first = {(names[0], 0): Task((names[0], 0), int, 3)}
    second = {(names[1], 0): Task((names[1], 0), abs, TaskRef((names[0], 0)))}
    layers: dict[str, Any] = {
        names[0]: MaterializedLayer(first),
        names[1]: MaterializedLayer(second),
    }
    fused = fuse(
        layers,
        {names[0]: set(), names[1]: {names[0]}},
        set(names),
        {names[1]},
        FuseLimits((), (), {}, 100, 25),
    ).graph.layers
    # tasks that follow the same block are on the same worker
    assert (len(fused) == 1) == bool(places)


def test_every_thread_keeps_work_where_one_task_reads_the_others() -> None:
    """Many tasks of a layer in one fused task run on one thread."""
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
            # all have the same home
            key = (chain, block, step)
            graph.layers[chain][key] = Task(key, total, step, TaskRef(before))
            before = key
    graph.layers[name("f")] = {
        (name("f"), block): Task((name("f"), block), total, block, TaskRef((chain, block, 3)))
        for block in (0, 1)
    }
    graph.dependencies[name("f")] = {chain}
    assert ops(graph.fused("f")) == {"f"}
    assert "chain" in ops(graph.fused("f", threads=2))


def test_fusion_leaves_no_task_that_dask_fuses_with_another_workers() -> None:
    """Dask fuses two tasks if the second reads nothing but the first."""
    graph = Graph()
    for op in "tl":
        graph.add(op)
    graph.add("p", "t")
    graph.add("r", "p", "l", blocks=((1, 0), (0, 1)))
    assert {"p", "l", "r"} <= ops(graph.fused("r", light="l"))
    # p has a second reader: Dask does not fuse it
    graph.add("o", "p")
    graph.add("s", "r", "o", blocks=((0, 1), (1, 0)))
    assert "l" not in ops(graph.fused("s", light="l"))


def test_groups_of_the_same_layers_may_have_other_forms() -> None:
    graph = Graph()
    graph.add("a")
    graph.add("b", "a")
    graph.add("c", "a", "b")
    graph.add("d", "c")
    # on the second worker, c reads only b, and d reads a, too
    own = Task((name("c"), 1), total, 1, TaskRef((name("b"), 1)))
    graph.layers[name("c")][own.key] = own
    last = Task((name("d"), 1), total, 1, TaskRef((name("a"), 1)), TaskRef((name("c"), 1)))
    graph.layers[name("d")][last.key] = last
    graph.dependencies[name("d")].add(name("a"))
    fused = graph.fused("d")
    assert ops(fused) == {"d"}
    steps = [list(fused_tasks(task)) for task in fused.layers[name("d")].values()]
    assert [[key[0][0] for key in keys] for keys in steps] == [list("abcd")] * 2


def test_keys_without_a_block_are_accepted() -> None:
    graph = diamond()
    for key in [(name("b"), "extra", 0), name("c")]:
        graph.layers[key[0] if isinstance(key, tuple) else key][key] = Task(key, total, 5)
    assert "d" in ops(graph.fused("d"))


@pytest.mark.parametrize("reads", (False, True))
def test_fused_tasks_that_read_tiles_are_no_root_tasks(reads: bool) -> None:
    graph = Graph()
    graph.add("r")
    graph.add("f")
    graph.add("o", "f")
    graph.add("m", *(("r", "f") if reads else ("r",)))
    graph.add("s", "m", "o")
    for key, task in graph.layers[name("r")].items():
        graph.layers[name("r")][key] = Task(key, total, *task.args, _data_producer=True)
    fused = graph.fused("s", work=2, light="r", s=9)
    assert "r" not in ops(fused)
    for block in (0, 1):
        assert fused[name("m"), block].data_producer == (not reads)


def test_dask_does_not_rewrite_fused_tasks() -> None:
    """Its array optimisation merges a slice with a slice of it that has other readers."""
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
    limits = FuseLimits(set(), set(), {}, 100, 25)
    fused = fuse(layers, graph.dependencies, set(layers), {name("d")}, limits).graph
    assert ops(fused) == {"d"}
    keys = list(fused)
    optimized = da.optimize(fused, keys)
    for value in (*dask.get(optimized, keys), *dask.get(dict(fused), keys)):
        assert value.tolist() == [2, 3, 4]


@pytest.mark.parametrize("placed", [False, True])
def test_plans_with_parts_of_the_same_layers_can_be_merged(
    monkeypatch: pytest.MonkeyPatch, placed: bool
) -> None:
    """Dask merges graphs by the names of their layers: a layer must not lack keys."""
    if placed:
        plan_for_workers(monkeypatch)
    x = (da.from_array(np.arange(30_000), chunks=30) + 1)[30:900]
    z = dasktile.optimize(x, workers=4)
    m = dasktile.optimize(z + x, workers=4)
    np.testing.assert_array_equal(z + m, 3 * np.arange(31, 901))
    np.testing.assert_array_equal(dasktile.optimize(z + m, workers=4), 3 * np.arange(31, 901))
    source = da.random.default_rng(0).random((400, 400), chunks=40)
    total = (source.T + source[::-1]).sum(axis=0) + source.mean()
    plan = dasktile.optimize(total, workers=4)
    for values in dask.compute([source, total], [source, plan], [plan, total]):
        np.testing.assert_allclose(values[-1], total)
    np.testing.assert_allclose((source + plan).sum(), (source + total).sum())
