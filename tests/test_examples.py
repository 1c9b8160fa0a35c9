"""The examples run and print the expected results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("script", "arguments", "expected"),
    [
        ("regrid_from_zarr.py", ["--months", "48"], "same values: True"),
        ("logistic_regression.py", ["--rows", "20000"], "true weights: 0.9"),
        ("attention.py", ["--length", "64"], "as NumPy: True"),
        ("attention_einsum.py", ["--length", "64"], "as NumPy: True"),
    ],
)
def test_example(script, arguments, expected):
    run = subprocess.run(
        [sys.executable, "-W", "ignore", str(EXAMPLES / script), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert expected in run.stdout
