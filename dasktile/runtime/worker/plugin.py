"""Counts on every worker: bytes received from peers, tasks run, tiles held."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from distributed import Worker, WorkerPlugin

from dasktile._compat import distributed as internals
from dasktile._compat.distributed import Feature
from dasktile.runtime.failures import Guarded
from dasktile.runtime.worker.data import Spill, store_of
from dasktile.runtime.worker.spilling import Spilling

#: What the plugins of workers and scheduler, and the workers' metric, are called.
NAME = "dasktile"

#: Stands for layers that are no longer told apart.
OTHER = "(older layers)"

#: Layers that a worker counts one by one; beyond, the older half becomes one.
_COUNTED = 1000

#: Layers named in a heartbeat, those with most bytes.
_TOLD = 32

_RAN = (internals.EXECUTING, internals.LONG_RUNNING)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a worker says of itself in every heartbeat.

    Parameters
    ----------
    received
        Bytes received from other workers.
    tasks
        Tasks run.
    tiles, held
        Results that the worker holds now, and their bytes, whatever their layer.
    errors
        Errors inside the plugin.
    layers
        Bytes received for the layers that received most.
    store
        What :meth:`TileStore.report` says; empty for a worker without such a store.
    """

    received: int = 0
    tasks: int = 0
    tiles: int = 0
    held: int = 0
    errors: int = 0
    layers: Mapping[str, int] = field(default_factory=dict)
    store: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, metrics: Mapping[str, Any]) -> Summary | None:
        """Read what came with a heartbeat.

        Parameters
        ----------
        metrics
            ``WorkerState.metrics`` on the scheduler.

        Returns
        -------
        None for a worker without the plugin.
        """
        told = metrics.get(NAME)
        if not isinstance(told, dict):
            return None
        # A worker with another release of dasktile may say more, or less.
        return cls(**{key: told[key] for key in cls.__slots__ if key in told})


def layer_of(key: object) -> str:
    """The name of the layer that a key belongs to.

    Parameters
    ----------
    key
        Of a task: ``(layer, *index)`` or a string.
    """
    if isinstance(key, tuple) and key:
        return str(key[0])
    return internals.layer_name(key)


