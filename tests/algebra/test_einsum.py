"""Extended Einstein summation: values, what dasktile makes of it, and the order of products."""

from __future__ import annotations

import functools
import itertools
import operator
import pickle
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile.algebra.paths import candidates, contraction_path, price, steps
from dasktile.algebra.subscripts import parsed
from dasktile.capture.highlevel import capture
from dasktile.capture.rules.blockwise import Contract
from dasktile.capture.rules.einsums import EinSum
from dasktile.ir import Kind, Role
from dasktile.lower.kernels import einsums as lowering
from dasktile.lower.settings import SlabSettings

SIZES = {"i": 7, "j": 6, "k": 5, "l": 3, "b": 4, "...": 2}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


# What NumPy makes of it: everything at once -------------------------------------------


def reference(
    subscripts: str,
    *operands: np.ndarray,
    join: Callable[..., Any] = np.multiply,
    reduce: Callable[..., Any] = np.add,
) -> np.ndarray:
    """All operands broadcast to all labels, joined, and reduced label by label."""
    inputs, output = parsed(subscripts, [x.shape for x in operands])
    order = list(dict.fromkeys([*output, *itertools.chain(*inputs)]))
    views = []
    for x, term in zip(operands, inputs, strict=True):
        size = {label: x.shape[axis] for axis, label in enumerate(term)}
        for label in dict.fromkeys(term):
            while term.count(label) > 1:
                first, second = [axis for axis, one in enumerate(term) if one == label][:2]
                x = np.diagonal(x, axis1=first, axis2=second)
                term = (*(one for axis, one in enumerate(term) if axis not in (first, second)),
                        label)  # fmt: skip
        mine = [label for label in order if label in term]
        x = x.transpose([term.index(label) for label in mine])
        views.append(x.reshape([size.get(label, 1) for label in order]))
    values = np.broadcast_arrays(*views)
    if len(values) == 1 and isinstance(join, np.ufunc) and join.nin == 2:
        joined = values[0]
    elif isinstance(join, np.ufunc) and join.nin == 2:
        joined = functools.reduce(join, values)
    else:
        joined = np.asarray(join(*values))
    for _ in range(len(order) - len(output)):
        if isinstance(reduce, np.ufunc):
            joined = reduce.reduce(joined, axis=-1)
        else:
            joined = functools.reduce(reduce, np.moveaxis(joined, -1, 0))
    return np.asarray(joined)


def draw(rng: random.Random, shape: Sequence[int], dtype: str = "f8") -> np.ndarray:
    """Small whole numbers, so that all sums are exact."""
    numbers = np.random.default_rng(rng.randrange(10**6))
    if dtype == "bool":
        return numbers.random(shape) < 0.5
    values = numbers.integers(-4, 5, shape)
    if np.dtype(dtype).kind == "u":
        values = abs(values)
    return np.asarray(values.astype(dtype))


def chunked(rng: random.Random, value: np.ndarray) -> da.Array:
    """In uneven chunks."""
    chunks = []
    for size in value.shape:
        cuts = sorted(rng.sample(range(1, size), rng.randrange(min(size, 3)))) if size > 1 else []
        edges = [0, *cuts, size]
        chunks.append(tuple(hi - lo for lo, hi in itertools.pairwise(edges)))
    return da.from_array(value, chunks=tuple(chunks))


def shapes_of(subscripts: str) -> list[tuple[int, ...]]:
    actual = []
    for term in subscripts.replace(" ", "").split("->")[0].split(","):
        before, dots, after = term.partition("...")
        shape = [SIZES[c] for c in before] + [2, 3][: 2 if dots else 0] + [SIZES[c] for c in after]
        actual.append(tuple(shape))
    return actual


def check(actual: da.Array, expected: np.ndarray) -> None:
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    value = np.asarray(actual.compute(scheduler="sync"))
    assert value.dtype == expected.dtype
    np.testing.assert_array_equal(value, expected)


def check_everywhere(actual: da.Array, expected: np.ndarray) -> None:
    """Under dask alone, and as dasktile tiles it for one worker and for several."""
    check(actual, expected)
    for workers in (1, 4):
        check(dasktile.optimize(actual, workers=workers), expected)


