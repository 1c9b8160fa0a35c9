"""What the tiling of a program decides and predicts: the value every method returns."""

from __future__ import annotations

from dataclasses import dataclass

from dasktile.ir import Program, TiledProgram


@dataclass(frozen=True, slots=True)
class Price:
    """What a tiling costs by the model, for every node.

    Parameters
    ----------
    moved
        Bytes that workers receive from one another so that the node can run.
    read
        Bytes read from storage.
    tasks
        Tasks, those that cut and join tiles on the way in included.
    loads
        Operations done by each worker, over the whole program.
    peak
        Bytes of the largest working set of one task of the node: its tiles and result.
    spilled
        Bytes written and read back of what is held from one pass over an array to the next
        and does not fit; 0 where nobody knows how much fits.
    """

    moved: tuple[int, ...]
    read: tuple[int, ...]
    tasks: tuple[int, ...]
    loads: tuple[float, ...]
    peak: tuple[int, ...]
    spilled: int = 0

    @property
    def bytes(self) -> int:
        return sum(self.moved)

    @property
    def balance(self) -> float:
        """Largest worker's operations over the mean; 1 is perfect."""
        mean = sum(self.loads) / len(self.loads) if self.loads else 0.0
        return max(self.loads) / mean if mean > 0 else 1.0


@dataclass(frozen=True, slots=True)
class TilingPlan:
    """A decision about a program, with its predictions.

    Parameters
    ----------
    program
        What was planned; with more nodes than were given where arrays are there twice.
    workers
        Number of processes that send bytes to each other.
    method
        The method that decided.
    before, after
        The input's own chunks, well placed; and the plan.
    tiled
        The tiling, or None where the input is best left exactly as it is.
    lower_bound
        Bytes that no tiling in the model moves less than.
    proven_optimal
        True where `after` was proven to be the cheapest in the model.
    reasons
        For every node, why it keeps its chunks; empty where it does not.
    verdict
        One sentence for a person: why the plan is what it is.
    origin
        For every node, the one of the program given that it is, or is a copy of; None where
        it is that program.
    """

    program: Program
    workers: int
    method: str
    before: Price
    after: Price
    tiled: TiledProgram | None
    lower_bound: int
    proven_optimal: bool
    reasons: tuple[str, ...] = ()
    verdict: str = ""
    origin: tuple[int, ...] | None = None
