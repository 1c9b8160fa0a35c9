"""SoyBean: the workers are halved repeatedly, and each cut is the best one for two halves.

Wang, Huang and Li, *Unifying Data, Model and Hybrid Parallelism in Deep Learning via Tensor
Tiling*, sections 4.1 to 4.5.  A basic tiling cuts an array along one axis or replicates it.
An operation has one *aligned form* for every label that may be cut: its inputs and its result then
need no communication, except that a cut of a summed label makes partial sums.  The cost of a cut is
the bytes of converting the arrays from their tilings to the forms and back, and dynamic programming
finds the cheapest cut (:mod:`.onecut`).  Each half is then cut in the same way.

This goes beyond the paper in three points.  Cuts may be into three or more parts, which are the
prime factors of the number of workers.  A conversion is priced by the elements that an operation
reads inside its group, which may be more than the group's part of the array.  Arrays that are
generated or read from storage are made in parts, and replicas of them cost as much as others.

Choosing one mesh axis after another is not optimal under exact costs: compare with the default, as
:mod:`benchmarks.papers.soybean` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dasktile.ir import Program
from dasktile.tiling.candidates import Variable
from dasktile.tiling.cost import Costs
from dasktile.tiling.mesh import mesh_shape
from dasktile.tiling.methods.papers.onecut import OneCut, by_levels
from dasktile.tiling.methods.restricted import best_of
from dasktile.tiling.settings import Settings
from dasktile.tiling.solve.problem import Problem, Solution

#: Cuts at the most; further factors are merged.  Candidates of a node grow as a power of it.
MAX_CUTS = 4

#: Candidates of one node: all of a matrix product (6 for each cut) after so many cuts.
MAX_STATES = 6**MAX_CUTS

#: Random ways to break ties that are tried: cuts of equal price differ in exact bytes.
TIES = 8

Rng = np.random.Generator

#: For every node, the label of each cut so far; None where no label could be cut.
Forms = Sequence[Sequence[int | None]]

#: A filter of the labels that a cut may take: (index of the node, its labels) to labels.
Allowed = Callable[[int, list[int]], list[int]]


@dataclass(frozen=True, slots=True)
class Cuts:
    """The result of the k-cut algorithm.

    Parameters
    ----------
    forms
        For every node and cut, the label that is cut; None where no label can be cut.
    tiles
        For every node and cut, the axis along which the kept array is cut, or None where it is
        replicated.
    deltas
        For every cut, bytes converted between its parts inside one group.
    total
        Bytes of all groups: where every cut halves, the sum of ``2**(k - i) * delta_i``
        with the last cut as ``i = k`` (theorem 1 counts the cuts the other way).
    """

    forms: tuple[tuple[int | None, ...], ...]
    tiles: tuple[tuple[int | None, ...], ...]
    deltas: tuple[float, ...]
    total: float


def soybean_mesh(workers: int) -> tuple[int, ...]:
    """The prime factors of the workers, merged where there are more than four.

    >>> soybean_mesh(16), soybean_mesh(12), soybean_mesh(32)
    ((2, 2, 2, 2), (3, 2, 2), (4, 2, 2, 2))
    """
    return mesh_shape(workers, MAX_CUTS)


def soybean(costs: Costs, settings: Settings, tile_weight: float) -> Solution:
    """The k-cut tiling.

    The cuts determine the label that every mesh axis cuts, for every operation.  The placement of
    sums and of arrays with several readers is then chosen by exact cost.
    """
    program, mesh = costs.space.program, costs.space.mesh.shape
    return cheapest(costs, settings, tile_weight, lambda rng: k_cuts(program, mesh, rng=rng))


def any_label(cut: int, before: Forms) -> Allowed:
    """Restrict no cut."""
    return lambda index, labels: labels


def k_cuts(
    program: Program,
    mesh: Sequence[int],
    restriction: Callable[[int, Forms], Allowed] = any_label,
    rng: Rng | None = None,
) -> Cuts:
    """Algorithm 1: one cut for each axis of the mesh, slowest link first.

    Parameters
    ----------
    program
        The program to tile.
    mesh
        Number of parts of every cut.
    restriction
        The labels that a cut may take, given its number and the labels of the cuts before.
    rng
        Breaks ties between cuts of equal price; None to take the first.
    """
    label_cuts = [[1] * len(node.labels) for node in program.nodes]
    axis_cuts = [[1] * len(node.shape) for node in program.nodes]
    forms: list[list[int | None]] = [[] for _ in program.nodes]
    tiles: list[list[int | None]] = [[] for _ in program.nodes]
    deltas: list[float] = []

    for number, parts in enumerate(mesh):
        cut = OneCut(program, parts, label_cuts, axis_cuts, restriction(number, forms))
        problem = cut.problem()
        states = by_levels(problem if rng is None else _untied(problem, rng))
        deltas.append(problem.cost(states))
        for index, node in enumerate(program.nodes):
            form = cut.forms[index][states[2 * index + 1]]
            axis = states[2 * index] if states[2 * index] < len(node.shape) else None
            forms[index].append(form)
            tiles[index].append(axis)
            if form is not None:
                label_cuts[index][form] *= parts
            if axis is not None:
                axis_cuts[index][axis] *= parts
    groups = [math.prod(mesh[:cut]) for cut in range(len(mesh))]
    total = math.fsum(count * delta for count, delta in zip(groups, deltas, strict=True))
    return Cuts(tuple(map(tuple, forms)), tuple(map(tuple, tiles)), tuple(deltas), total)


def _untied(problem: Problem, rng: Rng) -> Problem:
    """The problem with a random cost of less than a byte for every state, which breaks ties."""
    most = 0.5 / len(problem.unary)
    return Problem(
        [costs + most * rng.random(len(costs)) for costs in problem.unary], problem.pairwise
    )


def cheapest(
    costs: Costs, settings: Settings, tile_weight: float, cuts: Callable[[Rng | None], Cuts]
) -> Solution:
    """The best solution by exact cost of several fixed ways to break ties."""
    solutions: list[Solution] = []
    tried = set()
    for seed in range(TIES):
        variant = cuts(np.random.default_rng(seed) if seed else None)
        if variant.forms not in tried:
            tried.add(variant.forms)
            solutions.append(_as_candidates(costs, settings, tile_weight, variant))
    return min(solutions, key=lambda solution: solution.cost)


def _as_candidates(costs: Costs, settings: Settings, tile_weight: float, cuts: Cuts) -> Solution:
    """The best candidates among those that agree with most cuts.

    A space need not have every tiling, so none may agree with all cuts.
    """
    allowed = [
        np.arange(len(variable.options))
        if variable.keep
        else _agreeing(variable, cuts.forms[variable.node])
        for variable in costs.space.variables
    ]
    return best_of(costs, settings, tile_weight, allowed)


def _agreeing(variable: Variable, forms: Sequence[int | None]) -> np.ndarray:
    """Indices of the candidates that cut the same labels on most mesh axes."""
    agreed = np.array(
        [
            -1 if option.follow is not None
            else sum(
                label == form for label, form in zip(option.labels(len(forms)), forms, strict=True)
            )
            for option in variable.options
        ]
    )  # fmt: skip
    return np.flatnonzero(agreed == agreed.max())
