"""The rules of programs and tiled programs: each finds its faults, and plans have none."""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dasktile
from dasktile import planning
from dasktile.capture.highlevel import capture
from dasktile.ir import (
    AxisMap,
    Edge,
    Follow,
    Groups,
    Kind,
    Label,
    Node,
    Picks,
    Program,
    Role,
    Sharding,
    Share,
    TiledProgram,
    Tiling,
    verify,
)
from dasktile.ir.verify import VerificationError, verify_program, verify_tiled
from dasktile.schedule.placement import Placement
from dasktile.tiling import MemoryLimitError, Settings, tile
from tests.expressions import Expression, expressions, outputs
from tests.programs import Builder
from tests.support import random_tiling
from tests.test_same_answers import examples

#: Nodes of :func:`legal`.
X, Y, PRODUCT, SPECTRUM, HELD, SUM, JOINED, PINNED = range(8)

ONE, ROWS, COLUMNS = Share(), Share((0,), (1, 1)), Share((1,), (1, 1))


def by(*shares: Share, replicated: tuple[int, ...] = ()) -> Sharding:
    """The sharding in which the mesh divides dimensions in these ways."""
    return Sharding(shares, replicated)


def legal() -> TiledProgram:
    """A program with every kind of placement, on a mesh of 2 x 2 workers."""
    build = Builder()
    x = build.source((8, 12), (4, 6), stored=(4, 6))
    y = build.source((12, 8), (6, 8))
    product = build.matmul(x, y)
    spectrum = build.whole(product, 1)
    held = build.source((8, 8), (4, 8), pinned=True)
    build.nodes[held] = replace(build.nodes[held], homes=((3,), (1,)))
    build.elementwise(spectrum, held)
    maps = AxisMap(0), AxisMap(1)
    joined = build.view(product, maps, (16, 8))
    second = Edge(spectrum, (AxisMap(0, start=-8), AxisMap(1)))
    build.nodes[joined] = replace(build.nodes[joined], edges=(*build.nodes[joined].edges, second))
    build.nodes.append(
        replace(build.nodes[held], name="pinned", homes=None, resident=False,
                edges=(Edge(product, maps, ((4, 4), (8,))),))
    )  # fmt: skip
    program = build.program(SUM, JOINED, PINNED)
    follow = Follow(program.nodes[HELD].name, HELD, (0, None))
    half, sixes, whole = (4, 4), (6, 6), (8,)
    rows, columns = by(ROWS, ONE), by(COLUMNS, ONE)
    tilings = (
        Tiling((half, sixes), (half, sixes), by(ROWS, COLUMNS), by(ROWS, COLUMNS)),
        Tiling((sixes, whole), (sixes, whole), columns, columns),
        Tiling((half, sixes, whole), (half, half), by(ROWS, COLUMNS, ONE), by(ROWS, COLUMNS)),
        Tiling((half, whole), (half, whole), rows, rows),
        Tiling((half, whole), (half, whole), follow, follow),
        Tiling((half, whole), (half, whole), follow, follow),
        Tiling(((8, 8), whole), ((8, 8), whole), rows, rows),
        Tiling((half, whole), (half, whole), rows, rows),
    )
    return TiledProgram(
        program,
        (2, 2),
        tilings,
        kept={PRODUCT: (half, whole), Y: (sixes, half)},
        kept_at={PRODUCT: rows, Y: by(ROWS, ONE, replicated=(1,))},
    )


def with_node(tiled: TiledProgram, index: int, **changes: Any) -> TiledProgram:
    nodes = list(tiled.program.nodes)
    nodes[index] = replace(nodes[index], **changes)
    return replace(tiled, program=Program(tuple(nodes), tiled.program.outputs))


def with_edge(tiled: TiledProgram, index: int, number: int, **changes: Any) -> TiledProgram:
    edges = list(tiled.program.nodes[index].edges)
    edges[number] = replace(edges[number], **changes)
    return with_node(tiled, index, edges=tuple(edges))


def with_label(tiled: TiledProgram, index: int, number: int, **changes: Any) -> TiledProgram:
    labels = list(tiled.program.nodes[index].labels)
    labels[number] = replace(labels[number], **changes)
    return with_node(tiled, index, labels=tuple(labels))


def with_tiling(tiled: TiledProgram, index: int, **changes: Any) -> TiledProgram:
    tilings = list(tiled.tilings)
    tilings[index] = replace(tilings[index], **changes)
    return replace(tiled, tilings=tuple(tilings))


