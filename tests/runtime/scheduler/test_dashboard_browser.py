"""The page in the dashboard, as a browser shows it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, wait

import dasktile
from tests.browser import needs_browser, open_page

pytest.importorskip("bokeh")

#: Seconds after which something hangs.
LIMIT = 300

TITLES = (
    "Bytes received from other workers, by layer",
    "Bytes held by worker, by tier",
    "Bytes spilled and read back, by tier",
    "Tasks",
)


@needs_browser
def test_page_in_a_browser(tmp_path: Path) -> None:
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            protocol="tcp",
            memory_limit="20 GiB",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        dasktile.enable(client, memory_limit="4 MiB")
        x = da.from_array(np.random.default_rng(0).random((1000, 1000)), chunks=(100, 1000))
        held = [dasktile.optimize(x @ x.T, workers=2).persist(), (x + 1).persist()]
        wait(held, timeout=LIMIT)
        address = f"http://127.0.0.1:{cluster.scheduler.http_server.port}/dasktile"
        metrics = dasktile.metrics(client)
        assert metrics.bytes_spilled > 0
        assert metrics.bytes_predicted > 0

        async def look() -> None:
            async with open_page(address, tmp_path) as page:
                for width in (1280, 800):
                    await page.resize(width)
                    await page.until_drawn(len(TITLES))
                    assert await page.overflow() <= 0
                text = await page.text()
                for title in TITLES:
                    assert title in text
                assert "2 of 2 workers" in text
                assert "0 errors" in text
                colours = (
                    "[getComputedStyle(document.documentElement).backgroundColor,"
                    " getComputedStyle(all(document).findLast(e => e.children.length === 0"
                    " && e.textContent === 'Tasks')).color]"
                )
                for scheme, expected in (
                    ("dark", ["rgb(17, 17, 17)", "rgb(255, 255, 255)"]),
                    ("light", ["rgb(250, 250, 250)", "rgb(0, 0, 0)"]),
                ):
                    feature = {"name": "prefers-color-scheme", "value": scheme}
                    await page.call("Emulation.setEmulatedMedia", features=[feature])
                    assert await page.evaluate(colours) == expected
                # the page is updated while it is open
                before = await asyncio.to_thread(lambda: dasktile.metrics(client).tasks)
                after = (x + 2).persist()
                await asyncio.to_thread(wait, after, timeout=LIMIT)
                shown = "Bokeh.documents[0].all_models.size && [...Bokeh.documents[0].all_models]"
                await page.until(
                    f"({shown}).some(m => m.type === 'ColumnDataSource' && m.data.tasks"
                    f" && Math.max(...m.data.tasks) > {before})"
                )
                await page.hover("(all(document).filter(e => e.tagName === 'CANVAS'))[0]", 0.3, 0.5)
                await page.until("all(document).some(e => e.textContent.includes('predicted'))")
                assert page.errors == []

        asyncio.run(look())
