"""The public calls, and the whole way from dask collections to dask collections."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dask.array.optimization
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph

from dasktile import config, tiling
from dasktile._compat.dask import CAPTURE, missing, require
from dasktile.capture.base import ArrayInfo, Captured
from dasktile.capture.culling import Needed, has_effects, needed_blocks
from dasktile.capture.extend import extend
from dasktile.capture.highlevel import capture_graph
from dasktile.capture.undeclared import UndeclaredReadError
from dasktile.cluster.located import located
from dasktile.cluster.target import Machine, machine
from dasktile.collections.boundary import boundary, splice
from dasktile.collections.building import is_building
from dasktile.collections.output_chunks import storable
from dasktile.collections.unpack import Holders, Member, Rewritten
from dasktile.errors import (
    InconsistentGraphWarning,
    InternalErrorWarning,
    UnsupportedCollectionWarning,
)
from dasktile.ir import Chunks, TiledProgram
from dasktile.lower.settings import DEFAULTS as LOWER_DEFAULTS
from dasktile.lower.writer import Lowered, lower
from dasktile.report import explanation as report
from dasktile.report.comparison import Comparison, comparison
from dasktile.tiling.plan import TilingPlan

logger = logging.getLogger("dasktile")

#: Arrays that must agree on the chunks along each dimension.
Group = tuple[Member, ...]
Groups = tuple[Group, ...]

#: What a caller asked for and cannot have, said in the caller's words.
_REFUSALS = (tiling.MemoryLimitError, tiling.TooManyTilingsError)


def optimize(
    *collections: Any,
    method: str = "auto",
    workers: Any = None,
    memory_limit: float | str | None = None,
    keep_chunks: bool = False,
) -> Any:
    """Cut the arrays of dask collections into better tiles.

    All arrays of all collections, and everything that they are computed from, are tiled
    together.  The results are lazy, and compute to the same values.

    Parameters
    ----------
    *collections
        Dask arrays, xarray objects, other dask collections made of arrays, and lists,
        tuples and dicts of them.  Anything else passes through.
    method
        How to decide: one of the names that ``dasktile.tiling.methods()`` lists.
    workers
        How many processes will share the work and must send bytes to each other, or a
        ``distributed.Client`` whose workers are counted.  By default the workers of the
        current client, else one: threads of one process move no bytes.
    memory_limit
        Bytes that one task may hold, its inputs and its result, as a number or as a
        string such as ``"2 GB"``.  By default a share of the client's workers' memory.
    keep_chunks
        Give the results the chunks of the input.  By default they have the chunks that
        are cheapest; those of xarray objects are made such that they can be stored.

    Returns
    -------
    The same collections; one for one, a tuple for several, an empty tuple for none.
    Where nothing is gained they are the very same objects.

    Raises
    ------
    TypeError, ValueError
        Naming the argument that is wrong, its value, and what is allowed.
    MemoryLimitError
        A ValueError: no tiles of some operation fit the `memory_limit`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dasktile
    >>> x = da.random.default_rng(0).random((4000, 4000), chunks=(4000, 500))
    >>> y = dasktile.optimize(x.T @ x, workers=4)
    """
    target = _arguments(method, workers, memory_limit, keep_chunks)
    holders = Holders()
    rebuilds = [holders.open(collection) for collection in collections]
    if holders.unsupported:
        _warn_unsupported()
    new = None
    if holders.arrays and not missing(CAPTURE):
        asked = _Asked.of(holders, keep_chunks, target, method)
        new = _guarded(_rewrite, asked)
    if new is None:
        results = collections
    else:
        results = tuple(rebuild(new) for rebuild in rebuilds)
    return results[0] if len(results) == 1 else results


def explain(
    *collections: Any,
    method: str = "auto",
    workers: Any = None,
    memory_limit: float | str | None = None,
    keep_chunks: bool = False,
) -> report.Explanation:
    """Say what :func:`optimize` would do with the same arguments, and why.

    Returns
    -------
    An :class:`~dasktile.report.explanation.Explanation`; print it.
    """
    target = _arguments(method, workers, memory_limit, keep_chunks)
    holders = Holders()
    for collection in collections:
        holders.open(collection)
    if holders.unsupported:
        _warn_unsupported()
    unknown = list(holders.unknown.values())
    if missing(CAPTURE):
        verdict = f"this Dask lacks {', '.join(missing(CAPTURE))}: expressions are unchanged"
        return report.nothing(target.workers, method, unknown, verdict)
    if not holders.arrays:
        verdict = "array expressions are left as they are" if holders.unsupported else ""
        return report.nothing(target.workers, method, unknown, verdict)
    found: report.Explanation | None = _guarded(
        _explain, _Asked.of(holders, keep_chunks, target, method), unknown
    )
    if found is None:
        return report.nothing(target.workers, method, unknown, "dasktile failed to read this")
    return found


def compare(
    *collections: Any,
    methods: Sequence[str] = (),
    workers: Any = None,
    memory_limit: float | str | None = None,
) -> Comparison:
    """Say what each tiling method would choose, by the same exact model.

    :func:`optimize` leaves an expression as it is where its own chunks are better than what a
    method chooses; here the choice is shown all the same.

    Parameters
    ----------
    *collections, workers, memory_limit
        As in :func:`optimize`.
    methods
        Some of the names that ``dasktile.tiling.methods()`` lists; by default ``"auto"``, then
        all others.

    Returns
    -------
    A :class:`~dasktile.report.comparison.Comparison`; print it.
    """
    require(CAPTURE, "dasktile.compare")
    names = tuple(methods) or tuple(name for name in tiling.methods() if name != "exact")
    for name in names:
        target = _arguments(name, workers, memory_limit, False)
    holders = Holders()
    for collection in collections:
        holders.open(collection)
    if not holders.arrays:
        return comparison(target.workers, [])
    asked = _Asked.of(holders, False, target, "exact")
    captured = located(_captured(asked), target)
    plans: list[tuple[str, TilingPlan | str]] = []
    for name in names:
        try:
            plans.append((name, _tile(captured, target, name, target.memory_limit, force=True)))
        except _REFUSALS as error:
            plans.append((name, str(error)))
    kept = ""
    if any(name == "auto" and not isinstance(plan, str) for name, plan in plans):
        usual = _tile(captured, target, "auto", target.memory_limit)
        kept = usual.verdict if usual.tiled is None else ""
    return comparison(target.workers, plans, kept)


def array_optimize(dsk: Any, keys: Any, **kwargs: Any) -> Any:
    """Tile arrays whenever they are computed: a hook for dask's configuration.

    Arrays that are arguments of delayed functions, or are made delayed objects, are not tiled:
    Dask optimises them one at a time while it builds the graph, where what they share with
    other arrays would be computed again for each.  Use :func:`optimize` for the arrays first.

    >>> import dask, dasktile
    >>> with dask.config.set(array_optimize=dasktile.array_optimize):  # doctest: +SKIP
    ...     x.compute()

    Parameters
    ----------
    dsk
        A graph.
    keys
        The keys that are wanted, nested in any way.  They are kept.
    **kwargs
        Passed on to ``dask.array.optimization.optimize``, which runs afterwards.
    """
    if isinstance(dsk, HighLevelGraph) and not missing(CAPTURE) and not is_building():
        target = _arguments("auto", None, None, True)
        try:
            tiled = _guarded(_rewrite_graph, dsk, keys, target)
        except _REFUSALS as error:
            logger.info("left as it is: %s", error)
            tiled = None
        if tiled is not None:
            dsk = tiled
    return dask.array.optimization.optimize(dsk, keys, **kwargs)


# The way there ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asked:
    """Arrays to tile, and how.

    Parameters
    ----------
    graph
        What makes the arrays.
    arrays
        The arrays.
    kept, fixed
        Names of those that keep their chunks, and of those that keep their names too.
    machine, method
        What to plan for, and how.
    keys
        The keys that are wanted of the graph, nested in any way.
    above
        Layers of the graph that are none of the arrays' but may read them.
    groups
        As in :class:`~dasktile.collections.unpack.Holders`.
    """

    graph: HighLevelGraph
    arrays: tuple[ArrayInfo, ...]
    kept: frozenset[str]
    fixed: frozenset[str]
    machine: Machine
    method: str
    keys: Any
    above: tuple[str, ...] = ()
    groups: Groups = ()

    @classmethod
    def of(cls, holders: Holders, keep_chunks: bool, machine: Machine, method: str) -> _Asked:
        fixed = frozenset(holders.fixed)
        return cls(
            HighLevelGraph.merge(*holders.graphs),
            tuple(holders.arrays.values()),
            frozenset(holders.arrays) if keep_chunks else fixed,
            fixed,
            machine,
            config.setting("method") if method == "auto" else method,
            holders.keys,
            groups=tuple(holders.groups),
        )

    def handed_over(self, plan: TilingPlan) -> list[Chunks | None]:
        """For every array, the chunks that it must have in the end; None for its tiles'."""
        found = [array.chunks if array.name in self.kept else None for array in self.arrays]
        if plan.tiled is not None:
            for group in self.groups:
                self._agree(plan.tiled, group, found)
        return found

    def _agree(self, tiled: TiledProgram, group: Group, found: list[Chunks | None]) -> None:
        """Give the arrays of an xarray object the same chunks along each dimension.

        Those of the array that keeps its chunks, else of the largest, made such that the
        object can be stored; an object that was inconsistent before may stay so.
        """
        places = {array.name: place for place, array in enumerate(self.arrays)}
        members = [(places[member.name], member) for member in group if member.name in places]
        # whose chunks count most comes first
        members.sort(
            key=lambda one: (found[one[0]] is None, -math.prod(self.arrays[one[0]].shape), one[0])
        )
        before: dict[Hashable, tuple[int, ...]] = {}
        after: dict[Hashable, tuple[int, ...]] = {}
        kept: set[Hashable] = set()
        encoded: dict[Hashable, set[int]] = {}
        for place, member in members:
            node = tiled.program.outputs[place]
            chunks = found[place] or tiled.tilings[node].chunks
            for axis, dim in enumerate(member.dims):
                own = self.arrays[place].chunks[axis]
                if before.setdefault(dim, own) != own:
                    if len(group) > 1:
                        for one in group:
                            self._agree(tiled, (one,), found)
                    return
                after.setdefault(dim, chunks[axis])
                if found[place]:
                    kept.add(dim)
                if member.encoded:
                    encoded.setdefault(dim, set()).add(member.encoded[axis])
        for dim in after.keys() - kept:
            after[dim] = storable(after[dim], before[dim], encoded.get(dim, ()))
        for place, member in members:
            found[place] = found[place] or tuple(after[dim] for dim in member.dims)


