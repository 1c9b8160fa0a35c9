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
from dasktile.report.formatting import format_bytes, format_limit
from dasktile.runtime.failures import Guarded
from dasktile.runtime.nextuse import USES, NextUses, number
from dasktile.runtime.settings import RuntimeSettings
from dasktile.runtime.worker.reads import LostTileError
from dasktile.runtime.worker.store import TileStore
from dasktile.runtime.worker.takeover import Handover, take_over
from dasktile.runtime.worker.values import no_next_use
from dasktile.schedule.budget import Budget, device_target
from dasktile.schedule.patience import Patience

if TYPE_CHECKING:
    from distributed.comm.core import Comm

#: Distributed's logger for its warning of unmanaged memory, which limits the rate of that warning.
logger = logging.getLogger("distributed.worker")
_monitor = logging.getLogger("distributed.worker.memory")

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
        self.limit = limit
        self.budget, self.device_budget = Budget(), Budget()
        #: Whether the memory of the device is being measured.
        self._measuring = False
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
        #: Whether distributed's memory monitor has requested an eviction that has not ended.
        self._evicting = False
        #: Whether the log says that results have hardly any memory.
        self._warned_of_scarcity = False
        #: Bytes evicted from memory before results had hardly any.
        self._evicted_before = 0
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
        self._update_budget()
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
        self.store.on_evict = self._evict_excess
        self._update_next_uses(list(self.store))
        self._overrides = execution.replace_methods(
            worker,
            execution.WorkerMethods(self.execute, self.gather_dep, self.get_data, self.update_data),
        )
        if self.hints:
            execution.handle_message(worker, USES, self.handle_hints)
        interval = storage.limits(worker).interval or self.settings.monitor_interval
        self._budget_callback = PeriodicCallback(self._update_budget, interval * 1000)
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
            handover = Handover(self.store, self._original_data, self._size_of, self._crowding())
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

    def _crowding(self) -> Callable[[], bool]:
        """A function: whether the process has more memory than the worker's monitor lets it have.

        It never says so where other memory alone exceeds the limit: then no eviction helps.
        """
        limits = storage.limits(self.worker)
        most, limit = self._limit(limits.spill, limits.target), self._limit(1)
        other = storage.process_memory(self.worker) - self.store.used(self.store.host)
        if most is None or limit is None or other >= limit:
            return lambda: False
        least = most
        return lambda: storage.process_memory(self.worker) > least

    def _size_of(self, key: Any) -> int | None:
        """Bytes of a result, if they are known."""
        return execution.result_bytes(self.worker, key)

    # Budget

    def _limit(self, *parts: Any) -> int | None:
        """Bytes of the first share that is configured, of the lowest of all memory limits."""
        limits = (self.limit, self.store.limit, storage.limits(self.worker).memory)
        limit = min(filter(None, limits), default=None)
        part = next(filter(None, parts), None)
        return int(part * limit) if part and limit else None

    def _update_budget(self) -> None:
        """Resize the memory for results to what the rest of the process and the device leaves."""
        try:
            if not self._measuring:
                self._measuring = True
                # the driver may wait for kernels: not in the event loop
                if not self.store.submit_to_device(self._update_device_budget):
                    self._measuring = False
            store, limits = self.store, storage.limits(self.worker)
            store.age()
            budget = target = self._limit(limits.target)
            if target is not None and limits.spill is not False:
                # read before the process: bytes evicted in between must not count as other memory
                results = store.used(store.host)
                self.budget.sample(storage.process_memory(self.worker), results)
                # half way to the monitor's threshold: the rest is for temporary memory of tasks
                spill = self._limit(limits.spill) or target
                most = (target + max(target, spill)) // 2
                budget = min(target, self.budget.available(most))
                evicted = store.evicted_from_host
                if budget >= self.settings.scarce_budget * target:
                    self._evicted_before = evicted
                elif self.budget.is_full and len(store) and evicted > self._evicted_before:
                    # not where one task holds much memory for long, and nothing is evicted
                    self._warn_of_scarcity(target, most, budget)
            if self._evicting and store.evicting(store.host):
                # a larger budget would cancel the eviction
                return
            self._evicting = False
            change = (budget or 0) - store.capacity(store.host)
            if budget is None or target is None or abs(change) > self.settings.budget_step * target:
                store.resize(store.host, budget)
        except Exception:
            self._count_error("update the budget of results")

    def _warn_of_scarcity(self, target: int, most: int, budget: int) -> None:
        """Log once that results have hardly any memory, and are evicted.

        Parameters
        ----------
        target, most
            Bytes that results, and that the process may take.
        budget
            Bytes that results may take now.
        """
        limit = self._limit(1)
        if self._warned_of_scarcity or limit is None:
            return
        self._warned_of_scarcity = True
        source = "set on the worker"
        if limit == self.limit:
            source = "given to dasktile.enable"
        elif limit == self.store.limit:
            source = "given to dasktile.worker_data"
        other = self.budget.other
        # results may take at most `target`, and so much that the process stays at `most`
        ample = limit * max(other / target, 2 * other / most)
        logger.warning(
            "Nearly all results of this worker are written to disk: results may take %s of this"
            " worker's memory limit (%s, %s), because its process takes %s besides them; with about"
            " %s they may take as much memory as the rest of the process",
            format_bytes(budget),
            format_limit(limit),
            source,
            format_bytes(other),
            format_bytes(ample),
        )

    def _update_device_budget(self) -> None:
        """Resize the device's memory for results to what others leave of it; in a thread."""
        try:
            store = self.store
            memory = store.device_memory()
            if memory is not None:
                self.device_budget.sample(memory.in_use, memory.results)
                left = self.device_budget.available(device_target(memory.total, memory.limit))
                budget = min(memory.limit, left)
                change = abs(budget - store.allowed(0))
                if change > self.settings.budget_step * memory.limit:
                    store.limit_device(budget)
        except Exception:
            self._count_error("update the budget of results on the device")
        finally:
            self._measuring = False

    def _evict_excess(self) -> None:
        """Start to evict results until the process is at its target; does not wait."""
        store, limits = self.store, storage.limits(self.worker)
        target = self._limit(limits.target, limits.spill)
        if target is None:
            return
        results = store.used(store.host)
        above = storage.process_memory(self.worker) - target
        self._evicting = True
        store.shrink_to(store.host, results - above)
        if above > 0 and not store.used(store.host):
            _monitor.warning(
                "Unmanaged memory use is high. This may indicate a memory leak or the memory may"
                " not be released to the OS; see https://distributed.dask.org/en/latest/"
                "worker-memory.html#memory-not-released-back-to-the-os for more information."
                " -- Worker memory limit: %s",
                format_bytes(limits.memory or 0),
            )

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
