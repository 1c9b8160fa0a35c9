"""The public calls, and the whole way from dask collections to dask collections."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import dask.array.optimization
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph

from dasktile import config, tiling
from dasktile._compat.dask import CAPTURE, missing, require
from dasktile.capture.base import ArrayInfo, Captured
from dasktile.capture.extend import extend
from dasktile.capture.highlevel import capture_graph
from dasktile.capture.undeclared import UndeclaredReadError
from dasktile.cluster.located import located
from dasktile.cluster.target import Machine, machine
from dasktile.collections.boundary import boundary, splice
from dasktile.collections.output_chunks import storable
from dasktile.collections.unpack import Holders, Member, Rewritten
from dasktile.errors import (
    InconsistentGraphWarning,
    InternalErrorWarning,
    UnsupportedCollectionWarning,
)
from dasktile.ir import Chunks, TiledProgram
from dasktile.lower.writer import lower
from dasktile.report import explanation as report
from dasktile.report.comparison import Comparison, comparison
from dasktile.tiling.plan import TilingPlan

logger = logging.getLogger("dasktile")

#: Times the usual size of a task that one may make on the way to its result.
CONE = 4

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
    if isinstance(dsk, HighLevelGraph) and not missing(CAPTURE):
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
    groups
        As in :class:`~dasktile.collections.unpack.Holders`.
    """

    graph: HighLevelGraph
    arrays: tuple[ArrayInfo, ...]
    kept: frozenset[str]
    fixed: frozenset[str]
    machine: Machine
    method: str
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
            tuple(holders.groups),
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


def _rewrite(asked: _Asked) -> Rewritten | None:
    """Capture, tile and lower; None where everything is best left as it is."""
    captured, plan = _plan(asked)
    if plan.tiled is None:
        return None
    names = [array.name for array in asked.arrays]
    lowered = lower(
        captured,
        plan.tiled,
        output_chunks=asked.handed_over(plan),
        output_names=[name if name in asked.fixed else None for name in names],
        predicted=plan.after.moved,
        cone=CONE * asked.machine.settings().usual_task,
        threads=asked.machine.threads,
    )
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
    new = _rewrite(_Asked(graph, found.arrays, names, names, target, method))
    return None if new is None else splice(graph, found, new.graph)


def _explain(asked: _Asked, unknown: Sequence[Array]) -> report.Explanation:
    _, plan = _plan(asked)
    seconds = asked.machine.seconds(plan)
    return report.explanation(plan, asked.handed_over(plan), unknown, seconds)


def _captured(asked: _Asked) -> Captured:
    """The captured program; with the setting `raise-errors`, errors of recognisers are raised."""
    captured = capture_graph(asked.graph, asked.arrays)
    if captured.errors and config.setting("raise-errors"):
        raise captured.errors[0]
    return captured


def _plan(asked: _Asked) -> tuple[Captured, TilingPlan]:
    target = asked.machine
    captured = located(_captured(asked), target)

    try:
        found = _tile(captured, target, asked.method, target.memory_limit)
    except tiling.MemoryLimitError:
        if target.limit_given:
            raise
        # nobody asked for this limit: tiles as small as can be are not what is wanted
        found = _tile(captured, target, asked.method, None)
    if found.origin is not None:
        captured = extend(captured, found.program, found.origin)
    return captured, found


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