@dataclass(frozen=True, slots=True)
class _Planned:
    """What is to be written.

    Parameters
    ----------
    captured, plan
        The program and its tiles.
    needed
        By name, which blocks of arrays are needed, where that is not all; empty where all is
        needed that must not be made without need.
    """

    captured: Captured
    plan: TilingPlan
    needed: Mapping[str, Needed]

    def watched(self) -> list[int]:
        """Nodes of which no tile may be made that is not needed."""
        effects = has_effects(self.captured)
        nodes = self.captured.program.nodes
        return [at for at, node in enumerate(nodes) if effects[at] and node.name in self.needed]


def _rewrite(asked: _Asked) -> Rewritten | None:
    """Capture, tile and lower; None where everything is best left as it is."""
    _, lowered = _settled(asked)
    if lowered is None:
        return None
    names = [array.name for array in asked.arrays]
    return Rewritten(
        lowered.graph,
        dict(zip(names, lowered.names, strict=True)),
        dict(zip(names, lowered.chunks, strict=True)),
    )


def _rewrite_graph(graph: HighLevelGraph, keys: Any, target: Machine) -> HighLevelGraph | None:
    found = boundary(graph, keys)
    if found is None:
        return None
    names = frozenset(array.name for array in found.arrays)
    method = config.setting("method")
    new = _rewrite(_Asked(graph, found.arrays, names, names, target, method, keys, found.above))
    return None if new is None else splice(graph, found, new.graph)


