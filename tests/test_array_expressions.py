"""Arrays of the package ``dask_array``: the programs, values and bytes of Dask's own arrays."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.array.reductions import _nanargmin, mean_agg, mean_chunk
from distributed import Client

import dasktile
from dasktile import small_graphs, tiling
from dasktile._compat import expressions as names
from dasktile.capture import expressions as reading
from dasktile.capture.expressions import ExpressionReader
from dasktile.cluster.target import machine
from dasktile.collections.unpack import Holders
from dasktile.errors import InternalErrorWarning, UnsupportedCollectionWarning
from dasktile.ir import Node, Program
from dasktile.planning import captured_program
from dasktile.request import Request
from tests import expressions
from tests.agreement import EAGER
from tests.expressions import Expression, grown, outputs
from tests.operations import axes, elementwise, handwritten, moves, products, reductions
from tests.support import plan_for_workers
from tests.traffic import traffic

da_expr = pytest.importorskip("dask_array")

A = np.random.default_rng(0).random((40, 30))

Operands = tuple[Any, Any, Any, Any]


def operands(module: ModuleType) -> Operands:
    """Two matrices, random numbers and a vector."""
    return (
        module.from_array(A, chunks=(10, 15)),
        module.from_array(A.T.copy(), chunks=(15, 7)),
        module.random.default_rng(3).random((40, 30), chunks=(10, 15)),
        module.from_array(A[:, 0].copy(), chunks=7),
    )


def block_number(block: Any, block_info: Any = None) -> Any:
    return block * block_info[0]["chunk-location"][0]


def with_position(block: Any, block_id: Any = None) -> Any:
    return block + block_id[0]


def scaled(block: Any, by: Any = 1.0, block_id: Any = None) -> Any:
    return block * by + block_id[0]


def positive(module: ModuleType, x: Any) -> Any:
    return x.T @ x + 30 * module.eye(30, chunks=15)


def double(block: Any) -> Any:
    return block * 2


def smooth(block: Any) -> Any:
    return block + np.roll(block, 1, 0) + np.roll(block, -1, 0)


#: Expressions for which both packages give the same program.
SAME: dict[str, Callable[[Any, Any, Any, Any, Any], Any]] = {
    "add": lambda m, x, y, r, v: x + 1,
    "total": lambda m, x, y, r, v: x.sum(),
    "anomalies": lambda m, x, y, r, v: (x - x.mean(0)).sum(axis=0, keepdims=True),
    "std": lambda m, x, y, r, v: x.std(axis=1),
    "var": lambda m, x, y, r, v: x.var(ddof=1),
    "max": lambda m, x, y, r, v: x.max(0),
    "nanmean": lambda m, x, y, r, v: m.nanmean(x, axis=0),
    "nanvar": lambda m, x, y, r, v: m.nanvar(x, axis=0),
    "argmax": lambda m, x, y, r, v: x.argmax(0),
    "any": lambda m, x, y, r, v: (x > 0.5).any(1),
    "cumsum": lambda m, x, y, r, v: x.cumsum(0),
    "blelloch": lambda m, x, y, r, v: m.cumprod(x, axis=1, method="blelloch"),
    "product": lambda m, x, y, r, v: x @ y,
    "gram": lambda m, x, y, r, v: x.T @ x,
    "tensordot": lambda m, x, y, r, v: m.tensordot(x, y, axes=1),
    "einsum": lambda m, x, y, r, v: m.einsum("ij,jk->ik", x, y),
    "vdot": lambda m, x, y, r, v: m.vdot(v, v),
    "reversed": lambda m, x, y, r, v: (x + 1)[::-1],
    "shuffled": lambda m, x, y, r, v: m.take(x * 2, np.arange(30)[::-1], axis=1),
    "mask": lambda m, x, y, r, v: x[x > 0.5],
    "points": lambda m, x, y, r, v: x.vindex[[1, 2, 30], [4, 5, 6]],
    "rechunk": lambda m, x, y, r, v: (x * 2).rechunk((20, 5)).sum(1),
    "stack": lambda m, x, y, r, v: m.stack([x, r]),
    "reshape": lambda m, x, y, r, v: (x + 1).reshape(8, 5, 30),
    "ravel": lambda m, x, y, r, v: (x + 1).ravel(),
    "where": lambda m, x, y, r, v: m.where(x > 0.5, x, 0),
    "clip": lambda m, x, y, r, v: x.clip(0.2, 0.7),
    "astype": lambda m, x, y, r, v: x.astype("f4"),
    "round": lambda m, x, y, r, v: x.round(2),
    "ufuncs": lambda m, x, y, r, v: np.sqrt(m.exp(x)),
    "select": lambda m, x, y, r, v: m.select([x > 0.5, x > 0.2], [x, x * 2]),
    "choose": lambda m, x, y, r, v: m.choose((x * 2).astype(int), [x, r]),
    "map_blocks": lambda m, x, y, r, v: x.map_blocks(double),
    "block_info": lambda m, x, y, r, v: x.map_blocks(block_number, dtype=float),
    "block_id": lambda m, x, y, r, v: m.map_blocks(with_position, x, dtype=float),
    "two arrays": lambda m, x, y, r, v: m.map_blocks(np.add, x, r),
    "overlap": lambda m, x, y, r, v: x.map_overlap(smooth, depth=2, boundary="reflect"),
    "one halo": lambda m, x, y, r, v: x.map_overlap(smooth, depth={0: 1}, boundary="none"),
    "coarsen": lambda m, x, y, r, v: m.coarsen(np.mean, x, {0: 2, 1: 5}),
    "random": lambda m, x, y, r, v: r.mean(0),
    "random gram": lambda m, x, y, r, v: (r.T @ r) + 1,
    "ones": lambda m, x, y, r, v: m.ones((40, 30), chunks=(10, 15)) * x,
    "full": lambda m, x, y, r, v: m.full((20,), 3.0, chunks=5) + 1,
    "linspace": lambda m, x, y, r, v: m.linspace(0, 1, 30, chunks=15) * x,
    "topk": lambda m, x, y, r, v: m.topk(x, 3, axis=0),
    "histogram": lambda m, x, y, r, v: m.histogram(x, bins=5, range=(0, 1))[0],
    "median": lambda m, x, y, r, v: m.median(x, axis=0),
    "pad": lambda m, x, y, r, v: m.pad(x, 2, mode="edge"),
    "flip": lambda m, x, y, r, v: m.flip(x, 0),
    "inverse": lambda m, x, y, r, v: m.linalg.inv(x.T @ x + m.eye(30, chunks=15)),
    "norm": lambda m, x, y, r, v: m.linalg.norm(x),
    "fft": lambda m, x, y, r, v: m.fft.fft(x.rechunk((-1, 15)), axis=0),
    "isin": lambda m, x, y, r, v: m.isin((x * 5).astype(int), [1, 2]),
    "outer": lambda m, x, y, r, v: m.outer(v, v),
    "along axis": lambda m, x, y, r, v: m.apply_along_axis(np.sum, 1, x, dtype=float, shape=()),
    "gufunc": lambda m, x, y, r, v: m.apply_gufunc(
        np.linalg.norm, "(i)->()", x.rechunk((10, -1)), axis=-1, output_dtypes=float
    ),
    "tile": lambda m, x, y, r, v: m.tile(x, (2, 1)),
    "trace": lambda m, x, y, r, v: m.trace(y @ x),
    "blocks": lambda m, x, y, r, v: x.blocks[1:, 0],
    "concatenate": lambda m, x, y, r, v: m.concatenate([x, x + 1, y.T.rechunk((10, 15))]),
    "slices": lambda m, x, y, r, v: (x + 1)[5:33:2, 3],
    "transposed": lambda m, x, y, r, v: x + y.T,
    "new axis": lambda m, x, y, r, v: x[:, None] + x[None].transpose(1, 0, 2),
    "rows": lambda m, x, y, r, v: (x + 1)[[3, 1, 2, 39, 4]],
    "broadcast": lambda m, x, y, r, v: m.broadcast_to(v[:, None], (40, 6)),
    "diff": lambda m, x, y, r, v: m.diff(x, axis=0),
    "roll": lambda m, x, y, r, v: m.roll(x, 3, axis=0),
    "solve": lambda m, x, y, r, v: m.linalg.solve(
        (x.T @ x + m.eye(30, chunks=15)).rechunk(10), v[:30].rechunk(10)
    ),
    "windows": lambda m, x, y, r, v: m.coarsen(np.sum, x, {0: 4}).cumsum(0)[::2],
    "cov": lambda m, x, y, r, v: m.cov(x),
    "coarsen by its own": lambda m, x, y, r, v: m.coarsen(m.mean, x + 1, {0: 2}),
    "scan of empty blocks": lambda m, x, y, r, v: v[(v > 2) | (v < 0.5)].cumsum(0),
    "scan of an empty block": lambda m, x, y, r, v: m.concatenate([v[:0], v]).cumsum(0),
    "repeat": lambda m, x, y, r, v: m.repeat(x, 2, axis=0),
    "shuffle": lambda m, x, y, r, v: x.shuffle([[3, 1], [2, 0]], axis=0),
    "diag": lambda m, x, y, r, v: m.diag(v),
    "sum where": lambda m, x, y, r, v: np.add(x, r, where=x > 0.5, out=x + 0),
}

#: Expressions for which ``dask_array`` writes other tasks, which are another program, and why.
OTHER: dict[str, Callable[[Any, Any, Any, Any, Any], Any]] = {
    # its sum reads an array that is selected first
    "row mask": lambda m, x, y, r, v: x[v > 0.5].sum(0),
    # the tree of a search of all axes has other steps
    "nanargmin": lambda m, x, y, r, v: m.nanargmin(x),
    # the tasks contain the vector
    "percentile": lambda m, x, y, r, v: m.percentile(v, 50),
    # each step of `qr` is an array
    "svd": lambda m, x, y, r, v: m.linalg.svd(x.rechunk((10, -1)))[1],
    # each step is an array
    "qr": lambda m, x, y, r, v: m.linalg.qr(x.rechunk((10, -1)))[1],
    # its swapaxes is a transposition
    "average": lambda m, x, y, r, v: m.average(x, axis=0, weights=v),
    # the tasks of a block are within those of the result
    "unique": lambda m, x, y, r, v: m.unique((x * 5).astype(int)),
    # the triangle is an array of its own
    "cholesky": lambda m, x, y, r, v: m.linalg.cholesky(positive(m, x)),
    # as for cholesky
    "solve positive": lambda m, x, y, r, v: m.linalg.solve(
        positive(m, x), v[:30].rechunk(15), assume_a="pos"
    ),
    # which block a task reads is unknown
    "block_id and delayed": lambda m, x, y, r, v: x.map_blocks(
        scaled, by=dask.delayed(3.0), dtype=float
    ),
    # which block a task reads is unknown
    "block_id and an array": lambda m, x, y, r, v: x.map_blocks(scaled, by=v[:15], dtype=float),
    # counts of blocks and their sum are two arrays
    "bincount": lambda m, x, y, r, v: m.bincount((v * 5).astype(int), minlength=6),
    # its zeros are a NumPy array, where Dask's are those of zeros_like
    "tril": lambda m, x, y, r, v: m.tril(y @ x),
    # which block a task reads is unknown
    "modf": lambda m, x, y, r, v: m.modf(x)[1],
}


def expression(name: str, module: ModuleType = da_expr) -> Any:
    return {**SAME, **OTHER}[name](module, *operands(module))


def program_of(array: Any) -> Program | None:
    """The program that computes an array; None if the reader has none."""
    holders = Holders()
    holders.open(array)
    if not holders.arrays:
        return None
    request = Request.of(holders, False, machine(4, None), "exact")
    return captured_program(request).program


class Structures:
    """Numbers for nodes that are the same but for names, each with all that it is computed from."""

    def __init__(self) -> None:
        self._numbers: dict[Node, int] = {}

    def __call__(self, array: Any) -> tuple[Counter[int], list[int]] | None:
        """How often each node is in the program of an array, in any order, and the outputs.

        None for an array without a program.
        """
        program = program_of(array)
        if program is None:
            return None
        numbers: list[int] = []
        for node in program.nodes:
            edges = tuple(replace(edge, producer=numbers[edge.producer]) for edge in node.edges)
            # names and texts for users, which come from the names of layers
            plain = replace(node, name="", op="", reason="", edges=edges)
            numbers.append(self._numbers.setdefault(plain, len(self._numbers)))
        return Counter(numbers), [numbers[output] for output in program.outputs]


@pytest.fixture
def as_written(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Read expressions before ``dask_array`` itself changes them, with Dask's choice of chunks.

    By default, ``dask_array`` merges small blocks of an operand where Dask cuts the large ones.
    """
    monkeypatch.setattr(reading, "simplified", lambda node: node)
    with dask.config.set({"array.unify-chunks-policy": "refine"}):
        yield


