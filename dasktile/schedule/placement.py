"""Which worker has which tile, said in so few letters that it fits the name of a layer.

The key of a tile is ``(name, *index)``.  Where tiles live is a function of the index: every
dimension of it is divided into runs of blocks by some axes of the worker mesh.  A name is
the one thing that stays with a task through optimisation, fusion, culling, ``persist``,
pickling and other clients, so the function is written into it::

    matmul-dasktile-2x2_0e4_1e4_b5k2-5f0c...

says: a mesh of 2 x 2 workers; its axis 0 divides the first dimension of the index, four
blocks to each part, its axis 1 the second alike; workers are to receive ``5k2`` bytes (to
the base 36) so that this layer can run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import groupby
from typing import Any, TypeVar

from dasktile.ir import Share

#: Stands in names of layers before the placement.
MARK = "-dasktile-"

#: Letters that a placement may take.  Dask cuts names of fused tasks at about 115.
MAX_LETTERS = 48

#: Blocks along the dimensions of an index that names may speak of, together.  Anybody may
#: name a layer, and homes are looked up in a table of them.
MAX_BLOCKS = 1 << 20

_CODE = re.compile(r"(\d+(?:x\d+)*)((?:_[0-9a-z.]*)*)")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Placement:
    """Homes of the tasks of a layer.

    Parameters
    ----------
    mesh
        Sizes of the mesh's axes, slowest link first.
    shares
        For every dimension of the index, how the mesh divides it.
    predicted
        Bytes that workers receive from one another so that the layer can run.
    follow
        If given, tasks are where the blocks of an array are instead: the :func:`token` of
        its name, and for each of its axes the dimension of the index that runs along it,
        None for its first block.
    """

    mesh: tuple[int, ...]
    shares: tuple[Share, ...] = ()
    predicted: int = 0
    follow: tuple[str, tuple[int | None, ...]] | None = None

    @property
    def workers(self) -> int:
        return math.prod(self.mesh)

    def position(self, index: Sequence[int]) -> int:
        """The place in the mesh, in C order, of the worker that has this tile."""
        place = 0
        for dimension, offsets in self._offsets:
            try:
                place += offsets[index[dimension]]
            except IndexError:
                # past the last block; shorter indices are of the first
                place += offsets[-1] if dimension < len(index) else offsets[0]
        return place

    def position_of(self, index: Any) -> int | None:
        """The same for the rest of any key, None where that is no index of a tile.

        Dask's own steps on arrays of a plan may have names of the plan, and any keys.
        """
        if type(index) is not tuple:
            return None
        try:
            return self.position(index)
        except TypeError:
            return None

    def followed(self, index: Any) -> tuple[int, ...] | None:
        """The block of the array followed that is at home with this tile, None if none is."""
        if self.follow is None or type(index) is not tuple:
            return None
        _, axes = self.follow
        if any(axis is not None and axis >= len(index) for axis in axes):
            return None
        return tuple(0 if axis is None else index[axis] for axis in axes)

    @cached_property
    def _offsets(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """For every dimension that is divided, and block of it, what it adds to the place."""
        strides = [math.prod(self.mesh[axis + 1 :]) for axis in range(len(self.mesh))]
        found = []
        for dimension, share in enumerate(self.shares):
            offsets: list[int] = []
            for part, run in enumerate(share.runs):
                place, rest = 0, part
                for axis in reversed(share.by):
                    rest, digit = divmod(rest, self.mesh[axis])
                    place += digit * strides[axis]
                offsets += [place] * run
            if any(offsets):
                found.append((dimension, tuple(offsets)))
        return tuple(found)


def encode(placement: Placement) -> str:
    """A placement as a part of a layer's name: letters, digits, ``_`` and ``.``."""
    dims = ["".join(("_", *_encode_share(share))) for share in placement.shares]
    while dims and dims[-1] == "_":
        dims.pop()
    code = "x".join(map(str, placement.mesh)) + "".join(dims)
    if placement.follow is not None:
        array, axes = placement.follow
        code += f"_f{array}." + ".".join("" if axis is None else str(axis) for axis in axes)
    if placement.predicted:
        code += f"_b{_base36(placement.predicted)}"
    return code


