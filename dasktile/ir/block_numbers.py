"""Numbers of blocks: which block of another array each block of a dimension follows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

#: For each block of a dimension, the number of a block of another array.
Numbers = tuple[int, ...]


def unless_all(numbers: Iterable[int], count: int) -> Numbers | None:
    """The numbers; None where these are those of all blocks, in order.

    Parameters
    ----------
    numbers
        The numbers.
    count
        The number of blocks of the axis that is followed.
    """
    found = tuple(numbers)
    return None if found == tuple(range(count)) else found


def followed_block(
    dims: Sequence[int | None], numbers: Sequence[Numbers | None], index: Sequence[int]
) -> tuple[int, ...]:
    """The block of another array that a block follows.

    Parameters
    ----------
    dims
        For every axis of that array, the dimension of `index` along it, None for none.
    numbers
        For every axis of that array, the blocks that those of the dimension follow; None where
        these have the same numbers.  Without a dimension, the first of them counts.
    index
        The block.

    Raises
    ------
    IndexError
        If there is no such block.
    """
    return tuple(
        at if own is None else own[at]
        for dim, own in zip(dims, numbers, strict=True)
        for at in (0 if dim is None else index[dim],)
    )


#: Runs of the numbers of blocks along all axes of an array, at most (chosen: names of layers say
#: them, and Dask cuts long ones).
MOST_RUNS = 4


@dataclass(frozen=True, slots=True)
class NumberRun:
    """Equally spaced numbers, each some times.

    ``NumberRun(7, -1, 2, 3)`` stands for 7, 7, 6, 6, 5, 5.

    Parameters
    ----------
    first
        The first number.
    step
        From one number to the next.
    times
        How often each number occurs.
    count
        How many numbers.
    """

    first: int
    step: int = 1
    times: int = 1
    count: int = 1


def in_runs(numbers: Sequence[int]) -> tuple[NumberRun, ...]:
    """Numbers as runs.

    Parameters
    ----------
    numbers
        The numbers.
    """
    runs: list[NumberRun] = []
    for number, same in groupby(numbers):
        times = len(list(same))
        if runs:
            last = runs[-1]
            step = number - last.first if last.count == 1 else last.step
            if last.times == times and last.first + last.count * step == number:
                runs[-1] = NumberRun(last.first, step, times, last.count + 1)
                continue
        runs.append(NumberRun(number, times=times))
    return tuple(runs)


def are_few(numbers: Iterable[Numbers | None]) -> bool:
    """Whether the name of a layer can say which blocks are followed.

    Parameters
    ----------
    numbers
        For every axis of the array that is followed, the numbers of its blocks.
    """
    return sum(len(in_runs(own)) for own in numbers if own is not None) <= MOST_RUNS


def of_runs(runs: Iterable[NumberRun]) -> Numbers:
    """The numbers of some runs.

    Parameters
    ----------
    runs
        The runs.
    """
    return tuple(
        run.first + run.step * at
        for run in runs
        for at in range(run.count)
        for _ in range(run.times)
    )