@pytest.mark.usefixtures("as_written")
@pytest.mark.parametrize("name", SAME)
def test_the_program_is_that_of_dask_arrays(name: str) -> None:
    structure = Structures()
    found = structure(expression(name))
    assert found is not None
    assert found == structure(expression(name, da))


@pytest.mark.usefixtures("as_written")
@pytest.mark.parametrize("name", OTHER)
def test_programs_that_differ(name: str) -> None:
    structure = Structures()
    assert structure(expression(name)) != structure(expression(name, da))


def test_structures_are_equal_up_to_names_and_order() -> None:
    x, y, r, _ = operands(da)
    structure = Structures()
    first, second = structure((x + 1) @ (y * 2)), structure((x + 1) @ (y * 2))
    assert first == second
    # the same nodes with their edges exchanged, and a node that is read twice instead of two
    assert structure((x + 1) - r) != structure(r - (x + 1))
    assert structure((x + 1) - (x + 1)) != structure((x + 1) - (x + 2))


@pytest.mark.parametrize("name", [*SAME, *OTHER])
def test_values_are_those_of_dask_array(name: str) -> None:
    lazy = expression(name)
    expected = lazy.compute(scheduler="sync")
    reader = ExpressionReader()
    read = reader.array(lazy.expr)
    assert reader.errors == []
    np.testing.assert_equal(read.chunks, lazy.chunks)
    value = read.compute(scheduler="sync")
    np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-12)
    assert type(value) is type(expected)
    assert value.dtype == read.dtype == expected.dtype
    with dask.config.set(EAGER):
        for keep_chunks in (False, True):
            result = dasktile.optimize(lazy, keep_chunks=keep_chunks)
            assert type(result) is type(lazy)
            actual = result.compute(scheduler="sync")
            np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)
            assert actual.dtype == expected.dtype == lazy.dtype
            if keep_chunks:
                np.testing.assert_equal(result.chunks, lazy.chunks)


