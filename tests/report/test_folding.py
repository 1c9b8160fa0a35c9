"""Repeated structure of an expression is drawn once."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile.report.explanation import Explanation
from dasktile.report.folding import Fold, fold


def members(folds: list[Fold]) -> list[tuple[int, ...]]:
    return [each.members for each in folds]


def test_what_does_not_repeat_is_not_folded() -> None:
    inputs = [(), (0,), (1,), (0, 2)]
    folds = fold("abcd", inputs)
    assert members(folds) == [(0,), (1,), (2,), (3,)]
    assert [each.inputs for each in folds] == inputs


def test_siblings_are_one_box() -> None:
    # x is cut into ten parts, each is reduced, and all are joined
    kinds = ["x", *(["part", "sum"] * 10), "join"]
    inputs: list[tuple[int, ...]] = [()]
    for part in range(1, 21, 2):
        inputs += [(0,), (part,)]
    inputs.append(tuple(range(2, 21, 2)))
    folds = fold(kinds, inputs)
    assert members(folds) == [(0,), tuple(range(1, 21, 2)), tuple(range(2, 21, 2)), (21,)]
    assert [each.inputs for each in folds] == [(), (0,), (1,), (2,)]


def test_steps_of_a_loop_are_one_section() -> None:
    kinds, inputs = ["data", "w"], [(), ()]
    last = 1
    for _ in range(30):
        first = len(kinds)
        kinds += ["product", "update"]
        inputs += [(0, last), (last, first)]
        last = first + 1
    folds = fold(kinds, inputs)
    assert members(folds) == [(0,), (1,), tuple(range(2, 62, 2)), tuple(range(3, 62, 2))]
    # the edge from one step to the next leads upwards, and is not drawn
    assert [each.inputs for each in folds] == [(), (), (0, 1), (1, 2)]


def test_a_chain_of_one_operation_is_one_box() -> None:
    folds = fold(["x", *["add"] * 50], [(), *((number,) for number in range(50))])
    assert members(folds) == [(0,), tuple(range(1, 51))]


def descent(steps: int) -> Explanation:
    rng = np.random.default_rng(0)
    x = da.from_array(rng.random((4000, 20)), chunks=(500, 20))
    y = da.from_array(rng.random(4000), chunks=500)
    w = da.zeros(20, chunks=20)
    for _ in range(steps):
        w = w - 0.1 * (x.T @ (1 / (1 + da.exp(-(x @ w))) - y))
    return dasktile.explain(w, workers=4)


def titles(path: Path) -> list[str]:
    texts = ET.parse(path).getroot().iter("{http://www.w3.org/2000/svg}text")
    return ["".join(text.itertext()) for text in texts if text.get("class") == "title"]


def test_a_picture_of_many_steps(tmp_path: Path) -> None:
    explanation = descent(12)
    assert len(explanation.nodes) > 100
    folded = titles(explanation.visualize(tmp_path / "folded.svg"))
    every = titles(explanation.visualize(tmp_path / "every.svg", fold=False))
    assert len(every) == len(explanation.nodes) and len(folded) < 40
    assert any(title.endswith(("x 11", "x 12")) for title in folded)
    assert len(titles(descent(1).visualize(tmp_path / "one.svg"))) == len(descent(1).nodes)


def test_tiles_have_the_colours_of_their_workers(tmp_path: Path) -> None:
    x = da.from_array(np.ones((800, 600)), chunks=(800, 60))
    explanation = dasktile.explain(x.sum(axis=1), workers=4)
    node = explanation.nodes[0]
    workers = {
        sum(axis[number] for axis, number in zip(node.homes, block, strict=True))
        for block in np.ndindex(*map(len, node.chunks_after))
    }
    assert workers == {0, 1, 2, 3}
    text = explanation.visualize(tmp_path / "x.svg").read_text(encoding="utf-8")
    assert "tiles on worker" in text and "#0072b2" in text and "prefers-color-scheme" in text


@pytest.mark.parametrize("workers", [1, 3, 8, 64])
def test_homes_are_workers(workers: int) -> None:
    a = da.from_array(np.ones((640, 640)), chunks=(64, 640))
    for node in dasktile.explain(a @ a.T + a.sum(axis=0), workers=workers).nodes:
        if node.homes:
            assert [len(axis) for axis in node.homes] == [len(cuts) for cuts in node.chunks_after]
            assert 0 <= sum(map(max, node.homes)) < workers
