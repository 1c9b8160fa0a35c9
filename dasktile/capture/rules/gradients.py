"""Reading ``da.gradient``: differences of neighbours along one axis, in any tiles.

Dask writes it as ``map_overlap`` of a function that uses the number of its block, to look up the
coordinates of the block.  Every element depends on its neighbours and their coordinates only, those
at the ends of the axis on the next one or two.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from dask.blockwise import Blockwise

from dasktile._compat.dask import (
    ArrayBlockIdDep,
    Task,
    TaskRef,
    block_kwargs,
    gradient_block,
)
from dasktile.capture.base import GraphView, NotRecognised, added_axes
from dasktile.ir import Chunks, bounds

Floats = npt.NDArray[np.floating[Any]]

#: The keys that stand for a block, and for the coordinates of its elements, in a task.
_BLOCK = ("block",)
_COORDINATES = ("coordinates",)


@dataclass(frozen=True, slots=True, eq=False)
class Coordinates:
    """Positions of the elements along an axis, which a function of a block reads.

    Parameters
    ----------
    axis
        The axis.
    key
        Stands for the positions of the elements of one block in a task.
    values
        Of all elements.
    """

    axis: int
    key: Any
    values: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Gradient:
    """A gradient along one axis.

    Parameters
    ----------
    task, block
        A task that applies it to one block, and the key that stands for the block in it.
    axis
        The axis.
    depth
        Neighbours before and after a block that it reads.
    coordinates
        None where elements are evenly spaced.
    """

    task: Task
    block: Any
    axis: int
    depth: int
    coordinates: Coordinates | None


def read_gradient(view: GraphView, name: str, chunks: Chunks) -> Gradient | NotRecognised | None:
    """The gradient of overlapping blocks that a layer computes; `chunks` are those without overlap.

    None for any other layer.
    """
    layer = view.layers.get(name)
    if not isinstance(layer, Blockwise) or added_axes(layer) or layer.task.func is not block_kwargs:
        return None
    literals = [value for value, symbols in layer.indices if symbols is None]
    reads = [(value, symbols) for value, symbols in layer.indices if symbols is not None]
    if len(literals) != 2 or len(reads) != 2 or literals[0] is not gradient_block:
        return None
    number, (_, symbols) = layer.io_deps.get(str(reads[0][0])), reads[1]
    if literals[1] != ("block_id",) or not isinstance(number, ArrayBlockIdDep):
        return None
    options = dict(layer.task.kwargs)
    if set(options) != {"coord", "axis", "array_locs", "grad_kwargs"}:
        return None
    axis, order = options["axis"], options["grad_kwargs"].get("edge_order")
    if symbols != layer.output_indices or set(options["grad_kwargs"]) != {"edge_order"}:
        return None
    if order not in (1, 2) or not isinstance(axis, int) or not 0 <= axis < len(chunks):
        return None
    spacing = options["coord"]
    if options["array_locs"] is None:
        if not np.isscalar(spacing) or np.asarray(spacing).dtype.kind not in "iuf":
            return None
        task = Task(None, np.gradient, TaskRef(_BLOCK), spacing, axis=axis, edge_order=order)
        return Gradient(task, _BLOCK, axis, order, None)
    values = _coordinates(spacing, sum(chunks[axis]))
    if values is None:
        return None
    even = _even_blocks(values, chunks[axis])
    if even not in (set(), {True}, {False}):
        return NotRecognised(
            "gradient: its coordinates are evenly spaced in some blocks only, where NumPy uses"
            " another formula"
        )
    function: Any = uneven_gradient if False in even else np.gradient
    read = TaskRef(_BLOCK), TaskRef(_COORDINATES)
    task = Task(None, function, *read, axis=axis, edge_order=order)
    return Gradient(task, _BLOCK, axis, order, Coordinates(axis, _COORDINATES, values))


def _coordinates(spacing: Any, size: int) -> Floats | None:
    """Coordinates as floating-point numbers; None if some are equal, infinite or no numbers."""
    if not isinstance(spacing, np.ndarray) or spacing.shape != (size,):
        return None
    if spacing.dtype.kind not in "iuf":
        return None
    values = spacing.astype(np.float64) if spacing.dtype.kind in "iu" else spacing
    known = np.isfinite(values).all() and np.diff(values).all()
    return values if known else None


def _even_blocks(values: Floats, sizes: tuple[int, ...]) -> set[bool]:
    """Whether blocks with their neighbours are evenly spaced: True, False, or both."""
    even = set()
    for lo, hi in itertools.pairwise(bounds(sizes)):
        steps = np.diff(values[max(lo - 1, 0) : hi + 1])
        even.add(bool((steps == steps[:1]).all()))
    return even


def uneven_gradient(
    block: Any, coordinates: Floats, *, axis: int, edge_order: Literal[1, 2]
) -> Any:
    """``np.gradient`` by the formula for uneven coordinates, which a part of them may be even.

    That formula reads the element itself, the other one its neighbours only: the gradient at a NaN
    is NaN.
    """
    gradient = np.gradient(block, coordinates, axis=axis, edge_order=edge_order)
    steps = np.diff(coordinates)
    if (steps == steps[0]).all():
        inner = (slice(None),) * axis + (slice(1, -1),)
        gradient[inner] += 0 * block[inner]
    return gradient
