"""The plans of the arrays that ``optimize`` returned, for ``explain`` of these arrays.

Their graph says where its tasks run, but neither what was decided nor what the input would have
moved.  Sizes and names are kept, but no graph and no array.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any

from dasktile import choice
from dasktile.cluster.target import Machine
from dasktile.lower.bundle_limits import BundleLimits
from dasktile.lower.count import count_tasks
from dasktile.lower.gaps import NoGapsError
from dasktile.lower.placed import GraphMemory, placed_tasks
from dasktile.planning import Candidate, handed_over, most_bundled, with_premise
from dasktile.prediction import Prediction, predict_tasks
from dasktile.recent import recently_used
from dasktile.report.describing import describe_plan
from dasktile.report.explanation import Explanation
from dasktile.request import Request
from dasktile.run_seconds import NodeWork, function_work
from dasktile.schedule.placement import is_written
from dasktile.tiling.plan import TilingPlan

#: Plans that are kept at most, and chunk sizes of all their arrays together (chosen: some 16 MB).
MOST_KEPT = 64
MOST_SIZES = 1_000_000

#: Tasks of a graph up to which their sizes are kept, to simulate it later (chosen).
MOST_TASKS = 1000

#: Tasks of a graph up to which it is found out which are needed, for the premise of the bound
#: (chosen: the bound may never be shown).
MOST_FOLLOWED = 10_000


@dataclass(frozen=True, slots=True)
class ReturnedPlan:
    """A plan that was carried out.

    Parameters
    ----------
    plan
        The plan.
    describe
        Makes its explanation, see :func:`describer`.
    names
        Names of the arrays that were returned, in the order of the plan's outputs.
    layers
        Names of the layers of its graph.
    machine, bundle
        The workers that it was made for, and tasks that were bundled at the most.
    runs
        What the input and the plan were predicted to take; None for each without a prediction.
    too_large
        How many tasks a graph has that was too large to be simulated; empty if none was.
    sizes
        What is known of the tasks of its graph, see `placed_tasks`; None if they are many.
    weight
        Chunk sizes of all its arrays, and sizes of its tiles.
    work
        What its functions take.
    """

    plan: TilingPlan
    describe: Callable[..., Explanation]
    names: tuple[str, ...]
    layers: frozenset[str]
    machine: Machine
    bundle: int
    runs: tuple[Prediction | None, Prediction | None]
    too_large: str
    sizes: tuple[BundleLimits, GraphMemory | None] | None
    weight: int
    work: tuple[NodeWork, ...]

    def input_run(self, request: Request) -> Prediction | None:
        """What the input took by prediction on workers as those of a request; None if unknown."""
        return self.runs[0] if self._is_for(request.machine) else None

    def predicted_run(
        self, request: Request, wanted: Mapping[str, Collection[Any]]
    ) -> Prediction | None:
        """What its graph takes; None if that is unknown.

        Parameters
        ----------
        request
            The arrays that were returned.
        wanted
            By the name of an array, the keys of it that are wanted.
        """
        after = self.runs[1] if self._is_for(request.machine) else None
        if after is not None or self.sizes is None:
            return after
        tasks = placed_tasks(request.graph, wanted, *self.sizes, by_place=request.machine.placed)
        return predict_tasks(request.machine, 0.0, *tasks)

    def positioned(self) -> list[str]:
        """Names of layers for whose blocks positions may be kept, by short tokens of the names."""
        if self.sizes is None:
            return []
        limits, _ = self.sizes
        names = {**limits.size, **limits.placements, **limits.tiles}
        return [name for name in names if isinstance(name, str)]

    def _is_for(self, machine: Machine) -> bool:
        """Whether runs of the plan on workers take what they take on those that it was made for."""
        same = machine.threads, machine.memory_limit, machine.room, machine.calibration
        own = self.machine
        return same == (own.threads, own.memory_limit, own.room, own.calibration)


#: By the names of the arrays that were returned, a function that makes their plan, and its weight.
_store = recently_used(MOST_KEPT, MOST_SIZES, itemgetter(1))


def describer(
    request: Request, chosen: Candidate, exact: bool = True
) -> Callable[..., Explanation]:
    """`describe_plan` of a plan, which takes the arguments that differ from call to call.

    Parameters
    ----------
    request, chosen
        The arrays, and the plan of them.
    exact
        As for `with_premise`.
    """
    plan = with_premise(request, chosen.planned, exact)
    bundled = None if chosen.lowered is None else chosen.lowered.bundled
    unplanned = 0 if bundled is None else bundled.unplanned(plan.after.bytes)
    captured = chosen.planned.captured
    if (captured.divided or chosen.is_own) and chosen.after is not None and chosen.after.is_sound:
        # the simulated run that decided, in which Dask fuses tasks
        unplanned = max(0, chosen.after.moved - plan.after.bytes)
    return partial(
        describe_plan,
        plan,
        request.final_chunks(plan),
        assumed_room=request.machine.assumed_room,
        joined=choice.joined(request, plan),
        placed=request.machine.placed,
        handed=handed_over(request, chosen.planned),
        layers=_layers(chosen),
        bundle=most_bundled(request.machine),
        unplanned=unplanned,
        in_memory=captured.is_in_memory,
    )


def _layers(chosen: Candidate) -> dict[int, tuple[str, ...]]:
    """By the index of a node, names of the layers that make its array and its final chunks."""
    lowered = chosen.lowered
    if lowered is None:
        return {}
    # the layers within Dask's own graph are those of its results
    made = {} if chosen.is_own else lowered.made
    layers = {index: {name: None} for index, name in made.items()}
    for index, name in zip(chosen.planned.plan.program.outputs, lowered.names, strict=True):
        layers.setdefault(index, {})[name] = None
    return {index: tuple(names) for index, names in layers.items()}


def remember_later(names: frozenset[str], make: Callable[[], ReturnedPlan], weight: int) -> None:
    """Keep a plan that was carried out, which is made when it is needed.

    Parameters
    ----------
    names
        The names of the arrays that were returned.
    make
        Makes the plan.
    weight
        As in `ReturnedPlan`.
    """
    if any(map(is_written, names)):
        _store[names] = make, weight


def remember(request: Request, chosen: Candidate) -> ReturnedPlan | None:
    """Keep a plan that was carried out, if one of its arrays at least has a name of its own.

    Parameters
    ----------
    request, chosen
        The arrays that were given, and the plan of them with its graph.

    Returns
    -------
    The plan; None if it is not kept.
    """
    lowered = chosen.lowered
    if lowered is None or not any(map(is_written, lowered.names)):
        return None
    sizes = None
    if count_tasks(lowered.graph, lowered.names) <= MOST_TASKS:
        sizes = lowered.written.limits, lowered.bundled.memory
    is_simulated = chosen.before is not None and chosen.after is not None
    plan = ReturnedPlan(
        chosen.planned.plan,
        describer(request, chosen, count_tasks(request.graph, request.names) <= MOST_FOLLOWED),
        tuple(lowered.names),
        frozenset(lowered.graph.layers),
        # without what asks a client
        replace(
            request.machine, who_has=None, durations=None, data=None, shapes=None, unfinished=None
        ),
        most_bundled(request.machine),
        (chosen.before, chosen.after),
        "" if is_simulated else choice.too_large(request, chosen),
        sizes,
        _weight(chosen.planned.plan),
        function_work(request, chosen.planned),
    )
    _store[frozenset(lowered.names)] = (lambda: plan), plan.weight
    return plan


def _weight(plan: TilingPlan) -> int:
    """Chunk sizes of all arrays of a plan, and sizes of its tiles."""
    chunks = [node.chunks for node in plan.program.nodes]
    if plan.tiled is not None:
        chunks += (tiling.chunks for tiling in plan.tiled.tilings)
    return sum(len(sizes) for each in chunks for sizes in each)


def _made(names: frozenset[str]) -> ReturnedPlan | None:
    """The plan of arrays that were returned, made when it is asked for; None if none is kept."""
    make, weight = _store.get(names, (None, 0))
    if make is None:
        return None
    try:
        plan = make()
    except NoGapsError:
        return None
    if names in _store:
        _store[names] = (lambda: plan), weight
    return plan


def returned_plan(request: Request) -> ReturnedPlan | None:
    """The plan of the arrays of a request; None unless `optimize` returned just these.

    Parameters
    ----------
    request
        The arrays.
    """
    plan = _made(frozenset(request.names))
    if plan is None or plan.layers != frozenset(request.graph.layers):
        return None
    machine = request.machine
    is_same = plan.machine.placed == machine.placed and plan.bundle == most_bundled(machine)
    return plan if is_same and choice.has_plan(request, plan.machine.workers) else None
