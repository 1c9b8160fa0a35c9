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
from typing import Any

from dask.utils import format_bytes, key_split
from distributed import Worker
from distributed.comm.core import Comm
from distributed.core import Status
from distributed.metrics import context_meter
from tornado.ioloop import PeriodicCallback

from dasktile.runtime.failures import Guarded
from dasktile.runtime.nextuse import USES, NextUses, number
from dasktile.runtime.store import LostTileError, TileStore, unknown
from dasktile.schedule.budget import Budget

#: Where distributed warns of this; it says it no more than once in a while.
_monitor = logging.getLogger("distributed.worker.memory")

#: Seconds after which a task's wait for its inputs is shown as reading.
_SHOWN = 0.005

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
    """

    def __init__(self, worker: Worker, store: TileStore, limit: int | None = None) -> None:
        super().__init__()
        self.worker = worker
        self.store = store
        self.limit = limit
        self.budget = Budget()
        self.uses = NextUses(worker.state.tasks)
        #: What tasks that run have asked for.
        self._holds: dict[Any, int] = {}
        self._sending = 0
        #: Bytes that a task of a layer's kind has made last.
        self._made: dict[str, int] = {}
        self._before: MutableMapping[Any, Any] | None = None

    # Attributes of a worker that are replaced; checked with distributed 2026.7.1 and 2026.8.0.

    def attach(self) -> None:
        """Move the worker's results to the store, and let tasks and peers ask for them there."""
        worker: Any = self.worker
        self._watch()
        if worker.data is not self.store:
            self._before = worker.data
            for key in list(self._before):
                self.store[key] = self._before[key]
                del self._before[key]
                # they may be more than fits in memory
                self.store.settle()
            worker.memory_manager.data = worker.state.data = self.store
        self.store.next_use = self._next_use
        self.store.waiter = threading.get_ident()
        self.store.relieve = self._relieve
        self._expect(list(self.store))
        self._execute = worker.execute
        self._gather_dep = worker.gather_dep
        self._get_data = worker.handlers["get_data"]
        self._update_data = worker.handlers["update_data"]
        worker.execute = self.execute
        worker.gather_dep = self.gather_dep
        worker.handlers["get_data"] = self.get_data
        worker.handlers["update_data"] = self.update_data
        worker.stream_handlers[USES] = self.told
        interval = worker.memory_manager.memory_monitor_interval or 0.1
        self._watching = PeriodicCallback(self._watch, interval * 1000)
        worker.periodic_callbacks[USES] = self._watching
        self._watching.start()

    def detach(self) -> None:
        """Leave the worker as it was.  A store that it has had from its start stays."""
        worker: Any = self.worker
        self._watching.stop()
        worker.periodic_callbacks.pop(USES, None)
        for name, own in (("execute", self.execute), ("gather_dep", self.gather_dep)):
            if getattr(worker, name) == own:
                delattr(worker, name)
        handlers = worker.handlers
        if handlers["get_data"] == self.get_data:
            handlers["get_data"] = self._get_data
        if handlers["update_data"] == self.update_data:
            handlers["update_data"] = self._update_data
        # the scheduler may have sent something already, and an unknown message ends a worker
        worker.stream_handlers[USES] = _ignore
        self.store.next_use, self.store.relieve, self.store.waiter = unknown, None, None
        if worker.status in (Status.closing, Status.closed):
            self.store.close()
        elif self._before is not None and worker.data is self.store:
            worker.memory_manager.data = worker.state.data = self._before
            try:
                for key in list(self.store):
                    self._before[key] = self.store[key]
                    del self.store[key]
            except LostTileError:
                # what is asked of it later fails as it would have here
                self._failed("give a result back")
                worker.memory_manager.data = worker.state.data = self.store
            else:
                self.store.close()

    # Room

    def _limit(self, *parts: Any) -> int | None:
        """Bytes of the first part of the worker's memory that is configured."""
        limit = self.limit or self.worker.memory_manager.memory_limit
        part = next(filter(None, parts), None)
        return int(part * limit) if part and limit else None

    def _watch(self) -> None:
        """Give results the room that the rest of the process leaves."""
        try:
            store, manager = self.store, self.worker.memory_manager
            store.age()
            budget = target = self._limit(manager.memory_target_fraction)
            if target is not None and manager.memory_spill_fraction is not False:
                # before the process: what leaves between the two would be counted twice
                results = store.used(store.host)
                self.budget.sample(self.worker.monitor.get_process_memory(), results)
                budget = self.budget.of(target)
            now = store.capacity(store.host)
            if budget is None or target is None or abs(budget - now) > _STEP * target:
                store.resize(store.host, budget)
        except Exception:
            self._failed("agree on a budget")

    def _relieve(self) -> None:
        """Let results go until the process takes what it should, without waiting for that."""
        store, manager = self.store, self.worker.memory_manager
        target = self._limit(manager.memory_target_fraction, manager.memory_spill_fraction)
        if target is None:
            return
        results = store.used(store.host)
        above = self.worker.monitor.get_process_memory() - target
        store.squeeze(store.host, results - above)
        if above > 0 and not store.used(store.host):
            _monitor.warning(
                "Unmanaged memory use is high. This may indicate a memory leak or the memory may"
                " not be released to the OS; see https://distributed.dask.org/en/latest/"
                "worker-memory.html#memory-not-released-back-to-the-os for more information."
                " -- Worker memory limit: %s",
                format_bytes(manager.memory_limit or 0),
            )

    # Tasks

    async def execute(self, key: Any, *, stimulus_id: str) -> Any:
        """Run a task once all that it reads is in memory."""
        name = None
        keys: list[Any] = []
        kind = key_split(key)
        task = self.worker.state.tasks.get(key)
        if task is not None:
            keys = [read.key for read in task.dependencies]
            now = self._starts(task)
            start = time.time()
            name = await self._hold(keys, self._made.get(kind, 0), now)
            stop = time.time()
            if stop - start > _SHOWN:
                # as Worker.execute does where it reads itself
                task.startstops.append({"action": "disk-read", "start": start, "stop": stop})
                context_meter.digest_metric("disk-read", stop - start, "seconds")
        if name is not None:
            self._holds[key] = name
        if task is not None:
            # what is held cannot leave: what counts is who reads it after this task
            self._expect(keys, starts=task)
        try:
            event = await self._execute(key, stimulus_id=stimulus_id)
        finally:
            self.uses.ends(key)
            self._release(self._holds.pop(key, None))
        made = getattr(event, "nbytes", None)
        if made is not None:
            self._made[kind] = made
        return event

    def transition(self, key: Any, start: str, finish: str) -> None:
        """What a new task reads is needed; called for every step of every task."""
        if finish == "long-running":
            # it may wait for tasks that need the room
            self._release(self._holds.pop(key, None))
        elif finish in ("released", "forgotten"):
            self.uses.forget(key)
        if start == "released" and finish != "forgotten":
            task = self.worker.state.tasks.get(key)
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
            state = self.worker.state
            soon = state.ready.peekn(state.nthreads)
            self.store.look([read.key for one in soon for read in one.dependencies])
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
        """Send results once they are in memory; what cannot be read is left out, as if lost."""
        worker = self.worker
        most = worker.transfer_outgoing_count_limit
        if most is not False and worker.transfer_outgoing_count + self._sending >= 2 * most:
            # nothing is fetched for a peer that is told to come again
            return {"status": "busy"}
        self._sending += 1
        try:
            name = await self._hold(keys)
        finally:
            self._sending -= 1
        try:
            data = self.store
            keys = [key for key in keys if key in data.fast or key not in data]
            return await self._get_data(comm, keys, who=who, serializers=serializers)
        finally:
            self._release(name)

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
        return await self._gather_dep(worker, to_gather, total_nbytes, stimulus_id=stimulus_id)

    async def update_data(self, data: dict[Any, Any], stimulus_id: str | None = None) -> Any:
        """Take what a client scatters, as fast as others leave."""
        self._release(await self._hold((), 1))
        return self._update_data(data, stimulus_id=stimulus_id)

    async def _hold(
        self, keys: Collection[Any], room: int = 0, now: float | None = None
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
            name = self.store.request(keys, tell, room, now)
            if not there.done():
                # tasks that run may wait for this one, by locks or otherwise
                urging = loop.call_later(PATIENCE, self.store.urge, name)
                try:
                    await there
                finally:
                    urging.cancel()
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