def test_an_axis_without_blocks() -> None:
    nothing = da_expr.coarsen(np.max, da_expr.ones((2, 0, 3), chunks=(2, -1, 1)), {0: 2})
    assert () in nothing.chunks
    for lazy in (nothing, da_expr.rot90(nothing), nothing + 1):
        reader = ExpressionReader()
        assert reader.array(lazy.expr).compute(scheduler="sync").shape == lazy.shape
        assert reader.errors == []


def test_partial_results_of_an_empty_block_that_is_joined() -> None:
    v = da_expr.from_array(np.array([-1.0, -1, 3]), chunks=2)
    lazy = da_expr.einsum("a,xa->x", v[v > 0].compute_chunk_sizes(), da_expr.ones((1, 1)))
    reader = ExpressionReader()
    for value in (lazy, reader.array(lazy.expr)):
        np.testing.assert_array_equal(value.compute(scheduler="sync"), [3])
    assert reader.errors == []


@contextmanager
def random_expressions_of(module: ModuleType) -> Iterator[None]:
    """Random expressions are written with the functions of a module."""
    changed = (expressions, axes, elementwise, handwritten, moves, products, reductions)
    with pytest.MonkeyPatch.context() as patch:
        for each in changed:
            if hasattr(each, "da"):
                patch.setattr(each, "da", module)
        yield


