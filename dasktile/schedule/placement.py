"""Placement of the tiles of a layer on the worker mesh, encoded in the name of the layer.

The key of a tile is ``(name, *index)``.  Its home worker is a function of the index: axes of the
worker mesh divide each dimension of the index into runs of blocks.  Only the name of a task stays
unchanged through optimisation, fusion, culling, ``persist``, pickling and other clients, so the
function is encoded in it::

    matmul-dasktile-2x2_0e4_1e4_b5k2-5f0c...

means: a mesh of 2 x 2 workers; axis 0 divides the first dimension of the index into parts of four
blocks, axis 1 the second dimension likewise; workers are predicted to receive ``5k2`` bytes (in
base 36) for this layer.  A part ``w13`` says that the plan was made for 13 workers, where that is
not the number of positions: see :mod:`dasktile.tiling.fewer`.  The blocks of the parts of a
dimension have one of these forms:

- ``e4``: four blocks each;
- ``r3x2.4x1``: two parts of three blocks, then one part of four;
- ``t3.4``: three or four blocks; the bits of ``4`` (in base 36) are set for the parts with four;
- ``m40``, ``n40``: 40 blocks in near-even parts, whose boundaries are rounded, or rounded down.

The last form is not exact: it stands for parts that the others need too many letters for.

A part ``f5f3b0c24a1.0.`` in place of dimensions says that tiles follow the blocks of an array,
whose name has that token: dimension 0 numbers the blocks of its first axis, and of its second axis
tiles follow the first block.  In ``f5f3b0c24a1g.0._g0.2x2n3.7d1n4_z``, the blocks of the dimension
along the first axis follow others than those of their numbers: 2, 2, 3, 3, 4, 4, then 7, 6, 5, 4.
A name that was cut before the ``z`` says nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import groupby
from typing import Any, TypeVar

from dasktile.ir import Sharding, Share, near_even
from dasktile.ir.block_numbers import Numbers, code_of, followed_block, numbers_of

#: Precedes the placement in names of layers.
MARK = "-dasktile-"

#: Precedes the token of the keys in the name of a layer that lacks tasks of another one.
PART = "-part-"

#: Start of the names of layers of slices.
SLICE_PREFIX = "rechunk-split-"

#: Most letters of a placement.  Dask cuts names of fused tasks at about 115 letters.
MAX_LETTERS = 48

#: Most blocks of a placement, all dimensions together.  Layers of other programs may have names
#: that look like a placement, and decoding allocates memory for every block.
MAX_BLOCKS = 1 << 20

_CODE = re.compile(r"(\d+(?:x\d+)*)((?:_[0-9a-z.]*)*)")
#: The end of the name of a layer that was written: a placement, if there is one, and a token.
_WRITTEN = re.compile(rf"{MARK}(?:[0-9a-z_.]+-)?[0-9a-f]{{32}}(?:-part-[0-9a-f]{{32}})?\Z")

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Leader:
    """An array whose blocks the tiles of a layer follow.

    Parameters
    ----------
    token
        The :func:`token` of the array's name.
    dims, numbers
        As those of :class:`~dasktile.ir.Follow`, for the dimensions of the index.
    """

    token: str
    dims: tuple[int | None, ...]
    numbers: tuple[Numbers | None, ...]

    def block(self, index: Sequence[int]) -> tuple[int, ...] | None:
        """The block of the array whose home a tile has, None if there is none."""
        try:
            return followed_block(self.dims, self.numbers, index)
        except (IndexError, TypeError):
            return None


@dataclass(frozen=True)
class Placement:
    """Homes of the tasks of a layer.

    Parameters
    ----------
    mesh
        Sizes of the mesh's axes, that of the slowest network link first.
    sharding
        How the mesh divides the dimensions of the index.
    predicted
        Predicted bytes that workers receive from other workers for the layer.
    follow
        If given, the home of a task is that of a block of this array instead.
    planned_for
        Number of workers that the plan was made for; None if that is the number of positions.
    """

    mesh: tuple[int, ...]
    sharding: Sharding
    predicted: int = 0
    follow: Leader | None = None
    planned_for: int | None = None

    @property
    def positions(self) -> int:
        """Number of positions of the mesh."""
        return math.prod(self.mesh)

    @property
    def workers(self) -> int:
        """Number of workers that the plan was made for.

        Plans may use fewer of them, and of thousands one position is a group of workers.
        """
        return self.planned_for or self.positions

    def position(self, index: Sequence[int]) -> int:
        """Position in the mesh, in C order, of the home worker of a tile."""
        place = 0
        for dimension, offsets in self._offsets:
            try:
                place += offsets[index[dimension]]
            except IndexError:
                # an index past the last block counts as the last, a missing one as the first
                place += offsets[-1] if dimension < len(index) else offsets[0]
        return place

    def position_of(self, index: Any) -> int | None:
        """As :meth:`position`, for the rest of any key; None if that is no index of a tile.

        Steps that Dask adds to arrays of a plan can have names of the plan and keys of any form.
        """
        if type(index) is not tuple:
            return None
        try:
            return self.position(index)
        except TypeError:
            return None

    def followed(self, index: Any) -> tuple[int, ...] | None:
        """The block of the followed array whose home this tile has, None if there is none."""
        if self.follow is None or type(index) is not tuple:
            return None
        return self.follow.block(index)

    @cached_property
    def _offsets(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """For every divided dimension, the summand of each block in the mesh position."""
        strides = [math.prod(self.mesh[axis + 1 :]) for axis in range(len(self.mesh))]
        divided = []
        for dimension, share in enumerate(self.sharding.dims):
            offsets: list[int] = []
            for part, run in enumerate(share.runs):
                place, rest = 0, part
                for axis in reversed(share.by):
                    rest, digit = divmod(rest, self.mesh[axis])
                    place += digit * strides[axis]
                offsets += [place] * run
            if any(offsets):
                divided.append((dimension, tuple(offsets)))
        return tuple(divided)


def encode(placement: Placement) -> str:
    """A placement as a part of a layer's name: letters, digits, ``_`` and ``.``."""
    dims = ["".join(("_", *_encode_share(share))) for share in placement.sharding.dims]
    while dims and dims[-1] == "_":
        dims.pop()
    code = "x".join(map(str, placement.mesh)) + "".join(dims)
    if placement.follow is not None:
        code += _encode_leader(placement.follow)
    if placement.predicted:
        code += f"_b{_base36(placement.predicted)}"
    if placement.planned_for is not None:
        code += f"_w{placement.planned_for}"
    return code


