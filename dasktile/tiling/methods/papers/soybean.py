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
from dasktile.tiling.grid import axis_classes
from dasktile.tiling.mesh import mesh_shape
from dasktile.tiling.methods.base import Method
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

#: What a cut may do: anything, or with regard to the batch, "data": cut it wherever there
#: is one, and "model": never cut it, and the same label as before where that can be.
MODES = ("any", "data", "model")

Rng = np.random.Generator

#: An array, by the name or index of its node, and the axis along which the samples are.
Batch = tuple[int | str, int]


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
    return _cheapest(costs, settings, tile_weight, lambda rng: k_cuts(program, mesh, rng=rng))


def data_parallel(batch: Batch) -> Method:
    """Cut the batch wherever there is one (section 4.1).

    Weights are thereby replicated, and their gradients summed over all workers.

    Parameters
    ----------
    batch
        Where the samples are.  They are followed from there along all axes that are read
        together with that one from end to end.
    """
    return _forced("data", batch, lambda cuts: cuts)


def model_parallel(batch: Batch) -> Method:
    """Never cut the batch, so that every cut divides the weights (section 4.1).

    Each operation is cut along one label only, the one that is best for the first cut.

    Parameters
    ----------
    batch
        Where the samples are, see :func:`data_parallel`.
    """
    return _forced("model", batch, lambda cuts: 0)


def hybrid_parallel(batch: Batch, data_cuts: int | None = None) -> Method:
    """Data parallelism among groups of workers, model parallelism inside them.

    Parameters
    ----------
    batch
        Where the samples are, see :func:`data_parallel`.
    data_cuts
        So many cuts, the first, are of the batch; half of them if not given.
    """
    return _forced("hybrid", batch, lambda cuts: cuts // 2 if data_cuts is None else data_cuts)


def _forced(name: str, batch: Batch, data_cuts: Callable[[int], int]) -> Method:
    def choose(costs: Costs, settings: Settings, tile_weight: float) -> Solution:
        mesh = costs.space.mesh.shape
        first = min(data_cuts(len(mesh)), len(mesh))
        modes = ("data",) * first + ("model",) * (len(mesh) - first)
        program = costs.space.program
        return _cheapest(
            costs, settings, tile_weight, lambda rng: k_cuts(program, mesh, modes, batch, rng)
        )

    choose.__name__ = f"soybean-{name}"
    return Method(choose, mesh=soybean_mesh, max_states=MAX_STATES)


def k_cuts(
    program: Program,
    mesh: Sequence[int],
    modes: Sequence[str] | None = None,
    batch: Batch | None = None,
    rng: Rng | None = None,
) -> Cuts:
    """Algorithm 1: one cut for each axis of the mesh, slowest link first.

    Parameters
    ----------
    program
        What is tiled.
    mesh
        Parts of every cut.
    modes
        For every cut, one of :data:`MODES`; "any" if not given.
    batch
        Where the samples are; needed for other modes than "any".
    rng
        Breaks ties between cuts of equal price; None for those found first.

    Raises
    ------
    ValueError
        For a mode or a batch that there is not.
    """
    modes = ("any",) * len(mesh) if modes is None else modes
    for mode in modes:
        if mode not in MODES:
            allowed = ", ".join(map(repr, MODES))
            raise ValueError(f"unknown mode {mode!r} of a cut; allowed are {allowed}")
    batched = _batch_labels(program, batch) if set(modes) - {"any"} else ()
    label_cuts = [[1] * len(node.labels) for node in program.nodes]
    axis_cuts = [[1] * len(node.shape) for node in program.nodes]
    forms: list[list[int | None]] = [[] for _ in program.nodes]
    tiles: list[list[int | None]] = [[] for _ in program.nodes]
    deltas: list[float] = []

    for parts, mode in zip(mesh, modes, strict=True):
        cut = OneCut(program, parts, label_cuts, axis_cuts, _allowed(mode, batched, forms))
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


def _allowed(
    mode: str, batched: Sequence[frozenset[int]], before: Sequence[Sequence[int | None]]
) -> Callable[[int, list[int]], list[int]]:
    """Which of a node's labels a cut may take, given `before`; any where that leaves none."""

    def allowed(index: int, labels: list[int]) -> list[int]:
        if mode == "any":
            return labels
        wanted = [label for label in labels if (label in batched[index]) == (mode == "data")]
        repeated = [label for label in wanted if label in before[index]]
        return repeated or wanted or labels

    return allowed


def _untied(problem: Problem, rng: Rng) -> Problem:
    """The same with less than a byte for every choice, at random."""
    most = 0.5 / len(problem.unary)
    return Problem(
        [costs + most * rng.random(len(costs)) for costs in problem.unary], problem.pairwise
    )


def _batch_labels(program: Program, batch: Batch | None) -> tuple[frozenset[int], ...]:
    """For every node, its labels that run along the samples."""
    if batch is None:
        raise ValueError("batch is None; (node name or index, axis) is needed for these cuts")
    which, axis = batch
    matches = [index for index, node in enumerate(program.nodes) if which in (index, node.name)]
    if not matches:
        raise ValueError(f"batch names the array {which!r}, which the program has not")
    node = program.nodes[matches[0]]
    if not 0 <= axis < len(node.shape) or (label := node.out[axis].label) is None:
        raise ValueError(f"batch names axis {axis} of an array of shape {node.shape}")
    classes = axis_classes(program)
    samples = classes[matches[0]][label]
    return tuple(
        frozenset(position for position, klass in enumerate(row) if klass == samples)
        for row in classes
    )


def _cheapest(
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