#: A rule, the node that breaks it (None for the whole), a part of the message, how it is broken
#: and with which arguments.
Case = tuple[str, int | None, str, Callable[..., TiledProgram], tuple[Any, ...], dict[str, Any]]


def case(
    rule: str, node: int | None, words: str, change: Callable[..., TiledProgram], *arguments: Any,
    **changes: Any,
) -> Case:  # fmt: skip
    return rule, node, words, change, arguments, changes


LEADER = legal().program.nodes[HELD].name

PROGRAM_CASES = [
    case("inputs", PRODUCT, "reads node 2", with_edge, 1, producer=PRODUCT),
    case("inputs", PRODUCT, "reads node 3", with_edge, 1, producer=SPECTRUM),
    case("inputs", PRODUCT, "has 1 maps", with_edge, 0, axes=(AxisMap(0),)),
    case("inputs", PINNED, "of shape (8, 8)", with_edge, 0, chunks=((4, 5), (8,))),
    case("inputs", PRODUCT, "label 9", with_edge, 0, axes=(AxisMap(0), AxisMap(9))),
    case("inputs", JOINED, "label -1", with_edge, 0, within=(-1, 0, 1)),
    case("inputs", JOINED, "[8, 17)", with_edge, 1, within=(0, 8, 17)),
    case("sizes", X, "sum to 8", with_label, 0, cuts=(4, 5)),
    case("sizes", X, "sum to 8", with_label, 0, cuts=(9, -1)),
    case("sizes", X, "chunks ((4, 4), (6, 7))", with_node, chunks=((4, 4), (6, 7))),
    case("sizes", X, "stored chunks", with_node, stored=((8,),)),
    case("output", SPECTRUM, "1 output maps", with_node, out=(AxisMap(0),)),
    case("output", SPECTRUM, "label 2", with_node, out=(AxisMap(0), AxisMap(2))),
    case("output", SPECTRUM, "start=1", with_node, out=(AxisMap(0), AxisMap(1, start=1))),
    case("output", SPECTRUM, "to cover 8", with_node, out=(AxisMap(0), AxisMap(1, 0, 2, 2))),
    case("roles", SUM, "no reduction in a map", with_label, 0, role=Role.REDUCE),
    case("roles", PRODUCT, "along an output axis", with_label, 0, role=Role.REDUCE),
    case("roles", SUM, "no scan in a map", with_label, 0, role=Role.SCAN),
    case("roles", PRODUCT, "along no output axis", with_label, 1, role=Role.FREE),
    case("windows", PINNED, "[(3, 4), (8, 8)]; expected [(4, 4), (8, 8)]", with_edge, 0,
         axes=(AxisMap(0, parts=((3, 4), (8, 8))), AxisMap(1))),
    case("windows", PRODUCT, "windows of 0", with_edge, 0, axes=(AxisMap(0), AxisMap(1, 0, 1, 0))),
    case("windows", PRODUCT, "label 1 has 12 iterations; expected 8", with_edge, 0,
         axes=(AxisMap(1), AxisMap(0))),
    case("windows", SPECTRUM, "its size of 8", with_edge, 0, axes=(AxisMap(0, 1), AxisMap(1))),
    case("windows", SPECTRUM, "its size of 8", with_edge, 0, axes=(AxisMap(0, 0, 2), AxisMap(1))),
    case("windows", SPECTRUM, "its size of 8", with_edge, 0, axes=(AxisMap(0, 6, -1), AxisMap(1))),
    case("windows", JOINED, "its size of 8", with_edge, 0, within=(0, 0, 9)),
    case("windows", SPECTRUM, "8 sizes up to 9; expected 8 up to 8", with_edge, 0,
         axes=(AxisMap(0, 0, 2, 2, (*range(8), 9)), AxisMap(1))),
    case("windows", SPECTRUM, "3 sizes up to 8; expected 8 up to 8", with_edge, 0,
         axes=(AxisMap(0, 0, 4, 4, (0, 3, 4, 8)), AxisMap(1))),
    case("windows", SPECTRUM, "of 0 to 2", with_edge, 0,
         axes=(AxisMap(0, 0, 2, 2, (0, 2, 2, 3, 4, 5, 6, 7, 8)), AxisMap(1))),
    case("windows", JOINED, "of label 0", with_edge, 0, axes=(AxisMap(0, 99), AxisMap(1))),
    case("windows", JOINED, "reads one array", with_edge, 1, axes=(AxisMap(0, -7), AxisMap(1))),
    case("windows", JOINED, "reads one array", with_edge, 0, within=(0, 0, 7)),
    case("windows", JOINED, "reads one array", with_edge, 1, producer=X,
         axes=(AxisMap(None), AxisMap(1))),
    case("windows", PINNED, "expected (3, 5)", with_edge, 0, chunks=((3, 5), (8,))),
    case("persisted", HELD, "expected 2", with_node, homes=((3,),)),
    case("persisted", PINNED, "reads 1 arrays", with_node, homes=((3,), (1,))),
    case("runs", PRODUCT, "reduction along the last label", with_node, groups=Groups(1, ((0, 8),))),
    case("runs", SPECTRUM, "runs that end at 3", with_edge, 0, picks=Picks(0, 0, ((1, 3),))),
    case("runs", SPECTRUM, "takes along axis 5", with_edge, 0, picks=Picks(5, 0, ((1, 3),))),
    case("names", None, "expected others", with_node, name=legal().program.nodes[X].name),
]  # fmt: skip

