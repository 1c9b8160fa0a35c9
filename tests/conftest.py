"""Options, settings and fixtures of all tests."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import dask
import pytest
from distributed.utils import RateLimiterFilter, get_mp_context

import dasktile.config  # noqa: F401  (registers the settings)
from dasktile.capture.failures import failures
from dasktile.ir.verify import verify_tiled
from dasktile.lower import array_writer
from dasktile.templates import forget
from dasktile.tiling import mesh_planner

# The tests of clusters reset the configuration to what it was when distributed.utils_test was
# imported, so that settings made later, by a fixture for example, are lost in most tests.
assert "distributed.utils_test" not in sys.modules
dask.config.set(
    {
        # An error inside dasktile is a failed test, not a warning.
        "dasktile.raise-errors": True,
        # Distributed checks for a lost worker once, some time after it left.  If the worker came
        # back and left again in between, its nanny is closed although it is restarting the worker.
        # See docs/upstream/lost-worker-check.md.
        "distributed.deploy.lost-worker-timeout": "365 days",
    }
)
if sys.platform == "linux":
    # Worker processes are forked from one that has imported what they need, which takes each of
    # them a second otherwise.  Programs that tests run start them as users do.
    dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    # names packages to import, the first time; these contain them
    get_mp_context().set_forkserver_preload(["distributed", "dask.array", "dasktile.preload"])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--runslow", action="store_true", help="run tests that take minutes")
    parser.addoption(
        "--scaling-seconds", type=float, default=60, help="how long a cluster is scaled in a test"
    )
    parser.addoption(
        "--cases", type=int, metavar="N", help="run N cases of a test, but for `every_case`"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    most = config.getoption("--cases")
    if most:
        sample = some_cases(items, most)
        config.hook.pytest_deselected(items=[item for item in items if item not in sample])
        items[:] = [item for item in items if item in sample]
    skips = {}
    if not config.getoption("--runslow"):
        skips["slow"] = pytest.mark.skip(reason="slow: run with --runslow")
    if not has_gpu():
        skips["gpu"] = pytest.mark.skip(reason="there is no CUDA device")
    for item in items:
        for name, skip in skips.items():
            if item.get_closest_marker(name):
                item.add_marker(skip)


def some_cases(items: Sequence[pytest.Item], most: int) -> set[pytest.Item]:
    """The tests, and of each test with more cases, as many as given, the first among them.

    Of tests marked `every_case`, as those of tables that every module is in, all are needed.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return {item for item in items if item.get_closest_marker("every_case")} | {
        several[number * len(several) // min(most, len(several))]
        for several in cases.values()
        for number in range(min(most, len(several)))
    }


def pytest_collection_finish() -> None:
    """Exempt all modules and tests from garbage collection, which visits them again and again."""
    gc.collect()
    gc.freeze()


def has_gpu() -> bool:
    try:
        import cupy

        return bool(cupy.cuda.runtime.getDeviceCount())
    except Exception:
        # not installed, or without a driver
        return False


@pytest.fixture(autouse=True)
def fail_on_recogniser_errors() -> Iterator[None]:
    """A recogniser that raises an exception is a defect, although its layer stays unchanged."""
    failures.clear()
    yield
    assert failures == {}


@pytest.fixture(autouse=True)
def rechunk_as_dask_does() -> Iterator[None]:
    """Keep a default of Dask that importing ``dask_array``, as xarray does, changes for all."""
    with dask.config.set({"array.rechunk.threshold": 4}):
        yield


@pytest.fixture(autouse=True, scope="session")
def verify_tiles() -> Iterator[None]:
    """Check the tiles of every plan that is priced, chosen or not, and of all that is lowered.

    No memory limit is checked here: plans that exceed it are priced, and refused later.
    """
    cut, begin = mesh_planner.MeshPlanner._cut, array_writer.ArrayWriter.__post_init__

    def checked_cut(self: Any, *arguments: Any) -> Any:
        candidate = cut(self, *arguments)
        verify_tiled(candidate.tiled)
        return candidate

    def checked_begin(self: Any) -> None:
        verify_tiled(self.tiled)
        begin(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mesh_planner.MeshPlanner, "_cut", checked_cut)
        patch.setattr(array_writer.ArrayWriter, "__post_init__", checked_begin)
        yield


@pytest.fixture(autouse=True)
def forget_plans() -> None:
    """Plan anew in every test, as tests may replace parts of the planner."""
    forget()


@pytest.fixture(autouse=True)
def reset_log_rate_limit() -> None:
    """Reset the rate limit of log messages, so that every test can log all of them."""
    RateLimiterFilter.reset_timer("dasktile.runtime.worker.store")
