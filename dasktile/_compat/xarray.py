"""The private names of xarray that dasktile uses: functions of its fills and interpolations.

Like those of flox, they are looked up among the modules that are loaded: a graph that has them
comes from a process that has imported xarray.  Where one is missing, fills are unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

Function = Callable[..., Any]

_SCAN, _LAST = "xarray.compat.dask_array_ops", "xarray.core.nputils"

_INTERPOLATION: Final = "xarray.core.missing"

#: Methods of ``interp`` by which a missing element makes others of its row missing only.
_BY_ROW: Final = ("linear", "nearest", "nearest-up", "zero", "slinear", "previous", "next")


@dataclass(frozen=True, slots=True)
class FillNames:
    """The functions of a fill.

    Parameters
    ----------
    fill
        Fills a block; called with an axis and a dtype.
    merge
        ``merge(carry, filled block)`` fills what is missing at the beginning of a block.
    last
        The last element of a block along an axis that is not missing.
    """

    fill: Function
    merge: Function
    last: Function


def fill_names() -> FillNames | None:
    """The functions of the xarray that is loaded; None without one, or if it lacks any."""
    scan, nputils = sys.modules.get(_SCAN), sys.modules.get(_LAST)
    try:
        return FillNames(
            fill=scan._dtype_push,  # type: ignore[union-attr]
            merge=scan._fill_with_last_one,  # type: ignore[union-attr]
            last=nputils.nanlast,  # type: ignore[union-attr]
        )
    except AttributeError:
        return None


def is_spline(function: Function) -> bool:
    """Whether a function is xarray's interpolation by splines, or by a method not in `_BY_ROW`.

    Where one element is missing, SciPy makes all of a block missing, so that results depend on the
    blocks.  Methods that xarray passes no name of, as of Krogh, interpolate row by row.
    """
    if not isinstance(function, partial):
        return False
    if getattr(function.func, "__module__", None) != _INTERPOLATION:
        return False
    arguments = function.keywords.get("interp_kwargs") or {}
    return arguments.get("method", _BY_ROW[0]) not in _BY_ROW
