"""Tasks behind a plan that read several of its results: each runs where most of its bytes are.

Dask sends such a task to the worker on which it would start first, and counts the bytes that it
reads as little beside the tasks that wait there.  Workers of a plan have many waiting tasks, so
that large tiles would be sent to others, with which a task only joins some rows: where
``to_zarr``, ``rechunk`` or ``map_overlap`` follow a plan.  Sizes are known once the inputs are
there.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from dasktile._compat.distributed import states
from dasktile.runtime.scheduler.roots import restrict_to_home
from dasktile.runtime.settings import RuntimeSettings
from dasktile.schedule.homes import Homes
from dasktile.schedule.joining import JoinedResult, worker_of_join

if TYPE_CHECKING:
    from distributed.scheduler import TaskState

#: States of tasks that have no worker yet.
_PENDING = frozenset({states.RELEASED, states.WAITING})

#: States after which a result is there, or never will be.
_ENDED = frozenset({states.MEMORY, states.FORGOTTEN})


class Joins:
    """Tasks that are placed when their inputs are in memory.

    Parameters
    ----------
    homes
        The workers in mesh order.
    settings
        Constants.
    """

    def __init__(self, homes: Homes, settings: RuntimeSettings) -> None:
        self.homes, self.settings = homes, settings
        #: By the key of an input that is not in memory, readers, and the inputs to look at next.
        self._readers: dict[Any, list[tuple[TaskState, Iterator[TaskState]]]] = {}

    def __len__(self) -> int:
        return len(self._readers)

    def add(self, ts: TaskState) -> bool:
        """Place a task once all of its inputs are in memory.

        Parameters
        ----------
        ts
            The task, which no worker has yet.

        Returns
        -------
        Whether it is placed already.
        """
        return self._wait(ts, iter(tuple(ts.dependencies)))

    def _wait(self, ts: TaskState, rest: Iterator[TaskState]) -> bool:
        """Wait for the next input that is not in memory; place the task if all are."""
        missing = next((read for read in rest if not read.who_has), None)
        if missing is None:
            # one that was there may be lost
            rest = iter(tuple(ts.dependencies))
            missing = next((read for read in rest if not read.who_has), None)
        if missing is None:
            return self._place(ts)
        self._readers.setdefault(missing.key, []).append((ts, rest))
        return False

    def ended(self, key: Any, finish: str) -> int:
        """Place the readers of a result that is in memory now; forget those of one that is gone.

        Parameters
        ----------
        key, finish
            The task, and its new state.

        Returns
        -------
        How many are placed.
        """
        readers = self._readers.pop(key, ()) if finish in _ENDED else ()
        if finish != states.MEMORY:
            return 0
        return sum(self._wait(ts, rest) for ts, rest in readers if ts.state in _PENDING)

    def clear(self) -> None:
        """Forget all tasks."""
        self._readers.clear()

    def _place(self, ts: TaskState) -> bool:
        """Restrict a task to the worker that has most of its bytes, see `worker_of_join`."""
        if ts.state not in _PENDING or ts.worker_restrictions:
            return False
        results = [self._joined(read) for read in ts.dependencies]
        best = worker_of_join(
            results, self.homes.place, self.settings.max_combined, self.settings.max_joined
        )
        if best is None or best not in self.homes:
            return False
        restrict_to_home(ts, best)
        return True

    def _joined(self, read: TaskState) -> JoinedResult:
        """A result that a task joins with others."""
        first = islice(read.dependents, self.settings.max_combined)
        return JoinedResult(
            read.get_nbytes(),
            [ws.address for ws in read.who_has or ()],
            len(read.dependents),
            sum(len(reader.dependencies) > 1 for reader in first),
        )
