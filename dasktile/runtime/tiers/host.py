"""The tier of a device's tiles in the memory of the host."""

from __future__ import annotations

import errno
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from dask.sizeof import sizeof

from dasktile._compat.distributed import serialization
from dasktile.runtime.tiers.base import Held, Tier

#: Memory of the host, one byte each.
Block = np.ndarray[Any, np.dtype[np.uint8]]

#: Bytes that a block's size is rounded up to, so that tiles of about one size share blocks.
UNIT = 1 << 16


class Packed:
    """A device's value in the memory of the host.

    Parameters
    ----------
    header
        Describes how to construct the value from the frames, in types of msgpack.
    frames
        Buffers of the host that belong to this object alone.

    Attributes
    ----------
    header, frames
        The arguments; `frames` is None once they are freed.
    """

    __slots__ = ("frames", "header")

    def __init__(self, header: dict[str, Any], frames: list[Any]) -> None:
        self.header = header
        self.frames: list[Any] | None = frames

    @property
    def nbytes(self) -> int:
        """Bytes of the frames."""
        return sum(map(serialization.frame_bytes, self.frames or ()))

    def clear(self) -> None:
        """Free the frames; :meth:`parts` raises afterwards."""
        self.frames = None

    def parts(self) -> tuple[dict[str, Any], list[Any]]:
        """Header and frames.

        Raises
        ------
        ValueError
            If the frames were freed.
        """
        if self.frames is None:
            raise ValueError("the tile was freed")
        return self.header, self.frames

    def __reduce__(self) -> Any:
        header, frames = self.parts()
        return Packed, (header, [bytes(frame) for frame in frames])


def _sizeof(packed: Packed) -> int:
    return packed.nbytes


def _serialize(packed: Packed) -> tuple[dict[str, Any], list[Any]]:
    header, frames = packed.parts()
    return {"packed": header}, list(frames)


def _deserialize(header: dict[str, Any], frames: list[Any]) -> Packed:
    return Packed(header["packed"], frames)


sizeof.register(Packed, _sizeof)
serialization.register_serialization(Packed, _serialize, _deserialize)


class Host(Tier):
    """Memory of the host, in distributed's own serialisation.

    Parameters
    ----------
    copied
        Types that distributed copies from the device in serialisation and back in
        deserialisation.  Values of other types may have parts on the host already, so that their
        frames are copied.
    """

    name = "host"

    def __init__(self, copied: tuple[type, ...] = ()) -> None:
        self._copied = copied
        self._kept: set[Packed] = set()

    def store(self, value: Any) -> Held:
        try:
            packed, size = self.pack(value)
        except OSError as error:
            # raised by the value, not for lack of memory
            raise TypeError(f"cannot serialize an object of type {type(value)}") from error
        except MemoryError as error:
            raise OSError(errno.ENOMEM, "no memory left on the host") from error
        self._kept.add(packed)
        return Held(packed, size)

    def load(self, held: Held) -> Any:
        return self.unpack(held.content)

    def free(self, held: Held) -> None:
        packed: Packed = held.content
        if packed in self._kept:
            self._kept.discard(packed)
            self.release(packed)

    def close(self) -> None:
        while self._kept:
            self.release(self._kept.pop())

    def pack(self, value: Any) -> tuple[Packed, int]:
        """Copy a value to the host; return the copy and its bytes."""
        header, frames = serialization.to_host(value)
        copied = type(value) in self._copied
        packed = Packed(
            {"value": header, "copied": copied},
            list(frames) if copied else [bytearray(frame) for frame in frames],
        )
        return packed, packed.nbytes

    def unpack(self, packed: Packed) -> Any:
        """Copy a value to the device."""
        header, frames = packed.parts()
        if not header["copied"]:
            frames = [bytearray(frame) for frame in frames]
        return serialization.from_host(header["value"], frames)

    def release(self, packed: Packed) -> None:
        """Free the memory of a packed value; called once for each."""
        packed.clear()


class BlockPool:
    """A pool of memory blocks that are slow to allocate.

    Parameters
    ----------
    allocate
        Allocates a block of a number of bytes, or raises MemoryError.
    spare
        Bytes of unused blocks that are kept at the most.
    """

    def __init__(self, allocate: Callable[[int], Block], spare: int) -> None:
        self._allocate = allocate
        self._spare = spare
        self._lock = threading.Lock()
        self._free: defaultdict[int, list[Block]] = defaultdict(list)
        self._free_bytes = 0

    @property
    def free(self) -> int:
        """Bytes of the unused blocks."""
        return self._free_bytes

    def take(self, size: int) -> Block:
        """A block of at least `size` bytes.

        Raises
        ------
        MemoryError
            If there is no memory left.
        """
        rounded = -(-size // UNIT) * UNIT
        with self._lock:
            if self._free[rounded]:
                self._free_bytes -= rounded
                return self._free[rounded].pop()
        try:
            return self._allocate(rounded)
        except MemoryError:
            self.drop()
            return self._allocate(rounded)

    def give(self, block: Block) -> None:
        """Return a block to the pool."""
        with self._lock:
            if self._free_bytes + block.nbytes > self._spare:
                # the kept blocks may have sizes that are not needed any more
                self._drop()
            if block.nbytes <= self._spare:
                self._free[block.nbytes].append(block)
                self._free_bytes += block.nbytes

    def drop(self) -> None:
        """Free the unused blocks."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        self._free.clear()
        self._free_bytes = 0
