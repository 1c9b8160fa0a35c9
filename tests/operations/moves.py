"""Operations that select, move or repeat elements."""

from __future__ import annotations

import operator
from typing import Any

import dask.array as da
import numpy as np

from tests.expressions import Expression, Value
from tests.operations.choices import one_axis


def transpose(e: Expression, x: Value) -> Value | None:
    order = e.shuffled(range(x.ndim))
    return e.call(f"transpose(@, {order})", lambda a: a.transpose(order),
                  lambda a: a.transpose(order), x)  # fmt: skip


def swap(e: Expression, x: Value) -> Value | None:
    if x.ndim < 2:
        return None
    one, two = one_axis(e, x), one_axis(e, x)
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
        line = f"stack({', '.join('@' for _ in many)}, {axis})"
        return e.call(line, lambda *a: da.stack(a, axis), lambda *a: np.stack(a, axis), *many)
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
    line = f"concatenate({', '.join('@' for _ in many)}, {axis})"
    return e.call(
        line, lambda *a: da.concatenate(a, axis), lambda *a: np.concatenate(a, axis), *many
    )


def broadcast(e: Expression, x: Value) -> Value | None:
    shape = [e.pick((1, 2, 3)) if size == 1 else size for size in x.shape]
    if x.ndim < 4 and e.chance(60):
        shape = [e.pick((1, 2, 3)), *shape]
    return e.call(f"broadcast_to(@, {shape})", lambda a: da.broadcast_to(a, shape),
                  lambda a: np.broadcast_to(a, shape), x)  # fmt: skip


def flip(e: Expression, x: Value) -> Value | None:
    if not x.ndim:
        return None
    axis = e.pick((one_axis(e, x), tuple(e.some(range(x.ndim), least=1)), None))
    return e.call(f"flip(@, {axis})", lambda a: da.flip(a, axis), lambda a: np.flip(a, axis), x)


def roll(e: Expression, x: Value) -> Value | None:
    if not x.ndim or not x.value.size:
        return None
    axis = None if e.chance(25) else one_axis(e, x)
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
    axis, n = one_axis(e, x), e.pick((1, 1, 2))
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
