"""Arrays that are views of another array: they are spilled once, and are views when read back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def memory_of(value: Any) -> Array | None:
    """The array that owns the memory of an array, perhaps itself; None for other values."""
    if type(value) is not np.ndarray:
        return None
    while type(value.base) is np.ndarray:
        value = value.base
    owner: Array = value
    return owner


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

    def on(self, memory: Array) -> Array:
        """The array with this layout in a copy of the memory."""
        flat = memory if memory.flags.c_contiguous else memory.T
        buffer = flat.reshape(-1).view(np.uint8)
        view: Array = np.ndarray(self.shape, self.dtype, buffer, self.offset, self.strides)
        if not self.writeable:
            view.flags.writeable = False
        return view
