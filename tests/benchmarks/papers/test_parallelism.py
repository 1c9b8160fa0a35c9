"""Data, model and hybrid parallelism as restrictions of SoyBean's cuts."""

from __future__ import annotations

import pytest

from benchmarks.papers import networks
from benchmarks.papers import soybean as paper
from benchmarks.papers.algorithms.parallelism import (
    by_modes,
    data_parallel,
    hybrid_parallel,
    model_parallel,
)
from dasktile.tiling import tile
from dasktile.tiling.methods.papers.soybean import k_cuts

BATCH = ("samples", 0)


def _moved(program, workers, method):
    return tile(program, workers=workers, method=method, force=True).after.bytes


def test_data_and_model_parallelism_are_special_cases():
    program = networks.mlp(400, 300, 5, input_gradient=True)
    formula = paper.example()
    data = k_cuts(program, (2, 2, 2, 2), by_modes(program, ("data",) * 4, BATCH))
    assert data.total == pytest.approx(formula["data"])
    for node, forms in zip(program.nodes, data.forms, strict=True):
        if node.name.startswith("x"):
            assert set(forms) == {0}
    free = k_cuts(program, (2, 2, 2, 2))
    modes = ("data", "data", "model", "model")
    mixed = k_cuts(program, (2, 2, 2, 2), by_modes(program, modes, BATCH))
    assert free.total <= mixed.total < data.total


def test_special_cases_move_the_bytes_of_the_formulas():
    program = networks.mlp(400, 300, 5)
    weights, activations = 1.8e6, 2.4e6
    moved_bytes = _moved(program, 8, data_parallel(BATCH))
    assert moved_bytes == pytest.approx(paper.exchanged(weights, 8))
    moved_bytes = _moved(program, 8, model_parallel(BATCH))
    # one of ten exchanges is saved: layers are cut by columns and rows in turn
    assert moved_bytes == pytest.approx(0.9 * paper.exchanged(activations, 8))


def test_hybrid_cuts_the_batch_first():
    program = networks.mlp(400, 300, 2)
    moved_bytes = [_moved(program, 4, hybrid_parallel(BATCH, cuts)) for cuts in (0, 1, 2)]
    assert moved_bytes[0] == _moved(program, 4, model_parallel(BATCH))
    assert moved_bytes[2] == _moved(program, 4, data_parallel(BATCH))


def test_invalid_cuts_are_rejected():
    program = networks.mlp(8, 8, 1)
    with pytest.raises(ValueError, match=r"'some'.*'any', 'data', 'model'"):
        by_modes(program, ("some",))
    with pytest.raises(ValueError, match="batch is None"):
        by_modes(program, ("data",))
    with pytest.raises(ValueError, match="'nothing'"):
        by_modes(program, ("data",), ("nothing", 0))
    with pytest.raises(ValueError, match="axis 2"):
        by_modes(program, ("data",), ("samples", 2))
