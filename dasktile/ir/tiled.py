"""A tiled program: the cuts of every array, and the worker of every block."""

from __future__ import annotations

from dataclasses import dataclass, field

from dasktile.ir.program import Chunks, Program, Ranges
from dasktile.ir.sharding import Sharding, Where


@dataclass(frozen=True, slots=True)
class Tiling:
    """The cuts and the placement of one node.

    Parameters
    ----------
    cuts
        Chunk sizes of every label, including local cuts.
    chunks
        Chunk sizes of the output array: `cuts` mapped to its axes, and cut where a sum is
        scattered.
    work_at, held_at
        Which workers run the blocks of the loop nest, and have those of the output array; None
        where undecided.
    """

    cuts: tuple[tuple[int, ...], ...]
    chunks: Chunks
    work_at: Where | None = None
    held_at: Where | None = None


@dataclass(frozen=True, slots=True)
class TiledProgram:
    """A program and a tiling for each of its nodes.

    Parameters
    ----------
    program
        The program.
    mesh
        Sizes of the mesh's axes; their product is the number of workers that have tiles.
    tilings
        One for each node.
    kept
        For nodes whose array is kept in other chunks than it was made in, or on other workers,
        because several readers need these: the chunks.
    kept_at
        For the same nodes, which workers have these blocks.
    final
        Which workers make the blocks of outputs in the chunks that these must have, by the index of
        the node and the chunks, as far as that was decided with the tiles.
    planned_for
        Number of workers that it was planned for; None if that is the number of the mesh's
        positions.
    ranges
        For every node, the range of every label that contains all that is needed: only this is
        divided evenly among workers.  None where everything is needed.
    """

    program: Program
    mesh: tuple[int, ...]
    tilings: tuple[Tiling, ...]
    kept: dict[int, Chunks] = field(default_factory=dict)
    kept_at: dict[int, Where] = field(default_factory=dict)
    final: dict[tuple[int, Chunks], Where] = field(default_factory=dict)
    planned_for: int | None = None
    ranges: tuple[Ranges, ...] | None = None

    def replicas(self, index: int) -> Sharding | None:
        """The sharding of a node's array that is replicated; None for other arrays."""
        where = self.kept_at.get(index)
        return where if isinstance(where, Sharding) and where.replicated else None
