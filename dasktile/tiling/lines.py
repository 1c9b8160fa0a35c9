"""Labels that run along the same data: shifted by some elements, reversed, or part by part.

A *line* is what the labels of several nodes run along.  Labels of elementwise operations on one
array are at the same places of a line, those of a slice are shifted, and those of a reversed array
run the other way.  Where arrays are put one behind the other, the result has a line that is made of
parts of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate

from dasktile.ir import AxisMap, Edge, Label, Node, Picks, Program

#: A part of a label that is at least so long stands for all of it, as the larger part of an array
#: that is rolled or padded (chosen).
_MAIN_PART = 0.75

#: Stretches of neighbours that a take reads, up to which its label runs along the array's (chosen:
#: each takes some microseconds).
_MOST_STRETCHES = 2**13


#: A place on a line; a fraction where an array is on the line of one that reads it with a step.
Place = int | Fraction


def _over(value: Place, step: Place) -> Place:
    """A value divided by the step of a label."""
    return value * step if step in (1, -1) else Fraction(value) / step


@dataclass(frozen=True, slots=True)
class Along:
    """Where the iterations of a label are: iteration ``t`` at ``first + step * t``.

    Parameters
    ----------
    line
        The number of the line.
    first, step
        The place of the first iteration, and from one to the next; negative of a reversed label.
    """

    line: int
    first: Place = 0
    step: Place = 1

    def seen_from(self, other: Along) -> Along:
        """The places as iterations of another label on the same line."""
        return Along(
            other.line,
            _over(self.first - other.first, other.step),
            _over(self.step, other.step),
        )

    def after(self, inner: Along) -> Along:
        """The places of iterations whose places on this label are `inner`."""
        return Along(self.line, self.first + self.step * inner.first, self.step * inner.step)


@dataclass(frozen=True, slots=True)
class Part:
    """Iterations ``[lo, hi)`` of a label.

    Parameters
    ----------
    lo, hi
        The first of them, and the one after the last.
    along
        Where they are, counted from the first of them.
    """

    lo: int
    hi: int
    along: Along

    def within(self, first: int, end: int) -> Part | None:
        """The part of a label that begins at iteration `first` and ends before `end`, if any."""
        lo, hi = max(self.lo, first), min(self.hi, end)
        if lo >= hi:
            return None
        along = replace(self.along, first=self.along.first + self.along.step * (lo - self.lo))
        return Part(lo - first, hi - first, along)


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a program.

    Parameters
    ----------
    labels
        For every node and label, where that is.
    parts
        For lines that are made of parts of others, these.
    """

    labels: tuple[tuple[Along, ...], ...]
    parts: Mapping[int, tuple[Part, ...]]

    def between(self, label: Along, size: int, axis: Along) -> tuple[Part, ...]:
        """The parts of a label of some size that are on the line of an axis, as its elements.

        Empty where some iterations are not.
        """
        if label.line == axis.line:
            return (Part(0, size, label.seen_from(axis)),)
        # of a reversed label, the parts are others
        if label.step != 1 or not isinstance(label.first, int):
            return ()
        parts = [
            part
            for each in self.parts.get(label.line, ())
            if (part := each.within(label.first, label.first + size)) is not None
        ]
        if sum(part.hi - part.lo for part in parts) != size:
            return ()
        if any(part.along.line != axis.line for part in parts):
            return ()
        return tuple(Part(part.lo, part.hi, part.along.seen_from(axis)) for part in parts)


