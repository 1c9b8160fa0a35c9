"""The current GPU as a device that counts copies, for the spilling benchmark."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import cupy
import numpy as np
from dask_cuda import device_host_file
from distributed.utils import nbytes

from dasktile.runtime.tiers.cuda import CupyHost

#: Share of the memory of the GPU that results may take where nothing is to be spilled.
ROOMY = 0.7

#: The device of the present run.
_measured: list[Measured] = []


class Measured:
    """Counts of the copies between the GPU and the host, by dasktile or by dask-cuda.

    Attributes
    ----------
    peak
        Peak of the bytes of arrays on the device, looked at with every copy.
    """

    kind = "cupy"

    def __init__(self) -> None:
        _instrument()
        _measured[:] = [self]
        self._lock = threading.Lock()
        self._bytes = {"read": 0, "written": 0}
        self._copying = 0.0
        self.peak = 0
        cupy.get_default_memory_pool().free_all_blocks()

    @property
    def capacity(self) -> int:
        """Bytes that results may take on the device where nothing is to be spilled."""
        return int(ROOMY * cupy.cuda.runtime.memGetInfo()[1])

    def asarray(self, values: np.ndarray[Any, Any]) -> Any:
        """A copy of an array on the device."""
        return cupy.asarray(values)

    def meta(self, ndim: int) -> Any:
        """An empty array on the device."""
        return cupy.empty((0,) * ndim)

    def uniform(self, seed: Sequence[int], size: tuple[int, ...]) -> Any:
        """Numbers between 0 and 1 that depend on the seed, made on the device."""
        first = int(np.random.default_rng(list(seed)).integers(1 << 31))
        return _scrambled(cupy.arange(math.prod(size), dtype="u4"), np.uint32(first)).reshape(size)

    def counts(self) -> dict[str, Any]:
        """Bytes copied to the device (``read``) and from it (``written``), and seconds."""
        return {**self._bytes, "copying": self._copying}

    def count(self, direction: str, size: int, seconds: float) -> None:
        """Count a copy."""
        used = int(cupy.get_default_memory_pool().used_bytes())
        with self._lock:
            self._bytes[direction] += size
            self._copying += seconds
            self.peak = max(self.peak, used)


_scrambled = cupy.ElementwiseKernel(
    "T i, T seed",
    "float64 u",
    """
    unsigned int h = (unsigned int)i * 2654435761u + (unsigned int)seed;
    h = (h ^ (h >> 16)) * 0x85ebca6bu;
    h = (h ^ (h >> 13)) * 0xc2b2ae35u;
    u = (h ^ (h >> 16)) * (1.0 / 4294967296.0);
    """,
    "dasktile_uniform",
)


@functools.cache
def _instrument() -> None:
    CupyHost.store = _counted(CupyHost.store, "written", lambda held, *_: held.size)
    CupyHost.load = _counted(CupyHost.load, "read", lambda _, host, held: held.size)
    device_host_file.device_to_host = _counted(
        device_host_file.device_to_host, "written", lambda made, *_: _frame_bytes(made)
    )
    device_host_file.host_to_device = _counted(
        device_host_file.host_to_device, "read", lambda _, made: _frame_bytes(made)
    )


def _frame_bytes(made: Any) -> int:
    return sum(map(nbytes, made.frames))


def _counted(
    copy: Callable[..., Any], direction: str, size: Callable[..., int]
) -> Callable[..., Any]:
    @functools.wraps(copy)
    def counted(*arguments: Any) -> Any:
        start = time.perf_counter()
        result = copy(*arguments)
        for device in _measured:
            device.count(direction, size(result, *arguments), time.perf_counter() - start)
        return result

    return counted