def _encode_leader(leader: Leader) -> str:
    dims = ".".join("" if dim is None else str(dim) for dim in leader.dims)
    if not any(numbers is not None for numbers in leader.numbers):
        return f"_f{leader.token}.{dims}"
    parts = "".join(
        f"_g{axis}.{code_of(numbers)}"
        for axis, numbers in enumerate(leader.numbers)
        if numbers is not None
    )
    return f"_f{leader.token}g.{dims}{parts}_z"


def _encode_share(share: Share) -> tuple[str, str]:
    if not share.by:
        return "", ""
    by = "".join(map(str, share.by))
    runs = share.runs
    if len(set(runs)) == 1:
        return by, f"e{runs[0]}"
    forms = ["r" + ".".join(f"{run}x{len(list(same))}" for run, same in groupby(runs))]
    least = min(runs)
    if max(runs) == least + 1:
        longer = sum(1 << part for part, run in enumerate(runs) if run > least)
        forms.append(f"t{least}.{_base36(longer)}")
    exact = min(forms, key=len)
    if len(exact) <= MAX_LETTERS // 2:
        return by, exact
    # near-even runs instead: Dask would cut a longer name
    blocks, parts = sum(runs), len(runs)
    return by, f"m{blocks}" if runs == near_even(blocks, parts, rounded=True) else f"n{blocks}"


def is_written(name: object) -> bool:
    """Whether a layer of this name was written for a plan."""
    # layers of other programs may have names of any type
    return isinstance(name, str) and MARK in name and _WRITTEN.search(name) is not None


def decode(name: object) -> Placement | None:
    """The placement in the name of a layer; None if there is none."""
    if not isinstance(name, str) or MARK not in name:
        return None
    return _decode_code(name.rpartition(MARK)[2].partition("-")[0])


