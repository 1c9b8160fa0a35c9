"""The registry of user functions, with the axes along which their blocks may be cut.

A function passed to ``map_blocks`` may do anything with its block, so its chunks are unchanged,
unless its code shows what it reads (`dasktile.capture.tracing`).  The user declares with
:func:`register_kernel` how a function uses its axes.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
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
        For each axis, or for all of them, the number of neighbouring elements that are read on
        either side.
    """

    elementwise: bool = False
    whole_axes: tuple[int, ...] = ()
    halo: Mapping[int, int] | int = field(default_factory=dict)

    def depths(self, ndim: int) -> dict[int, int] | None:
        """The halo of an array by axis, counted from the first.

        Parameters
        ----------
        ndim
            Number of axes of the array.

        Returns
        -------
        The depths; None if the array lacks an axis of the halo, or two are the same one.
        """
        if isinstance(self.halo, int):
            return dict.fromkeys(range(ndim), self.halo)
        found = {axis % ndim: depth for axis, depth in self.halo.items() if -ndim <= axis < ndim}
        return found if len(found) == len(self.halo) else None


# Keyed by identity, because functions that compare equal need not use axes alike.
# The function is kept beside its use, so that its id is not reused.
_registered: dict[int, tuple[Callable[..., Any], KernelUse]] = {}

#: The attribute in which a function carries its use to other processes: built-in objects only, as
#: these may not have this package.
_ATTRIBUTE = "_dasktile_kernel"


def register_kernel(
    function: Callable[..., Any] | None = None,
    *,
    elementwise: bool = False,
    whole_axes: int | Iterable[int] = (),
    halo: Mapping[int, int] | int | None = None,
) -> Callable[..., Any]:
    """Declare how a function uses its axes, so that its blocks may be tiled.

    Also a decorator: ``@dasktile.register_kernel(elementwise=True)``.

    A function need not be declared if its code only calls functions of NumPy that work element by
    element, and, in ``map_overlap``, linear filters of `scipy.ndimage`.

    The declaration is checked when the function is planned for the first time: it is applied to a
    small block of random numbers, and to parts of it.  If the results differ, its chunks are
    unchanged, ``optimize`` gives a warning, and ``explain`` says so.

    A function that is sent to other processes by its code, as those of a notebook or a script are,
    takes the declaration along: the hook then knows it on a cluster, too.  A function of a module
    is declared there if the module does it, as the decorator does, and by
    :func:`dasktile.enable`, which takes all declarations to the scheduler.

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
        ``{axis: depth}``, or one depth for all axes, as ``map_overlap`` takes them: the result at
        one position depends on `depth` elements on either side.  For functions that are passed to
        ``map_overlap`` with a depth of at least the halo and with ``trim=True``, its default.

    Returns
    -------
    callable
        The function itself; without one, a decorator.

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

    As a decorator, with one neighbour on either side along the first axis:

    >>> @dasktile.register_kernel(halo={0: 1})
    ... def smooth(block):
    ...     return (np.roll(block, 1, axis=0) + block + np.roll(block, -1, axis=0)) / 3
    >>> y = x.map_overlap(smooth, depth={0: 1}, boundary="reflect")
    >>> z = dasktile.optimize(y, workers=2)
    >>> z.chunks == y.chunks, np.allclose(z.compute(), y.compute())
    (False, True)
    """
    if function is not None and not callable(function):
        raise TypeError(f"function must be callable, got {function!r}")
    if not isinstance(elementwise, bool):
        raise TypeError(f"elementwise must be True or False, got {elementwise!r}")
    axes, depths = _axes(whole_axes), _depths(halo)
    if elementwise + bool(axes) + (depths != {}) != 1:
        raise ValueError(
            "give exactly one of elementwise=True, whole_axes and halo, got "
            f"elementwise={elementwise!r}, whole_axes={whole_axes!r}, halo={halo!r}"
        )
    if min([depths] if isinstance(depths, int) else depths.values(), default=0) < 0:
        raise ValueError(f"halo depth must not be negative, got {halo!r}")
    if len(set(axes)) < len(axes):
        raise ValueError(f"whole_axes must be different axes, got {whole_axes!r}")
    use = KernelUse(elementwise, axes, depths)
    if function is None:
        return partial(_register, use)
    return _register(use, function)


def _register(use: KernelUse, function: Callable[..., Any]) -> Callable[..., Any]:
    if not callable(function):
        raise TypeError(f"function must be callable, got {function!r}")
    _registered[id(function)] = (function, use)
    carry(function, use)
    return function


def carry(function: Callable[..., Any], use: KernelUse) -> None:
    """Let a function carry its use to other processes, or from another one."""
    if isinstance(function, FunctionType):
        function.__dict__[_ATTRIBUTE] = {
            "elementwise": use.elementwise,
            "whole_axes": use.whole_axes,
            "halo": use.halo if isinstance(use.halo, int) else dict(use.halo),
            "code": _code_of(function),
        }


def _code_of(function: FunctionType) -> tuple[str, int, int]:
    """What tells a function from a wrapper, which may have its attributes."""
    code = function.__code__
    return code.co_name, code.co_firstlineno, zlib.crc32(code.co_code)


def _axes(given: Any) -> tuple[int, ...]:
    try:
        if not isinstance(given, (str, bytes, Mapping)):
            listed = given if isinstance(given, Iterable) else (given,)
            return tuple(_integer(axis) for axis in listed)
    except TypeError:
        pass
    raise TypeError(f"whole_axes must be an integer or several of them, got {given!r}")


def _depths(given: Any) -> dict[int, int] | int:
    if given is None:
        return {}
    try:
        if isinstance(given, Mapping):
            return {_integer(axis): _integer(depth) for axis, depth in given.items()}
        return _integer(given)
    except TypeError:
        raise TypeError(
            f"halo must be an integer, or a dict of integers {{axis: depth}}, got {given!r}"
        ) from None


def _integer(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def lookup(function: Any) -> KernelUse | None:
    """The registered use of a function, or None."""
    entry = _registered.get(id(function))
    if entry is not None:
        return entry[1]
    if not isinstance(function, FunctionType):
        return None
    carried = function.__dict__.get(_ATTRIBUTE)
    if not isinstance(carried, dict) or carried.get("code") != _code_of(function):
        return None
    return KernelUse(carried["elementwise"], carried["whole_axes"], carried["halo"])


def is_registered_here(function: Any) -> bool:
    """Whether a function was registered in this process."""
    return id(function) in _registered


def registrations() -> list[tuple[Callable[..., Any], KernelUse]]:
    """All functions that were registered in this process, with their uses."""
    return list(_registered.values())
