"""Operations that work element by element."""

from __future__ import annotations

import operator

import dask.array as da
import numpy as np

from tests.expressions import Expression, Value

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
        return e.call(
            "@ ** 2", lambda a: a**2, lambda a: a**2, x, squares=True, rounds=x.kind == "c"
        )
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
