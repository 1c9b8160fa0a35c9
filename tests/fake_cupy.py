"""A stand-in for the parts of CuPy that the CUDA tier uses, with device memory of NumPy arrays.

:func:`install` makes ``dasktile.runtime.tiers.cuda`` anew on top of it.  Names, parameters and the
rules that the tier relies on are CuPy's: memory comes from the current allocator, an allocator
raises `MemoryError` if the device is full, blocks are freed when the last array on them is
dropped, and `using` an allocator of another library in front is allowed.
``tests/runtime/test_cuda_contract.py`` compares the parameters with those of an installed CuPy.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dasktile.runtime import tiers


class OutOfMemoryError(MemoryError):
    """As ``cupy.cuda.memory.OutOfMemoryError``."""


class Memory:
    """An allocation on the device."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.device_id = 0
        self.buffer = np.zeros(max(size, 1), np.uint8)
        self.ptr = self.buffer.ctypes.data


class MemoryPointer:
    """A position in an allocation."""

    def __init__(self, mem: Memory, offset: int) -> None:
        self.mem = mem
        self.ptr = mem.ptr + offset

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    def __sub__(self, offset: int) -> MemoryPointer:
        return self + -offset

    def copy_to_host_async(self, mem: int, size: int, stream: Any = None) -> None:
        self._check(size)
        ctypes.memmove(mem, self.ptr, size)

    def copy_from_host(self, mem: int, size: int) -> None:
        self._check(size)
        ctypes.memmove(self.ptr, mem, size)

    def copy_from_host_async(self, mem: int, size: int, stream: Any = None) -> None:
        self.copy_from_host(mem, size)

    def _check(self, size: int) -> None:
        assert self.mem.ptr <= self.ptr and self.ptr + size <= self.mem.ptr + self.mem.size


