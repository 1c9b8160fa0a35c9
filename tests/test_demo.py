from __future__ import annotations

import json

import pytest

from dasktile.__main__ import main
from dasktile.demo import Measured, Result, report, workloads


def test_demo_computes_the_same_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--workers", "2", "--size", "0.1", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert len(results) == len(workloads()) >= 3
    for result in results:
        assert result["same"], result
        assert result["stock"]["tasks"] > 0 and result["tiled"]["tasks"] > 0
    assert any(result["stock"]["moved"] > 0 for result in results)


def test_report_says_when_values_differ(capsys: pytest.CaptureFixture[str]) -> None:
    report([Result("a + b", Measured(10, 2, 3, 1.0), Measured(5, 1, 3, 0.5), same=False)])
    out = capsys.readouterr().out
    assert "DIFFERENT" in out and "a + b" in out


@pytest.mark.parametrize("arguments", [["--workers", "0"], ["--size", "0"], ["--size", "nan"]])
def test_invalid_options_are_rejected(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["demo", *arguments])
    assert stopped.value.code == 2
    assert arguments[0] in capsys.readouterr().err
