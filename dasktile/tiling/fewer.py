"""Numbers of workers that have few grids, and which fewer workers a plan may use instead.

A prime number of workers cuts work in one direction only: a product of two square matrices moves
12 times one of them on 13 workers, and 4 times on 12 = 3 x 2 x 2.  One idle worker may cost less.
"""

from __future__ import annotations

import math
from functools import lru_cache

from dasktile.tiling.mesh import primes

#: Largest prime factor of numbers of workers that have grids enough: plans for them use all workers
#: (chosen: twos and threads of them make grids of nearly equal sides).
SMALL_PRIME = 3

#: Share of the workers that may be idle at the most (chosen: 8 of 10 workers take a quarter longer
#: for the same work).
MOST_IDLE = 0.25

#: Bytes that a product of three equal sizes moves on fewer workers, for each of these workers, over
#: those on all, up to which the fewer workers are tried (chosen: less is not worth a search).
CLEARLY_FEWER = 0.9

#: Power of the number of workers by which a good grid is weighed against idle workers (chosen: of
#: fewer than 47 workers, 46 = 23 x 2 is a bad grid and 36 leaves many idle, and 45 = 5 x 3 x 3 is
#: neither).
IDLE_POWER = 4

#: Numbers of fewer workers that are tried at the most (chosen: each takes a search).
MOST_TRIED = 2


@lru_cache(maxsize=4096)
def fewer_workers(workers: int) -> tuple[int, ...]:
    """Fewer workers that a plan may use, most of them first; empty if all of them have good grids.

    Each has a grid on which a product of three equal sizes moves fewer bytes than on any grid of
    more workers, and clearly fewer than on all.

    Parameters
    ----------
    workers
        Number of workers.

    Examples
    --------
    >>> fewer_workers(13), fewer_workers(11), fewer_workers(47), fewer_workers(12)
    ((12,), (10, 9), (45, 36), ())
    """
    if max(primes(workers), default=1) <= SMALL_PRIME:
        return ()
    all_workers, found = _faces(workers), []
    least = all_workers
    for count in range(workers - 1, math.ceil(workers * (1 - MOST_IDLE)) - 1, -1):
        faces = _faces(count)
        if faces < least and faces * workers <= CLEARLY_FEWER * all_workers * count:
            least = faces
            found.append(count)
    if len(found) <= MOST_TRIED:
        return tuple(found)
    # those with a good grid that leave few idle, and those of the best grid
    few_idle = min(found[:-1], key=lambda count: _faces(count) / count**IDLE_POWER)
    return few_idle, found[-1]


def share_moved(fewer: int, workers: int) -> float:
    """What a product of three equal sizes moves on fewer workers, over what it moves on all.

    Parameters
    ----------
    fewer, workers
        Numbers of workers, the second at least 2.
    """
    return _faces(fewer) / _faces(workers)


def why_fewer(workers: int) -> str:
    """Why fewer workers may have better grids, in words: for numbers with `fewer_workers`.

    Parameters
    ----------
    workers
        Number of workers.

    Examples
    --------
    >>> why_fewer(13)
    'work can be cut in one direction only by 13'
    >>> why_fewer(22)
    '22 = 11 x 2 has no grid with sides of about equal length'
    """
    factors = primes(workers)
    if len(factors) == 1:
        return f"work can be cut in one direction only by {workers:,}"
    product = " x ".join(map(str, factors))
    return f"{workers:,} = {product} has no grid with sides of about equal length"


@lru_cache(maxsize=4096)
def _faces(workers: int) -> int:
    """What a product of three equal sizes moves on the best grid, over the elements of a matrix."""
    return min(
        rows + columns + workers // (rows * columns) - 3
        for rows in _divisors(workers)
        for columns in _divisors(workers // rows)
    )


def _divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return [*small, *(number // divisor for divisor in small)]
