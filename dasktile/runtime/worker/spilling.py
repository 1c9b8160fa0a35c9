"""A worker whose results are in a store, and are swapped in before tasks and peers read them.

Distributed reads a spilled result on the worker's event loop, which handles no message until the
result is in memory.  Here, a request to the store precedes every task and every transfer to
a peer: the store swaps in the results in threads, and the event loop waits as for the network.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dask.utils import key_split
from distributed import Status, Worker
from tornado.ioloop import PeriodicCallback

from dasktile._compat.distributed import execution, states, storage
from dasktile._compat.distributed.overrides import Override, uninstall
from dasktile.runtime.failures import Guarded
from dasktile.runtime.nextuse import USES, NextUses, number
from dasktile.runtime.settings import RuntimeSettings
from dasktile.runtime.worker.memory_budget import MemoryBudget
from dasktile.runtime.worker.reads import LostTileError
from dasktile.runtime.worker.store import TileStore
from dasktile.runtime.worker.takeover import Handover, take_over
from dasktile.runtime.worker.values import no_next_use
from dasktile.schedule.patience import Patience

if TYPE_CHECKING:
    from distributed.comm.core import Comm

#: Distributed's logger of workers.
logger = logging.getLogger("distributed.worker")

#: States of tasks that do not read their inputs any more, or not on this worker.
_NOT_READING = (
    *(states.MEMORY, states.RELEASED, states.FORGOTTEN, states.ERROR),
    *(states.FETCH, states.FLIGHT, states.MISSING),
)

#: States of tasks that do not run; the scheduler takes back those that need a lost result.
_NOT_RUNNING = (*_NOT_READING, states.WAITING, states.READY, states.CONSTRAINED)


class Spilling(Guarded):
    """Replaces the mapping of a worker's results by a store, and restores it.

    Parameters
    ----------
    worker
        A worker that runs, or starts.
    store
        The store for its results: empty, or the worker's mapping already.
    limit
        Bytes of the worker's memory; None for the limit that it was started with.
    hints
        Whether the worker can handle the scheduler's next-use hints.
    prefetch
        Whether the task that runs next can be read off this release of distributed.
    settings
        Constants; by default those of `RuntimeSettings`.
    clock, processor
        Return seconds, and seconds for which the process has used the processor.
    """

    def __init__(
        self,
        worker: Worker,
        store: TileStore,
        limit: int | None = None,
        *,
        hints: bool = True,
        prefetch: bool = True,
        settings: RuntimeSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.process_time,
    ) -> None:
        super().__init__()
        self.settings = settings or RuntimeSettings()
        self.worker = worker
        self.store = store
        self.budget = MemoryBudget(worker, store, limit, self.settings, self._count_error)
        self._clock, self._processor = clock, processor
        self._patience = Patience(
            self.settings.room_timeout,
            self.settings.computing_share,
            self.settings.computing_timeout,
        )
        #: Number of requests that wait.
        self._waits = 0
        #: The worker's tasks and actors, by key.
        self._tasks, self._actors = execution.worker_tasks(worker), execution.actors(worker)
        self.hints = hints
        self.prefetch = prefetch
        self.uses = NextUses(self._tasks, self.settings)
        #: By key of a task that runs: the number of its request to the store.
        self._requests: dict[Any, int] = {}
        #: Transfers to peers whose results are being swapped in.
        self._reads_for_peers = 0
        #: By key, how often a result was removed because it could not be read back.
        self._losses: dict[Any, int] = {}
        #: By key of a task that is to be scheduled again: its inputs that cannot be read back.
        self._lost_inputs: dict[Any, list[Any]] = {}
        #: Bytes of the last result of each kind of tasks (a layer name without its hash).
        self._result_bytes: dict[str, int] = {}
        self._original_data: MutableMapping[Any, Any] | None = None
        self._detached = False
        self._overrides: list[Override] = []

    def attach(self) -> None:
        """Move the worker's results to the store, and replace the methods that read results."""
        worker: Any = self.worker
        self._original_methods = execution.methods_of(worker)
        self.budget.update()
        if isinstance(worker.data, Handover):
            # an earlier move failed in both directions
            worker.data.undo()
            self._original_data = worker.data.target
        elif worker.data is not self.store:
            take_over(worker.data, self.store, self._size_of)
            self._original_data = worker.data
        storage.replace_data(worker, self.store)
        self.store.next_use = self._next_use
        self.store.event_loop_thread = threading.get_ident()
        self.store.on_evict = self.budget.evict_excess
        self._update_next_uses(list(self.store))
        self._overrides = execution.replace_methods(
            worker,
            execution.WorkerMethods(self.execute, self.gather_dep, self.get_data, self.update_data),
        )
        if self.hints:
            execution.handle_message(worker, USES, self.handle_hints)
        interval = storage.limits(worker).interval or self.settings.monitor_interval
        self._budget_callback = PeriodicCallback(self.budget.update, interval * 1000)
        execution.add_callback(worker, USES, self._budget_callback)
        self._budget_callback.start()

    async def detach(self) -> None:
        """Restore the worker, as soon as its results are in its own mapping.

        Tasks run meanwhile.  A store that the worker was started with stays.
        """
        worker: Any = self.worker
        self._detached = True
        self._budget_callback.stop()
        execution.remove_callback(worker, USES)
        while self._overrides:
            uninstall(self._overrides.pop())
        if self.hints:
            # a hint may be on its way, and a message without a handler stops the worker
            execution.handle_message(worker, USES, _ignore)
        self.store.next_use, self.store.on_evict, self.store.event_loop_thread = (
            no_next_use,
            None,
            None,
        )
        if worker.status in (Status.closing, Status.closed):
            self.store.close()
            return
        if self._original_data is not None and worker.data is self.store:
            crowding = self.budget.crowding()
            handover = Handover(self.store, self._original_data, self._size_of, crowding)
            storage.replace_data(worker, handover)
            self.store.forget_uses()
            try:
                await handover.move()
            except Exception:
                # a value cannot be read, or the other mapping rejects it: all stay in the store
                self._count_error("move the results of a worker back")
                if all(key in self.store for key in self._original_data):
                    storage.replace_data(worker, self.store)
            else:
                storage.replace_data(worker, self._original_data)
                self.store.close()
            finally:
                handover.ended.set()
            return
        self.store.forget_uses()

    def _size_of(self, key: Any) -> int | None:
        """Bytes of a result, if they are known."""
        return execution.result_bytes(self.worker, key)

    # Tasks

    async def execute(self, key: Any, *, stimulus_id: str) -> Any:
        """Run a task once all of its inputs are in memory."""
        if self._detached:
            # called by a method that has replaced this one
            return await self._original_methods.execute(key, stimulus_id=stimulus_id)
        request = None
        keys: list[Any] = []
        kind = key_split(key)
        task = self._tasks.get(key)
        if task is not None:
            keys = [read.key for read in task.dependencies]
            request = self._request_untracked(keys)
            if request is None:
                now = self._task_started(task)
                start = time.time()
                # the result size of a new kind is unknown; with 1 byte it waits only for evictions
                request = await self._request(keys, self._result_bytes.get(kind, 1), now)
                stop = time.time()
                if stop - start > self.settings.reading_threshold:
                    execution.note_reading(task, start, stop)
                if self._detached:
                    # its inputs may have moved to another mapping, or to another store
                    self._release(request)
                    return await self.worker.execute(key, stimulus_id=stimulus_id)
                if any(read not in self.store and read not in self._actors for read in keys):
                    # cancelled while it waited, and submitted again: its inputs arrive later
                    self._release(request)
                    return execution.run_later(key, f"dasktile-anew-{stop}")
            if request is not None:
                self._requests[key] = request
            # the request keeps the inputs in memory: their next use is after this task
            self._update_next_uses(keys, started=task)
        try:
            event = self._read_failure(task, keys) or await self._original_methods.execute(
                key, stimulus_id=stimulus_id
            )
        finally:
            self.uses.reader_ended(key)
            self._release(self._requests.pop(key, None))
        nbytes = getattr(event, "nbytes", None)
        if nbytes is not None:
            if len(self._result_bytes) > self.settings.max_kinds:
                self._result_bytes.clear()
            self._result_bytes[kind] = nbytes
        return event

    def _read_failure(self, task: Any, keys: Iterable[Any]) -> Any:
        """What happens to a task whose inputs cannot be read; None if they can be.

        They are lost: the scheduler has them recomputed, and the task scheduled again.  The task
        fails where the same result was lost several times.  (The worker would log the exception
        with its traceback, whose frames hold the other inputs: these would stay in memory as long
        as the log.)
        """
        fast = self.store.fast
        missing = [key for key in keys if key not in fast]
        if not missing or task is None or not execution.is_running(self.worker):
            return None
        lost: list[Any] = []
        for key in missing:
            if key in self.store:
                try:
                    self.store[key]
                except LostTileError as error:
                    often = self._losses.get(key, 0) >= self.settings.max_losses
                    # a result that finds no room in memory would find none if it was recomputed
                    if often or self.store.may_become_readable(key):
                        return execution.failed(task, error, f"execute-lost-{time.time()}")
                    logger.error("%s: it is recomputed", error)
                    lost.append(key)
        if not lost:
            return None
        self._lost_inputs[task.key] = lost
        return execution.run_later(task.key, f"execute-lost-{time.time()}")

    def transition(self, key: Any, start: str, finish: str) -> None:
        """Update next uses after a transition; called for every transition of every task."""
        if start == states.RELEASED and finish not in (states.FORGOTTEN, states.RELEASED):
            if not self.store.tracks_nothing:
                self._reader_added(key)
        elif finish == states.LONG_RUNNING:
            # it may wait for tasks that need the memory of its inputs
            self._release(self._requests.pop(key, None))
        elif finish in (states.RELEASED, states.FORGOTTEN):
            self.uses.forget(key)
        if self._lost_inputs and start == states.EXECUTING and key in self._lost_inputs:
            # the inputs of a task can be removed once it does not run; not within a transition.
            # Other readers that have not started are scheduled again as well
            lost = self._lost_inputs.pop(key)
            asyncio.get_running_loop().call_soon(self._report_lost, lost, _NOT_RUNNING)

    def _reader_added(self, key: Any) -> None:
        """Update the next uses of the inputs of a task that will run, where hints lack it."""
        task = self._tasks.get(key)
        if task is not None and task.run_spec is not None:
            self._update_next_uses(
                read.key for read in task.dependencies if not self.uses.includes(read.key, task)
            )

    def handle_hints(
        self, uses: Iterable[Any], ran: Iterable[Any], withdrawn: bool = False, **kwargs: Any
    ) -> None:
        """Handle a message with hints of the scheduler.

        Parameters
        ----------
        uses
            Keys of results, and their new hints.
        ran
            Keys of results, and the priority of a reader that has run on another worker.
        withdrawn
            Whether the scheduler sends no more hints: results are evicted by age then.
        """
        try:
            if withdrawn:
                self.uses.withdraw()
                self.store.forget_uses()
            self.store.expect({**self.uses.update(uses), **self.uses.readers_ran(ran)})
        except Exception:
            self._count_error("update next uses")

    def _task_started(self, task: Any) -> float | None:
        """Prefetch for the tasks after a task that starts; return the latter's number."""
        try:
            if self.store.evicted_count and self.prefetch:
                following = execution.next_tasks(self.worker, self.settings.prefetch_tasks)
                reads = [[read.key for read in each.dependencies] for each in following]
                self.store.set_upcoming(
                    reads[0] if reads else (), [key for keys in reads[1:] for key in keys]
                )
            return number(task.priority) if task.priority else None
        except Exception:
            self._count_error("prefetch for the next task")
            return None

    def _update_next_uses(self, keys: Iterable[Any], started: Any = None) -> None:
        try:
            if started is not None:
                self.uses.reader_started(started)
            if self.store.tracks_nothing:
                return
            tracked = self.store.tracked(keys)
            if tracked:
                self.store.expect({key: self.uses.next_use(key) for key in tracked})
        except Exception:
            self._count_error("update next uses")

    def _next_use(self, key: Any) -> float | None:
        try:
            return self.uses.next_use(key)
        except Exception:
            self._count_error("update next uses")
            return None

    async def get_data(
        self,
        comm: Comm,
        keys: Collection[Any],
        who: str | None = None,
        serializers: list[str] | None = None,
    ) -> Any:
        """Send results once they are in memory; unreadable ones are left out and reported lost."""
        transfers, limit = execution.outgoing(self.worker)
        if limit is not None and transfers + self._reads_for_peers >= 2 * limit:
            # nothing is swapped in for a peer that has to repeat its request
            return {"status": "busy"}
        # the client and the scheduler may lack what is needed to receive a value that is lent
        may_lend = who is not None and execution.copies_messages(comm)
        with self.store.lending(keys if may_lend else ()) as lent:
            self._reads_for_peers += 1
            try:
                to_swap_in = [key for key in keys if key not in lent]
                # urgent: the peer does not wait for memory that tasks on this worker use
                request = await self._request(to_swap_in, urgent=True)
            finally:
                self._reads_for_peers -= 1
            try:
                data = self.store
                missing = [
                    key
                    for key in keys
                    if key not in data.fast and key in data and not data.is_lent(key)
                ]
                if any(data.may_become_readable(key) for key in missing):
                    return {"status": "busy"}
                self._report_lost(missing)
                keys = [key for key in keys if key not in missing]
                return await self._original_methods.get_data(
                    comm, keys, who=who, serializers=serializers
                )
            finally:
                self._release(request)

    def _report_lost(self, keys: Iterable[Any], readers: Collection[str] = _NOT_READING) -> None:
        """Remove unreadable results, so that the scheduler has them recomputed.

        Otherwise peers would request them again and again.

        Parameters
        ----------
        keys
            Their keys.
        readers
            States that all of their readers on this worker must have.  With other readers they
            stay: those report the loss when they start.
        """
        tasks = map(self._tasks.get, keys)
        lost = [
            task.key
            for task in tasks
            if task is not None and all(reader.state in readers for reader in task.dependents)
        ]
        if lost:
            if len(self._losses) > self.settings.max_kinds:
                self._losses.clear()
            for key in lost:
                self._losses[key] = self._losses.get(key, 0) + 1
            execution.lose(self.worker, lost, f"lost-{time.time()}")

    async def gather_dep(
        self,
        worker: str,
        to_gather: Collection[Any],
        total_nbytes: int,
        *,
        stimulus_id: str,
    ) -> Any:
        """Receive results of a peer after pending evictions."""
        await self._wait_for_evictions()
        return await self._original_methods.gather_dep(
            worker, to_gather, total_nbytes, stimulus_id=stimulus_id
        )

    async def update_data(self, data: dict[Any, Any], stimulus_id: str | None = None) -> Any:
        """Receive scattered results after pending evictions."""
        await self._wait_for_evictions()
        return self._original_methods.update_data(data, stimulus_id=stimulus_id)

    async def _wait_for_evictions(self) -> None:
        try:
            crowded = self.store.crowded
        except Exception:
            self._count_error("wait for evictions")
            return
        if crowded:
            # no memory is reserved: two workers that wait for each other would deadlock
            self._release(await self._request((), 1))

    def _request_untracked(self, keys: Collection[Any]) -> int | None:
        """The number of a request that is ready at once, as nothing is spilled; else None.

        The store tracks values by calls of this thread only.
        """
        store = self.store
        if not store.tracks_nothing:
            return None
        fast = store.fast
        for key in keys:
            if key not in fast:
                # an actor, or a result that has not arrived
                return None
        try:
            return store.request(keys, _do_nothing)
        except Exception:
            # counted if it happens again
            return None

    async def _request(
        self,
        keys: Collection[Any],
        room: int = 0,
        now: float | None = None,
        urgent: bool = False,
    ) -> int | None:
        """Wait for results to be in memory; the number of the request, None after an error."""
        loop = asyncio.get_running_loop()
        thread = threading.get_ident()
        ready: asyncio.Future[None] = loop.create_future()

        def notify() -> None:
            if threading.get_ident() == thread:
                _set_done(ready)
                return
            with suppress(RuntimeError):
                # the loop is closed
                loop.call_soon_threadsafe(_set_done, ready)

        request = None
        try:
            keys = [key for key in keys if key in self.store]
            request = self.store.request(keys, notify, room, now, urgent)
            if not ready.done():
                await self._wait_for(ready)
        except asyncio.CancelledError:
            self._release(request)
            raise
        except Exception:
            self._count_error("swap results in")
        return request

    async def _wait_for(self, ready: asyncio.Future[None]) -> None:
        """Wait until a request is ready; one at a time needs no memory where nothing proceeds."""
        store, settings = self.store, self.settings
        if not self._waits:
            self._patience.restart(self._clock(), store.events, self._processor())
        self._waits += 1
        try:
            while not ready.done():
                await asyncio.wait([ready], timeout=settings.room_timeout)
                now, processor = self._clock(), self._processor()
                stuck = self._patience.is_stuck(now, store.events, processor, store.copies)
                if stuck and not ready.done() and self.worker.status != Status.paused:
                    # tasks that run may wait for one of these, by locks or otherwise
                    store.urge_first()
        finally:
            self._waits -= 1

    def _release(self, request: int | None) -> None:
        if request is not None:
            try:
                self.store.release(request)
            except Exception:
                self._count_error("release results")


def _do_nothing() -> None:
    """What is called for a request that is ready at once."""


def _ignore(**kwargs: Any) -> None:
    """Handle a hint that arrives after the store was removed."""


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