@lru_cache(maxsize=4096)
def _decode_code(code: str) -> Placement | None:
    match = _CODE.fullmatch(code)
    if match is None:
        return None
    blocks = 0
    is_cut = False
    try:
        mesh = tuple(map(int, match[1].split("x")))
        if not 0 < math.prod(mesh) <= 1 << 16:
            return None
        shares, predicted, follow, planned_for = [], 0, None, None
        for part in match[2].split("_")[1:]:
            if part.startswith("b"):
                predicted = int(part[1:], 36)
            elif part.startswith("f"):
                array, *axes = part[1:].split(".")
                dims = tuple(int(axis) if axis else None for axis in axes)
                is_cut = array.endswith("g")
                follow = Leader(array.removesuffix("g"), dims, (None,) * len(dims))
            elif part.startswith("g"):
                axis, _, code = part[1:].partition(".")
                numbers = numbers_of(code, MAX_BLOCKS - blocks)
                blocks += len(numbers)
                follow = _with_numbers(follow, int(axis), numbers)
            elif part == "z":
                is_cut = False
            elif part.startswith("w"):
                planned_for = int(part[1:])
                if planned_for < 1:
                    return None
            else:
                shares.append(_decode_share(part, mesh, MAX_BLOCKS - blocks))
                blocks += sum(shares[-1].runs)
    except (ValueError, IndexError):
        return None
    if is_cut:
        return None
    return Placement(mesh, Sharding(tuple(shares)), predicted, follow, planned_for)


def _with_numbers(leader: Leader | None, axis: int, numbers: Numbers) -> Leader:
    if leader is None or not 0 <= axis < len(leader.dims):
        raise ValueError(axis)
    every = list(leader.numbers)
    every[axis] = numbers
    return replace(leader, numbers=tuple(every))


def placements_of(layers: Iterable[object]) -> Iterator[Placement]:
    """The placements in the names of layers, as far as these have any.

    Parameters
    ----------
    layers
        The names.
    """
    return (placement for placement in map(decode, layers) if placement is not None)


def _decode_share(part: str, mesh: tuple[int, ...], most: int) -> Share:
    """One dimension of a placement; raises ValueError if it has more than `most` blocks."""
    if not part:
        return Share()
    end = next((number for number, letter in enumerate(part) if letter in "ermnt"), len(part) - 1)
    by = tuple(map(int, part[:end]))
    parts = math.prod(mesh[axis] for axis in by)
    form, rest = part[end], part[end + 1 :]
    if len(set(by)) < len(by):
        raise ValueError(part)
    # pairs of a run and its number of repetitions
    if form == "e":
        runs = [(int(rest), parts)]
    elif form in "mn":
        runs = [(int(rest), 1)]
    elif form == "t":
        least, longer = rest.split(".")
        bits = int(longer, 36)
        if parts > most or bits >> parts:
            raise ValueError(part)
        runs = [(int(least) + (bits >> at & 1), 1) for at in range(parts)]
    elif form == "r":
        runs = [
            (int(run), int(times)) for run, times in (run.split("x") for run in rest.split("."))
        ]
    else:
        raise ValueError(part)
    # checked before memory is allocated for all runs
    if sum(run * times for run, times in runs) > most:
        raise ValueError(part)
    if form in "mn":
        return Share(by, near_even(runs[0][0], parts, rounded=form == "m"))
    if sum(times for _, times in runs) != parts:
        raise ValueError(part)
    return Share(by, tuple(run for run, times in runs for _ in range(times)))


_Place = TypeVar("_Place")


def primary(index: Sequence[int], places: Sequence[_Place]) -> _Place:
    """The place that counts as the home of a tile, of several places with a replica, in order.

    A function of the index, so that planner and scheduler choose the same place.  The tiles of a
    fully replicated array are spread evenly over the places.
    """
    return places[sum(index) % len(places)]


@lru_cache(maxsize=4096)
def token(array: str) -> str:
    """A hash of the name of an array, of ten letters."""
    return blake2b(array.encode(), digest_size=5).hexdigest()


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"


def worker_order(workers: Mapping[str, tuple[str, object]]) -> list[str]:
    """Addresses of workers in mesh order.

    Workers of one host are adjacent, so that the first axes of a mesh run between
    hosts.

    Parameters
    ----------
    workers
        Host and name of each worker, by address.
    """
    return sorted(workers, key=lambda address: mesh_place(address, *workers[address]))


def mesh_place(address: str, host: str, name: object) -> tuple[str, bool, int, str, str]:
    """Sort key of a worker in mesh order.

    Parameters
    ----------
    address, host, name
        Of the worker.
    """
    number = name if isinstance(name, int) else None
    if number is None and isinstance(name, str) and name.isdigit():
        number = int(name)
    return host, number is None, number or 0, str(name), address
