"""Transfers between workers, counted and slowed down to the speed of a real network.

Processes of one machine copy a gigabyte per second and more, so that bytes moved hardly change
the time there.  A `Link` models a worker's network card: a number of bytes per second out, and
the same number in.  It applies to transfers between workers (dependencies of tasks, and the
shards of P2P shuffles), not to results that clients gather.
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

    A message of n bytes occupies the sender for n / rate seconds, after the messages sent before
    it.  An idle receiver receives it in the same interval, since both ends of a link are busy at
    the same time.  A receiver that is busy with other messages receives it after them.

    Parameters
    ----------
    rate
        Bytes per second, of each direction; None for no limit.
    """

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self.sent_until = self.received_until = 0.0
        #: Bytes sent.
        self.sent = 0

    async def send(self, nbytes: int) -> None:
        """Return when a message has been sent."""
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
        # a sleep takes longer than requested; below 0.1 ms the error would exceed the delay
        if then - now > 1e-4:
            await asyncio.sleep(then - now)


def intercept(
    worker: Worker,
    link: Link,
    active: Callable[[], bool],
    shuffled: Callable[[str, int], None],
) -> None:
    """Route the messages that a worker sends and receives through a link.

    This replaces functions of the process, which must have no other worker.

    Parameters
    ----------
    worker
        The worker.
    link
        Its link.
    active
        Function that returns whether the link limits messages now.
    shuffled
        Called with the sender's address and the bytes of every P2P message received, including
        messages of the worker to itself.
    """
    get_data = worker.handlers["get_data"]
    gather = distributed.worker.get_data_from_worker
    shuffle_send = ShuffleRun._send

    # the parameters of the original: dasktile replaces no handler with others
    async def slow_get_data(comm: Any, keys: Any, who: Any = None, serializers: Any = None) -> Any:
        # `who` is the address of a worker, and None for a client
        if who is not None and active():
            await link.send(_bytes_in_memory(worker, keys))
        return await get_data(comm, keys=keys, who=who, serializers=serializers)

    async def slow_gather(rpc: Any, keys: Any, *arguments: Any, **options: Any) -> Any:
        response = await gather(rpc, keys, *arguments, **options)
        if options.get("who") == worker.address and active() and response["status"] == "OK":
            await link.receive(_bytes_in_memory(worker, response["data"]))
        return response

    async def slow_send(self: Any, address: str, shards: Any) -> Any:
        if active() and address != self.local_address:
            await link.send(nbytes(shards))
        self.raise_if_closed()
        # the body of the original, with the sender's address added
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
        # looked up at every call: the shuffle extension may be created after this plugin
        return await worker.extensions["shuffle"].shuffle_receive(data=data, **options)

    expected = ["self", "address", "shards"]
    if list(inspect.signature(shuffle_send).parameters) != expected:
        raise RuntimeError("ShuffleRun._send has other parameters in this version of distributed")
    worker.handlers["get_data"] = slow_get_data
    worker.handlers["shuffle_receive"] = slow_receive
    distributed.worker.get_data_from_worker = slow_gather
    ShuffleRun._send = slow_send  # type: ignore[method-assign]


def _bytes_in_memory(worker: Worker, keys: Any) -> int:
    tasks = worker.state.tasks
    return sum(tasks[key].nbytes or 0 for key in keys if key in tasks)


def nbytes(data: Any) -> int:
    """Bytes of a P2P message, which is a pickle or nested lists and tuples of arrays."""
    if isinstance(data, np.ndarray):
        return data.nbytes
    if isinstance(data, (bytes, bytearray, memoryview)):
        return len(data)
    if isinstance(data, (list, tuple)):
        return sum(map(nbytes, data))
    return 0


def check(rate: float, size: int = 100_000_000) -> tuple[float, float]:
    """Seconds to transfer `size` bytes between two workers, unlimited and at `rate`."""
    from benchmarks.meters import Cluster

    medians = []
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
            medians.append(sorted(times)[1])
    return medians[0], medians[1]


if __name__ == "__main__":
    unlimited, limited = check(250e6)
    print(f"100 MB between two workers: {unlimited:.3f} s, at 250 MB/s {limited:.3f} s")