TILED_CASES = [
    case("cuts", X, "1 labels are cut", with_tiling, cuts=((4, 4),)),
    case("cuts", X, "sum to 8", with_tiling, cuts=((4, 3), (6, 6))),
    case("cuts", X, "sum to 8", with_tiling, cuts=((9, -1), (6, 6))),
    case("cuts", SPECTRUM, "expected one piece", with_tiling, cuts=((4, 4), (4, 4))),
    case("cuts", PINNED, "expected (4, 4)", with_tiling, cuts=((3, 5), (8,))),
    case("chunks", X, "of shape (8, 12)", with_tiling, chunks=((4, 4), (6, 5))),
    case("chunks", PINNED, "unchanged", with_tiling, chunks=((3, 5), (8,))),
    case("chunks", X, "as its label is cut", with_tiling, chunks=((2, 2, 2, 2), (6, 6))),
    case("chunks", PRODUCT, "as its label is cut", with_tiling, chunks=((2, 6), (4, 4))),
    case("work", X, "both or none", with_tiling, held_at=None),
    case("work", X, "every label of 2", with_tiling, work_at=by(ROWS)),
    case("work", X, "one of mesh (2, 2)", with_tiling, work_at=by(ROWS, Share((2,), (1, 1)))),
    case("work", X, "divides one", with_tiling, work_at=by(ROWS, ROWS)),
    case("work", X, "2 runs", with_tiling, work_at=by(ROWS, Share((1,), (2,)))),
    case("work", X, "2 blocks once", with_tiling, work_at=by(ROWS, Share((1,), (1, 0)))),
    case("work", X, "2 blocks once", with_tiling, work_at=by(ROWS, Share((1,), (1, 2)))),
    case("work", X, "2 blocks once", with_tiling, work_at=by(ROWS, Share((1,), (3, -1)))),
    case("work", X, "runs once", with_tiling, work_at=by(ROWS, ONE, replicated=(1,))),
    case("work", SPECTRUM, "whole label 1", with_tiling,
         work_at=by(ROWS, Share((1,), (1, 0)))),
    case("work", PRODUCT, "have 0.0 bytes", with_node, partial=0.0),
    case("work", SUM, "a node of that name", with_tiling, work_at=Follow("other", HELD, (0, None))),
    case("work", SUM, "known places", with_tiling, work_at=Follow("pinned", PINNED, (0, None))),
    case("work", SUM, "one label for each", with_tiling, work_at=Follow(LEADER, HELD, (0,))),
    case("work", SUM, "runs along no label", with_tiling, work_at=Follow(LEADER, HELD, (None, 1))),
    case("work", SUM, "some of 1 along its axis 1", with_tiling,
         work_at=Follow(LEADER, HELD, (1, 0))),
    case("work", SUM, "follow 1 blocks", with_tiling,
         work_at=Follow(LEADER, HELD, (0, 1), ((0,), None))),
    case("work", SUM, "blocks (0, 2)", with_tiling,
         work_at=Follow(LEADER, HELD, (0, 1), ((0, 2), None))),
    case("held", SUM, "follows blocks", with_tiling,
         held_at=Follow(LEADER, HELD, (0, None), ((1, 0), None))),
    case("work", HELD, "some of 4 workers", with_node, homes=((3,), (4,))),
    case("work", SUM, "no block of it is lost", lambda tiled, node, **changes: with_node(
        tiled, HELD, **changes), homes=((3,), ())),
    case("held", X, "every axis of 2", with_tiling, held_at=by(ROWS)),
    case("held", X, "which cut its label", with_tiling, held_at=by(ROWS, ONE)),
    case("held", X, "which cut its label", with_tiling, held_at=by(COLUMNS, ROWS)),
    case("held", PRODUCT, "which cut its label", with_tiling, held_at=by(COLUMNS, ROWS)),
    case("held", Y, "some of [], which cut a reduced label", with_tiling,
         held_at=by(COLUMNS, Share((0,), (1, 0)))),
    case("held", JOINED, "which they make", with_tiling, held_at=by(Share((0,), (2, 0)), ONE)),
    case("held", SUM, "follows an array", with_tiling, held_at=by(ROWS, ONE)),
    case("held", SUM, "as its labels", with_tiling, held_at=Follow(LEADER, HELD, (None, None))),
    case("kept", PRODUCT, "of shape (8, 8)", replace, kept={PRODUCT: ((4, 4), (9,))}, kept_at={}),
    case("kept", PRODUCT, "2 blocks once", replace,
         kept_at={PRODUCT: by(Share((0,), (1, 2)), ONE)}),
    case("replicas", Y, "each once", replace, kept_at={Y: by(ROWS, ONE, replicated=(2,))}),
    case("replicas", Y, "each once", replace, kept_at={Y: by(ROWS, ONE, replicated=(1, 1))}),
    case("kept", Y, "2 blocks once", replace,
         kept_at={Y: by(Share((0,), (1, 0)), ONE, replicated=(1,))}),
    case("replicas", Y, "one of the two", replace, kept_at={Y: by(ROWS, ONE, replicated=(0,))}),
    case("final", JOINED, "of shape (16, 8)", replace,
         final={(JOINED, ((4, 4), (8,))): by(ROWS, ONE)}),
    case("final", JOINED, "2 blocks once", replace,
         final={(JOINED, ((8, 8), (8,))): by(Share((0,), (1, 2)), ONE)}),
    case("tilings", None, "expected 8", replace, tilings=legal().tilings[1:]),
    case("tilings", None, "at least 1 worker", replace, mesh=(2, 0)),
    case("tilings", None, "node 8", replace, kept={8: ((4,),)}, kept_at={}),
    case("tilings", None, "expected kept chunks", replace, kept={}),
]  # fmt: skip


