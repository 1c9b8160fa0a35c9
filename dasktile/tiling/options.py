"""The shardings among which the solver chooses: all ways in which a mesh may be used."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dasktile.ir import Follow, Label, Node, Role, Sharding, Share, Where
from dasktile.tiling.settings import CandidateLimits

Ints = npt.NDArray[np.int64]

#: What a mesh axis does that replicates a kept array, beside the array's axes that it may divide.
REPLICATED = -1

#: A label that a mesh axis cuts, and the output axis along which a sum over it is scattered.
AxisUse = tuple[int | None, int | None]

#: For every dimension, the mesh axes that divide it.
AxesOf = tuple[tuple[int, ...], ...]

_Any = TypeVar("_Any")


@dataclass(frozen=True, slots=True)
class Option:
    """One candidate: the sharding of a node's work, or of a kept array, and that of the result.

    Parameters
    ----------
    work
        Which workers run which part of the loop nest, or have which part of the kept array.
    held
        Which workers then have which part of the node's array.
    second
        For an array that is replicated in two shardings, the second one.
    """

    work: Where
    held: Where
    second: Sharding | None = None

    @property
    def follow(self) -> Follow | None:
        """The persisted array that is followed; None where a mesh divides the work."""
        return self.work if isinstance(self.work, Follow) else None

    @property
    def is_replicated(self) -> bool:
        """Whether some workers have the same part of a kept array."""
        several = not isinstance(self.work, Follow) and bool(self.work.replicated)
        return several or self.second is not None

    @property
    def axes(self) -> frozenset[int]:
        """The mesh axes that divide the work."""
        return frozenset() if isinstance(self.work, Follow) else self.work.axes

    def labels(self, axes: int) -> tuple[int | None, ...]:
        """For each axis of the mesh, the label that it cuts; None where it divides no work."""
        nothing = (None,) * axes
        return nothing if isinstance(self.work, Follow) else self.work.by_axis(axes)

    def targets(self, axes: int) -> tuple[int | None, ...]:
        """For each axis of the mesh, the axis of the result that it divides, or None."""
        nothing = (None,) * axes
        return nothing if isinstance(self.held, Follow) else self.held.by_axis(axes)

    def uses(self, axes: int) -> bool:
        """Whether each of the mesh's axes divides or replicates."""
        return not isinstance(self.work, Follow) and not _idle(self, axes)

    def cutting(self, label: int) -> tuple[int, ...]:
        """The mesh axes that cut a label, in their order."""
        return () if isinstance(self.work, Follow) else self.work.dims[label].by

    def holding(self, column: int) -> tuple[int, ...]:
        """The mesh axes that divide an axis of the result, in their order."""
        return () if isinstance(self.held, Follow) else self.held.dims[column].by

    def scattering(self, column: int, label: int) -> tuple[int, ...]:
        """Those of them along which sums are scattered on an axis, whose label is `label`."""
        cutting = self.cutting(label)
        return tuple(axis for axis in self.holding(column) if axis not in cutting)

    def partial(self, reduced: Iterable[int]) -> tuple[int, ...]:
        """The mesh axes along which workers have partial sums over these labels."""
        return tuple(sorted(axis for label in reduced for axis in self.cutting(label)))

    def scattered(self, reduced: Iterable[int]) -> tuple[int, ...]:
        """Those of them along which the sums are scattered, and do not end on one worker."""
        axes = frozenset() if isinstance(self.held, Follow) else self.held.axes
        return tuple(axis for axis in self.partial(reduced) if axis in axes)


#: The distinct sets of mesh axes of some candidates, and the number of that of each.
Shared = tuple[list[tuple[int, ...]], Ints]


