"""Replicas: arrays in two shardings at once, or recomputed instead of held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.callbacks import Callback

import dasktile
from dasktile.capture import user_kernels as registry
from dasktile.capture.base import ArrayInfo
from dasktile.capture.highlevel import capture_graph
from dasktile.capture.rules import sources
from dasktile.ir import AxisMap, Edge, Kind, Label, Program, Role
from dasktile.tiling import Settings, tile
from dasktile.tiling.candidates import Space
from dasktile.tiling.cost import TIE, Costs
from dasktile.tiling.grid import free_axes
from dasktile.tiling.mesh import Mesh, mesh_shape
from dasktile.tiling.methods import Method
from dasktile.tiling.methods.exact import exact
from dasktile.tiling.rematerialize import held_bytes, late_readers, recompute, spilled_bytes
from dasktile.tiling.rewrite import Replica, extend
from tests.programs import Builder

SINGLE = Method(exact)

LIMITS = Settings().candidates


@pytest.fixture(autouse=True)
def tasks_cost_little() -> Iterator[None]:
    with dask.config.set({"dasktile.cost.task-bytes": 100}):
        yield


class Alternating(Builder):
    """Builds programs that solve along the rows of a matrix, then along its columns."""

    def solved(self, matrix: int, factor: int, axis: int) -> int:
        """One row of the result for every row (axis 0) or column (axis 1), which it needs whole."""
        size, whole = self.nodes[matrix].shape[axis], self.nodes[matrix].shape[1 - axis]
        rank = self.nodes[factor].shape[1]
        labels = (
            Label(size, Role.FREE, self.nodes[matrix].chunks[axis]),
            Label(whole, Role.WHOLE, (whole,)),
            Label(rank, Role.WHOLE, (rank,)),
        )
        reads = (AxisMap(0), AxisMap(1)) if axis == 0 else (AxisMap(1), AxisMap(0))
        edges = (Edge(matrix, reads), Edge(factor, (AxisMap(1), AxisMap(2))))
        return self._add("solve", Kind.MAP, labels, (AxisMap(0), AxisMap(2)), (size, rank),
                         edges=edges, work=float(whole * rank))  # fmt: skip


def als(users: int = 4000, items: int = 3000, rank: int = 10, rounds: int = 3) -> Program:
    """Alternating least squares: factors of users from rows, of items from columns."""
    build = Alternating()
    ratings = build.source((users, items), (users // 4, items // 4))
    factor = build.source((items, rank), (items // 4, rank))
    for _ in range(rounds):
        factor = build.solved(ratings, factor, 0)
        factor = build.solved(ratings, factor, 1)
    return build.program(factor)


@pytest.mark.parametrize("workers", [4, 16])
def test_alternating_least_squares_moves_less_with_a_second_sharding(workers: int) -> None:
    program = als()
    single = tile(program, workers=workers, method=SINGLE, force=True)
    with_replica = tile(program, workers=workers)
    assert with_replica.proven_optimal
    assert with_replica.after.bytes <= 0.6 * single.after.bytes
    assert [node.op for node in with_replica.program.nodes].count("copy") == 1


def test_copies_keep_to_the_memory_there_is() -> None:
    program = als()
    share = program.nodes[0].nbytes // 4
    free = tile(program, workers=4, memory_limit=8 * share)
    tight = tile(program, workers=4, memory_limit=share + share // 4)
    assert any(node.op == "copy" for node in free.program.nodes)
    assert not any(node.op == "copy" for node in tight.program.nodes)
    assert tight.after.bytes > free.after.bytes
    assert tight.lower_bound <= tight.after.bytes


def several(count: int) -> Program:
    """A number of matrices, each read by rows and by columns alternately."""
    build = Alternating()
    outputs = []
    for _ in range(count):
        matrix = build.source((400, 400), (100, 100))
        factor = build.source((400, 5), (100, 5))
        for _ in range(2):
            factor = build.solved(matrix, factor, 0)
            factor = build.solved(matrix, factor, 1)
        outputs.append(factor)
    return build.program(*outputs)


@pytest.mark.parametrize("room", [0, 1, 2, 3])
def test_the_copies_that_fit_are_made(room: int) -> None:
    program = several(3)
    # bytes of a second sharding beyond a worker's share: three quarters of the share
    extra = 400 * 400 * 8 // 4 * 3 // 4
    actual = tile(program, workers=4, memory_limit=400 * 400 * 8, settings=Settings())
    assert [node.op for node in actual.program.nodes].count("copy") == 3
    assert exact_within(program, room * extra) == room


def exact_within(program: Program, room: int) -> int:
    """Number of second shardings that the exact method chooses within `room` bytes."""
    space = Space(
        program, Mesh(mesh_shape(4)), free_axes(program, 4, LIMITS), Settings(), None, True
    )
    costs = Costs(space)
    choice = exact(costs, Settings(replica_bytes=room), TIE)
    copies = costs.replica_bytes()
    taken = sum(sizes[state] for sizes, state in zip(copies, choice.states, strict=True))
    assert taken <= room
    assert choice.bound <= choice.cost
    return sum(
        variable.options[state].second is not None
        for variable, state in zip(space.variables, choice.states, strict=True)
    )


def transforms() -> tuple[list[da.Array], np.ndarray]:
    values = np.random.default_rng(0).random((400, 320))
    x = da.from_array(values, chunks=(100, 80))
    x = x + x.sum()
    columns, rows = x.rechunk({0: -1}), x.rechunk({1: -1})
    out = [function(columns, axis=0) for function in (da.fft.fft, da.fft.ifft, da.fft.rfft)]
    out += [function(rows, axis=1) for function in (da.fft.fft, da.fft.ifft, da.fft.rfft)]
    return out, values


@pytest.mark.parametrize("workers", [4, 6])
def test_values_are_the_same(workers: int) -> None:
    out, _ = transforms()
    explanation = dasktile.explain(*out, workers=workers)
    assert explanation.proven_optimal
    assert explanation.bytes_after <= 0.5 * explanation.bytes_before
    assert "copy" in {node.op for node in explanation.nodes}
    new = dasktile.optimize(*out, workers=workers)
    for one, other in zip(dask.compute(*out), dask.compute(*new), strict=True):
        np.testing.assert_allclose(other, one)


# Recomputed ---------------------------------------------------------------------------


class Counted:
    """An array that counts the bytes read."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.read = values, 0
        self.shape, self.dtype, self.ndim = values.shape, values.dtype, values.ndim
        self.chunks = (250, values.shape[1])

    def __getitem__(self, index: Any) -> np.ndarray:
        self.read += self.values[index].nbytes
        return self.values[index]


