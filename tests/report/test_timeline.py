"""Pictures of plans: pages for a browser, and static pictures."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dasktile.report.axes import byte_unit, time_unit
from dasktile.report.timeline import (
    _PIXELS,
    Bar,
    Timeline,
    _figure,
    draw,
    lane,
    merged,
    thinned,
)
from tests.browser import needs_browser, open_page

MIB = 1 << 20


def timeline(tasks: int = 20, name: str = "matmul") -> Timeline:
    """Tasks of a millisecond each, with a copy after every other one."""
    computed = [(at / 1000, (at + 1) / 1000, f"{name} {at % 3}", MIB) for at in range(tasks)]
    copied = [(at / 1000, (at + 0.5) / 1000, "x", 2 * MIB) for at in range(0, tasks, 2)]
    lanes = {"compute": lane(computed), "copy in": lane(copied), "copy out": ()}
    memory = tuple((at / 1000, (at % 10) * MIB) for at in range(tasks))
    return Timeline(lanes, memory, 12 * MIB, f"{tasks} tasks")


def test_short_neighbours_are_merged() -> None:
    bars = lane([(0, 1, "a", 1), (1, 1.25, "b", 2), (1.25, 1.5, "c", 3), (5, 5.25, "d", 4),
                 (6, 9, "e", 5)])  # fmt: skip
    assert merged(bars, 0.1) == list(bars)
    assert merged(bars, 0.5) == [
        bars[0],
        Bar(1, 1.5, "b and 1 more", 5, 2, 0.5),
        Bar(5, 5.25, "d", 4, 1, 0.25),
        bars[4],
    ]
    assert merged([], 1) == []


def test_many_bars_become_few() -> None:
    plan = timeline(10_000)
    for bars in plan.lanes.values():
        drawn = merged(bars, 10 / _PIXELS)
        assert len(drawn) <= 2 * _PIXELS
        assert sum(bar.count for bar in drawn) == len(bars)
        assert sum(bar.size for bar in drawn) == sum(bar.size for bar in bars)
        assert sum(bar.seconds for bar in drawn) == pytest.approx(sum(bar.seconds for bar in bars))


def test_peaks_of_memory_are_kept() -> None:
    steps = [(0, 1), (1, 5), (2, 9), (3, 2), (10, 3), (20, 4)]
    assert thinned(steps, 0) == steps
    assert thinned(steps, 5) == [(0, 1), (2, 9), (3, 2), (10, 3), (20, 4)]
    assert thinned([], 5) == []
    many = [(float(at), at % 1000) for at in range(100_000)]
    assert len(thinned(many, 100)) <= 3 * 1000
    assert max(size for _, size in thinned(many, 100)) == 999


@pytest.mark.parametrize(
    ("seconds", "unit"), [(2e-4, "µs"), (0.02, "ms"), (3, "s"), (700, "min"), (1e5, "h")]
)
def test_units_of_time(seconds: float, unit: str) -> None:
    assert time_unit(seconds)[0] == unit


@pytest.mark.parametrize(("size", "unit"), [(0, "B"), (12 * MIB, "MiB"), (1 << 40, "TiB")])
def test_units_of_bytes(size: int, unit: str) -> None:
    assert byte_unit(size)[0] == unit


def test_static_pictures_have_units_of_their_size() -> None:
    pytest.importorskip("matplotlib")
    upper, lower = _figure(timeline()).axes
    assert upper.get_title(loc="left") == "20 tasks"
    # with the lane that has no bars
    assert upper.get_ylim() == (-0.5, 2.5)
    assert (lower.get_xlabel(), lower.get_ylabel()) == ("time in ms", "memory in MiB")
    assert lower.get_ylim()[1] == pytest.approx(12, rel=0.1)


def test_page_loads_nothing(tmp_path: Path) -> None:
    pytest.importorskip("bokeh")
    path = draw(timeline(), tmp_path / "plan.html")
    text = path.read_text()
    assert "Bokeh.embed.embed_item" in text
    assert not re.search(r"<(script|img|link)[^>]*(src|href)", text)
    row = "<td>7</td><td>7.0 ms</td><td>1.0 ms</td><td>7.0 MiB</td>"
    assert f"<td class='left'>matmul 0</td>{row}" in text
    assert "limit 12.0 MiB" in text
    assert draw(timeline(), path).read_text() == text


def test_names_are_escaped(tmp_path: Path) -> None:
    pytest.importorskip("bokeh")
    text = draw(timeline(name="</script><b>"), tmp_path / "plan.html").read_text()
    assert "&lt;/script&gt;&lt;b&gt; 0" in text
    assert "</script><b>" not in text


def test_names_that_look_like_models_or_scripts_are_kept(tmp_path: Path) -> None:
    pytest.importorskip("bokeh")
    names = ["p900", "p901", "<!--<script>"]
    bars = lane([(at, at + 1, name, MIB) for at, name in enumerate(names)])
    plan = Timeline({"compute": bars}, ((0.0, 0), (3.0, MIB)), 12 * MIB, "p902")
    text = draw(plan, tmp_path / "plan.html").read_text(encoding="utf-8")
    script = text[text.rindex("Bokeh.embed.embed_item(") :].partition("</script>")[0]
    assert "<" not in script
    item = script.removeprefix("Bokeh.embed.embed_item(").removesuffix(")")

    def columns(value: Any) -> Iterator[tuple[Any, Any]]:
        if isinstance(value, dict):
            yield from (pair for pair in value.get("entries", ()) if len(pair) == 2)
        children = value.values() if isinstance(value, dict) else value
        if isinstance(children, str) or not isinstance(value, dict | list):
            return
        for child in children:
            yield from columns(child)

    found = [data for title, data in columns(json.loads(item)) if title == "name"]
    assert found == [names]


def test_suffixes_may_have_capital_letters(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert b"<svg" in draw(timeline(), tmp_path / "plan.SVG").read_bytes()
    text = draw(timeline(), tmp_path / "plan.HTML").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    with pytest.raises(ValueError, match=r"must end in \.svg, \.png, \.pdf or \.html; got .*gif"):
        draw(timeline(), tmp_path / "plan.gif")


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf", "html"])
def test_a_file_that_cannot_be_written(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(OSError, match=f"plan.{suffix}"):
        draw(timeline(), tmp_path / "missing" / f"plan.{suffix}")


def test_legend_shows_that_bars_are_merged(tmp_path: Path) -> None:
    pytest.importorskip("bokeh")
    text = draw(timeline(10_000), tmp_path / "plan.html").read_text()
    assert re.search(r"compute: 10,000 in 1,\d{3} bars", text)
    assert "are drawn as one bar" in text
    assert len(text) < 4 << 20
    assert "are drawn as one bar" not in draw(timeline(), tmp_path / "plan.html").read_text()


def test_without_bokeh_the_page_has_a_static_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setitem(sys.modules, "bokeh.plotting", None)
    text = draw(timeline(), tmp_path / "plan.html").read_text()
    assert "<img alt='timeline' src='data:image/svg+xml;base64," in text
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="needs matplotlib or bokeh: pip install"):
        draw(timeline(), tmp_path / "plan.html")
    with pytest.raises(ImportError, match="needs matplotlib: pip install"):
        draw(timeline(), tmp_path / "plan.svg")


@needs_browser
@pytest.mark.parametrize("tasks", [20, 10_000])
def test_page_in_a_browser(tmp_path: Path, tasks: int) -> None:
    pytest.importorskip("bokeh")
    path = draw(timeline(tasks), tmp_path / "plan.html")

    async def look() -> None:
        async with open_page(path.as_uri(), tmp_path / "profile") as page:
            for width in (1280, 800):
                await page.resize(width)
                await page.until_drawn(2)
                assert await page.overflow() <= 0
            # over the first bar of the first lane
            await page.hover("(all(document).filter(e => e.tagName === 'CANVAS'))[0]", 0.3, 0.35)
            await page.until("all(document).some(e => e.textContent.includes('takes'))")
            assert "matmul" in await page.text()
            assert page.errors == []
            assert all(address.startswith(("file:", "data:")) for address in page.requests)

    asyncio.run(look())
