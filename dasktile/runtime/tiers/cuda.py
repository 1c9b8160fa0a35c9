"""A GPU, with CuPy's arrays.

What was queued on a stream goes before the copies of it: a copy waits for an event on CUDA's
default stream, which itself waits for all other streams but those that are *non-blocking*.
Tasks that compute on a non-blocking stream have to wait for it themselves before they
return, as they have to for any other worker thread to read what they return.  Copies have a
non-blocking stream for each direction, so that both directions, and computing, overlap; they
are complete when :meth:`CupyHost.store` and :meth:`CupyHost.load` return, so that nobody needs
to know of those streams, and no memory is given free that a copy still reads.

Arrays are made on the default stream, and not on that of the copies, for the sake of pools: a
block that a pool gives out again may still be read by what was queued on the stream that it
belonged to.  The event is recorded after the block was given out.
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

from dasktile.runtime.tiers.base import Device, Tier
from dasktile.runtime.tiers.host import Block, Host, Packed, Pool

#: Page-locked bytes at most that are kept for the next tile.
SPARE = 1 << 30

_NO_MEMORY = 2  # cudaErrorMemoryAllocation


class CupyDevice(Device):
    """The GPU that the process has chosen.

    Arrays of CuPy are known best; other objects that dask-cuda takes for a device's, such as
    frames of cuDF, are copied as distributed does it.

    CuPy's own pool keeps the blocks that arrays leave: the driver, and so ``nvidia-smi``,
    counts them as used, yet the pool gives them out again.  That there is room is therefore
    seen by allocating, never by asking the driver.
    """

    name = "cupy"

    def __init__(self) -> None:
        self._make_room: Callable[[int], bool] | None = None
        self._others: Callable[[Any], bool] | None = None

    def total(self) -> int:
        """Bytes of memory that the device has; starts CUDA in this process."""
        _, total = cupy.cuda.runtime.memGetInfo()
        return int(total)

    def holds(self, value: Any) -> bool:
        # whoever set up memory after us has put another allocator there
        self._listen()
        if isinstance(value, cupy.ndarray):
            return True
        if isinstance(value, (np.ndarray, np.generic, int, float, str, bytes)):
            return False
        if self._others is None:
            self._others = _of_a_device()
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
            self._listen()
            return
        found = cupy.cuda.get_allocator()
        if isinstance(found, _Asking) and found.device is self:
            cupy.cuda.set_allocator(found.inner)

    def remove_on_full(self, make_room: Callable[[int], bool]) -> None:
        if self._make_room == make_room:
            self.on_full(None)

    def _listen(self) -> None:
        """Put in front of CuPy's allocator, whichever it is, one that asks for room."""
        if self._make_room is None:
            return
        found = cupy.cuda.get_allocator()
        # a wrapper of a store that was closed, under an allocator that was set later
        while isinstance(found, _Asking) and found.device._make_room is None:
            found = found.inner
        if isinstance(found, _Asking) and found.device is self:
            return
        # not inside of `using_allocator`, which is for this thread alone
        with suppress(ValueError):
            cupy.cuda.set_allocator(_Asking(self, found))


class _Asking:
    """An allocator that asks for room when another has none."""

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
            # what left may be in blocks of other sizes, or of other streams
            cupy.get_default_memory_pool().free_all_blocks()