class Pool:
    """The default memory pool, which is the device: it has `capacity` bytes.

    It keeps freed blocks for reuse if `keeps`; other processes use `others`.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.freed = 0
        self.keeps = False
        self.kept = 0
        self.others = 0

    def malloc(self, size: int) -> MemoryPointer:
        if self.used + size > self.capacity - self.others:
            raise OutOfMemoryError(f"Out of memory allocating {size} bytes")
        memory = Memory(size)
        self.used += size
        self.kept = max(0, self.kept - size)
        weakref.finalize(memory, self._free, size)
        return MemoryPointer(memory, 0)

    def _free(self, size: int) -> None:
        self.used -= size
        self.kept += size if self.keeps else 0

    def used_bytes(self) -> int:
        return self.used

    def free_bytes(self) -> int:
        return self.kept

    def get_limit(self) -> int:
        return 0

    def free_all_blocks(self, stream: Any = None) -> None:
        self.freed += 1
        self.kept = 0


class Stream:
    """A stream whose work is done at once."""

    null: Stream

    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False) -> None:
        self.non_blocking = non_blocking

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        assert event.recorded

    def synchronize(self) -> None:
        pass


Stream.null = Stream(null=True)


class Event:
    def __init__(
        self, block: bool = False, disable_timing: bool = False, interprocess: bool = False
    ) -> None:
        self.recorded = False

    def record(self, stream: Any = None) -> None:
        self.recorded = True

    def synchronize(self) -> None:
        assert self.recorded


class Device:
    def __init__(self, device: int | None = None) -> None:
        self.id = device or 0

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class PinnedMemory:
    def __init__(self, size: int, flags: int = 0) -> None:
        self.buffer = np.zeros(max(size, 1), np.uint8)


class ndarray:  # noqa: N801  (CuPy's name)
    """An array in device memory: `view` is a NumPy array on the same bytes."""

    def __init__(
        self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None,
        order: str = "C",
    ) -> None:  # fmt: skip
        dtype = np.dtype(dtype)
        shape = tuple(shape)
        size = int(np.prod(shape)) * dtype.itemsize
        self.data = alloc(size) if memptr is None else memptr
        offset = self.data.ptr - self.data.mem.ptr
        self.view = np.ndarray(shape, dtype, self.data.mem.buffer, offset, strides)
        self.device = Device(self.data.mem.device_id)

    dtype = property(lambda self: self.view.dtype)
    shape = property(lambda self: self.view.shape)
    strides = property(lambda self: self.view.strides)
    nbytes = property(lambda self: self.view.nbytes)
    itemsize = property(lambda self: self.view.itemsize)
    ndim = property(lambda self: self.view.ndim)
    flags = property(lambda self: self.view.flags)

    def transpose(self, *axes: Any) -> ndarray:
        turned = self.view.transpose(*axes)
        return ndarray(turned.shape, turned.dtype, self.data, turned.strides)

    T = property(lambda self: self.transpose())

    def __getitem__(self, index: Any) -> ndarray:
        part = self.view[index]
        offset = part.ctypes.data - self.view.ctypes.data
        return ndarray(part.shape, part.dtype, self.data + offset, part.strides)

    def __setitem__(self, index: Any, values: Any) -> None:
        self.view[index] = values

    def get(self) -> np.ndarray[Any, Any]:
        return self.view.copy("K")

    def __reduce__(self) -> Any:
        return array, (self.get(),)

    def __sizeof__(self) -> int:
        return int(self.nbytes)


def array(obj: Any, dtype: Any = None, copy: bool = True, order: str = "K") -> ndarray:
    values = np.array(obj.view if isinstance(obj, ndarray) else obj, dtype, order=order)
    made = ndarray(values.shape, values.dtype, alloc(values.nbytes), values.strides)
    made.view[...] = values
    return made


_state = SimpleNamespace(pool=Pool(0), allocator=None)


def alloc(size: int) -> MemoryPointer:
    pointer: MemoryPointer = _state.allocator(size)
    return pointer


def get_allocator() -> Callable[[int], Any]:
    return _state.allocator


def set_allocator(allocator: Any = None) -> None:
    _state.allocator = allocator or _state.pool.malloc


def memory_info() -> tuple[int, int]:
    pool = _state.pool
    return pool.capacity - pool.used - pool.kept - pool.others, pool.capacity


class CUDARuntimeError(RuntimeError):
    status = 0


def module() -> ModuleType:
    """The module ``cupy``."""
    made = ModuleType("cupy")
    runtime = SimpleNamespace(
        memGetInfo=memory_info, getDevice=lambda: 0, getDeviceCount=lambda: 1,
        hostAllocPortable=1, CUDARuntimeError=CUDARuntimeError,
    )  # fmt: skip
    cuda = SimpleNamespace(
        runtime=runtime, alloc=alloc, get_allocator=get_allocator, set_allocator=set_allocator,
        Stream=Stream, Event=Event, Device=Device, PinnedMemory=PinnedMemory,
        PinnedMemoryPointer=lambda mem, offset: mem.buffer[offset:],
        MemoryPointer=MemoryPointer,
    )  # fmt: skip
    made.__dict__.update(
        ndarray=ndarray, array=array, cuda=cuda, get_default_memory_pool=lambda: _state.pool
    )
    return made


@contextmanager
def install(capacity: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Pool]]:
    """The CUDA tier on a device of `capacity` bytes, and the device's pool."""
    _state.pool = Pool(capacity)
    set_allocator()
    monkeypatch.setitem(sys.modules, "cupy", module())
    # a real one has no device
    monkeypatch.delitem(sys.modules, "rmm", raising=False)
    spec = importlib.util.find_spec("dasktile.runtime.tiers.cuda")
    assert spec is not None and spec.loader is not None
    tier = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, tier)
    monkeypatch.setattr(tiers, "cuda", tier, raising=False)
    spec.loader.exec_module(tier)
    yield tier, _state.pool
