"""The counts of workers that left the cluster, as of their last heartbeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from copy import copy
from typing import Any

from dasktile.runtime.settings import RuntimeSettings
from dasktile.runtime.worker.plugin import Summary, fold_counts

#: Bytes received for layers that a heartbeat does not name.
UNNAMED = "(layers of workers that left)"


class LeftWorkers:
    """Adds up the counts of workers that left.

    When a plugin learns that a worker left, the scheduler has its state no more.  The states are
    held here meanwhile; their heartbeats have the counts.

    Parameters
    ----------
    settings
        Constants; by default those of `RuntimeSettings`.
    """

    def __init__(self, settings: RuntimeSettings | None = None) -> None:
        self._settings = settings or RuntimeSettings()
        #: By address, the scheduler's ``WorkerState`` of a worker that is present.
        self._states: dict[str, Any] = {}
        #: By address of a worker that was present at the last reset: the time in its heartbeat
        #: since when it counted.  It counts from zero once that differs.
        self._counts_before: dict[str, float] = {}
        self._clear()

    def reset(self) -> None:
        """Count from zero, as the present workers are about to."""
        self._counts_before = {
            address: summary.since
            for address, state in self._states.items()
            if (summary := Summary.of(state.metrics)) is not None
        }
        self._clear()

    def _clear(self) -> None:
        self._workers = self._tasks = self._errors = 0
        self._received: dict[str, int] = {}
        self._store: dict[str, Counter[str]] = {}

    def restart(self) -> None:
        """Count from zero, without the present workers, which are about to be replaced."""
        self._states.clear()
        self.reset()

    def without_present(self) -> LeftWorkers:
        """The same counts, to which another scheduler plugin adds the present workers."""
        other = copy(self)
        other._states = {}
        return other

    def add(self, address: str, state: Any) -> None:
        """Remember a worker that is present, with its ``WorkerState``."""
        self._states[address] = state

    def remove(self, address: str) -> None:
        """Add the counts of a worker that left."""
        state = self._states.pop(address, None)
        before = self._counts_before.pop(address, None)
        summary = None if state is None else Summary.of(state.metrics)
        if summary is None:
            return
        self._workers += 1
        if summary.since == before:
            # no heartbeat since the last reset: all of these were counted before
            return
        self._tasks += summary.tasks
        self._errors += summary.errors
        received = dict(summary.layers)
        received[UNNAMED] = summary.received - sum(received.values())
        for layer, size in received.items():
            if size > 0:
                self._received[layer] = self._received.get(layer, 0) + size
        self._received = fold_counts(self._received, self._settings.max_layers)
        for name, value in summary.store.items():
            if name != "held":
                counts = value if isinstance(value, Mapping) else {"": value}
                self._store.setdefault(name, Counter()).update(counts)

    def report(self) -> dict[str, Any]:
        """All counts, with the fields of the report of a worker, except its results.

        Returns
        -------
        ``workers``, the number of those that left with counts; ``received`` by layer, ``tasks``,
        ``errors``, ``store``.
        """
        return {
            "workers": self._workers,
            "received": dict(self._received),
            "tasks": self._tasks,
            "errors": self._errors,
            "store": {
                name: counts[""] if "" in counts else dict(counts)
                for name, counts in self._store.items()
            },
        }
