"""Spartan's join_update: the axis along which inputs are joined, and the cost of the update.

The bytes that a join writes are unknown before it has run.  The size of the result is assumed, and
corrected by the bytes that earlier runs moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dasktile.ir import Node, Program, Role


@dataclass(frozen=True, slots=True)
class Observed:
    """Costs of the updates of joins in earlier runs (Spartan, section 2.3.3).

    Parameters
    ----------
    factors
        For a kind of join, bytes moved by its update over the bytes of its result.
    """

    factors: Mapping[object, float] = field(default_factory=dict)

    def observe(self, node: Node, moved: float) -> Observed:
        """These costs with a further observation: bytes moved by the update of a contraction."""
        if moved < 0:
            raise ValueError(f"moved must be at least 0 bytes, got {moved}")
        return Observed({**self.factors, _join_kind(node): moved / max(node.nbytes, 1)})

    def update(self, node: Node) -> float:
        """Expected bytes: those of the result where nothing was observed."""
        return node.nbytes * self.factors.get(_join_kind(node), 1.0)


def _join_kind(node: Node) -> object:
    """A key that is equal for contractions that differ in names only."""
    labels = tuple((label.size, label.role) for label in node.labels)
    return node.op, labels, node.out, tuple(edge.axes for edge in node.edges)


def join_label(program: Program, node: Node, observed: Observed) -> int:
    """The label of its first input along which a contraction is joined.

    It is the label of least cost: inputs without the label, which every task reads whole, and
    updates of the result.  For a matrix product this is Spartan's choice by shape (figure 2.5):
    along the sum, unless the first matrix has more rows than columns.
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
