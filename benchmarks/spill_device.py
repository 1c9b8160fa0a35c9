"""Devices that count copies: an emulated one and a GPU, anew for every run of the benchmark."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import normalize_chunks
from dask.highlevelgraph import HighLevelGraph

import dasktile
from dasktile.testing.emulated import (
    EmulatedArray,
    EmulatedDevice,
    register_with_dask_cuda,
    to_device,
    use,
)

#: Kinds of devices.
KINDS = ("emulated", "cupy")

#: Bytes of the emulated device: more than the budget, results of running tasks and pending copies.
CAPACITY = 1 << 34

#: Bytes per second in each direction, and seconds of latency of every copy, as of a PCIe bus.
BANDWIDTH, LATENCY = 12e9, 5e-6

#: The device of the present run.
_current: list[Any] = []


class Counted(EmulatedDevice):
    """An emulated device that measures the time of its copies.

    Attributes
    ----------
    copying
        Seconds of copies in both directions.
    """

    kind = "emulated"

    def __init__(self) -> None:
        super().__init__(CAPACITY, BANDWIDTH, LATENCY)
        self.copying = 0.0

    def _copy(self, array: Any, lane: Any) -> Any:
        start = time.perf_counter()
        try:
            return super()._copy(array, lane)
        finally:
            with self._lock:
                self.copying += time.perf_counter() - start

    def meta(self, ndim: int) -> Any:
        """An empty array on the device."""
        return to_device(np.empty((0,) * ndim))

    def uniform(self, seed: Sequence[int], size: tuple[int, ...]) -> EmulatedArray:
        """Random numbers between 0 and 1, made on the device."""
        array: EmulatedArray = self.wrap(np.random.default_rng(seed).random(size), (), True)
        return array

    def counts(self) -> dict[str, Any]:
        """Bytes copied to the device (``read``) and from it (``written``), and seconds."""
        return {"read": self.copied_up, "written": self.copied_down, "copying": self.copying}


def has_dask_cuda() -> bool:
    """Whether dask-cuda, which the benchmark compares with, is installed."""
    return find_spec("dask_cuda") is not None


def new_device(kind: str) -> Any:
    """Create a device of one of `KINDS`, and make it the current one of this process."""
    if kind == "cupy":
        device = import_module("benchmarks.spill_cupy").Measured()
    else:
        register_with_dask_cuda()
        device = Counted()
        use(device)
    _current[:] = [device]
    return device


def data_of(
    engine: str, device: Any, budget: int | None, memory_limit: int | None, host: int | None
) -> Any:
    """The ``data`` argument of workers: the mapping of their results.

    Parameters
    ----------
    engine
        ``dict``, ``dask-cuda`` or ``dasktile``.
    device
        The device.
    budget
        Bytes of results on the device; None for unlimited memory.
    memory_limit
        The worker's memory limit in bytes; None for unlimited memory.
    host
        Bytes of results in the host's memory; None for unlimited memory.
    """
    on_device = device.capacity if budget is None else budget
    if engine == "dict":
        return dict
    if engine == "dasktile":
        return dasktile.worker_data(memory_limit, on_device, device=device.kind)
    mapping = import_module("dask_cuda.device_host_file").DeviceHostFile
    return mapping, {"device_memory_limit": on_device, "memory_limit": host}


def input_on_device(name: str, shape: tuple[int, ...], chunks: tuple[int, ...]) -> da.Array:
    """A lazy input whose chunks are created on the device."""
    all_chunks = normalize_chunks(chunks, shape, dtype=float)
    label = f"{name}-{sum(map(ord, name))}-{'x'.join(map(str, shape))}"
    tiles = {
        (label, *index): (_uniform, [sum(map(ord, name)), *index], size)
        for index, size in zip(
            itertools.product(*(range(len(sizes)) for sizes in all_chunks)),
            itertools.product(*all_chunks),
            strict=True,
        )
    }
    graph = HighLevelGraph.from_collections(label, tiles)
    return da.Array(graph, label, all_chunks, meta=_current[0].meta(len(shape)))


def _uniform(seed: list[int], size: tuple[int, ...]) -> Any:
    return _current[0].uniform(seed, size)
