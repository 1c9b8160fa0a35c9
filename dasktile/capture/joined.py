"""Unchanged arrays of one block that are joined: one source with many blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dask.blockwise import Blockwise

from dasktile.capture.answers import Answer, producers_first, reads_of
from dasktile.capture.base import GraphView, Operation, Rechunked
from dasktile.capture.unchanged import has_one_block, opaque
from dasktile.ir import Kind


def join_sources(view: GraphView, answers: dict[str, Answer], names: Sequence[str]) -> None:
    """Make one node of many unchanged sources of one block, and of the array that joins them.

    Such arrays, as of ``da.stack`` of ``da.from_delayed``, would each be on one worker alone, and
    on the same one.  The blocks of the joined array are divided among the workers.

    Parameters
    ----------
    view
        The graph.
    answers
        What the recognisers answered; those of arrays that join sources are replaced.
    names
        The outputs.
    """
    readers = Counter(names)
    for answer in answers.values():
        readers.update(set(reads_of(answer)))
    #: By joined array, the arrays that are part of it.
    joined: dict[str, set[str]] = {}
    for name in producers_first(answers, names):
        reads, info = reads_of(answers[name]), view.array(name)
        if len(reads) < 2 or view.layers[name].annotations:
            continue
        parts = []
        for read in reads:
            parts.append(_part(view, answers, readers, joined, read))
            if not parts[-1]:
                break
        else:
            if info is not None and _takes_blocks(view, name):
                joined[name] = set().union(*parts)
                answers[name] = opaque(view, info, _reason(answers, reads[0]), joined[name])


def _reason(answers: Mapping[str, Answer], name: str) -> str:
    """Why the first source of an array is unchanged."""
    for source in producers_first(answers, [name]):
        answer = answers[source]
        if isinstance(answer, Operation) and answer.kind is Kind.OPAQUE:
            return answer.reason
    return ""


def _takes_blocks(view: GraphView, name: str) -> bool:
    """Whether every block of an array is made from one block of another, each from its own."""
    if isinstance(view.layers[name], Blockwise):
        return False
    reads = [task.dependencies for task in view.tasks(name).values()]
    return all(len(keys) == 1 for keys in reads) and len({*reads}) == len(reads)


def _part(
    view: GraphView,
    answers: Mapping[str, Answer],
    readers: Mapping[str, int],
    joined: Mapping[str, set[str]],
    name: str,
) -> set[str]:
    """An array that is joined, and the arrays of one block of which only it is made.

    Empty if no unchanged source is among them, or if something else reads the array, too.
    """
    found: set[str] = set()
    has_source = False
    stack = [name]
    while stack:
        read = stack.pop()
        answer, info = answers[read], view.array(read)
        assert info is not None
        whole = read in joined and read == name
        if isinstance(answer, Rechunked) or not (whole or has_one_block(info)):
            return set()
        if answer.resident or view.layers[read].annotations:
            return set()
        reads = reads_of(answer)
        is_source = whole or (answer.kind is Kind.OPAQUE and not reads)
        # the tasks of a source have the same keys in all nodes, so that they run once
        if readers[read] > 1 and (whole or not is_source):
            if read == name:
                return set()
            continue
        found |= {read, *joined.get(read, ())}
        has_source |= is_source
        stack.extend(reads)
    return found if has_source else set()
