"""Tasks of plans are sent to workers nearly in the order of the plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dask
import pytest
from dask import delayed
from distributed import Event, Scheduler, SchedulerPlugin, secede, wait
from distributed.utils_test import gen_cluster

import dasktile
from dasktile.runtime.install import NAME
from dasktile.runtime.scheduler.windows import BEHIND
from tests.gated import LIMIT, nothing_stuck, plugin_of, until

one_worker, two_workers = (
    gen_cluster(
        client=True,
        nthreads=[("127.0.0.1", 1)] * count,
        timeout=LIMIT,
        worker_kwargs={"memory_limit": 0},
    )
    for count in (1, 2)
)


class Ahead(SchedulerPlugin):
    """Records how many unfinished tasks of the plan preceded a task that was sent, at the most."""

    name = "ahead"

    def __init__(self, scheduler: Scheduler, order: list[Any]) -> None:
        self.scheduler = scheduler
        self.place = {key: at for at, key in enumerate(order)}
        self.ended: set[int] = set()
        self.most = self.sent = 0
        scheduler.add_plugin(self)

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if key not in self.place:
            return
        if finish == "processing":
            self.sent += 1
            before = set(range(self.place[key])) - self.ended
            self.most = max(self.most, len(before))
        elif finish == "memory":
            self.ended.add(self.place[key])


def chains(count: int = 12, length: int = 6) -> list[Any]:
    """Chains of tasks; the tasks at their starts are ready at once."""
    ends = []
    for number in range(count):
        task = delayed(int, pure=False)(number)
        for _ in range(length - 1):
            task = delayed(abs)(task)
        ends.append(task)
    return ends


def planned(*tasks: Any) -> tuple[list[Any], list[Any]]:
    """The tasks in a plan's order, and the keys of all in that order."""
    plan = dasktile.plan(*tasks, memory_limit="1 GB", workers=1)
    applied = plan.apply()
    return list(applied if isinstance(applied, tuple) else (applied,)), list(plan.order)


def held(s: Scheduler) -> list[Any]:
    return [ts.key for ts in s.tasks.values() if BEHIND in (ts.worker_restrictions or ())]


def wait_for(name: str, *_: Any) -> int:
    assert Event(name).wait(LIMIT)
    return 1


def leave_thread_and_wait_for(name: str, number: int) -> int:
    secede()
    return wait_for(name)


def set_event(name: str) -> int:
    Event(name).set()
    return 1


@pytest.mark.parametrize("workers", [1, 2])
def test_few_unfinished_tasks_precede_a_task_that_is_sent(workers: int) -> None:
    async def main(c: Any, s: Any, *_: Any) -> None:
        await dasktile.enable(c)
        tasks, order = planned(*chains())
        ahead = Ahead(s, order)
        futures = c.compute(tasks)
        assert await c.gather(futures) == list(range(12))
        assert ahead.sent == len(order) == 72
        assert ahead.most < 4 * workers
        assert not len(plugin_of(s).windows) and not held(s)
        await nothing_stuck(s)

    (one_worker if workers == 1 else two_workers)(main)()


@one_worker
async def test_a_cancelled_task_does_not_stop_a_plan(c, s, a):
    await dasktile.enable(c)
    first = [delayed(wait_for)("go") for _ in range(4)]
    tasks, _ = planned(*first, *chains())
    futures = c.compute(tasks)
    await until(lambda: len(held(s)) > 60)
    await c.cancel(futures[:4])
    await Event("go").set()
    assert await c.gather(futures[4:]) == list(range(12))
    await nothing_stuck(s)


@one_worker
async def test_tasks_that_fail_do_not_stop_a_plan(c, s, a):
    await dasktile.enable(c)
    bad = [delayed(int, pure=False)("no number") for _ in range(8)]
    tasks, _ = planned(*[delayed(abs)(task) for task in bad], *chains())
    futures = c.compute(tasks)
    await wait(futures, timeout=LIMIT)
    assert [future.status for future in futures] == ["error"] * 8 + ["finished"] * 12
    assert not len(plugin_of(s).windows) and not held(s)


