"""Copies of tiles are kept on the workers that will read them.

Dask's active memory manager drops copies of which there are more than tasks waiting, on
whichever worker has most in memory.  Where tasks have homes, a copy on the home of a reader
would only be sent there again.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from dasktile._compat import distributed as internals

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import TaskState, WorkerState


@cache
def keep_for_readers_policy(reduce_replicas: Any) -> Any:
    """The type of policy that drops copies, but not where a placed task will read them.

    Parameters
    ----------
    reduce_replicas
        Dask's own type of policy.
    """

    class KeepForReaders(reduce_replicas):  # type: ignore[misc]
        def run(self) -> Any:
            for suggestion in super().run():
                ts = suggestion.ts
                needed = self._homes(ts)
                if suggestion.op != "drop" or not needed:
                    yield suggestion
                    continue
                free = {ws for ws in ts.who_has or () if ws not in needed}
                if free:
                    yield internals.drop(ts, free)

        def _homes(self, ts: TaskState) -> set[WorkerState]:
            workers = self.manager.scheduler.workers
            return {
                workers[address]
                for waiter in ts.waiters or ()
                if waiter.loose_restrictions
                for address in waiter.worker_restrictions or ()
                if address in workers
            }

    return KeepForReaders


def keep_for_readers(scheduler: Scheduler) -> None:
    """Put the policy in the place of Dask's own, if there is one."""
    own = internals.reduce_replicas()
    internals.swap_policy(scheduler, own, keep_for_readers_policy(own))


def keep_as_before(scheduler: Scheduler) -> None:
    """Put Dask's own policy back."""
    own = internals.reduce_replicas()
    internals.swap_policy(scheduler, keep_for_readers_policy(own), own)