def _explain(asked: _Asked, unknown: Sequence[Array]) -> report.Explanation:
    plan, _ = _settled(asked)
    seconds = asked.machine.seconds(plan)
    return report.explanation(plan, asked.handed_over(plan), unknown, seconds)


def _captured(asked: _Asked, alone: Mapping[str, str] | None = None) -> Captured:
    """The captured program; with the setting `raise-errors`, errors of recognisers are raised."""
    captured = capture_graph(asked.graph, asked.arrays, alone)
    if captured.errors and config.setting("raise-errors"):
        raise captured.errors[0]
    return captured


def _settled(asked: _Asked) -> tuple[TilingPlan, Lowered | None]:
    """The plan, and the graph where it is worth one.

    A graph that would make blocks that are not needed is not used: the arrays that decide
    about those keep their chunks instead.
    """
    alone: dict[str, str] = {}
    for _ in range(2):
        planned = _plan(asked, alone)
        plan = planned.plan
        if plan.tiled is None:
            return plan, None
        lowered = _lower(asked, planned)
        if not _makes_unneeded(planned, lowered):
            return plan, lowered
        nodes = plan.program.nodes
        some = [node.name in planned.needed for node in nodes]
        alone = {
            node.name: "only some blocks of it, or of what it reads, are needed"
            for at, node in enumerate(nodes)
            if some[at] or any(some[edge.producer] for edge in node.edges)
        }
    return replace(plan, tiled=None, verdict="blocks that are not needed would be made"), None


def _lower(asked: _Asked, planned: _Planned) -> Lowered:
    plan = planned.plan
    assert plan.tiled is not None
    return lower(
        planned.captured,
        plan.tiled,
        output_chunks=asked.handed_over(plan),
        output_names=[array.name if array.name in asked.fixed else None for array in asked.arrays],
        predicted=plan.after.moved,
        fuse_bytes=LOWER_DEFAULTS.fuse_factor * asked.machine.settings().usual_task,
        threads=asked.machine.threads,
        wanted=planned.needed,
        watched=planned.watched(),
    )


