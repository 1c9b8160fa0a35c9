"""An emulated device: memory that is limited and slow to copy, like a GPU's, without CUDA.

Arrays of the device are in separate allocations.  These count against a capacity, take time to
copy to and from the host, and are filled with NaN once they are freed.  The arrays are never
converted to NumPy arrays implicitly.  For tests, and for benchmarks on machines without a GPU.

Examples
--------
>>> device = use(EmulatedDevice(capacity=1000))
>>> x = device.asarray(np.ones((3, 5)))
>>> (x.T @ x).get().sum(), device.used
(np.float64(75.0), 120)
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from importlib import import_module
from typing import Any

import numpy as np
from dask.array.chunk_types import register_chunk_type
from dask.array.dispatch import numel_lookup, to_numpy_dispatch
from dask.base import normalize_token
from dask.sizeof import sizeof

from dasktile._compat.distributed import checks, serialization
from dasktile.runtime.tiers.base import Device, Tier
from dasktile.runtime.tiers.host import Host
from dasktile.testing.emulated_array import Allocation, Array, EmulatedArray

#: Bytes of the device of a process where no other was set by :func:`use`.
CAPACITY = 1 << 30


class DeviceFullError(MemoryError):
    """There is not enough free memory on the device."""


class _Lane:
    """Copies in one direction, one after another."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.bytes = 0


