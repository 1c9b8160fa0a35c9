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

import ctypes
import itertools
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
from dask.array.chunk_types import register_chunk_type
from dask.array.dispatch import numel_lookup, to_numpy_dispatch
from dask.base import normalize_token
from dask.sizeof import sizeof
from numpy.lib.mixins import NDArrayOperatorsMixin

from dasktile._compat.distributed import checks, serialization
from dasktile.runtime.tiers.base import Device, Tier
from dasktile.runtime.tiers.host import Host

Array = np.ndarray[Any, Any]

#: Bytes of the device of a process where no other was set by :func:`use`.
CAPACITY = 1 << 30

#: Every byte of freed memory: makes NaN of floats, -1 of signed integers.
POISON = 0xFF

_METHODS = """
all any argmax argmin argsort astype choose clip compress conj conjugate copy cumprod cumsum
diagonal dot fill flatten max mean min nonzero prod put ravel repeat reshape round searchsorted
sort squeeze std sum swapaxes take trace transpose var view
"""
#: Methods of arrays that arrays of the device have too.
METHODS = frozenset(_METHODS.split())

#: Functions that also accept arrays of the host, such as indices.
MIXED = frozenset(
    [
        *(np.array, np.asarray, np.asanyarray, np.ascontiguousarray, np.asfortranarray),
        *(np.take, np.delete, np.percentile, np.quantile, np.histogram, np.digitize),
        np.searchsorted,
    ]
)


class DeviceFullError(MemoryError):
    """There is not enough free memory on the device."""


class _Allocation:
    """Memory of the device; freed with the last array that is a view of it."""

    __slots__ = ("address", "buffer", "device", "number")

    def __init__(self, device: EmulatedDevice, buffer: Array, number: int) -> None:
        self.device = device
        self.buffer = buffer
        self.address = buffer.ctypes.data
        self.number = number

    def __del__(self) -> None:
        if sys.is_finalizing():
            return
        ctypes.memset(self.address, POISON, self.buffer.nbytes)
        # without the lock: the thread that runs this may hold it
        self.device._freed.append(self.buffer.nbytes)


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
        self._freed: deque[int] = deque()
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
        return value._allocation.number, value._allocation.buffer.nbytes

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
            self._freed.append(host.nbytes)
            raise

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
            if source._allocation.buffer is owner and array.size:
                return EmulatedArray(array, source._allocation)
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
        return EmulatedArray(array, _Allocation(self, buffer, next(self._numbers)))

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
        while self._freed:
            self._used -= self._freed.popleft()
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


class EmulatedArray(NDArrayOperatorsMixin):
    """An array of the device, made by :meth:`EmulatedDevice.asarray` or from other arrays.

    It behaves as a NumPy array whose results are on the device, as those of CuPy: scalars are
    arrays without dimensions, and arrays of the host must be copied to the device first.
    """

    __slots__ = ("_allocation", "_data")

    #: As CuPy's: Dask then concatenates by the function for this type.
    __array_priority__ = 100

    def __init__(self, data: Array, allocation: _Allocation) -> None:
        self._data = data
        self._allocation = allocation

    @property
    def device(self) -> EmulatedDevice:
        """The device whose memory it is in."""
        return self._allocation.device

    @property
    def shape(self) -> tuple[int, ...]:
        return self._data.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._data.dtype

    @property
    def ndim(self) -> int:
        return self._data.ndim

    @property
    def size(self) -> int:
        return self._data.size

    @property
    def itemsize(self) -> int:
        return self._data.itemsize

    @property
    def nbytes(self) -> int:
        return self._data.nbytes

    @property
    def strides(self) -> tuple[int, ...]:
        return self._data.strides

    @property
    def flags(self) -> Any:
        return self._data.flags

    @property
    def T(self) -> EmulatedArray:  # noqa: N802
        return self._wrap(self._data.T)

    @property
    def real(self) -> EmulatedArray:
        return self._wrap(self._data.real)

    @property
    def imag(self) -> EmulatedArray:
        return self._wrap(self._data.imag)

    def get(self) -> Array:
        """A copy on the host, in the same order."""
        return self.device._copy(self._data, self.device._down)

    def item(self) -> Any:
        return self.get().item()

    def tolist(self) -> Any:
        return self.get().tolist()

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("an array of the device is not converted to NumPy implicitly; use .get()")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        for value in inputs:
            if isinstance(value, np.ndarray):
                _require_scalar(value)
            elif not isinstance(value, (EmulatedArray, np.generic, int, float, complex)):
                return NotImplemented
        sources: list[EmulatedArray] = []
        out = kwargs.get("out", ())
        result = getattr(ufunc, method)(*_unwrapped(inputs, sources), **_unwrapped(kwargs, sources))
        if out:
            return out[0] if len(out) == 1 else out
        return self.device.wrap(result, sources, True)

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any
    ) -> Any:
        if not all(issubclass(kind, (EmulatedArray, np.ndarray)) for kind in types):
            return NotImplemented
        sources: list[EmulatedArray] = []
        hosts: list[Array] = []
        result = func(*_unwrapped(args, sources, hosts), **_unwrapped(kwargs, sources, hosts))
        if hosts and func not in MIXED:
            _require_scalar(hosts[0])
        return self.device.wrap(result, sources, not hosts)

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            raise AttributeError(f"an array of the device has no attribute {name!r}")
        method = getattr(self._data, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            sources = [self]
            result = method(*_unwrapped(args, sources), **_unwrapped(kwargs, sources))
            return self.device.wrap(result, sources, True)

        return call

    def __getitem__(self, index: Any) -> EmulatedArray:
        return self._wrap(self._data[_unwrapped(index, [])])

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, np.ndarray):
            _require_scalar(value)
        self._data[_unwrapped(index, [])] = _unwrapped(value, [])

    def __iter__(self) -> Iterator[EmulatedArray]:
        return (self[number] for number in range(len(self)))

    def __len__(self) -> int:
        return len(self._data)

    def __bool__(self) -> bool:
        return bool(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __float__(self) -> float:
        return float(self.get())

    def __complex__(self) -> complex:
        return complex(self.get())

    def __index__(self) -> int:
        return self.get().__index__()

    def __repr__(self) -> str:
        return f"EmulatedArray({self._data!r})"

    def __reduce__(self) -> Any:
        return to_device, (self.get(),)

    def __deepcopy__(self, memo: Any) -> EmulatedArray:
        return self._wrap(self._data.copy(order="K"))

    def _wrap(self, result: Any) -> EmulatedArray:
        array: EmulatedArray = self.device.wrap(result, [self], True)
        return array


def _check(dtype: np.dtype[Any]) -> None:
    if dtype.hasobject:
        raise TypeError(f"a device cannot hold objects, as of dtype {dtype}")


def _require_scalar(host: Array) -> None:
    """Raise an error for an array of the host that has dimensions."""
    if host.ndim:
        raise TypeError(
            "an array of the host is not copied to the device implicitly; use device.asarray"
        )


def _unwrapped(value: Any, sources: list[EmulatedArray], hosts: list[Array] | None = None) -> Any:
    """Replace arrays of the device, also in collections, by NumPy arrays; append each to a list."""
    if isinstance(value, EmulatedArray):
        sources.append(value)
        return value._data
    if isinstance(value, np.ndarray) and value.ndim and hosts is not None:
        hosts.append(value)
    if type(value) in (list, tuple):
        return type(value)(_unwrapped(item, sources, hosts) for item in value)
    if type(value) is dict:
        return {key: _unwrapped(item, sources, hosts) for key, item in value.items()}
    return value


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
    return "emulated", normalize_token(array._data)


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
