"""``diagnose``: measure computations, and predict what a plan would save, without making one."""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from dask.base import is_dask_collection
from dask.highlevelgraph import HighLevelGraph
from distributed import Client

from dasktile import config
from dasktile._compat import distributed as internals
from dasktile._compat.dask import collections_to_expr, graphs_of
from dasktile.capture.undeclared import UndeclaredReadError
from dasktile.cluster.clients import client_of
from dasktile.cluster.target import Machine, machine
from dasktile.explaining import explained_graph
from dasktile.report.diagnosis import Diagnosis, Missed, OperationUse, WorkerUse
from dasktile.report.explanation import Explanation
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
        If `client` is no ``distributed.Client``, or `plans` no bool.
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
        if not isinstance(plans, bool):
            raise TypeError(
                f"plans must be True or False; got {plans!r} of type {type(plans).__name__}"
            )
        self._client = client_of(client)
        self._plans = plans
        self._result: Diagnosis | None = None
        self._graphs: list[tuple[HighLevelGraph, Any]] = []
        self._overrides: list[internals.Override] = []
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
        """Write the result as an HTML page; see :meth:`Diagnosis.save`."""
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
        self._end_record()
        if self._is_open():
            self._client.sync(self._stop)
        self._finish(error is not None)

    async def __aenter__(self) -> diagnose:
        self._check_ended()
        await self._start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end_record()
        if self._is_open():
            await self._stop()
        self._finish(error is not None)

    def _check_ended(self) -> None:
        if self._overrides:
            raise RuntimeError("this diagnosis has not ended: make another one for an inner block")

    def _is_open(self) -> bool:
        return self._client.status not in ("closing", "closed")

    async def _start(self) -> None:
        self._name = f"dasktile-diagnose-{uuid.uuid4().hex}"
        self._reports: dict[str, meter.Report] = {}
        self._not_planned = 0
        await meter.start(self._client, self._name)
        self._addresses = set(self._client.scheduler_info(n_workers=-1)["workers"])
        self._overrides = internals.record_computations(self._client, self._record)
        self._began = time.perf_counter()

    def _end_record(self) -> None:
        self._seconds = time.perf_counter() - self._began
        for override in self._overrides:
            internals.uninstall(override)
        self._overrides = []

    async def _stop(self) -> None:
        self._reports = await meter.stop(self._client, self._name)

    def _record(self, computed: Any) -> None:
        """Keep the graphs of a computation until the end of the block."""
        if not self._plans:
            return
        try:
            collections = computed if isinstance(computed, (list, tuple, set)) else [computed]
            is_expression = hasattr(computed, "operands")
            if collections and not is_expression and all(map(is_dask_collection, collections)):
                computed = collections_to_expr(list(collections))
            graphs = [
                (graph, keys)
                for graph, keys in graphs_of(computed)
                if isinstance(graph, HighLevelGraph)
            ]
        except Exception:
            # whatever cannot be read here is computed all the same
            logger.debug("dasktile could not read a computation", exc_info=True)
            return
        room = MOST_PLANNED - len(self._graphs)
        self._graphs += graphs[:room]
        self._not_planned += len(graphs[room:])

    def _finish(self, failed: bool) -> None:
        start = time.perf_counter()
        graphs, self._graphs = self._graphs, []
        computations: tuple[Missed, ...] = ()
        reason = ""
        if failed:
            reason = "the block raised an error"
        elif not self._is_open():
            reason = "the client was closed in the block, and nothing was counted"
        elif not self._plans:
            reason = "plans=False"
        elif graphs:
            target = _with_placement(machine(self._client))
            computations = tuple(_missed(graph, keys, target) for graph, keys in graphs)
        self._result = Diagnosis(
            self._seconds,
            {address: _worker(report) for address, report in self._reports.items()},
            _operations(self._reports),
            computations,
            self._not_planned,
            len(self._addresses - set(self._reports)),
            time.perf_counter() - start,
            reason,
        )


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
    operations = {node.name: node.op for node in explanation.nodes}
    return _listed([operations.get(name, name.rpartition("-")[0] or name) for name in names])


def _layer_names(graph: HighLevelGraph) -> str:
    read = set().union(*graph.dependencies.values()) if graph.dependencies else set()
    return _listed([name.rpartition("-")[0] or name for name in graph.layers if name not in read])


def _listed(names: list[str]) -> str:
    counts = Counter(names)
    parts = [name if count == 1 else f"{count} x {name}" for name, count in counts.items()]
    return ", ".join(parts[:3]) + (", ..." if len(parts) > 3 else "")


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
        name: Counter() for name in ("tasks", "computing", "received")
    }
    for report in reports.values():
        for name, counts in total.items():
            counts.update(report[name])
    names = sorted({name for counts in total.values() for name in counts})
    return {
        name: OperationUse(
            total["tasks"][name], float(total["computing"][name]), total["received"][name]
        )
        for name in names
    }
