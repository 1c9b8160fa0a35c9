"""The orders that a search proposes, scored by what a worker does with them.

The loops of the search plan swaps with full knowledge of the future.  A worker decides them event
by event, so the best few orders are run by a simulated worker, and its bytes are those of the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dasktile import config
from dasktile.capture.tasks import Tasks
from dasktile.runtime.settings import RuntimeSettings
from dasktile.schedule.instructions import ResidencySettings
from dasktile.schedule.lists import Ints
from dasktile.schedule.simulate import HostLink
from dasktile.schedule.simulated_worker import (
    WorkerRun,
    WorkerSettings,
    WorkerTasks,
    simulate_worker,
)
from dasktile.schedule.tracking import ROOMY

#: Orders that are scored beside Dask's at the most, and tasks of all of them together (chosen:
#: a simulated worker runs some 20,000 tasks a second.  With six instead of three orders, plans of
#: ``python -m benchmarks.planned`` move as many bytes, but for 210 instead of 214 MiB of one).
_MOST_ORDERS, _MOST_TASKS = 3, 20_000

#: Seconds of messages that take longer: distributed sends in batches of 2 ms.
_LATE = 0.002

#: Share by which a run may take longer than the fastest to take nearly as long (chosen).
_NEARLY = 0.15


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """An order, and what a simulated worker did with it.

    Attributes
    ----------
    rule
        The rule or search that gave the order.
    order
        Tasks in the order in which they should run.
    run
        The simulated worker.
    late
        The same where messages take longer.  They decide which of two quick tasks is first, one
        that waits for a message or one behind it in the order.
    """

    rule: str
    order: Ints
    run: WorkerRun
    late: WorkerRun

    @property
    def most(self) -> WorkerRun:
        """The run that moves most: the bytes to expect."""
        return self.late if self.late.moved > self.run.moved else self.run


def worker_tasks(sized: Tasks, seconds: Sequence[float]) -> WorkerTasks:
    """Tasks for a simulated worker, with their durations."""
    return WorkerTasks(
        [sorted(set(reads)) for reads in sized.reads],
        sized.sizes,
        sized.views,
        sized.memory,
        frozenset(sized.wanted),
        seconds,
        sized.names,
    )


def worker_settings(threads: int, device: bool) -> WorkerSettings:
    """Constants of workers of this version and configuration.

    Parameters
    ----------
    threads
        Threads of all workers.
    device
        Whether the memory is that of a device, whose results are tracked from the first on.
    """
    runtime = RuntimeSettings()
    return WorkerSettings(
        message=config.setting("plan.task-seconds"),
        window=runtime.plan_window * threads,
        prefetch_tasks=runtime.prefetch_tasks,
        max_readers=runtime.max_readers,
        interval=runtime.monitor_interval,
        small_bytes=runtime.small_bytes,
        untracked=0.0 if device else ROOMY,
        residency=ResidencySettings((None, None), **config.spill_settings()),
    )


def on_demand(
    tasks: WorkerTasks, order: Ints, limit: int, link: HostLink, settings: WorkerSettings
) -> WorkerRun:
    """A worker that knows no next uses: it reads on demand and evicts the least recently used."""
    residency = replace(settings.residency, prefetch=0)
    settings = replace(settings, hints=False, residency=residency, window=len(tasks))
    return simulate_worker(tasks, order.tolist(), limit, link, settings)


def best_order(
    tasks: WorkerTasks,
    finalists: Sequence[tuple[str, Ints]],
    reference: str,
    limit: int,
    link: HostLink,
    settings: WorkerSettings,
) -> Scored:
    """The best of some orders, which moves no more bytes than the reference.

    Of those with which a worker takes nearly the least time it is the one that moves least: the
    durations of tasks are estimates, and so are the bandwidths.  It is the reference where that
    moves nothing.

    Parameters
    ----------
    tasks
        The tasks.
    finalists
        Rules and their orders, those of the best plans first.
    reference
        The rule of the order that is run without a plan, one of the finalists.
    limit, link, settings
        As for :func:`~dasktile.schedule.simulated_worker.simulate_worker`.
    """
    late = replace(settings, message=max(_LATE, settings.message))

    def run(order: Ints, settings: WorkerSettings) -> WorkerRun:
        return simulate_worker(tasks, order.tolist(), limit, link, settings)

    own = dict(finalists)[reference]
    given = Scored(reference, own, run(own, settings), run(own, late))
    most = given.most.moved
    if not most:
        return given
    count = max(1, min(_MOST_ORDERS, _MOST_TASKS // max(1, len(tasks))))
    seen, tried, scored = {own.tobytes()}, 0, [given]
    for rule, order in finalists:
        if tried == count or order.tobytes() in seen:
            continue
        seen.add(order.tobytes())
        tried += 1
        prompt = run(order, settings)
        if prompt.moved <= most:
            each = Scored(rule, order, prompt, run(order, late))
            if each.most.moved <= most:
                scored.append(each)
    slowest = (1 + _NEARLY) * min(each.run.makespan for each in scored)
    return min(
        (each for each in scored if each.run.makespan <= slowest), key=lambda each: each.most.moved
    )


def ran(run: WorkerRun) -> Ints:
    """The order in which the tasks of a simulated worker ran."""
    return np.array([span.task for span in run.tasks], np.int64)
