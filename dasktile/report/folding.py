"""Repeated structure of an expression, drawn once.

The steps of a loop, or the branches of a group-by, have the same operations with the same shapes.
Boxes get a class by what they are and what they read; runs of boxes that repeat, and sibling boxes
of one class, are each shown by their first member and a count.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

#: Longest step of a loop that is searched for, in boxes (chosen).
_LONGEST = 40


@dataclass(frozen=True, slots=True)
class Fold:
    """A box of the folded picture.

    Parameters
    ----------
    members
        Positions of the boxes that it stands for, the one that is drawn first.
    inputs
        Positions, in the folded picture, of the boxes that it reads.
    """

    members: tuple[int, ...]
    inputs: tuple[int, ...]


def fold(kinds: Sequence[Hashable], inputs: Sequence[Sequence[int]]) -> list[Fold]:
    """Fold repeated structure.

    Parameters
    ----------
    kinds
        What each box is: boxes of one kind look the same.
    inputs
        Positions of the boxes that each reads, all before it.

    Returns
    -------
    The boxes of the folded picture in the order of their first members.  Edges that would lead
    upwards, from one repetition to the next, are left out.
    """
    groups = _siblings(kinds, inputs)
    groups = _steps([kinds[group[0]] for group in groups], groups)
    place = {member: number for number, group in enumerate(groups) for member in group}
    folds = []
    for number, group in enumerate(groups):
        read = dict.fromkeys(place[producer] for member in group for producer in inputs[member])
        folds.append(Fold(tuple(group), tuple(other for other in read if other < number)))
    return folds


def _siblings(kinds: Sequence[Hashable], inputs: Sequence[Sequence[int]]) -> list[list[int]]:
    """Groups of boxes of one kind whose inputs are of the same groups, in order."""
    classes: dict[Hashable, int] = {}
    of: list[int] = []
    groups: list[list[int]] = []
    for box, kind in enumerate(kinds):
        # boxes that read each other are steps of a loop, not siblings
        name = kind, tuple(sorted({of[producer] for producer in inputs[box]}))
        number = classes.get(name)
        if number is None or not set(inputs[box]).isdisjoint(groups[number]):
            number = classes[name] = len(groups)
            groups.append([])
        groups[number].append(box)
        of.append(number)
    return groups


def _steps(kinds: Sequence[Hashable], groups: Sequence[list[int]]) -> list[list[int]]:
    """Groups of which sections that repeat one after the other are joined, longest gain first."""
    signs = [(kind, len(group)) for kind, group in zip(kinds, groups, strict=True)]
    out: list[list[int]] = []
    at = 0
    while at < len(signs):
        length, count = _repetition(signs, at)
        if count < 2:
            out.append(list(groups[at]))
            at += 1
            continue
        for offset in range(length):
            out.append(
                [member for step in range(count) for member in groups[at + step * length + offset]]
            )
        at += length * count
    return out


def _repetition(signs: Sequence[Hashable], at: int) -> tuple[int, int]:
    """Length and count of the repetition from a position on that saves most boxes."""
    best = (1, 1)
    for length in range(1, min(_LONGEST, (len(signs) - at) // 2) + 1):
        step = signs[at : at + length]
        count = 1
        while signs[at + count * length : at + (count + 1) * length] == step:
            count += 1
        if (count - 1) * length > (best[1] - 1) * best[0]:
            best = (length, count)
    return best
