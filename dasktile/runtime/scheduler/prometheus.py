"""Prometheus metrics of dasktile, on the scheduler's ``/metrics`` page.

That page shows all collectors in the registry of the process; dasktile adds one.  Its values
are from the last heartbeat of each worker.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from typing import Any

from distributed import Scheduler

from dasktile.runtime.metrics import PlanCounts
from dasktile.runtime.worker.plugin import Summary

logger = logging.getLogger(__name__)


class _Collector:
    """The collector of all schedulers in this process, which share one registry."""

    def __init__(self, client_library: Any) -> None:
        self.library = client_library
        self.plugins: dict[Scheduler, PlanCounts] = {}

    def collect(self) -> Iterator[Any]:
        # Computed before the first is yielded: an exception must not break the whole page.
        try:
            families = self._families()
        except Exception:
            for plugin in self.plugins.values():
                plugin.errors += 1
                if plugin.errors == 1:
                    logger.exception("dasktile could not collect metrics for Prometheus")
            return
        yield from families

    def _families(self) -> list[Any]:
        plugins = list(self.plugins.values())
        received = self._counter(
            "bytes_received", "Bytes that a worker received from other workers", ["worker"]
        )
        spilled = self._counter(
            "bytes_spilled", "Bytes that a worker copied to a tier below", ["worker", "tier"]
        )
        read = self._counter(
            "bytes_read_back", "Bytes that a worker copied from a tier below", ["worker", "tier"]
        )
        for scheduler in list(self.plugins):
            for address, worker in list(scheduler.workers.items()):
                summary = Summary.of(worker.metrics)
                if summary is not None:
                    received.add_metric([address], summary.received)
                    for family, name in ((spilled, "spilled"), (read, "read_back")):
                        for tier, size in summary.store.get(name, {}).items():
                            family.add_metric([address, tier], size)
        totals = [
            (
                "bytes_predicted",
                "Bytes that workers receive from each other by prediction of plans",
                sum(sum(list(plugin.predicted.values())) for plugin in plugins),
            ),
            (
                "tasks_placed",
                "Tasks that have got a home worker",
                sum(plugin.placed for plugin in plugins),
            ),
            (
                "tasks_stolen",
                "Tasks that ran on another worker, because their home worker was late",
                sum(plugin.stolen for plugin in plugins),
            ),
            (
                "plugin_errors",
                "Exceptions in the plugin of the scheduler",
                sum(plugin.errors for plugin in plugins),
            ),
        ]
        families = [received, spilled, read]
        for name, what, total in totals:
            family = self._counter(name, what, [])
            family.add_metric([], total)
            families.append(family)
        return families

    def _counter(self, name: str, what: str, labels: list[str]) -> Any:
        # The library adds "_total" to the names of counters.
        return self.library.core.CounterMetricFamily(f"dasktile_{name}", what, labels=labels)


_collector: _Collector | None = None


def add_collector(scheduler: Scheduler, plugin: PlanCounts) -> bool:
    """Add dasktile's metrics to those that Prometheus reads of a scheduler.  Never raises.

    Parameters
    ----------
    scheduler
        The running scheduler.
    plugin
        Its plugin; ``errors`` is incremented for every exception.

    Returns
    -------
    Whether the metrics were added: False without ``prometheus_client``.
    """
    global _collector
    try:
        try:
            # Not at the top of the module, which clients without the library import too.
            library = importlib.import_module("prometheus_client")
            importlib.import_module("prometheus_client.core")
        except ImportError:
            return False
        if _collector is None:
            new = _Collector(library)
            library.REGISTRY.register(new)
            _collector = new
        _collector.plugins[scheduler] = plugin
    except Exception:
        plugin.errors += 1
        logger.exception("dasktile could not add its metrics for Prometheus")
        return False
    return True


def remove_collector(scheduler: Scheduler) -> None:
    """Remove the metrics; does nothing if there are none.  Never raises.

    Parameters
    ----------
    scheduler
        The scheduler that was given to `add_collector`.
    """
    global _collector
    try:
        if _collector is None:
            return
        _collector.plugins.pop(scheduler, None)
        if not _collector.plugins:
            collector, _collector = _collector, None
            collector.library.REGISTRY.unregister(collector)
    except Exception:
        logger.exception("dasktile could not remove its metrics for Prometheus")
