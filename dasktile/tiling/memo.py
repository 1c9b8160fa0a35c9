"""Plans of programs that were tiled before: a loop plans the same computation again and again.

A plan does not depend on names.  So it is kept for the program with numbers in place of names,
and returned with the names of the program that is asked for.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zict import LRU

from dasktile.ir import Follow, Program, TiledProgram, Tiling, Where
from dasktile.tiling.plan import TilingPlan
from dasktile.tiling.planner import SearchTables, tile

#: Plans that are kept, the latest used.
_SIZE = 64


class _Hashed:
    """A value whose hash is computed once: that of a program takes long."""

    def __init__(self, value: Hashable) -> None:
        self._value, self._hash = value, hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashed) and self._value == other._value


#: Plans by the program and the options.
_plans: LRU[_Hashed, TilingPlan] = LRU(_SIZE, {})


def tile_again(
    program: Program, *, tables: SearchTables | None = None, **options: Any
) -> TilingPlan:
    """As :func:`dasktile.tiling.tile`, but at once for a program that was tiled before.

    Two programs are the same if they differ in names only.

    Parameters
    ----------
    program
        The program.
    tables
        What searches with other options have found.
    options
        The other keyword arguments of :func:`dasktile.tiling.tile`.
    """
    numbered = _numbered(program)
    key = _Hashed((numbered, *sorted(options.items())))
    plan = _plans.get(key)
    if plan is None:
        plan = _plans[key] = tile(numbered, tables=tables, **options)
    return named(plan, [node.name for node in program.nodes])


def forget() -> None:
    """Forget all plans."""
    _plans.clear()


def _numbered(program: Program) -> Program:
    """A program whose names are the indices of its nodes."""
    nodes = tuple(replace(node, name=str(at)) for at, node in enumerate(program.nodes))
    return replace(program, nodes=nodes)


def named(plan: TilingPlan, names: Sequence[str]) -> TilingPlan:
    """A plan for a program whose names are indices, with names in their place.

    Parameters
    ----------
    plan
        The plan.
    names
        The names.
    """
    nodes = tuple(replace(node, name=names[int(node.name)]) for node in plan.program.nodes)
    return on_program(plan, replace(plan.program, nodes=nodes), names)


def on_program(
    plan: TilingPlan, program: Program, names: Sequence[str] | None = None
) -> TilingPlan:
    """A plan with another program, which differs from its own in names only.

    Parameters
    ----------
    plan
        A plan for a program whose names are indices.
    program
        The program.
    names
        The names; by default those of its nodes.
    """
    names = [node.name for node in program.nodes] if names is None else names
    return replace(plan, program=program, tiled=plan.tiled and _tiled(plan.tiled, program, names))


def unnamed(plan: TilingPlan) -> TilingPlan:
    """A plan with indices as names.  Its program is left out unless nodes were added to it.

    Parameters
    ----------
    plan
        The plan.
    """
    nodes = plan.program.nodes
    origin = range(len(nodes)) if plan.origin is None else plan.origin
    number = {node.name: str(at) for node, at in zip(nodes, origin, strict=True)}
    program = Program((), ())
    if plan.origin is not None:
        own = (replace(node, name=number[node.name]) for node in nodes)
        program = Program(tuple(own), plan.program.outputs)
    return replace(plan, program=program, tiled=plan.tiled and _tiled(plan.tiled, program, number))


def _tiled(
    tiled: TiledProgram, program: Program, names: Sequence[str] | Mapping[str, str]
) -> TiledProgram:
    def name(old: str) -> str:
        return names[old] if isinstance(names, Mapping) else names[int(old)]

    def named(where: Where | None) -> Where | None:
        return replace(where, array=name(where.array)) if isinstance(where, Follow) else where

    def placed(tiling: Tiling) -> Tiling:
        if isinstance(tiling.work_at, Follow) or isinstance(tiling.held_at, Follow):
            return replace(tiling, work_at=named(tiling.work_at), held_at=named(tiling.held_at))
        return tiling

    return replace(
        tiled,
        program=program,
        tilings=tuple(map(placed, tiled.tilings)),
        kept_at={index: named(at) or at for index, at in tiled.kept_at.items()},
        final={key: named(at) or at for key, at in tiled.final.items()},
    )
