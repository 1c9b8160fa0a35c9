"""A captured program with nodes added for replicas and recomputed operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dasktile.capture.base import Captured
from dasktile.capture.rules.views import Gather
from dasktile.ir import Program


def extend(captured: Captured, program: Program, origin: Sequence[int]) -> Captured:
    """The captured program with nodes added: a kernel for every node of `program`.

    Parameters
    ----------
    captured
        The captured program.
    program
        Its program with more nodes.
    origin
        For every node of `program`, the captured node that it is, or repeats.  A node that
        reads the array of its own origin is a copy (a replica); any other repetition is
        recomputed.
    """
    kernels = []
    for node, index in zip(program.nodes, origin, strict=True):
        copies = any(origin[edge.producer] == index for edge in node.edges)
        kernels.append(Gather(tuple(range(len(node.shape)))) if copies else captured.kernels[index])
    return replace(captured, program=program, kernels=tuple(kernels))