# Subscripts, joins and reductions ------------------------------------------------------

SUBSCRIPTS = ["ij,kj->ki", "bij,bjk->bik", "i,j->ij", "ij,kl->ik", "...i,i->...", "jii,i->ji"]

MORE_SUBSCRIPTS = ["ij,jk", "ij,ij->ij", "ij,ij->", "i,i", "ij,j->i", "...ij,...jk->...ik",
                   "i...,...->...i", "ii,ij->j", "ij,->j", "bij,ji->b"]  # fmt: skip

UNARY = ["ij->ji", "ij->i", "ij->", "ii->i", "ii", "iij->j", "...i->...", "ij", "ji", "bij->jb"]

#: An elementwise join of two arrays of its own, and reductions as NumPy knows them.
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum of products": (np.multiply, np.add),
    "shortest way": (np.add, np.minimum),
    "greatest difference": (lambda x, y: abs(x - y), np.maximum),
    "squared distance": (lambda x, y: (x - y) ** 2, np.add),
    "any path": (np.logical_and, np.logical_or),
    "all or": (np.logical_or, np.logical_and),
    "bottleneck": (np.minimum, np.maximum),
    "product of sums": (np.add, np.multiply),
    "fmin of powers": (np.hypot, np.fmin),
    "pairs": (np.add, lambda x, y: np.where((x < y) | np.isnan(x), x, y)),
    "only the first": (lambda x, y: x, np.maximum),
}


@pytest.mark.parametrize(
    ("subscripts", "functions"),
    [
        *itertools.product(SUBSCRIPTS, FUNCTIONS),
        *itertools.product(MORE_SUBSCRIPTS, ["sum of products", "shortest way", "any path"]),
    ],
)
def test_two_operands(subscripts: str, functions: str) -> None:
    join, reduce = FUNCTIONS[functions]
    rng = random.Random(f"{subscripts} {functions}")
    shapes = shapes_of(subscripts)
    values = [draw(rng, shape) for shape in shapes]
    arrays = [chunked(rng, value) for value in values]
    actual = dasktile.einsum(subscripts, *arrays, join=join, reduce=reduce)
    expected = reference(subscripts, *values, join=join, reduce=reduce)
    check(actual, expected)
    check(dasktile.optimize(actual, workers=rng.choice((1, 2, 4))), expected)


@pytest.mark.parametrize("reduce", [np.add, np.maximum, np.logical_or, np.multiply])
@pytest.mark.parametrize("subscripts", UNARY)
def test_one_operand(subscripts: str, reduce: np.ufunc) -> None:
    rng = random.Random(subscripts)
    (shape,) = shapes_of(subscripts)
    value = draw(rng, shape)
    actual = dasktile.einsum(subscripts, chunked(rng, value), reduce=reduce)
    check_everywhere(actual, reference(subscripts, value, reduce=reduce))


@pytest.mark.parametrize(
    "subscripts",
    [
        "ij,jk,kl->il",
        "ij,jk,ki->",
        "i,ij,j->i",
        "ij,ij,ij->j",
        "b...,bi,i...->...",
        "ij,jk,kl,lb->bi",
        "i,j,k->ijk",
    ],
)
@pytest.mark.parametrize(
    ("join", "reduce"),
    [
        (np.multiply, np.add),
        (np.add, np.minimum),
        (np.logical_and, np.logical_or),
        (np.minimum, np.maximum),
        (np.bitwise_and, np.bitwise_or),
    ],
)  # fmt: skip
def test_many_operands(subscripts: str, join: np.ufunc, reduce: np.ufunc) -> None:
    rng = random.Random(f"{subscripts} {join.__name__}")
    dtype = "i8" if join is np.bitwise_and else "f8"
    values = [draw(rng, shape, dtype) for shape in shapes_of(subscripts)]
    arrays = [chunked(rng, value) for value in values]
    actual = dasktile.einsum(subscripts, *arrays, join=join, reduce=reduce, workers=4)
    check_everywhere(actual, reference(subscripts, *values, join=join, reduce=reduce))


