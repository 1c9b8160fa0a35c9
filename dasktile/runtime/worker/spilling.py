"""A worker whose results lie in a store, fetched before tasks and peers read them.

Distributed reads results where it stands, on the worker's event loop: while one comes back
from disk, the worker hears nobody.  Here a task, or a peer, first asks the store for all that
it is going to read, and waits for it as it would for the network.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Collection, Iterable, MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dask.utils import format_bytes, key_split
from distributed import Status, Worker
from tornado.ioloop import PeriodicCallback

from dasktile._compat import distributed as internals
from dasktile.runtime.failures import Guarded
from dasktile.runtime.nextuse import USES, NextUses, number
from dasktile.runtime.worker.store import LostTileError, TileStore, unknown
from dasktile.runtime.worker.takeover import move
from dasktile.schedule.budget import Budget

if TYPE_CHECKING:
    from distributed.comm.core import Comm

#: Where distributed warns of this; it says it no more than once in a while.
_monitor = logging.getLogger("distributed.worker.memory")

#: Seconds after which a task's wait for its inputs is shown as reading.
_SHOWN = 0.005

#: States of tasks that do not read their inputs any more, or not here.
_OVER = (
    *(internals.MEMORY, internals.RELEASED, internals.FORGOTTEN, internals.ERROR),
    *(internals.FETCH, internals.FLIGHT, internals.MISSING),
)

#: Kinds of tasks of which it is remembered what they make.
_KINDS = 1000

#: Part of a worker's memory by which the budget of results changes at the least.
_STEP = 0.01

#: Seconds for which a task waits for room while others run.
PATIENCE = 5.0


class Spilling(Guarded):
    """Puts a store into a worker, and takes it out again.

    Parameters
    ----------
    worker
        A worker that runs, or is about to.
    store
        What it is to have for its results; empty, or the worker's already.
    limit
        Bytes that the worker may take, None for what it has been told itself.
    hints
        Whether the worker can handle the scheduler's hints of when results are needed.
    prefetch
        Whether the worker says which task runs next.
    """

    def __init__(
        self,
        worker: Worker,
        store: TileStore,
        limit: int | None = None,
        *,
        hints: bool = True,
        prefetch: bool = True,
    ) -> None:
        super().__init__()
        self.worker = worker
        self.store = store
        self.limit = limit
        self.budget = Budget()
        self.hints = hints
        self.prefetch = prefetch
        self.uses = NextUses(internals.worker_tasks(worker))
        #: What tasks that run have asked for.
        self._holds: dict[Any, int] = {}
        self._sending = 0
        #: The monitor has asked for room.
        self._relieved = False
        #: Bytes that a task of a layer's kind has made last.
        self._made: dict[str, int] = {}
        self._before: MutableMapping[Any, Any] | None = None
        self._overrides: list[internals.Override] = []

    def attach(self) -> None:
        """Move the worker's results to the store, and let tasks and peers ask for them there."""
        worker: Any = self.worker
        self._original = internals.methods_of(worker)
        self._watch()
        if worker.data is not self.store:
            # they may be more than fits in memory
            move(worker.data, self.store, self.store.settle)
            self._before = worker.data
            internals.replace_data(worker, self.store)
        self.store.next_use = self._next_use
        self.store.waiter = threading.get_ident()
        self.store.relieve = self._relieve
        self._expect(list(self.store))
        self._overrides = internals.replace_methods(
            worker,
            internals.WorkerMethods(self.execute, self.gather_dep, self.get_data, self.update_data),
        )
        if self.hints:
            internals.handle_message(worker, USES, self.told)
        interval = internals.limits(worker).interval or 0.1
        self._watching = PeriodicCallback(self._watch, interval * 1000)
        internals.add_callback(worker, USES, self._watching)
        self._watching.start()

    def detach(self) -> None:
        """Leave the worker as it was.  A store that it has had from its start stays."""
        worker: Any = self.worker
        self._watching.stop()
        internals.remove_callback(worker, USES)
        while self._overrides:
            internals.uninstall(self._overrides.pop())
        if self.hints:
            # the scheduler may have sent something already, and an unknown message ends a worker
            internals.handle_message(worker, USES, _ignore)
        self.store.next_use, self.store.relieve, self.store.waiter = unknown, None, None
        if worker.status in (Status.closing, Status.closed):
            self.store.close()
            return
        if self._before is not None and worker.data is self.store:
            try:
                move(self.store, self._before)
            except Exception:
                # one cannot be read, or not be kept there: they all stay
                self._failed("give results back")
            else:
                internals.replace_data(worker, self._before)
                self.store.close()
                return
        self.store.forget_uses()

    # Room

    def _limit(self, *parts: Any) -> int | None:
        """Bytes of the first part of the worker's memory that is configured."""
        # the least that anybody has said
        limits = (self.limit, self.store.limit, internals.limits(self.worker).memory)
        limit = min(filter(None, limits), default=None)
        part = next(filter(None, parts), None)
        return int(part * limit) if part and limit else None

    def _watch(self) -> None:
        """Give results the room that the rest of the process leaves."""
        try:
            store, limits = self.store, internals.limits(self.worker)
            store.age()
            budget = target = self._limit(limits.target)
            if target is not None and limits.spill is not False:
                # before the process: what leaves between the two would be counted twice
                results = store.used(store.host)
                self.budget.sample(internals.process_memory(self.worker), results)
                # half way to where the monitor steps in: the rest is for what comes and goes
                spill = self._limit(limits.spill) or target
                budget = min(target, self.budget.available((target + max(target, spill)) // 2))
            if self._relieved and store.leaving(store.host):
                # what was told to leave would stay if there was room again
                return
            self._relieved = False
            now = store.capacity(store.host)
            if budget is None or target is None or abs(budget - now) > _STEP * target:
                store.resize(store.host, budget)
        except Exception:
            self._failed("agree on a budget")

    def _relieve(self) -> None:
        """Let results go until the process takes what it should, without waiting for that."""
        store, limits = self.store, internals.limits(self.worker)
        target = self._limit(limits.target, limits.spill)
        if target is None:
            return
        results = store.used(store.host)
        above = internals.process_memory(self.worker) - target
        self._relieved = True
        store.squeeze(store.host, results - above)
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
        """Run a task once all that it reads is in memory."""
        name = None
        keys: list[Any] = []
        kind = key_split(key)
        task = internals.worker_tasks(self.worker).get(key)
        if task is not None:
            keys = [read.key for read in task.dependencies]
            now = self._starts(task)
            start = time.time()
            # of one of a new kind nobody knows what it makes; it waits while others are written
            name = await self._hold(keys, self._made.get(kind, 1), now)
            stop = time.time()
            if stop - start > _SHOWN:
                internals.note_reading(task, start, stop)
            actors = internals.actors(self.worker)
            if any(read not in self.store and read not in actors for read in keys):
                # cancelled while it waited, and asked for again: its inputs come anew
                self._release(name)
                return internals.run_later(key, f"dasktile-anew-{stop}")
        if name is not None:
            self._holds[key] = name
        if task is not None:
            # what is held cannot leave: what counts is who reads it after this task
            self._expect(keys, starts=task)
        try:
            event = self._lost(task, keys) or await self._original.execute(
                key, stimulus_id=stimulus_id
            )
        finally:
            self.uses.ends(key)
            self._release(self._holds.pop(key, None))
        made = getattr(event, "nbytes", None)
        if made is not None:
            if len(self._made) > _KINDS:
                self._made.clear()
            self._made[kind] = made
        return event

    def _lost(self, task: Any, keys: Iterable[Any]) -> Any:
        """That a task failed whose inputs cannot be read; None if they can be.

        Not left to the worker: it logs the error with the frame that has the other inputs, and
        they would keep their memory for as long as the log is kept.
        """
        if task is None or not internals.is_running(self.worker):
            return None
        try:
            for key in keys:
                if key not in self.store.fast and key in self.store:
                    self.store[key]
        except LostTileError as error:
            return internals.failed(task, error, f"execute-lost-{time.time()}")
        return None

    def transition(self, key: Any, start: str, finish: str) -> None:
        """What a new task reads is needed; called for every step of every task."""
        if finish == internals.LONG_RUNNING:
            # it may wait for tasks that need the room
            self._release(self._holds.pop(key, None))
        elif finish in (internals.RELEASED, internals.FORGOTTEN):
            self.uses.forget(key)
        if start == internals.RELEASED and finish != internals.FORGOTTEN:
            task = internals.worker_tasks(self.worker).get(key)
            if task is not None and task.run_spec is not None:
                self._expect(
                    read.key for read in task.dependencies if not self.uses.knows(read.key, task)
                )

    def told(self, uses: Iterable[Any], ran: Iterable[Any], **kwargs: Any) -> None:
        """The scheduler says that results are needed at other times than it said.

        Parameters
        ----------
        uses
            Keys, and the priorities of the tasks that read them.
        ran
            Keys, and the priority of a task elsewhere that has read it.
        """
        try:
            self.store.expect({**self.uses.told(uses), **self.uses.ran(ran)})
        except Exception:
            self._failed("say what is needed next")

    def _starts(self, task: Any) -> float | None:
        """Tell the store of a task that starts, and of those that come next."""
        try:
            if self.store.away and self.prefetch:
                soon = internals.next_ready(self.worker)
                self.store.look([] if soon is None else [read.key for read in soon.dependencies])
            return number(task.priority) if task.priority else None
        except Exception:
            self._failed("look ahead")
            return None

    def _expect(self, keys: Iterable[Any], starts: Any = None) -> None:
        try:
            if starts is not None:
                self.uses.starts(starts)
            self.store.expect({key: self.uses.of(key) for key in keys})
        except Exception:
            self._failed("say what is needed next")

    def _next_use(self, key: Any) -> float | None:
        try:
            return self.uses.of(key)
        except Exception:
            self._failed("say what is needed next")
            return None

    async def get_data(
        self,
        comm: Comm,
        keys: Collection[Any],
        who: str | None = None,
        serializers: list[str] | None = None,
    ) -> Any:
        """Send results once they are in memory; what cannot be read is left out, and is lost."""
        now, most = internals.outgoing(self.worker)
        if most is not None and now + self._sending >= 2 * most:
            # nothing is fetched for a peer that is told to come again
            return {"status": "busy"}
        self._sending += 1
        try:
            # a peer waits for what is read and sent at once, and not for tasks here
            name = await self._hold(keys, urgent=True)
        finally:
            self._sending -= 1
        try:
            data = self.store
            left = [key for key in keys if key not in data.fast and key in data]
            if any(data.may_be_read(key) for key in left):
                return {"status": "busy"}
            self._lose(left)
            keys = [key for key in keys if key not in left]
            return await self._original.get_data(comm, keys, who=who, serializers=serializers)
        finally:
            self._release(name)

    def _lose(self, keys: Iterable[Any]) -> None:
        """Have no results any more that nobody can read: the scheduler has them made again.

        As long as it believes that they are here, peers ask for them.
        """
        tasks = [internals.worker_tasks(self.worker).get(key) for key in keys]
        # tasks here that are going to read one are to fail first, and say why
        lost = [
            task.key
            for task in tasks
            if task is not None and all(one.state in _OVER for one in task.dependents)
        ]
        if lost:
            internals.lose(self.worker, lost, f"lost-{time.time()}")

    async def gather_dep(
        self,
        worker: str,
        to_gather: Collection[Any],
        total_nbytes: int,
        *,
        stimulus_id: str,
    ) -> Any:
        """Fetch results of a peer once what must leave for them has left."""
        # no room is kept for them: two workers that fetch from each other would wait for it
        self._release(await self._hold((), 1))
        return await self._original.gather_dep(
            worker, to_gather, total_nbytes, stimulus_id=stimulus_id
        )

    async def update_data(self, data: dict[Any, Any], stimulus_id: str | None = None) -> Any:
        """Take what a client scatters, as fast as others leave."""
        self._release(await self._hold((), 1))
        return self._original.update_data(data, stimulus_id=stimulus_id)

    async def _hold(
        self,
        keys: Collection[Any],
        room: int = 0,
        now: float | None = None,
        urgent: bool = False,
    ) -> int | None:
        loop = asyncio.get_running_loop()
        thread = threading.get_ident()
        there: asyncio.Future[None] = loop.create_future()

        def tell() -> None:
            if threading.get_ident() == thread:
                _done(there)
                return
            with suppress(RuntimeError):
                # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_done, there)

        name = None
        try:
            keys = [key for key in keys if key in self.store]
            name = self.store.request(keys, tell, room, now, urgent)
            while not there.done():
                await asyncio.wait([there], timeout=PATIENCE)
                if self.worker.status != Status.paused:
                    # tasks that run may wait for this one, by locks or otherwise
                    self.store.urge(name)
        except asyncio.CancelledError:
            self._release(name)
            raise
        except Exception:
            self._failed("fetch results")
        return name

    def _release(self, name: int | None) -> None:
        if name is not None:
            try:
                self.store.release(name)
            except Exception:
                self._failed("let results go")


def _ignore(**kwargs: Any) -> None:
    """What comes too late."""


def _done(there: asyncio.Future[None]) -> None:
    if not there.done():
        there.set_result(None)
