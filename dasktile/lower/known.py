"""What is known of the result of a task before it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Shape = tuple[int, ...]

#: Bytes of the label of a group.
_LABEL = 8


@dataclass(frozen=True, slots=True, eq=False)
class KnownResult:
    """A result of known size: an array, or a collection of arrays.

    Parameters
    ----------
    shapes
        The shape of every array.
    itemsize
        Bytes in memory per element; of several arrays, the mean.
    is_array
        Whether it is one array and no collection.
    groups
        Labels of the groups along the last axis; None for other results.
    dtype
        The type of all elements; None if it is unknown.
    base
        Bytes of the array of which it is a view that repeats elements; None for other results.  As
        it is sent, it has all of its own.
    """

    shapes: tuple[Shape, ...]
    itemsize: float
    is_array: bool = True
    groups: Any = None
    dtype: np.dtype[Any] | None = None
    base: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, and of the labels of groups."""
        labels = 0 if self.groups is None else _LABEL * len(self.groups)
        return round(sum(map(math.prod, self.shapes)) * self.itemsize) + labels


def known_array(shape: Shape, dtype: Any) -> KnownResult:
    """An array of a known type.

    Parameters
    ----------
    shape, dtype
        Of the array.
    """
    dtype = np.dtype(dtype)
    return KnownResult((shape,), dtype.itemsize, dtype=dtype)