class CupyHost(Host):
    """Page-locked memory of the host, which a GPU copies to and from at full speed.

    What can be had of it is limited; beyond that, memory is as any other, and copies are slower.

    Parameters
    ----------
    spare
        Bytes at most that are kept when tiles leave.
    """

    def __init__(self, spare: int = SPARE) -> None:
        super().__init__()
        self._pool = Pool(_page_locked, spare)
        self._blocks: dict[Packed, Block] = {}
        self._streams: dict[tuple[int, str], Any] = {}
        self._lock = threading.Lock()

    def pack(self, value: Any) -> tuple[Packed, int]:
        # types of elements that NumPy has no short name for are left to others
        if type(value) is not cupy.ndarray or value.dtype.kind == "V":
            return super().pack(value)
        header = {"device": value.device.id, "dtype": value.dtype.str, "shape": value.shape}
        if not value.nbytes:
            return Packed({**header, "array": value.strides}, []), 0
        with value.device:
            try:
                strides, block = self._down(value)
            except MemoryError:
                strides, block = self._down_whole(value)
        packed = Packed({**header, "array": strides}, [block.data[: value.nbytes]])
        self._blocks[packed] = block
        return packed, block.nbytes

    def unpack(self, packed: Packed) -> Any:
        header, frames = packed.parts()
        if "array" not in header:
            return super().unpack(packed)
        with cupy.cuda.Device(header["device"]):
            return self._up(header, frames)

    def release(self, packed: Packed) -> None:
        super().release(packed)
        block = self._blocks.pop(packed, None)
        if block is not None:
            self._give(block)

    def close(self) -> None:
        super().close()
        self._pool.drop()

    def _down(self, value: Any) -> tuple[tuple[int, ...], Block]:
        """Copy an array to the host: its strides there, and the block that has its elements.

        Raises
        ------
        MemoryError
            If there is no room on the device to close the array's gaps.
        """
        with cupy.cuda.Stream.null:
            dense = value if _has_no_gaps(value) else cupy.array(value, order="K", copy=True)
        return dense.strides, self._fetched(dense.data, dense.nbytes)

    def _down_whole(self, value: Any) -> tuple[tuple[int, ...], Block]:
        """The same by way of all the memory that the array lies in parts of."""
        before, after = _reach(value)
        whole = self._fetched(value.data - before, before + after)
        dtype = np.dtype(value.dtype)
        there = np.ndarray(value.shape, dtype, whole.data, before, value.strides)
        order = _axes(value)
        block = self._take(value.nbytes)
        dense = np.ndarray([value.shape[axis] for axis in order], dtype, block.data)
        dense[...] = there.transpose(order)
        self._give(whole)
        return dense.transpose(np.argsort(order)).strides, block

    def _fetched(self, memory: Any, size: int) -> Block:
        block = self._take(size)
        stream = self._stream("down")
        try:
            stream.wait_event(_recorded(cupy.cuda.Stream.null))
            memory.copy_to_host_async(block.ctypes.data, size, stream)
            _recorded(stream).synchronize()
        except BaseException:
            # it may still be written to
            stream.synchronize()
            self._give(block)
            raise
        return block

    def _up(self, header: dict[str, Any], frames: list[Any]) -> Any:
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
            stream.wait_event(_recorded(cupy.cuda.Stream.null))
            memory.copy_from_host_async(source.ctypes.data, size, stream)
            _recorded(stream).synchronize()
        except BaseException:
            # the memory may still be written to
            stream.synchronize()
            raise
        return value

    def _stream(self, direction: str) -> Any:
        """A stream of the device that is chosen."""
        key = (cupy.cuda.runtime.getDevice(), direction)
        with self._lock:
            if key not in self._streams:
                self._streams[key] = cupy.cuda.Stream(non_blocking=True)
            return self._streams[key]

    def _take(self, size: int) -> Block:
        try:
            return self._pool.take(size)
        except MemoryError:
            return np.empty(size, np.uint8)

    def _give(self, block: Block) -> None:
        # NumPy's own memory is not page-locked
        if block.base is not None:
            self._pool.give(block)


def _axes(value: Any) -> list[int]:
    """The axes of an array, from the one whose steps are the longest."""
    return sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis]))


def _has_no_gaps(value: Any) -> bool:
    return bool(value.transpose(_axes(value)).flags.c_contiguous)


def _reach(value: Any) -> tuple[int, int]:
    """Bytes that an array reaches to before its first element, and from there on."""
    steps = [(n - 1) * stride for n, stride in zip(value.shape, value.strides, strict=True)]
    before = -sum(step for step in steps if step < 0)
    return before, sum(step for step in steps if step > 0) + value.itemsize


def _recorded(stream: Any) -> Any:
    """An event after what was queued on a stream; waiting for it takes no processor."""
    event = cupy.cuda.Event(block=True, disable_timing=True)
    event.record(stream)
    return event


def _page_locked(size: int) -> Block:
    try:
        memory = cupy.cuda.PinnedMemory(size, cupy.cuda.runtime.hostAllocPortable)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        if error.status != _NO_MEMORY:
            raise
        raise MemoryError(f"no page-locked memory for {size} bytes") from error
    return np.ndarray(size, np.uint8, cupy.cuda.PinnedMemoryPointer(memory, 0))


def _of_a_device() -> Callable[[Any], bool]:
    """Whether an object lies on a device, as dask-cuda sees it where it is installed."""
    try:
        found: Callable[[Any], bool] = import_module("dask_cuda.is_device_object").is_device_object
    except ImportError:
        return _has_interface
    return found


def _has_interface(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(_has_interface, value))
    if isinstance(value, dict):
        return any(map(_has_interface, value.values()))
    return hasattr(value, "__cuda_array_interface__")
