"""Counts what the workers of any cluster do, without changing what they do.

The plugin and the functions that run on workers are nested functions: these are pickled by value,
so that workers need not have dasktile installed.
"""

from __future__ import annotations

from typing import Any

from distributed import Client, Worker, WorkerPlugin

from dasktile._compat import distributed as internals

#: What one worker counted: see :func:`stop`.
Report = dict[str, Any]


async def start(client: Client, name: str) -> None:
    """Begin to count on all workers, those that join later included.

    Parameters
    ----------
    client
        A client of the cluster.
    name
        Name of the plugin, another one for each count.
    """
    await client.register_plugin(_meter(), name=name)


async def stop(client: Client, name: str) -> dict[str, Report]:
    """End the count of a name.

    Returns
    -------
    The reports of all workers that answer, by address.  ``threads``; ``tasks`` and ``received``
    (bytes received from other workers) and ``computing`` (seconds in tasks) by the prefix of keys;
    ``waiting`` and ``idle``: seconds of threads without a task while data was on its way to the
    worker, and otherwise; ``results`` and ``process``: most bytes of results held and of the
    process's memory; ``spilled`` and ``read_back``: bytes written to and read from disk.
    """
    answers = await client.run(_read(name), on_error="return")
    await client.unregister_worker_plugin(name)
    return {
        address: report for address, report in sorted(answers.items()) if isinstance(report, dict)
    }


def _read(name: str) -> Any:
    def read(dask_worker: Worker) -> Report | None:
        meter: Any = dask_worker.plugins.get(name)
        return None if meter is None else meter.report()

    return read


def _meter() -> WorkerPlugin:
    running = (internals.EXECUTING, internals.LONG_RUNNING)
    in_flight, in_memory = internals.FLIGHT, internals.MEMORY

    class Meter(WorkerPlugin):
        """Counts transitions of tasks; all methods run on the worker's event loop."""

        def setup(self, worker: Worker) -> None:
            from collections import Counter
            from time import monotonic

            from psutil import Process

            self.worker = worker
            self.clock = monotonic
            self.process = Process()
            self.tasks: Any = Counter()
            self.received: Any = Counter()
            self.computing: Any = Counter()
            self.waiting = self.idle = 0.0
            tasks = worker.state.tasks
            self.started = {key: monotonic() for key, ts in tasks.items() if ts.state in running}
            self.coming = {key for key, ts in tasks.items() if ts.state == in_flight}
            self.held = {key: ts.nbytes or 0 for key, ts in tasks.items() if ts.state == in_memory}
            self.results = self.most_results = sum(self.held.values())
            self.disk = self.disk_bytes()
            self.last = self.sampled = monotonic()
            self.most_memory = self.process.memory_info().rss

        def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
            from dask.utils import key_split

            now = self.advance()
            if start in running and finish not in running:
                self.computing[key_split(key)] += now - self.started.pop(key, now)
            elif finish in running and start not in running:
                self.started[key] = now
            if finish == in_flight:
                self.coming.add(key)
            elif start == in_flight:
                self.coming.discard(key)
            if finish == in_memory:
                task = self.worker.state.tasks.get(key)
                size = (task.nbytes if task is not None else 0) or 0
                self.results += size - self.held.get(key, 0)
                self.held[key] = size
                self.most_results = max(self.most_results, self.results)
                if start in running:
                    self.tasks[key_split(key)] += 1
                elif start == in_flight:
                    self.received[key_split(key)] += size
            elif start == in_memory:
                self.results -= self.held.pop(key, 0)

        def advance(self) -> float:
            """Add the time since the last transition to what the threads did."""
            now: float = self.clock()
            passed, self.last = now - self.last, now
            free = max(0, self.worker.state.nthreads - len(self.started))
            if self.coming:
                self.waiting += free * passed
            else:
                self.idle += free * passed
            if now > self.sampled + 0.05:
                self.sampled = now
                self.most_memory = max(self.most_memory, self.process.memory_info().rss)
            return now

        def disk_bytes(self) -> tuple[int, int]:
            counts = getattr(self.worker.data, "cumulative_metrics", {})
            written, read = (
                int(counts.get((label, "bytes"), 0)) for label in ("disk-write", "disk-read")
            )
            return written, read

        def report(self) -> Report:
            from dask.utils import key_split

            now = self.advance()
            computing = self.computing.copy()
            for key, since in self.started.items():
                computing[key_split(key)] += now - since
            written, read = self.disk_bytes()
            return {
                "threads": self.worker.state.nthreads,
                "tasks": dict(self.tasks),
                "received": dict(self.received),
                "computing": dict(computing),
                "waiting": self.waiting,
                "idle": self.idle,
                "results": self.most_results,
                "process": self.most_memory,
                "spilled": written - self.disk[0],
                "read_back": read - self.disk[1],
            }

    return Meter()