def broken(node: int | None, change: Callable[..., TiledProgram], arguments: Any, changes: Any):
    given = legal()
    if change is replace:
        return replace(given, **changes)
    # a name is not the fault of one node
    return change(given, Y if node is None else node, *arguments, **changes)


def test_a_legal_program_has_no_faults():
    verify_program(legal().program)
    verify_tiled(legal())
    verify_tiled(legal(), memory_limit=10_000)


@pytest.mark.parametrize(("rule", "node", "words", "change", "arguments", "changes"), PROGRAM_CASES)
def test_faults_of_programs(rule, node, words, change, arguments, changes):
    tiled = broken(node, change, arguments, changes)
    with pytest.raises(VerificationError) as raised:
        verify_program(tiled.program)
    check_message(raised.value, rule, node, words)
    with pytest.raises(VerificationError) as raised:
        verify_tiled(tiled)
    check_message(raised.value, rule, node, words)


@pytest.mark.parametrize(("rule", "node", "words", "change", "arguments", "changes"), TILED_CASES)
def test_faults_of_tiled_programs(rule, node, words, change, arguments, changes):
    tiled = broken(node, change, arguments, changes)
    verify_program(tiled.program)
    with pytest.raises(VerificationError) as raised:
        verify_tiled(tiled)
    check_message(raised.value, rule, node, words)


def check_message(error: VerificationError, rule: str, node: int | None, words: str) -> None:
    """The message has the rule, the node, what is wrong and what was expected."""
    assert error.rule == rule
    assert words in error.fault
    assert node is None or error.subject.startswith(
        f"node {node} ({legal().program.nodes[node].op}"
    )
    assert error.subject in str(error)
    assert "expected" in str(error)


def test_outputs_are_nodes():
    program = legal().program
    with pytest.raises(VerificationError, match="output 8 is no node"):
        verify_program(replace(program, outputs=(0, 8)))


