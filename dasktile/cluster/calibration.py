"""How fast a cluster is: a few seconds of measuring, kept on the scheduler."""

from __future__ import annotations

import asyncio
import operator
import uuid
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from dask._task_spec import List, Task, TaskRef
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client

from dasktile._compat import distributed as internals
from dasktile.cluster.clients import client_of
from dasktile.tiling.seconds import Calibration

#: Where the scheduler keeps the result for every client.
KEY = ["dasktile", "calibration"]

#: Name of the plugin that puts the result back when the scheduler forgets what it was told.
KEEPER = "dasktile-calibration"

#: Seconds after which measuring is given up, on a cluster that does not get to it.
LIMIT = 60.0

#: Workers that are measured at the most; of more, some that are evenly spread.
_SAMPLE = 16

#: Seconds that each thread multiplies matrices, and then adds arrays.
_COMPUTE = 0.3

#: Bytes of the arrays sent: the first to get to know the bandwidth, then as much as
#: travels in `_TRAVEL` seconds, within bounds.
_FIRST, _LEAST, _MOST = 2 * 2**20, 2**20, 32 * 2**20
_TRAVEL = 0.05

#: Trivial tasks of each worker in a short graph and in a long one; and how often.
_FEW, _MANY = 10, 200
_REPEAT = 3

#: Before whatever else waits on the cluster.
_PRIORITY = 1_000_000


def calibrate(client: Client | None = None, refresh: bool = False) -> Any:
    """Measure how fast a cluster is, so that plans are made for it.

    Takes a few seconds, once: the result is kept on the scheduler for as long as it runs,
    also through ``client.restart()``, and other clients find it there.  Plans that are made
    for this cluster (:func:`dasktile.optimize`, :func:`dasktile.explain`) use it from then
    on, except for the settings ``dasktile.cost.*`` that you set yourself.

    A result stays in use when workers join or leave, and is returned as it is; its
    `workers` and `threads` say what it was measured on.  Measure again with `refresh`.

    Parameters
    ----------
    client
        A client of the cluster, which is best idle; by default the current one.  With an
        asynchronous one, await the result; plans are then made without it, since they
        cannot wait for the scheduler.
    refresh
        True to measure even if there is a result.

    Returns
    -------
    A :class:`~dasktile.tiling.seconds.Calibration`: bytes a second between workers,
    seconds a task, operations a second and bytes a second to memory.

    Raises
    ------
    TypeError
        If `client` is no ``distributed.Client``.
    ValueError
        If it is closed, there is none, or its cluster has no workers.
    TimeoutError
        If the cluster does not get to it within a minute.
    """
    client = client_of(client)
    if not isinstance(refresh, bool):
        raise TypeError(
            f"refresh must be True or False; got {refresh!r} of type {type(refresh).__name__}"
        )
    return client.sync(_calibrate, client, refresh)


async def _calibrate(client: Client, refresh: bool) -> Calibration:
    if not refresh:
        known = Calibration.from_dict(await client.get_metadata(KEY, default=None))
        if known is not None:
            return known
    threads: dict[str, int] = dict(await client.nthreads())
    if not threads:
        raise ValueError(f"client={client!r}: its cluster has no workers yet")
    try:
        async with asyncio.timeout(LIMIT):
            found = await _measured(client, threads)
    except TimeoutError:
        raise TimeoutError(
            f"the cluster did not get to calibration within {LIMIT:.0f} s; is it busy?"
        ) from None
    await _keep(client, found)
    return found


async def _keep(client: Client, found: Calibration) -> None:
    """Leave the result on the scheduler."""
    value = found.to_dict()
    await client.set_metadata(KEY, value)
    topic, item = KEY
    keep = internals.metadata_keeper(KEEPER, topic, item, value)
    unavailable = await client.run_on_scheduler(keep)
    if unavailable:
        warnings.warn(unavailable, stacklevel=2)


async def _measured(client: Client, threads: dict[str, int]) -> Calibration:
    sample = _spread(sorted(threads), _SAMPLE)
    # one address of each process: within a process nothing is sent
    processes = {
        address.rpartition("/")[0] if address.startswith("inproc:") else address: address
        for address in sorted(threads)
    }
    every = [address for address in sample for _ in range(threads[address])]
    multiply, write = _multiply(), _write()
    # the first product loads libraries
    await _run(client, [(address, multiply, 0.0) for address in sample])
    rates = await _run(client, [(address, multiply, _COMPUTE) for address in every])
    written = await _run(client, [(address, write, _COMPUTE) for address in every])
    return Calibration(
        bandwidth=await _bandwidth(client, list(processes.values())),
        task_seconds=await _task_seconds(client, sample),
        flops=median(rates),
        workers=len(processes),
        threads=sum(threads.values()),
        memory=median(written),
    )


