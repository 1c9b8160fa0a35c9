"""The look at the built site finds what is wrong with a page."""

from __future__ import annotations

import asyncio
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from tests.browser import needs_browser

SCRIPT = Path(__file__).parents[2] / "ci" / "look_at_site.py"

THEME = """<!doctype html><script>document.documentElement.dataset.theme =
  matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"</script>"""

TABLE = """<div class="cell_output" style="width: 850px; overflow-x: auto"><div class="dasktile">
<table style="width: 1000px; min-width: 1000px"><tr><td>x</td></tr></table></div></div>"""


def script() -> ModuleType:
    spec = spec_from_file_location("look_at_site", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **pages: str) -> list[str]:
    for name, body in pages.items():
        (tmp_path / f"{name}.html").write_text(body, encoding="utf-8")
    module = script()
    monkeypatch.setattr(module, "PAGES", tuple(pages))
    found: list[str] = asyncio.run(module.look(tmp_path, None))
    return found


@needs_browser
def test_problems_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = problems(
        tmp_path,
        monkeypatch,
        good=f"{THEME}<p>text</p>",
        bad="<!doctype html><html data-theme='light'><script>console.error('no')</script>" + TABLE,
    )
    assert not any(each.startswith("good") for each in found)
    wide = [each for each in found if "wider than the window" in each]
    assert [each.partition(":")[0] for each in wide] == [
        f"bad, {scheme}, 800 pixels" for scheme in ("light", "dark")
    ]
    assert "bad, light, 1280 pixels: 1 tables are cut at the right" in found
    assert "bad is light where dark is preferred" in found
    assert sum('"no"' in each for each in found) == 2
