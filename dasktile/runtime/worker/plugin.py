"""Counts on every worker: bytes received from peers, tasks run, tiles held."""

from __future__ import annotations

import heapq
import time
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from distributed import Worker, WorkerPlugin

from dasktile._compat import flox
from dasktile._compat.distributed import checks, execution, plugins, states, storage
from dasktile._compat.distributed.features import Feature
from dasktile.lower.bundle_tasks import reader_in
from dasktile.runtime.failures import Guarded
from dasktile.runtime.settings import RuntimeSettings
from dasktile.runtime.worker.data import SpillOptions, store_for
from dasktile.runtime.worker.spilling import Spilling
from dasktile.runtime.worker.takeover import Handover
from dasktile.schedule.placement import MARK

#: Name of the plugins of the scheduler and of workers, and of the workers' metric.
NAME = "dasktile"

#: Name under which the counts of older layers are added up.
OTHER = "(older layers)"

#: States of tasks whose function runs.
_RUNNING = (states.EXECUTING, states.LONG_RUNNING)


@dataclass(frozen=True, slots=True)
class Summary:
    """The counts of a worker in its heartbeat.

    Parameters
    ----------
    received
        Bytes received from other workers.
    tasks
        Tasks run.
    tiles, held
        Number of results that the worker has now, of all layers, and their bytes.
    errors
        Number of exceptions in the plugin.
    layers
        Bytes received by layer, for the layers with the most.
    store
        The result of :meth:`TileStore.report`; empty for a worker without such a store.
    since
        Seconds since the epoch, by the worker's clock, at which it began to count from zero.
    """

    received: int = 0
    tasks: int = 0
    tiles: int = 0
    held: int = 0
    errors: int = 0
    layers: Mapping[str, int] = field(default_factory=dict)
    store: Mapping[str, Any] = field(default_factory=dict)
    since: float = 0.0

    @classmethod
    def of(cls, metrics: Mapping[str, Any]) -> Summary | None:
        """The counts in the metrics of a heartbeat.

        Parameters
        ----------
        metrics
            ``WorkerState.metrics`` on the scheduler.

        Returns
        -------
        None for a worker without the plugin.
        """
        counts = metrics.get(NAME)
        if not isinstance(counts, dict):
            return None
        # A worker with another release of dasktile may send other fields.
        return cls(**{key: counts[key] for key in cls.__slots__ if key in counts})


def layer_of(key: object) -> str:
    """The name of the layer that a key belongs to.

    Parameters
    ----------
    key
        Key of a task: ``(layer, *index)`` or a string.
    """
    if isinstance(key, tuple) and key:
        return str(key[0])
    return execution.layer_name(key)


