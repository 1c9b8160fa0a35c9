"""Unchanged arrays of one block that are joined: one source with many blocks."""

from __future__ import annotations

import heapq
import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any

from dask.blockwise import Blockwise

from dasktile._compat.dask import Alias, Task
from dasktile.capture.answers import Answer, producers_first, reads_of
from dasktile.capture.base import GraphView, Operation, Rechunked
from dasktile.capture.references import head_of, references
from dasktile.capture.settings import SETTINGS
from dasktile.capture.unchanged import has_one_block, opaque
from dasktile.ir import Kind


def join_sources(view: GraphView, answers: dict[str, Answer], names: Sequence[str]) -> None:
    """Make one node of many unchanged sources of one block, and of the array that joins them.

    Such arrays, as of ``da.stack`` of ``da.from_delayed``, would each be on one worker alone, and
    on the same one.  The blocks of the joined array are divided among the workers.  Operations on
    the single blocks are part of the node.

    Parameters
    ----------
    view
        The graph.
    answers
        What the recognisers answered; those of arrays that join sources are replaced.
    names
        The outputs.
    """
    if sum(map(_is_source, answers.values())) < SETTINGS.joined_sources:
        return
    joins = _Joins(view, answers, names)
    for name in joins.place:
        joins.find(name)
    for name in reversed(joins.place):
        joins.apply(name)


def _is_source(answer: Answer) -> bool:
    """Whether an array is unchanged, reads no other, and is in no worker's memory."""
    return (
        isinstance(answer, Operation)
        and answer.kind is Kind.OPAQUE
        and not answer.inputs
        and not answer.resident
    )


class _Joins:
    """The arrays that join sources, as far as they are known.

    Parameters
    ----------
    view, answers, names
        As those of :func:`join_sources`.
    """

    def __init__(self, view: GraphView, answers: dict[str, Answer], names: Sequence[str]) -> None:
        self.view, self.answers = view, answers
        #: By array, those that read it; an output is read by what has no name.
        self.readers: dict[str, set[str]] = {name: {""} for name in names}
        for name, answer in answers.items():
            for read in reads_of(answer):
                self.readers.setdefault(read, set()).add(name)
        #: The place of every array in an order in which it is after all that it reads.
        self.place = {name: at for at, name in enumerate(producers_first(answers, names))}
        #: By array that joins sources: the arrays that are part of it, and the number of sources.
        self.joined: dict[str, tuple[set[str], int]] = {}
        #: Arrays that are part of a node.
        self.inside: set[str] = set()

    def find(self, name: str) -> None:
        """Note an array that joins others, all of which were looked at before."""
        reads = reads_of(self.answers[name])
        if len(reads) < 2 or not self.takes_blocks(name, set(reads)):
            return
        inside: set[str] = set()
        sources = 0
        for read in reads:
            part, count = self.part(read, name)
            if not part:
                return
            inside |= part
            sources += count
        self.joined[name] = inside, sources

    def apply(self, name: str) -> None:
        """Make an array one node with the sources that it joins, if there are many."""
        inside, sources = self.joined.get(name, (set(), 0))
        info = self.view.array(name)
        if info is None or name in self.inside or sources < SETTINGS.joined_sources:
            return
        if self.are_items(inside):
            return
        self.inside |= inside
        reason, inputs = self.reason(inside), self.answers.keys() - inside
        self.answers[name] = opaque(self.view, info, reason, inputs)

    def takes_blocks(self, name: str, reads: set[str]) -> bool:
        """Whether each block of an array is made of a single block of those that it reads.

        No two are made of the same one.  This holds for a stack, not for a product or a sum.
        """
        layer = self.view.layers[name]
        if isinstance(layer, Blockwise) or layer.annotations:
            return False
        keys = [task.dependencies for task in self.view.tasks(name).values()]
        return (
            all(len(each) == 1 for each in keys)
            and len(set(keys)) == len(keys)
            and all(head_of(key) in reads for each in keys for key in each)
        )

    def part(self, name: str, reader: str) -> tuple[set[str], int]:
        """The arrays of one block of which only a joined array is made, and that array itself.

        Also the number of sources among them.  There are none where something else than `reader`
        reads the array, or where it has no place in a joined node.
        """
        if name in self.joined and self.readers[name] == {reader}:
            inside, sources = self.joined[name]
            return {name, *inside}, sources
        found: set[str] = set()
        sources = 0
        # readers before what they read
        heap = [(-self.place.get(name, 0), name)]
        while heap:
            _, read = heapq.heappop(heap)
            if read in found:
                continue
            answer, info = self.answers[read], self.view.array(read)
            if info is None or isinstance(answer, Rechunked) or not has_one_block(info):
                return set(), 0
            if answer.resident or self.view.layers[read].annotations:
                return set(), 0
            # the tasks of a source have the same keys in all nodes, so that they run once
            if not _is_source(answer) and not self.readers[read] <= {*found, reader}:
                if read == name:
                    return set(), 0
                continue  # an input
            found.add(read)
            sources += _is_source(answer)
            for other in reads_of(answer):
                heapq.heappush(heap, (-self.place.get(other, 0), other))
        return found, sources

    def are_items(self, inside: set[str]) -> bool:
        """Whether most sources are items of one result, as of a function that returns a list.

        All of that result would be sent to every worker that makes one of the blocks.
        """
        taken: Counter[Any] = Counter()
        sources = [name for name in inside if _is_source(self.answers[name])]
        for name in sources:
            task = self.made_by(name)
            if isinstance(task, Task) and task.func is operator.getitem:
                taken.update(references(task))
        return bool(taken) and 2 * max(taken.values()) > len(sources)

    def made_by(self, name: str) -> Any:
        """The task that makes a source of one block, below aliases; None if it has none."""
        answer, info = self.answers[name], self.view.array(name)
        assert isinstance(answer, Operation) and info is not None
        layers = [self.view.tasks(layer) for layer in answer.kernel.layers]
        key: Any = (name, *(0 for _ in info.shape))
        while True:
            task = next((tasks[key] for tasks in layers if key in tasks), None)
            if not isinstance(task, Alias):
                return task
            key = task.target

    def reason(self, inside: set[str]) -> str:
        """Why the first source is unchanged."""
        for name in sorted(inside & self.place.keys(), key=self.place.__getitem__):
            answer = self.answers[name]
            if isinstance(answer, Operation) and _is_source(answer):
                return answer.reason
        return ""
