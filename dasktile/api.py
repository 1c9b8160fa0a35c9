"""The public functions: ``optimize``, ``explain``, ``compare`` and ``array_optimize``."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import dask.array.optimization
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph
from dask.utils import disable_gc

from dasktile import config, pipeline, tiling
from dasktile._compat.dask import CAPTURE, missing, require
from dasktile.capture.undeclared import UndeclaredReadError
from dasktile.cluster.located import located
from dasktile.cluster.target import Machine, machine
from dasktile.collections.building import is_building
from dasktile.collections.rechunked import rechunked
from dasktile.collections.unpack import Holders, Rebuild
from dasktile.errors import (
    InconsistentGraphWarning,
    InternalErrorWarning,
    UnsupportedCollectionWarning,
    parse_flag,
    warn_user,
)
from dasktile.explaining import explained
from dasktile.needs import needs_of
from dasktile.planning import captured_program, tile
from dasktile.refusal import advise
from dasktile.report.comparison import Comparison, comparison
from dasktile.report.describing import describe_unplanned
from dasktile.report.explanation import Explanation
from dasktile.request import Request
from dasktile.tiling.plan import TilingPlan

logger = logging.getLogger("dasktile")

#: Errors in the arguments of a caller, which are raised.
_REFUSALS = (tiling.MemoryLimitError, tiling.TooManyTilingsError)


def optimize(
    *collections: Any,
    method: str = "auto",
    workers: Any = None,
    memory_limit: float | str | None = None,
    keep_chunks: bool = False,
    chunks: Any = None,
) -> Any:
    """Cut the arrays of dask collections into better tiles.

    All arrays of all collections, and everything that they are computed from, are tiled
    together.  The results are lazy, and compute to the same values.

    Parameters
    ----------
    *collections
        Dask arrays, xarray objects and trees of them, other dask collections made of arrays, and
        lists, tuples and dicts of them.  Anything else passes through.
    method
        The tiling method: one of the names that ``dasktile.tiling.methods()`` lists.
    workers
        Number of processes that share the work and send bytes to each other, or a
        ``distributed.Client`` whose workers are counted.  By default the workers of the
        current client, else 1: threads of one process share their memory.
    memory_limit
        Bytes that one task may hold, its inputs and its result, as a number or as a
        string such as ``"2 GiB"``.  By default a share of the client's workers' memory.
    keep_chunks
        Give the results the chunks of the input, along all axes.  By default they have the cheapest
        chunks; those of xarray objects are chosen so that the object can be stored.  For other
        chunks along some axes and those of the input along the others, give `chunks` by axis, as
        ``chunks={1: -1}``.  Where the variables of an object have different chunks along a
        dimension (xarray says *inconsistent chunks*), they may still have after it;
        ``chunks={"time": 100}`` makes them equal.
    chunks
        None, the default: the results have the chunks that `keep_chunks` describes.  Otherwise give
        the results these chunks, as ``rechunk`` takes them: a size, a tuple or a dict of sizes
        by axis, ``"auto"``, or bytes such as ``"100 MiB"``.  For xarray objects as their method
        ``chunk`` takes them; variables in memory stay there, and ``"auto"`` and bytes are those of
        the largest variable.  The plan makes them on the workers that have the tiles, and counts
        the bytes that this moves.

    Returns
    -------
    collections
        The same collections: one for one, a tuple for several, an empty tuple for none. A
        collection for which no plan is cheaper is returned as the very same object, or with workers
        for the same tasks where these receive no more bytes then, or without the tasks that it does
        not need, if these are nearly all of a large graph.  With `chunks` that
        it does not have, it is what Dask's ``rechunk`` returns.

    Raises
    ------
    TypeError, ValueError
        Naming the argument that is wrong, its value, and what is allowed; for `chunks` that do not
        fit an array, those of Dask, with a note that names the argument.
    MemoryLimitError
        A ValueError: no tiles of some operation fit the `memory_limit`, or it makes too many
        tasks: more than the setting ``dasktile.tiling.many-tasks`` for each of the input's, and
        more than 3,000.  The message names a limit that makes fewer.

    Examples
    --------
    >>> import dask.array as da
    >>> import dasktile
    >>> x = da.random.default_rng(0).random((4000, 4000), chunks=(4000, 500))
    >>> y = dasktile.optimize(x.T @ x, workers=4)
    >>> dasktile.optimize(x.T @ x, workers=4, chunks=(2000, -1)).chunks
    ((2000, 2000), (4000,))
    """
    if any(isinstance(collection, HighLevelGraph) for collection in collections):
        raise TypeError(
            "optimize takes collections; got a HighLevelGraph. For dask's setting array_optimize"
            " use dask.config.set(array_optimize=dasktile.array_optimize)"
        )
    target = _arguments(method, workers, memory_limit, keep_chunks)
    collections, keep_chunks = _with_chunks(collections, keep_chunks, chunks)
    results = _optimized(collections, method, target, keep_chunks)
    return results[0] if len(results) == 1 else results


def optimize_to_gather(
    *collections: Any,
    method: str = "auto",
    workers: Any = None,
    memory_limit: float | str | None = None,
) -> tuple[Any, ...]:
    """As :func:`optimize`, for a client that takes blocks out of the tuples of bundles.

    The blocks of results have tasks of their own as usual, but their number is not what decides how
    tasks are bundled: :func:`dasktile.lower.gathered.parts_of` finds the tuples to ask for instead.

    Parameters
    ----------
    *collections, method, workers, memory_limit
        As for :func:`optimize`.

    Returns
    -------
    A tuple of the collections, one for one.
    """
    target = _arguments(method, workers, memory_limit, False)
    return _optimized(collections, method, target, False, gathered=True)


def _optimized(
    collections: tuple[Any, ...],
    method: str,
    target: Machine,
    keep_chunks: bool,
    gathered: bool = False,
) -> tuple[Any, ...]:
    """The collections after tiling, or the same if they should not change."""
    holders, rebuilds = _opened(collections)
    results: tuple[Any, ...] | None = None
    if holders.arrays and not missing(CAPTURE):
        request = Request.of(holders, keep_chunks, target, method, gathered)
        results = _guarded(_rebuilt, request, rebuilds)
    return collections if results is None else results


def _rebuilt(request: Request, rebuilds: Sequence[Rebuild]) -> tuple[Any, ...] | None:
    """The collections after tiling; None if they should not change."""
    try:
        new = pipeline.rewrite(request)
    except tiling.TooManyTasksError as error:
        raise advise(request, error) from None
    return None if new is None else tuple(rebuild(new) for rebuild in rebuilds)


def explain(
    *collections: Any,
    method: str = "auto",
    workers: Any = None,
    memory_limit: float | str | None = None,
    keep_chunks: bool = False,
    chunks: Any = None,
    by_hook: bool = False,
) -> Explanation:
    """Show the plan that :func:`optimize` would carry out with the same arguments.

    The first lines are about the whole expression:

    - *as it runs*: the tasks of the graph that Dask runs, and the bytes received in a simulation
      of Dask's own graph, whose tasks Dask's scheduler places (known *roughly*), and of the plan;
      if inputs are in memory already only where the former are far more;
    - *moves*: bytes that workers receive from each other, with the plan and with the input's own
      chunks; both by a model that runs every task on its best worker, which Dask's scheduler does
      not do: it moves more;
    - *lower bound*: what any tiling that uses all workers evenly moves at least, on the grids of
      workers that are named; *proven optimal* if the plan moves no more;
    - *tiles for 12 of 13 workers*: numbers with a large prime factor may have no grid with sides of
      about equal length, so that a plan for fewer workers takes less time; the others have no
      tiles;
    - *workers receive ... in all*: with what the tasks of one operation receive from each other, as
      of ``da.linalg.solve``, where that is more; ``bytes_counted``, which ``metrics`` shows, too;
    - *results in memory*: the bytes of the worker that holds most, in the same simulation.

    The table has two lines for each array: its *chunks* in the input and, below, its *tiles* in the
    plan, as count and largest size (``=`` if both are the same); and the bytes moved for the
    operation *before*, with the chunks, and *after*, with the tiles.  *from* are the rows of its
    inputs.  For xarray objects, the name of a *variable* is below the operation that makes it;
    ``2nd tas`` is that of the second object, where several have variables of that name.
    Below the table are the arrays that keep their chunks, with reasons.

    Parameters
    ----------
    *collections, method, workers, memory_limit, keep_chunks
        As in :func:`optimize`.
    chunks
        As in :func:`optimize`: chunks that the results are to have, whose bytes are counted in
        the last row of each result; None, the default, for those that `keep_chunks` describes.
    by_hook
        True to show the plan of :func:`array_optimize` when it is Dask's ``array_optimize``:
        results keep their chunks, and their names, which then do not say where their tasks run.

    Returns
    -------
    Explanation
        An :class:`~dasktile.report.explanation.Explanation`; print it.

    Raises
    ------
    TypeError, ValueError, MemoryLimitError
        As :func:`optimize`.  A limit that makes too many tasks is not an error: the first line says
        so.

    Examples
    --------
    >>> import dask.array as da
    >>> import dasktile
    >>> import numpy as np
    >>> x = da.from_array(np.ones((2000, 2000)), chunks=(2000, 100))
    >>> explanation = dasktile.explain(x.T @ x, workers=4)
    >>> explanation.tasks_after < explanation.tasks_before
    True
    >>> print(explanation)  # doctest: +ELLIPSIS
    4 workers, moves ... instead of ... between workers ...
    """
    target = _arguments(method, workers, memory_limit, keep_chunks)
    if parse_flag("by_hook", by_hook) and chunks is not None:
        raise ValueError(f"chunks={chunks!r} and by_hook=True exclude each other: give one of them")
    collections, keep_chunks = _with_chunks(collections, keep_chunks, chunks)
    holders, _ = _opened(collections)
    unknown, names = list(holders.unknown.values()), holders.variables
    if missing(CAPTURE):
        verdict = f"this Dask lacks {', '.join(missing(CAPTURE))}: expressions are unchanged"
        return describe_unplanned(target.workers, method, unknown, verdict, names)
    if not holders.arrays:
        verdict = "" if unknown else _no_arrays(collections)
        if holders.unsupported:
            verdict = "array expressions are not supported and unchanged"
        return describe_unplanned(target.workers, method, unknown, verdict, names)
    request = Request.of(holders, keep_chunks, target, method)
    if by_hook:
        request = request.by_hook()
    explanation: Explanation | None = _guarded(_explain, request, unknown)
    if explanation is None:
        return describe_unplanned(
            target.workers, method, unknown, "dasktile failed to read this", names
        )
    return replace(explanation, in_chunks=chunks is not None)


def compare(
    *collections: Any,
    methods: str | Iterable[str] | None = None,
    workers: Any = None,
    memory_limit: float | str | None = None,
) -> Comparison:
    """Compare the tilings that the methods choose, priced by the same exact model.

    :func:`optimize` returns an expression unchanged if its own chunks are cheaper than the tiles of
    the method.  The tiles are shown here in any case.

    Parameters
    ----------
    *collections, workers, memory_limit
        As in :func:`optimize`.
    methods
        One name or several from ``dasktile.tiling.methods()``; by default ``"auto"``, then all
        others.

    Returns
    -------
    Comparison
        A :class:`~dasktile.report.comparison.Comparison`; print it.

    Raises
    ------
    TypeError, ValueError
        Naming the argument that is wrong, its value, and what is allowed.
    ValueError
        If tasks of the graph read keys of an array that are not its blocks.

    Examples
    --------
    >>> import dask.array as da
    >>> import dasktile
    >>> import numpy as np
    >>> x = da.from_array(np.ones((4000, 500)), chunks=(500, 500))
    >>> comparison = dasktile.compare(x.T @ x, methods=["auto", "spartan"], workers=4)
    >>> comparison["auto"].bytes <= comparison["spartan"].bytes
    True
    >>> print(comparison)  # doctest: +ELLIPSIS
    4 workers; lower bound ...
    """
    require(CAPTURE, "dasktile.compare")
    names = _method_names(methods)
    target = _arguments("auto", workers, memory_limit, False)
    holders, _ = _opened(collections)
    if not holders.arrays:
        return comparison(target.workers, [])
    request = Request.of(holders, False, target, "exact")
    captured = located(captured_program(request), target)
    ranges = needs_of(request, captured).ranges
    plans: list[tuple[str, TilingPlan | str]] = []
    choose = partial(tile, captured, target, limit=target.memory_limit, ranges=ranges)
    for name in names:
        try:
            plans.append((name, choose(method=name, force=True)))
        except _REFUSALS as error:
            plans.append((name, str(error)))
    kept = ""
    if any(name == "auto" and not isinstance(plan, str) for name, plan in plans):
        usual = choose(method="auto")
        kept = usual.verdict if usual.unchanged else ""
    return comparison(target.workers, plans, kept)


def array_optimize(dsk: Any, keys: Any, **kwargs: Any) -> Any:
    """Tile arrays whenever they are computed: a hook for dask's configuration.

    Arrays that are arguments of delayed functions, or are converted to delayed objects, are not
    tiled.  Dask optimises these one by one while it builds the graph, and arrays with common inputs
    would compute them once for each.  Call :func:`optimize` on the arrays first.

    >>> import dask, dasktile
    >>> with dask.config.set(array_optimize=dasktile.array_optimize):  # doctest: +SKIP
    ...     x.compute()

    Parameters
    ----------
    dsk
        A graph.
    keys
        The wanted keys, nested in any way.  They are preserved.
    **kwargs
        Passed to ``dask.array.optimization.optimize``, which runs afterwards.
    """
    if isinstance(dsk, HighLevelGraph) and not missing(CAPTURE) and not is_building():
        target = _arguments("auto", None, None, True)
        try:
            tiled = _guarded(pipeline.rewrite_graph, dsk, keys, target)
        except _REFUSALS as error:
            logger.info("the graph is unchanged: %s", error)
            tiled = None
        if tiled is not None:
            dsk = tiled
    return dask.array.optimization.optimize(dsk, keys, **kwargs)


def _explain(request: Request, unknown: Sequence[Array]) -> Explanation:
    try:
        return explained(request, unknown)
    except UndeclaredReadError as error:
        _warn_inconsistent(error)
        verdict, workers = f"unchanged: {error}", request.machine.workers
        return describe_unplanned(workers, request.method, unknown, verdict, request.variables)


def _arguments(
    method: object, workers: object, memory_limit: object, keep_chunks: object
) -> Machine:
    for name, value in (("method", method), ("setting dasktile.method", config.setting("method"))):
        _check_method(name, value)
    if not isinstance(keep_chunks, bool):
        advice = ""
        if isinstance(keep_chunks, Mapping):
            advice = (
                "; for other chunks along some axes and those of the input along the others, give"
                " chunks by axis, as chunks={1: -1}"
            )
        raise TypeError(
            f"keep_chunks must be True or False; got {keep_chunks!r}"
            f" of type {type(keep_chunks).__name__}{advice}"
        )
    config.check()
    return machine(workers, memory_limit)


def _with_chunks(
    collections: tuple[Any, ...], keep_chunks: bool, chunks: Any
) -> tuple[tuple[Any, ...], bool]:
    """The collections in the wanted chunks, and whether results keep those of the collections."""
    if chunks is None:
        return collections, keep_chunks
    if keep_chunks:
        raise ValueError(
            f"chunks={chunks!r} and keep_chunks=True exclude each other: give one of them"
        )
    return rechunked(collections, chunks), True


def _check_method(argument: str, value: object, allowed: str = "") -> None:
    names = tiling.methods()
    allowed = allowed or f"must be one of {', '.join(map(repr, names))}"
    if not isinstance(value, str):
        raise TypeError(f"{argument} {allowed}; got {value!r} of type {type(value).__name__}")
    if value not in names:
        close = difflib.get_close_matches(value, names, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{argument} {allowed}; got {value!r}{hint}")


def _method_names(given: object) -> tuple[str, ...]:
    """The names in the argument `methods`, each once."""
    known = tiling.methods()
    if given is None:
        given = ()
    allowed = f"must be one or several of {', '.join(map(repr, known))}"
    if isinstance(given, str) or not isinstance(given, Iterable):
        given = (given,)
    names = list(given)
    for name in names:
        _check_method("methods", name, allowed)
    return tuple(dict.fromkeys(names)) or tuple(name for name in known if name != "exact")


def _opened(collections: Sequence[Any]) -> tuple[Holders, list[Rebuild]]:
    """The arrays of collections, and functions that rebuild these.

    Warns of arrays that were not read; with the setting `raise-errors`, raises what failed.
    """
    holders = Holders()
    rebuilds = [holders.open(collection) for collection in collections]
    if holders.unsupported:
        warn_user(
            "dasktile does not read array expressions (dask's setting array.query-planning, or a"
            " release of dask_array that was not checked); they are returned unchanged. While the"
            " setting is on, dask has no functions for the arrays that plans are made of: turn it"
            " off before dask.array is imported",
            UnsupportedCollectionWarning,
        )
    errors = [*holders.failed, *holders.expressions.errors]
    if errors and config.setting("raise-errors"):
        raise errors[0]
    if holders.failed:
        _warn_failed(holders.failed[0])
    return holders, rebuilds


def _no_arrays(collections: Sequence[Any]) -> str:
    """That there is nothing to tile, and what was given instead."""
    kinds = dict.fromkeys(type(collection).__name__ for collection in collections)
    given = f"; got {', '.join(kinds)}" if kinds else ""
    return f"no dask arrays to tile, nor xarray objects that have them{given}"


def _warn_failed(error: Exception) -> None:
    logger.debug("dasktile failed", exc_info=error)
    warn_user(
        f"dasktile failed with {type(error).__name__}: {error}; the input is used unchanged."
        " Please report this, with the traceback that dask.config.set({'dasktile.raise-errors':"
        " True}) shows",
        InternalErrorWarning,
    )


def _warn_inconsistent(error: UndeclaredReadError) -> None:
    warn_user(
        f"dasktile leaves the input unchanged: {error}",
        InconsistentGraphWarning,
    )


def _guarded(function: Any, *arguments: Any) -> Any:
    """Call a function; an error inside dasktile becomes a warning, and the result None."""
    try:
        # nearly all objects of a plan live until its end, so that searches for garbage find none
        with disable_gc():
            return function(*arguments)
    except _REFUSALS:
        raise
    except UndeclaredReadError as error:
        _warn_inconsistent(error)
        return None
    except Exception as error:
        if config.setting("raise-errors"):
            raise
        _warn_failed(error)
        return None
