"""Filters of `scipy.ndimage` of which every element depends on a known number of neighbours.

All of them are correlations with fixed weights, which SciPy computes for each element by itself.
Uniform, minimum, maximum and rank filters are not among them: they carry sums and queues along an
axis, so that a NaN or a rounding error reaches elements far away.
"""

from __future__ import annotations

import inspect
import numbers
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np

#: Numbers of neighbours on either side, by axis counted from the last; None stands for all axes.
Depths = Mapping[int | None, int]

_MODULE = "scipy.ndimage"

#: How an array goes on beyond its ends.  Not among them are those that read its other end.
_MODES = frozenset(("reflect", "nearest", "constant", "mirror", "grid-mirror", "grid-constant"))


def depths_of(function: Any, arguments: Sequence[Any], kwargs: Mapping[str, Any]) -> Depths | None:
    """The neighbours that each element of a filtered array depends on.

    Parameters
    ----------
    function
        The function that is called.
    arguments, kwargs
        Its arguments.  The first is the array, whose values are not used.

    Returns
    -------
    The depths, or None if the function is no filter of this module, or is called in a form that is
    not supported.
    """
    if type(function) is not FunctionType or not _is_of_scipy(function):
        return None
    rule = _RULES.get(function.__name__)
    # nobody can have passed a function of a module that is not imported
    if rule is None or getattr(sys.modules.get(_MODULE), function.__name__, None) is not function:
        return None
    assert callable(function)  # for the type checker
    try:
        bound = inspect.signature(function).bind(*arguments, **kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    options = dict(bound.arguments)
    options.update(options.pop("kwargs", {}))
    mode, output = options.get("mode"), options.get("output")
    modes = mode if isinstance(mode, (list, tuple)) else (mode,)
    is_dtype = output is None or isinstance(output, (type, np.dtype))
    if not all(isinstance(each, str) and each in _MODES for each in modes) or not is_dtype:
        return None
    if options.get("axes") is not None:
        return None
    try:
        depths = rule(options)
    except (KeyError, OverflowError, TypeError, ValueError):
        return None
    return None if any(depth < 0 for depth in depths.values()) else depths


def may_filter(function: Any) -> bool:
    """Whether a function is a filter of this module, in some forms of the call at least.

    Parameters
    ----------
    function
        Any function.
    """
    return type(function) is FunctionType and function.__name__ in _RULES and _is_of_scipy(function)


def _is_of_scipy(function: FunctionType) -> bool:
    """Whether the code of a function is SciPy's: others may take its place."""
    scipy = sys.modules.get("scipy")
    return scipy is not None and function.__code__.co_filename.startswith(str(scipy.__path__[0]))


def _by_axis(values: Any, depth: Callable[[Any], int]) -> Depths:
    """The depths of one value for all axes, or of one value for each axis."""
    if isinstance(values, numbers.Real):
        return {None: depth(values)}
    return {axis - len(values): depth(value) for axis, value in enumerate(values)}


def _correlation(options: Mapping[str, Any]) -> Depths:
    weights = np.asarray(options["weights"])
    if not weights.size or not weights.ndim:
        raise ValueError("no weights")
    origins = options["origin"]
    if isinstance(origins, numbers.Integral):
        origins = (origins,) * weights.ndim
    shifts = zip(weights.shape, origins, strict=True)
    return {
        axis - weights.ndim: size // 2 + abs(int(origin))
        for axis, (size, origin) in enumerate(shifts)
    }


def _correlation_of_lines(options: Mapping[str, Any]) -> Depths:
    (size,) = np.shape(options["weights"])
    if not size:
        raise ValueError("no weights")
    return _along(options["axis"], size // 2 + abs(int(options["origin"])))


def _along(axis: int, depth: int) -> Depths:
    # without the number of axes, an axis counted from the first can be any
    return {axis if axis < 0 else None: depth}


def _gaussian(options: Mapping[str, Any]) -> Depths:
    radius = options.get("radius")
    if radius is not None:
        return _by_axis(radius, int)
    truncate = float(options.get("truncate", 4.0))
    if truncate < 0:
        raise ValueError("negative")

    def radius_of(sigma: Any) -> int:
        # SciPy does not filter along axes with a sigma that is not positive
        return int(truncate * float(sigma) + 0.5) if sigma >= 0 else -1

    return _by_axis(options["sigma"], radius_of)


def _gaussian_of_lines(options: Mapping[str, Any]) -> Depths:
    return _along(options["axis"], _gaussian(options)[None])


def _nearest(options: Mapping[str, Any]) -> Depths:
    return {None: 1}


_RULES: Mapping[str, Callable[[Mapping[str, Any]], Depths]] = {
    "convolve": _correlation,
    "correlate": _correlation,
    "convolve1d": _correlation_of_lines,
    "correlate1d": _correlation_of_lines,
    "gaussian_filter": _gaussian,
    "gaussian_filter1d": _gaussian_of_lines,
    "gaussian_gradient_magnitude": _gaussian,
    "gaussian_laplace": _gaussian,
    "laplace": _nearest,
    "prewitt": _nearest,
    "sobel": _nearest,
}