def random_expression(seed: int, module: ModuleType = da_expr) -> Expression:
    with random_expressions_of(module):
        return grown(random.Random(seed))


#: Steps of random expressions for which ``dask_array`` writes other tasks: a pattern of their text,
#: in which slices are ``:``.
OTHER_STEPS = {
    # the value is an array, which every block reads
    "assignment": r"\] = 1$",
    # the inserted values are a NumPy array, where Dask's are tasks
    "insert": r"insert\(",
    # the zeros are a NumPy array, where Dask's are those of zeros_like
    "triangle": r"tri[ul]\(",
    # an integer or a new axis beside slices is a slice, then a reshape
    "new axis": r"v\d+\[\(.*None",
    # the chunks of a take are others, and a list beside slices is one step more
    "positions": r"v\d+\[\(.*\[|take\(",
    # it is a transposition
    "swapaxes": r"swapaxes\(",
    # its ravel of one block is a view, where Dask's is a function
    "vdot": r"vdot\(",
    # the function has no rule, as the quantiles are within it
    "quantile": r"(nan)?quantile\(",
    # core dimensions in several blocks are rechunked with other chunks along the other axes
    "gufunc": r"apply_gufunc\(",
    # blocks that are smaller than the halo are merged with others
    "overlap": r"map_overlap\(",
    # the sizes are those of an array of their own
    "sizes": r"compute_chunk_sizes",
    # a copy of a NumPy array is tasks
    "clone": r"clone\(",
    # the tree of a search of all axes has other steps
    "search": r"(nan)?arg(max|min)\(v\d+, \{'axis': None",
    # a corner that is mirrored along two axes is flipped in two steps
    "mirrored": r"pad\(.*'(symmetric|reflect)'",
    # counts of blocks and their sum are two arrays
    "bincount": r"bincount\(",
    # a vector of one element as a row is its own column, of the same name
    "square": r"matmul\((v\d+), \1\)",
}


