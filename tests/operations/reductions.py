"""Reductions, scans, order and counts."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np

from tests.expressions import Expression, Value
from tests.operations.choices import one_axis, some_axes

FOLDS = ("sum", "prod", "min", "max", "any", "all", "mean", "var", "std",
         "nansum", "nanprod", "nanmin", "nanmax", "nanmean", "nanvar", "nanstd", "ptp",
         "count_nonzero")  # fmt: skip


def fold(e: Expression, x: Value) -> Value | None:
    name = e.pick(FOLDS)
    if not x.exact and name in ("any", "all", "std", "nanstd", "count_nonzero", "prod", "nanprod"):
        return None
    axis = some_axes(e, x)
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
    result = e.call(
        f"{name}(@, {options}, {split})",
        lambda a: getattr(da, name)(a, **options, **split),
        lambda a: getattr(np, name)(a, **options),
        x, rounds=rounds, bound=bound,
    )  # fmt: skip
    if result is not None and (squared or name in ("prod", "nanprod")):
        # intermediate values are squares; the root of a value near zero has large errors
        scale = max(result.scale, x.scale**2, 1.0)
        eps = result.eps
        if "std" in name:
            eps = float(np.sqrt(eps)) / 30
        e.values[-1] = result = Value(result.lazy, result.value, eps, scale)
    return result


def argument(e: Expression, x: Value) -> Value | None:
    if not x.exact or not x.value.size:
        return None
    name = e.pick(("argmin", "argmax", "nanargmin", "nanargmax"))
    axis = None if not x.ndim or e.chance(30) else one_axis(e, x)
    options: dict[str, Any] = {"axis": axis}
    if e.chance(25):
        options["keepdims"] = True
    split = {"split_every": e.pick((2, 3))} if e.chance(40) else {}
    # for ties in several dimensions dask's result depends on the chunks
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
    keep, axis = e.chance(30), one_axis(e, x)
    if e.chance(40) and x.kind == "f" and x.value.size:
        name, q = e.pick(("quantile", "nanquantile")), e.pick((0.25, 0.5, 1.0, [0.1, 0.9]))
        return e.call(
            f"{name}(@, {q}, {axis}, keepdims={keep})",
            lambda a: getattr(da, name)(a, q, axis=axis, keepdims=keep),
            lambda a: getattr(np, name)(a, q, axis=axis, keepdims=keep), x, rounds=True,
        )  # fmt: skip
    name = e.pick(("median", "nanmedian"))
    return e.call(
        f"{name}(@, {axis}, keepdims={keep})",
        lambda a: getattr(da, name)(a, axis=axis, keepdims=keep),
        lambda a: getattr(np, name)(a, axis=axis, keepdims=keep), x,
    )  # fmt: skip


def scan(e: Expression, x: Value) -> Value | None:
    name = e.pick(("cumsum", "cumprod", "nancumsum", "nancumprod"))
    if not x.ndim or (not x.exact and "prod" in name):
        return None
    axis = None if e.chance(15) else one_axis(e, x)
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
    axis, k = one_axis(e, x), e.pick((1, 2, 3, -1, -2))
    if not x.exact or e.chance(60):

        def on_numpy(a: np.ndarray) -> np.ndarray:
            ordered = np.sort(a, axis=axis)
            ordered = np.flip(ordered, axis) if k > 0 else ordered
            return np.take(ordered, range(min(abs(k), a.shape[axis])), axis=axis)

        return e.call(f"topk(@, {k}, {axis})", lambda a: da.topk(a, k, axis=axis), on_numpy, x)
    # for ties the result depends on the chunks
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
