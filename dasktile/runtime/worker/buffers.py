"""Arrays that are views of another array: they are spilled once, and are views when read back."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

#: Type of what is between an array with given strides and the array that it is a view of.
_STRIDED: type = type(getattr(np.lib.stride_tricks.as_strided(np.zeros(1)), "base", None))


def memory_of(value: Any) -> Array | None:
    """The array that owns the memory of an array, perhaps itself; None for other values."""
    if type(value) is not np.ndarray:
        return None
    array: Any = value
    while type(base := array.base) in (np.ndarray, _STRIDED):
        array = base if type(base) is np.ndarray else base.base
        if type(array) is not np.ndarray:
            return None
    owner: Array = array
    return owner


def is_base(value: Any) -> bool:
    """Whether a value is an array that is no view of anything."""
    return type(value) is np.ndarray and value.base is None


def overlapping_range(value: Any) -> tuple[int, int] | None:
    """The bytes of its memory that an array uses, if they are fewer than those of its elements.

    Returns
    -------
    The first byte in the memory by :func:`memory_of`, and that after the last; None for other
    arrays and values, as those whose memory is not contiguous.
    """
    if type(value) is not np.ndarray or value.base is None:
        return None
    if value.flags.c_contiguous or value.flags.f_contiguous:
        # the usual view: it uses as many bytes as its elements have
        return None
    memory = memory_of(value)
    if memory is None or not value.size:
        return None
    if not (memory.flags.c_contiguous or memory.flags.f_contiguous):
        return None
    if memory.dtype.hasobject or value.dtype.hasobject:
        return None
    axes = [(size - 1) * stride for size, stride in zip(value.shape, value.strides, strict=True)]
    start = value.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    first = start + sum(min(0, last) for last in axes)
    stop = start + sum(max(0, last) for last in axes) + value.itemsize
    # distributed writes and counts what is broadcast once
    once = math.prod(n for n, stride in zip(value.shape, value.strides, strict=True) if stride)
    if first < 0 or stop > memory.nbytes or stop - first >= once * value.itemsize:
        return None
    return first, stop


def own_bytes(value: Any, size: int) -> int:
    """Bytes that a value takes in memory: fewer than its measured size for overlapping views.

    Parameters
    ----------
    value
        The value.
    size
        Its measured size in bytes.
    """
    used = overlapping_range(value)
    return size if used is None else min(size, used[1] - used[0])


def is_all_of(value: Array, memory: Array) -> bool:
    """Whether an array is a view of all of a memory, so that spilling the memory spills the array.

    Parameters
    ----------
    value
        The array.
    memory
        The array that owns its memory, by :func:`memory_of`.
    """
    contiguous = memory.flags.c_contiguous or memory.flags.f_contiguous
    objects = memory.dtype.hasobject or value.dtype.hasobject
    return value.nbytes == memory.nbytes > 0 and contiguous and not objects


@dataclass(frozen=True, slots=True)
class View:
    """The layout of an array in the memory of another array.

    Parameters
    ----------
    shape, strides, dtype, writeable
        Attributes of the array.
    offset
        Bytes from the start of the memory to its first element.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    writeable: bool
    offset: int

    @classmethod
    def of(cls, value: Array, memory: Array) -> View:
        """The layout of an array in the memory that it is a view of."""
        offset = value.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
        return cls(value.shape, value.strides, value.dtype, value.flags.writeable, offset)

    @classmethod
    def of_range(cls, value: Array, first: int, stop: int) -> tuple[View, Array]:
        """The layout of an array in a range of bytes of its memory, and that range.

        Parameters
        ----------
        value
            The array.
        first, stop
            What :func:`overlapping_range` returns.
        """
        memory = memory_of(value)
        assert memory is not None
        view = cls.of(value, memory)
        return replace(view, offset=view.offset - first), _flat(memory)[first:stop]

    def on(self, memory: Array) -> Array:
        """The array with this layout in a copy of the memory."""
        buffer = _flat(memory)
        view: Array = np.ndarray(self.shape, self.dtype, buffer, self.offset, self.strides)
        if not self.writeable:
            view.flags.writeable = False
        return view


def _flat(memory: Array) -> Array:
    """The bytes of a contiguous memory."""
    flat = memory if memory.flags.c_contiguous else memory.T
    return flat.reshape(-1).view(np.uint8)
