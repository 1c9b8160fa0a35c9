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
from dasktile.tiling.grid import axis_classes
from dasktile.tiling.mesh import mesh_shape
from dasktile.tiling.methods.base import Method
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

#: Modes of a cut.  "any": all labels; "data": the batch wherever there is one; "model": never the
#: batch, and the label of the cut before where possible.
MODES = ("any", "data", "model")

Rng = np.random.Generator

#: An array (the name or index of its node) and its axis of samples.
Batch = tuple[int | str, int]


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
    return _cheapest(costs, settings, tile_weight, lambda rng: k_cuts(program, mesh, rng=rng))


def data_parallel(batch: Batch) -> Method:
    """Cut the batch wherever there is one (section 4.1).

    This replicates weights and sums their gradients over all workers.

    Parameters
    ----------
    batch
        The axis of the samples.  All axes of the same class are cut.
    """
    return _parallelism("data", batch, lambda cuts: cuts)


def model_parallel(batch: Batch) -> Method:
    """Never cut the batch, so that every cut divides the weights (section 4.1).

    Each operation is cut along one label only, the one that is best for the first cut.

    Parameters
    ----------
    batch
        The axis of the samples, see :func:`data_parallel`.
    """
    return _parallelism("model", batch, lambda cuts: 0)


def hybrid_parallel(batch: Batch, data_cuts: int | None = None) -> Method:
    """Data parallelism among groups of workers, model parallelism inside them.

    Parameters
    ----------
    batch
        The axis of the samples, see :func:`data_parallel`.
    data_cuts
        Number of first cuts that are of the batch; by default half of all cuts.
    """
    return _parallelism("hybrid", batch, lambda cuts: cuts // 2 if data_cuts is None else data_cuts)


def _parallelism(name: str, batch: Batch, data_cuts: Callable[[int], int]) -> Method:
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
        The program to tile.
    mesh
        Number of parts of every cut.
    modes
        For every cut, one of :data:`MODES`; "any" if not given.
    batch
        The axis of the samples; needed for other modes than "any".
    rng
        Breaks ties between cuts of equal price; None to take the first.

    Raises
    ------
    ValueError
        For an unknown mode or batch.
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
    """A function that filters the labels of a node for a cut, given the labels cut before."""

    def allowed(index: int, labels: list[int]) -> list[int]:
        if mode == "any":
            return labels
        matching = [label for label in labels if (label in batched[index]) == (mode == "data")]
        repeated = [label for label in matching if label in before[index]]
        return repeated or matching or labels

    return allowed


def _untied(problem: Problem, rng: Rng) -> Problem:
    """The problem with a random cost of less than a byte for every state, which breaks ties."""
    most = 0.5 / len(problem.unary)
    return Problem(
        [costs + most * rng.random(len(costs)) for costs in problem.unary], problem.pairwise
    )


def _batch_labels(program: Program, batch: Batch | None) -> tuple[frozenset[int], ...]:
    """For every node, its labels along the axis of the samples."""
    if batch is None:
        raise ValueError("batch is None; (node name or index, axis) is needed for these cuts")
    which, axis = batch
    matches = [index for index, node in enumerate(program.nodes) if which in (index, node.name)]
    if not matches:
        raise ValueError(f"batch names the array {which!r}, which is not in the program")
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
            else sum(label == form for label, form in zip(option.mesh, forms, strict=True))
            for option in variable.options
        ]
    )  # fmt: skip
    return np.flatnonzero(agreed == agreed.max())
