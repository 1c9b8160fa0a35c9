"""Numbers as reports and messages print them."""

from __future__ import annotations

import pytest
from dask.utils import parse_bytes

from dasktile.report.formatting import format_excess, format_limit


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ("100 MiB", "100 MiB"),
        ("1.5 GiB", "1.5 GiB"),
        ("1 TiB", "1 TiB"),
        ("1 KiB", "1 KiB"),
        ("1000", "1000 B"),
        ("1", "1 B"),
        ("100 MB", "100 MB (95.4 MiB)"),
        ("2 GB", "2 GB (1.9 GiB)"),
        ("123456789", "118 MiB"),
        ("1.001 GB", "1.001 GB (955 MiB)"),
        ("1001000000", "1.001 GB (955 MiB)"),
        ("1.001 GiB", "1.001 GiB"),
        ("512 kB", "512 kB (500 KiB)"),
        ("10 KiB", "10 KiB"),
        ("20000 TiB", "20000 TiB"),
        ("100000 TB", "90949 TiB"),
    ],
)
def test_limits_are_shown_as_given(limit: str, text: str) -> None:
    assert format_limit(parse_bytes(limit)) == text


def test_what_exceeds_a_limit_differs_from_it_in_print() -> None:
    limit = 100 * 1024**2
    assert format_excess(2 * limit, limit) == "200 MiB"
    assert format_excess(limit + 100, limit) == "104,857,700 bytes (100 more)"
