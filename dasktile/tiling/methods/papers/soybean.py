"""SoyBean: the workers are halved again and again, each cut the best for two halves.

Wang, Huang and Li, *Unifying Data, Model and Hybrid Parallelism in Deep Learning via Tensor
Tiling*, sections 4.1 to 4.5.  A basic tiling cuts an array along one axis or replicates it.
An operation has one *aligned form* for every label that may be cut: what it then reads and
makes fits together without communication, except that a cut of a summed label makes partial
results.  A cut costs what it takes to convert the arrays from their tilings to the forms
and back, and dynamic programming finds the cheapest (:mod:`.onecut`).  Inside each half the
same is done again.

Where this goes beyond the paper: cuts into three or more parts, which are the prime factors
of the workers; what a conversion takes is reckoned from what an operation reads inside its
group, which may be more than the group's part of the array; arrays that are generated or
read are made in parts, and copies of them cost as all copies do.

Choosing one axis of the mesh after another is not optimal under exact costs: compare with the
default, as :mod:`benchmarks.papers.soybean` does.
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

#: More factors than this are merged: the candidates of a node are a power of it.
MAX_CUTS = 4

#: All candidates of a matrix product that is cut so often.
MAX_STATES = 6**MAX_CUTS

#: Cuts of equal price differ in what they really move: so many ways to break ties are tried.
TIES = 8

Rng = np.random.Generator

#: For every node, the label that each cut so far has taken; None where nothing could be cut.
Forms = Sequence[Sequence[int | None]]

#: Of the labels of a node that could be cut, those that may be; the node is given by its index.
Allowed = Callable[[int, list[int]], list[int]]


@dataclass(frozen=True, slots=True)
class Cuts:
    """What the k-cut algorithm decides.

    Parameters
    ----------
    forms
        For every node and cut, the label that is cut; None where nothing can be cut.
    tiles
        For every node and cut, the axis along which its array is cut to be kept, or None
        where every part has a copy.
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

    The cuts say which label every axis of the mesh cuts, for every operation.  Where sums
    end, and how arrays with several readers are kept, is then chosen by exact cost.
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
        What is tiled.
    mesh
        Parts of every cut.
    restriction
        Which labels a cut may take, given its number and what those before have taken.
    rng
        Breaks ties between cuts of equal price; None for those found first.
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
    """The same with less than a byte for every choice, at random."""
    most = 0.5 / len(problem.unary)
    return Problem(
        [costs + most * rng.random(len(costs)) for costs in problem.unary], problem.pairwise
    )


def cheapest(
    costs: Costs, settings: Settings, tile_weight: float, cuts: Callable[[Rng | None], Cuts]
) -> Solution:
    """The best by exact cost of several ways to break ties, always the same ones."""
    solutions: list[Solution] = []
    tried = set()
    for seed in range(TIES):
        variant = cuts(np.random.default_rng(seed) if seed else None)
        if variant.forms not in tried:
            tried.add(variant.forms)
            solutions.append(_as_candidates(costs, settings, tile_weight, variant))
    return min(solutions, key=lambda solution: solution.cost)


def _as_candidates(costs: Costs, settings: Settings, tile_weight: float, cuts: Cuts) -> Solution:
    """The best candidates among those that agree with the cuts.

    A space need not have every tiling; then those that agree with as many cuts as any.
    """
    allowed = [
        np.arange(len(variable.options))
        if variable.keep
        else _agreeing(variable, cuts.forms[variable.node])
        for variable in costs.space.variables
    ]
    return best_of(costs, settings, tile_weight, allowed)


def _agreeing(variable: Variable, forms: Sequence[int | None]) -> np.ndarray:
    """Candidates that cut the same labels on as many axes of the mesh as any does."""
    agreed = np.array(
        [
            -1 if option.follow is not None
            else sum(label == form for label, form in zip(option.mesh, forms, strict=True))
            for option in variable.options
        ]
    )  # fmt: skip
    return np.flatnonzero(agreed == agreed.max())
