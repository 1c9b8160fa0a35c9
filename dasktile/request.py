"""What the public functions ask for: the arrays to tile, and the options."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dask.highlevelgraph import HighLevelGraph

from dasktile import config
from dasktile.capture.base import ArrayInfo
from dasktile.cluster.target import Machine
from dasktile.collections.output_chunks import storable
from dasktile.collections.unpack import Holders, Member
from dasktile.ir import Chunks, TiledProgram
from dasktile.tiling.plan import TilingPlan

#: Arrays that must have the same chunks along each shared dimension.
Group = tuple[Member, ...]
Groups = tuple[Group, ...]


@dataclass(frozen=True, slots=True)
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

    @property
    def names(self) -> list[str]:
        """The names of the arrays."""
        return [array.name for array in self.arrays]

    @classmethod
    def of(cls, holders: Holders, keep_chunks: bool, machine: Machine, method: str) -> Request:
        fixed = frozenset(holders.fixed)
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
        )

    def final_chunks(self, plan: TilingPlan) -> list[Chunks | None]:
        """For every array, the chunks of its result; None for those of its tiles."""
        final = [array.chunks if array.name in self.kept else None for array in self.arrays]
        if plan.tiled is not None:
            for group in self.groups:
                self._agree_on_chunks(plan.tiled, group, final)
        return final

    def _agree_on_chunks(
        self, tiled: TiledProgram, group: Group, final: list[Chunks | None]
    ) -> None:
        """Give the arrays of an xarray object the same chunks along each dimension.

        These are the chunks of an array that keeps its chunks, else of the largest array, changed
        so that the object can be stored.  An object with inconsistent chunks may stay so.
        """
        places = {array.name: place for place, array in enumerate(self.arrays)}
        members = [(places[member.name], member) for member in group if member.name in places]
        # arrays that keep their chunks first, then the largest
        members.sort(
            key=lambda item: (
                final[item[0]] is None,
                -math.prod(self.arrays[item[0]].shape),
                item[0],
            )
        )
        before: dict[Hashable, tuple[int, ...]] = {}
        after: dict[Hashable, tuple[int, ...]] = {}
        kept: set[Hashable] = set()
        encoded: dict[Hashable, set[int]] = {}
        for place, member in members:
            node = tiled.program.outputs[place]
            chunks = final[place] or tiled.tilings[node].chunks
            for axis, dim in enumerate(member.dims):
                own = self.arrays[place].chunks[axis]
                if before.setdefault(dim, own) != own:
                    if len(group) > 1:
                        for single in group:
                            self._agree_on_chunks(tiled, (single,), final)
                    return
                after.setdefault(dim, chunks[axis])
                if final[place]:
                    kept.add(dim)
                if member.encoded:
                    encoded.setdefault(dim, set()).add(member.encoded[axis])
        for dim in after.keys() - kept:
            after[dim] = storable(after[dim], before[dim], encoded.get(dim, ()))
        for place, member in members:
            final[place] = final[place] or tuple(after[dim] for dim in member.dims)
