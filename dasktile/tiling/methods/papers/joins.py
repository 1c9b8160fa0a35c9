"""Spartan's join_update: along which axis inputs are joined, and what updating costs.

What the function of a join writes is not known before it has run.  The size of the result
is assumed; what earlier runs were seen to move corrects that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dasktile.ir import Node, Program, Role


@dataclass(frozen=True, slots=True)
class Observed:
    """What updates of joins were seen to cost in earlier runs (section 2.3.3).

    Parameters
    ----------
    factors
        For a kind of join, bytes that its update moved over those of its result.
    """

    factors: Mapping[object, float] = field(default_factory=dict)

    def observe(self, node: Node, moved: float) -> Observed:
        """The same, knowing that the update of a contraction moved so many bytes."""
        if moved < 0:
            raise ValueError(f"moved must be at least 0 bytes, got {moved}")
        return Observed({**self.factors, _join_kind(node): moved / max(node.nbytes, 1)})

    def update(self, node: Node) -> float:
        """Bytes to expect: the size of the result where nothing was seen."""
        return node.nbytes * self.factors.get(_join_kind(node), 1.0)


def _join_kind(node: Node) -> object:
    """The same for contractions that differ in names only."""
    labels = tuple((label.size, label.role) for label in node.labels)
    return node.op, labels, node.out, tuple(edge.axes for edge in node.edges)


def join_label(program: Program, node: Node, observed: Observed) -> int:
    """Along which label of its first input a contraction is joined.

    The one with which inputs that do not have it, of which every task reads all, and
    updates of the result cost least.  For a product of matrices that is Spartan's choice by
    shape (figure 2.5): along the sum unless the first matrix is taller than wide.
    """

    def price(label: int) -> tuple[float, bool, int]:
        fetched = sum(
            program.nodes[edge.producer].nbytes
            for edge in node.edges
            if all(axis.label != label for axis in edge.axes)
        )
        summed = node.labels[label].role is Role.REDUCE
        return fetched + (observed.update(node) if summed else 0.0), not summed, label

    able = [
        axis.label
        for axis in node.edges[0].axes
        if axis.label is not None and node.labels[axis.label].size > 1
    ]
    return min(able, key=price, default=0)
