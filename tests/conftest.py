"""Options and settings that all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import dask
import pytest
from distributed.utils import RateLimiterFilter

import dasktile.config  # noqa: F401  (registers the settings)
from dasktile.capture.highlevel import failures


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--runslow", action="store_true", help="run tests that take minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skips = {}
    if not config.getoption("--runslow"):
        skips["slow"] = pytest.mark.skip(reason="slow: run with --runslow")
    if not has_gpu():
        skips["gpu"] = pytest.mark.skip(reason="there is no CUDA device")
    for item in items:
        for name, skip in skips.items():
            if name in item.keywords:
                item.add_marker(skip)


def has_gpu() -> bool:
    try:
        import cupy

        return bool(cupy.cuda.runtime.getDeviceCount())
    except Exception:
        # not installed, or without a driver
        return False


@pytest.fixture(autouse=True)
def raise_errors() -> Iterator[None]:
    """An error inside dasktile is a failed test, not a warning."""
    with dask.config.set({"dasktile.raise-errors": True}):
        yield


@pytest.fixture(autouse=True, scope="session")
def workers_may_be_away() -> Iterator[None]:
    """Clusters do not close a nanny because its worker is not there at some moment.

    Distributed looks for a worker once, some time after it left, and does not ask whether it
    came back and left again: a nanny that starts it for the second time is closed for good.
    See docs/upstream/lost-worker-check.md.
    """
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "365 days"}):
        yield


@pytest.fixture(autouse=True)
def no_recogniser_fails() -> Iterator[None]:
    """What is not recognised is unchanged, but to raise an exception is a defect."""
    failures.clear()
    yield
    assert failures == {}


@pytest.fixture(autouse=True)
def log_again() -> None:
    """What was logged in one test is no reason not to log it in the next."""
    RateLimiterFilter.reset_timer("dasktile.runtime.worker.store")
