"""The text, the numbers and the files of the counts of a cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dasktile.report.cluster_counts import LayerCounts, Metrics, WorkerCounts

HASH = "0123456789abcdef" * 2


def test_as_text_and_numbers() -> None:
    name = f"matmul-dasktile-2x2-{HASH}"
    measured = Metrics(
        {"tcp://<1>": WorkerCounts(1024, 3, 2, 4096), "tcp://2": WorkerCounts()},
        {name: LayerCounts(1024, 2048, 2, 4096)},
        placed=2,
        errors=1,
        missing={"tcp://3": "without the plugin"},
    )
    assert str(measured).splitlines() == [
        "2 workers received 1.0 KiB from each other, predicted 2.0 KiB; 3 tasks,"
        " dasktile chose workers for 2",
        "errors inside dasktile: 1, see the logs",
        "not counted: 1 of 3 workers, without the plugin",
        "",
        "layer   predicted  received  tiles     held",
        "-------------------------------------------",
        "matmul    2.0 KiB   1.0 KiB      2  4.0 KiB",
        "",
        "worker     tasks  received  tiles     held",
        "------------------------------------------",
        "tcp://<1>      3   1.0 KiB      2  4.0 KiB",
        "tcp://2        0       0 B      0      0 B",
    ]
    assert "tcp://&lt;1&gt;" in measured._repr_html_()
    assert json.loads(json.dumps(measured.to_dict()))["layers"][name]["predicted"] == 2048
    many = Metrics({}, {f"layer{number}": LayerCounts(number) for number in range(40)})
    assert str(many).endswith("and 10 more")


def test_layers_of_a_loop_are_one_row_each_operation() -> None:
    steps = {
        f"{operation}-dasktile-2x2-{number:032x}": LayerCounts(10, 20, 1, 5)
        for number in range(20)
        for operation in ("matmul", "sub")
    }
    text = str(Metrics({}, steps | {f"mean-{HASH}": LayerCounts(1, 2)}))
    rows = [line.split("  ") for line in text.splitlines()]
    assert [[cell.strip() for cell in row if cell] for row in rows[4:6]] == [
        ["matmul, 20 layers", "400 B", "200 B", "20", "100 B"],
        ["sub, 20 layers", "400 B", "200 B", "20", "100 B"],
    ]
    assert text.count("layers") == 2 and "mean  " in text and "more" not in text
    few = str(Metrics({}, dict(list(steps.items())[:30])))
    assert "matmul 15" in few and "layers" not in few


def test_layers_of_no_row_are_told_apart() -> None:
    counts = Metrics({}, {"a": LayerCounts(1), "b": LayerCounts(2)}, rows={"a": "0 matmul"})
    table = str(counts).split("\n\n")[1].splitlines()
    assert [line.split("  ")[0] for line in table if line[0] in "0o"] == ["0 matmul", "other: b"]


def test_an_explanation_of_other_arrays_is_said_to_be_one() -> None:
    counts = Metrics({}, {"a": LayerCounts(1)}, is_explained=True)
    assert "no layer that ran belongs to a row of the explanation" in str(counts)
    assert "belongs to a row" not in str(replace(counts, rows={"a": "0 sum"}))


def test_counts_are_saved(tmp_path: Path) -> None:
    measured = Metrics({"tcp://1": WorkerCounts(1024, 3, 2, 4096)}, {"x": LayerCounts(1024, 2048)})
    page = measured.save(tmp_path / "x.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and measured._repr_html_() in page
    numbers = measured.save(tmp_path / "x.JSON").read_text(encoding="utf-8")
    assert json.loads(numbers) == measured.to_dict()
    text = measured.save(tmp_path / "x.txt").read_text(encoding="utf-8")
    assert text == f"{measured}\n"
    with pytest.raises(ValueError, match=r"must end in \.html, \.json or \.txt; got .*x\.csv"):
        measured.save(tmp_path / "x.csv")
    with pytest.raises(OSError, match=r"x\.txt"):
        measured.save(tmp_path / "missing" / "x.txt")