def steps_that_may_differ(e: Expression, other: Expression) -> list[set[str]]:
    """For each step of an expression, the names in `OTHER_STEPS` of it and of what it reads.

    Blocks without elements are ``empty``: ``dask_array`` leaves them out where blocks are read.
    """
    found: list[set[str]] = []
    for number, (step, value, counterpart) in enumerate(
        zip(e.steps, e.values, other.values, strict=False)
    ):
        text = re.sub(r"slice\([^)]*\)", ":", step.partition(" = ")[2])
        names = {name for name, form in OTHER_STEPS.items() if re.search(form, text)}
        if any(0 in sizes for sizes in (*value.lazy.chunks, *counterpart.lazy.chunks)):
            names.add("empty")
        read = {int(each) for each in re.findall(r"\bv(\d+)\b", step)} - {number}
        found.append(names.union(*(found[each] for each in read)))
    return found


def compare_random_programs(seeds: Iterable[int]) -> tuple[int, set[str]]:
    """Compare the programs of all steps of random expressions.

    Returns how many were compared, and the forms in `OTHER_STEPS` because of which some differ.
    """
    compared = 0
    different: set[str] = set()
    for seed in seeds:
        theirs, ours = random_expression(seed), random_expression(seed, da)
        structure = Structures()
        for step, other, forms, one, counterpart in zip(
            theirs.steps,
            ours.steps,
            steps_that_may_differ(theirs, ours),
            theirs.values,
            ours.values,
            strict=False,
        ):
            if step != other:
                break  # dask_array lacks a function
            if len(forms) > 1:
                continue
            found = structure(one.lazy)
            same = found == structure(counterpart.lazy)
            if not forms:
                assert same, f"seed {seed}: {step}"
                compared += found is not None
            elif not same:
                different |= forms
    return compared, different


@pytest.mark.usefixtures("as_written")
def test_random_programs_are_those_of_dask_arrays() -> None:
    compared, _ = compare_random_programs(range(50))
    assert compared >= 200


@pytest.mark.slow
@pytest.mark.usefixtures("as_written")
def test_many_random_programs_are_those_of_dask_arrays() -> None:
    compared, different = compare_random_programs([*range(900), 1_145])
    assert compared >= 3_500
    assert different == {*OTHER_STEPS, "empty"}  # each exception is needed


