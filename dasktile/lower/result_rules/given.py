"""What a rule finds a result from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dasktile.lower.known import KnownResult, Shape, known_array


@dataclass(frozen=True, slots=True)
class Given:
    """The arguments of a function, with what is known of results in their place.

    Parameters
    ----------
    arguments
        Positional arguments, in their order; those in lists and tuples of results one by one.
    keywords
        The others.
    is_listed
        Whether some of the results are in a list or a tuple.
    """

    arguments: Sequence[Any]
    keywords: Mapping[str, Any]
    is_listed: bool = False

    @property
    def sources(self) -> list[KnownResult]:
        """The results among the arguments."""
        return [each for each in self.arguments if isinstance(each, KnownResult)]

    @property
    def literals(self) -> list[Any]:
        """The other positional arguments."""
        return [each for each in self.arguments if not isinstance(each, KnownResult)]

    @property
    def array(self) -> KnownResult | None:
        """The only result, if it is one array."""
        sources = self.sources
        return sources[0] if len(sources) == 1 and sources[0].is_array else None

    def option(self, name: str, position: int = 0) -> Any:
        """An argument that is given by its name, or at a position behind the results."""
        literals = self.literals
        by_position = literals[position] if position < len(literals) else None
        return self.keywords.get(name, by_position)


#: Finds a result; None where it is not sure.
Rule = Callable[[Given], KnownResult | None]


def reduced(shape: Shape, axis: Any, keepdims: Any) -> Shape:
    """The shape of an array that is reduced along an axis, several, or all of them.

    Parameters
    ----------
    shape
        Of the array.
    axis, keepdims
        As NumPy takes them.
    """
    axes = range(len(shape)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    places = {range(len(shape))[each] for each in axes}
    if keepdims:
        return tuple(1 if at in places else size for at, size in enumerate(shape))
    return tuple(size for at, size in enumerate(shape) if at not in places)


def common_type(sources: Sequence[KnownResult]) -> np.dtype[Any] | None:
    """The type of sums and products of arrays; None where one of theirs is unknown."""
    types = [each.dtype for each in sources]
    known = [each for each in types if each is not None]
    return np.result_type(*known) if known and len(known) == len(types) else None


def of_common_type(shape: Shape, sources: Sequence[KnownResult]) -> KnownResult | None:
    """An array of the type of some others.

    Where types are unknown, elements have the bytes of those of the others, if these have equal
    bytes and are not of small integers, sums of which are larger.
    """
    dtype = common_type(sources)
    if dtype is not None:
        return known_array(shape, dtype)
    sizes = {each.itemsize for each in sources}
    return KnownResult((shape,), sizes.pop()) if len(sizes) == 1 and min(sizes) >= 8 else None
