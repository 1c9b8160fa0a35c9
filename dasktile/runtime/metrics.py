"""``dasktile.metrics``: the counts of the plugins, requested from the scheduler and all workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

from distributed import Client, Scheduler, Worker

from dasktile._compat.distributed import execution, plugins
from dasktile.cluster.clients import client_of
from dasktile.errors import parse_flag
from dasktile.report.cluster_counts import LayerCounts, Metrics, WorkerCounts
from dasktile.report.explanation import Explanation
from dasktile.report.layer_names import owners, rows_of_layers
from dasktile.runtime.worker.plugin import NAME, TileWorkerPlugin


class PlanCounts(Protocol):
    """The counts of the scheduler plugin.

    Attributes
    ----------
    predicted
        Bytes that workers receive by prediction of the plans, by layer.
    rows
        By name of a layer, the layer whose predicted bytes include those received for it.
    placed
        Number of tasks that have got a home worker.
    stolen
        Number of tasks that ran on another worker, because their home worker was late.
    held
        Number of root tasks that wait on the scheduler for their home worker.
    errors
        Number of exceptions in the plugin.
    """

    predicted: dict[str, int]
    rows: dict[str, str]
    placed: int
    stolen: int
    errors: int

    @property
    def held(self) -> int: ...


def metrics(
    client: Client | None = None,
    *,
    reset: bool = False,
    explanation: Explanation | None = None,
) -> Any:
    """Measure what workers received from each other, and what they spilled.

    The present counts are requested from every worker.  They include all tasks since dasktile was
    enabled, the cluster restarted, or the last reset: also tasks that belong to no plan, and the
    task with which ``compute`` gathers its result on a worker.  Bytes that Dask's P2P shuffles send
    outside of tasks are not counted.  Workers that have left since are counted as of their last
    heartbeats.  Predicted bytes are the ``bytes_counted`` of ``explain``;
    :class:`~dasktile.report.cluster_counts.Metrics` says when more are received, and what the
    names of the layers are.  To measure one computation, ``persist`` it, with a call of this
    function with ``reset=True`` before and another call after it.

    Parameters
    ----------
    client
        A client of a cluster on which dasktile is enabled; by default the current one.
    reset
        Count from zero afterwards.  This applies to all users of the cluster, and to its
        dashboard page and Prometheus metrics.
    explanation
        What ``explain`` returned for the same arguments as ``optimize``: the counts of its rows are
        shown under their numbers and names.

    Returns
    -------
    Metrics
        `Metrics`; from an asynchronous client, an awaitable of it.

    Raises
    ------
    TypeError
        If `client` is no ``distributed.Client``, or `explanation` no explanation.
    ValueError
        If it is closed, or there is none.
    RuntimeError
        If dasktile is not enabled on that cluster.

    Examples
    --------
    >>> import dask.array as da
    >>> import dasktile
    >>> from distributed import Client, wait
    >>> x = da.random.default_rng(0).random((800, 800), chunks=(100, 800))
    >>> with Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
    ...     dasktile.enable(client)
    ...     y = dasktile.optimize(x @ x.T).persist()
    ...     _ = wait(y)
    ...     counts = dasktile.metrics(client)
    >>> counts.placed > 0, counts.bytes_received > 0, counts.errors
    (True, True, 0)
    """
    client = client_of(client)
    reset = parse_flag("reset", reset)
    if explanation is not None and not isinstance(explanation, Explanation):
        raise TypeError(
            "explanation must be what dasktile.explain returns, or None; got"
            f" {explanation!r} of type {type(explanation).__name__}"
        )
    rows = {} if explanation is None else _rows(explanation)
    return client.sync(_metrics, client, reset, rows)


def _rows(explanation: Explanation) -> dict[str, str]:
    """By name of a layer, the number and the operation of the row that it belongs to."""
    return {
        layer: f"{number} {node.op}"
        for number, node in enumerate(explanation.nodes)
        for layer in (node.name, *node.layers)
    }


async def _metrics(client: Client, reset: bool, rows: Mapping[str, str]) -> Metrics:
    try:
        plan = await client.run_on_scheduler(_on_scheduler, reset)
    except ImportError as error:
        raise RuntimeError(f"{_NOT_ENABLED} (the scheduler has no dasktile installed)") from error
    if plan is None:
        raise RuntimeError(_NOT_ENABLED)
    answers = await client.run(_on_worker, reset, on_error="return")
    return _gathered(plan, answers, rows)


_NOT_ENABLED = "dasktile is not enabled on this cluster: call dasktile.enable(client) first"


def _on_scheduler(reset: bool, dask_scheduler: Scheduler) -> dict[str, Any] | None:
    plugin: Any = plugins.plugin_of(dask_scheduler, NAME)
    if plugin is None:
        return None
    counts = {
        "predicted": dict(plugin.predicted),
        "rows": dict(plugin.rows),
        "placed": plugin.placed,
        "stolen": plugin.stolen,
        "errors": plugin.errors,
        "left": plugin.left.report(),
    }
    if reset:
        plugin.predicted.clear()
        plugin.placed = plugin.stolen = 0
        plugin.left.reset()
    return counts


async def _on_worker(reset: bool, dask_worker: Worker) -> dict[str, Any] | None:
    plugin: Any = plugins.plugin_of(dask_worker, NAME)
    # It may be wrapped, so that workers without the package can unpickle it.
    plugin = getattr(plugin, "plugin", plugin)
    if not isinstance(plugin, TileWorkerPlugin):
        return None
    counts = plugin.report(reset)
    if reset:
        # if the worker leaves, the counts of its last heartbeat are counted
        await execution.heartbeat(dask_worker)
    return counts


def _gathered(
    plan: Mapping[str, Any], answers: Mapping[str, Any], rows: Mapping[str, str]
) -> Metrics:
    predicted: Mapping[str, int] = plan["predicted"]
    received: Counter[str] = Counter()
    tiles: Counter[str] = Counter()
    held: Counter[str] = Counter()
    workers: dict[str, WorkerCounts] = {}
    missing: dict[str, str] = {}
    errors: int = plan["errors"]
    owner = owners(predicted, plan["rows"])
    left = plan["left"]
    errors += left["errors"]
    for layer, size in left["received"].items():
        received[owner(layer)] += size
    for address, answer in sorted(answers.items()):
        if isinstance(answer, ImportError):
            missing[address] = "dasktile is not installed there"
        elif isinstance(answer, BaseException):
            missing[address] = f"{type(answer).__name__}: {answer}"
        elif answer is None:
            missing[address] = "without the plugin"
        else:
            for layer, size in answer["received"].items():
                received[owner(layer)] += size
            for layer, (count, size) in answer["held"].items():
                tiles[owner(layer)] += count
                held[owner(layer)] += size
            errors += answer["errors"]
            workers[address] = WorkerCounts(
                received=sum(answer["received"].values()),
                tasks=answer["tasks"],
                tiles=sum(count for count, _ in answer["held"].values()),
                held=sum(size for _, size in answer["held"].values()),
                **_of_store(answer["store"]),
            )
    layers = {
        name: LayerCounts(received[name], predicted.get(name, 0), tiles[name], held[name])
        for name in dict.fromkeys([*predicted, *sorted({*received, *held})])
    }
    known = rows_of_layers(layers, rows)
    of_left = WorkerCounts(
        received=sum(left["received"].values()), tasks=left["tasks"], **_of_store(left["store"])
    )
    return Metrics(
        workers,
        layers,
        plan["placed"],
        errors,
        missing,
        known,
        left["workers"],
        of_left,
        bool(rows),
        plan["stolen"],
    )


def _of_store(report: Mapping[str, Any]) -> dict[str, Any]:
    names = {"held": "on"}
    return {names.get(name, name): value for name, value in report.items()}
