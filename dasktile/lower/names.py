"""Names of the layers that are written.

A name is a function of everything its tasks depend on: the same expression with the same
tiling has the same keys in every process, and no new layer has the name of a layer of the
input graph.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any

from dask.tokenize import tokenize

from dasktile.ir import Chunks
from dasktile.schedule.placement import (
    MARK,
    PART,
    SLICE_PREFIX,
    Placement,
    decode,
    encode,
    placements_of,
)

#: The operations of layers that hold an array in other tiles: for some of its readers, to be cut
#: again, and for all of its readers.  The last is for results only, as tiles of a source should
#: have the same keys in plans with other readers.
RETILE, JOIN, KEPT = "retile", "join", "kept"

#: The operation of layers with tasks that make several arrays.
COMMON = "common"

#: The step of reductions that makes a partial result of every tile.
CHUNK = "chunk"

#: Steps of running reductions: what all tiles up to one sum up to, and the last of a tile alone.
CARRY, END = "carry", "end"

#: The operation of layers of bundles of one phase, and of the tasks between them.
BUNDLES = "bundles"


#: What a token was made of: a text, or texts that are sorted.
Origin = str | tuple[str, ...]

_origins: ContextVar[dict[str, Origin] | None] = ContextVar("origins", default=None)


@contextmanager
def noted_origins() -> Iterator[dict[str, Origin]]:
    """Yield a dict to which the tokens that are made in this context are added."""
    origins: dict[str, Origin] = {}
    token = _origins.set(origins)
    try:
        yield origins
    finally:
        _origins.reset(token)


def token_of(origin: Origin) -> str:
    """The token of what determines some tasks.

    Parameters
    ----------
    origin
        A text, or texts whose order does not matter.
    """
    token = tokenize(origin if isinstance(origin, str) else sorted(origin))
    origins = _origins.get()
    if origins is not None:
        origins[token] = origin
    return token


def without_names(*content: object) -> str:
    """A short text for a part of what determines some tasks, in which there are no names."""
    # not to be taken for a token
    return blake2b(repr(content).encode(), digest_size=16).hexdigest().upper()


def of_sizes(*content: Chunks) -> str:
    """As :func:`without_names` for sizes of blocks, of which there may be very many."""
    digest = blake2b(digest_size=16)
    for chunks in content:
        digest.update(repr(list(map(len, chunks))).encode())
        for sizes in chunks:
            digest.update(array("q", sizes).tobytes())
    return digest.hexdigest().upper()


def new_layer_name(op: str, *content: object, placement: Placement | None = None) -> str:
    """The name of a layer for operation `op`, whose tasks `content` determines.

    `content` consists of names, numbers and tuples of them.  The name has the placement of
    the tasks, if there is one (see :mod:`dasktile.schedule.placement`).
    """
    return f"{op}{MARK}{_code(placement)}{token_of(repr(content))}"


def is_of_bundles(name: object) -> bool:
    """Whether the layer of this name has bundles, and tasks between them."""
    return isinstance(name, str) and name.startswith(f"{BUNDLES}{MARK}")


def placements_in(layers: Mapping[str, Iterable[Any]]) -> Iterator[Placement]:
    """The placements in the names of layers, and in those of bundles in them.

    Parameters
    ----------
    layers
        The keys of each layer, by its name.
    """
    yield from placements_of(layers)
    for name, keys in layers.items():
        if is_of_bundles(name):
            heads = (key[0] for key in keys if isinstance(key, tuple))
            yield from itertools.islice(placements_of(heads), 1)


def step_layer_name(name: str, step: str, placement: Placement | None = None) -> str:
    """The name of a layer that is an intermediate step of layer `name`."""
    op, mark, token = name.rpartition(MARK)
    if not mark:
        return f"{name}-{step}{MARK}{_code(placement)}{token_of(name)}"
    if decode(name) is not None:
        token = token.partition("-")[2]
    return f"{op}-{step}{MARK}{_code(placement)}{token}"


def _code(placement: Placement | None) -> str:
    return "" if placement is None else f"{encode(placement)}-"


def part_layer_name(name: str, keys: Iterable[Any]) -> str:
    """The name of a layer of some of the tasks of layer `name`.

    Where graphs are merged, layers of the same name must have the same keys.
    """
    keys = list(keys)
    if all(type(key) is tuple and key and type(key[0]) is str for key in keys):
        heads = {key[0] for key in keys}
        if len(heads) == 1:
            # one text for all keys takes less time, and less memory in a template
            return f"{name}{PART}{token_of(repr((*heads, sorted(repr(key[1:]) for key in keys))))}"
    return f"{name}{PART}{token_of(tuple(map(str, keys)))}"


def whole_layer_name(name: str) -> str:
    """The name of the layer of which a layer has some of the tasks; that of other layers."""
    # layers of other programs may have names of any type
    return name.partition(PART)[0] if isinstance(name, str) else name


def slices_layer_name(name: str) -> str:
    """The name of a layer of slices of tiles, which are sent to other workers.

    Distributed has a rule for the prefix of this name: it assumes that such tasks take no
    time, so a whole tile is never sent to another worker only to be sliced there.
    """
    return f"{SLICE_PREFIX}{token_of(name)}"


def predicted_bytes(layers: Iterable[object]) -> int:
    """Bytes that names of layers predict that workers receive.

    Parameters
    ----------
    layers
        The names.
    """
    placements = map(decode, layers)
    return sum(placement.predicted for placement in placements if placement is not None)
