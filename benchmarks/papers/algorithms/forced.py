"""Tilings that a person names, to compare what is decided with what is done by hand.

Each is a :class:`~dasktile.tiling.methods.base.Method` that need not be registered::

    tile(program, workers=8, method=along(("q", 1)), force=True)

cuts every operation by the heads of the queries, wherever they are a label of it.  What is
left open (which mesh axis comes first, where inputs are and in how many copies they are
kept) is solved exactly: what was named gets the best that it can get.
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

#: For every axis of the mesh, the label that it should cut; None for none.
Wanted = Sequence[int | None]

#: Candidates of one node that are kept, so that what is named is among them.
MAX_STATES = 1024


def forced(
    cuts: Mapping[Axis, Sequence[int]], mesh: Callable[[int], tuple[int, ...]] = mesh_shape
) -> Method:
    """Cut the named axes by the named axes of the mesh.

    Parameters
    ----------
    cuts
        For axes of arrays, the axes of the mesh that cut them.  A node that is named is
        cut by no others, as far as it can be; nodes that are not are decided exactly.
    mesh
        The mesh that a number of workers is divided into.
    """

    def by_hand(costs: Costs, settings: Settings, tile_weight: float) -> Solution:
        space = costs.space
        wanted: dict[int, list[int | None]] = {}
        for (array, axis), axes in cuts.items():
            index = _node(space.program, array)
            row = wanted.setdefault(index, [None] * len(space.mesh.shape))
            for at in axes:
                if not 0 <= at < len(row):
                    raise ValueError(
                        f"cuts of {array!r} name axis {at} of the mesh, which is {space.mesh.shape}"
                    )
                row[at] = _label(space.program, index, axis)
        return _choose(costs, settings, tile_weight, wanted)

    return Method(by_hand, mesh, MAX_STATES)


def along(*order: Axis, mesh: Callable[[int], tuple[int, ...]] = mesh_shape) -> Method:
    """Cut every operation along the same axis of the data, by all workers.

    Parameters
    ----------
    *order
        Axes of arrays.  An operation is cut along the first of them that it loops over,
        under whatever name: labels that edges tie one to one are one axis.  Operations
        that loop over none of them, and inputs, are decided exactly.
    mesh
        The mesh that a number of workers is divided into.
    """

    def by_hand(costs: Costs, settings: Settings, tile_weight: float) -> Solution:
        space = costs.space
        classes = []
        for array, axis in order:
            index = _node(space.program, array)
            classes.append(space.axes.members[index][_label(space.program, index, axis)])
        wanted: dict[int, Wanted] = {}
        for index, node in enumerate(space.program.nodes):
            members = space.axes.members[index]
            found = [members.index(klass) for klass in classes if klass in members]
            if node.edges and found:
                wanted[index] = (found[0],) * len(space.mesh.shape)
        return _choose(costs, settings, tile_weight, wanted)

    return Method(by_hand, mesh, MAX_STATES)


def square(workers: int) -> tuple[int, ...]:
    """A mesh of two axes, as near to a square as the number of workers allows."""
    side = next(side for side in range(math.isqrt(workers), 0, -1) if workers % side == 0)
    return (workers // side, side) if side > 1 else (workers,)


def sqrt_slicing(program: Program) -> Method:
    """Every matrix cut into sqrt p rows of sqrt p blocks: EinDecomp's baseline "SQRT".

    Where p is no square, into the numbers of rows and blocks nearest to it.
    """
    cuts: dict[Axis, Sequence[int]] = {}
    for index, node in enumerate(program.nodes):
        able = [axis for axis, size in enumerate(node.shape) if size > 1][-2:]
        for at, axis in enumerate(able):
            if node.out[axis].label is not None:
                cuts[index, axis] = (at,)

    def mesh(workers: int) -> tuple[int, ...]:
        found = square(workers)
        return found if len(found) == 2 else (*found, 1)

    return forced(cuts, mesh)


def _node(program: Program, array: int | str) -> int:
    """Index of a node that is named, or counted."""
    if isinstance(array, int):
        if not 0 <= array < len(program.nodes):
            raise ValueError(f"node {array} is none of the program's {len(program.nodes)}")
        return array
    for index, node in enumerate(program.nodes):
        if node.name == array:
            return index
    names = ", ".join(repr(node.name) for node in program.nodes[:20])
    raise ValueError(f"no node is named {array!r}; the first are {names}")


def _label(program: Program, index: int, axis: int) -> int:
    """The label that makes an axis of a node's array."""
    node = program.nodes[index]
    if not -len(node.shape) <= axis < len(node.shape):
        raise ValueError(f"node {node.name!r} has no axis {axis}; its shape is {node.shape}")
    label = node.out[axis].label
    if label is None:
        raise ValueError(f"axis {axis} of node {node.name!r} is in one piece")
    return label


def _choose(
    costs: Costs, settings: Settings, tile_weight: float, wanted: Mapping[int, Wanted]
) -> Solution:
    """The best states among those nearest to what is wanted."""
    space = costs.space
    allowed: list[Ints] = [np.arange(len(variable.options)) for variable in space.variables]
    for index, row in wanted.items():
        variable = space.variables[space.made[index]]
        boxes = len(variable.options) - len(variable.followed)
        if boxes:
            allowed[space.made[index]] = _nearest(space, variable, boxes, row)
    return best_of(costs, settings, tile_weight, allowed)


def _nearest(space: Space, variable: Variable, boxes: int, row: Wanted) -> Ints:
    """Candidates that divide the work as wanted among most workers."""
    same = np.array(
        [
            math.prod(
                size
                for size, cut, want in zip(space.mesh.shape, option.mesh, row, strict=True)
                if cut == want
            )
            for option in variable.options[:boxes]
        ]
    )
    return np.flatnonzero(same == same.max())
