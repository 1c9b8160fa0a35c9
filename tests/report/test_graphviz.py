"""Pictures that the program ``dot`` places; a recorded output stands for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile.report import graphviz
from dasktile.report.explanation import Explanation

SIZES = [(250, 76), (250, 60), (250, 76)]
#: The last box reads the first one twice.
INPUTS = [(), (0,), (0, 1, 0)]

#: What Graphviz 2.43 prints for them.
RECORDED = """\
graph 1 5.4028 4.5
node 0 3.6667 3.9722 3.4722 1.0556 "" solid box black lightgrey
node 1 1.7361 2.1389 3.4722 0.83333 "" solid box black lightgrey
node 2 3.6667 0.52778 3.4722 1.0556 "" solid box black lightgrey
edge 0 1 4 2.9 3.44 2.6 3.2 2.4 2.9 2.1694 2.5556 solid black
edge 0 2 4 3.6 3.44 3.5 2.5 3.5 2 3.6 1.0556 solid black
edge 0 2 4 3.8 3.44 3.9 2.5 3.9 2 3.8 1.0556 solid black
edge 1 2 4 2.1694 1.72 2.4495 1.5 2.8 1.3 3.1 1.0556 solid black
stop
"""


def test_a_recorded_layout() -> None:
    layout = graphviz.parse(RECORDED, SIZES, INPUTS)
    assert (layout.width, layout.height) == (390, 324)
    # the y axis points downwards
    assert [(round(x), round(y)) for x, y in layout.places] == [(139, 0), (0, 140), (139, 248)]
    assert [len(route) for route in layout.routes] == [4] * 4
    ends = [(round(route[0][1]), round(route[-1][1])) for route in layout.routes]
    assert ends == [(76, 140), (76, 248), (200, 248), (76, 248)]
    # edges between the same boxes are different ones
    assert layout.routes[1] != layout.routes[3]


@pytest.mark.parametrize("text", ["", "graph 1 2 3\nstop\n", "node 0 x y\n", RECORDED[:-200]])
def test_other_output_is_an_error(text: str) -> None:
    with pytest.raises((KeyError, IndexError, ValueError)):
        graphviz.parse(text, SIZES, INPUTS)


@pytest.mark.skipif(not graphviz.is_installed(), reason="there is no dot")
def test_boxes_are_apart() -> None:
    layout = graphviz.place(SIZES, INPUTS, 30, 64)
    (_, top), (_, middle), (_, bottom) = layout.places
    assert round(middle - top) == 76 + 64 and round(bottom - middle) == 60 + 64
    assert len(layout.routes) == 4


def explanation() -> Explanation:
    a = da.from_array(np.ones((400, 300)), chunks=(50, 300))
    return dasktile.explain(a - a.mean(axis=0), workers=2)


def put(folder: Path, lines: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program ``dot`` that is found first."""
    if sys.platform == "win32":
        pytest.skip("the program is a shell script")
    program = folder / "dot"
    program.write_text(f"#!/bin/sh\ncat > '{folder}/document'\n{lines}\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_a_picture_uses_dot_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [node.inputs for node in explanation().nodes] == [(), (0,), (0, 1)]
    own = explanation().visualize(tmp_path / "own.svg", layout="own").read_text("utf-8")
    recorded = tmp_path / "recorded"
    recorded.write_text(RECORDED, encoding="utf-8")
    put(tmp_path, f"cat '{recorded}'", monkeypatch)
    placed = explanation().visualize(tmp_path / "dot.svg").read_text("utf-8")
    assert "0 -> 2" in (tmp_path / "document").read_text("utf-8")
    assert 'd="M208.8 76.3C187.2' in placed and 'd="M208.8 76.3C187.2' not in own
    assert placed.count("<text") == own.count("<text")
    assert placed.count("<path") == own.count("<path")


def test_a_failing_dot_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "echo no >&2; exit 1", monkeypatch)
    own = explanation().visualize(tmp_path / "own.svg", layout="own").read_text("utf-8")
    assert explanation().visualize(tmp_path / "auto.svg").read_text("utf-8") == own
    with pytest.raises(OSError, match="could not place 3 boxes"):
        explanation().visualize(tmp_path / "dot.svg", layout="dot")


def test_without_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert explanation().visualize(tmp_path / "auto.svg").exists()
    with pytest.raises(FileNotFoundError, match="needs the program dot of Graphviz"):
        explanation().visualize(tmp_path / "dot.svg", layout="dot")


def test_layouts_have_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"layout must be .* got 'neato'"):
        explanation().visualize(tmp_path / "x.svg", layout="neato")
