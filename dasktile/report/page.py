"""Files of reports: a page of its own around the HTML, the numbers as JSON, or the text."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: A page is light or dark as the browser prefers.
_SCHEME = "\n:root { color-scheme: light dark; }"

#: Of the text of a report.
_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; }
"""


def suffix_of(filename: str | Path, accepted: Sequence[str]) -> str:
    """The suffix of a file's name in lower case, which says the format to write.

    Parameters
    ----------
    filename
        The name, whose suffix may have capital letters.
    accepted
        Suffixes in lower case.

    Raises
    ------
    ValueError
        If the name has another suffix.
    """
    suffix = Path(filename).suffix.lower()
    if suffix not in accepted:
        *others, last = accepted
        allowed = f"{', '.join(others)} or {last}" if others else last
        raise ValueError(f"filename must end in {allowed}; got {str(filename)!r}")
    return suffix


def save_page(filename: str | Path, title: str, body: str, style: str = _STYLE) -> Path:
    """Write an HTML page, which loads nothing else.

    Parameters
    ----------
    filename
        Ends in ``.html``, in small or capital letters.
    title
        Title of the page, as text.
    body
        Its content, as HTML.
    style
        CSS rules of the page.

    Returns
    -------
    Path
        The file written.

    Raises
    ------
    ValueError
        If the name has another suffix.
    OSError
        If the file cannot be written.
    """
    path = Path(filename)
    suffix_of(path, (".html",))
    heading = html.escape(title)
    path.write_text(
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{heading}</title><style>{_SCHEME}{style}</style></head>\n"
        f"<body><h1>{heading}</h1>\n{body}\n</body></html>\n",
        encoding="utf-8",
    )
    return path


def save_report(
    filename: str | Path, title: str, body: str, values: Mapping[str, Any], text: str
) -> Path:
    """Write a report as an HTML page, its numbers as JSON, or its text.

    Parameters
    ----------
    filename
        Ends in ``.html``, ``.json`` or ``.txt``, in small or capital letters.
    title, body
        Those of the page, as in :func:`save_page`.
    values
        The numbers: dicts, lists, strings and numbers.
    text
        The report as text.

    Returns
    -------
    Path
        The file written.

    Raises
    ------
    ValueError
        If the name has another suffix.
    OSError
        If the file cannot be written.
    """
    path = Path(filename)
    suffix = suffix_of(path, (".html", ".json", ".txt"))
    if suffix == ".html":
        return save_page(path, title, body)
    content = json.dumps(values, indent=1) if suffix == ".json" else text
    path.write_text(content + "\n", encoding="utf-8")
    return path