class Most(Callback):
    """The most bytes of results in memory at once."""

    def __init__(self) -> None:
        self.held = 0

    def _posttask(self, key: Any, result: Any, dsk: Any, state: Any, worker: Any) -> None:
        now = sum(getattr(value, "nbytes", 0) for value in state["cache"].values())
        self.held = max(self.held, now)


@pytest.fixture
def counted_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "REPEATABLE", {*sources.REPEATABLE, "tests"})


@pytest.mark.parametrize("scaled", [False, True])
def test_arrays_that_do_not_fit_are_read_again(counted_is_known: None, scaled: bool) -> None:
    store = Counted(np.random.default_rng(0).random((4000, 1000)))
    x = da.from_array(store, chunks=(250, 1000), asarray=False, meta=np.empty((0, 0)))
    x = 2 * x if scaled else x
    y = (x - x.mean(axis=0)).sum(axis=1)
    expected = (store.values - store.values.mean(axis=0)).sum(axis=1) * (2 if scaled else 1)
    held, read = {}, {}
    for limit in (None, "3 MB"):
        new = dasktile.optimize(y, workers=1, memory_limit=limit)
        store.read = 0
        with Most() as most:
            np.testing.assert_allclose(new.compute(scheduler="sync"), expected, atol=1e-9)
        held[limit], read[limit] = most.held, store.read
    assert read == {None: store.values.nbytes, "3 MB": 2 * store.values.nbytes}
    assert held[None] > store.values.nbytes
    assert held["3 MB"] < 0.2 * store.values.nbytes


