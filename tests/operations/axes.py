"""Operations on whole axes, on neighbours, and on blocks."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np

from tests.expressions import Expression, Value
from tests.operations.choices import one_axis

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
        options = {"axis": one_axis(e, x)}
        axes = (options["axis"] % x.ndim,)
        if e.chance(25):
            options["n"] = e.pick((2, 3, 5))
    whole = dict.fromkeys(axes, -1)
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
    """Sums of every element and its neighbours; elements beyond the ends count as 0."""
    result = block.copy()
    before = tuple(slice(None, -1) if n == axis else slice(None) for n in range(block.ndim))
    after = tuple(slice(1, None) if n == axis else slice(None) for n in range(block.ndim))
    result[after] += block[before]
    result[before] += block[after]
    return result


PADS = {"reflect": "symmetric", "periodic": "wrap", "nearest": "edge"}


def overlap(e: Expression, x: Value) -> Value | None:
    if not x.ndim or x.kind == "b" or min(x.shape) < 3:
        return None
    axis, depth = e.rng.randrange(x.ndim), e.pick((1, 2))
    if x.ndim > 1 and e.chance(30):
        # the function does not read along the other axis, which has a halo, too
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


def moving(e: Expression, x: Value) -> Value | None:
    """The largest elements of moving windows."""
    if not x.ndim or x.kind == "c" or not x.value.size:
        return None
    axis = one_axis(e, x)
    window = e.pick((1, 2, min(3, x.shape[axis]), x.shape[axis]))
    if window > x.shape[axis]:
        return None
    return e.call(
        f"sliding_window_view(@, {window}, {axis}).max(-1)",
        lambda a: da.lib.stride_tricks.sliding_window_view(a, window, axis=axis).max(axis=-1),
        lambda a: np.lib.stride_tricks.sliding_window_view(a, window, axis=axis).max(axis=-1), x,
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
        # broadcast loop dimensions, and a core dimension in one block
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
    axis = one_axis(e, x)
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
    """Add the number of the first row, which depends on the chunks."""
    if not block_info:
        return block
    return block + block_info[0]["array-location"][0][0] if block.ndim else block


def from_first(block: np.ndarray) -> np.ndarray:
    """Subtract the first element of the block, which depends on the chunks."""
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
    """A boolean mask with computed chunk sizes."""
    if x.ndim != 1 or not x.exact or x.kind == "c" or not x.value.size:
        return None
    return e.call("@0[@0 > 0].compute_chunk_sizes()",
                  lambda a: a[a > 0].compute_chunk_sizes(), lambda a: a[a > 0], x)  # fmt: skip


def centred(e: Expression, x: Value) -> Value | None:
    """An expression that reads an array twice."""
    if not x.ndim or x.kind not in "f" or not x.value.size:
        return None
    axis = one_axis(e, x)
    return e.call(
        f"@0 - mean(@0, {axis})",
        lambda a: a - a.mean(axis=axis, keepdims=True),
        lambda a: a - a.mean(axis=axis, keepdims=True), x, rounds=True,
    )  # fmt: skip
