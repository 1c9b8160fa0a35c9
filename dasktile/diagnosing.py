"""``diagnose``: measure computations, and predict what a plan would save, without making one."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from dask.base import is_dask_collection
from dask.highlevelgraph import HighLevelGraph
from distributed import Client

from dasktile import config
from dasktile._compat.dask import collections_to_expr, graphs_of
from dasktile._compat.distributed import recording
from dasktile._compat.expressions import computed_nodes
from dasktile.capture.expressions import ExpressionReader
from dasktile.capture.undeclared import UndeclaredReadError
from dasktile.cluster.clients import client_of
from dasktile.cluster.target import Machine, machine
from dasktile.errors import parse_flag
from dasktile.explaining import explained_graph
from dasktile.report.diagnosis import Diagnosis, Missed, OperationUse, WorkerUse
from dasktile.report.explanation import Explanation
from dasktile.report.formatting import format_names
from dasktile.runtime import meter
from dasktile.tiling import MemoryLimitError

logger = logging.getLogger("dasktile")

#: Computations for which plans are made at the most (chosen: a plan takes up to some seconds).
MOST_PLANNED = 20


class diagnose:  # noqa: N801  a function to its users, used as ``with diagnose():``
    """Measure the computations in a ``with`` block, and predict what dasktile would save.

    Nothing is optimised: Dask computes what it would compute without this.  A plugin on the workers
    counts until the end of the block; dasktile need not be installed on them, nor enabled.  At the
    end, plans are made in this process for the arrays that it computed, and their runs predicted.

    Parameters
    ----------
    client
        A client of the cluster, by default the current one.  With an asynchronous one, use
        ``async with``.
    plans
        False to measure only.

    Raises
    ------
    TypeError
        If `client` is no ``distributed.Client``, or `plans` no bool; on entry, for ``with`` and an
        asynchronous client, or ``async with`` and another client.
    ValueError
        If the client is closed, or there is none.
    RuntimeError
        If it is entered again before it has ended.

    Examples
    --------
    >>> import dask.array as da
    >>> import dasktile
    >>> from distributed import Client
    >>> with Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
    ...     x = da.random.default_rng(0).random((800, 800), chunks=(100, 800))
    ...     with dasktile.diagnose(client) as diagnosis:
    ...         total = (x @ x.T).sum().compute()
    >>> len(diagnosis.result.workers)
    2
    >>> print(diagnosis)  # doctest: +SKIP
    """

    def __init__(self, client: Client | None = None, *, plans: bool = True) -> None:
        self._plans = parse_flag("plans", plans)
        self._client = client_of(client)
        self._result: Diagnosis | None = None
        self._computations: list[tuple[HighLevelGraph, Any] | Missed] = []
        self._end_record: Callable[[], None] | None = None
        self._name = ""

    @property
    def result(self) -> Diagnosis:
        """The numbers.

        Raises
        ------
        RuntimeError
            Before the end of the block.
        """
        if self._result is None:
            raise RuntimeError("the diagnosis is complete at the end of its with block")
        return self._result

    def __str__(self) -> str:
        return "a diagnosis that has not ended" if self._result is None else str(self._result)

    def __repr__(self) -> str:
        return "<diagnose: not ended>" if self._result is None else repr(self._result)

    def _repr_html_(self) -> str | None:
        return None if self._result is None else self._result._repr_html_()

    def save(self, filename: str | Path = "diagnosis.html") -> Path:
        """Write the result as an HTML page, JSON or text; see ``Diagnosis.save``."""
        return self.result.save(filename)

    def __enter__(self) -> diagnose:
        if self._client.asynchronous:
            raise TypeError("the client is asynchronous: use async with dasktile.diagnose(client)")
        self._check_ended()
        self._client.sync(self._start)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()
        if self._is_open():
            self._client.sync(self._stop)
        self._finish(*self._to_plan(error is not None))

    async def __aenter__(self) -> diagnose:
        if not self._client.asynchronous:
            raise TypeError("the client is not asynchronous: use with dasktile.diagnose(client)")
        self._check_ended()
        await self._start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()
        if self._is_open():
            await self._stop()
        reason, target = self._to_plan(error is not None)
        if target is not None:
            target = _with_awaited(target, asyncio.get_running_loop())
        # plans take seconds, in which the event loop would do nothing else
        await asyncio.to_thread(self._finish, reason, target)

    def _check_ended(self) -> None:
        if self._end_record is not None:
            raise RuntimeError("this diagnosis has not ended: make another one for an inner block")

    def _is_open(self) -> bool:
        return self._client.status not in ("closing", "closed")

    async def _start(self) -> None:
        self._name = f"dasktile-diagnose-{uuid.uuid4().hex}"
        self._result = None
        self._reports: dict[str, meter.Report] = {}
        self._left = self._not_planned = 0
        self._addresses = await meter.start(self._client, self._name)
        try:
            self._end_record = recording.record_computations(self._client, self._record)
        except BaseException:
            await meter.cancel(self._client, self._name)
            raise
        self._began = time.perf_counter()

    def _end(self) -> None:
        self._seconds = time.perf_counter() - self._began
        if self._end_record is not None:
            self._end_record()
        self._end_record = None
        futures = list(self._client.futures.values())
        self._pending = sum(future.status == "pending" for future in futures)

    async def _stop(self) -> None:
        try:
            self._reports = await meter.stop(self._client, self._name)
        except OSError:
            # the scheduler is gone: an error of the block says more than this one
            logger.debug("dasktile could not read its counts", exc_info=True)
        self._left = len(self._addresses - set(self._reports))

    def _record(self, method: str, computed: Any) -> None:
        """Keep the graphs of a computation until the end of the block."""
        if not self._plans:
            return
        try:
            collections = [] if method == "get" else list(_collections_in(computed))
            if method != "get" and not collections:
                return
            room = MOST_PLANNED - len(self._computations)
            if room <= 0:
                # it would take time to read the graphs, only to count them
                self._not_planned += 1
                return
            found = _computations(collections_to_expr(collections) if collections else computed)
        except Exception:
            # whatever cannot be read here is computed all the same
            logger.debug("dasktile could not read a computation", exc_info=True)
            return
        self._computations += found[:room]
        self._not_planned += len(found[room:])

    def _no_plans(self, failed: bool) -> str:
        """The reason to make no plans, empty if there is none."""
        if failed:
            return "the block raised an error"
        if not self._is_open():
            return "the client was closed in the block, and nothing was counted"
        return "" if self._plans else "plans=False"

    def _to_plan(self, failed: bool) -> tuple[str, Machine | None]:
        """The reason to make no plans, and the workers to plan for."""
        reason = self._no_plans(failed)
        try:
            return reason, None if reason else self._target()
        except (OSError, ValueError) as error:  # there are no workers, or no scheduler any more
            return str(error), None

    def _target(self) -> Machine | None:
        """The workers to plan for, None if there is nothing to plan."""
        if all(isinstance(each, Missed) for each in self._computations):
            return None
        return _with_placement(machine(self._client))

    def _finish(self, reason: str, target: Machine | None) -> None:
        start = time.perf_counter()
        recorded, self._computations = self._computations, []
        computations: list[Missed] = []
        for each in [] if reason else recorded:
            if isinstance(each, Missed):
                computations.append(each)
            elif target is not None:
                computations.append(_missed(*each, target))
        self._result = Diagnosis(
            self._seconds,
            {address: _worker(report) for address, report in self._reports.items()},
            _operations(self._reports),
            tuple(computations),
            self._not_planned,
            self._left,
            time.perf_counter() - start,
            reason,
            self._pending,
        )


def _collections_in(value: Any) -> Iterator[Any]:
    """The collections that are given to a client, which looks into containers as well."""
    if is_dask_collection(value):
        yield value
    elif isinstance(value, (list, tuple, set, frozenset, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _collections_in(item)


def _computations(expression: Any) -> list[tuple[HighLevelGraph, Any] | Missed]:
    """What an expression computes: the graphs, or the reason for which it is not read."""
    nodes = computed_nodes(expression)
    if nodes:
        reader = ExpressionReader()
        return [(array.dask, array.__dask_keys__()) for array in map(reader.array, nodes)]
    if _has_array_expression(expression):
        reason = "dasktile does not read array expressions (dask's setting array.query-planning)"
        return [Missed("array expressions", None, reason)]
    return [each for each in graphs_of(expression) if isinstance(each[0], HighLevelGraph)]


def _has_array_expression(expression: Any) -> bool:
    operands = getattr(expression, "operands", None)
    # delayed objects have every attribute
    if not isinstance(operands, list):
        return False
    return hasattr(type(expression), "chunks") or any(map(_has_array_expression, operands))


def _with_awaited(target: Machine, loop: asyncio.AbstractEventLoop) -> Machine:
    """A machine of an asynchronous client, to plan for in another thread than that of its loop."""
    who_has = target.who_has
    if who_has is None:
        return target

    def answer(blocks: Mapping[Any, Any]) -> Mapping[Any, Sequence[str]]:
        holders: Any = who_has(blocks)
        if asyncio.iscoroutine(holders):
            holders = asyncio.run_coroutine_threadsafe(holders, loop).result()
        return dict(holders)

    return replace(target, who_has=answer)


def _with_placement(target: Machine) -> Machine:
    """The workers as they would be with the scheduler plugin."""
    return (
        target
        if target.placed
        else replace(target, order=tuple(str(position) for position in range(target.workers)))
    )


def _missed(graph: HighLevelGraph, keys: Any, target: Machine) -> Missed:
    reason = "no dask array of known chunks"
    try:
        found = explained_graph(graph, keys, target)
        if found is not None and found[1].nodes:
            return Missed(_results(*found), found[1])
    except (UndeclaredReadError, MemoryLimitError) as error:
        reason = str(error)
    except Exception as error:
        if config.setting("raise-errors"):
            raise
        reason = f"dasktile failed with {type(error).__name__}: {error}"
    return Missed(_layer_names(graph), None, reason)


def _results(names: Sequence[str], explanation: Explanation) -> str:
    """The operations that make the arrays of these names."""
    operations = {name: node.op for node in explanation.nodes for name in (node.name, *node.layers)}
    return _counted([operations.get(name, name.rpartition("-")[0] or name) for name in names])


def _layer_names(graph: HighLevelGraph) -> str:
    read = set().union(*graph.dependencies.values()) if graph.dependencies else set()
    return _counted([name.rpartition("-")[0] or name for name in graph.layers if name not in read])


def _counted(names: list[str]) -> str:
    counts = Counter(names)
    parts = [name if count == 1 else f"{count} x {name}" for name, count in counts.items()]
    return format_names(parts, 3)


def _worker(report: Mapping[str, Any]) -> WorkerUse:
    return WorkerUse(
        threads=report["threads"],
        tasks=sum(report["tasks"].values()),
        received=sum(report["received"].values()),
        spilled=report["spilled"],
        read_back=report["read_back"],
        computing=sum(report["computing"].values()),
        waiting=report["waiting"],
        idle=report["idle"],
        results=report["results"],
        process=report["process"],
    )


def _operations(reports: Mapping[str, Mapping[str, Any]]) -> dict[str, OperationUse]:
    total: dict[str, Counter[str]] = {
        name: Counter() for name in ("tasks", "computing", "received", "made")
    }
    for report in reports.values():
        for name, counts in total.items():
            counts.update(report[name])
    names = sorted({name for counts in total.values() for name in counts})
    return {
        name: OperationUse(
            total["tasks"][name],
            float(total["computing"][name]),
            total["received"][name],
            total["made"][name],
        )
        for name in names
    }