def _makes_unneeded(planned: _Planned, lowered: Lowered) -> bool:
    tiled = planned.plan.tiled
    assert tiled is not None
    return any(
        tiling.contains_unneeded(
            computed,
            tiled.tilings[index].chunks,
            planned.needed[tiled.program.nodes[index].name],
            tiled.program.nodes[index].chunks,
        )
        for index, computed in lowered.computed.items()
    )


def _plan(asked: _Asked, alone: Mapping[str, str]) -> _Planned:
    target = asked.machine
    captured = located(_captured(asked, alone), target)

    try:
        plan = _tile(captured, target, asked.method, target.memory_limit)
    except tiling.MemoryLimitError:
        if target.limit_given:
            raise
        # nobody asked for this limit: tiles as small as can be are not what is wanted
        plan = _tile(captured, target, asked.method, None)
    needed = {} if plan.tiled is None else _needed(asked, captured)
    if plan.origin is not None:
        captured = extend(captured, plan.program, plan.origin)
    if needed and plan.tiled is not None:
        nodes = plan.program.nodes
        effects = has_effects(captured)
        culled = [effects[at] and node.name in needed for at, node in enumerate(nodes)]
        decide = tiling.restricted(plan.program, culled)
        blocks = {
            at: needed[node.name]
            for at, node in enumerate(nodes)
            if decide[at] and node.name in needed
        }
        plan = replace(plan, tiled=tiling.cut_where_needed(plan.tiled, blocks))
    return _Planned(captured, plan, needed)


def _needed(asked: _Asked, captured: Captured) -> dict[str, Needed]:
    """Which blocks are needed of the arrays of which not all are.

    Empty where no array is among them that must not be made without need.
    """
    program, effects = captured.program, has_effects(captured)
    outputs = {array.name: array.numblocks for array in asked.arrays}
    wanted = needed_blocks(asked.graph, asked.keys, outputs, asked.above)
    culled = tiling.may_be_culled(program, [bool(wanted[name].all()) for name in outputs])
    if not any(one and other for one, other in zip(effects, culled, strict=True)):
        return {}
    numblocks = {node.name: tuple(map(len, node.chunks)) for node in program.nodes}
    found = needed_blocks(asked.graph, asked.keys, {**numblocks, **outputs})
    some = {name: blocks for name, blocks in found.items() if not blocks.all()}
    nodes = zip(program.nodes, effects, strict=True)
    return some if any(effect and node.name in some for node, effect in nodes) else {}


def _tile(
    captured: Captured, target: Machine, method: str, limit: int | None, force: bool = False
) -> TilingPlan:
    return tiling.tile(
        captured.program,
        workers=target.workers,
        threads=target.threads,
        memory_limit=limit,
        method=method,
        settings=target.settings(),
        placed=target.placed,
        force=force,
    )


# The way in -------------------------------------------------------------------------


def _arguments(
    method: object, workers: object, memory_limit: object, keep_chunks: object
) -> Machine:
    names = tiling.methods()
    for name, value in (("method", method), ("setting dasktile.method", config.setting("method"))):
        said = f"{name} must be one of {', '.join(map(repr, names))}; got {value!r}"
        if not isinstance(value, str):
            raise TypeError(f"{said} of type {type(value).__name__}")
        if value not in names:
            raise ValueError(said)
    if not isinstance(keep_chunks, bool):
        raise TypeError(
            f"keep_chunks must be True or False; got {keep_chunks!r}"
            f" of type {type(keep_chunks).__name__}"
        )
    config.tiling_settings()
    return machine(workers, memory_limit)


def _warn_unsupported() -> None:
    warnings.warn(
        "dasktile does not read array expressions (dask's setting array.query-planning);"
        " they are returned unchanged",
        UnsupportedCollectionWarning,
        stacklevel=3,
    )


def _guarded(function: Any, *arguments: Any) -> Any:
    """Call a part of dasktile; whatever fails in there must not stop the user."""
    try:
        return function(*arguments)
    except _REFUSALS:
        raise
    except UndeclaredReadError as error:
        warnings.warn(
            f"dasktile leaves the input unchanged: {error}. dask.graph_manipulation.clone makes"
            " such graphs of arrays that were rechunked",
            InconsistentGraphWarning,
            stacklevel=3,
        )
        return None
    except Exception as error:
        if config.setting("raise-errors"):
            raise
        logger.debug("dasktile failed", exc_info=True)
        warnings.warn(
            f"dasktile failed with {type(error).__name__}: {error}; the input is used as it is."
            " Please report this, with the traceback that dask.config.set({'dasktile.raise-errors':"
            " True}) shows",
            InternalErrorWarning,
            stacklevel=3,
        )
        return None
