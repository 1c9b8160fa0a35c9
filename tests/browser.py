"""A headless browser for tests: it loads a page, runs JavaScript in it and takes pictures of it."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from tornado.websocket import websocket_connect

#: Seconds after which a browser hangs.
LIMIT = 60

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")

#: All elements of a page, also those in the shadow roots of Bokeh's models.
_ALL = """
    const all = root => [...root.querySelectorAll("*")].flatMap(
        element => [element, ...(element.shadowRoot ? all(element.shadowRoot) : [])])
"""


class Page:
    """An open page.

    Attributes
    ----------
    errors
        Messages of errors in the console, and of exceptions that were not caught.
    requests
        Addresses that the page has loaded.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.errors: list[str] = []
        self.requests: list[str] = []

    async def listen(self) -> None:
        while (message := await self._connection.read_message()) is not None:
            self._receive(json.loads(message))

    def _receive(self, message: dict[str, Any]) -> None:
        values = message.get("params", {})
        match message.get("method"):
            case None:
                self._answers.pop(message["id"]).set_result(message)
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(values["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if values["type"] == "error":
                self.errors.append(json.dumps(values["args"]))
            case "Log.entryAdded" if values["entry"]["level"] == "error":
                self.errors.append(json.dumps(values["entry"]))
            case "Network.requestWillBeSent":
                self.requests.append(values["request"]["url"])

    async def call(self, method: str, **values: Any) -> Any:
        number = next(self._numbers)
        # the answer may come while the message is being written
        coming = self._answers[number] = asyncio.get_running_loop().create_future()
        request = {"id": number, "method": method, "params": values}
        await self._connection.write_message(json.dumps(request))
        answer = await asyncio.wait_for(coming, LIMIT)
        assert "error" not in answer, answer
        return answer["result"]

    async def evaluate(self, code: str) -> Any:
        """The value of a JavaScript expression, which may use ``all(document)``."""
        wrapped = f"(() => {{ {_ALL}; return {code} }})()"
        answer = await self.call("Runtime.evaluate", expression=wrapped, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, code: str) -> None:
        """Wait until a JavaScript expression is true."""
        async with asyncio.timeout(LIMIT):
            while not await self.evaluate(code):
                await asyncio.sleep(0.1)

    async def resize(self, width: int, height: int = 900) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        await self.evaluate("window.dispatchEvent(new Event('resize'))")
        await asyncio.sleep(0.5)

    async def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        code = "document.documentElement.scrollWidth - window.innerWidth"
        return int(await self.evaluate(code))

    async def text(self) -> str:
        """All text of the page, that in shadow roots included."""
        code = "all(document).filter(e => !e.children.length).map(e => e.textContent).join('\\n')"
        return str(await self.evaluate(code))

    async def canvases(self) -> int:
        """Number of charts that are drawn: their canvas has pixels of several colours."""
        return int(
            await self.evaluate(
                """all(document).filter(e => e.tagName === "CANVAS" && e.width > 100)
                .filter(e => { const c = e.getContext("2d"); if (!c) return false
                  const d = c.getImageData(0, 0, e.width, e.height).data
                  return new Set(new Uint32Array(d.buffer)).size > 2 }).length"""
            )
        )

    async def until_drawn(self, charts: int) -> None:
        """Wait until so many charts are drawn."""
        async with asyncio.timeout(LIMIT):
            while await self.canvases() < charts:
                assert not self.errors, self.errors
                await asyncio.sleep(0.1)

    async def hover(self, element: str, across: float, down: float) -> None:
        """Move the mouse to a part of an element's width and height."""
        left, top, width, height = await self.evaluate(
            f"(r => [r.left, r.top, r.width, r.height])(({element}).getBoundingClientRect())"
        )
        for step in (0, 1):
            place = {"x": left + across * width + step, "y": top + down * height}
            await self.call("Input.dispatchMouseEvent", type="mouseMoved", **place)

    async def screenshot(self, path: Path) -> None:
        answer = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))


@asynccontextmanager
async def open_page(address: str, profile: Path, width: int = 1280) -> AsyncIterator[Page]:
    """A page in a browser of its own.

    Parameters
    ----------
    address
        Of the page.
    profile
        An empty folder for the browser.
    width
        Of the window.
    """
    assert CHROMIUM is not None
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
               "--disable-background-networking", "--disable-dev-shm-usage", "--no-first-run",
               f"--user-data-dir={profile}", f"--window-size={width},900")  # fmt: skip
    process = subprocess.Popen(
        [CHROMIUM, *options, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        port = await _port(profile / "DevToolsActivePort", process)
        target = await asyncio.to_thread(_target, port)
        connection = await websocket_connect(target, max_message_size=1 << 28)
        page = Page(connection)
        listener = asyncio.create_task(page.listen())
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.call(f"{domain}.enable")
        await page.resize(width)
        await page.call("Page.navigate", url=address)
        await page.until("document.readyState === 'complete'")
        yield page
        connection.close()
        await listener
    finally:
        process.terminate()
        process.wait(LIMIT)


async def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    async with asyncio.timeout(LIMIT):
        while not (file.exists() and file.read_text().strip()):
            assert process.poll() is None, "the browser has ended"
            await asyncio.sleep(0.05)
    return int(file.read_text().split()[0])


def _target(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=LIMIT) as answer:
        targets = json.load(answer)
    return str(next(each["webSocketDebuggerUrl"] for each in targets if each["type"] == "page"))
