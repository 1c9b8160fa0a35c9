"""Calibration: measures the speed of a cluster and stores the result on its scheduler."""

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
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client

from dasktile._compat.dask import CALIBRATE, List, Task, TaskRef, require
from dasktile._compat.distributed import metadata
from dasktile.cluster.clients import client_of
from dasktile.cluster.settings import ClusterSettings
from dasktile.cluster.target import host_of
from dasktile.errors import parse_flag
from dasktile.tiling.calibration import Calibration

#: Path of the result in the metadata of the scheduler, where every client can read it.
KEY = ["dasktile", "calibration"]

#: Name of the scheduler plugin that restores the result after a restart.
RESTORER = "dasktile-calibration"

_DEFAULT = ClusterSettings()


def calibrate(client: Client | None = None, refresh: bool = False) -> Any:
    """Measure the speed of a cluster, so that plans are made for it.

    This takes a few seconds, once.  The result is stored on the scheduler for as long as it runs,
    also through ``client.restart()``, and other clients read it there.  Plans for this cluster
    (:func:`dasktile.optimize`, :func:`dasktile.explain`) then use it, except for the settings
    ``dasktile.cost.*`` that you set yourself.

    A result stays in use when workers join or leave, and is returned unchanged; its `workers` and
    `threads` are those of the measurement.  Use `refresh` for a new measurement.

    Parameters
    ----------
    client
        A client of the cluster, which should be idle; by default the current client.  Await the
        result of an asynchronous client.  Its plans do not use the calibration, since they cannot
        wait for the scheduler.
    refresh
        True to measure even if a result is stored.

    Returns
    -------
    Calibration
        A ``Calibration``: bytes a second between workers of different hosts and between those of
        one, seconds a task, operations a second and bytes a second to memory.

    Raises
    ------
    TypeError
        If `client` is no ``distributed.Client``.
    ValueError
        If the client is closed, if there is no current client, or if the cluster has no workers.
    TimeoutError
        If the cluster does not finish within a minute.

    Examples
    --------
    >>> import dasktile
    >>> from distributed import Client
    >>> with Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
    ...     measured = dasktile.calibrate(client)
    >>> measured.workers, measured.bandwidth > 0
    (2, True)
    """
    require(CALIBRATE, "dasktile.calibrate")
    client = client_of(client)
    return client.sync(_calibrate, client, parse_flag("refresh", refresh), _DEFAULT)


async def _calibrate(client: Client, refresh: bool, settings: ClusterSettings) -> Calibration:
    if not refresh:
        known = Calibration.from_dict(await client.get_metadata(KEY, default=None))
        if known is not None:
            return known
    threads: dict[str, int] = dict(await client.nthreads())
    if not threads:
        raise ValueError(f"client={client!r}: its cluster has no workers yet")
    try:
        async with asyncio.timeout(settings.time_limit):
            calibration = await _measure(client, threads, settings)
    except TimeoutError:
        raise TimeoutError(
            f"calibration did not finish within {settings.time_limit:.0f} s:"
            " the cluster is busy; try again when it is idle"
        ) from None
    await _keep(client, calibration)
    return calibration


async def _keep(client: Client, calibration: Calibration) -> None:
    """Store the result on the scheduler."""
    value = calibration.to_dict()
    await client.set_metadata(KEY, value)
    topic, item = KEY
    keep = metadata.keeper(RESTORER, topic, item, value)
    unavailable = await client.run_on_scheduler(keep)
    if unavailable:
        warnings.warn(unavailable, stacklevel=2)


async def _measure(
    client: Client, threads: dict[str, int], settings: ClusterSettings
) -> Calibration:
    """Measure all quantities of a calibration."""
    sample = _evenly_spaced(sorted(threads), settings.sample)
    # one address of each process, since no bytes are sent within a process
    processes = {
        address.rpartition("/")[0] if address.startswith("inproc:") else address: address
        for address in sorted(threads)
    }
    every = [address for address in sample for _ in range(threads[address])]
    multiply, write = _multiply(), _write()
    # the first product loads libraries
    await _run(client, [(address, multiply, 0.0) for address in sample], settings)
    rates = await _run(
        client, [(address, multiply, settings.compute_seconds) for address in every], settings
    )
    written = await _run(
        client, [(address, write, settings.compute_seconds) for address in every], settings
    )
    hosts = _by_host(list(processes.values()))
    neighbours = _neighbours(hosts, settings.sample) if len(hosts) > 1 else []
    return Calibration(
        bandwidth=await _bandwidth(client, _far_apart(hosts, settings.sample), settings),
        bandwidth_within_host=await _bandwidth(client, neighbours, settings),
        task_seconds=await _task_seconds(client, sample, settings),
        flops=median(rates),
        workers=len(processes),
        threads=sum(threads.values()),
        memory=median(written),
    )


