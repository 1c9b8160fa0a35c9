"""If a private name of dask is missing, dasktile warns once and all values are right."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask._task_spec import convert_legacy_graph
from dask.blockwise import optimize_blockwise
from dask.core import flatten

from dasktile._compat.dask import CHECKED, NAMES, fused_keys
from dasktile._compat.merged_parts import keys_of_parts


def without_names(part: int, parts: int, size: int) -> None:
    """Hide `size` names at a time."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.private_names", *map(str, (part, parts, size))],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes")
@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_values_are_right_without_several_private_names(part: int) -> None:
    without_names(part, 2, 18)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes")
@pytest.mark.parametrize("part", range(4))
def test_values_are_right_without_any_private_name(part: int) -> None:
    without_names(part, 4, 1)


def test_this_dask_has_all_private_names() -> None:
    assert [name.path for name in NAMES if not name.exists] == []


def test_every_name_is_listed_once() -> None:
    paths = [name.path for name in NAMES]
    assert len(set(paths)) == len(paths)
    assert list(CHECKED) == sorted(CHECKED)


@pytest.mark.parametrize(
    ("names", "key", "expected"),
    [
        (["add-1_.1_.0", "mean-2_.0"], ("sum-3", 4, 5), [("add-1", 4, 5), ("mean-2", 5)]),
        (["add-1_.1_.0", "mean-2_.1"], ("sum-3", 4, 5), [("add-1", 4, 5), ("mean-2", 4)]),
        # of other keys, of an axis that the whole does not have, and in another order
        (["add-1_.1_.0", ("y", 1)], ("sum-3", 4, 5), [("add-1", 4, 5), ("y", 1)]),
        (["add-1_.1_.0", "x_.2"], ("sum-3", 4, 5), [("add-1", 4, 5), "x_.2"]),
        # nothing says in which order the whole has its axes, or that it is another one
        (["mean-2_.1"], ("sum-3", 4, 5), ["mean-2_.1"]),
        (["add-1_.1_.0", "x_.0_.1"], ("sum-3", 4, 5), ["add-1_.1_.0", "x_.0_.1"]),
        (["add-1_i_j"], ("sum-3", 4, 5), ["add-1_i_j"]),
        (["add-1_.1_.0"], "sum-3", ["add-1_.1_.0"]),
    ],
)
def test_keys_of_merged_parts(names: list[Any], key: Any, expected: list[Any]) -> None:
    assert list(keys_of_parts(names, key)) == expected


def _plus_one(*shape: int) -> da.Array:
    return da.from_array(np.ones(shape), chunks=2) + 1


X, ROW, COLUMN = _plus_one(6, 8), _plus_one(8), _plus_one(6)

MERGED: dict[str, Callable[[], da.Array]] = {
    "elementwise": lambda: 2 * (X - ROW) + 1,
    "column": lambda: X * COLUMN[:, None] - 1,
    "blocks": lambda: (X - ROW).map_blocks(np.sqrt),
    "sum": lambda: (X - ROW).sum(axis=0),
    "deviation": lambda: (X - X.mean(axis=0)).std(axis=1),
    "transpose": lambda: (X - ROW).T + 1,
    "sum of a transpose": lambda: X.T.sum(),
    "both": lambda: da.ones((6, 6), chunks=2) + _plus_one(6, 6).T,
    "outer": lambda: da.outer(COLUMN, ROW),
    "letters": lambda: da.blockwise(np.multiply, "ij", X, "ij", ROW, "j", dtype=float),
    "einsum": lambda: da.einsum("ij,j->ij", X, ROW),
    "tensordot": lambda: da.tensordot(X - ROW, X.T - COLUMN, 1),
    "new axis": lambda: COLUMN.map_blocks(lambda block: block[:, None], new_axis=1, dtype=float),
}


@pytest.mark.parametrize("name", MERGED)
def test_merged_parts_have_the_keys_that_they_have_without_that(name: str) -> None:
    result = MERGED[name]()
    alone = convert_legacy_graph(dict(result.dask))
    graph = convert_legacy_graph(
        dict(optimize_blockwise(result.dask, list(flatten(result.__dask_keys__()))))
    )
    found = 0
    for key, task in graph.items():
        read, pending = set(), [key]
        while pending:
            each = pending.pop()
            if each in alone and each not in read:
                read.add(each)
                pending += alone[each].dependencies
        for part in fused_keys(task):
            if type(part) is tuple and part != key:
                found += 1
                assert part in read
    assert bool(found) == (name in ("elementwise", "column", "blocks"))
