"""What workers send each other: counted, and slowed down to the speed of a real network.

Processes of one machine copy a gigabyte per second and more, so that it hardly matters there
what moves.  A `Link` gives a worker a network card of its own: so many bytes a second out, and
as many in.  It knows transfers between workers (dependencies of tasks, and the shards of P2P
shuffles), not what clients gather.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import distributed.worker
import numpy as np
from distributed import Worker
from distributed.shuffle._core import ShuffleRun


class Link:
    """Both directions of a worker's network card.

    A message of n bytes leaves n / rate seconds after it was sent, or after what was sent before
    it.  It arrives when it leaves, unless the receiver was busy receiving others
    meanwhile: a receiver that was idle has had the time, since both ends of a wire are
    busy at once.

    Parameters
    ----------
    rate
        Bytes per second, of each direction; None for no limit.
    """

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self.sent_until = self.received_until = 0.0
        #: Bytes that were sent.
        self.sent = 0

    async def send(self, nbytes: int) -> None:
        """Return when a message has left."""
        self.sent += nbytes
        if self.rate and nbytes:
            now = time.monotonic()
            self.sent_until = max(now, self.sent_until) + nbytes / self.rate
            await self._until(self.sent_until, now)

    async def receive(self, nbytes: int) -> None:
        """Return when a message that arrives now has been received."""
        if self.rate and nbytes:
            now = time.monotonic()
            self.received_until = max(now, self.received_until + nbytes / self.rate)
            await self._until(self.received_until, now)

    async def _until(self, then: float, now: float) -> None:
        # asyncio wakes up late rather than early; a sleep that short costs more than it tells
        if then - now > 1e-4:
            await asyncio.sleep(then - now)


def intercept(
    worker: Worker,
    link: Link,
    active: Callable[[], bool],
    shuffled: Callable[[str, int], None],
) -> None:
    """Let what a worker sends and receives pass a link.

    It changes functions of the process, which must be that worker's own.

    Parameters
    ----------
    worker
        The worker.
    link
        Its link.
    active
        Says whether the link limits anything just now.
    shuffled
        Called with the sender's address and the bytes of every P2P message received,
        those that a worker sends to itself too.
    """
    get_data = worker.handlers["get_data"]
    gather = distributed.worker.get_data_from_worker
    shuffle_send = ShuffleRun._send

    async def slow_get_data(comm: Any, keys: Any, who: Any = None, **options: Any) -> Any:
        # clients do not say who they are
        if who is not None and active():
            await link.send(_known(worker, keys))
        return await get_data(comm, keys=keys, who=who, **options)

    async def slow_gather(rpc: Any, keys: Any, *arguments: Any, **options: Any) -> Any:
        response = await gather(rpc, keys, *arguments, **options)
        if options.get("who") == worker.address and active() and response["status"] == "OK":
            await link.receive(_known(worker, response["data"]))
        return response

    async def slow_send(self: Any, address: str, shards: Any) -> Any:
        if active() and address != self.local_address:
            await link.send(nbytes(shards))
        self.raise_if_closed()
        # as the original does, and says who sends
        return await self.rpc(address).shuffle_receive(
            data=distributed.protocol.to_serialize(shards),
            shuffle_id=self.id,
            run_id=self.run_id,
            sender=self.local_address,
        )

    async def slow_receive(sender: str, data: Any, **options: Any) -> Any:
        size = nbytes(data)
        shuffled(sender, size)
        if active() and sender != worker.address:
            await link.receive(size)
        # looked up late: the shuffle extension may be newer than this plugin
        return await worker.extensions["shuffle"].shuffle_receive(data=data, **options)

    expected = ["self", "address", "shards"]
    if list(inspect.signature(shuffle_send).parameters) != expected:
        raise RuntimeError("this version of distributed sends shards in another way")
    worker.handlers["get_data"] = slow_get_data
    worker.handlers["shuffle_receive"] = slow_receive
    distributed.worker.get_data_from_worker = slow_gather
    ShuffleRun._send = slow_send  # type: ignore[method-assign]


def _known(worker: Worker, keys: Any) -> int:
    tasks = worker.state.tasks
    return sum(tasks[key].nbytes or 0 for key in keys if key in tasks)


def nbytes(data: Any) -> int:
    """Bytes of a P2P message: a pickle, or nested lists and tuples of arrays."""
    if isinstance(data, np.ndarray):
        return data.nbytes
    if isinstance(data, (bytes, bytearray, memoryview)):
        return len(data)
    if isinstance(data, (list, tuple)):
        return sum(map(nbytes, data))
    return 0


def check(rate: float, size: int = 100_000_000) -> tuple[float, float]:
    """Seconds that `size` bytes take from one worker to another, unlimited and at `rate`."""
    from benchmarks.meters import Cluster

    found = []
    for limit in (None, rate):
        with Cluster(2, limit) as cluster:
            client = cluster.client
            first, second = cluster.addresses
            times = []
            for attempt in range(3):
                data = client.submit(
                    np.full, size // 8, float(attempt), workers=[first], pure=False
                )
                data.exception()
                cluster.start()
                started = time.perf_counter()
                client.submit(partial(len), data, workers=[second], pure=False).result()
                times.append(time.perf_counter() - started)
                cluster.stop()
            found.append(sorted(times)[1])
    return found[0], found[1]


if __name__ == "__main__":
    unlimited, limited = check(250e6)
    print(f"100 MB between two workers: {unlimited:.3f} s, at 250 MB/s {limited:.3f} s")