class Options:
    """Candidates of one node, with the sets of mesh axes that they have in common.

    Many candidates cut a label by the same mesh axes; bounds are computed once for each such set.
    """

    def __init__(self, options: Iterable[Option]) -> None:
        self.options = tuple(options)
        self._by: dict[object, Shared] = {}
        self._some: dict[bytes, Options] = {}

    def some(self, chosen: Ints) -> Options:
        """Some of the candidates."""
        key = chosen.tobytes()
        if key not in self._some:
            self._some[key] = Options(self.options[choice] for choice in chosen)
        return self._some[key]

    def cutting(self, label: int) -> Shared:
        """The sets of mesh axes that cut a label, and the number of that of each candidate."""
        return self._shared(("cut", label), lambda option: option.cutting(label))

    def holding(self, column: int) -> Shared:
        """The same for the axes that divide an axis of the result."""
        return self._shared(("held", column), lambda option: option.holding(column))

    def idle(self, axes: int) -> Shared:
        """The same for those of the mesh's axes along which only the first worker has a part."""
        return self._shared("idle", lambda option: _idle(option, axes))

    def scattered(self, reduced: Collection[int]) -> Shared:
        """The same for the axes along which sums over these labels are scattered."""
        return self._shared(("scattered", *reduced), lambda option: option.scattered(reduced))

    def summed(self, reduced: Collection[int]) -> Shared:
        """The same for the axes that cut `reduced` labels whose sums end on one worker."""

        def summed(option: Option) -> tuple[int, ...]:
            scattered = option.scattered(reduced)
            return tuple(axis for axis in option.partial(reduced) if axis not in scattered)

        return self._shared(("summed", *reduced), summed)

    def _shared(self, key: object, axes_of: Callable[[Option], tuple[int, ...]]) -> Shared:
        if key not in self._by:
            numbers: dict[tuple[int, ...], int] = {}
            of = [numbers.setdefault(axes_of(each), len(numbers)) for each in self.options]
            self._by[key] = list(numbers), np.array(of, dtype=np.int64)
        return self._by[key]


def _idle(option: Option, axes: int) -> tuple[int, ...]:
    """The mesh axes that divide no work and make no copies."""
    assert isinstance(option.work, Sharding)
    used = option.work.axes.union(option.work.replicated)
    return tuple(axis for axis in range(axes) if axis not in used)


def axis_uses(node: Node, limits: CandidateLimits) -> tuple[AxisUse, ...]:
    """Labels that one mesh axis may cut, each with the output axis of a scattered sum."""
    free_axes = [
        axis
        for axis, (seen, size) in enumerate(zip(node.out, node.shape, strict=True))
        if size > 1 and seen.label is not None and node.labels[seen.label].role is not Role.WHOLE
    ]
    longest = sorted(free_axes, key=lambda axis: (-node.shape[axis], axis))
    targets = longest[: limits.scatter_axes]
    uses: list[AxisUse] = [(None, None)]
    for position, label in enumerate(node.labels):
        pieces = len(label.cuts) if label.role is Role.PINNED else label.size
        if label.role is Role.WHOLE or pieces < 2:
            continue
        uses.append((position, None))
        if label.role is Role.REDUCE:
            uses += [(position, target) for target in targets]
    return tuple(uses)


def reduced_labels(labels: Sequence[Label]) -> tuple[int, ...]:
    """The positions of labels that are summed."""
    return tuple(at for at, label in enumerate(labels) if label.role is Role.REDUCE)


def assigned(node: Node, limits: CandidateLimits, axes: int, ordered: bool) -> Options:
    """All assignments of mesh axes to the labels of a node, and of scattered sums to output axes.

    Parameters
    ----------
    node, limits
        The node, and which of its labels may be cut.
    axes
        Number of the mesh's axes.
    ordered
        Whether several of them cut a label in every order, and not in that of the mesh only.
    """
    out = tuple(axis.label for axis in node.out)
    return _assigned(axis_uses(node, limits), len(node.labels), out, axes, ordered)


@lru_cache(maxsize=128)
def _assigned(
    able: Sequence[AxisUse], labels: int, out: Sequence[int | None], axes: int, ordered: bool
) -> Options:
    orders = _orders(axes, ordered)
    # few of the orders differ in what they cut, and many candidates cut an axis alike
    return Options(
        Option(_divided(cuts), _divided(held))
        for each in itertools.product(able, repeat=axes)
        for cuts, held in _distinct(_assignment(each, order, labels, out) for order in orders)
    )