class Drawn(Counted):
    """An array with other values in each read."""

    def __getitem__(self, index: Any) -> np.ndarray:
        self.values = np.random.default_rng().random(self.shape)
        return super().__getitem__(index)


def noisy(block: np.ndarray) -> np.ndarray:
    return block + np.random.default_rng().random(np.shape(block))


def test_arrays_that_may_differ_are_not_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    dasktile.register_kernel(noisy, elementwise=True)
    drawn = Drawn(np.zeros((4000, 1000)))
    unknown = da.from_array(drawn, chunks=(250, 1000), asarray=False, meta=np.empty((0, 0)))
    known = da.from_array(np.zeros((4000, 1000)), chunks=(250, 1000))
    for x in (unknown, known.map_blocks(noisy)):
        means = (x - x.mean(axis=0)).mean(axis=0)
        new = dasktile.optimize(means, memory_limit="3 MB", workers=1)
        assert abs(new.compute(scheduler="sync")).max() < 1e-9


def test_only_known_functions_are_repeatable() -> None:
    known = da.from_array(np.zeros((40, 10)), chunks=(10, 10))
    vectorized = known.map_blocks(np.vectorize(noisy, otypes=[float]), dtype=float)
    names = {"known": (known + 1).T, "vectorized": vectorized}
    nodes = {}
    for name, array in names.items():
        info = ArrayInfo(array.name, array.shape, array.dtype, array.chunks)
        nodes[name] = capture_graph(array.dask, [info]).program.nodes
    assert [node.repeatable for node in nodes["known"]] == [True, True, False]
    assert not nodes["vectorized"][-1].repeatable


def centred(**source: Any) -> tuple[Program, int]:
    build = Builder()
    x = build.source((4000, 1000), (250, 1000), **source)
    mean = build.fold(x, [0])
    return build.program(build.elementwise(x, mean)), x


def test_arrays_spill_from_the_memory_of_a_worker_not_of_a_task() -> None:
    program, _ = centred()
    held = program.nodes[0].nbytes
    for room, spilled in ((None, 2 * (held - 2 * 4_000_000)), (6_000_000, 2 * (held - 12_000_000)),
                          (held, 0)):  # fmt: skip
        plan = tile(program, workers=2, memory_limit=4_000_000, room=room, method="none")
        assert plan.before.spilled == spilled


def test_arrays_held_from_one_pass_to_the_next() -> None:
    program, x = centred()
    assert late_readers(program) == {x: (2,)}
    assert held_bytes(program) == program.nodes[x].nbytes == 32_000_000
    assert spilled_bytes(program, 10_000_000) == 44_000_000
    assert spilled_bytes(program, 32_000_000) == 0
    second = recompute(program, x, (2,), 8)
    assert second == Replica(x, ((2, 0),), (x,))
    again = extend(program, [second])
    assert [node.op for node in again.program.nodes] == ["source", "source", "sum", "add"]
    assert again.origin == (0, 0, 1, 2) and again.added == (False, True, False, False)
    assert held_bytes(again.program) == 0


def test_arrays_that_stream_are_not_held() -> None:
    build = Builder()
    x = build.source((4000, 1000), (250, 1000))
    double = build.elementwise(x)
    assert late_readers(build.program(build.elementwise(x, double))) == {}


def test_persisted_arrays_are_not_recomputed() -> None:
    program, x = centred(pinned=True)
    assert recompute(program, x, (2,), 8) is None
    assert tile(program, workers=2, memory_limit=3_000_000).origin is None
