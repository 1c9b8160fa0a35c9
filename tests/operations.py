"""The operations that random expressions are made of.

Each takes an expression and one of its arrays and adds what it makes of it; where the
operation does not fit the array, nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np

from tests.expressions import Expression, Value

Operation = Callable[[Expression, Value], Value | None]


def _axis(e: Expression, x: Value) -> int:
    return e.rng.randrange(x.ndim) - (x.ndim if e.chance(25) else 0)


def _axes(e: Expression, x: Value) -> Any:
    """Axes to reduce: one, several or all."""
    if x.ndim == 0 or e.chance(30):
        return None
    if x.ndim == 1 or e.chance(60):
        return _axis(e, x)
    return tuple(e.some(range(x.ndim), least=0 if e.chance(5) else 1))


# Element by element

SMOOTH = ("negative", "absolute", "conj", "square", "real", "imag", "isnan", "angle")
STEPPED = ("sign", "floor", "ceil", "rint", "logical_not", "isfinite", "signbit", "invert")
ROUNDED = ("sin", "cos", "tanh", "exp", "sqrt", "log1p", "arctan", "cbrt")


def unary(e: Expression, x: Value) -> Value | None:
    group = e.pick(("smooth", "stepped", "rounded")) if x.exact else "smooth"
    if group == "smooth":
        name = e.pick(SMOOTH if x.exact else SMOOTH[:-1])
        return e.call(
            f"{name}(@)",
            getattr(da, name),
            getattr(np, name),
            x,
            squares=name == "square",
            rounds=name in ("absolute", "angle") and x.kind == "c",
        )
    name = e.pick(STEPPED if group == "stepped" else ROUNDED)
    return e.call(f"{name}(@)", getattr(da, name), getattr(np, name), x, rounds=group == "rounded")


def _operand_for(e: Expression, x: Value) -> Value:
    """An array that broadcasts with another."""
    if e.chance(15):
        return x
    if e.chance(50):
        fitting = [value for value in e.values if _broadcasts(x, value)]
        if fitting:
            return e.pick(fitting)
    shape = [1 if e.chance(25) else size for size in x.shape]
    if e.chance(30):
        shape = shape[e.rng.randrange(len(shape) + 1) :]
    elif e.chance(10) and x.ndim < 3:
        shape = [e.pick((1, 2, 3)), *shape]
    return e.source(shape)


def _broadcasts(x: Value, y: Value) -> bool:
    try:
        shape = np.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        return False
    return int(np.prod(shape, dtype=int)) <= 400 and len(shape) <= 4


EXACT_PAIRS = (
    *("equal", "less", "greater_equal", "not_equal", "floor_divide", "remainder"),
    *("logical_and", "logical_or", "bitwise_xor", "left_shift", "copysign", "fmod"),
)


def binary(e: Expression, x: Value) -> Value | None:
    y = _operand_for(e, x)
    pair = (x, y) if e.chance(50) else (y, x)
    if x.exact and y.exact and e.chance(35):
        name = e.pick(EXACT_PAIRS)
        if name == "left_shift" and "f" not in x.kind + y.kind:
            name = "bitwise_and"
    else:
        name = e.pick(("add", "subtract", "multiply", "multiply", "maximum", "minimum", "add"))
    product = name == "multiply"
    rounds = product and "c" in x.kind + y.kind
    return e.call(f"{name}(@, @)", getattr(da, name), getattr(np, name), *pair,
                  product=product, rounds=rounds)  # fmt: skip


def operators(e: Expression, x: Value) -> Value | None:
    number = e.pick((2, -3, 1, 0.5, True, np.float32(2), np.int64(3)))
    name = e.pick(("add", "sub", "mul", "truediv", "pow2", "radd", "rsub"))
    if name == "pow2":
        return e.call("@ ** 2", lambda a: a**2, lambda a: a**2, x, squares=True, rounds=x.kind == "c")
    if name.startswith("r"):
        function = getattr(operator, name[1:])
        return e.call(f"{number!r} {name[1:]} @", lambda a: function(number, a),
                      lambda a: function(number, a), x)  # fmt: skip
    function = getattr(operator, name)
    return e.call(f"@ {name} {number!r}", lambda a: function(a, number),
                  lambda a: function(a, number), x, rounds=x.kind == "c")  # fmt: skip


def where(e: Expression, x: Value) -> Value | None:
    y, condition = _operand_for(e, x), e.like(x.shape, "bool")
    if e.chance(20):
        return e.call("where(@, @, 0)", lambda c, a: da.where(c, a, 0),
                      lambda c, a: np.where(c, a, 0), condition, x)  # fmt: skip
    return e.call("where(@, @, @)", da.where, np.where, condition, x, y)


def clip(e: Expression, x: Value) -> Value | None:
    return e.call("clip(@, -1, 2)", lambda a: da.clip(a, -1, 2), lambda a: np.clip(a, -1, 2), x)


def astype(e: Expression, x: Value) -> Value | None:
    dtype = e.pick(("f8", "f4", "c16") if not x.exact else ("f8", "f4", "c16", "i4", "bool"))
    if x.kind == "c" and dtype != "c16":
        return None
    if dtype == "i4" and not np.isfinite(x.value).all():
        return None
    return e.call(f"@.astype({dtype!r})", lambda a: a.astype(dtype), lambda a: a.astype(dtype), x)


def special(e: Expression, x: Value) -> Value | None:
    """Elementwise functions that are no ufuncs, and chains that dask fuses."""
    if not x.exact:
        return None
    name, function = e.pick((
        ("nan_to_num", lambda m, a: m.nan_to_num(a)),
        ("round", lambda m, a: m.round(a, 1)),
        ("isclose", lambda m, a: m.isclose(a, 2.0)),
        ("digitize", lambda m, a: m.digitize(a, np.array([-2, 0, 3]))),
        ("isin", lambda m, a: m.isin(a, [1, 2])),
        ("fix", lambda m, a: m.fix(a)),
        ("searchsorted", lambda m, a: m.searchsorted(
            (m.asarray if m is np else lambda b: da.from_array(b, chunks=2))(
                np.array([-2.0, 0.0, 1.0, 3.0])), a)),
        ("choose", lambda m, a: m.choose((a > 0).astype(int), [a, a * 2])),
        ("select", lambda m, a: m.select([a > 1, a < 0], [a, -a], 7)),
        ("iscomplex", lambda m, a: m.iscomplex(a)),
    ))  # fmt: skip
    return e.call(f"{name}(@)", lambda a: function(da, a), lambda a: function(np, a), x)


# Products

def _bound(*operands: Value, count: int) -> float:
    """No sum of `count` products exceeds this."""
    return count * float(np.prod([max(x.scale, 1.0) for x in operands]))


def matmul(e: Expression, x: Value) -> Value | None:
    if not x.ndim or x.kind == "b":
        return None
    inner = x.shape[-1]
    shape: list[int] = [inner]
    if e.chance(80):
        shape.append(e.pick((1, 2, 4, 6)))
        if x.ndim > 2 and e.chance(60):
            shape = [*(1 if e.chance(20) else size for size in x.shape[:-2]), *shape]
    y = e.like(shape)
    if y.kind == "b":
        return None
    bound = _bound(x, y, count=inner)
    name = e.pick(("matmul", "matmul", "dot")) if len(shape) < 3 else "matmul"
    on_dask = operator.matmul if name == "matmul" and e.chance(50) else getattr(da, name)
    return e.call(f"{name}(@, @)", on_dask, getattr(np, name), x, y,
                  rounds=True, product=True, bound=bound)  # fmt: skip


def gram(e: Expression, x: Value) -> Value | None:
    if x.ndim != 2 or x.kind == "b":
        return None
    bound = _bound(x, x, count=max(x.shape))
    if e.chance(50):
        return e.call("@0.T matmul @0", lambda a: a.T @ a, lambda a: a.T @ a, x,
                      rounds=True, product=True, bound=bound)  # fmt: skip
    return e.call("@0 matmul @0.T", lambda a: a @ a.T, lambda a: a @ a.T, x,
                  rounds=True, product=True, bound=bound)  # fmt: skip


def tensordot(e: Expression, x: Value) -> Value | None:
    if not x.ndim or x.kind == "b":
        return None
    summed = e.shuffled(e.some(range(x.ndim)))[:2]
    others = [e.pick((1, 2, 3)) for _ in range(1 + e.rng.randrange(2))]
    shape = [x.shape[axis] for axis in summed] + others
    order = e.shuffled(range(len(shape)))
    y = e.like([shape[axis] for axis in order])
    axes = (summed, [order.index(number) for number in range(len(summed))])
    if x.ndim + y.ndim - 2 * len(summed) > 4 or y.kind == "b":
        return None
    count = int(np.prod([x.shape[axis] for axis in summed], dtype=int))
    return e.call(
        f"tensordot(@, @, {axes})",
        lambda a, b: da.tensordot(a, b, axes=axes),
        lambda a, b: np.tensordot(a, b, axes=axes),
        x, y, rounds=True, product=True, bound=_bound(x, y, count=count),
    )  # fmt: skip


def einsum(e: Expression, x: Value) -> Value | None:
    if x.ndim > 3 or x.kind == "b":
        return None
    letters = dict(zip("abcd", x.shape, strict=False))
    terms, operands = ["abcd"[: x.ndim]], [x]
    # dask itself fails on a repeated label that is cut
    if x.ndim > 1 and x.shape[0] == x.shape[1] and max(x.lazy.numblocks[:2]) == 1:
        terms = ["aa" + terms[0][2:]]
        letters.pop("b")
    for extra in range(e.rng.randrange(3)):
        term = e.some(letters)[:2]
        if e.chance(60):
            letters["xy"[extra]] = e.pick((1, 2, 3, 5))
            term.append("xy"[extra])
        term = e.shuffled(term)
        y = e.like([letters[letter] for letter in term])
        if y.kind == "b":
            return None
        terms.append("".join(term))
        operands.append(y)
    subscripts = ",".join(terms)
    if e.chance(85):
        subscripts += "->" + "".join(e.shuffled(e.some(letters))[:4])
    count = int(np.prod(list(letters.values()), dtype=int))
    if count > 1500:
        return None
    optimize = {"optimize": True} if e.chance(20) else {}
    return e.call(
        f"einsum({subscripts!r}, {', '.join('@' for _ in operands)}, **{optimize})",
        lambda *arrays: da.einsum(subscripts, *arrays, **optimize),
        lambda *arrays: np.einsum(subscripts, *arrays),
        *operands, rounds=True, product=True, bound=_bound(*operands, count=max(count, 1)),
    )  # fmt: skip


def outer(e: Expression, x: Value) -> Value | None:
    if x.ndim > 2 or x.kind == "b" or x.value.size > 40:
        return None
    y = e.like((e.pick((1, 2, 4, 6)),))
    name = e.pick(("outer", "vdot", "multiply.outer"))
    if name == "multiply.outer":
        return e.call("multiply.outer(@, @)", da.multiply.outer, np.multiply.outer, x, y,
                      product=True, rounds="c" in x.kind + y.kind)  # fmt: skip
    if name == "vdot":
        y = e.like(x.shape)
    return e.call(f"{name}(@, @)", getattr(da, name), getattr(np, name), x, y,
                  rounds=True, product=True, bound=_bound(x, y, count=max(x.value.size, 1)))  # fmt: skip


# Reductions

FOLDS = ("sum", "prod", "min", "max", "any", "all", "mean", "var", "std",
         "nansum", "nanprod", "nanmin", "nanmax", "nanmean", "nanvar", "nanstd", "ptp",
         "count_nonzero")  # fmt: skip


def fold(e: Expression, x: Value) -> Value | None:
    name = e.pick(FOLDS)
    if not x.exact and name in ("any", "all", "std", "nanstd", "count_nonzero", "prod", "nanprod"):
        return None
    axis = _axes(e, x)
    if name == "ptp" and (axis is None or isinstance(axis, tuple)):
        return None
    options: dict[str, Any] = {"axis": axis}
    if name not in ("ptp", "count_nonzero") and e.chance(30):
        options["keepdims"] = True
    if name in ("var", "std", "nanvar", "nanstd") and e.chance(30):
        options["ddof"] = 1
    if name in ("sum", "prod", "mean") and e.chance(15) and x.kind != "c":
        options["dtype"] = "f8"
    split = {}
    if name not in ("ptp", "count_nonzero") and e.chance(40):
        split["split_every"] = e.pick((2, 3, 5, False, dict.fromkeys(range(x.ndim), 2)))
    count = max(x.value.size, 1)
    bound = None
    if name in ("sum", "nansum"):
        bound = count * max(x.scale, 1.0)
    elif name in ("prod", "nanprod"):
        bound = max(x.scale, 1.0) ** min(count, 60)
    rounds = name.removeprefix("nan") in ("sum", "prod", "mean", "var", "std")
    squared = "var" in name or "std" in name
    found = e.call(
        f"{name}(@, {options}, {split})",
        lambda a: getattr(da, name)(a, **options, **split),
        lambda a: getattr(np, name)(a, **options),
        x, rounds=rounds, bound=bound,
    )  # fmt: skip
    if found is not None and (squared or name in ("prod", "nanprod")):
        # the magnitude on the way is that of squares; a root of a zero has large errors
        scale = max(found.scale, x.scale**2, 1.0)
        eps = found.eps
        if "std" in name:
            eps = float(np.sqrt(eps)) / 30
        e.values[-1] = found = Value(found.lazy, found.value, eps, scale)
    return found


def argument(e: Expression, x: Value) -> Value | None:
    if not x.exact or not x.value.size:
        return None
    name = e.pick(("argmin", "argmax", "nanargmin", "nanargmax"))
    axis = None if not x.ndim or e.chance(30) else _axis(e, x)
    options: dict[str, Any] = {"axis": axis}
    if e.chance(25):
        options["keepdims"] = True
    split = {"split_every": e.pick((2, 3))} if e.chance(40) else {}
    # among equals in several dimensions dask's answer depends on the chunks
    ties = axis is None and x.ndim > 1
    return e.call(
        f"{name}(@, {options}, {split})",
        lambda a: getattr(da, name)(a, **options, **split),
        None if ties else lambda a: getattr(np, name)(a, **options),
        x,
    )


def median(e: Expression, x: Value) -> Value | None:
    if not x.ndim or x.kind == "c":
        return None
    name, axis = e.pick(("median", "nanmedian")), _axis(e, x)
    return e.call(f"{name}(@, {axis})", lambda a: getattr(da, name)(a, axis=axis),
                  lambda a: getattr(np, name)(a, axis=axis), x)  # fmt: skip


def scan(e: Expression, x: Value) -> Value | None:
    name = e.pick(("cumsum", "cumprod", "nancumsum", "nancumprod"))
    if not x.ndim or (not x.exact and "prod" in name):
        return None
    axis = None if e.chance(15) else _axis(e, x)
    method = e.pick(("sequential", "sequential", "blelloch"))
    count = max(x.value.size, 1)
    largest = max(x.scale, 1.0)
    bound = count * largest if "sum" in name else largest ** min(count, 60)
    return e.call(
        f"{name}(@, {axis}, {method})",
        lambda a: getattr(da, name)(a, axis=axis, method=method),
        lambda a: getattr(np, name)(a, axis=axis),
        x, rounds=True, bound=bound,
    )  # fmt: skip


def topk(e: Expression, x: Value) -> Value | None:
    if not x.ndim or x.kind == "c" or (x.kind == "f" and np.isnan(x.value).any()):
        return None
    axis, k = _axis(e, x), e.pick((1, 2, 3, -1, -2))
    if not x.exact or e.chance(60):
        def on_numpy(a: np.ndarray) -> np.ndarray:
            ordered = np.sort(a, axis=axis)
            ordered = np.flip(ordered, axis) if k > 0 else ordered
            return np.take(ordered, range(min(abs(k), a.shape[axis])), axis=axis)

        return e.call(f"topk(@, {k}, {axis})", lambda a: da.topk(a, k, axis=axis), on_numpy, x)
    # which of equals depends on the chunks
    return e.call(f"take_along(argtopk(@, {k}, {axis}))",
                  lambda a: da.argtopk(a, k, axis=axis), None, x)  # fmt: skip


def counts(e: Expression, x: Value) -> Value | None:
    if not x.exact or x.kind in "cb" or not x.value.size or not np.isfinite(x.value).all():
        return None
    if e.chance(60):
        weights = {}
        edges = np.array([-9.0, -2.0, 0.0, 1.5, 9.0])
        return e.call("histogram(@)[0]", lambda a: da.histogram(a, bins=edges, **weights)[0],
                      lambda a: np.histogram(a, bins=edges)[0], x)  # fmt: skip
    if x.ndim != 1 or x.kind != "i":
        return None
    return e.call("bincount(abs(@), minlength=40)",
                  lambda a: da.bincount(da.clip(abs(a), 0, 39), minlength=40),
                  lambda a: np.bincount(np.clip(abs(a), 0, 39), minlength=40), x)  # fmt: skip


# Elements moved

def transpose(e: Expression, x: Value) -> Value | None:
    order = e.shuffled(range(x.ndim))
    return e.call(f"transpose(@, {order})", lambda a: a.transpose(order),
                  lambda a: a.transpose(order), x)  # fmt: skip


def swap(e: Expression, x: Value) -> Value | None:
    if x.ndim < 2:
        return None
    one, two = _axis(e, x), _axis(e, x)
    name = e.pick(("swapaxes", "moveaxis", "rollaxis"))
    return e.call(f"{name}(@, {one}, {two})", lambda a: getattr(da, name)(a, one, two),
                  lambda a: getattr(np, name)(a, one, two), x)  # fmt: skip


def _slice(e: Expression, size: int) -> slice:
    start = None if e.chance(40) else e.rng.randrange(-size - 1, size + 2)
    stop = None if e.chance(40) else e.rng.randrange(-size - 1, size + 2)
    return slice(start, stop, e.pick((None, None, None, 1, 2, -1, -2, 3)))


def slicing(e: Expression, x: Value) -> Value | None:
    index: list[Any] = []
    for size in x.shape:
        if e.chance(15):
            index.append(None)
        choice = e.rng.randrange(10)
        if choice < 3 and size:
            index.append(e.rng.randrange(-size, size))
        elif choice < 6:
            index.append(slice(None))
        else:
            index.append(_slice(e, size))
    if e.chance(20):
        del index[e.rng.randrange(len(index) + 1) :]
    if e.chance(10):
        index.insert(0, Ellipsis)
        index = [Ellipsis, *index[1:]]
    if sum(item is None for item in index) + x.ndim > 5:
        return None
    key = tuple(index)
    return e.call(f"@[{key}]", operator.itemgetter(key), operator.itemgetter(key), x)


def fancy(e: Expression, x: Value) -> Value | None:
    if not x.ndim or not x.value.size:
        return None
    axis = e.rng.randrange(x.ndim)
    size = x.shape[axis]
    kind = e.pick(("list", "mask", "array", "sorted"))
    if kind == "mask":
        index: Any = np.array([e.chance(60) for _ in range(size)], dtype=bool)
    else:
        index = [e.rng.randrange(-size, size) for _ in range(e.rng.randrange(1, 7))]
        if kind == "sorted":
            index = sorted(item % size for item in index)
        if kind == "array":
            index = np.array(index)
    if e.chance(30):
        return e.call(f"take(@, {index!r}, {axis})", lambda a: da.take(a, index, axis=axis),
                      lambda a: np.take(a, index, axis=axis), x) if kind != "mask" else \
            e.call(f"compress(@, {index!r}, {axis})",
                   lambda a: da.compress(index, a, axis=axis),
                   lambda a: np.compress(index, a, axis=axis), x)  # fmt: skip
    key: list[Any] = [_slice(e, n) if e.chance(25) else slice(None) for n in x.shape]
    key[axis] = index
    name = tuple(key)
    return e.call(f"@[{name}]", operator.itemgetter(name), operator.itemgetter(name), x)


def pointwise_index(e: Expression, x: Value) -> Value | None:
    if x.ndim < 2 or not x.value.size:
        return None
    count = e.rng.randrange(1, 5)
    rows = [e.rng.randrange(x.shape[0]) for _ in range(count)]
    columns = [e.rng.randrange(x.shape[1]) for _ in range(count)]
    return e.call(f"@.vindex[{rows}, {columns}]", lambda a: a.vindex[rows, columns],
                  lambda a: a[rows, columns], x)  # fmt: skip


def reshape(e: Expression, x: Value) -> Value | None:
    if e.chance(25):
        return e.call("ravel(@)", da.ravel, np.ravel, x)
    shape: list[int] = []
    left = x.value.size
    while left > 1 and len(shape) < 3:
        factors = [n for n in range(1, left + 1) if left % n == 0]
        shape.append(e.pick(factors))
        left //= shape[-1]
    shape.append(left)
    if e.chance(20) and x.value.size:
        shape[e.rng.randrange(len(shape))] = -1
    options = {"merge_chunks": False} if e.chance(20) else {}
    return e.call(f"reshape(@, {shape}, {options})", lambda a: a.reshape(shape, **options),
                  lambda a: a.reshape(shape), x)  # fmt: skip


def join(e: Expression, x: Value) -> Value | None:
    name = e.pick(("concatenate", "stack", "block", "append", "vstack", "dstack"))
    if name in ("vstack", "dstack"):
        y = e.like(x.shape)
        return e.call(f"{name}(@, @)", lambda *a: getattr(da, name)(a),
                      lambda *a: getattr(np, name)(a), x, y)  # fmt: skip
    if name == "stack" and x.ndim < 4:
        axis = e.rng.randrange(x.ndim + 1)
        y = e.like(x.shape)
        many = (x, y) if e.chance(60) else (y, x, x)
        return e.call(f"stack({', '.join('@' for _ in many)}, {axis})",
                      lambda *a: da.stack(a, axis), lambda *a: np.stack(a, axis), *many)  # fmt: skip
    if not x.ndim:
        return None
    if name == "block":
        y = e.like(x.shape)
        return e.call("block([[@0, @1], [@1, @0]])", lambda a, b: da.block([[a, b], [b, a]]),
                      lambda a, b: np.block([[a, b], [b, a]]), x, y)  # fmt: skip
    axis = e.rng.randrange(x.ndim)
    shape = list(x.shape)
    shape[axis] = e.pick((1, 2, shape[axis]))
    y = e.like(shape)
    if name == "append":
        return e.call(f"append(@, @, {axis})", lambda a, b: da.append(a, b, axis),
                      lambda a, b: np.append(a, b, axis), x, y)  # fmt: skip
    many = (x, y) if e.chance(60) else (y, x, y)
    return e.call(f"concatenate({', '.join('@' for _ in many)}, {axis})",
                  lambda *a: da.concatenate(a, axis), lambda *a: np.concatenate(a, axis), *many)  # fmt: skip


def broadcast(e: Expression, x: Value) -> Value | None:
    shape = [e.pick((1, 2, 3)) if size == 1 else size for size in x.shape]
    if x.ndim < 4 and e.chance(60):
        shape = [e.pick((1, 2, 3)), *shape]
    return e.call(f"broadcast_to(@, {shape})", lambda a: da.broadcast_to(a, shape),
                  lambda a: np.broadcast_to(a, shape), x)  # fmt: skip


def flip(e: Expression, x: Value) -> Value | None:
    if not x.ndim:
        return None
    axis = e.pick((_axis(e, x), tuple(e.some(range(x.ndim), least=1)), None))
    return e.call(f"flip(@, {axis})", lambda a: da.flip(a, axis), lambda a: np.flip(a, axis), x)


def roll(e: Expression, x: Value) -> Value | None:
    if not x.ndim or not x.value.size:
        return None
    axis = None if e.chance(25) else _axis(e, x)
    shift = e.rng.randrange(-5, 6)
    return e.call(f"roll(@, {shift}, {axis})", lambda a: da.roll(a, shift, axis),
                  lambda a: np.roll(a, shift, axis), x)  # fmt: skip


def rechunk(e: Expression, x: Value) -> Value | None:
    chunks = e.chunks(x.shape)
    return e.call(f"@.rechunk({chunks})", lambda a: a.rechunk(chunks), lambda a: a, x)


def dims(e: Expression, x: Value) -> Value | None:
    if e.chance(50) and 1 in x.shape:
        return e.call("squeeze(@)", da.squeeze, np.squeeze, x)
    if x.ndim > 3:
        return None
    axis = e.rng.randrange(x.ndim + 1)
    return e.call(f"expand_dims(@, {axis})", lambda a: da.expand_dims(a, axis),
                  lambda a: np.expand_dims(a, axis), x)  # fmt: skip


def pad(e: Expression, x: Value) -> Value | None:
    if not x.ndim or not x.value.size:
        return None
    width = [(e.rng.randrange(3), e.rng.randrange(3)) for _ in x.shape]
    mode = e.pick(("constant", "edge", "reflect", "symmetric", "wrap"))
    return e.call(f"pad(@, {width}, {mode!r})", lambda a: da.pad(a, width, mode=mode),
                  lambda a: np.pad(a, width, mode=mode), x)  # fmt: skip


def diff(e: Expression, x: Value) -> Value | None:
    if not x.ndim or x.kind == "b":
        return None
    axis, n = _axis(e, x), e.pick((1, 1, 2))
    return e.call(f"diff(@, {n}, {axis})", lambda a: da.diff(a, n, axis),
                  lambda a: np.diff(a, n, axis), x)  # fmt: skip


def triangle(e: Expression, x: Value) -> Value | None:
    if x.ndim < 2:
        return None
    name, k = e.pick(("tril", "triu")), e.pick((-2, -1, 0, 1))
    return e.call(f"{name}(@, {k})", lambda a: getattr(da, name)(a, k),
                  lambda a: getattr(np, name)(a, k), x)  # fmt: skip


def diagonal(e: Expression, x: Value) -> Value | None:
    if x.ndim == 1 or (x.ndim == 2 and e.chance(50)):
        k = e.pick((0, 1, -1))
        return e.call(f"diag(@, {k})", lambda a: da.diag(a, k), lambda a: np.diag(a, k), x)
    if x.ndim < 2:
        return None
    offset = e.pick((0, 1, -1))
    return e.call(f"diagonal(@, {offset})", lambda a: da.diagonal(a, offset),
                  lambda a: np.diagonal(a, offset), x)  # fmt: skip


def repeat(e: Expression, x: Value) -> Value | None:
    if not x.ndim or x.value.size > 150:
        return None
    axis, times = e.rng.randrange(x.ndim), e.pick((1, 2, 3))
    if e.chance(30):
        reps = [e.pick((1, 2)) for _ in x.shape]
        return e.call(f"tile(@, {reps})", lambda a: da.tile(a, reps), lambda a: np.tile(a, reps), x)
    return e.call(f"repeat(@, {times}, {axis})", lambda a: da.repeat(a, times, axis=axis),
                  lambda a: np.repeat(a, times, axis=axis), x)  # fmt: skip


def rotate(e: Expression, x: Value) -> Value | None:
    if x.ndim < 2:
        return None
    k = e.pick((1, 2, 3))
    return e.call(f"rot90(@, {k})", lambda a: da.rot90(a, k), lambda a: np.rot90(a, k), x)


def insertion(e: Expression, x: Value) -> Value | None:
    if not x.ndim or not x.shape[0]:
        return None
    at = e.rng.randrange(x.shape[0])
    if e.chance(50):
        return e.call(f"delete(@, {at}, 0)", lambda a: da.delete(a, at, 0),
                      lambda a: np.delete(a, at, 0), x)  # fmt: skip
    return e.call(f"insert(@, {at}, 1, 0)", lambda a: da.insert(a, at, 1, 0),
                  lambda a: np.insert(a, at, 1, 0), x)  # fmt: skip


def assigned(e: Expression, x: Value) -> Value | None:
    """``x[...] = number`` on a copy."""
    if not x.ndim or not x.value.size:
        return None
    # with a negative step dask itself assigns to other places than NumPy
    at: Any = e.rng.randrange(x.shape[0])
    if e.chance(50):
        at = slice(at, None, e.pick((1, 2)))
    masked = x.exact and x.kind in "fi" and e.chance(30)

    def assign(a: Any) -> Any:
        a = a.copy()
        if masked:
            a[a > 1] = 1
        else:
            a[at] = 1
        return a

    return e.call("@0[@0 > 1] = 1" if masked else f"@[{at}] = 1", assign, assign, x)  # fmt: skip


def coarsen(e: Expression, x: Value) -> Value | None:
    if not x.ndim or x.kind == "c":
        return None
    axis, by = e.rng.randrange(x.ndim), e.pick((2, 3))
    if x.shape[axis] % by or not x.shape[axis]:
        return None

    def on_numpy(a: np.ndarray) -> np.ndarray:
        split = a.reshape(*a.shape[:axis], a.shape[axis] // by, by, *a.shape[axis + 1 :])
        return split.max(axis=axis + 1)

    return e.call(f"coarsen(max, @, {axis}: {by})",
                  lambda a: da.coarsen(np.max, a, {axis: by}), on_numpy, x)  # fmt: skip


# Along whole axes

FFTS = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fft2", "fftn", "rfft2", "ifftn")


def fft(e: Expression, x: Value) -> Value | None:
    if not x.ndim or not x.value.size:
        return None
    name = e.pick(FFTS)
    if name[-1] in "2n":
        options: dict[str, Any] = {"axes": tuple(e.some(range(x.ndim), least=1)[:2])}
        axes = options["axes"]
        if name.endswith("2") and len(axes) != 2:
            return None
    else:
        options = {"axis": _axis(e, x)}
        axes = (options["axis"] % x.ndim,)
        if e.chance(25):
            options["n"] = e.pick((2, 3, 5))
    whole = {axis: -1 for axis in axes}
    return e.call(
        f"fft.{name}(@, {options})",
        lambda a: getattr(da.fft, name)(a.rechunk(whole), **options),
        lambda a: getattr(np.fft, name)(a, **options),
        x, rounds=True,
    ) if x.scale < 1e4 else None  # fmt: skip


def shifted(e: Expression, x: Value) -> Value | None:
    if not x.ndim:
        return None
    name = e.pick(("fftshift", "ifftshift"))
    return e.call(f"fft.{name}(@)", getattr(da.fft, name), getattr(np.fft, name), x)


def neighbours(block: np.ndarray, axis: int) -> np.ndarray:
    """Every element and its two neighbours added up; nothing beyond the ends."""
    found = block.copy()
    before = tuple(slice(None, -1) if n == axis else slice(None) for n in range(block.ndim))
    after = tuple(slice(1, None) if n == axis else slice(None) for n in range(block.ndim))
    found[after] += block[before]
    found[before] += block[after]
    return found


PADS = {"reflect": "symmetric", "periodic": "wrap", "nearest": "edge"}


def overlap(e: Expression, x: Value) -> Value | None:
    if not x.ndim or x.kind == "b" or min(x.shape) < 3:
        return None
    axis, depth = e.rng.randrange(x.ndim), e.pick((1, 2))
    if x.ndim > 1 and e.chance(30):
        # nothing is read along the other axis, but its edges are passed on
        other = (axis + 1) % x.ndim
        return e.call(
            f"map_overlap(neighbours, @, axis {axis}, depth {{{axis}: {depth}, {other}: 1}})",
            lambda a: a.map_overlap(
                neighbours, depth={axis: depth, other: 1}, boundary="none", axis=axis, dtype=a.dtype
            ),
            lambda a: neighbours(a, axis), x,
            rounds=True, bound=3 * max(x.scale, 1.0),
        )  # fmt: skip
    boundary = e.pick(("reflect", "periodic", "nearest", "none", 0))

    def on_numpy(a: np.ndarray) -> np.ndarray:
        width = [(depth, depth) if n == axis else (0, 0) for n in range(a.ndim)]
        if boundary == "none":
            return neighbours(a, axis)
        mode = PADS.get(boundary, "constant")
        wide = neighbours(np.pad(a, width, mode=mode), axis)
        return wide[tuple(slice(lo, n + lo) for (lo, _), n in zip(width, a.shape, strict=True))]

    return e.call(
        f"map_overlap(neighbours, @, axis {axis}, depth {depth}, boundary {boundary!r})",
        lambda a: a.map_overlap(
            neighbours, depth={axis: depth}, boundary={axis: boundary}, axis=axis, dtype=a.dtype
        ),
        on_numpy, x,
        rounds=True, bound=3 * max(x.scale, 1.0),
    )  # fmt: skip


def gufunc(e: Expression, x: Value) -> Value | None:
    if not x.ndim or x.kind == "c" or not x.value.size:
        return None
    if e.chance(50):
        return e.call(
            "apply_gufunc(max, '(i)->()', @)",
            lambda a: da.apply_gufunc(_largest, "(i)->()", a, output_dtypes=a.dtype,
                                      allow_rechunk=True),
            lambda a: a.max(axis=-1), x,
        )  # fmt: skip
    if e.chance(50):
        return e.call(
            "apply_gufunc(sort, '(i)->(i)', @)",
            lambda a: da.apply_gufunc(np.sort, "(i)->(i)", a, output_dtypes=a.dtype,
                                      allow_rechunk=True),
            np.sort, x,
        )  # fmt: skip
    if e.chance(40) and x.ndim > 1:
        # loops that broadcast, and a core dimension of which every block needs all
        y = e.like((*(1 if e.chance(30) else size for size in x.shape[1:-1]), x.shape[-1]), "i8")
        return e.call(
            "apply_gufunc(tops, '(i),(i)->()', @, @)",
            lambda a, b: da.apply_gufunc(tops, "(i),(i)->()", a, b, allow_rechunk=True,
                                         output_dtypes=np.result_type(a, b)),
            tops, x, y,
        )  # fmt: skip
    if e.chance(30) and x.ndim > 1 and x.exact:
        return e.call(
            "apply_gufunc(span, '(i,j)->(),()', @)[1]",
            lambda a: da.apply_gufunc(span, "(i,j)->(),()", a, allow_rechunk=True,
                                      output_dtypes=(a.dtype, a.dtype))[1],
            lambda a: span(a)[1], x,
        )  # fmt: skip
    axis = _axis(e, x)
    return e.call(
        f"apply_along_axis(sort, {axis}, @)",
        lambda a: da.apply_along_axis(np.sort, axis, a, dtype=a.dtype, shape=(a.shape[axis],)),
        lambda a: np.sort(a, axis=axis), x,
    )  # fmt: skip


def _largest(block: np.ndarray) -> np.ndarray:
    return block.max(axis=-1)


def tops(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    return one.max(axis=-1) + two.max(axis=-1)


def span(block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return block.min(axis=(-2, -1)), block.max(axis=(-2, -1))


def doubled(block: np.ndarray) -> np.ndarray:
    return block + block


def located(block: np.ndarray, block_info: Any = None) -> np.ndarray:
    """Adds the number of the first row; depends on the chunks."""
    if not block_info:
        return block
    return block + block_info[0]["array-location"][0][0] if block.ndim else block


def from_first(block: np.ndarray) -> np.ndarray:
    """Depends on the chunks."""
    return block - block.ravel()[0] if block.size else block


def blocks(e: Expression, x: Value) -> Value | None:
    if x.kind == "b":
        return None
    if e.chance(50):
        return e.call("map_blocks(doubled, @)", lambda a: a.map_blocks(doubled, dtype=a.dtype),
                      doubled, x)  # fmt: skip
    if not x.exact:
        return None
    if e.chance(50):
        return e.call("map_blocks(from_first, @)",
                      lambda a: a.map_blocks(from_first, dtype=a.dtype), None, x)  # fmt: skip
    return e.call("map_blocks(located, @)",
                  lambda a: a.map_blocks(located, dtype=a.dtype), None, x)  # fmt: skip


def computed_mask(e: Expression, x: Value) -> Value | None:
    """Chunk sizes that are only known because they were computed."""
    if x.ndim != 1 or not x.exact or x.kind == "c" or not x.value.size:
        return None
    return e.call("@0[@0 > 0].compute_chunk_sizes()",
                  lambda a: a[a > 0].compute_chunk_sizes(), lambda a: a[a > 0], x)  # fmt: skip


def centred(e: Expression, x: Value) -> Value | None:
    """One array, used twice."""
    if not x.ndim or x.kind not in "f" or not x.value.size:
        return None
    axis = _axis(e, x)
    return e.call(
        f"@0 - mean(@0, {axis})",
        lambda a: a - a.mean(axis=axis, keepdims=True),
        lambda a: a - a.mean(axis=axis, keepdims=True), x, rounds=True,
    )  # fmt: skip


OPERATIONS: tuple[Operation, ...] = (
    *(unary, unary, binary, binary, binary, binary, operators, where, clip, astype, special),
    *(matmul, matmul, matmul, gram, tensordot, einsum, einsum, einsum, outer),
    *(fold, fold, fold, fold, argument, median, scan, scan, topk, counts),
    *(transpose, transpose, swap, slicing, slicing, slicing, fancy, fancy, pointwise_index),
    *(reshape, reshape, join, join, broadcast, flip, roll, rechunk, rechunk, dims, pad, diff),
    *(triangle, diagonal, repeat, rotate, insertion, assigned, coarsen),
    *(fft, shifted, overlap, overlap, gufunc, blocks, computed_mask, centred),
)