def check_random(seed: int) -> bool:
    """Check what is read and what is planned; False if ``dask_array`` cannot compute it itself."""
    e = random_expression(seed)
    wanted = outputs(e)
    arrays = [value.lazy for value in wanted]
    try:
        # each alone, as its expression is rewritten: a slice may be moved below a user's function
        for value in wanted:
            value.check(value.lazy.compute(scheduler="sync"))
    except Exception:
        return False
    reader = ExpressionReader()
    read = [reader.array(array.expr) for array in arrays]
    assert reader.errors == []
    for value, computed in zip(wanted, dask.compute(*read, scheduler="sync"), strict=True):
        value.check(computed)
    options = {"workers": e.pick((1, 2, 4, 7)), "keep_chunks": e.chance(50)}
    if e.chance(50):
        options["memory_limit"] = "1 kB"
    try:
        with dask.config.set({"dasktile.raise-errors": True}):
            results = dasktile.optimize(arrays, **options)
    except (tiling.MemoryLimitError, tiling.TooManyTilingsError):
        return True
    # The others are those above.  dask.compute, but not their method, is wrong for points (vindex)
    # of an array with other axes.
    planned = [
        (value, result)
        for value, array, result in zip(wanted, arrays, results, strict=True)
        if result is not array
    ]
    computed_together = dask.compute(*(result for _, result in planned), scheduler="sync")
    for (value, _), computed in zip(planned, computed_together, strict=True):
        value.check(computed)
    return True


@pytest.mark.parametrize("first", range(0, 60, 15))
def test_values_of_random_expressions(first: int) -> None:
    assert sum(map(check_random, range(first, first + 15))) >= 13


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000, 21_000, 500))
def test_values_of_many_random_expressions(first: int) -> None:
    assert sum(map(check_random, range(first, first + 500))) >= 480


def plan_and_count(array: Any) -> tuple[int, list[Any]]:
    received, without_home = traffic([dasktile.optimize(array)], 4)
    return sum(received.values()), without_home


@pytest.mark.parametrize("name", ["random gram", "anomalies", "transposed"])
def test_bytes_are_those_of_dask_arrays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch)
    monkeypatch.setattr(small_graphs, "MOST_SMALL", 0)  # small graphs have plans, too
    with dask.config.set(EAGER):
        theirs, without_home = plan_and_count(expression(name))
        ours, _ = plan_and_count(expression(name, da))
    assert not without_home
    assert theirs == ours


def test_results_of_one_call_have_the_same_tasks() -> None:
    x = operands(da_expr)[0]
    anomalies = x - x.mean(0)
    with dask.config.set(EAGER):
        first, second = dasktile.optimize(anomalies, anomalies.std(0))
    tasks, others = (dict(each.__dask_graph__()) for each in (first, second))
    both = tasks.keys() & others.keys()
    assert both
    assert all(tasks[key] == others[key] for key in both)
    together = dask.compute(first, second, scheduler="sync")
    np.testing.assert_allclose(together[1], (A - A.mean(0)).std(0))


def test_containers_and_dask_arrays_beside() -> None:
    theirs, ours = operands(da_expr)[0], operands(da)[0]
    with dask.config.set(EAGER):
        result = dasktile.optimize({"a": [theirs.sum(0), 1], "b": ours.sum(0)})
    (a, one), b = result["a"], result["b"]
    assert (type(a), one, type(b)) == (type(theirs), 1, da.Array)
    np.testing.assert_allclose(a.compute(), b.compute())


def test_more_operations_after_a_plan_and_a_second_plan() -> None:
    x = operands(da_expr)[0]
    with dask.config.set(EAGER):
        first = dasktile.optimize(x.T @ x)
        kept = first.persist(scheduler="sync")
        second = dasktile.optimize((kept + first).sum(axis=0))
    np.testing.assert_allclose(second.compute(scheduler="sync"), 2 * (A.T @ A).sum(axis=0))


def test_what_dask_array_has_fused_is_read() -> None:
    x = operands(da_expr)[0]
    lazy = ((x + 1) * 2 - x).optimize()
    assert "FusedBlockwise" in type(lazy.expr).__name__
    structure = Structures()
    assert structure(lazy) == structure((operands(da)[0] + 1) * 2 - operands(da)[0])