def _assignment(
    each: Sequence[AxisUse], order: Iterable[int], labels: int, out: Sequence[int | None]
) -> tuple[AxesOf, AxesOf]:
    """The mesh axes that divide labels, and axes of the result, of one use of each mesh axis."""
    cuts: list[tuple[int, ...]] = [()] * labels
    scattered: list[tuple[int, ...]] = [()] * len(out)
    for axis in order:
        label, target = each[axis]
        if label is not None:
            cuts[label] += (axis,)
        if target is not None:
            scattered[target] += (axis,)
    held = []
    # on a diagonal two axes run along one label; the mesh divides the first one
    taken: set[int] = set()
    for label, more in zip(out, scattered, strict=True):
        by = () if label is None or label in taken else cuts[label]
        if label is not None:
            taken.add(label)
        held.append(by + more)
    return tuple(cuts), tuple(held)


@lru_cache(maxsize=4096)
def _divided(axes: AxesOf, replicated: tuple[int, ...] = ()) -> Sharding:
    return Sharding(tuple(map(_share, axes)), replicated)


@lru_cache(maxsize=1024)
def _share(by: tuple[int, ...]) -> Share:
    return Share(by)


def divided(
    choices: Sequence[int | None], dims: int, axes: int, ordered: bool = False
) -> list[Option]:
    """All ways in which each mesh axis does one of some things with an array.

    Parameters
    ----------
    choices
        The axis of the array that a mesh axis may divide, :data:`REPLICATED`, or None where only
        the first worker has the array.
    dims
        Number of the array's axes.
    axes, ordered
        As for :func:`assigned`.
    """
    orders = _orders(axes, ordered)
    shardings = (
        _divided(cuts, replicated)
        for each in itertools.product(choices, repeat=axes)
        for cuts, replicated in _distinct(_division(each, order, dims) for order in orders)
    )
    return [Option(sharding, sharding) for sharding in shardings]


def _division(
    each: Sequence[int | None], order: Iterable[int], dims: int
) -> tuple[AxesOf, tuple[int, ...]]:
    """The mesh axes that divide each axis, and those along which there are replicas."""
    cuts: list[tuple[int, ...]] = [()] * dims
    for axis in order:
        divides = each[axis]
        if divides is not None and divides != REPLICATED:
            cuts[divides] += (axis,)
    return tuple(cuts), tuple(axis for axis, does in enumerate(each) if does == REPLICATED)


def _orders(axes: int, ordered: bool) -> list[tuple[int, ...]]:
    """The orders in which mesh axes cut a label; that of the mesh comes first."""
    return list(itertools.permutations(range(axes))) if ordered else [tuple(range(axes))]


def _distinct(each: Iterable[_Any]) -> Iterable[_Any]:
    return dict.fromkeys(each)


def in_two_shardings(options: Sequence[Option], axes: int, most: int) -> list[Option]:
    """Pairs of shardings by all mesh axes, so that no worker has the whole array.

    Parameters
    ----------
    options
        The candidates of a kept array.
    axes
        Number of the mesh's axes.
    most
        Shardings that are paired each with each; of more, only those along one axis.
    """
    whole = [
        option
        for option in options
        if len(option.axes) == axes and all(map(_is_in_mesh_order, _parts(option)))
    ]
    if len(whole) > most:
        whole = [option for option in whole if sum(map(bool, _parts(option))) == 1]
    return [
        replace(first, second=second.work)
        for first, second in itertools.combinations(whole, 2)
        if isinstance(second.work, Sharding)
    ]


def _parts(option: Option) -> list[tuple[int, ...]]:
    """For every dimension, the mesh axes that divide it."""
    assert isinstance(option.work, Sharding)
    return [share.by for share in option.work.dims]


def _is_in_mesh_order(by: Sequence[int]) -> bool:
    return list(by) == sorted(by)
