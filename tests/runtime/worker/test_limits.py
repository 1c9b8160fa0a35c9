"""Limits of memory that users give for the store of a worker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dasktile

BYTES = 'memory_limit must be a positive number of bytes, a string such as "2 GiB", or None'
SHARE = (
    "device_memory_limit must be a positive number of bytes, a share of the memory up to 1, a"
    ' string such as "2 GiB", or None'
)


@pytest.mark.parametrize("limit", ["lots", 0, -1, 0.5, 1, float("nan"), float("inf")])
def test_invalid_limits_in_bytes(limit: Any) -> None:
    with pytest.raises(ValueError) as raised:
        dasktile.worker_data(limit)
    assert str(raised.value) == f"{BYTES}; got {limit!r}"


@pytest.mark.parametrize("limit", ["lots", 0, -1, 1.5, float("inf")])
def test_invalid_shares_of_a_device(limit: Any) -> None:
    with pytest.raises(ValueError) as raised:
        dasktile.worker_data(device_memory_limit=limit)
    assert str(raised.value) == f"{SHARE}; got {limit!r}"


def test_limits_of_the_wrong_type() -> None:
    with pytest.raises(TypeError) as raised:
        dasktile.worker_data([1])  # type: ignore[arg-type]  # the wrong type is the test
    assert str(raised.value) == f"{BYTES}; got [1] of type list"
    with pytest.raises(TypeError) as raised:
        dasktile.worker_data(device_memory_limit=True)
    assert str(raised.value) == f"{SHARE}; got True of type bool"


def test_numbers_of_numpy_are_limits() -> None:
    _, options = dasktile.worker_data(
        np.int64(2_000_000_000),  # type: ignore[arg-type]  # works as an int, which it is not
        device_memory_limit=np.float64(0.5),
    )
    assert (options["memory_limit"], options["device_memory_limit"]) == (2_000_000_000, 0.5)
