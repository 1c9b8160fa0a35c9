"""How plans change when their program changes in a known way."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktile.ir import AxisMap, Edge, Kind, Label, Program, Role
from dasktile.tiling import Settings, methods, tile
from dasktile.tiling.plan import TilingPlan
from tests.programs import BYTES_DECIDE, Builder, cuts

#: Rows and columns, divisible by most numbers of workers.
SIZE = 2880

WORKERS = st.integers(2, 128)

#: Methods that choose quickly, whatever the program.
METHODS = sorted(set(methods()) - {"auto", "exact", "exhaustive"})


@dataclass(frozen=True)
class Node:
    """A node of an expression of square matrices; without inputs it is a stored matrix."""

    kind: str = "source"
    inputs: tuple[Node, ...] = ()
    turned: tuple[bool, ...] = ()
    axis: int = 0

    @property
    def transposed(self) -> Node:
        """The same matrix with its axes exchanged, written as another expression."""
        turned = tuple(not turn for turn in self.turned)
        if self.kind == "matmul":
            return replace(self, inputs=self.inputs[::-1], turned=turned[::-1])
        if self.kind == "add":
            return replace(self, turned=turned)
        raise ValueError(self.kind)


def _operation(children: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    pairs = st.tuples(children, children)
    turns = st.tuples(st.booleans(), st.booleans())
    binary = st.builds(Node, st.sampled_from(["add", "matmul", "matmul"]), pairs, turns)
    return binary | st.builds(Node, st.just("whole"), st.tuples(children), axis=st.integers(0, 1))


EXPRESSIONS = st.recursive(st.just(Node()), _operation, max_leaves=4).filter(
    lambda node: node.kind in ("add", "matmul")
)


def program(node: Node, size: int = SIZE, more: int = 0) -> Program:
    """The program of an expression, with some more elementwise operations on its result."""
    build = Builder()

    def add(node: Node) -> int:
        if node.kind == "source":
            return build.source((size, size), (size // 16,) * 2)
        inputs = [add(each) for each in node.inputs]
        if node.kind == "whole":
            return build.whole(inputs[0], node.axis)
        if node.kind == "matmul":
            return build.matmul(*inputs, ta=node.turned[0], tb=node.turned[1])
        return build.elementwise(
            *inputs, transposed=[at for at, turn in enumerate(node.turned) if turn]
        )

    result = add(node)
    for _ in range(more):
        result = build.elementwise(result)
    return build.program()


def planned(
    program: Program, workers: int, settings: Settings = BYTES_DECIDE, **options: Any
) -> TilingPlan:
    return tile(program, workers=workers, settings=settings, force=True, **options)


def check_more_operations(node: Node, workers: int, more: int, settings: Settings) -> None:
    """Elementwise operations on the result move no bytes, and no bound is above a known plan.

    That is so on a number of workers: how many are used depends on the time that tasks take, too.
    Where tasks count, more bytes may be moved for fewer tasks, but not more than these are worth.
    """
    alone = planned(program(node), workers, settings)
    longer = planned(program(node, more=more), workers, settings)
    if (used := math.prod(longer.tiled.mesh)) != math.prod(alone.tiled.mesh):
        alone = planned(program(node), used, settings)
    on_these = alone.bytes_on_all is not None and math.prod(alone.tiled.mesh) != used
    known = alone.bytes_on_all if on_these else alone.after.bytes
    least = planned(program(node, more=more), workers)
    fewer = max(0, sum(least.after.tasks) - sum(longer.after.tasks))
    assert longer.after.bytes <= known + settings.task_bytes * fewer
    assert longer.lower_bound <= known
    assert longer.lower_bound <= longer.after.bytes


def check_transposed(node: Node, workers: int) -> None:
    """A transposed result moves as many bytes."""
    one, other = (planned(program(each), workers) for each in (node, node.transposed))
    assert one.after.bytes == other.after.bytes


def check_renamed(node: Node, workers: int) -> None:
    """Names of arrays do not matter."""
    one = program(node)
    nodes = tuple(replace(each, name=f"x{each.nbytes}-{-at}") for at, each in enumerate(one.nodes))
    plan, other = planned(one, workers), planned(Program(nodes, one.outputs), workers)
    assert (plan.after, plan.lower_bound, plan.grids) == (
        other.after,
        other.lower_bound,
        other.grids,
    )
    assert plan.tiled is not None and other.tiled is not None
    assert plan.tiled.tilings == other.tiled.tilings


def check_operands(node: Node, workers: int) -> None:
    """The order of operands does not matter."""
    if node.kind != "add":
        node = Node("add", (node, Node()), (False, True))
    other = replace(node, inputs=node.inputs[::-1], turned=node.turned[::-1])
    one, two = (planned(program(each), workers) for each in (node, other))
    assert one.after.bytes == two.after.bytes


def check_sizes(node: Node, workers: int) -> None:
    """Bytes are four times as many if there are twice as many rows and columns.

    That is so on a number of workers.  There is eight times as much work, so that it may pay to use
    more of them, but never fewer.
    """
    size = 48 * workers
    small, large = (
        planned(program(node, each), workers, method="exact") for each in (size, 2 * size)
    )
    assert large.after.bytes == 4 * small.after.bytes
    assert large.lower_bound == pytest.approx(4 * small.lower_bound, rel=1e-3, abs=100)
    small, large = (planned(program(node, each), workers) for each in (size, 2 * size))
    assert large.used_workers >= small.used_workers


def check_method(node: Node, workers: int, method: str) -> None:
    """No method moves fewer bytes than a bound for as many workers."""
    plan = planned(program(node), workers)
    other = tile(program(node), workers=workers, method=method, settings=BYTES_DECIDE, force=True)
    # nothing is proven of other numbers of workers, as methods that know powers of two only use
    # them, and of the input's own chunks where workers have different numbers of them
    loads = other.after.loads
    is_even = max(loads) * len(loads) <= 1.02 * sum(loads)
    if is_even and (other.tiled is None or math.prod(other.tiled.mesh) == workers):
        assert other.after.bytes >= plan.lower_bound


def pinned_copy(program: Program, chunk: int) -> Program:
    """The program with a last operation that copies the result in some chunks, as they must be."""
    index = len(program.nodes) - 1
    result = program.nodes[index]
    chunks = tuple(cuts(size, chunk) for size in result.shape)
    copy = replace(
        result,
        name="copy",
        op="copy",
        kind=Kind.MAP,
        labels=tuple(Label(sum(sizes), Role.PINNED, sizes) for sizes in chunks),
        out=tuple(AxisMap(axis) for axis in range(len(chunks))),
        chunks=chunks,
        edges=(Edge(index, tuple(AxisMap(axis) for axis in range(len(chunks)))),),
        partial=0.0,
    )
    return Program((*program.nodes, copy), (index + 1,))


def check_kept_chunks(node: Node, workers: int, chunk: int) -> None:
    """Chunks of the result that must be kept make no plan cheaper, and bounds contain them.

    Copying the result into these chunks is a plan that is known.
    """
    free = planned(program(node), workers)
    final = pinned_copy(program(node), chunk).nodes[-1].chunks
    kept = planned(program(node), workers, final=(final,))
    assert kept.after.bytes >= free.lower_bound
    assert kept.lower_bound <= kept.after.bytes
    assert kept.lower_bound <= planned(pinned_copy(program(node), chunk), workers).after.bytes


#: By check, what it draws besides an expression.
CHECKS = {
    check_more_operations: (
        WORKERS,
        st.sampled_from([1, 4]),
        st.sampled_from([BYTES_DECIDE, Settings()]),
    ),
    check_transposed: (WORKERS,),
    check_renamed: (WORKERS,),
    check_operands: (WORKERS,),
    check_sizes: (WORKERS,),
    check_kept_chunks: (
        st.sampled_from([2, 3, 4, 6, 8, 12, 16]),
        # 48 and 96 chunks are even for all of these workers; two and one have parts of their own
        st.sampled_from([SIZE // 48, SIZE // 96, SIZE // 2, SIZE]),
    ),
    check_method: (WORKERS | st.sampled_from([2, 4, 8, 16]), st.sampled_from(METHODS)),
}


@pytest.mark.parametrize("check", CHECKS)
@given(data=st.data())
@settings(max_examples=20, derandomize=True, deadline=None)
def test_plans_change_as_their_program_does(check, data) -> None:
    check(*map(data.draw, (EXPRESSIONS, *CHECKS[check])))


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
@given(data=st.data())
@settings(max_examples=300, deadline=None, print_blob=True)
def test_plans_of_many_programs_change_as_these_do(check, data) -> None:
    check(*map(data.draw, (EXPRESSIONS, *CHECKS[check])))


@pytest.mark.parametrize("method", ["eindecomp", "soybean"])
def test_methods_of_powers_of_two_cut_evenly_for_other_numbers_of_workers(method: str) -> None:
    product = Node("matmul", (Node(), Node()), (False, False))
    node = Node("add", (Node(), product), (False, False))
    # tilings whose parts are no unions of finer ones are refused where plans are checked
    assert planned(program(node), 28, method=method).tiled is not None