def _encode_share(share: Share) -> tuple[str, str]:
    if not share.by:
        return "", ""
    by = "".join(map(str, share.by))
    runs = share.runs
    if len(set(runs)) == 1:
        return by, f"e{runs[0]}"
    exact = "r" + ".".join(f"{run}x{len(list(same))}" for run, same in groupby(runs))
    if len(exact) <= MAX_LETTERS // 2:
        return by, exact
    # nearly even, then: a name that is too long would be cut
    return by, f"n{sum(runs)}"


def decode(name: object) -> Placement | None:
    """The placement that the name of a layer holds; None where there is none."""
    if not isinstance(name, str) or MARK not in name:
        return None
    return _decode_code(name.rpartition(MARK)[2].partition("-")[0])


@lru_cache(maxsize=4096)
def _decode_code(code: str) -> Placement | None:
    match = _CODE.fullmatch(code)
    if match is None:
        return None
    blocks = 0
    try:
        mesh = tuple(map(int, match[1].split("x")))
        if not 0 < math.prod(mesh) <= 1 << 16:
            return None
        shares, predicted, follow = [], 0, None
        for part in match[2].split("_")[1:]:
            if part.startswith("b"):
                predicted = int(part[1:], 36)
            elif part.startswith("f"):
                array, *axes = part[1:].split(".")
                follow = array, tuple(int(axis) if axis else None for axis in axes)
            else:
                shares.append(_decode_share(part, mesh, MAX_BLOCKS - blocks))
                blocks += sum(shares[-1].runs)
    except (ValueError, IndexError):
        return None
    return Placement(mesh, tuple(shares), predicted, follow)


def _decode_share(part: str, mesh: tuple[int, ...], most: int) -> Share:
    """A dimension of a placement; of more than so many blocks a ValueError."""
    if not part:
        return Share()
    end = next((at for at, letter in enumerate(part) if letter in "ern"), len(part) - 1)
    by = tuple(map(int, part[:end]))
    parts = math.prod(mesh[axis] for axis in by)
    form, rest = part[end], part[end + 1 :]
    # of every form: the runs, and how often each
    if form == "e":
        runs = [(int(rest), parts)]
    elif form == "n":
        runs = [(int(rest), 1)]
    elif form == "r":
        runs = [
            (int(run), int(times)) for run, times in (run.split("x") for run in rest.split("."))
        ]
    else:
        raise ValueError(part)
    # nothing is made before it is known how long it is
    if len(set(by)) < len(by) or sum(run * times for run, times in runs) > most:
        raise ValueError(part)
    if form == "n":
        return Share(by, near_even(runs[0][0], parts))
    if sum(times for _, times in runs) != parts:
        raise ValueError(part)
    return Share(by, tuple(run for run, times in runs for _ in range(times)))


def near_even(blocks: int, parts: int) -> tuple[int, ...]:
    """So many blocks for each part."""
    edges = [part * blocks // parts for part in range(parts + 1)]
    return tuple(hi - lo for lo, hi in zip(edges[:-1], edges[1:], strict=True))


_Place = TypeVar("_Place")


def primary(index: Sequence[int], places: Sequence[_Place]) -> _Place:
    """Where a tile counts as being, of several places in order that have a copy.

    Planner and scheduler choose alike, and of an array that is everywhere evenly.
    """
    return places[sum(index) % len(places)]


def token(array: str) -> str:
    """A short stand-in for the name of an array."""
    return blake2b(array.encode(), digest_size=5).hexdigest()


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"


def worker_order(workers: dict[str, tuple[str, object]]) -> list[str]:
    """Addresses of workers in the order in which a mesh is laid over them.

    Workers of one host are neighbours, so that the first axes of a mesh, which are cut
    first, run between hosts.

    Parameters
    ----------
    workers
        Host and name of each worker, by address.
    """

    def place(address: str) -> tuple[str, bool, int, str, str]:
        host, name = workers[address]
        number = name if isinstance(name, int) else None
        if number is None and isinstance(name, str) and name.isdigit():
            number = int(name)
        return host, number is None, number or 0, str(name), address

    return sorted(workers, key=place)
