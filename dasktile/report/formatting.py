"""Numbers, names and lines of text, as reports print them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from dasktile.ir import Chunks

#: Columns of a line of text.
WIDTH = 80


def format_bytes(count: float) -> str:
    """Bytes with a unit: ``1.2 GiB``, ``12 KiB``, ``0 B``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 999.5 or unit == "TiB":
            break
        size /= 1024
    digits = 0 if unit == "B" or size >= 99.95 else 1
    return f"{size:.{digits}f} {unit}"


def format_limit(limit: int) -> str:
    """A limit in the unit in which it is a short number: ``100 MiB``, ``100 MB (95.4 MiB)``.

    This is mostly what the user gave.  Other limits are rounded.
    """
    if limit < 1024:
        return f"{limit} B"
    binary = _short(limit, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))
    decimal = _short(limit, 1000, ("B", "kB", "MB", "GB", "TB"))
    if binary and not 0 < _digits(decimal) <= _digits(binary):
        return binary
    return f"{decimal} ({format_bytes(limit)})" if decimal else format_bytes(limit)


def _short(size: int, base: int, units: Sequence[str]) -> str:
    """Bytes as a number of four digits at most; empty if they are no such number."""
    place = min(int(math.log(max(size, 1), base) + 1e-9), len(units) - 1)
    number = f"{size / base**place:.4g}"
    # Dask rounds what it parses down, also where the product of floats is just below an integer
    is_exact = "e" not in number and abs(float(number) * base**place - size) < 1
    return f"{number} {units[place]}" if is_exact else ""


def _digits(text: str) -> int:
    return sum(map(str.isdigit, text))


def format_excess(need: int, limit: int) -> str:
    """Bytes that are more than a limit: in full, if they are the limit when rounded."""
    text = format_bytes(need)
    return text if text != format_bytes(limit) else f"{need:,} bytes ({need - limit:,} more)"


def format_seconds(seconds: float) -> str:
    """Seconds with a unit and two digits: ``12 ms``, ``3.4 s``, ``25 min``."""
    units = (("ms", 1e-3, 0.995), ("s", 1.0, 99.5), ("min", 60.0, 5970.0), ("h", 3600.0, math.inf))
    unit, size = next((unit, size) for unit, size, most in units if seconds < most)
    count = seconds / size
    return f"{count:.1f} {unit}" if count < 9.95 else f"{float(f'{count:.2g}'):,.0f} {unit}"


def format_count(number: int, what: str) -> str:
    """A number of things: ``1 task``, ``1,206 tasks``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def format_names(names: Sequence[str], most: int, rest: str = ", ...") -> str:
    """Names, separated by commas.

    Parameters
    ----------
    names
        The names.
    most
        Number of names that are shown, the first ones.
    rest
        Stands for all others; ``{}`` in it is their number.
    """
    others = len(names) - most
    return ", ".join(names[:most]) + (rest.format(f"{others:,}") if others > 0 else "")


def format_ranges(numbers: Sequence[int]) -> str:
    """Numbers, those that follow each other as a range: ``0 3-7 9``."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return " ".join(
        f"{first}-{last}" if last > first + 1 else " ".join(map(str, range(first, last + 1)))
        for first, last in ranges
    )


def format_shape(shape: Sequence[int]) -> str:
    """A shape as NumPy writes it: ``(400, 50)``, ``(8,)``."""
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


def format_chunks(chunks: Chunks) -> str:
    """The number of chunks and the largest sizes along every axis: ``8 of (400, 50)``."""
    count = math.prod(len(sizes) for sizes in chunks)
    largest = tuple(max(sizes, default=0) for sizes in chunks)
    return f"{count} of {format_shape(largest)}"


def shortened(text: str, width: int) -> str:
    """The text, cut to a number of characters."""
    return text if len(text) <= width else text[: width - 1] + "…"


def shortened_words(text: str, width: int) -> str:
    """The text, cut between words to a number of characters."""
    if len(text) <= width:
        return text
    return f"{text[: width - 1].rpartition(' ')[0]} …".lstrip()


def wrapped(line: str) -> str:
    """A line of text on several lines, of which the later ones are indented further."""
    indent = line[: len(line) - len(line.lstrip())] + "  "
    return "\n".join(
        textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False,
                      break_long_words=False)
    )  # fmt: skip
