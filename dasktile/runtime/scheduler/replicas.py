"""Copies of tiles are kept on the workers that will read them.

Dask's active memory manager drops copies of which there are more than tasks waiting, on
whichever worker has most in memory.  Where tasks have homes, a copy on the home of a reader
would only be sent there again.
"""

from __future__ import annotations

from distributed import Scheduler
from distributed.active_memory_manager import (
    ActiveMemoryManagerExtension,
    ReduceReplicas,
    Suggestion,
    SuggestionGenerator,
)
from distributed.scheduler import TaskState, WorkerState


class KeepForReaders(ReduceReplicas):
    """Drops superfluous copies, but not on workers where a placed task will read them."""

    def run(self) -> SuggestionGenerator:
        for suggestion in super().run():
            ts = suggestion.ts
            needed = self._homes(ts)
            if suggestion.op != "drop" or not needed:
                yield suggestion
                continue
            free = {ws for ws in ts.who_has or () if ws not in needed}
            if free:
                yield Suggestion("drop", ts, free)

    def _homes(self, ts: TaskState) -> set[WorkerState]:
        workers = self.manager.scheduler.workers
        return {
            workers[address]
            for waiter in ts.waiters or ()
            if waiter.loose_restrictions
            for address in waiter.worker_restrictions or ()
            if address in workers
        }


def keep_for_readers(scheduler: Scheduler) -> None:
    """Put the policy in the place of Dask's own, if there is one."""
    _swap(scheduler, ReduceReplicas, KeepForReaders)


def keep_as_before(scheduler: Scheduler) -> None:
    """Put Dask's own policy back."""
    _swap(scheduler, KeepForReaders, ReduceReplicas)


def _swap(scheduler: Scheduler, old: type[ReduceReplicas], new: type[ReduceReplicas]) -> None:
    manager = scheduler.extensions.get("amm")
    if not isinstance(manager, ActiveMemoryManagerExtension):
        return
    for policy in list(manager.policies):
        if type(policy) is old:
            manager.policies.discard(policy)
            manager.add_policy(new())
