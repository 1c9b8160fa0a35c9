"""What workers receive from each other, if every task of a graph runs at its place."""

from __future__ import annotations

from collections.abc import Collection, Sequence

#: Bytes of a result up to which it does not matter where it is made (chosen: the numbers of the
#: rows of a block).
SMALL = 2**12


def received(
    places: Sequence[int | None],
    readers: Sequence[Sequence[int]],
    sizes: Sequence[int],
    guessed: Collection[int],
) -> int:
    """Bytes that workers receive.

    Tasks without a place are left out, and results whose sizes are guesses: as upper bounds these
    may be many times too large.

    Parameters
    ----------
    places, readers, sizes
        Of every task, its place, the tasks that read its result, and the bytes of this.
    guessed
        The tasks whose sizes are guesses.
    """
    total = 0
    for number, place in enumerate(places):
        if place is not None and number not in guessed:
            elsewhere = {places[reader] for reader in readers[number]} - {None, place}
            total += sizes[number] * len(elsewhere)
    return total


def uncounted_share(
    places: Sequence[int | None],
    readers: Sequence[Sequence[int]],
    sizes: Sequence[int],
    guessed: Collection[int],
) -> float:
    """Of the results that workers receive, the share that `received` leaves out.

    Those that tasks without a place make or read count as received, but for small ones.

    Parameters
    ----------
    places, readers, sizes, guessed
        As for `received`.
    """
    moved = {False: 0, True: 0}
    for number, place in enumerate(places):
        if place is None and number not in guessed and sizes[number] <= SMALL:
            continue
        elsewhere = {places[reader] for reader in readers[number]}
        is_left_out = place is None or number in guessed
        moved[is_left_out] += len(elsewhere if place is None else elsewhere - {place})
    return moved[True] / max(1, sum(moved.values()))
