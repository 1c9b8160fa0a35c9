"""Data, model and hybrid parallelism: SoyBean's cuts, restricted to the batch or to other axes.

Each is a :class:`~dasktile.tiling.methods.base.Method` that need not be registered.  These are the
baselines of the paper (section 4.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dasktile.ir import Program
from dasktile.tiling.cost import Costs
from dasktile.tiling.grid import axis_classes
from dasktile.tiling.methods.base import Method
from dasktile.tiling.methods.papers.soybean import (
    MAX_STATES,
    Allowed,
    Forms,
    cheapest,
    k_cuts,
    soybean_mesh,
)
from dasktile.tiling.settings import Settings
from dasktile.tiling.solve.problem import Solution

#: Restrictions of a cut.  "any": none.  "data": cut the batch wherever there is one.  "model":
#: never cut the batch, and cut the same label as before where possible.
MODES = ("any", "data", "model")

#: An array, by the name or index of its node, and its axis of samples.
Batch = tuple[int | str, int]


def data_parallel(batch: Batch) -> Method:
    """Cut the batch wherever there is one (section 4.1).

    Weights are thereby replicated, and their gradients summed over all workers.

    Parameters
    ----------
    batch
        The axis of the samples.  Axes that are read together with it from end to end are axes of
        the samples, too.
    """
    return _forced("data", batch, lambda cuts: cuts)


def model_parallel(batch: Batch) -> Method:
    """Never cut the batch, so that every cut divides the weights (section 4.1).

    Each operation is cut along one label only, the one that is best for the first cut.

    Parameters
    ----------
    batch
        The axis of the samples, see :func:`data_parallel`.
    """
    return _forced("model", batch, lambda cuts: 0)


def hybrid_parallel(batch: Batch, data_cuts: int | None = None) -> Method:
    """Data parallelism among groups of workers, model parallelism inside them.

    Parameters
    ----------
    batch
        The axis of the samples, see :func:`data_parallel`.
    data_cuts
        Number of cuts of the batch, which come first; half of the cuts if not given.
    """
    return _forced("hybrid", batch, lambda cuts: cuts // 2 if data_cuts is None else data_cuts)


def _forced(name: str, batch: Batch, data_cuts: Callable[[int], int]) -> Method:
    def choose(costs: Costs, settings: Settings, tile_weight: float) -> Solution:
        program, mesh = costs.space.program, costs.space.mesh.shape
        first = min(data_cuts(len(mesh)), len(mesh))
        modes = ("data",) * first + ("model",) * (len(mesh) - first)
        restriction = by_modes(program, modes, batch)
        return cheapest(
            costs, settings, tile_weight, lambda rng: k_cuts(program, mesh, restriction, rng)
        )

    choose.__name__ = f"soybean-{name}"
    return Method(choose, mesh=soybean_mesh, max_states=MAX_STATES)


def by_modes(
    program: Program, modes: Sequence[str], batch: Batch | None = None
) -> Callable[[int, Forms], Allowed]:
    """A restriction of :func:`~dasktile.tiling.methods.papers.soybean.k_cuts`, cut by cut.

    If a mode allows no label of a node, the cut may use any label of it.

    Parameters
    ----------
    modes
        For every cut, one of :data:`MODES`.
    batch
        The axis of the samples; needed for modes other than "any".

    Raises
    ------
    ValueError
        If a mode is unknown, or the batch is missing or does not exist.
    """
    for mode in modes:
        if mode not in MODES:
            allowed = ", ".join(map(repr, MODES))
            raise ValueError(f"unknown mode {mode!r} of a cut; allowed are {allowed}")
    batched = _batch_labels(program, batch) if set(modes) - {"any"} else ()

    def restriction(cut: int, before: Forms) -> Allowed:
        mode = modes[cut]

        def allowed(index: int, labels: list[int]) -> list[int]:
            if mode == "any":
                return labels
            preferred = [label for label in labels if (label in batched[index]) == (mode == "data")]
            repeated = [label for label in preferred if label in before[index]]
            return repeated or preferred or labels

        return allowed

    return restriction


def _batch_labels(program: Program, batch: Batch | None) -> tuple[frozenset[int], ...]:
    """For every node, the labels that are axes of the samples."""
    if batch is None:
        raise ValueError("batch is None; (node name or index, axis) is needed for these cuts")
    array, axis = batch
    matches = [index for index, node in enumerate(program.nodes) if array in (index, node.name)]
    if not matches:
        raise ValueError(f"batch names the array {array!r}, which does not exist in the program")
    node = program.nodes[matches[0]]
    if not 0 <= axis < len(node.shape) or (label := node.out[axis].label) is None:
        raise ValueError(f"batch names axis {axis} of an array of shape {node.shape}")
    classes = axis_classes(program)
    samples = classes[matches[0]][label]
    return tuple(
        frozenset(label for label, klass in enumerate(row) if klass == samples) for row in classes
    )
