"""Names by which a task knows the tasks of other layers that Dask has merged into it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

#: The name of a layer that is merged into another one, with the axes of its blocks.
_PART = re.compile(r"(.+?)((?:_\.\d+)+)")


def keys_of_parts(names: Sequence[Any], key: Any) -> Sequence[Any]:
    """The keys of tasks that are merged into another one, as they would be without that.

    Where Dask merges layers of blocks, a task knows its parts by the names of their layers and
    their axes, as ``'add-1234_.1_.0'``, and not by their blocks.  Elementwise operations number the
    axes from the last one; others, such as reductions, from the first one.  Keys are only found
    where all parts that have as many axes as the whole have them in the order of an elementwise
    operation.  Along an axis with one block, which is read by several, a key may have the number of
    another block.

    Parameters
    ----------
    names
        The keys by which the whole knows its parts.
    key
        The key of the whole.

    Returns
    -------
    For every part its key, or its name where no key is found.
    """
    if type(key) is not tuple or all(type(name) is not str for name in names):
        return names
    parts = [_part(name) if type(name) is str else None for name in names]
    last = len(key) - 1
    every = tuple(range(last - 1, -1, -1))
    of_whole = [part[1] for part in parts if part is not None and len(part[1]) == last]
    if not of_whole or any(axes != every for axes in of_whole):
        return names
    return [
        name
        if part is None or part[1][0] >= last or list(part[1]) != sorted(part[1], reverse=True)
        else (part[0], *(key[last - axis] for axis in part[1]))
        for name, part in zip(names, parts, strict=True)
    ]


def layer_of_part(name: Any) -> Any:
    """The layer of a part of a merged task; the same for any other name."""
    part = _part(name) if type(name) is str else None
    return name if part is None else part[0]


@lru_cache(maxsize=10_000)
def _part(name: str) -> tuple[str, tuple[int, ...]] | None:
    """The layer and the axes of a part of a merged task; None for any other name."""
    found = _PART.fullmatch(name)
    return found and (found[1], tuple(map(int, found[2].split("_.")[1:])))
