"""Arrays that are views of the memory of another: written once, and views again when read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def memory_of(value: Any) -> Array | None:
    """The array whose memory an array is a view of, or itself; None for all that is no array."""
    if type(value) is not np.ndarray:
        return None
    while type(value.base) is np.ndarray:
        value = value.base
    found: Array = value
    return found


def is_all_of(value: Array, memory: Array) -> bool:
    """Whether an array is a view of all of a memory, so that the one can be kept as the other.

    Parameters
    ----------
    value
        The array.
    memory
        What :func:`memory_of` says of it.
    """
    contiguous = memory.flags.c_contiguous or memory.flags.f_contiguous
    objects = memory.dtype.hasobject or value.dtype.hasobject
    return value.nbytes == memory.nbytes > 0 and contiguous and not objects


@dataclass(frozen=True, slots=True)
class View:
    """How an array lies in a memory.

    Parameters
    ----------
    shape, strides, dtype, writeable
        Of the array.
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
        """How an array lies in the memory that it is a view of."""
        offset = value.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
        return cls(value.shape, value.strides, value.dtype, value.flags.writeable, offset)

    def on(self, memory: Array) -> Array:
        """The same view of a copy of the memory."""
        flat = memory if memory.flags.c_contiguous else memory.T
        buffer = flat.reshape(-1).view(np.uint8)
        found: Array = np.ndarray(self.shape, self.dtype, buffer, self.offset, self.strides)
        if not self.writeable:
            found.flags.writeable = False
        return found
