"""The policy that keeps replicas of tiles on the workers that will read them.

Dask's active memory manager drops replicas if there are more than waiting tasks, on the
worker with the most bytes in memory.  Where tasks have home workers, a replica dropped on the
home worker of a reader would have to be sent there again.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from dasktile._compat.distributed import scheduling

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import TaskState, WorkerState


@cache
def keep_for_readers_policy(reduce_replicas: Any) -> Any:
    """The policy class that drops replicas except where a placed task will read them.

    Parameters
    ----------
    reduce_replicas
        Dask's own policy class.
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
                    yield scheduling.drop(ts, free)

        def _homes(self, ts: TaskState) -> set[WorkerState]:
            workers, waiters = self.manager.scheduler.workers, ts.waiters or ()
            # tasks that were stolen run elsewhere than at home
            sent = {
                waiter.processing_on
                for waiter in waiters
                if waiter.loose_restrictions and waiter.processing_on is not None
            }
            return sent | {
                workers[address]
                for waiter in waiters
                if waiter.loose_restrictions and waiter.processing_on is None
                for address in waiter.worker_restrictions or ()
                if address in workers
            }

    return KeepForReaders


def keep_for_readers(scheduler: Scheduler) -> None:
    """Replace Dask's own policy, if the scheduler has it."""
    own = scheduling.reduce_replicas()
    scheduling.swap_policy(scheduler, own, keep_for_readers_policy(own))


def restore_policy(scheduler: Scheduler) -> None:
    """Restore Dask's own policy."""
    own = scheduling.reduce_replicas()
    scheduling.swap_policy(scheduler, keep_for_readers_policy(own), own)
