"""Which parts of a program are needed for the wanted blocks of a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dasktile import tiling
from dasktile.capture.base import Captured
from dasktile.capture.culling import Needed, has_effects, needed_blocks
from dasktile.ir import Kind, Node, Program, Ranges
from dasktile.request import Request

#: Share of the blocks of an array that is needed, below which the others are not computed (chosen).
MOST_NEEDED = 0.75


@dataclass(frozen=True, slots=True)
class Needs:
    """What is needed of the arrays of a program.

    Parameters
    ----------
    wanted
        By the name of an output, which of its blocks are wanted.
    needed
        By the name of an array, which of its blocks are needed, for arrays of which not all are.
        Empty if all blocks are needed of every array whose tasks have effects.
    ranges
        For every node, the range of every label for which tiles are chosen, as all that is needed
        is in it; None for all of it.
    is_whole
        Whether all blocks in these ranges are needed, of every array that is computed; None if that
        was not found out.
    """

    wanted: Mapping[str, Needed]
    needed: Mapping[str, Needed]
    ranges: tuple[Ranges, ...] | None = None
    is_whole: bool | None = None

    def share(self, name: str) -> float:
        """The share of the blocks of an array that is needed."""
        needed = self.needed.get(name, self.wanted.get(name))
        return 1.0 if needed is None else float(needed.mean())


def needs_of(request: Request, captured: Captured) -> Needs:
    """What a request needs of a captured program.

    Parameters
    ----------
    request, captured
        The arrays, and their program.
    """
    program, wanted = captured.program, wanted_blocks(request)
    culled = _may_be_culled(captured, wanted)
    if not any(cull and takes_time(node) for node, cull in zip(program.nodes, culled, strict=True)):
        return Needs(wanted, {})
    numblocks = {node.name: tuple(map(len, node.chunks)) for node in program.nodes}
    outputs = {name: blocks.shape for name, blocks in wanted.items()}
    needed = request.needed.blocks({**numblocks, **outputs})
    partial = {name: blocks for name, blocks in needed.items() if not blocks.all()}
    ranges = tiling.needed_ranges(program, partial)
    own = ranges or [tuple((0, label.size) for label in node.labels) for node in program.nodes]
    is_whole = all(
        tiling.is_all_needed(node, each, partial[node.name])
        for node, each in zip(program.nodes, own, strict=True)
        if node.edges and node.name in partial
    )
    return Needs(wanted, partial if any(not_computed(captured, partial)) else {}, ranges, is_whole)


def needed_program(captured: Captured, ranges: tuple[Ranges, ...] | None) -> Program:
    """The part of a captured program for which tiles are chosen.

    Parameters
    ----------
    captured
        The program.
    ranges
        As in `Needs`.
    """
    return captured.program if ranges is None else tiling.crop(captured.program, ranges)


def _may_be_culled(captured: Captured, wanted: Mapping[str, Needed]) -> list[bool]:
    """For every node, False if all of its blocks are certainly needed."""
    return tiling.may_be_culled(captured.program, [bool(each.all()) for each in wanted.values()])


def wanted_blocks(request: Request) -> dict[str, Needed]:
    """By the name of an array, which of its blocks are wanted."""
    outputs = {array.name: array.numblocks for array in request.arrays}
    return needed_blocks(request.graph, request.keys, outputs, request.above)


def not_computed(captured: Captured, needed: Mapping[str, Needed]) -> list[bool]:
    """For every node, whether its unneeded blocks must not be computed.

    Those whose tasks have effects must not, nor many blocks that take time.

    Parameters
    ----------
    captured
        The program.
    needed
        By the name of an array, which of its blocks are needed, for arrays of which not all are.
    """
    return [
        node.name in needed
        and (effect or (takes_time(node) and bool(needed[node.name].mean() < MOST_NEEDED)))
        for node, effect in zip(captured.program.nodes, has_effects(captured), strict=True)
    ]


def takes_time(node: Node) -> bool:
    """Whether blocks of an array take time to compute.

    Parameters
    ----------
    node
        The array.
    """
    return not node.resident and node.kind is not Kind.VIEW


def counts_unneeded(request: Request, captured: Captured, needs: Needs, exact: bool = True) -> bool:
    """Whether blocks that are not needed are in the ranges for which tiles were chosen.

    Parameters
    ----------
    request, captured, needs
        The arrays, their program, and what is needed of it.
    exact
        Whether to look in the graph for what is needed.  If not, the answer is True wherever some
        blocks may be unneeded.
    """
    if needs.is_whole is not None:
        return not needs.is_whole
    if not any(_may_be_culled(captured, needs.wanted)):
        return False
    if not exact:
        return True
    nodes = captured.program.nodes
    computed = {node.name: tuple(map(len, node.chunks)) for node in nodes if node.edges}
    return not all(blocks.all() for blocks in request.needed.blocks(computed).values())
