"""If a private name of dask is missing, dasktile warns once and all values are right."""

from __future__ import annotations

import os
import subprocess
import sys

import dask.array as da
import numpy as np
import pytest
from dask.blockwise import optimize_blockwise

from dasktile._compat.dask import CHECKED, NAMES, fused_keys, key_of_part


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
    ("name", "key", "expected"),
    [
        ("add-12_.1_.0", ("sum-3", 4, 5), ("add-12", 4, 5)),
        ("mean-12_.0", ("sum-3", 4, 5), ("mean-12", 5)),
        ("mean-12_.1", ("sum-3", 4, 5), ("mean-12", 4)),
        # in another order, of an axis that the whole does not have, and of other names
        ("add-12_.0_.1", ("sum-3", 4, 5), "add-12_.0_.1"),
        ("add-12_.2_.0", ("sum-3", 4, 5), "add-12_.2_.0"),
        ("add-12_i_j", ("sum-3", 4, 5), "add-12_i_j"),
        ("add-12_.1_.0", "sum-3", "add-12_.1_.0"),
        (("add-12", 1), ("sum-3", 4), ("add-12", 1)),
    ],
)
def test_keys_of_merged_parts(name: object, key: object, expected: object) -> None:
    assert key_of_part(name, key) == expected


def test_dask_merges_parts_under_such_names() -> None:
    x = da.from_array(np.ones((4, 6)), chunks=(2, 3)) + 1
    y = 2 * x - 3
    graph = dict(optimize_blockwise(y.dask, [(y.name, 0, 1)]))
    assert (x.name, 0, 1) in fused_keys(graph[y.name, 0, 1])