def _spread(addresses: Sequence[str], most: int) -> list[str]:
    count = min(len(addresses), most)
    return [addresses[index * len(addresses) // count] for index in range(count)]


@dataclass(frozen=True, slots=True)
class _Layer:
    """Tasks by key, all run on one worker, and the layers whose results they read."""

    worker: str
    tasks: Mapping[Any, Any]
    reads: frozenset[str] = frozenset()


async def _compute(client: Client, layers: Mapping[str, _Layer], keys: Sequence[Any]) -> list[Any]:
    """Results of one graph; nothing of it stays on the cluster."""
    graph = HighLevelGraph(
        {
            name: MaterializedLayer(layer.tasks, annotations={"workers": [layer.worker]})
            for name, layer in layers.items()
        },
        {name: set(layer.reads) for name, layer in layers.items()},
    )
    futures = client.get(graph, list(keys), sync=False, priority=_PRIORITY)
    try:
        return list(await asyncio.gather(*futures))
    finally:
        for future in futures:
            future.release()


async def _run(client: Client, calls: Sequence[tuple[str, Any, float]]) -> list[float]:
    """Results of functions of a number, each run on a worker, all at once."""
    layers = {}
    for address, function, number in calls:
        name = _name()
        layers[name] = _Layer(address, {name: Task(name, function, number)})
    return await _compute(client, layers, list(layers))


def _name() -> str:
    return f"calibrate-{uuid.uuid4().hex}"


# Operations a second ----------------------------------------------------------------

# Functions of no module are sent by value, to where the package may be missing.


def _multiply() -> Any:
    def multiply(seconds: float) -> float:
        """Operations a second of products of matrices, for a time and once at least."""
        matrix = np.ones((1000, 1000) if seconds else (64, 64))
        result = np.empty_like(matrix)
        began = perf_counter()
        count = 0
        while not count or perf_counter() - began < seconds:
            np.matmul(matrix, matrix, out=result)
            count += 1
        return float(2 * len(matrix) ** 3 * count / (perf_counter() - began))

    return multiply


def _write() -> Any:
    def write(seconds: float) -> float:
        """Bytes a second of the results of an elementwise operation, each in new memory."""
        array = np.ones(2**20)
        began = perf_counter()
        count = 0
        while not count or perf_counter() - began < seconds:
            # dropped at once, so that the next one is new
            np.add(array, 1.0)
            count += 1
        return float(array.nbytes * count / (perf_counter() - began))

    return write


# Bytes a second ---------------------------------------------------------------------


async def _bandwidth(client: Client, addresses: Sequence[str]) -> float | None:
    """Bytes a second that a worker receives, pairs of them sending to and fro at once."""
    half = min(len(addresses), _SAMPLE) // 2
    if not half:
        return None
    chosen = _spread(addresses, 2 * half)
    # partners far apart in the order of addresses: on other hosts, if there are any
    pairs = list(zip(chosen[:half], chosen[half:], strict=True))
    # connects them, too
    await _to_and_fro(client, pairs, 8)
    (first,) = await _each(client, pairs, _FIRST, 1)
    nbytes = round(min(max(_FIRST * _TRAVEL / first, _LEAST), _MOST))
    # what little data takes is the way through the scheduler
    little = median(await _each(client, pairs, 8, _REPEAT))
    much = median(await _each(client, pairs, nbytes, _REPEAT))
    return nbytes / max(much - little, much / 4)


async def _each(
    client: Client, pairs: Sequence[tuple[str, str]], nbytes: int, times: int
) -> list[float]:
    """Seconds that arrays took to travel once, the median over the pairs each time."""
    return [median(await _to_and_fro(client, pairs, nbytes)) for _ in range(times)]


async def _to_and_fro(client: Client, pairs: Sequence[tuple[str, str]], nbytes: int) -> list[float]:
    """Seconds for one way; every worker sends an array to its partner and gets it back.

    One clock alone, that of the sender, times it, and no client is on the way.
    """

    def begin(size: int) -> Any:
        # what cannot be compressed, its first number the time
        array = np.random.default_rng().random(max(1, size // 8))
        array[0] = perf_counter()
        return array

    def back(array: Any) -> Any:
        return array

    def end(array: Any) -> float:
        return float((perf_counter() - array[0]) / 2)

    layers: dict[str, _Layer] = {}
    ends = []
    for one, other in pairs:
        for here, there in ((one, other), (other, one)):
            first, second, third = _name(), _name(), _name()
            layers[first] = _Layer(here, {first: Task(first, begin, nbytes)})
            layers[second] = _Layer(
                there, {second: Task(second, back, TaskRef(first))}, frozenset({first})
            )
            layers[third] = _Layer(
                here, {third: Task(third, end, TaskRef(second))}, frozenset({second})
            )
            ends.append(third)
    return await _compute(client, layers, ends)


# Seconds a task ---------------------------------------------------------------------


async def _task_seconds(client: Client, addresses: Sequence[str]) -> float:
    """Seconds that one more task of a graph takes, where no task does anything."""
    await _trivial(client, addresses, _FEW)
    few = median([await _trivial(client, addresses, _FEW) for _ in range(_REPEAT)])
    many = median([await _trivial(client, addresses, _MANY) for _ in range(_REPEAT)])
    # the difference leaves out the way there and back
    return max(many - few, many / 4) / ((_MANY - _FEW) * len(addresses))


async def _trivial(client: Client, addresses: Sequence[str], count: int) -> float:
    """Seconds for a graph of as many tasks on each worker, which nothing moves between."""
    layers: dict[str, _Layer] = {}
    ends = []
    for address in addresses:
        name = _name()
        tasks: dict[Any, Any] = {}
        for index in range(count):
            key = (name, index)
            # half of them read two others, as in graphs that do something
            first, second = (name, index - count // 2), (name, max(0, index - count // 2 - 1))
            tasks[key] = (
                Task(key, operator.neg, index)
                if index < count // 2
                else Task(key, operator.add, TaskRef(first), TaskRef(second))
            )
        end = (name, count)
        tasks[end] = Task(end, len, List(*map(TaskRef, tasks)))
        layers[name] = _Layer(address, tasks)
        ends.append(end)
    began = perf_counter()
    await _compute(client, layers, ends)
    return perf_counter() - began
