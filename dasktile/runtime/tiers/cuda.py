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
import sys
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any

import cupy
import numpy as np

from dasktile._compat.distributed import serialization
from dasktile.runtime.tiers.base import Device, Tier
from dasktile.runtime.tiers.host import Block, Host, Outgoing, Packed, Piece, PiecePool
from dasktile.runtime.tiers.rmm import RmmHook

#: Page-locked memory of a worker, as a share of its memory at the most.
PAGE_LOCKED = 0.125

#: Libraries with allocators that keep freed blocks.
_CACHING = ("torch", "jax", "tensorflow")

#: The status cudaErrorMemoryAllocation.
_OUT_OF_MEMORY = 2


class CupyDevice(Device):
    """The current GPU of the process.

    Arrays of CuPy are copied directly; other objects that dask-cuda treats as device objects, such
    as cuDF frames, are copied by distributed's serialisation.  Tiles are evicted when an allocation
    of CuPy fails, or of any library by RMM.

    CuPy's memory pool keeps the blocks of freed arrays for reuse: the driver, and so
    ``nvidia-smi``, counts them as used.  Whether there is free memory is therefore found out
    by allocating, not by querying the driver.
    """

    name = "cupy"

    def __init__(self) -> None:
        self._make_room: Callable[[int], bool] | None = None
        self._rmm = RmmHook(self._retry)
        self._others: Callable[[Any], bool] | None = None

    def total(self) -> int:
        """Bytes of memory that the device has; starts CUDA in this process."""
        _, total = cupy.cuda.runtime.memGetInfo()
        return int(total)

    def free(self) -> int | None:
        """Bytes that the driver and CuPy's pool have, in fragments or not.

        Of another library's allocator it is unknown what it keeps for reuse.
        """
        allocator = _without_hook(cupy.cuda.get_allocator())
        pool = getattr(allocator, "__self__", None)
        # beside RMM it is unknown which of the two allocates
        if self._rmm.is_installed or not isinstance(pool, type(cupy.get_default_memory_pool())):
            return None
        available, _ = cupy.cuda.runtime.memGetInfo()
        free, limit = int(available + pool.free_bytes()), int(pool.get_limit())
        return min(free, limit - int(pool.used_bytes())) if limit else free

    def in_use(self) -> int | None:
        """Bytes that the driver counts, without the blocks that CuPy's pools and RMM keep.

        Unknown beside another library that keeps blocks of its own: those of evicted tiles would
        count as used by others.
        """
        if any(name in sys.modules for name in _CACHING):
            return None
        kept = self._rmm.kept_bytes()
        default = cupy.get_default_memory_pool()
        pools = {id(default): default}
        allocator = _without_hook(cupy.cuda.get_allocator())
        if not _is_of_rmm(allocator):
            pool = getattr(allocator, "__self__", None)
            if not isinstance(pool, type(default)):
                return None
            pools[id(pool)] = pool
        if kept is None:
            return None
        available, total = cupy.cuda.runtime.memGetInfo()
        return int(total - available - kept - sum(pool.free_bytes() for pool in pools.values()))

    def holds(self, value: Any) -> bool:
        # another allocator may have been installed since; RMM's needs an initialised device
        if self._make_room is not None:
            self._rmm.install()
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

    def host(self, limit: int) -> Tier:
        return CupyHost(int(limit * PAGE_LOCKED))

    def on_full(self, make_room: Callable[[int], bool] | None) -> None:
        self._make_room = make_room
        if make_room is not None:
            self._install_allocator()
            return
        self._rmm.remove()
        allocator = cupy.cuda.get_allocator()
        if isinstance(allocator, _RetryingAllocator) and allocator.device is self:
            cupy.cuda.set_allocator(allocator.inner)

    def remove_on_full(self, make_room: Callable[[int], bool]) -> None:
        if self._make_room == make_room:
            self.on_full(None)

    def _install_allocator(self) -> None:
        """Wrap CuPy's present allocator by one that evicts tiles when memory is full."""
        allocator = cupy.cuda.get_allocator()
        if self._rmm.is_installed and _is_of_rmm(_without_hook(allocator)):
            # its allocations fail only after the hook was called
            return
        # the wrapper of a closed store is still here if another allocator was set on top of it
        while isinstance(allocator, _RetryingAllocator) and allocator.device._make_room is None:
            allocator = allocator.inner
        if isinstance(allocator, _RetryingAllocator) and allocator.device is self:
            return
        # an error inside of `using_allocator`, which applies to one thread only
        with suppress(ValueError):
            cupy.cuda.set_allocator(_RetryingAllocator(self, allocator))

    def _retry(self, size: int) -> bool:
        """Make room for an allocation of RMM; whether it is to be tried again."""
        if self._make_room is None:
            return False
        # blocks that CuPy keeps for reuse, those of evicted tiles among them
        pool = cupy.get_default_memory_pool()
        before = pool.free_bytes()
        pool.free_all_blocks()
        return pool.free_bytes() < before or self._make_room(size)


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


def _without_hook(allocator: Any) -> Any:
    while isinstance(allocator, _RetryingAllocator):
        allocator = allocator.inner
    return allocator


def _is_of_rmm(allocator: Any) -> bool:
    return (getattr(allocator, "__module__", None) or "").startswith("rmm.")


