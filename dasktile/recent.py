"""What was used last of what is kept, within a number and a weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zict import LRU


def recently_used(most: int, most_weight: float, weight: Callable[[Any], float]) -> LRU[Any, Any]:
    """A mapping that drops the values used least recently where it has too many, or too heavy ones.

    A value that alone is too heavy is not kept.  Several threads may use it.

    Parameters
    ----------
    most, most_weight
        About how many values are kept at most, and their weight together; of light and heavy ones
        together, fewer are kept.
    weight
        The weight of a value.
    """
    least = most_weight / most
    return LRU(most_weight, {}, weight=lambda key, value: max(least, weight(value)))