def folded(counts: dict[str, int], most: int) -> dict[str, int]:
    """Counts by layer, of which the older half becomes one where they are too many.

    Parameters
    ----------
    counts
        In the order in which layers came; what is folded is taken out.
    most
        Layers that are told apart.
    """
    if len(counts) <= most:
        return counts
    # half of them at once, so that a new layer costs nothing on average
    total = sum(counts.pop(layer) for layer in list(counts)[: most // 2])
    # first again, so that it is among the older ones the next time
    return {OTHER: total, **counts}


class TileWorkerPlugin(Guarded, WorkerPlugin):
    """Counts what a worker receives from its peers, and for which layer, and has it spill.

    Counted are results that arrive so that a task can run here, or as a copy.  The layer
    is that of the task that waits for them, the first by name where several do, and their
    own where none does.  Bytes are those that distributed has for a result in memory; what
    is sent may be compressed.

    Not seen are the bytes of P2P shuffles, which travel past the state of the tasks; those of
    ``Client.replicate``, ``Client.rebalance`` and ``Client.scatter``, which come like data from
    a client; and the rare results whose transfer was cancelled or taken up again on its way.

    Parameters
    ----------
    spill
        How the worker is to keep its results, None to leave that as it is.

    Attributes
    ----------
    received
        Bytes received from other workers, by layer.
    tasks
        Tasks run.
    spilling
        What keeps the results, None for a worker that does it in its own way.
    unavailable
        Features for which this distributed lacks something, and what.
    """

    name = NAME

    def __init__(self, spill: Spill | None = None) -> None:
        super().__init__()
        self.received: dict[str, int] = {}
        self.tasks = 0
        self.spilling: Spilling | None = None
        self.unavailable: dict[Feature, str] = {}
        self._spill = spill
        self._worker: Worker | None = None

    def setup(self, worker: Worker) -> None:
        """Start to count.

        Parameters
        ----------
        worker
            The worker; its heartbeats carry the counts from now on.
        """
        self.unavailable = internals.check_worker(worker, self._spill is not None)
        if Feature.METRICS not in self.unavailable:
            self._worker = worker
            internals.add_metric(worker, NAME, self.summary)
        if self._spill is not None and Feature.SPILLING not in self.unavailable:
            try:
                store = store_of(worker, self._spill)
                if store is not None:
                    spilling = Spilling(
                        worker,
                        store,
                        self._spill.memory_limit,
                        hints=Feature.HINTS not in self.unavailable,
                        prefetch=Feature.PREFETCH not in self.unavailable,
                    )
                    try:
                        spilling.attach()
                    except BaseException:
                        if worker.data is not store:
                            store.close()
                        raise
                    self.spilling = spilling
            except Exception:
                self._failed("take over the results of a worker")

    def teardown(self, worker: Worker) -> None:
        """Leave the worker as it was.

        Parameters
        ----------
        worker
            The worker that was given to ``setup``.
        """
        if self._worker is not None:
            internals.remove_metric(worker, NAME, self.summary)
        if self.spilling is not None:
            self.spilling.detach()
            self.spilling = None
        self._worker = None

    def transition(self, key: Any, start: Any, finish: Any, **kwargs: Any) -> None:
        """Count a task that came to memory; called for every step of every task.

        Parameters
        ----------
        key
            Of the task.
        start, finish
            Its states before and after.
        """
        if self.spilling is not None:
            self.spilling.transition(key, start, finish)
        if finish != internals.MEMORY or self._worker is None:
            return
        if start == internals.FLIGHT:
            try:
                self._arrived(key)
            except Exception:
                self._failed("count a transfer")
        elif start in _RAN:
            self.tasks += 1

    def _arrived(self, key: Any) -> None:
        if self._worker is None:
            return
        task = internals.worker_tasks(self._worker)[key]
        waiting = _layers(task.waiters) or _layers(task.dependents)
        layer = min(waiting) if waiting else layer_of(key)
        received = self.received
        received[layer] = received.get(layer, 0) + task.get_nbytes()
        self.received = folded(received, _COUNTED)

    def summary(self, worker: Worker) -> dict[str, Any]:
        """What the heartbeat carries: numbers and a bounded dict.  Costs no look at the tasks.

        Parameters
        ----------
        worker
            The worker that asks.

        Returns
        -------
        The fields of `Summary`; empty after an error.
        """
        try:
            received = self.received
            most = heapq.nlargest(_TOLD, received.items(), key=lambda item: item[1])
            summary = {
                "received": sum(received.values()),
                "tasks": self.tasks,
                "tiles": len(worker.data),
                "held": internals.held_bytes(worker),
                "errors": self._errors(),
                "layers": dict(most),
                "store": self._store(),
            }
            if Feature.HINTS in self.unavailable:
                # the message would end the worker
                summary["hints"] = False
            return summary
        except Exception:
            self._failed("summarise for a heartbeat")
            return {}

    def _errors(self) -> int:
        return self.errors + (self.spilling.errors if self.spilling is not None else 0)

    def _store(self) -> dict[str, Any]:
        return self.spilling.store.report() if self.spilling is not None else {}

    def held(self) -> dict[str, tuple[int, int]]:
        """What the worker holds now, by layer; looks at every task that the worker knows.

        Returns
        -------
        For every layer its results in memory, spilled ones too, and their bytes.
        """
        found: dict[str, tuple[int, int]] = {}
        if self._worker is not None:
            for task in internals.worker_tasks(self._worker).values():
                if task.state == internals.MEMORY:
                    layer = layer_of(task.key)
                    tiles, size = found.get(layer, (0, 0))
                    found[layer] = (tiles + 1, size + task.get_nbytes())
        return found

    def report(self, reset: bool = False) -> dict[str, Any]:
        """Everything, exactly.

        Parameters
        ----------
        reset
            Count from zero afterwards.  What is held, and errors, are not forgotten.

        Returns
        -------
        ``received`` and ``held`` by layer, ``tasks``, ``errors``, ``store``.
        """
        found = {
            "received": dict(self.received),
            "held": self.held(),
            "tasks": self.tasks,
            "errors": self._errors(),
            "store": self._store(),
        }
        if reset:
            self.received = {}
            self.tasks = 0
            if self.spilling is not None:
                self.spilling.store.reset()
        return found


def _layers(tasks: Iterable[Any]) -> set[str]:
    return {layer_of(task.key) for task in tasks if task.state != internals.MEMORY}


def unavailable_on(worker: Worker) -> dict[str, str]:
    """Features that a worker's plugin lacks, and why."""
    plugin: Any = internals.plugin_of(worker, NAME)
    # It may be wrapped, so that workers without the package can open it.
    features = getattr(getattr(plugin, "plugin", plugin), "unavailable", {})
    return {feature.value: reason for feature, reason in features.items()}
