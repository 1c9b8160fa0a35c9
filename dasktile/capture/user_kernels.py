"""The registry of user functions, with the axes along which their blocks may be cut.

A function passed to ``map_blocks`` may do anything with its block, so its chunks are unchanged,
unless its code shows what it reads (`dasktile.capture.tracing`).  The user declares with
:func:`register_kernel` how a function uses its axes.
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
        Every element of the result depends only on the elements at the same position.
    whole_axes
        Axes that must not be cut; negative axes count from the last.  Positions along all other
        axes are independent.
    halo
        For each axis, the number of neighbouring elements that are read on either side.
    """

    elementwise: bool = False
    whole_axes: tuple[int, ...] = ()
    halo: Mapping[int, int] = field(default_factory=dict)


# Keyed by identity, because functions that compare equal need not use axes alike.
# The function is kept beside its use, so that its id is not reused.
_registered: dict[int, tuple[Callable[..., Any], KernelUse]] = {}


def register_kernel(
    function: Callable[..., Any],
    *,
    elementwise: bool = False,
    whole_axes: int | Iterable[int] = (),
    halo: Mapping[int, int] | None = None,
) -> Callable[..., Any]:
    """Declare how a function uses its axes, so that its blocks may be tiled.

    A function need not be declared if its code only calls functions of NumPy that work element by
    element, and, in ``map_overlap``, linear filters of `scipy.ndimage`.

    The registry is local to this process.  In other processes, such as a scheduler that runs
    elsewhere, the chunks of the function are unchanged.

    Parameters
    ----------
    function
        The function that is passed to ``map_blocks``, ``blockwise`` or ``map_overlap``.
        It must return a block of the shape of its argument (for several arguments: of
        their broadcast shape).
    elementwise
        Each element of the result depends only on the elements at the same position.
    whole_axes
        The axis or axes that must not be cut; positions along all others are
        independent of each other.
    halo
        ``{axis: depth}``: the result at one position depends on `depth` elements on
        either side.  For functions that are passed to ``map_overlap`` with a depth of at least
        the halo and with ``trim=True``, its default.

    Returns
    -------
    callable
        The function itself.

    Raises
    ------
    TypeError
        If `function` is not callable, or another argument is not of the type given above.
    ValueError
        If not exactly one of the three ways is given, an axis twice, or a negative depth.

    Examples
    --------
    >>> import dask.array as da
    >>> import dasktile
    >>> import numpy as np
    >>> x = da.from_array(np.arange(64.0).reshape(8, 8), chunks=(2, 8))

    Every element by itself:

    >>> def double(block):
    ...     return 2 * block
    >>> double = dasktile.register_kernel(double, elementwise=True)
    >>> y = dasktile.optimize(x.map_blocks(double).T @ x, workers=2)

    Whole rows:

    >>> def ordered(block):
    ...     return np.sort(block, axis=1)
    >>> ordered = dasktile.register_kernel(ordered, whole_axes=1)
    >>> y = dasktile.optimize(x.map_blocks(ordered).T @ x, workers=2)

    One neighbour on either side along the first axis:

    >>> def smooth(block):
    ...     return (np.roll(block, 1, axis=0) + block + np.roll(block, -1, axis=0)) / 3
    >>> smooth = dasktile.register_kernel(smooth, halo={0: 1})
    >>> y = x.map_overlap(smooth, depth={0: 1}, boundary="reflect")
    >>> z = dasktile.optimize(y, workers=2)
    >>> z.chunks == y.chunks, np.allclose(z.compute(), y.compute())
    (False, True)
    """
    if not callable(function):
        raise TypeError(f"function must be callable, got {function!r}")
    if not isinstance(elementwise, bool):
        raise TypeError(f"elementwise must be True or False, got {elementwise!r}")
    axes, depths = _axes(whole_axes), _depths(halo)
    if elementwise + bool(axes) + bool(depths) != 1:
        raise ValueError(
            "give exactly one of elementwise=True, whole_axes and halo, got "
            f"elementwise={elementwise!r}, whole_axes={whole_axes!r}, halo={halo!r}"
        )
    for axis, depth in depths.items():
        if depth < 0:
            raise ValueError(f"halo depth must not be negative, got {depth} for axis {axis}")
    if len(set(axes)) < len(axes):
        raise ValueError(f"whole_axes must be different axes, got {whole_axes!r}")
    _registered[id(function)] = (function, KernelUse(elementwise, axes, depths))
    return function


def _axes(given: Any) -> tuple[int, ...]:
    try:
        if not isinstance(given, (str, bytes, Mapping)):
            listed = given if isinstance(given, Iterable) else (given,)
            return tuple(_integer(axis) for axis in listed)
    except TypeError:
        pass
    raise TypeError(f"whole_axes must be an integer or several of them, got {given!r}")


def _depths(given: Any) -> dict[int, int]:
    if given is None:
        return {}
    try:
        if isinstance(given, Mapping):
            return {_integer(axis): _integer(depth) for axis, depth in given.items()}
    except TypeError:
        pass
    raise TypeError(f"halo must be a dict of integers {{axis: depth}}, got {given!r}")


def _integer(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def lookup(function: Any) -> KernelUse | None:
    """The registered use of a function, or None."""
    entry = _registered.get(id(function))
    return entry[1] if entry is not None else None
