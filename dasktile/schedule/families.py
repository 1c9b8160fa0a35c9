"""Families of root tasks: neighbours, which should run on one worker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import TypeVar

Task = TypeVar("Task")


def families(
    roots: Sequence[Task], combined_by: Callable[[Task], Collection[Hashable]], most: int
) -> list[list[Task]]:
    """Divide root tasks into families: runs of tasks whose results are combined.

    Parameters
    ----------
    roots
        Root tasks, in the order in which they run.
    combined_by
        The tasks that combine the result of a root task with those of others.
    most
        Tasks in a family at most.

    Returns
    -------
    The families, in the order of their first tasks.
    """
    found: list[list[Task]] = []
    around: set[Hashable] = set()
    for root in roots:
        readers = combined_by(root)
        if found and len(found[-1]) < most and not around.isdisjoint(readers):
            found[-1].append(root)
            around.update(readers)
        else:
            found.append([root])
            around = set(readers)
    return found