class CupyHost(Host):
    """Page-locked memory of the host, which a GPU copies to and from at full speed.

    The system has a limited amount of it, all of its processes together, and takes long to
    allocate and to free it.  So it is allocated up to a limit and kept until the tier is closed;
    tiles beyond it are in ordinary memory, from which CUDA copies through buffers of its own.

    Parameters
    ----------
    limit
        Bytes of page-locked memory at the most.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._pool = PiecePool(_page_locked, limit)
        self._pieces: dict[Packed, list[Piece]] = {}
        self._streams: dict[tuple[int, str], Any] = {}

    def pack(self, value: Any) -> tuple[Packed, int]:
        # dtypes without a NumPy type string are left to distributed's serialisation
        if type(value) is not cupy.ndarray or value.dtype.kind == "V":
            return super().pack(value)
        header = {"device": value.device.id, "dtype": value.dtype.str, "shape": value.shape}
        if not value.nbytes:
            return Packed({**header, "array": value.strides}, []), 0
        with value.device:
            try:
                with cupy.cuda.Stream.null:
                    dense = value if _has_no_gaps(value) else cupy.array(value, order="K")
            except MemoryError:
                # no room on the device to close the gaps
                copied = _without_gaps(value, self._copy_down_whole(value))
                frame = copied.ravel("K").view("u1").data
                return Packed({**header, "array": copied.strides}, [frame]), value.nbytes
            return self._copy_down(dense, header)

    def unpack(self, packed: Packed) -> Any:
        header, frames = packed.parts()
        if "array" not in header:
            return super().unpack(packed)
        with cupy.cuda.Device(header["device"]):
            return self._copy_up(header, frames)

    def outgoing(self, packed: Packed) -> Outgoing:
        return OutgoingArray(packed) if "array" in packed.header else super().outgoing(packed)

    def is_copied(self, kind: type) -> bool:
        return kind.__module__.startswith("cudf.")

    def release(self, packed: Packed) -> None:
        super().release(packed)
        self._pool.give(self._pieces.pop(packed, ()))

    def close(self) -> None:
        super().close()
        self._pool.close()

    def _copy_down(self, dense: Any, header: dict[str, Any]) -> tuple[Packed, int]:
        """Copy an array without gaps to the host; return the copy and its bytes."""
        size = dense.nbytes
        try:
            pieces = self._pool.take(size)
        except MemoryError:
            pieces, blocks = [], [np.empty(size, np.uint8)]
        else:
            blocks = [piece.memory for piece in pieces]
            blocks[-1] = blocks[-1][: size - sum(block.nbytes for block in blocks[:-1])]
        try:
            self._copy(dense.data, blocks, "down")
        except BaseException:
            self._pool.give(pieces)
            raise
        packed = Packed({**header, "array": dense.strides}, [block.data for block in blocks])
        self._pieces[packed] = pieces
        return packed, sum(piece.memory.nbytes for piece in pieces) or size

    def _copy_down_whole(self, value: Any) -> Block:
        """Copy all memory between the first and the last element of an array to the host."""
        before, after = _extent(value)
        whole = np.empty(before + after, np.uint8)
        self._copy(value.data - before, [whole], "down")
        return whole

    def _copy_up(self, header: dict[str, Any], frames: list[Any]) -> Any:
        value = _empty(header)
        self._copy(value.data, [np.frombuffer(frame, np.uint8) for frame in frames], "up")
        return value

    def _copy(self, memory: Any, blocks: Iterable[Block], direction: str) -> None:
        """Copy device memory to blocks of the host one after the other, or from them."""
        stream = self._stream(direction)
        try:
            stream.wait_event(_record_event(cupy.cuda.Stream.null))
            for block in blocks:
                if direction == "down":
                    memory.copy_to_host_async(block.ctypes.data, block.nbytes, stream)
                else:
                    memory.copy_from_host_async(block.ctypes.data, block.nbytes, stream)
                # not `+=`, which moves the array itself
                memory = memory + block.nbytes
            _record_event(stream).synchronize()
        except BaseException:
            # memory may still be written to
            stream.synchronize()
            raise

    def _stream(self, direction: str) -> Any:
        """The stream of the current device for one direction."""
        key = (cupy.cuda.runtime.getDevice(), direction)
        with self._lock:
            if key not in self._streams:
                self._streams[key] = cupy.cuda.Stream(non_blocking=True)
            return self._streams[key]


def _receive_array(header: dict[str, Any], frames: Iterable[Any]) -> Any:
    """An array on the current device, which may have another number than that of the sender."""
    value = _empty(header)
    memory = value.data
    for frame in frames:
        block = np.frombuffer(frame, np.uint8)
        memory.copy_from_host(block.ctypes.data, block.nbytes)
        memory = memory + block.nbytes
    return value


class OutgoingArray(Outgoing):
    """An array on its way to a peer, from the memory of the host."""

    __slots__ = ()

    receive = staticmethod(_receive_array)

    def parts(self) -> tuple[dict[str, Any], list[Any]]:
        return self._packed_parts()


serialization.register_serialization(OutgoingArray, OutgoingArray.parts, OutgoingArray.receive)


def _empty(header: dict[str, Any]) -> Any:
    """An array on the current device of unknown elements."""
    shape, dtype = tuple(header["shape"]), np.dtype(header["dtype"])
    with cupy.cuda.Stream.null:
        memory = cupy.cuda.alloc(math.prod(shape) * dtype.itemsize)
    return cupy.ndarray(shape, dtype, memory, tuple(header["array"]))


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


def _without_gaps(value: Any, whole: Block) -> np.ndarray[Any, Any]:
    """The elements of an array on the device, from a copy of all memory between them."""
    before, _ = _extent(value)
    view = np.ndarray(value.shape, np.dtype(value.dtype), whole.data, before, value.strides)
    order = _axes(value)
    return np.ascontiguousarray(view.transpose(order)).transpose(np.argsort(order))


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