def _evenly_spaced(addresses: Sequence[str], most: int) -> list[str]:
    """At most `most` of the addresses, evenly spaced."""
    count = min(len(addresses), most)
    return [addresses[index * len(addresses) // count] for index in range(count)]


@dataclass(frozen=True, slots=True)
class _WorkerTasks:
    """Tasks by key, all run on one worker, and the names of the layers that they read."""

    worker: str
    tasks: Mapping[Any, Any]
    reads: frozenset[str] = frozenset()


async def _compute(
    client: Client,
    layers: Mapping[str, _WorkerTasks],
    keys: Sequence[Any],
    settings: ClusterSettings,
) -> list[Any]:
    """Results of one graph; all of its keys are released afterwards."""
    graph = HighLevelGraph(
        {
            name: MaterializedLayer(layer.tasks, annotations={"workers": [layer.worker]})
            for name, layer in layers.items()
        },
        {name: set(layer.reads) for name, layer in layers.items()},
    )
    futures = client.get(graph, list(keys), sync=False, priority=settings.priority)
    try:
        return list(await asyncio.gather(*futures))
    finally:
        for future in futures:
            future.release()


async def _run(
    client: Client, calls: Sequence[tuple[str, Any, float]], settings: ClusterSettings
) -> list[float]:
    """Results of functions of a number, each run on a given worker, all at the same time."""
    layers = {}
    for address, function, number in calls:
        name = _name()
        layers[name] = _WorkerTasks(address, {name: Task(name, function, number)})
    return await _compute(client, layers, list(layers), settings)


def _name() -> str:
    return f"calibrate-{uuid.uuid4().hex}"


# Operations a second ----------------------------------------------------------------

# Nested functions are sent by value, since workers may not have this package.


def _multiply() -> Any:
    def multiply(seconds: float) -> float:
        """Operations a second of matrix products, measured for a time, but at least one product."""
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
        """Bytes a second written by an elementwise operation, each result to new memory."""
        array = np.ones(2**20)
        began = perf_counter()
        count = 0
        while not count or perf_counter() - began < seconds:
            # the result is dropped, so that the next one is allocated again
            np.add(array, 1.0)
            count += 1
        return float(array.nbytes * count / (perf_counter() - began))

    return write


# Bytes a second ---------------------------------------------------------------------


def _by_host(addresses: Sequence[str]) -> list[list[str]]:
    """The addresses of each host."""
    hosts: dict[str, list[str]] = {}
    for address in addresses:
        hosts.setdefault(host_of(address), []).append(address)
    return list(hosts.values())


def _far_apart(hosts: Sequence[Sequence[str]], most: int) -> list[tuple[str, str]]:
    """Pairs of at most `most` workers, of different hosts where there are several."""
    addresses = [address for host in hosts for address in host]
    half = min(len(addresses), most) // 2
    if not half:
        return []
    if len(hosts) == 1:
        chosen = _evenly_spaced(addresses, 2 * half)
        return list(zip(chosen[:half], chosen[half:], strict=True))
    # the first workers of all hosts, the second ones, ...: neighbours are of different hosts
    turns = [
        host[turn] for turn in range(max(map(len, hosts))) for host in hosts if turn < len(host)
    ]
    pairs = list(zip(turns[0::2], turns[1::2], strict=False))
    of_two = [pair for pair in pairs if len(_by_host(pair)) == 2]
    return of_two[:half]


def _neighbours(hosts: Sequence[Sequence[str]], most: int) -> list[tuple[str, str]]:
    """Pairs of workers of one host, of at most `most` workers."""
    pairs = [pair for host in hosts for pair in zip(host[0::2], host[1::2], strict=False)]
    return pairs[: most // 2]


async def _bandwidth(
    client: Client, pairs: Sequence[tuple[str, str]], settings: ClusterSettings
) -> float | None:
    """Bytes a second that a worker receives while pairs of workers exchange arrays."""
    if not pairs:
        return None
    # opens the connections
    await _round_trips(client, pairs, 8, settings)
    (first,) = await _repeated(client, pairs, settings.first_bytes, 1, settings)
    estimate = settings.first_bytes * settings.travel_seconds / first
    nbytes = round(min(max(estimate, settings.least_bytes), settings.most_bytes))
    # the time of a few bytes is the overhead of the scheduler
    little = median(await _repeated(client, pairs, 8, settings.repeat, settings))
    much = median(await _repeated(client, pairs, nbytes, settings.repeat, settings))
    return nbytes / max(much - little, much / 4)


async def _repeated(
    client: Client,
    pairs: Sequence[tuple[str, str]],
    nbytes: int,
    times: int,
    settings: ClusterSettings,
) -> list[float]:
    """Seconds of one way, the median over the pairs, of each repetition."""
    return [median(await _round_trips(client, pairs, nbytes, settings)) for _ in range(times)]


async def _round_trips(
    client: Client, pairs: Sequence[tuple[str, str]], nbytes: int, settings: ClusterSettings
) -> list[float]:
    """Seconds of one way; every worker sends an array to its partner and receives it back.

    Only the clock of the sender is read, and no client is involved.
    """

    def begin(size: int) -> Any:
        # random numbers cannot be compressed; the first element is the time
        array = np.random.default_rng().random(max(1, size // 8))
        array[0] = perf_counter()
        return array

    def back(array: Any) -> Any:
        return array

    def end(array: Any) -> float:
        return float((perf_counter() - array[0]) / 2)

    layers: dict[str, _WorkerTasks] = {}
    ends = []
    for first_worker, second_worker in pairs:
        for here, there in ((first_worker, second_worker), (second_worker, first_worker)):
            first, second, third = _name(), _name(), _name()
            layers[first] = _WorkerTasks(here, {first: Task(first, begin, nbytes)})
            layers[second] = _WorkerTasks(
                there, {second: Task(second, back, TaskRef(first))}, frozenset({first})
            )
            layers[third] = _WorkerTasks(
                here, {third: Task(third, end, TaskRef(second))}, frozenset({second})
            )
            ends.append(third)
    return await _compute(client, layers, ends, settings)


# Seconds a task ---------------------------------------------------------------------


async def _task_seconds(
    client: Client, addresses: Sequence[str], settings: ClusterSettings
) -> float:
    """Seconds that one more trivial task adds to a graph."""
    short, long = settings.few_tasks, settings.many_tasks
    # the first tasks of a new cluster take longer
    await _trivial(client, addresses, long, settings)
    few = median(
        [await _trivial(client, addresses, short, settings) for _ in range(settings.repeat)]
    )
    many = median(
        [await _trivial(client, addresses, long, settings) for _ in range(settings.repeat)]
    )
    # the difference does not contain the latency of the client
    return max(many - few, many / 4) / ((long - short) * len(addresses))


async def _trivial(
    client: Client, addresses: Sequence[str], count: int, settings: ClusterSettings
) -> float:
    """Seconds of a graph of `count` trivial tasks on each worker, without transfers."""
    layers: dict[str, _WorkerTasks] = {}
    ends = []
    for address in addresses:
        name = _name()
        tasks: dict[Any, Any] = {}
        for index in range(count):
            key = (name, index)
            # half of them read two others, as in usual graphs
            first, second = (name, index - count // 2), (name, max(0, index - count // 2 - 1))
            tasks[key] = (
                Task(key, operator.neg, index)
                if index < count // 2
                else Task(key, operator.add, TaskRef(first), TaskRef(second))
            )
        end = (name, count)
        tasks[end] = Task(end, len, List(*map(TaskRef, tasks)))
        layers[name] = _WorkerTasks(address, tasks)
        ends.append(end)
    began = perf_counter()
    await _compute(client, layers, ends, settings)
    return perf_counter() - began
