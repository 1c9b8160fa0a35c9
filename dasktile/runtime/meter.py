"""Counts what the workers of any cluster do, without changing what they do.

The plugin and the functions that run on workers are nested functions: these are pickled by value,
so that workers need not have dasktile installed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from distributed import Client, Worker, WorkerPlugin

from dasktile._compat.distributed import states

#: What one worker counted: see :func:`stop`.
Report = dict[str, Any]

#: States of tasks that were cancelled while a thread ran them or their data came, which goes on.
_CANCELLED = ("cancelled", "resumed")


async def start(client: Client, name: str) -> set[str]:
    """Begin to count on all workers, those that join later included.

    Parameters
    ----------
    client
        A client of the cluster.
    name
        Name of the plugin, another one for each count.

    Returns
    -------
    Addresses of the workers that there are.
    """
    try:
        await client.register_plugin(_meter(), name=name)
        # of the scheduler: on the event loop, `scheduler_info` has no workers
        scheduler: Any = client.scheduler
        identity = await scheduler.identity(n_workers=-1)
    except BaseException:
        await cancel(client, name)
        raise
    return set(identity["workers"])


async def cancel(client: Client, name: str) -> None:
    """End the count of a name without a report, whether or not it began."""
    with suppress(Exception):
        await client.unregister_worker_plugin(name)


async def stop(client: Client, name: str) -> dict[str, Report]:
    """End the count of a name.

    Returns
    -------
    The reports of all workers that answer, by address.  ``threads``; ``tasks`` and ``received``
    (bytes received from other workers), ``made`` (bytes of the results of its own tasks) and
    ``computing`` (seconds in tasks) by the prefix of keys;
    ``waiting`` and ``idle``: seconds of threads without a task while data was on its way to the
    worker, and otherwise; a task that secedes leaves its thread, and its further seconds are not
    counted; ``results`` and ``process``: most bytes of results held and of the
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
    executing, seceded = states.EXECUTING, states.LONG_RUNNING
    in_flight, in_memory = states.FLIGHT, states.MEMORY
    cancelled = _CANCELLED

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
            self.made: Any = Counter()
            self.computing: Any = Counter()
            self.waiting = self.idle = 0.0
            tasks = worker.state.tasks
            # of tasks that occupy a thread; of seceded ones, which do not; and of data on its way;
            # with those that were cancelled meanwhile, as in the sets of the worker
            self.started = {ts.key: monotonic() for ts in worker.state.executing}
            self.seceded = {ts.key for ts in worker.state.long_running}
            self.coming = {ts.key for ts in worker.state.in_flight_tasks}
            self.held = {key: ts.nbytes or 0 for key, ts in tasks.items() if ts.state == in_memory}
            self.results = self.most_results = sum(self.held.values())
            self.disk = self.disk_bytes()
            self.last = self.sampled = monotonic()
            self.most_memory = self.process.memory_info().rss

        def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
            from dask.utils import key_split

            now = self.advance()
            task = self.worker.state.tasks.get(key)
            # a task that is released while it runs is "cancelled" until it has run
            state = finish if task is None else task.state
            ran, came = key in self.started or key in self.seceded, key in self.coming
            if state == executing:
                self.started.setdefault(key, now)
            elif key in self.started and (finish == seceded or state not in cancelled):
                self.computing[key_split(key)] += now - self.started.pop(key)
            # a cancelled task may secede, and stays cancelled
            if seceded in (state, finish):
                self.seceded.add(key)
            elif state not in cancelled:
                self.seceded.discard(key)
            if state == in_flight:
                self.coming.add(key)
            elif state not in cancelled:
                self.coming.discard(key)
            if state == in_memory:
                size = (task.nbytes if task is not None else 0) or 0
                self.results += size - self.held.get(key, 0)
                self.held[key] = size
                self.most_results = max(self.most_results, self.results)
                if ran:
                    self.tasks[key_split(key)] += 1
                    self.made[key_split(key)] += size
                elif came:
                    self.received[key_split(key)] += size
            elif key in self.held:
                self.results -= self.held.pop(key)

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
                "made": dict(self.made),
                "computing": dict(computing),
                "waiting": self.waiting,
                "idle": self.idle,
                "results": self.most_results,
                "process": self.most_memory,
                "spilled": written - self.disk[0],
                "read_back": read - self.disk[1],
            }

    return Meter()
