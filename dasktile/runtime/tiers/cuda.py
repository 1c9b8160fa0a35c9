"""A GPU, with CuPy's arrays.

A copy of an array runs after the kernels that write the array: it waits for an event on CUDA's
default stream, which itself waits for all other streams except *non-blocking* ones.  A task
that computes on a non-blocking stream has to synchronise it before it returns, as it must for any
other worker thread to read its result.  Copies have a non-blocking stream for each direction, so
that both directions and kernels overlap.  A copy is complete when :meth:`CupyHost.store` or
:meth:`CupyHost.load` returns, so that no other code has to use those streams, and no memory is
freed that a copy still reads.

Arrays are allocated on the default stream, not on those of the copies.  A block that a memory
pool reuses may still be read by kernels queued on the stream that it belonged to; the event is
recorded after the allocation, so that the copy waits for these kernels, too.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from importlib import import_module
from typing import Any

import cupy
import numpy as np

from dasktile.runtime.settings import RuntimeSettings
from dasktile.runtime.tiers.base import Device, Tier
from dasktile.runtime.tiers.host import Block, BlockPool, Host, Packed

#: The status cudaErrorMemoryAllocation.
_OUT_OF_MEMORY = 2


class CupyDevice(Device):
    """The current GPU of the process.

    Arrays of CuPy are copied directly; other objects that dask-cuda treats as device objects, such
    as cuDF frames, are copied by distributed's serialisation.

    CuPy's memory pool keeps the blocks of freed arrays for reuse: the driver, and so
    ``nvidia-smi``, counts them as used.  Whether there is free memory is therefore found out
    by allocating, not by querying the driver.
    """

    name = "cupy"

    def __init__(self) -> None:
        self._make_room: Callable[[int], bool] | None = None
        self._others: Callable[[Any], bool] | None = None

    def total(self) -> int:
        """Bytes of memory that the device has; starts CUDA in this process."""
        _, total = cupy.cuda.runtime.memGetInfo()
        return int(total)

    def free(self) -> int | None:
        """Bytes that the driver and CuPy's pool have, in fragments or not.

        Of another library's allocator it is unknown what it keeps for reuse.
        """
        allocator = cupy.cuda.get_allocator()
        while isinstance(allocator, _RetryingAllocator):
            allocator = allocator.inner
        pool = getattr(allocator, "__self__", None)
        if not isinstance(pool, type(cupy.get_default_memory_pool())):
            return None
        available, _ = cupy.cuda.runtime.memGetInfo()
        free, limit = int(available + pool.free_bytes()), int(pool.get_limit())
        return min(free, limit - int(pool.used_bytes())) if limit else free

    def holds(self, value: Any) -> bool:
        # another allocator may have been installed since
        self._install_allocator()
        if isinstance(value, cupy.ndarray):
            return True
        if isinstance(value, (np.ndarray, np.generic, int, float, str, bytes)):
            return False
        if self._others is None:
            self._others = _device_test()
        return self._others(value)

    def memory_of(self, value: Any) -> tuple[Hashable, int] | None:
        if not isinstance(value, cupy.ndarray) or not value.nbytes:
            return None
        memory = value.data.mem
        return (memory.device_id, memory.ptr), memory.size

    def host(self) -> Tier:
        return CupyHost()

    def on_full(self, make_room: Callable[[int], bool] | None) -> None:
        self._make_room = make_room
        if make_room is not None:
            self._install_allocator()
            return
        allocator = cupy.cuda.get_allocator()
        if isinstance(allocator, _RetryingAllocator) and allocator.device is self:
            cupy.cuda.set_allocator(allocator.inner)

    def remove_on_full(self, make_room: Callable[[int], bool]) -> None:
        if self._make_room == make_room:
            self.on_full(None)

    def _install_allocator(self) -> None:
        """Wrap CuPy's present allocator by one that evicts tiles when memory is full."""
        if self._make_room is None:
            return
        allocator = cupy.cuda.get_allocator()
        # the wrapper of a closed store is still here if another allocator was set on top of it
        while isinstance(allocator, _RetryingAllocator) and allocator.device._make_room is None:
            allocator = allocator.inner
        if isinstance(allocator, _RetryingAllocator) and allocator.device is self:
            return
        # an error inside of `using_allocator`, which applies to one thread only
        with suppress(ValueError):
            cupy.cuda.set_allocator(_RetryingAllocator(self, allocator))


class _RetryingAllocator:
    """An allocator that evicts tiles and retries when another allocator has no memory left."""

    __slots__ = ("device", "inner")

    def __init__(self, device: CupyDevice, inner: Callable[[int], Any]) -> None:
        self.device = device
        self.inner = inner

    def __call__(self, size: int) -> Any:
        while True:
            try:
                return self.inner(size)
            except MemoryError:
                make_room = self.device._make_room
                if make_room is None or not make_room(size):
                    raise
            # freed blocks may have other sizes, or belong to other streams
            cupy.get_default_memory_pool().free_all_blocks()


