"""Arrays of an emulated device: NumPy arrays that are never converted to NumPy implicitly."""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

Array = np.ndarray[Any, Any]

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


class ArrayDevice(Protocol):
    """What arrays use of their device."""

    #: Bytes that were freed and are still counted as used.
    freed: deque[int]

    @property
    def loader(self) -> Callable[[Any], Any]:
        """Copies an array to the device of the process that unpickles it."""

    def copy_to_host(self, array: Array) -> Array:
        """A copy of an array's memory."""

    def wrap(self, result: Any, sources: Iterable[EmulatedArray], private: bool) -> Any:
        """The result of a NumPy function as arrays of the device."""


class Allocation:
    """Memory of the device; freed with the last array that is a view of it."""

    __slots__ = ("address", "buffer", "device", "number")

    def __init__(self, device: ArrayDevice, buffer: Array, number: int) -> None:
        self.device = device
        self.buffer = buffer
        self.address = buffer.ctypes.data
        self.number = number

    def __del__(self) -> None:
        if sys.is_finalizing():
            return
        ctypes.memset(self.address, POISON, self.buffer.nbytes)
        # without the lock: the thread that runs this may hold it
        self.device.freed.append(self.buffer.nbytes)


class EmulatedArray(NDArrayOperatorsMixin):
    """An array of the device, made by ``asarray`` of the device or from other arrays.

    It behaves as a NumPy array whose results are on the device, as those of CuPy: scalars are
    arrays without dimensions, and arrays of the host must be copied to the device first.
    """

    __slots__ = ("allocation", "elements")

    #: As CuPy's: Dask then concatenates by the function for this type.
    __array_priority__ = 100

    def __init__(self, data: Array, allocation: Allocation) -> None:
        self.elements = data
        self.allocation = allocation

    @property
    def device(self) -> ArrayDevice:
        """The device whose memory it is in."""
        return self.allocation.device

    @property
    def shape(self) -> tuple[int, ...]:
        return self.elements.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.elements.dtype

    @property
    def ndim(self) -> int:
        return self.elements.ndim

    @property
    def size(self) -> int:
        return self.elements.size

    @property
    def itemsize(self) -> int:
        return self.elements.itemsize

    @property
    def nbytes(self) -> int:
        return self.elements.nbytes

    @property
    def strides(self) -> tuple[int, ...]:
        return self.elements.strides

    @property
    def flags(self) -> Any:
        return self.elements.flags

    @property
    def T(self) -> EmulatedArray:  # noqa: N802
        return self._wrap(self.elements.T)

    @property
    def real(self) -> EmulatedArray:
        return self._wrap(self.elements.real)

    @property
    def imag(self) -> EmulatedArray:
        return self._wrap(self.elements.imag)

    def get(self) -> Array:
        """A copy on the host, in the same order."""
        return self.device.copy_to_host(self.elements)

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
        method = getattr(self.elements, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            sources = [self]
            result = method(*_unwrapped(args, sources), **_unwrapped(kwargs, sources))
            return self.device.wrap(result, sources, True)

        return call

    def __getitem__(self, index: Any) -> EmulatedArray:
        return self._wrap(self.elements[_unwrapped(index, [])])

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, np.ndarray):
            _require_scalar(value)
        self.elements[_unwrapped(index, [])] = _unwrapped(value, [])

    def __iter__(self) -> Iterator[EmulatedArray]:
        return (self[number] for number in range(len(self)))

    def __len__(self) -> int:
        return len(self.elements)

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
        return f"EmulatedArray({self.elements!r})"

    def __reduce__(self) -> Any:
        return self.device.loader, (self.get(),)

    def __deepcopy__(self, memo: Any) -> EmulatedArray:
        return self._wrap(self.elements.copy(order="K"))

    def _wrap(self, result: Any) -> EmulatedArray:
        array: EmulatedArray = self.device.wrap(result, [self], True)
        return array


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
        return value.elements
    if isinstance(value, np.ndarray) and value.ndim and hosts is not None:
        hosts.append(value)
    if type(value) in (list, tuple):
        return type(value)(_unwrapped(item, sources, hosts) for item in value)
    if type(value) is dict:
        return {key: _unwrapped(item, sources, hosts) for key, item in value.items()}
    return value