class EmulatedDevice(Device):
    """A device's memory.

    Parameters
    ----------
    capacity
        Bytes.
    bandwidth
        Bytes a second that are copied in each direction, None for no limit.
    latency
        Seconds that every copy takes in addition.
    clock
        Function that returns the time in seconds.
    sleep
        Function that waits for a number of seconds.
    """

    name = "emulated"

    def __init__(
        self,
        capacity: int,
        bandwidth: float | None = None,
        latency: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.capacity = capacity
        self._bandwidth = math.inf if bandwidth is None else bandwidth
        self._latency = latency
        self._clock = clock
        self._sleep = sleep
        self._make_room: Callable[[int], bool] | None = None
        self._lock = threading.Lock()
        self.freed: deque[int] = deque()
        self._used = self._peak = 0
        self._numbers = itertools.count()
        self._up = _Lane()
        self._down = _Lane()

    def __reduce__(self) -> Any:
        # every process has its own device
        return current, ()

    @property
    def used(self) -> int:
        """Bytes in use."""
        with self._lock:
            return self._counted()

    @property
    def peak(self) -> int:
        """The most bytes that were in use at once."""
        return self._peak

    @property
    def copied_up(self) -> int:
        """Bytes copied to the device."""
        return self._up.bytes

    @property
    def copied_down(self) -> int:
        """Bytes copied from the device."""
        return self._down.bytes

    def total(self) -> int:
        return self.capacity

    def free(self) -> int:
        return self.capacity - self.used

    def in_use(self) -> int:
        return self.used

    def holds(self, value: Any) -> bool:
        if isinstance(value, dict):
            return any(map(self.holds, value.values()))
        if isinstance(value, (list, tuple, set, frozenset)):
            return any(map(self.holds, value))
        return isinstance(value, EmulatedArray)

    def memory_of(self, value: Any) -> tuple[Hashable, int] | None:
        if not isinstance(value, EmulatedArray):
            return None
        return value.allocation.number, value.allocation.buffer.nbytes

    def host(self, limit: int) -> Tier:
        if current() is not self:
            raise ValueError("the device must be that of the process; set it by use()")
        return Host(copied=(EmulatedArray,))

    def on_full(self, make_room: Callable[[int], bool] | None) -> None:
        self._make_room = make_room

    def remove_on_full(self, make_room: Callable[[int], bool]) -> None:
        if self._make_room == make_room:
            self._make_room = None

    def asarray(self, value: Any) -> EmulatedArray:
        """Copy an array to the device.

        Parameters
        ----------
        value
            An array of the host.  An array of the device is returned unchanged.

        Raises
        ------
        DeviceFullError
            If there is not enough free memory.
        TypeError
            If its elements are objects.
        """
        if isinstance(value, EmulatedArray):
            return value
        host = np.asarray(value)
        _check(host.dtype)
        self._reserve(host.nbytes)
        try:
            return self._own(self._copy(host, self._up))
        except BaseException:
            self.freed.append(host.nbytes)
            raise

    def copy_to_host(self, array: Array) -> Array:
        """A copy of an array's memory, in the same order."""
        return self._copy(array, self._down)

    @property
    def loader(self) -> Callable[[Any], EmulatedArray]:
        """Copies an array to the device of the process that unpickles it."""
        return to_device

    def wrap(self, result: Any, sources: Iterable[EmulatedArray], private: bool) -> Any:
        """The result of a NumPy function of arrays of the device, as arrays of the device.

        Parameters
        ----------
        result
            An array, a number, or several of them.  Any other value is returned unchanged.
        sources
            The arguments of the function.
        private
            Whether the result is a view of these, or has memory without other references.
        """
        if isinstance(result, (tuple, list)):
            parts = [self.wrap(part, sources, private) for part in result]
            # a named tuple is made by its _make
            return getattr(type(result), "_make", type(result))(parts)
        if not isinstance(result, (np.ndarray, np.generic)):
            return result
        array = np.asarray(result)
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        for source in sources:
            if source.allocation.buffer is owner and array.size:
                return EmulatedArray(array, source.allocation)
        _check(array.dtype)
        self._reserve(array.nbytes)
        if not private:
            return self._own(self._copy(array, self._up))
        fits = owner.flags.owndata and owner.nbytes == array.nbytes
        return self._own(array if fits else array.copy(order="K"))

    def _own(self, array: Array) -> EmulatedArray:
        """An array of the device from memory that is reserved and has no other references."""
        buffer = array
        while isinstance(buffer.base, np.ndarray):
            buffer = buffer.base
        return EmulatedArray(array, Allocation(self, buffer, next(self._numbers)))

    def _reserve(self, size: int) -> None:
        while True:
            with self._lock:
                used = self._counted()
                if used + size <= self.capacity:
                    self._used = used + size
                    self._peak = max(self._peak, self._used)
                    return
            if size > self.capacity or self._make_room is None or not self._make_room(size):
                raise DeviceFullError(
                    f"no room for {size} bytes on the device: {used} of {self.capacity} are used"
                )

    def _counted(self) -> int:
        while self.freed:
            self._used -= self.freed.popleft()
        return self._used

    def _copy(self, array: Array, lane: _Lane) -> Array:
        with lane.lock:
            start = self._clock()
            copied = np.array(array, order="K", copy=True)
            lane.bytes += copied.nbytes
            seconds = self._latency + copied.nbytes / self._bandwidth
            remaining = seconds - (self._clock() - start) if seconds else 0
            if remaining > 0:
                self._sleep(remaining)
            return copied


def _check(dtype: np.dtype[Any]) -> None:
    if dtype.hasobject:
        raise TypeError(f"a device cannot hold objects, as of dtype {dtype}")


# The device of this process

_current: list[EmulatedDevice] = []
_lock = threading.Lock()


def use(device: EmulatedDevice) -> EmulatedDevice:
    """Set the device of this process, to which arrays from other processes are copied."""
    with _lock:
        _current[:] = [device]
    return device


def current() -> EmulatedDevice:
    """The device of this process; a new one of :data:`CAPACITY` bytes if none was set."""
    with _lock:
        if not _current:
            _current.append(EmulatedDevice(CAPACITY))
        return _current[0]


def to_device(value: Any) -> EmulatedArray:
    """Copy an array to the device of this process."""
    return current().asarray(value)


def register_with_dask_cuda() -> None:
    """Register the arrays with dask-cuda as arrays of a GPU, so that its own spilling works.

    Raises
    ------
    ImportError
        If dask-cuda is not installed.
    """
    module = import_module("dask_cuda.is_device_object")
    module.is_device_object.register(EmulatedArray, _is_device_object)


def _is_device_object(value: EmulatedArray) -> bool:
    return True


# Dask's registries


def _sizeof(array: EmulatedArray) -> int:
    return array.nbytes


def _token(array: EmulatedArray) -> Any:
    return "emulated", normalize_token(array.elements)


def _serialize(array: EmulatedArray) -> tuple[dict[str, Any], list[Any]]:
    header, frames = serialization.serialize_array(array.get())
    return header, frames


def _deserialize(header: dict[str, Any], frames: list[Any]) -> EmulatedArray:
    return to_device(serialization.deserialize_array(header, frames))


def _to_numpy(array: EmulatedArray, **kwargs: Any) -> Array:
    return array.get()


def _numel(
    array: EmulatedArray, axis: Any = None, keepdims: bool = False, dtype: Any = "f8", **kwargs: Any
) -> Any:
    """Number of elements that are reduced, as an array of the device."""
    axes = range(array.ndim) if axis is None else np.atleast_1d(axis) % array.ndim
    count = math.prod(array.shape[number] for number in axes)
    reduced = [(number, 1 if number in axes else size) for number, size in enumerate(array.shape)]
    shape = [size for number, size in reduced if keepdims or number not in axes]
    return np.full_like(array, count, shape=shape, dtype=dtype)


register_chunk_type(EmulatedArray)
sizeof.register(EmulatedArray, _sizeof)
normalize_token.register(EmulatedArray, _token)
if not checks.check_emulated():
    serialization.register_serialization(EmulatedArray, _serialize, _deserialize)
to_numpy_dispatch.register(EmulatedArray, _to_numpy)
numel_lookup.register(EmulatedArray, _numel)