def test_a_join_of_three_arrays() -> None:
    rng = random.Random(0)
    values = [draw(rng, shape) for shape in ((7, 6), (6, 5), (7,))]
    arrays = [chunked(rng, value) for value in values]

    def join(x: Any, y: Any, z: Any) -> Any:
        return np.where(z > 0, x - y, x + y)

    actual = dasktile.einsum("ij,jk,i->ik", *arrays, join=join, reduce=np.maximum)
    expected = reference("ij,jk,i->ik", *values, join=join, reduce=np.maximum)
    check_everywhere(actual, expected)


def test_a_function_of_one_array() -> None:
    value = draw(random.Random(0), (7, 6))
    array = da.from_array(value, chunks=(3, 4))
    check_everywhere(dasktile.einsum("ij->j", array, join=np.abs), abs(value).sum(axis=0))
    actual = dasktile.einsum("ij->ji", array, join=lambda x: x**2 + 1)
    check_everywhere(actual, value.T**2 + 1)


@pytest.mark.parametrize("seed", range(40))
def test_random_expressions(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.choice((1, 2, 2, 2, 3))
    labels = "ijklb"[: rng.choice((2, 3, 4))]
    terms = ["".join(rng.choice(labels) for _ in range(rng.randrange(4))) for _ in range(count)]
    named = sorted(set("".join(terms)))
    output = "".join(rng.sample(named, rng.randint(0, len(named))))
    subscripts = ",".join(terms) + "->" + output
    join, reduce = rng.choice(
        [(np.multiply, np.add)] * 3
        + [(np.add, np.minimum), (np.logical_and, np.logical_or), (np.maximum, np.add)]
    )
    values = []
    for term in terms:
        # now and then an axis of size one, which broadcasts
        ones = {label for label in term if rng.random() < 0.1}
        shape = [1 if label in ones else SIZES[label] for label in term]
        values.append(draw(rng, shape, rng.choice(("f8", "f8", "i8"))))
    if count == 1:
        join = np.multiply
    arrays = [chunked(rng, value) for value in values]
    actual = dasktile.einsum(subscripts, *arrays, join=join, reduce=reduce, workers=2)
    check_everywhere(actual, reference(subscripts, *values, join=join, reduce=reduce))


@pytest.mark.parametrize("functions", FUNCTIONS)
def test_missing_values_and_infinities(functions: str) -> None:
    join, reduce = FUNCTIONS[functions]
    rng = random.Random(functions)
    values = [draw(rng, shape) for shape in ((7, 6), (6, 5))]
    values[0][2, 3] = values[1][1, 4] = np.nan
    values[0][5, 1], values[1][5, 0], values[1][0, 0] = np.inf, -np.inf, np.inf
    arrays = [chunked(rng, value) for value in values]
    actual = dasktile.einsum("ij,jk->ik", *arrays, join=join, reduce=reduce)
    check_everywhere(actual, reference("ij,jk->ik", *values, join=join, reduce=reduce))


@pytest.mark.parametrize(
    ("alias", "ufunc"),
    [
        (sum, np.add),
        (np.sum, np.add),
        (operator.add, np.add),
        (max, np.maximum),
        (np.min, np.minimum),
        (da.max, np.maximum),
        (da.minimum, np.minimum),
        (all, np.logical_and),
        (np.any, np.logical_or),
        (np.prod, np.multiply),
    ],
)
def test_reductions_have_many_names(alias: Callable[..., Any], ufunc: np.ufunc) -> None:
    x = da.from_array(draw(random.Random(0), (7, 6)), chunks=(3, 4))
    actual = dasktile.einsum("ij,ij->j", x, x, join=np.add, reduce=alias)
    assert actual.name == dasktile.einsum("ij,ij->j", x, x, join=np.add, reduce=ufunc).name


# Types --------------------------------------------------------------------------------


@pytest.mark.parametrize("one", ["bool", "i1", "u1", "i4", "i8", "u8", "f4", "f8", "c16"])
@pytest.mark.parametrize("other", ["bool", "i1", "i4", "f4"])
def test_a_sum_of_products_is_of_the_type_that_numpy_gives_it(one: str, other: str) -> None:
    rng = random.Random(one + other)
    values = [draw(rng, (40, 6), one) * draw(rng, (), one), draw(rng, (6, 5), other)]
    values = [value.astype(dtype) for value, dtype in zip(values, (one, other), strict=True)]
    arrays = [chunked(rng, value) for value in values]
    check_everywhere(dasktile.einsum("ij,jk->ik", *arrays), np.einsum("ij,jk->ik", *values))


def test_small_integers_overflow_as_in_numpy() -> None:
    values = [np.full(shape, 11, dtype) for shape, dtype in (((3, 8), "i1"), ((8, 8), "i1"),
                                                             ((8, 3), "i4"))]  # fmt: skip
    arrays = [da.from_array(value, chunks=2) for value in values]
    check_everywhere(dasktile.einsum("ij,jk->ik", *arrays[:2]), np.einsum("ij,jk->ik", *values[:2]))
    # the product of the first two is not made in their own type
    check_everywhere(dasktile.einsum("ij,jk,kl->il", *arrays), np.einsum("ij,jk,kl->il", *values))


@pytest.mark.parametrize("dtype", ["i1", "u2", "bool", "f4"])
@pytest.mark.parametrize("reduce", [np.add, np.maximum, np.logaddexp, np.logical_or, np.multiply])
def test_other_reductions_are_of_the_type_of_the_ufunc(dtype: str, reduce: np.ufunc) -> None:
    rng = random.Random(dtype)
    value = draw(rng, (7, 6), dtype)
    actual = dasktile.einsum(
        "ij,ij->i", *(chunked(rng, value),) * 2, join=np.maximum, reduce=reduce
    )
    expected = reduce.reduce(value, axis=1)
    assert actual.dtype == expected.dtype
    tolerance = 4 * np.finfo(expected.dtype).eps if expected.dtype.kind == "f" else 0
    np.testing.assert_allclose(actual.compute(scheduler="sync"), expected, rtol=tolerance)


def test_times() -> None:
    days = np.arange(12).reshape(3, 4).astype("m8[D]") + np.datetime64("2020-01-01")
    array = da.from_array(days, chunks=(2, 3))
    actual = dasktile.einsum("ij,kj->ik", array, array, join=np.subtract, reduce=np.maximum)
    check_everywhere(actual, (days[:, None] - days[None]).max(axis=2))


def test_numpy_arrays_lists_and_numbers() -> None:
    x = draw(random.Random(0), (7, 6))
    check(
        dasktile.einsum("ij,j->i", da.from_array(x, chunks=3), np.arange(6.0)), x @ np.arange(6.0)
    )
    check(dasktile.einsum(",ij->ij", 2.0, x), 2 * x)
    check(dasktile.einsum("i,i", [1, 2], [3, 4]), np.asarray(11))
    assert isinstance(dasktile.einsum("ij->", x), da.Array)


# Nothing ------------------------------------------------------------------------------


def test_labels_without_elements() -> None:
    x, y = np.ones((3, 0)), np.ones((0, 4))
    a, b = da.from_array(x, chunks=2), da.from_array(y, chunks=2)
    check(dasktile.einsum("ij,jk->ik", a, b), np.zeros((3, 4)))
    check(dasktile.einsum("ij,jk->ik", a, b, join=np.add, reduce=np.multiply), np.ones((3, 4)))
    check(dasktile.einsum("ij,jk->ik", a, b, reduce=np.logical_and), np.ones((3, 4), bool))
    check(dasktile.einsum("ij,jk->ik", a, b, reduce=np.logaddexp), np.full((3, 4), -np.inf))
    check(dasktile.einsum("ij->ji", a, join=np.abs), np.zeros((0, 3)))
    check(dasktile.einsum("ij->j", a, reduce=np.minimum), np.zeros(0))
    with pytest.raises(ValueError, match="'j' has size 0, and reduce minimum has no identity"):
        dasktile.einsum("ij,jk->ik", a, b, reduce=np.minimum)


def test_chunks_without_elements() -> None:
    x = draw(random.Random(0), (7, 6))
    a = da.from_array(x, chunks=((0, 3, 0, 4), (6, 0)))
    for reduce in (np.add, np.minimum):
        actual = dasktile.einsum("ij,kj->ik", a, a, join=np.add, reduce=reduce)
        expected = reference("ij,kj->ik", x, x, join=np.add, reduce=reduce)
        check_everywhere(actual, expected)
    check_everywhere(dasktile.einsum("ij,kj->ik", a, a), x @ x.T)


# Errors -------------------------------------------------------------------------------

X, Y = np.ones((2, 3)), np.ones((4, 5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ij,jk->ik", X, Y), r"label 'j' is of size 3 in operand 0 of shape \(2, 3\), but of size"
                              r" 4 in operand 1 of shape \(4, 5\), axis 0"),
        (("ii->i", X), r"label 'i' is of sizes 2 and 3 in operand 0 of shape \(2, 3\)"),
        (("ij->ijk", X), "label 'k' of the output is in no operand"),
        (("ij->ii", X), "label 'i' is twice in the output"),
        (("ij,jk", X), "subscripts for 2 operands, but 1 operands are given"),
        (("ij", ), "subscripts for 1 operands, but 0 operands are given"),
        (("i", X), r"operand 0 has 2 axes, shape \(2, 3\); 'i' labels 1"),
        (("ijk...", X), r"operand 0 has 2 axes, shape \(2, 3\); 'ijk...' labels 3"),
        (("i1", X), "'1' is not a label; labels are letters"),
        (("i.j", X), "'.' is not a label"),
        (("......", X), "one ellipsis"),
        (("ij->i,j", X), "no comma"),
        (("i...->i", X), "an ellipsis stands for 1 axes, and the output has none"),
        (("ij->ij->i", X), "'-' is not a label"),
    ],
)  # fmt: skip
def test_wrong_subscripts(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dasktile.einsum(*arguments)


@pytest.mark.parametrize(
    ("error", "keywords", "message"),
    [
        (TypeError, {"join": "add"}, "join must be a function; got 'add'"),
        (TypeError, {"reduce": None}, "reduce must be a function; got None"),
        (ValueError, {"reduce": np.subtract}, "one of add, multiply.*got subtract"),
        (
            ValueError,
            {"join": np.sin},
            "join sin takes 1 arrays and returns 1; it must take 2 operands",
        ),
        (ValueError, {"join": np.divmod}, "join divmod takes 2 arrays and returns 2"),
        (
            TypeError,
            {"join": lambda x: x},
            "must work on 2 arrays that broadcast.*float64",
        ),
        (TypeError, {"join": lambda x, y: x if x > y else y}, "it raised ValueError"),
        (ValueError, {"join": lambda x, y: np.outer(x, y)}, "must work element by element"),
        (TypeError, {"reduce": lambda x, y: x if x > y else y}, "it raised ValueError"),
        (ValueError, {"reduce": lambda x, y: (x + y).sum()}, "of two of shape"),
        (TypeError, {"reduce": lambda x, y: x > y}, "it made bool"),
        (ValueError, {"workers": 0}, "workers must be"),
    ],
)
def test_wrong_functions(error: type[Exception], keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(error, match=message):
        dasktile.einsum("ij,kj->ik", X, X, **keywords)


def test_wrong_operands() -> None:
    with pytest.raises(TypeError, match="subscripts must be a string"):
        dasktile.einsum(X, [0, 1])
    with pytest.raises(TypeError, match=r"operand 1 .*MaskedArray"):
        dasktile.einsum("ij,ij->i", X, np.ma.masked_equal(X, 1))
    with pytest.raises(TypeError, match=r"operand 0 of einsum must be an array; got .*Delayed"):
        dasktile.einsum("ij->i", dask.delayed(X))
    unknown = da.from_array(X, chunks=1)
    with pytest.raises(ValueError, match=r"operand 0 of einsum has unknown chunk sizes"):
        dasktile.einsum("i->", unknown[unknown > 0])


# What dasktile reads of it --------------------------------------------------------------


def test_it_is_one_node_with_free_and_reduced_labels() -> None:
    a, b = da.ones((8, 6), chunks=3), da.ones((6, 4), chunks=2)
    for keywords, kernel, op in (
        ({}, Contract, "add.multiply"),
        ({"join": np.add, "reduce": np.minimum}, EinSum, "minimum.add"),
    ):
        captured = capture([dasktile.einsum("ij,jk->ki", a, b, **keywords)])
        node = captured.program.nodes[-1]
        assert [other.kind for other in captured.program.nodes[:-1]] == [Kind.SOURCE] * 2
        assert node.kind is Kind.CONTRACT and node.op == op
        assert [label.size for label in node.labels] == [4, 8, 6]
        assert [label.role for label in node.labels] == [Role.FREE, Role.FREE, Role.REDUCE]
        assert isinstance(captured.kernels[-1], kernel)


def test_it_is_called_by_its_functions() -> None:
    x = da.ones((8, 6), chunks=3)

    def op(subscripts: str, *operands: da.Array, **functions: Any) -> str:
        return capture([dasktile.einsum(subscripts, *operands, **functions)]).program.nodes[-1].op

    assert op("ij,kj->ik", x, x, join=lambda x, y: x, reduce=max) == "maximum.lambda"
    assert op("ij,ij->ij", x, x, join=np.subtract) == "subtract"
    assert op("ij->i", x) == "add"
    assert op("ij->i", x, join=np.abs) == "add.absolute"
    assert op("ij->ji", x) == "transpose"


def test_without_a_reduction_it_is_a_map() -> None:
    x, y = da.ones((8, 6), chunks=3), da.ones(6, chunks=2)
    for functions in ({}, {"join": np.maximum}):
        node = capture([dasktile.einsum("ij,j->ji", x, y, **functions)]).program.nodes[-1]
        assert node.kind is Kind.MAP
        assert [label.role for label in node.labels] == [Role.FREE, Role.FREE]


def test_it_is_tiled_like_a_matmul() -> None:
    a, b = da.ones((1200, 1200), chunks=(1200, 100)), da.ones((1200, 1200), chunks=(100, 1200))
    product = dasktile.explain(a @ b, workers=4)
    shortest = dasktile.einsum("ij,jk->ik", a, b, join=np.add, reduce=np.minimum)
    same = dasktile.explain(shortest, workers=4)
    assert same.bytes_after == product.bytes_after < same.bytes_before
    assert same.tasks_after < same.tasks_before


def test_results_of_joins_stay_small() -> None:
    x = da.ones(40_000, chunks=40_000)
    with dask.config.set({"array.chunk-size": "1 MiB"}):
        outer = dasktile.einsum("i,j->ij", x, x)
    assert max(np.prod(sizes) for sizes in itertools.product(*outer.chunks)) * 8 <= 2**20


def test_a_graph_travels() -> None:
    x = draw(random.Random(0), (7, 6))
    a = da.from_array(x, chunks=3)
    expected = reference("ij,kj->ik", x, x, join=np.add, reduce=np.minimum)
    tiled = dasktile.einsum("ij,kj->ik", a, a, join=np.add, reduce=np.minimum)
    for array in (tiled, dasktile.optimize(tiled, workers=2)):
        check(pickle.loads(pickle.dumps(array)), expected)
    again = dasktile.einsum("ij,kj->ik", a, a, join=np.add, reduce=np.minimum)
    assert again.name == tiled.name


# Slabs --------------------------------------------------------------------------------


@pytest.mark.parametrize("slab", [8, 64, 1000])
@pytest.mark.parametrize("functions", FUNCTIONS)
def test_slabs_of_any_size(functions: str, slab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "SLABS", SlabSettings(nbytes=slab))
    join, reduce = FUNCTIONS[functions]
    rng = random.Random(slab)
    values = [draw(rng, (5, 6, 3)), draw(rng, (3, 6, 4))]
    expected = reference("bjk,kjl->lb", *values, join=join, reduce=reduce)
    recipe = EinSum(((1, 2, 3), (3, 2, 0)), (0, 1), join, reduce, expected.dtype)
    np.testing.assert_array_equal(lowering.join(recipe, *values), expected)


def test_slabs_bound_what_a_join_holds() -> None:
    largest = 0

    def join(x: Any, y: Any) -> Any:
        nonlocal largest
        made = x + y
        largest = max(largest, made.nbytes)
        return made

    x = np.ones((300, 200))
    recipe = EinSum(((0, 2), (1, 2)), (0, 1), join, np.minimum, x.dtype)
    lowering.join(recipe, x, x)
    assert largest <= lowering.SLABS.nbytes < 300 * 300 * 200 * 8
    assert lowering.slab_steps((1000, 1000, 1000), 2**17) == (16, 32, 250)
    assert lowering.slab_steps((3, 0), 1) == (1, 1)


# The order of products -------------------------------------------------------------------


def small(text: str) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    left, _, right = text.partition("->")
    return [tuple(term) for term in left.split(",")], tuple(right)


def test_paths_are_the_same_whatever_the_labels_are_called() -> None:
    inputs, output = small("ab,bc,cd,de,ef->af")
    sizes = dict(zip("abcdef", (30, 500, 20, 400, 600, 10), strict=True))
    path = contraction_path(inputs, output, sizes, 8, 4)
    names = dict(zip("abcdef", "qzfxrk", strict=True))
    renamed = [tuple(names[label] for label in term) for term in inputs]
    again = contraction_path(
        renamed, ("q", "k"), {names[label]: size for label, size in sizes.items()}, 8, 4
    )
    assert path == again
    assert steps(path, inputs, output)[-1][1] == output


def test_one_worker_takes_the_fewest_operations() -> None:
    inputs, output = small("ab,bc,cd->ad")
    sizes = {"a": 10, "b": 1000, "c": 20, "d": 500}
    assert contraction_path(inputs, output, sizes, 8, 1) == ((0, 1), (2, 3))
    assert len(candidates(inputs, output, sizes)) == 3


def test_the_fewest_operations_may_move_more_bytes() -> None:
    inputs, output = small("km,lm,kln->nm")
    sizes = {"k": 20, "l": 10, "m": 170, "n": 700}
    fewest, *others = candidates(inputs, output, sizes)
    first, *rest = (price(path, inputs, output, sizes, 8, 4) for path in (fewest, *others))
    path = contraction_path(inputs, output, sizes, 8, 4)
    chosen = next(cost for cost in rest if cost.path == path)
    assert first.operations < chosen.operations < 1.1 * first.operations
    assert chosen.moved * 4 < first.moved
    assert chosen.bytes == min(cost.bytes for cost in (first, *rest))


@pytest.mark.parametrize("seed", range(20))
def test_every_path_contracts_everything_once(seed: int) -> None:
    rng = random.Random(seed)
    labels = "abcdefgh"[: rng.randint(2, 8)]
    inputs = [tuple(rng.sample(labels, rng.randint(0, 3) % len(labels)))
              for _ in range(rng.randint(3, 6))]  # fmt: skip
    named = sorted(set(itertools.chain(*inputs)))
    output = tuple(rng.sample(named, rng.randint(0, len(named))))
    sizes = {label: rng.choice((1, 2, 30)) for label in labels}
    for path in candidates(inputs, output, sizes):
        used = sorted(itertools.chain(*path))
        assert used == list(range(len(inputs) + len(path) - 1))
        assert steps(path, inputs, output)[-1][1] == output
        assert price(path, inputs, output, sizes, 8, 4).operations > 0


def test_operands_are_summed_before_they_are_multiplied() -> None:
    x = da.from_array(draw(random.Random(0), (7, 6)), chunks=3)
    program = capture([dasktile.einsum("ij,kl->ik", x, x + 1)]).program
    assert [node.op for node in program.nodes] == ["array", "add", "add", "add", "multiply"]
    assert max(len(node.labels) for node in program.nodes) == 2