def fold_counts(counts: dict[str, int], most: int) -> dict[str, int]:
    """Counts by layer, with those of the older half added up if there are too many layers.

    Parameters
    ----------
    counts
        Counts by layer, oldest first; those that are added up are removed.
    most
        Maximum number of layers.
    """
    if len(counts) <= most:
        return counts
    # half of them at once, so that a new layer costs nothing on average
    total = sum(counts.pop(layer) for layer in list(counts)[: most // 2])
    # first again, so that it is among the older ones the next time
    return {OTHER: total, **counts}


class TileWorkerPlugin(Guarded, WorkerPlugin):
    """Counts the bytes that a worker receives from its peers, by layer, and lets it spill.

    A result is counted if the worker receives it as the input of a task or as a replica.  Its
    layer is that of the task that waits for it, in a bundle that of the task that reads it; the
    first by name if several do, and its own if none does.  Bytes are those of the result in
    memory, as distributed measures them; what is sent may be compressed.

    Not counted are the bytes of P2P shuffles, which are sent outside of the tasks' states; those
    of ``Client.replicate``, ``Client.rebalance`` and ``Client.scatter``, which arrive like data
    of a client; and the rare results whose transfer was cancelled or resumed.

    Parameters
    ----------
    spill
        How the worker stores its results; None to keep distributed's own mapping.
    settings
        Constants; by default those of `RuntimeSettings`.

    Attributes
    ----------
    received
        Bytes received from other workers, by layer.
    tasks
        Number of tasks that have run.
    spilling
        The part that spills; None for a worker with another mapping for its results.
    unavailable
        Features that this release of distributed does not support, and why.
    """

    name = NAME

    def __init__(
        self, spill: SpillOptions | None = None, settings: RuntimeSettings | None = None
    ) -> None:
        super().__init__()
        self._settings = settings or RuntimeSettings()
        self.received: dict[str, int] = {}
        self.tasks = 0
        self._since = time.time()
        self.spilling: Spilling | None = None
        self.unavailable: dict[Feature, str] = {}
        self._spill = spill
        self._worker: Worker | None = None
        self._removed = False

    def setup(self, worker: Worker) -> Awaitable[None] | None:
        """Start to count, and to spill if that is configured.

        Parameters
        ----------
        worker
            The worker; its heartbeats carry the counts from now on.

        Returns
        -------
        To be awaited if results are still being moved from an earlier store; else None.
        """
        if self._spill is not None and isinstance(worker.data, Handover):
            return self._setup_after(worker, worker.data)
        self._setup(worker)
        return None

    async def _setup_after(self, worker: Worker, handover: Handover) -> None:
        self._removed = False
        await handover.ended.wait()
        if not self._removed:
            self._setup(worker)

    def _setup(self, worker: Worker) -> None:
        flox.count_bytes()
        self.unavailable = checks.check_worker(worker, self._spill is not None)
        if Feature.METRICS not in self.unavailable:
            self._worker = worker
            execution.add_metric(worker, NAME, self.summary)
        if self._spill is not None and Feature.SPILLING not in self.unavailable:
            try:
                store = store_for(worker, self._spill)
                if store is not None:
                    spilling = Spilling(
                        worker,
                        store,
                        self._spill.memory_limit,
                        hints=Feature.HINTS not in self.unavailable,
                        prefetch=Feature.PREFETCH not in self.unavailable,
                        settings=self._settings,
                    )
                    try:
                        spilling.attach()
                    except BaseException:
                        if worker.data is not store and not isinstance(worker.data, Handover):
                            store.close()
                        raise
                    self.spilling = spilling
            except Exception:
                self._count_error("take over the results of a worker")

    def teardown(self, worker: Worker) -> Awaitable[None] | None:
        """Restore the worker to its state without the plugin.

        Parameters
        ----------
        worker
            The worker that was given to ``setup``.

        Returns
        -------
        To be awaited if the worker spills: its results are moved; else None.
        """
        self._removed = True
        if self._worker is not None:
            execution.remove_metric(worker, NAME, self.summary)
        self._worker = None
        spilling, self.spilling = self.spilling, None
        return None if spilling is None else spilling.detach()

    def transition(self, key: Any, start: Any, finish: Any, **kwargs: Any) -> None:
        """Count a result that is now in memory; called for every transition of every task.

        Parameters
        ----------
        key
            Key of the task.
        start, finish
            Its states before and after.
        """
        if self.spilling is not None:
            self.spilling.transition(key, start, finish)
        if finish != states.MEMORY or self._worker is None:
            return
        if start == states.FLIGHT:
            try:
                self._count_transfer(key)
            except Exception:
                self._count_error("count a transfer")
        elif start in _RUNNING:
            self.tasks += 1

    def _count_transfer(self, key: Any) -> None:
        if self._worker is None:
            return
        task = execution.worker_tasks(self._worker)[key]
        waiting = _layers(task.waiters, key) or _layers(task.dependents, key)
        layer = min(waiting) if waiting else layer_of(key)
        received = self.received
        received[layer] = received.get(layer, 0) + task.get_nbytes()
        self.received = fold_counts(received, self._settings.max_layers)

    def summary(self, worker: Worker) -> dict[str, Any]:
        """The counts for a heartbeat, of bounded size, without a pass over the tasks.

        Parameters
        ----------
        worker
            The worker that sends the heartbeat.

        Returns
        -------
        The fields of `Summary`; empty after an exception.
        """
        try:
            received = self.received
            most = heapq.nlargest(
                self._settings.heartbeat_layers, received.items(), key=lambda item: item[1]
            )
            summary = {
                "received": sum(received.values()),
                "tasks": self.tasks,
                "tiles": len(worker.data),
                "held": storage.held_bytes(worker),
                "errors": self._errors(),
                "layers": dict(most),
                "store": self._store(),
                "since": self._since,
            }
            if Feature.HINTS in self.unavailable:
                # a worker shuts down after a message without a handler
                summary["hints"] = False
            return summary
        except Exception:
            self._count_error("summarise for a heartbeat")
            return {}

    def _errors(self) -> int:
        return self.errors + (self.spilling.errors if self.spilling is not None else 0)

    def _store(self) -> dict[str, Any]:
        return self.spilling.store.report() if self.spilling is not None else {}

    def held(self) -> dict[str, tuple[int, int]]:
        """The results that the worker has now, by layer; a pass over all of its tasks.

        Returns
        -------
        For every layer the number of its results, spilled ones included, and their bytes.
        """
        held: dict[str, tuple[int, int]] = {}
        if self._worker is not None:
            for task in execution.worker_tasks(self._worker).values():
                if task.state == states.MEMORY:
                    layer = layer_of(task.key)
                    tiles, size = held.get(layer, (0, 0))
                    held[layer] = (tiles + 1, size + task.get_nbytes())
        return held

    def report(self, reset: bool = False) -> dict[str, Any]:
        """All counts, without the bounds of a heartbeat.

        Parameters
        ----------
        reset
            Count from zero afterwards, except errors.

        Returns
        -------
        ``received`` and ``held`` by layer, ``tasks``, ``errors``, ``store``.
        """
        counts = {
            "received": dict(self.received),
            "held": self.held(),
            "tasks": self.tasks,
            "errors": self._errors(),
            "store": self._store(),
        }
        if reset:
            self.received = {}
            self.tasks = 0
            self._since = time.time()
            if self.spilling is not None:
                self.spilling.store.reset()
        return counts


def _layers(tasks: Iterable[Any], read: Any) -> set[str]:
    """The layers of tasks that read a result."""
    return {_reading_layer(task, read) for task in tasks if task.state != states.MEMORY}


def _reading_layer(task: Any, read: Any) -> str:
    """The layer of a task that reads a result, or of the task of a plan in it that does."""
    inner = reader_in(task.run_spec, read)
    if inner is not None and MARK in (layer := layer_of(inner)):
        return layer
    return layer_of(task.key)


def unavailable_on(worker: Worker) -> dict[str, str]:
    """Features that a worker's plugin lacks, and why."""
    plugin: Any = plugins.plugin_of(worker, NAME)
    # It may be wrapped, so that workers without the package can unpickle it.
    features = getattr(getattr(plugin, "plugin", plugin), "unavailable", {})
    return {feature.value: reason for feature, reason in features.items()}
