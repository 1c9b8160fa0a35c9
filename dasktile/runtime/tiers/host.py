"""The tier of a device's tiles in the memory of the host."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.sizeof import sizeof

from dasktile._compat.distributed import serialization
from dasktile.runtime.tiers.base import Held, Tier

#: Memory of the host, one byte each.
Block = np.ndarray[Any, np.dtype[np.uint8]]

#: Bytes of the smallest piece of a pool, and of the largest: copies of as much take far longer than
#: to start them.
UNIT, SLAB = 1 << 16, 1 << 25


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


class Outgoing:
    """A packed value on its way to a peer, where it becomes a value of the device again.

    Parameters
    ----------
    packed
        The value, whose frames must not be reused before they have been sent.

    Attributes
    ----------
    packed
        The argument; None once the value has been sent.
    receive
        Makes the value on the peer of what :meth:`parts` returns.
    """

    __slots__ = ("packed",)

    receive = staticmethod(serialization.from_host)

    def __init__(self, packed: Packed) -> None:
        self.packed: Packed | None = packed

    def parts(self) -> tuple[dict[str, Any], list[Any]]:
        """Header and frames for the peer, to which the frames belong that it receives.

        Raises
        ------
        ValueError
            If the value has been sent.
        """
        header, frames = self._packed_parts()
        return header["value"], frames

    def _packed_parts(self) -> tuple[dict[str, Any], list[Any]]:
        if self.packed is None:
            raise ValueError("the tile has been sent")
        header, frames = self.packed.parts()
        return header, list(frames)

    def __reduce__(self) -> Any:
        header, frames = self.parts()
        return self.receive, (header, [bytearray(frame) for frame in frames])


def _sizeof_outgoing(outgoing: Outgoing) -> int:
    return 0 if outgoing.packed is None else outgoing.packed.nbytes


# by which distributed decides to serialize it in a thread
sizeof.register(Outgoing, _sizeof_outgoing)
serialization.register_serialization(Outgoing, Outgoing.parts, Outgoing.receive)


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
        #: What is on its way to peers, by value.
        self._lent: dict[Packed, set[Outgoing]] = {}
        self._lock = threading.Lock()

    def store(self, value: Any) -> Held:
        try:
            packed, size = self.pack(value)
        except OSError as error:
            # raised by the value, not for lack of memory
            raise TypeError(f"cannot serialize an object of type {type(value)}") from error
        except MemoryError as error:
            raise OSError(errno.ENOMEM, "no memory left on the host") from error
        return self._keep(packed, size)

    def _keep(self, packed: Packed, size: int) -> Held:
        with self._lock:
            self._kept.add(packed)
        return Held(packed, size)

    def load(self, held: Held) -> Any:
        return self.unpack(held.content)

    def adopt(self, header: dict[str, Any], frames: list[Any]) -> Held:
        packed = packed_by_distributed(header, frames)
        return self._keep(packed, packed.nbytes)

    def lend(self, held: Held) -> Outgoing:
        packed: Packed = held.content
        outgoing = self.outgoing(packed)
        with self._lock:
            # the frames of others, which were read from disk, are not reused
            if packed in self._kept or packed in self._lent:
                self._lent.setdefault(packed, set()).add(outgoing)
        return outgoing

    def take_back(self, lent: Outgoing) -> None:
        packed, lent.packed = lent.packed, None
        if packed is None:
            return
        with self._lock:
            loans = self._lent.get(packed)
            if loans is None:
                return
            loans.discard(lent)
            if loans:
                return
            del self._lent[packed]
            is_freed = packed not in self._kept
        if is_freed:
            self.release(packed)

    def free(self, held: Held) -> None:
        packed: Packed = held.content
        with self._lock:
            if packed not in self._kept:
                return
            self._kept.discard(packed)
            is_lent = packed in self._lent
        if not is_lent:
            self.release(packed)

    def close(self) -> None:
        with self._lock:
            unused = [packed for packed in self._kept if packed not in self._lent]
            self._kept.clear()
        for packed in unused:
            self.release(packed)

    def outgoing(self, packed: Packed) -> Outgoing:
        """What a peer is sent in place of a packed value."""
        return Outgoing(packed)

    def pack(self, value: Any) -> tuple[Packed, int]:
        """Copy a value to the host; return the copy and its bytes."""
        header, frames = serialization.to_host(value)
        copied = self.is_copied(type(value))
        packed = Packed(
            {"value": header, "copied": copied},
            list(frames) if copied else [bytearray(frame) for frame in frames],
        )
        return packed, packed.nbytes

    def is_copied(self, kind: type) -> bool:
        """Whether distributed copies values of a type, so that their frames need no copies."""
        return kind in self._copied

    def unpack(self, packed: Packed) -> Any:
        """Copy a value to the device."""
        header, frames = packed.parts()
        if not header["copied"]:
            frames = [bytearray(frame) for frame in frames]
        return serialization.from_host(header["value"], frames)

    def release(self, packed: Packed) -> None:
        """Free the memory of a packed value; called once for each."""
        packed.clear()


def packed_by_distributed(header: dict[str, Any], frames: list[Any]) -> Packed:
    """A value of the device that distributed has serialised, without a copy of its frames."""
    # the value may have parts on the host, which would be parts of the frames after it was read
    return Packed({"value": header, "copied": False}, frames)


class PiecePool:
    """Memory that is slow to allocate, in pieces that are kept for reuse until the end.

    Slabs of one size are allocated as they are needed, and divided by two until a piece has the
    size that is asked for; two free halves are put together again (a buddy allocator).

    Parameters
    ----------
    allocate
        Allocates a block of a number of bytes, or raises MemoryError.
    limit
        Bytes that are allocated at the most.
    """

    def __init__(self, allocate: Callable[[int], Block], limit: int) -> None:
        self._allocate = allocate
        self._limit = limit
        self._lock = threading.Lock()
        self._slabs: list[Block] = []
        # The free pieces of each size; dicts, as pieces are taken in the order of their return.
        self._free: dict[int, dict[tuple[int, int], None]] = {
            UNIT << order: {} for order in range((SLAB // UNIT).bit_length())
        }
        self._is_full = False

    @property
    def allocated(self) -> int:
        """Bytes of all slabs."""
        return len(self._slabs) * SLAB

    @property
    def free(self) -> int:
        """Bytes of the unused pieces."""
        return sum(size * len(pieces) for size, pieces in self._free.items())

    def take(self, size: int) -> list[Piece]:
        """Pieces with at least `size` bytes together, and an eighth more at the most.

        All of them are needed: without the last one they are too small.

        Raises
        ------
        MemoryError
            If there is no memory left.
        """
        taken: list[Piece] = []
        with self._lock:
            try:
                for part in _powers_of_two(size):
                    self._take(part, taken)
            except MemoryError:
                self._give(taken)
                raise
            # a part that was not left in one piece may have more of them than needed
            surplus = sum(piece.memory.nbytes for piece in taken) - size
            while taken and surplus >= taken[-1].memory.nbytes:
                surplus -= taken[-1].memory.nbytes
                self._give([taken.pop()])
        return taken

    def give(self, pieces: Iterable[Piece]) -> None:
        """Return pieces to the pool."""
        with self._lock:
            self._give(pieces)

    def close(self) -> None:
        """Free all memory; no piece may be in use."""
        with self._lock:
            self._slabs.clear()
            for pieces in self._free.values():
                pieces.clear()

    def _take(self, size: int, taken: list[Piece]) -> None:
        """Add a piece of `size` bytes, or several smaller ones, to `taken`."""
        larger = next((of for of, pieces in self._free.items() if of >= size and pieces), None)
        if larger is None and self._add_slab():
            larger = SLAB
        if larger is not None:
            slab, start = self._free[larger].popitem()[0]
            while larger > size:
                larger //= 2
                self._free[larger][slab, start + larger] = None
            memory = self._slabs[slab][start : start + size]
            taken.append(Piece(slab, start, memory))
        elif size > UNIT:
            self._take(size // 2, taken)
            self._take(size // 2, taken)
        else:
            raise MemoryError(f"no memory is left of {self.allocated} bytes")

    def _give(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            size, start = piece.memory.nbytes, piece.start
            while size < SLAB and (piece.slab, start ^ size) in self._free[size]:
                del self._free[size][piece.slab, start ^ size]
                start &= ~size
                size *= 2
            self._free[size][piece.slab, start] = None

    def _add_slab(self) -> bool:
        if self._is_full or self.allocated + SLAB > self._limit:
            return False
        try:
            self._slabs.append(self._allocate(SLAB))
        except MemoryError:
            # the system has no more of it, and to ask again would take time for every tile
            self._is_full = True
            return False
        self._free[SLAB][len(self._slabs) - 1, 0] = None
        return True


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A part of a slab.

    Attributes
    ----------
    slab
        Number of the slab.
    start
        First byte in it.
    memory
        The bytes.
    """

    slab: int
    start: int
    memory: Block


def _powers_of_two(size: int) -> Iterator[int]:
    """Sizes of pieces for a number of bytes, the largest first."""
    whole, rest = divmod(size, SLAB)
    # four of its bits, so that a small tile needs few copies
    unit = max(UNIT, 1 << max(0, rest.bit_length() - 4))
    rest = -(-rest // unit) * unit
    yield from [SLAB] * (whole + rest // SLAB)
    rest %= SLAB
    while rest:
        part = 1 << (rest.bit_length() - 1)
        yield part
        rest -= part
