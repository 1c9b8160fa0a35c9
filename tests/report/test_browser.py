"""Reports in a browser: nothing overflows, text is legible, numbers are aligned."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile.report import graphviz
from dasktile.report.cluster_counts import LayerCounts, Metrics, WorkerCounts
from dasktile.report.diagnosis import Diagnosis, Missed, OperationUse, WorkerUse
from dasktile.report.page import save_page
from tests.browser import needs_browser, open_page

#: Least contrast of text to its background (WCAG 2, level AA).
CONTRAST = 4.5

#: Texts with a contrast below the limit, as [text, contrast].
_ILLEGIBLE = """(() => {
  const parse = c => (c.match(/[\\d.]+/g) || []).map(Number)
  const over = (top, below) => top.slice(0, 3).map(
    (v, i) => v * (top[3] ?? 1) + below[i] * (1 - (top[3] ?? 1)))
  const base = matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255]
  const background = e => !e || e === document ? base
    : over(parse(getComputedStyle(e).backgroundColor).concat([1]).slice(0, 4),
           background(e.parentElement))
  const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= 0.04045 ? v / 12.92
    : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b }
  return all(document.body).filter(e => [...e.childNodes].some(
      n => n.nodeType === 3 && n.textContent.trim()) && e.tagName !== "STYLE"
      && e.checkVisibility() && !e.closest("svg"))
    .map(e => { const back = background(e)
      const [a, b] = [light(over(parse(getComputedStyle(e).color), back)), light(back)]
      return [e.textContent.trim(), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)] })
    .filter(([, contrast]) => contrast < LIMIT) })()""".replace("LIMIT", str(CONTRAST))

#: Cells that hold a number or bytes and are not aligned to the right.
_ASKEW = """all(document).filter(e => e.tagName === "TD"
  && /^[\\d.,]+( [KMGT]?i?B| %| s| ms)?$/.test(e.textContent) && !e.classList.contains("left")
  && getComputedStyle(e).textAlign !== "right").map(e => e.textContent)"""


def reports() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    a = da.from_array(rng.random((2000, 3000)), chunks=(100, 3000))
    b = da.random.default_rng(0).random((3000, 2000), chunks=(300, 2000))
    plan = dasktile.explain((a - a.mean(axis=0)) @ b, workers=4)
    use = WorkerUse(2, 120, 10**8, 10**9, 10**9, 3.1, 0.2, 1.4, 10**9, 2 * 10**9)
    workers = {f"tcp://127.0.0.1:4{number:04}": use for number in range(6)}
    operations = {"matmul": OperationUse(100, 2.5, 10**8), "sub": OperationUse(20, 0.6, 0)}
    counts = WorkerCounts(10**8, 120, 40, 10**9, {"disk": 10**9}, {"disk": 10**8}, {"disk": 10**7})
    small = da.ones((400, 400), chunks=(50, 400))
    return {
        "explanation": plan,
        "unchanged": dasktile.explain(a + 1, workers=4, method="none"),
        "comparison": dasktile.compare(a.T @ a, workers=4, methods=["auto", "spartan"]),
        "schedule": dasktile.plan(small @ small.T, memory_limit="1 MB", workers=1),
        "metrics": Metrics(dict.fromkeys(workers, counts), {"matmul": LayerCounts(1, 2, 3, 4)}),
        "diagnosis": Diagnosis(12.3, workers, operations, (Missed("matmul", plan),)),
    }


@needs_browser
def test_reports_in_a_browser(tmp_path: Path) -> None:
    every = reports()
    body = "".join(f"<h2>{name}</h2>{each._repr_html_()}" for name, each in every.items())
    page = save_page(tmp_path / "reports.html", "reports", body)

    async def look() -> None:
        (tmp_path / "profile").mkdir()
        async with open_page(page.as_uri(), tmp_path / "profile") as browser:
            for scheme in ("light", "dark"):
                feature = {"name": "prefers-color-scheme", "value": scheme}
                await browser.call("Emulation.setEmulatedMedia", features=[feature])
                for width in (1280, 800):
                    await browser.resize(width)
                    assert await browser.overflow() <= 0, (scheme, width)
                    assert json.loads(json.dumps(await browser.evaluate(_ILLEGIBLE))) == []
                    assert await browser.evaluate(_ASKEW) == []
                    await browser.screenshot(tmp_path / f"{scheme}-{width}.png")
            legends = await browser.evaluate("document.querySelectorAll('.legend').length")
            assert legends >= len(every)
            assert browser.requests == [page.as_uri()]
            assert browser.errors == []

    asyncio.run(look())


def looped(steps: int) -> da.Array:
    x = da.from_array(np.ones((4000, 20)), chunks=(500, 20))
    w = da.zeros(20, chunks=20)
    for _ in range(steps):
        w = w - 0.1 * (x.T @ (1 / (1 + da.exp(-(x @ w)))))
    return w


def centred_product() -> da.Array:
    a = da.from_array(np.ones((2000, 3000)), chunks=(100, 3000))
    return (a - a.mean(axis=0)) @ da.ones((3000, 2000), chunks=(300, 2000))


#: Rectangles of elements: left, top, right, bottom.
_RECTANGLES = """all(document).filter(e => e.matches('SELECTOR'))
  .map(e => (r => [r.left, r.top, r.right, r.bottom])(e.getBoundingClientRect()))"""


def assert_apart(rectangles: list[list[float]]) -> None:
    for number, (left, top, right, bottom) in enumerate(rectangles):
        for other in rectangles[:number]:
            apart = left >= other[2] or right <= other[0]
            assert apart or top >= other[3] or bottom <= other[1]


needs_dot = pytest.mark.skipif(not graphviz.is_installed(), reason="there is no dot")


@needs_browser
@pytest.mark.parametrize("layout", ["own", pytest.param("dot", marks=needs_dot)])
@pytest.mark.parametrize(
    ("build", "arrays", "most"),
    [(centred_product, 5, 5), (lambda: looped(1), 15, 60), (lambda: looped(25), 300, 60)],
    ids=["5", "15", "300"],
)
def test_pictures_in_a_browser(
    tmp_path: Path, build: Callable[[], da.Array], arrays: int, most: int, layout: str
) -> None:
    """Boxes and texts do not overlap, text stays inside of its box and is large enough."""
    explanation = dasktile.explain(build(), workers=4)
    assert arrays - 5 <= len(explanation.nodes) <= arrays + 5
    path = explanation.visualize(tmp_path / "plan.svg", layout=layout)
    page = save_page(tmp_path / "plan.html", "plan", path.read_text(encoding="utf-8"))

    async def look() -> None:
        (tmp_path / "profile").mkdir()
        async with open_page(page.as_uri(), tmp_path / "profile") as browser:
            boxes = await browser.evaluate(_RECTANGLES.replace("SELECTOR", "rect.box, rect.kept"))
            beyond = await browser.evaluate(
                "all(document).filter(e => e.matches('text') && e.closest('g g')"
                " && !e.matches('.moved, .halo') && e.parentElement.querySelector('.box, .kept'))"
                ".map(e => [e, e.parentElement.querySelector('.box, .kept')]"
                ".map(x => x.getBoundingClientRect())).map(([t, b]) => t.right - b.right)"
            )
            # a halo is drawn under its text
            texts = await browser.evaluate(_RECTANGLES.replace("SELECTOR", "text:not(.halo)"))
            await browser.screenshot(tmp_path / "plan.png")
        assert 5 <= len(boxes) <= most
        assert_apart(boxes)
        assert beyond and max(beyond) <= 0
        assert len(texts) > 3 * len(boxes)
        assert_apart(texts)
        assert min(bottom - top for _, top, _, bottom in texts) > 12
        # wide enough for a screen, or two
        assert max(right for _, _, right, _ in (*boxes, *texts)) < 2 * 1280

    asyncio.run(look())
