"""Products summed over axes."""

from __future__ import annotations

import operator

import dask.array as da
import numpy as np

from tests.expressions import Expression, Value


def _bound(*operands: Value, count: int) -> float:
    """A bound of sums of `count` products."""
    return count * float(np.prod([max(x.scale, 1.0) for x in operands]))


def _finite(*operands: Value) -> bool:
    """Whether NumPy's dot is right: it returns 0 for 0 * nan if an operand has one element."""
    return all(np.isfinite(x.value).all() for x in operands)


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
    if not _finite(x, y):
        name = "matmul"
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
    if x.ndim + y.ndim - 2 * len(summed) > 4 or y.kind == "b" or not _finite(x, y):
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
        y = e.like([1 if e.chance(5) else letters[letter] for letter in term])
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
        if not _finite(x, y):
            return None
    bound = _bound(x, y, count=max(x.value.size, 1))
    return e.call(f"{name}(@, @)", getattr(da, name), getattr(np, name), x, y,
                  rounds=True, product=True, bound=bound)  # fmt: skip
