"""Plans of programs that were tiled before: a loop plans the same computation again and again.

A plan does not depend on names.  So it is kept for the program with numbers in place of names,
and returned with the names of the program that is asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dasktile.ir import Follow, Program, TiledProgram, Tiling, Where
from dasktile.tiling.plan import TilingPlan
from dasktile.tiling.planner import MemoryLimitError, SearchTables, tile

#: Plans that are kept, the latest used.
_SIZE = 64

#: Plans by the program and the options, the one used last at the end.
_plans: dict[Hashable, TilingPlan] = {}
_lock = threading.Lock()


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
    key = (numbered, *sorted(options.items()))
    with _lock:
        plan = _plans.pop(key, None)
        if plan is not None:
            _plans[key] = plan
    if plan is None:
        try:
            plan = tile(numbered, tables=tables, **options)
        except MemoryLimitError:
            # once more for a message with the names
            return tile(program, **options)
        with _lock:
            _plans[key] = plan
            while len(_plans) > _SIZE:
                del _plans[next(iter(_plans))]
    return _named(plan, [node.name for node in program.nodes])


def forget() -> None:
    """Forget all plans."""
    with _lock:
        _plans.clear()


def _numbered(program: Program) -> Program:
    """A program whose names are the indices of its nodes."""
    nodes = tuple(replace(node, name=str(at)) for at, node in enumerate(program.nodes))
    return Program(nodes, program.outputs)


def _named(plan: TilingPlan, names: Sequence[str]) -> TilingPlan:
    """A plan for a program whose names are indices, with names in their place."""
    nodes = tuple(replace(node, name=names[int(node.name)]) for node in plan.program.nodes)
    program = Program(nodes, plan.program.outputs)
    tiled = plan.tiled and _tiled(plan.tiled, program, names)
    return replace(plan, program=program, tiled=tiled)


def _tiled(tiled: TiledProgram, program: Program, names: Sequence[str]) -> TiledProgram:
    def named(where: Where | None) -> Where | None:
        return replace(where, array=names[int(where.array)]) if isinstance(where, Follow) else where

    def placed(tiling: Tiling) -> Tiling:
        if isinstance(tiling.work_at, Follow) or isinstance(tiling.held_at, Follow):
            return replace(tiling, work_at=named(tiling.work_at), held_at=named(tiling.held_at))
        return tiling

    def known(where: Mapping[int, Where]) -> dict[int, Where]:
        return {index: named(at) or at for index, at in where.items()}

    return TiledProgram(
        program,
        tiled.mesh,
        tuple(map(placed, tiled.tilings)),
        dict(tiled.kept),
        known(tiled.kept_at),
        dict(tiled.final),
    )
