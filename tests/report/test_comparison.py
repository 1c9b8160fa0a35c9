"""The table of the tilings that methods choose."""

from __future__ import annotations

import dask.array as da

import dasktile


def test_every_method_that_moves_the_proven_least_is_optimal() -> None:
    x = da.ones((400, 400), chunks=100)
    table = dasktile.compare(x + x.T, workers=4)
    least = [choice for choice in table if choice.bytes == table["auto"].bytes]
    assert table["auto"].proven_optimal and len(least) > 1
    assert all(choice.proven_optimal for choice in least)
    assert not any(choice.proven_optimal for choice in table if choice not in least)
    assert str(table).count("proven optimal") == len(least)


def test_nothing_to_compare() -> None:
    assert str(dasktile.compare(1)) == "no dask arrays to tile"
