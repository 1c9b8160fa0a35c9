"""Random choices that many operations share."""

from __future__ import annotations

from typing import Any

from tests.expressions import Expression, Value


def one_axis(e: Expression, x: Value) -> int:
    return e.rng.randrange(x.ndim) - (x.ndim if e.chance(25) else 0)


def some_axes(e: Expression, x: Value) -> Any:
    """Axes to reduce: one, several or all."""
    if x.ndim == 0 or e.chance(30):
        return None
    if x.ndim == 1 or e.chance(60):
        return one_axis(e, x)
    return tuple(e.some(range(x.ndim), least=0 if e.chance(5) else 1))
