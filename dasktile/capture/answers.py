"""What the recognisers answered for every layer: its inputs, and the order of the layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dasktile.capture.base import Operation, Rechunked

#: An operation, or a rechunk, which is no node of the program.
Answer = Operation | Rechunked


def reads_of(answer: Answer) -> list[str]:
    """The layers of the arrays that an operation, or a rechunk, reads."""
    if isinstance(answer, Rechunked):
        return [answer.layer]
    return [read.layer for read in answer.inputs]


def resolved(answers: Mapping[str, Answer], name: str) -> str:
    """The layer that computes an array, below all rechunks."""
    answer = answers[name]
    while isinstance(answer, Rechunked):
        name = answer.layer
        answer = answers[name]
    return name


def producers_first(answers: Mapping[str, Answer], names: Iterable[str]) -> list[str]:
    """Layers of operations, producers first, otherwise in the order of the outputs."""
    order: dict[str, None] = {}
    for root in names:
        stack = [resolved(answers, root)]
        while stack:
            name = stack[-1]
            if name in order:
                stack.pop()
                continue
            reads = (resolved(answers, read) for read in reads_of(answers[name]))
            waiting = [read for read in reads if read not in order]
            if waiting:
                stack.extend(reversed(waiting))
            else:
                order[name] = None
                stack.pop()
    return list(order)
