"""The examples run and print the expected results."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
README = EXAMPLES.parent / "README.md"


@pytest.mark.parametrize(
    ("script", "arguments", "expected"),
    [
        ("regrid_from_zarr.py", ["--months", "48"], "same values: True"),
        ("logistic_regression.py", ["--rows", "20000"], "true weights: 0.9"),
        ("attention.py", ["--length", "64"], "as NumPy: True"),
    ],
)
def test_example(
    script: str,
    arguments: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    assert expected in capsys.readouterr().out


def test_an_example_as_a_program() -> None:
    script = EXAMPLES / "attention_einsum.py"
    command = [sys.executable, "-W", "ignore", str(script), "--length", "64"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "as NumPy: True" in ran.stdout


def test_readme() -> None:
    """The blocks that need no cluster run one after the other, and print what is shown."""
    text = README.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```(?:\n\nprints\n\n```\n(.*?)```)?", text, re.S)
    assert len(blocks) == 5
    names: dict[str, Any] = {"__name__": "readme"}
    shown = 0
    for code, output in blocks:
        if "Client(" in code:
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        assert printed.getvalue() == output
        shown += bool(output)
    assert shown == 2