def test_explain_and_compare_and_compute() -> None:
    x = operands(da_expr)[0]
    with dask.config.set(EAGER):
        explanation = dasktile.explain(x.T @ x)
        assert "matmul" in str(explanation)
        assert dasktile.compare(x.T @ x, methods="auto")["auto"].bytes >= 0
        (value,) = dasktile.compute(x.T @ x)
    np.testing.assert_allclose(value, A.T @ A)


def test_the_order_of_tasks_is_planned() -> None:
    x = operands(da_expr)[0]
    schedule = dasktile.plan(x.T @ x, memory_limit="100 kB", workers=1)
    assert len(schedule.order) > 10
    ordered = schedule.apply()
    assert type(ordered) is da.Array or isinstance(ordered, da.Array)
    np.testing.assert_allclose(ordered.compute(scheduler="sync"), A.T @ A)
    np.testing.assert_allclose(schedule.apply(x.T @ x).compute(scheduler="sync"), A.T @ A)


def test_no_order_for_objects_of_xarray() -> None:
    xarray = pytest.importorskip("xarray")
    value = xarray.DataArray(operands(da_expr)[0], dims=("i", "j"))
    for each in (value, value.to_dataset(name="a")):
        with pytest.raises(TypeError, match="pass these arrays"):
            dasktile.plan(each, memory_limit="100 kB", workers=1)


def test_an_error_while_reading_leaves_the_array_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: Any) -> None:
        raise LookupError("a defect")

    monkeypatch.setattr(reading, "_from_tasks", failing)
    lazy, ours = expression("random"), expression("total", da)
    with (
        dask.config.set({"dasktile.raise-errors": False}),
        pytest.warns(InternalErrorWarning, match="a defect"),
    ):
        result, other = dasktile.optimize(lazy, ours)
    assert result is lazy
    assert isinstance(other, da.Array)
    with dask.config.set({"dasktile.raise-errors": True}), pytest.raises(LookupError):
        dasktile.explain(lazy)


def test_objects_of_xarray() -> None:
    xarray = pytest.importorskip("xarray")
    x, _, _, v = operands(da_expr)
    value = xarray.Dataset({"a": (("i", "j"), x), "b": ("i", v.rechunk(10))})
    anomalies = value - value.mean("i")
    with dask.config.set(EAGER):
        result = dasktile.optimize(anomalies)
    assert type(result.a.data) is type(x)
    assert result.chunks["i"] == result.a.chunksizes["i"]
    np.testing.assert_allclose(result.a.data.compute(), A - A.mean(0))
    np.testing.assert_allclose(result.b.data.compute(), A[:, 0] - A[:, 0].mean())


@pytest.mark.slow
def test_diagnosis_of_a_cluster() -> None:
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        x = operands(da_expr)[2]
        with dasktile.diagnose(client) as diagnosis:
            (x.T @ x).compute()
    (computation,) = diagnosis.result.computations
    assert computation.explanation is not None


def test_a_release_without_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_is_checked", lambda: False)
    x = operands(da_expr)[0]
    with pytest.warns(UnsupportedCollectionWarning):
        assert dasktile.optimize(x) is x


def test_functions_that_were_copied_are_recognised() -> None:
    common = pytest.importorskip("dask_array.reductions._common")
    assert names.counterpart(common.mean_agg) is mean_agg
    assert names.counterpart(common.mean_chunk) is mean_chunk
    search = names.counterpart(common.partial(common.arg_chunk, np.min, common._nanargmin))
    assert search.args == (np.min, _nanargmin)
    assert names.counterpart(double) is double

    def mean_agg_of_a_user() -> None:
        pass

    assert names.counterpart(mean_agg_of_a_user) is mean_agg_of_a_user


def test_deep_expressions() -> None:
    x = operands(da_expr)[3]
    for _ in range(300):
        x = x + 1
    array = ExpressionReader().array(x.expr)
    np.testing.assert_allclose(array.compute(scheduler="sync"), A[:, 0] + 300)
