"""If a private name of dask is missing, dasktile warns once and all values are right."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dasktile._compat.dask import CHECKED, NAMES


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