def test_every_rule_has_a_case():
    rules = {*verify.PROGRAM_RULES, *verify.TILED_RULES, "names", "tilings"}
    # sizes decide about memory, in a test of their own
    assert rules - {"memory"} == {rule for rule, *_ in PROGRAM_CASES + TILED_CASES}


def test_errors_can_be_sent_to_other_processes():
    error = VerificationError("cuts", "node 1", "expected others")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.rule, copy.subject) == (str(error), "cuts", "node 1")


# --- memory ----------------------------------------------------------------------------


def test_tiles_fit_the_memory_limit():
    # rows of x, all of y, and rows of the product
    need = 8 * (4 * 6 + 6 * 8 + 4 * 8)
    tiles, where = ((4, 4, 4, 4), (8,)), by(Share((0,), (2, 2)), ONE)
    tiled = with_tiling(legal(), JOINED, cuts=tiles, chunks=tiles, work_at=where, held_at=where)
    verify_tiled(tiled, need)
    with pytest.raises(VerificationError, match=rf"node 2 .* {need} bytes; expected at most"):
        verify_tiled(tiled, need - 1)


def test_pinned_and_stored_tiles_may_be_larger_than_the_limit():
    build = Builder()
    build.source((8,), (4,), pinned=True)
    build.source((8,), (4,), stored=(4,))
    program = build.program()
    tiling = Tiling(((8,),), ((8,),))
    tilings = (replace(tiling, cuts=((4, 4),), chunks=((4, 4),)), tiling)
    verify_tiled(TiledProgram(program, (), tilings), 8)


def test_replicas_fit_the_memory_limit():
    build = Builder()
    build.source((1000,), (100,))
    chunks = ((100,) * 10,)
    kept_at = {0: by(ONE, replicated=(0,))}
    tiled = TiledProgram(build.program(), (2,), (Tiling(chunks, chunks),), {0: chunks}, kept_at)
    verify_tiled(tiled, 8000)
    with pytest.raises(VerificationError, match="holds 8000 bytes of a replicated array"):
        verify_tiled(tiled, 7999)


# --- balance ---------------------------------------------------------------------------


def divided(cuts: tuple[int, ...], runs: tuple[int, ...], chunks: tuple[int, ...] = ()) -> None:
    """Verify one array in tiles that one mesh axis divides; `chunks` are stored ones."""
    size = sum(cuts)
    label = Label(size, Role.FREE, (size,))
    node = Node("x", "x", Kind.SOURCE, (label,), (AxisMap(0),), (size,), "f8", 8, ((size,),),
                stored=(chunks,) if chunks else None)  # fmt: skip
    where = by(Share((0,), runs))
    tiling = Tiling((cuts,), (cuts,), where, where)
    verify_tiled(TiledProgram(Program((node,), (0,)), (len(runs),), (tiling,)))


def test_parts_may_be_uneven_by_a_tile_or_a_chunk():
    divided((10,) * 10, (5, 5))
    divided((10,) * 10, (6, 4))
    divided((1,) * 100, (51, 49))
    divided((1,) * 100, (70, 30), chunks=(40, 30, 30))
    # lengths are rounded up to whole elements
    divided((1,) * 1000, (253, 253, 253, 241))


@pytest.mark.parametrize(
    ("cuts", "runs"), [((10,) * 10, (7, 3)), ((1,) * 100, (60, 40)), ((10,) * 10, (0, 10))]
)
def test_no_worker_has_more_than_its_share(cuts, runs):
    with pytest.raises(VerificationError, match="expected at most an even share"):
        divided(cuts, runs)


# --- plans have no faults --------------------------------------------------------------


def counted(mesh: tuple[int, ...], where: Any, chunks: Any) -> np.ndarray[Any, Any]:
    """For every element and worker, how often the worker has the element, tile by tile."""
    shape = tuple(map(sum, chunks))
    held = np.zeros((int(np.prod(mesh)), *shape), dtype=int)
    placement = Placement(mesh, where)
    edges = [np.cumsum([0, *sizes]) for sizes in chunks]
    for block in itertools.product(*(range(len(sizes)) for sizes in chunks)):
        part = tuple(
            slice(along[at], along[at + 1]) for along, at in zip(edges, block, strict=True)
        )
        held[(placement.position(block), *part)] += 1
    return held