class CupyHost(Host):
    """Page-locked memory of the host, which a GPU copies to and from at full speed.

    The system has a limited amount of it; beyond that, ordinary memory is used, and copies are
    slower.

    Parameters
    ----------
    settings
        Constants; by default those of `RuntimeSettings`.
    """

    def __init__(self, settings: RuntimeSettings | None = None) -> None:
        super().__init__()
        self._pool = BlockPool(_page_locked, (settings or RuntimeSettings()).spare_bytes)
        self._blocks: dict[Packed, Block] = {}
        self._streams: dict[tuple[int, str], Any] = {}
        self._lock = threading.Lock()

    def pack(self, value: Any) -> tuple[Packed, int]:
        # dtypes without a NumPy type string are left to distributed's serialisation
        if type(value) is not cupy.ndarray or value.dtype.kind == "V":
            return super().pack(value)
        header = {"device": value.device.id, "dtype": value.dtype.str, "shape": value.shape}
        if not value.nbytes:
            return Packed({**header, "array": value.strides}, []), 0
        with value.device:
            try:
                strides, block = self._copy_down(value)
            except MemoryError:
                strides, block = self._copy_down_whole(value)
        packed = Packed({**header, "array": strides}, [block.data[: value.nbytes]])
        self._blocks[packed] = block
        return packed, block.nbytes

    def unpack(self, packed: Packed) -> Any:
        header, frames = packed.parts()
        if "array" not in header:
            return super().unpack(packed)
        with cupy.cuda.Device(header["device"]):
            return self._copy_up(header, frames)

    def release(self, packed: Packed) -> None:
        super().release(packed)
        block = self._blocks.pop(packed, None)
        if block is not None:
            self._give_block(block)

    def close(self) -> None:
        super().close()
        self._pool.drop()

    def _copy_down(self, value: Any) -> tuple[tuple[int, ...], Block]:
        """Copy an array to the host: its strides there, and the block that has its elements.

        Raises
        ------
        MemoryError
            If there is no room on the device to close the array's gaps.
        """
        with cupy.cuda.Stream.null:
            dense = value if _has_no_gaps(value) else cupy.array(value, order="K", copy=True)
        return dense.strides, self._copy_memory(dense.data, dense.nbytes)

    def _copy_down_whole(self, value: Any) -> tuple[tuple[int, ...], Block]:
        """The same for an array with gaps, by a copy of all memory between its elements."""
        before, after = _extent(value)
        whole = self._copy_memory(value.data - before, before + after)
        dtype = np.dtype(value.dtype)
        view = np.ndarray(value.shape, dtype, whole.data, before, value.strides)
        order = _axes(value)
        block = self._take_block(value.nbytes)
        dense = np.ndarray([value.shape[axis] for axis in order], dtype, block.data)
        dense[...] = view.transpose(order)
        self._give_block(whole)
        return dense.transpose(np.argsort(order)).strides, block

    def _copy_memory(self, memory: Any, size: int) -> Block:
        block = self._take_block(size)
        stream = self._stream("down")
        try:
            stream.wait_event(_record_event(cupy.cuda.Stream.null))
            memory.copy_to_host_async(block.ctypes.data, size, stream)
            _record_event(stream).synchronize()
        except BaseException:
            # it may still be written to
            stream.synchronize()
            self._give_block(block)
            raise
        return block

    def _copy_up(self, header: dict[str, Any], frames: list[Any]) -> Any:
        shape, dtype = header["shape"], np.dtype(header["dtype"])
        size = math.prod(shape) * dtype.itemsize
        with cupy.cuda.Stream.null:
            memory = cupy.cuda.alloc(size)
        value = cupy.ndarray(shape, dtype, memory, header["array"])
        if not size:
            return value
        source = np.frombuffer(frames[0], np.uint8)
        stream = self._stream("up")
        try:
            stream.wait_event(_record_event(cupy.cuda.Stream.null))
            memory.copy_from_host_async(source.ctypes.data, size, stream)
            _record_event(stream).synchronize()
        except BaseException:
            # the memory may still be written to
            stream.synchronize()
            raise
        return value

    def _stream(self, direction: str) -> Any:
        """The stream of the current device for one direction."""
        key = (cupy.cuda.runtime.getDevice(), direction)
        with self._lock:
            if key not in self._streams:
                self._streams[key] = cupy.cuda.Stream(non_blocking=True)
            return self._streams[key]

    def _take_block(self, size: int) -> Block:
        try:
            return self._pool.take(size)
        except MemoryError:
            return np.empty(size, np.uint8)

    def _give_block(self, block: Block) -> None:
        # NumPy's own memory is not page-locked
        if block.base is not None:
            self._pool.give(block)


def _axes(value: Any) -> list[int]:
    """The axes of an array, those with the longest strides first."""
    return sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis]))


def _has_no_gaps(value: Any) -> bool:
    return bool(value.transpose(_axes(value)).flags.c_contiguous)


def _extent(value: Any) -> tuple[int, int]:
    """Bytes that an array extends over before its first element, and from it on."""
    steps = [(n - 1) * stride for n, stride in zip(value.shape, value.strides, strict=True)]
    before = -sum(step for step in steps if step < 0)
    return before, sum(step for step in steps if step > 0) + value.itemsize


def _record_event(stream: Any) -> Any:
    """An event after the work queued on a stream; to wait for it takes no processor time."""
    event = cupy.cuda.Event(block=True, disable_timing=True)
    event.record(stream)
    return event


def _page_locked(size: int) -> Block:
    try:
        memory = cupy.cuda.PinnedMemory(size, cupy.cuda.runtime.hostAllocPortable)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        if error.status != _OUT_OF_MEMORY:
            raise
        raise MemoryError(f"no page-locked memory for {size} bytes") from error
    return np.ndarray(size, np.uint8, cupy.cuda.PinnedMemoryPointer(memory, 0))


def _device_test() -> Callable[[Any], bool]:
    """A function that says whether an object is on a device: dask-cuda's if it is installed."""
    try:
        is_on_device: Callable[[Any], bool] = import_module(
            "dask_cuda.is_device_object"
        ).is_device_object
    except ImportError:
        return _has_interface
    return is_on_device


def _has_interface(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(_has_interface, value))
    if isinstance(value, dict):
        return any(map(_has_interface, value.values()))
    return hasattr(value, "__cuda_array_interface__")
