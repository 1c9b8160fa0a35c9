"""What was captured, with arrays that a plan has there twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dasktile.capture.base import Captured
from dasktile.capture.rules.views import Gather
from dasktile.ir import Program


def extended(captured: Captured, program: Program, origin: Sequence[int]) -> Captured:
    """The same with more nodes.

    Parameters
    ----------
    captured
        What was captured.
    program
        Its program with more nodes.
    origin
        For every node, the one captured that it is, or is a copy of: a node that reads the
        very array that it makes copies it, others are run again.
    """
    kernels = []
    for node, index in zip(program.nodes, origin, strict=True):
        copies = any(origin[edge.producer] == index for edge in node.edges)
        kernels.append(Gather(tuple(range(len(node.shape)))) if copies else captured.kernels[index])
    return replace(captured, program=program, kernels=tuple(kernels))
