"""Numbers of blocks: which block of another array each block of a dimension follows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
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


#: Letters that the numbers of blocks along all axes of an array may take (chosen: they are in names
#: of layers, of which Dask cuts long ones).
MOST_LETTERS = 24

#: Numbers up to which repetitions are found (chosen: they take the square of it).
MOST_COMPARED = 512

_REPEATED = re.compile(r"(.+)r(\d+)([ud])(\d+)")
_RUN = re.compile(r"(\d+)(?:([ud])(\d+))?(?:x(\d+))?(?:n(\d+))?")


@dataclass(frozen=True, slots=True)
class NumberRun:
    """Equally spaced numbers, each some times.

    ``NumberRun(7, -1, 2, 3)`` stands for 7, 7, 6, 6, 5, 5; its code is ``7d1x2n3``.

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

    @property
    def code(self) -> str:
        """The run in a few letters."""
        code = str(self.first)
        if self.count > 1 and self.step != 1:
            code += f"u{self.step}" if self.step >= 0 else f"d{-self.step}"
        if self.times > 1:
            code += f"x{self.times}"
        return code + f"n{self.count}" if self.count > 1 else code


def in_runs(numbers: Sequence[int]) -> tuple[NumberRun, ...]:
    """Numbers as few runs.

    Parameters
    ----------
    numbers
        The numbers.
    """
    repeated = [(number, len(list(same))) for number, same in groupby(numbers)]
    return min(_runs(repeated), _runs([(number, 1) for number in numbers]), key=len)


def _runs(repeated: Iterable[tuple[int, int]]) -> tuple[NumberRun, ...]:
    """Runs of numbers, each with how often it occurs."""
    runs: list[NumberRun] = []
    for number, times in repeated:
        if runs:
            last = runs[-1]
            step = number - last.first if last.count == 1 else last.step
            if last.times == times and last.first + last.count * step == number:
                runs[-1] = NumberRun(last.first, step, times, last.count + 1)
                continue
        runs.append(NumberRun(number, times=times))
    return tuple(runs)


@lru_cache(maxsize=1024)
def code_of(numbers: Numbers) -> str:
    """Numbers of blocks in letters, digits and dots.

    Parameters
    ----------
    numbers
        The numbers.
    """
    length, shift = _period(numbers)
    first = ".".join(run.code for run in in_runs(numbers[:length]))
    if length == len(numbers):
        return first
    repeated = f"{first}r{len(numbers) // length}{'u' if shift >= 0 else 'd'}{abs(shift)}"
    return min(".".join(run.code for run in in_runs(numbers)), repeated, key=len)


def _period(numbers: Numbers) -> tuple[int, int]:
    """How many numbers are repeated by the others, each time larger by how much."""
    count = len(numbers)
    if count > MOST_COMPARED:
        return count, 0
    for length in range(1, count // 2 + 1):
        shift = numbers[length] - numbers[0]
        pairs = zip(numbers, numbers[length:], strict=False)
        if count % length == 0 and all(after - before == shift for before, after in pairs):
            return length, shift
    return count, 0


def numbers_of(code: str, most: int) -> Numbers:
    """The numbers of blocks of a code.

    Parameters
    ----------
    code
        The result of :func:`code_of`, or any text.
    most
        How many numbers there may be.

    Raises
    ------
    ValueError
        If it is no code, or one of more numbers, or of negative ones.
    """
    repeated = _REPEATED.fullmatch(code)
    if repeated is not None:
        first, times, sign, size = repeated.groups()
        if not 1 < int(times) <= most:
            raise ValueError(code)
        own = numbers_of(first, most // int(times))
        shift = -int(size) if sign == "d" else int(size)
        if min(own, default=0) + min(0, shift * (int(times) - 1)) < 0:
            raise ValueError(code)
        return tuple(number + shift * at for at in range(int(times)) for number in own)
    runs = []
    for text in code.split("."):
        match = _RUN.fullmatch(text)
        if match is None:
            raise ValueError(code)
        first, sign, step, times, count = match.groups(default="1")
        stride = -int(step) if sign == "d" else int(step)
        run = NumberRun(int(first), stride, int(times), int(count))
        # checked before memory is allocated for all numbers
        most -= run.times * run.count
        if run.times < 1 or run.count < 1 or most < 0 or run.first + stride * (run.count - 1) < 0:
            raise ValueError(code)
        runs.append(run)
    return tuple(
        run.first + run.step * at
        for run in runs
        for at in range(run.count)
        for _ in range(run.times)
    )


def are_short(numbers: Iterable[Numbers | None]) -> bool:
    """Whether the name of a layer can say which blocks are followed.

    Parameters
    ----------
    numbers
        For every axis of the array that is followed, the numbers of its blocks.
    """
    return sum(len(code_of(own)) for own in numbers if own is not None) <= MOST_LETTERS