def fails_at_first(name: str, number: int) -> int:
    if not Event(name).is_set():
        raise ValueError(name)
    return number


@one_worker
async def test_tasks_that_failed_run_again(c, s, a):
    """Those that read a result that failed were behind the window, and end as it fails."""
    await dasktile.enable(c)
    bad = delayed(fails_at_first, pure=False)("go", -7)
    tasks, _ = planned(bad, *[delayed(max, pure=False)([bad, number]) for number in range(20)])
    futures = c.compute(tasks)
    await wait(futures, timeout=LIMIT)
    assert {future.status for future in futures} == {"error"} and not held(s)
    await Event("go").set()
    await c.retry(futures)
    assert await c.gather(futures) == [-7, *range(20)]
    await nothing_stuck(s)


@one_worker
async def test_tasks_of_two_plans(c, s, a):
    """The second plan shares tasks with the first, which has not ended."""
    await dasktile.enable(c)
    starts = [delayed(wait_for)("go", number) for number in range(12)]
    first, _ = planned(*[delayed(abs)(task) for task in starts])
    second, _ = planned(*starts, *chains())
    futures = c.compute(first)
    await until(lambda: len(held(s)) > 12)
    others = c.compute(second)
    await until(lambda: len(held(s)) > 60)
    await Event("go").set()
    assert await c.gather(futures) == [1] * 12
    assert await c.gather(others) == [1] * 12 + list(range(12))
    assert not len(plugin_of(s).windows) and not held(s)
    await nothing_stuck(s)


@one_worker
async def test_a_task_may_wait_for_one_behind_the_window(c, s, a):
    await dasktile.enable(c)
    windows = plugin_of(s).windows
    windows.settings = replace(windows.settings, stall_timeout=0)
    first = [delayed(leave_thread_and_wait_for)("last", number) for number in range(8)]
    last = delayed(set_event)("last")
    plan = dasktile.plan(*first, last, memory_limit="1 GB", workers=1)
    plan = replace(plan, order=tuple(task.key for task in [*first, last]))
    futures = c.compute(list(plan.apply()))
    assert await c.gather(futures) == [1] * 9


@one_worker
async def test_tasks_with_restrictions_of_the_user_are_not_held(c, s, a):
    await dasktile.enable(c)
    with dask.annotate(workers=["nowhere"], allow_other_workers=True):
        ends = [delayed(wait_for)("go", number) for number in range(20)]
    plan = dasktile.plan(*ends, memory_limit="1 GB", workers=1)
    futures = c.compute(list(plan.apply()))
    await until(lambda: len(s.tasks) == 20)
    assert not held(s) and not len(plugin_of(s).windows)
    await Event("go").set()
    assert await c.gather(futures) == [1] * 20


@one_worker
async def test_without_the_plugin_no_task_is_held(c, s, a):
    await dasktile.enable(c)
    tasks, _ = planned(*[delayed(wait_for)("go", number) for number in range(20)], *chains())
    futures = c.compute(tasks)
    await until(lambda: len(held(s)) > 60)
    await c.unregister_scheduler_plugin(NAME)
    await until(lambda: not held(s))
    await Event("go").set()
    assert (await c.gather(futures))[20:] == list(range(12))


@one_worker
async def test_a_failure_of_the_plugin_frees_all_tasks(c, s, a, monkeypatch):
    await dasktile.enable(c)
    tasks, _ = planned(*[delayed(wait_for)("go", number) for number in range(20)], *chains())
    futures = c.compute(tasks)
    await until(lambda: len(held(s)) > 60)
    monkeypatch.setattr(plugin_of(s).windows, "_advance", None)
    await Event("go").set()
    assert (await c.gather(futures))[20:] == list(range(12))
    assert plugin_of(s).errors >= 1
    await nothing_stuck(s, errors=True)
