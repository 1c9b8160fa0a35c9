"""Tilings by hand have the given cuts, and the best choice for all else."""

from __future__ import annotations

import pytest

from benchmarks.papers.algorithms.forced import along, forced, sqrt_slicing, square
from benchmarks.papers.transformers import attention, chain, classifier, llama_block
from dasktile.tiling import tile
from tests.programs import Builder
from tests.programs import chain as small_chain


def _cut(plan, name):
    """The labels of a node that the mesh cuts."""
    nodes = plan.tiled.program.nodes
    index_of_node = next(index for index, node in enumerate(nodes) if node.name == name)
    return set(plan.tiled.tilings[index_of_node].work_at.by_axis(len(plan.tiled.mesh)))


def test_named_axes_are_cut_by_the_named_axes_of_the_mesh():
    build = Builder()
    a, b = build.source((400, 400), (100, 100)), build.source((400, 400), (100, 100))
    c = build.matmul(a, b)
    program = build.program()
    for cuts, mesh in (
        ({(c, 0): (0,), (c, 1): (1,)}, (0, 2)),
        ({(c, 0): (1,), (c, 1): (0,)}, (2, 0)),
        ({(c, 0): (0, 1)}, (0, 0)),
        ({("matmul-2", 1): (0, 1)}, (2, 2)),
    ):
        plan = tile(program, workers=4, method=forced(cuts), force=True)
        assert plan.tiled.tilings[c].work_at.by_axis(len(mesh)) == mesh
        assert plan.method == "by_hand" and plan.lower_bound == 0


def test_nodes_without_cuts_get_the_best_tiling():
    program = small_chain(True)
    free = tile(program, workers=4, method=forced({}), force=True)
    assert free.after.bytes == tile(program, workers=4, force=True).after.bytes


def test_errors_list_the_valid_names():
    program = small_chain(False)
    for cuts, message in (
        ({("nothing", 0): (0,)}, "no node is named 'nothing'"),
        ({(99, 0): (0,)}, "node 99 does not exist: the program has 9 nodes"),
        ({(5, 2): (0,)}, "has no axis 2"),
        ({(5, 0): (7,)}, "axis 7 of the mesh"),
    ):
        with pytest.raises(ValueError, match=message):
            tile(program, workers=4, method=forced(cuts))
    with pytest.raises(ValueError, match="no node is named"):
        tile(program, workers=4, method=along(("nothing", 0)))
    with pytest.raises(ValueError, match="cannot be cut"):
        build = Builder()
        build.fold(build.source((10, 10), (5, 5)), (0,), keepdims=True)
        tile(build.program(), workers=4, method=along((1, 0)))


def test_an_axis_is_cut_in_all_operations():
    program = attention(4, 256, 4, 16)
    for axis, letter in ((0, 0), (2, 2)):
        plan = tile(program, workers=4, method=along(("q", axis)), force=True)
        for name in ("scores", "softmax", "attended"):
            assert _cut(plan, name) == {letter}
        assert plan.after.bytes == 0
    # cut along the sequence, keys and values are sent to all workers
    plan = tile(program, workers=4, method=along(("q", 1)), force=True)
    assert plan.after.bytes == 3 * 2 * program.nodes[0].nbytes


def test_a_second_axis_is_used_where_the_first_is_missing():
    program = llama_block(4, 64, hidden=64, heads=4, ffn=256, placed=True)
    plan = tile(program, workers=4, method=along(("q", 2), ("gate", 2)), force=True)
    assert _cut(plan, "scores") == {2}
    assert _cut(plan, "gate") == {2}
    assert _cut(plan, "mixed") == {3}  # this node sums over heads
    by_batch = tile(program, workers=4, method=along(("x", 0)), force=True)
    assert by_batch.after.bytes == 0


def test_an_axis_that_cannot_be_cut_is_replaced():
    program = attention(1, 256, 4, 16)
    plan = tile(program, workers=4, method=along(("q", 0)), force=True)
    assert plan.after.balance <= 1.1


def test_data_parallel_training_sums_and_sends_the_weights():
    program = classifier(64, 256, 128, 96)
    plan = tile(program, workers=4, method=along(("x", 0)), force=True)
    weights = sum(node.nbytes for node in program.nodes if node.name in ("w1", "w2"))
    assert plan.after.bytes == pytest.approx(2 * 3 * weights, rel=0.01)


def test_square_slicing():
    assert [square(workers) for workers in (1, 2, 4, 6, 12, 16)] == [
        (1,), (2,), (2, 2), (3, 2), (4, 3), (4, 4)
    ]  # fmt: skip
    program = chain(False, 400)
    plan = tile(program, workers=4, method=sqrt_slicing(program), force=True)
    for node, tiling in zip(program.nodes, plan.tiled.tilings, strict=True):
        assert tiling.work_at.by_axis(2) == (node.out[0].label, node.out[1].label), node.name
    # each of three products sends rows of A and columns of B to one other worker each
    assert plan.after.bytes == 3 * 2 * 400 * 400 * 8