def check_counts(tiled: TiledProgram) -> None:
    """Count who has every element: exactly one worker, or as many as there are replicas."""
    for index, tiling in enumerate(tiled.tilings):
        for where, chunks in (
            (tiling.work_at, tiling.cuts),
            (tiling.held_at, tiling.chunks),
            (tiled.kept_at.get(index), tiled.kept.get(index)),
        ):
            if isinstance(where, Sharding):
                assert (counted(tiled.mesh, where, chunks).sum(axis=0) == 1).all()
        replicas = tiled.replicas(index)
        if replicas is not None:
            assert not replicas.axes & set(replicas.replicated)


def test_plans_of_random_expressions_have_no_faults():
    workers = st.sampled_from([1, 2, 3, 4, 6, 8, 12])
    limits = st.sampled_from([None, None, 200, 1000, 10_000])

    @examples(150)
    @given(expressions(), workers, st.integers(1, 4), limits, st.booleans(), st.booleans())
    def every(e: Expression, count: int, threads: int, limit: Any, placed: bool, force: bool):
        program = capture([value.lazy for value in outputs(e)]).program
        verify_program(program)
        settings = Settings(task_bytes=1, min_tile=1)
        try:
            plan = tile(program, workers=count, threads=threads, memory_limit=limit, placed=placed,
                        force=force, settings=settings)  # fmt: skip
        except MemoryLimitError:
            return
        if plan.tiled is not None:
            verify_tiled(plan.tiled)
            check_counts(plan.tiled)

    every()


def test_random_tilings_have_no_faults():
    @examples(60)
    @given(expressions(), st.integers(0, 1 << 30))
    def every(e: Expression, seed: int):
        program = capture([value.lazy for value in outputs(e)]).program
        verify_tiled(random_tiling(program, random.Random(seed)))

    every()


def moved_blocks(tiled: TiledProgram, rng: random.Random) -> TiledProgram | None:
    """The same with one run that has a block more or less; None where no mesh axis divides."""
    places = [
        (index, place)
        for index, tiling in enumerate(tiled.tilings)
        if isinstance(tiling.held_at, Sharding)
        for place, share in enumerate(tiling.held_at.dims)
        if share.by
    ]
    if not places:
        return None
    index, place = rng.choice(places)
    held = tiled.tilings[index].held_at
    assert isinstance(held, Sharding)
    runs = list(held.dims[place].runs)
    runs[rng.randrange(len(runs))] += rng.choice([-1, 1])
    share = Share(held.dims[place].by, tuple(runs))
    changed = by(*held.dims[:place], share, *held.dims[place + 1 :])
    return with_tiling(tiled, index, held_at=changed)


def test_a_block_without_a_worker_or_with_two_is_a_fault():
    @examples(40)
    @given(expressions(), st.integers(0, 1 << 30))
    def every(e: Expression, seed: int):
        program = capture([value.lazy for value in outputs(e)]).program
        settings = Settings(task_bytes=1, min_tile=1)
        plan = tile(program, workers=4, placed=True, force=True, settings=settings)
        assert plan.tiled is not None
        moved = moved_blocks(plan.tiled, random.Random(seed))
        if moved is not None:
            with pytest.raises(VerificationError, match="blocks once"):
                verify_tiled(moved)

    every()


# --- between passes --------------------------------------------------------------------


def product() -> da.Array:
    x = da.random.default_rng(0).random((4000, 4000), chunks=(400, 400))
    return x.T @ x


def test_planning_verifies_where_internal_errors_are_raised(monkeypatch):
    programs, tiles = [], []
    monkeypatch.setattr(planning, "verify_program", programs.append)
    monkeypatch.setattr(planning, "verify_tiled", lambda *arguments: tiles.append(arguments))
    dasktile.optimize(product(), workers=4, memory_limit="200 MB")
    assert len(programs) == 1
    assert [limit for _, limit in tiles] == [200_000_000]
    with dask.config.set({"dasktile.raise-errors": False}):
        dasktile.optimize(product(), workers=4)
    assert (len(programs), len(tiles)) == (1, 1)


def test_a_faulty_plan_is_raised(monkeypatch):
    tile_again = planning.tile_again

    def faulty(*arguments: Any, **options: Any) -> Any:
        plan = tile_again(*arguments, **options)
        return replace(plan, tiled=with_tiling(plan.tiled, 0, cuts=((4000,), (3999,))))

    monkeypatch.setattr(planning, "tile_again", faulty)
    with pytest.raises(VerificationError, match=r"node 0 \(random .* breaks the rule 'cuts'"):
        dasktile.optimize(product(), workers=4)
