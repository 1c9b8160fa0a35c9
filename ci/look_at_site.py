"""Looks at pages of the built site in a browser: nothing overflows, and the console has no errors.

python ci/look_at_site.py SITE [--pictures FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.browser import CHROMIUM, open_page

PAGES = ("index", "getting-started", "how-to/read-explain", "gallery/climatology", "api")
SCHEMES = ("light", "dark")
WIDTHS = (1280, 800)

_WINDOW = {"height": 900, "deviceScaleFactor": 1, "mobile": False}

#: Pixels by which a page is wider than the window without its scroll bar.
_EXCESS = "(e => e.scrollWidth - e.clientWidth)(document.documentElement)"

#: Outputs with a table that is cut at the right, as `explain`'s would be in a narrow column.
_CUT = """all(document).filter(e => e.matches('.cell_output')
  && [...e.querySelectorAll('.dasktile table')].some(t => t.scrollWidth > e.clientWidth)).length"""


async def look(site: Path, pictures: Path | None) -> list[str]:
    """What is wrong with the pages."""
    problems: list[str] = []
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        async with open_page("about:blank", Path(profile)) as browser:
            for page in PAGES:
                for scheme in SCHEMES:
                    feature = {"name": "prefers-color-scheme", "value": scheme}
                    await browser.call("Emulation.setEmulatedMedia", features=[feature])
                    address = (site / f"{page}.html").resolve().as_uri()
                    await browser.call("Page.navigate", url=address)
                    await browser.until(
                        f"location.href === '{address}' && document.readyState === 'complete'"
                    )
                    theme = await browser.evaluate("document.documentElement.dataset.theme")
                    if theme != scheme:
                        problems.append(f"{page} is {theme} where {scheme} is preferred")
                    for width in WIDTHS:
                        await browser.call(
                            "Emulation.setDeviceMetricsOverride", width=width, **_WINDOW
                        )
                        where = f"{page}, {scheme}, {width} pixels"
                        if (excess := int(await browser.evaluate(_EXCESS))) > 0:
                            problems.append(f"{where}: {excess} pixels wider than the window")
                        if width == max(WIDTHS) and (cut := await browser.evaluate(_CUT)):
                            problems.append(f"{where}: {cut} tables are cut at the right")
                        if pictures is not None:
                            name = f"{page.replace('/', '-')}-{scheme}-{width}.png"
                            await browser.screenshot(pictures / name)
                    problems += [f"{page}, {scheme}: {error}" for error in browser.errors]
                    browser.errors.clear()
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path)
    parser.add_argument("--pictures", type=Path, help="folder for a picture of each page")
    options = parser.parse_args()
    if CHROMIUM is None:
        print("no chromium: the pages of the site are not looked at")
        return 0
    if options.pictures is not None:
        options.pictures.mkdir(parents=True, exist_ok=True)
    problems = asyncio.run(look(options.site, options.pictures))
    for problem in problems:
        print(problem)
    print(f"{len(PAGES)} pages of the site have {len(problems)} problems in a browser")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
