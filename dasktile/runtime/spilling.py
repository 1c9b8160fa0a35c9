"""A worker whose results lie in a store, fetched before tasks and peers read them.

Distributed reads results where it stands, on the worker's event loop: while one comes back
from disk, the worker hears nobody.  Here a task, or a peer, first asks the store for all that
it is going to read, and waits for it as it would for the network.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Collection, MutableMapping
from contextlib import suppress
from typing import Any

import dask
from dask.utils import key_split, parse_bytes
from distributed import Worker, system
from distributed.comm.core import Comm
from distributed.core import Status
from distributed.protocol.compression import get_compression_settings

from dasktile.runtime.nextuse import NextUses, number
from dasktile.runtime.store import LostTileError, TileStore, unknown
from dasktile.runtime.tiers import Disk
from dasktile.schedule.residency import Settings

logger = logging.getLogger(__name__)

_MEMORY = "distributed.worker.memory"

#: Seconds for which a task waits for room while others run.
PATIENCE = 5.0


def make_store(worker_local_directory: str, memory_limit: int | None = None) -> TileStore:
    """A store of results in memory and on disk, by distributed's own settings.

    Parameters
    ----------
    worker_local_directory
        Where the worker has its files.
    memory_limit
        Of the worker, in bytes; results may take the part of it that
        ``distributed.worker.memory.target`` says.  None for that of the machine.
    """
    limit = system.MEMORY_LIMIT if memory_limit is None else memory_limit
    most = dask.config.get(f"{_MEMORY}.max-spill")
    disk = Disk(
        os.path.join(worker_local_directory, "storage"),
        get_compression_settings(f"{_MEMORY}.spill-compression"),
    )
    settings = Settings((_target(limit), None if most is False else parse_bytes(most)))
    return TileStore([disk], settings, clock=time.perf_counter)


def _target(limit: int) -> int | None:
    target = dask.config.get(f"{_MEMORY}.target")
    part = target if target is not False else dask.config.get(f"{_MEMORY}.spill")
    return None if part is False else int(part * limit)


class Spilling:
    """Puts a store into a worker, and takes it out again.

    Parameters
    ----------
    worker
        A worker that runs, or is about to.
    store
        What it is to have for its results; empty, or the worker's already.

    Attributes
    ----------
    errors
        Errors in here; the first is logged, none is raised.
    """

    def __init__(self, worker: Worker, store: TileStore) -> None:
        self.worker = worker
        self.store = store
        self.errors = 0
        self.uses = NextUses(worker.state.tasks, 2 * worker.state.nthreads + 2)
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
        if worker.data is not self.store:
            self._before = worker.data
            for key in list(self._before):
                self.store[key] = self._before[key]
                del self._before[key]
                # they may be more than fits in memory
                self.store.settle()
            worker.memory_manager.data = worker.state.data = self.store
        self.store.next_use = self._next_use
        self._expect(list(self.store))
        limit = worker.memory_manager.memory_limit
        if limit:
            self.store.resize(0, _target(limit))
        self._execute = worker.execute
        self._get_data = worker.handlers["get_data"]
        worker.execute = self.execute
        worker.handlers["get_data"] = self.get_data

    def detach(self) -> None:
        """Leave the worker as it was.  A store that it has had from its start stays."""
        worker: Any = self.worker
        if worker.execute == self.execute:
            del worker.execute
        if worker.handlers["get_data"] == self.get_data:
            worker.handlers["get_data"] = self._get_data
        self.store.next_use = unknown
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

    async def execute(self, key: Any, *, stimulus_id: str) -> Any:
        """Run a task once all that it reads is in memory."""
        name = None
        keys: list[Any] = []
        kind = key_split(key)
        task = self.worker.state.tasks.get(key)
        if task is not None:
            keys = [read.key for read in task.dependencies]
            now = self._starts(task)
            name = await self._hold(keys, self._made.get(kind, 0), now)
        if name is not None:
            self._holds[key] = name
        try:
            event = await self._execute(key, stimulus_id=stimulus_id)
        finally:
            self._expect(keys, key)
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
                self._expect([read.key for read in task.dependencies])

    def _starts(self, task: Any) -> float | None:
        """Tell the store of a task that starts, and of those that come next."""
        try:
            state = self.worker.state
            runs = [one.priority for one in state.executing if one.priority]
            soon = [one.priority for one in state.ready.peekn(state.nthreads) if one.priority]
            self.store.expect(self.uses.advance([*runs, *soon[:1]]))
            if soon:
                self.store.look(max(map(number, soon)))
            return number(task.priority) if task.priority else None
        except Exception:
            self._failed("look ahead")
            return None

    def _expect(self, keys: Collection[Any], without: Any = None) -> None:
        try:
            self.store.expect({key: self.uses.of(key, without) for key in keys})
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

    def _failed(self, what: str) -> None:
        self.errors += 1
        if self.errors == 1:
            logger.exception("dasktile could not %s; further errors are only counted", what)


def _done(there: asyncio.Future[None]) -> None:
    if not there.done():
        there.set_result(None)


def worker_data(memory_limit: str | float | None = None) -> tuple[Any, dict[str, Any]]:
    """What workers are to keep their results in: for ``LocalCluster(data=...)``.

    Parameters
    ----------
    memory_limit
        Of each worker, in bytes or as ``"2 GB"``; by default that of the machine, until the
        worker is asked for its own.

    Returns
    -------
    A function and its arguments, which every worker calls for itself.
    """
    limit = None if memory_limit in (None, "auto") else parse_bytes(memory_limit)
    if limit == 0 or (isinstance(memory_limit, float) and memory_limit <= 1):
        raise ValueError(f"memory_limit must be bytes, or a text as '2 GB', not {memory_limit!r}")
    return make_store, {"memory_limit": limit}
