"""The lower bound of the tasks that a memory limit makes."""

from __future__ import annotations

import math
import pickle
from typing import Any

import dask.array as da
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktile.capture.highlevel import capture
from dasktile.ir import Program
from dasktile.tiling import MemoryLimitError, TooManyTasksError, least_tasks, tile
from tests.expressions import Expression, expressions, outputs
from tests.support import opaque
from tests.test_same_answers import examples

#: Bytes of an array of 400 x 400.
NBYTES = 400 * 400 * 8


def ones(shape: Any = (400, 400), chunks: Any = 100) -> da.Array:
    return da.ones(shape, chunks=chunks)


def program_of(*arrays: da.Array) -> Program:
    return capture(arrays).program


@pytest.mark.parametrize("limit", [1_000, 10_000, 100_000])
def test_known_bounds(limit: int) -> None:
    x = ones()
    # what makes x is not fused with what reads it twice
    source = math.ceil(NBYTES / limit)
    transposed = elementwise = math.ceil(2 * NBYTES / limit)
    # three tiles of equal size make most of a product
    product = math.ceil(400**3 / (limit / 24) ** 1.5)
    assert least_tasks(program_of(x.T @ x), limit) == source + transposed + product
    assert least_tasks(program_of(x + 1), limit) == elementwise
    assert least_tasks(program_of((x + 1) * 2 + 3), limit) == elementwise
    assert least_tasks(program_of(x + 1, x + 2), limit) == source + 2 * elementwise


def test_axes_that_cannot_be_cut() -> None:
    y = program_of(da.fft.fft(ones(chunks=(100, 400)), axis=1))
    # a row of numbers and of complex numbers
    row = 400 * (8 + 16)
    assert least_tasks(y, row - 1) == 0
    assert least_tasks(y, 10 * row) == 40


def test_chunks_that_cannot_be_cut_do_not_count() -> None:
    x = da.random.default_rng(0).random((400, 400), chunks=100)
    assert least_tasks(program_of(x), 1_000) == 0
    assert least_tasks(program_of(x.map_blocks(opaque, dtype=float)), 1_000) == 0


def test_no_plan_within_a_limit_has_fewer_tasks() -> None:
    checked = []

    @examples(150)
    @given(expressions(), st.sampled_from([100, 400, 1_000, 4_000]))
    def every(e: Expression, limit: int) -> None:
        program = program_of(*(value.lazy for value in outputs(e)))
        try:
            plan = tile(program, workers=4, memory_limit=limit, force=True)
        except MemoryLimitError:
            return
        if max(plan.after.peak) <= limit:
            assert least_tasks(program, limit) <= sum(plan.after.tasks)
            checked.append(least_tasks(program, limit))

    every()
    assert max(checked) > 4


@pytest.mark.parametrize("limit", [1_000, 10_000, 100_000])
@pytest.mark.parametrize("operation", [lambda x: x.T @ x, lambda x: (x + 1) * 2, lambda x: x.sum()])
def test_bounds_are_within_a_factor_of_eight(operation: Any, limit: int) -> None:
    program = program_of(operation(ones()))
    plan = tile(program, workers=4, memory_limit=limit, force=True)
    least = least_tasks(program, limit)
    assert least <= sum(plan.after.tasks) <= 8 * least


def test_the_error_can_be_pickled() -> None:
    error = TooManyTasksError(1_000, 5_000, True, 10, 10.0, '"2 kB" with 100 tasks')
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