def lines_of(program: Program) -> Lines:
    """The lines that the labels of a program run along.

    Parameters
    ----------
    program
        The program.
    """
    offsets = list(accumulate((len(node.labels) for node in program.nodes), initial=0))
    #: for every label, another one of its line, and its places on that one
    to = [Along(number) for number in range(offsets[-1])]
    made_of: dict[int, list[Part]] = {}

    def found(number: int) -> Along:
        along = to[number]
        while to[along.line].line != along.line:
            along = to[number] = to[along.line].after(along)
        return along

    for index, node in enumerate(program.nodes):
        joined = _joined(program, node)
        for edge in node.edges:
            taken = _taken(program, edge)
            if edge.picks is not None and taken:
                maker = offsets[edge.producer] + taken[0]
                made_of.setdefault(offsets[index] + edge.picks.label, []).extend(
                    Part(lo, hi, Along(maker, first)) for lo, hi, first in taken[1]
                )
            made_by = program.nodes[edge.producer].out
            for column, (made, read) in enumerate(zip(made_by, edge.axes, strict=True)):
                if edge.picks is not None and taken and column == edge.picks.axis:
                    continue
                if made.label is None or not made.identity or not is_line(read):
                    continue
                assert read.label is not None
                reader, maker = offsets[index] + read.label, offsets[edge.producer] + made.label
                first = read.start + (read.width - 1) // 2
                lo, hi = _reading(node, edge, read, program.nodes[edge.producer].labels[made.label])
                if read.label in joined:
                    part = Part(lo, hi, Along(maker, first + read.step * lo, read.step))
                    made_of.setdefault(reader, []).append(part)
                    continue
                if hi - lo < _MAIN_PART * node.labels[read.label].size:
                    continue
                ours, theirs = found(reader), found(maker)
                if ours.line != theirs.line:
                    # iteration t of the reader is at first + step * t of the maker
                    there = theirs.after(Along(maker, first, read.step))
                    inverse = Along(ours.line).seen_from(ours)
                    to[ours.line] = there.after(inverse)
    parts = {
        found(label).line: tuple(
            Part(part.lo, part.hi, found(part.along.line).after(part.along))
            for part in sorted(own, key=lambda part: part.lo)
        )
        for label, own in made_of.items()
        if (found(label).first, found(label).step) == (0, 1)
    }
    labels = tuple(
        tuple(found(first + label) for label in range(len(node.labels)))
        for first, node in zip(offsets, program.nodes, strict=False)
    )
    return Lines(labels, parts)


def _taken(program: Program, edge: Edge) -> tuple[int, list[tuple[int, int, int]]] | None:
    """The label of the array along which a take reads, and its stretches; None for no line."""
    if edge.picks is None:
        return None
    axis = program.nodes[edge.producer].out[edge.picks.axis]
    if axis.label is None or not axis.identity:
        return None
    stretches = _stretches(edge.picks)
    return (axis.label, stretches) if stretches else None


def _stretches(picks: Picks) -> list[tuple[int, int, int]]:
    """Iterations ``[lo, hi)`` of a take that read neighbours, each with the first element.

    Empty where there are too many, or neighbours read one element.
    """
    found: list[tuple[int, int, int]] = []
    for at, (element, end) in enumerate(picks.runs):
        if end != at + 1 or len(found) >= _MOST_STRETCHES:
            return []
        if found and element - found[-1][2] == at - found[-1][0]:
            found[-1] = (found[-1][0], end, found[-1][2])
        else:
            found.append((at, end, element))
    return found


def is_line(axis: AxisMap) -> bool:
    """Whether iterations read elements at equal distances, and some around each maybe.

    Parameters
    ----------
    axis
        What is read along one axis.
    """
    return (
        axis.label is not None
        and (axis.step > 0 or (axis.step < 0 and axis.width == 1))
        and not axis.breaks
        and not axis.parts
    )


def _joined(program: Program, node: Node) -> set[int]:
    """Labels along which inputs are read one behind the other, none of which is most of it."""
    most: dict[int, int] = {}
    for edge in node.edges:
        for made, read in zip(program.nodes[edge.producer].out, edge.axes, strict=True):
            if made.label is not None and made.identity and is_line(read):
                assert read.label is not None
                label = program.nodes[edge.producer].labels[made.label]
                lo, hi = _reading(node, edge, read, label)
                most[read.label] = max(most.get(read.label, 0), hi - lo)
    return {label for label, size in most.items() if size < _MAIN_PART * node.labels[label].size}


def _reading(node: Node, edge: Edge, axis: AxisMap, made: Label) -> tuple[int, int]:
    """The iterations of a label that read an element of an axis, whose own label is `made`."""
    assert axis.label is not None
    size = node.labels[axis.label].size
    # the first and the last iteration that read an element, or those before and after
    ends = 1 - axis.width - axis.start, made.size - 1 - axis.start
    if axis.step > 0:
        lo, hi = -(-ends[0] // axis.step), ends[1] // axis.step + 1
    else:
        lo, hi = -(ends[1] // -axis.step), -ends[0] // -axis.step + 1
    if edge.within is not None and edge.within[0] == axis.label:
        lo, hi = max(lo, edge.within[1]), min(hi, edge.within[2])
    lo = min(max(lo, 0), size)
    return lo, max(lo, min(hi, size))
