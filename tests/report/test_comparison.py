"""The table of the tilings that methods choose."""

from __future__ import annotations

from typing import Any

import dask.array as da
import pytest

import dasktile


def test_every_method_that_moves_the_proven_least_is_optimal() -> None:
    x = da.ones((400, 400), chunks=100)
    table = dasktile.compare(x + x.T, workers=4)
    least = [choice for choice in table if choice.bytes == table["auto"].bytes]
    assert table["auto"].proven_optimal and len(least) > 1
    assert all(choice.proven_optimal for choice in least)
    assert not any(choice.proven_optimal for choice in table if choice not in least)
    assert str(table).count("proven optimal") == len(least)


def test_methods_are_one_name_or_several() -> None:
    x = da.ones((40, 40), chunks=10)
    for given in ("auto", ["auto"], ("auto", "auto"), iter(["auto"])):
        assert [choice.method for choice in dasktile.compare(x, methods=given)] == ["auto"]
    default = [choice.method for choice in dasktile.compare(x)]
    for given in (None, [], ()):
        assert [choice.method for choice in dasktile.compare(x, methods=given)] == default


@pytest.mark.parametrize(
    ("methods", "error", "got"),
    [
        ("best", ValueError, "got 'best'"),
        (["auto", "best"], ValueError, "got 'best'"),
        (3, TypeError, "got 3 of type int"),
        ([None], TypeError, "got None of type NoneType"),
    ],
)
def test_errors_name_the_methods(methods: Any, error: type[Exception], got: str) -> None:
    with pytest.raises(error, match=f"methods must be one or several of 'auto', .*; {got}"):
        dasktile.compare(1, methods=methods)


def test_nothing_to_compare() -> None:
    assert str(dasktile.compare(1)) == "no dask arrays to tile"
