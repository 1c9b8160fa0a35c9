"""The benchmark of operations that keep their chunks."""

from __future__ import annotations

import pytest

from benchmarks import walls


def test_a_simulated_wall(capsys: pytest.CaptureFixture[str]) -> None:
    assert walls.main(["--names", "argtopk"]) == 0
    assert "argtopk" in capsys.readouterr().out
