"""Meshes with other numbers of positions than workers, for blocks that keep their chunks.

Few blocks along an axis are divided unevenly: of 2 x 4 blocks, three workers get 4, 2 and 2, or 4,
0 and 4.  On a mesh of 2 x 4 positions, of which each worker has two or three that are neighbours,
they get 3, 3 and 2.  Of 2 x 2 blocks, two of five workers get two each; on a mesh of 2 x 2
positions, four of them get one each.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dasktile.ir import Kind, Program
from dasktile.tiling.mesh import MAX_AXES, Mesh
from dasktile.tiling.mesh_planner import Candidate, MeshPlanner

#: Positions of such a mesh at the most (chosen: of more blocks, workers have about equal shares).
MOST_POSITIONS = 1024

#: Meshes that are tried at the most (chosen: each is a search).
MOST_TRIED = 3

#: Bytes that are moved on such a mesh at the most (chosen).  They are counted between positions,
#: also between two of one worker, and should be about what workers receive.
LITTLE_MOVED = 2**20

#: Unevenness up to which no other mesh is tried, and unevenness on a mesh over that on the workers'
#: own, up to which it is used (chosen).
EVEN, EVENER = 1.1, 0.95


def meshes_of_blocks(program: Program, workers: int) -> list[tuple[int, ...]]:
    """Meshes with a position for each block of an array, the fewest positions first.

    Only arrays count that are made by functions of which it is unknown how long they take.

    Parameters
    ----------
    program
        The program.
    workers
        Number of workers.
    """
    shapes: dict[tuple[int, ...], None] = {}
    for node in program.nodes:
        counts = tuple(len(sizes) for sizes in node.chunks if len(sizes) > 1)
        positions = math.prod(counts)
        # along one axis, blocks are divided as evenly as possible
        is_grid = 1 < len(counts) <= MAX_AXES and workers != positions <= MOST_POSITIONS
        # tasks have no homes if half of the workers have none, be it after one has joined
        has_homes = 3 * positions > 2 * workers
        if node.kind is Kind.OPAQUE and not node.resident and is_grid and has_homes:
            shapes[counts] = None
    return sorted(shapes, key=math.prod)[:MOST_TRIED]


def on_mesh_of_blocks(unchanged: MeshPlanner, before: Candidate) -> Candidate:
    """The input's own chunks on the mesh on which work is the most even.

    Parameters
    ----------
    unchanged, before
        The planner of the input's own chunks for the workers' own mesh, and its candidate.
    """
    program, workers = unchanged.program, unchanged.workers
    # blocks that are on workers have their places, and positions of thousands are groups of workers
    is_free = unchanged.placed and not any(node.homes for node in program.nodes)
    if not is_free or unchanged.mesh.workers != workers:
        return before
    best, least = before, _unevenness(unchanged, before)
    if least <= EVEN:
        return before
    # a plan may move more than the input's own chunks only where these leave workers idle
    is_uneven = least > unchanged.settings.acceptance.uneven
    most = LITTLE_MOVED if is_uneven else min(LITTLE_MOVED, before.price.bytes)
    for shape in meshes_of_blocks(program, workers):
        used = min(workers, math.prod(shape))
        planner = replace(unchanged, mesh=Mesh(shape), workers=used, idle=workers - used)
        other = planner.own_chunks()
        found = _unevenness(planner, other)
        if found <= EVENER * least and other.price.bytes <= most:
            best, least = other, found
    return best


def _unevenness(planner: MeshPlanner, candidate: Candidate) -> float:
    """The time in which all arrays are made one after another, over that of even work.

    The work of all arrays together may be even where that of a slow function is not.
    """
    loads = planner.node_loads(candidate.solution.states)
    total = float(loads.sum())
    return float(loads.max(axis=1).sum()) * loads.shape[1] / total if total else 1.0
