"""What users tell dasktile about their own functions.

A function handed to ``map_blocks`` may do anything with its block, so by default the
blocks stay as they are.  A registered function has promised how it uses its axes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class KernelUse:
    """How a function uses the axes of its blocks.

    Parameters
    ----------
    elementwise
        Every element of the result depends on the elements at the same place only.
    whole_axes
        Axes that the function needs in one piece, negative ones counted from the last;
        along all others it treats every position independently.
    halo
        For each axis, how many neighbouring elements on either side it reads.
    """

    elementwise: bool = False
    whole_axes: tuple[int, ...] = ()
    halo: Mapping[int, int] = field(default_factory=dict)


# Keyed by identity: two functions that compare equal have not made the same promise.
# The function is kept beside its use, so that its id is not given to another.
_registered: dict[int, tuple[Callable[..., Any], KernelUse]] = {}


def register_kernel(
    function: Callable[..., Any],
    *,
    elementwise: bool = False,
    whole_axes: int | Iterable[int] = (),
    halo: Mapping[int, int] | None = None,
) -> Callable[..., Any]:
    """Tell dasktile how a function uses its axes, so that its blocks may be re-tiled.

    This is known in this process only.  A scheduler that runs somewhere else, and with it
    the hook in dask's configuration, leaves the function's blocks as they are.

    Parameters
    ----------
    function
        The function that is passed to ``map_blocks``, ``blockwise`` or ``map_overlap``.
        It must return a block of the shape it was given (for several arguments: of
        their broadcast shape).
    elementwise
        Each element of the result depends only on the elements at the same place.
    whole_axes
        The axis or axes that must not be cut; positions along all others are
        independent of each other.
    halo
        ``{axis: depth}``: the result at one position depends on `depth` elements on
        either side.

    Returns
    -------
    The function itself.

    Raises
    ------
    TypeError
        If `function` is not callable.
    ValueError
        If not exactly one of the three ways is given, or a depth is negative.
    """
    if not callable(function):
        raise TypeError(f"function must be callable, got {function!r}")
    axes = (whole_axes,) if isinstance(whole_axes, int) else tuple(whole_axes)
    axes = tuple(operator.index(axis) for axis in axes)
    depths = {operator.index(axis): operator.index(n) for axis, n in (halo or {}).items()}
    if bool(elementwise) + bool(axes) + bool(depths) != 1:
        raise ValueError(
            "give exactly one of elementwise=True, whole_axes and halo, got "
            f"elementwise={elementwise!r}, whole_axes={whole_axes!r}, halo={halo!r}"
        )
    for axis, depth in depths.items():
        if depth < 0:
            raise ValueError(f"halo depth must not be negative, got {depth} for axis {axis}")
    _registered[id(function)] = (function, KernelUse(bool(elementwise), axes, depths))
    return function


def lookup(function: Any) -> KernelUse | None:
    """What was registered for a function, or None."""
    entry = _registered.get(id(function))
    return entry[1] if entry is not None else None
