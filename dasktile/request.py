"""What the public functions ask for: the arrays to tile, and the options."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from dask.highlevelgraph import HighLevelGraph

from dasktile import config
from dasktile.capture.base import ArrayInfo
from dasktile.capture.culling import NeededTasks
from dasktile.cluster.target import Machine
from dasktile.collections.output_chunks import storable
from dasktile.collections.unpack import Holders, Member
from dasktile.ir import Chunks
from dasktile.ir.disjoint import root
from dasktile.tiling.plan import TilingPlan

#: Arrays that must have the same chunks along each shared dimension.
Group = tuple[Member, ...]
Groups = tuple[Group, ...]

#: The place of an array in the request, and the number of one of its axes.
_Axis = tuple[int, int]


@dataclass(frozen=True)
class Request:
    """The arrays to tile, and the options.

    Parameters
    ----------
    graph
        The graph that computes the arrays.
    arrays
        The arrays.
    kept, fixed
        Names of the arrays that keep their chunks, and of those that keep their names too.
    machine, method
        The workers to plan for, and the tiling method.
    keys
        The wanted keys of the graph, nested in any way.
    above
        Names of layers that are not part of the arrays' own graph but may read them.
    groups, variables
        As :class:`~dasktile.collections.unpack.Holders` has them.
    gathered
        Names of the arrays whose blocks the client takes out of tuples: nobody holds their keys.
    """

    graph: HighLevelGraph
    arrays: tuple[ArrayInfo, ...]
    kept: frozenset[str]
    fixed: frozenset[str]
    machine: Machine
    method: str
    keys: Any
    above: tuple[str, ...] = ()
    groups: Groups = ()
    variables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gathered: frozenset[str] = frozenset()

    @cached_property
    def needed(self) -> NeededTasks:
        """The tasks that the wanted keys depend on."""
        return NeededTasks(self.graph, self.keys)

    @property
    def names(self) -> list[str]:
        """The names of the arrays."""
        return [array.name for array in self.arrays]

    @classmethod
    def of(
        cls,
        holders: Holders,
        keep_chunks: bool,
        machine: Machine,
        method: str,
        gathered: bool = False,
    ) -> Request:
        fixed = frozenset(holders.fixed)
        # tasks of other collections read the blocks of arrays with fixed names, and those of Dask
        # the blocks of expressions
        read = fixed.union(holders.expressions.names.values())
        return cls(
            HighLevelGraph.merge(*holders.graphs),
            tuple(holders.arrays.values()),
            frozenset(holders.arrays) if keep_chunks else fixed,
            fixed,
            machine,
            config.setting("method") if method == "auto" else method,
            holders.keys,
            tuple(holders.above),
            tuple(holders.groups),
            holders.variables,
            frozenset(holders.arrays) - read if gathered else frozenset(),
        )

    def by_hook(self) -> Request:
        """The same as the hook of Dask's configuration asks for it: arrays keep their names."""
        names = frozenset(self.names)
        arrays = tuple(sorted(self.arrays, key=lambda array: array.name))
        return replace(self, arrays=arrays, kept=names, fixed=names, groups=())

    def final_chunks(self, plan: TilingPlan) -> list[Chunks | None]:
        """For every array, the chunks of its result; None for those of its tiles.

        The arrays of an xarray object get the same chunks along each dimension along which they
        have the same chunks already.  These are the chunks of an array that keeps its chunks, else
        of the largest array, changed so that the object can be stored.
        """
        final = [array.chunks if array.name in self.kept else None for array in self.arrays]
        if plan.tiled is None:
            return final
        tiled = plan.tiled

        def made(axis: _Axis) -> tuple[int, ...]:
            place, number = axis
            chunks = final[place] or tiled.tilings[tiled.program.outputs[place]].chunks
            return chunks[number]

        agreed: dict[_Axis, tuple[int, ...]] = {}
        for axes, encoded in self._shared_axes():
            # arrays that keep their chunks first, then the largest
            first = min(
                axes,
                key=lambda axis: (
                    final[axis[0]] is None,
                    -math.prod(self.arrays[axis[0]].shape),
                    axis,
                ),
            )
            chunks = made(first)
            if final[first[0]] is None:
                chunks = storable(chunks, self.arrays[first[0]].chunks[first[1]], encoded)
            agreed.update(dict.fromkeys(axes, chunks))
        for place in {place for place, _ in agreed}:
            axes_of = range(len(self.arrays[place].shape))
            final[place] = final[place] or tuple(agreed[place, axis] for axis in axes_of)
        return final

    def _shared_axes(self) -> list[tuple[list[_Axis], set[int]]]:
        """Axes that must have the same chunks, and the chunk sizes in encodings of their variables.

        An array may be in several objects, so that these agree with each other, too.
        """
        places = {array.name: place for place, array in enumerate(self.arrays)}
        #: For every axis, another one of its set, or the axis itself.
        parent: dict[_Axis, _Axis] = {}
        encoded: dict[_Axis, set[int]] = {}

        for group in self.groups:
            axes: dict[Hashable, list[_Axis]] = {}
            for member in group:
                if member.name not in places:
                    continue
                for number, dim in enumerate(member.dims):
                    axis = places[member.name], number
                    parent.setdefault(axis, axis)
                    axes.setdefault(dim, []).append(axis)
                    if member.encoded:
                        encoded.setdefault(axis, set()).add(member.encoded[number])
            for same in axes.values():
                if len({self.arrays[place].chunks[number] for place, number in same}) == 1:
                    for axis in same:
                        parent[root(parent, axis)] = root(parent, same[0])
        sets: dict[_Axis, list[_Axis]] = {}
        for axis in parent:
            sets.setdefault(root(parent, axis), []).append(axis)
        return [
            (axes, set().union(*(encoded.get(axis, ()) for axis in axes))) for axes in sets.values()
        ]
