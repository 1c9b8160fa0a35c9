"""Tilings given by hand, to compare with automatic ones.

Each is a :class:`~dasktile.tiling.methods.base.Method` that need not be registered::

    tile(program, workers=8, method=along(("q", 1)), force=True)

cuts every operation along axis 1 of `q`, where this axis is one of its labels.  All else (the
order of mesh axes, the placement of inputs and their replicas) is solved exactly, so that the
given cuts get the cheapest tiling with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from dasktile.ir import Program
from dasktile.tiling.candidates import Space, Variable
from dasktile.tiling.cost import Costs
from dasktile.tiling.mesh import mesh_shape
from dasktile.tiling.methods.base import Method
from dasktile.tiling.methods.restricted import best_of
from dasktile.tiling.settings import Settings
from dasktile.tiling.solve.problem import Solution

Ints = npt.NDArray[np.int64]

#: An axis of an array: the index or the name of its node, and the axis.
Axis = tuple[int | str, int]

#: For every axis of the mesh, the label that it cuts; None for none.
Cuts = Sequence[int | None]

#: Number of candidates kept for a node, large enough to include the given cuts.
MAX_STATES = 1024


def forced(
    cuts: Mapping[Axis, Sequence[int]], mesh: Callable[[int], tuple[int, ...]] = mesh_shape
) -> Method:
    """Cut the named axes by the named axes of the mesh.

    Parameters
    ----------
    cuts
        For axes of arrays, the axes of the mesh that cut them.  A node in `cuts` is cut by no
        other mesh axes, if possible; the other nodes are decided exactly.
    mesh
        Function that returns the mesh for a number of workers.
    """

    def by_hand(costs: Costs, settings: Settings, tile_weight: float) -> Solution:
        space = costs.space
        by_node: dict[int, list[int | None]] = {}
        for (array, axis), axes in cuts.items():
            index = _node(space.program, array)
            row = by_node.setdefault(index, [None] * len(space.mesh.shape))
            for mesh_axis in axes:
                if not 0 <= mesh_axis < len(row):
                    raise ValueError(
                        f"cuts of {array!r} name axis {mesh_axis} of the mesh, whose shape is"
                        f" {space.mesh.shape}"
                    )
                row[mesh_axis] = _label(space.program, index, axis)
        return _choose(costs, settings, tile_weight, by_node)

    return Method(by_hand, mesh, MAX_STATES)


def along(*order: Axis, mesh: Callable[[int], tuple[int, ...]] = mesh_shape) -> Method:
    """Cut every operation along the same axis of the data, by all workers.

    Parameters
    ----------
    *order
        Axes of arrays.  An operation is cut along the first of them that it loops over; labels
        that edges map one to one are the same axis.  Operations that loop over none of them, and
        inputs, are decided exactly.
    mesh
        Function that returns the mesh for a number of workers.
    """

    def by_hand(costs: Costs, settings: Settings, tile_weight: float) -> Solution:
        space = costs.space
        classes = []
        for array, axis in order:
            index = _node(space.program, array)
            classes.append(space.axes.members[index][_label(space.program, index, axis)])
        by_node: dict[int, Cuts] = {}
        for index, node in enumerate(space.program.nodes):
            members = space.axes.members[index]
            positions = [members.index(klass) for klass in classes if klass in members]
            if node.edges and positions:
                by_node[index] = (positions[0],) * len(space.mesh.shape)
        return _choose(costs, settings, tile_weight, by_node)

    return Method(by_hand, mesh, MAX_STATES)


def square(workers: int) -> tuple[int, ...]:
    """A mesh of two axes, as near to a square as the number of workers allows."""
    side = next(side for side in range(math.isqrt(workers), 0, -1) if workers % side == 0)
    return (workers // side, side) if side > 1 else (workers,)


def sqrt_slicing(program: Program) -> Method:
    """Every matrix cut into sqrt p rows of sqrt p blocks: EinDecomp's baseline "SQRT".

    If p is not a square number, the nearest numbers of rows and blocks are used.
    """
    cuts: dict[Axis, Sequence[int]] = {}
    for index, node in enumerate(program.nodes):
        axes = [axis for axis, size in enumerate(node.shape) if size > 1][-2:]
        for mesh_axis, axis in enumerate(axes):
            if node.out[axis].label is not None:
                cuts[index, axis] = (mesh_axis,)

    def mesh(workers: int) -> tuple[int, ...]:
        shape = square(workers)
        return shape if len(shape) == 2 else (*shape, 1)

    return forced(cuts, mesh)


def _node(program: Program, array: int | str) -> int:
    """The index of a node given by name or by index."""
    if isinstance(array, int):
        if not 0 <= array < len(program.nodes):
            raise ValueError(
                f"node {array} does not exist: the program has {len(program.nodes)} nodes"
            )
        return array
    for index, node in enumerate(program.nodes):
        if node.name == array:
            return index
    names = ", ".join(repr(node.name) for node in program.nodes[:20])
    raise ValueError(f"no node is named {array!r}; the first are {names}")


def _label(program: Program, index: int, axis: int) -> int:
    """The label of an axis of a node's array."""
    node = program.nodes[index]
    if not -len(node.shape) <= axis < len(node.shape):
        raise ValueError(f"node {node.name!r} has no axis {axis}; its shape is {node.shape}")
    label = node.out[axis].label
    if label is None:
        raise ValueError(f"axis {axis} of node {node.name!r} has no label and cannot be cut")
    return label


def _choose(
    costs: Costs, settings: Settings, tile_weight: float, by_node: Mapping[int, Cuts]
) -> Solution:
    """The best states among those nearest to the given cuts."""
    space = costs.space
    allowed: list[Ints] = [np.arange(len(variable.options)) for variable in space.variables]
    for index, row in by_node.items():
        variable = space.variables[space.made[index]]
        boxes = len(variable.options) - len(variable.followed)
        if boxes:
            allowed[space.made[index]] = _nearest(space, variable, boxes, row)
    return best_of(costs, settings, tile_weight, allowed)


def _nearest(space: Space, variable: Variable, boxes: int, row: Cuts) -> Ints:
    """The candidates that agree with the given cuts on most mesh axes, weighted by their sizes."""
    agreement = np.array(
        [
            math.prod(
                size
                for size, cut, given in zip(
                    space.mesh.shape, option.labels(len(row)), row, strict=True
                )
                if cut == given
            )
            for option in variable.options[:boxes]
        ]
    )
    return np.flatnonzero(agreement == agreement.max())
