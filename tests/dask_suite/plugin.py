"""Runs dask's own tests with ``dasktile.array_optimize`` in every computation.

A test that fails is run again without the hook; if it fails again, it is skipped.  Tests that check
the structure of a graph or its number of tasks are listed in ``exceptions.py``.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import dask
import pytest
from _pytest.runner import runtestprotocol

import dasktile.api
from dasktile import pipeline, planning
from dasktile.ir import Program
from tests.dask_suite.exceptions import EXCEPTIONS
from tests.support import accept_all_plans, random_tiling

#: Modes of rewriting.  "plain" is the default of users: graphs are rewritten if that is cheaper.
#: "eager" always rewrites, for four workers, at almost no price of tasks and for all sizes of
#: arrays.  "random" uses random tiles.
MODES = ("off", "plain", "eager", "random")

_COUNTS = "dasktile_counts"


class Suite:
    """A pytest plugin with the hook and its counters.

    Parameters
    ----------
    mode
        One of :data:`MODES`.
    share
        The percentage of operations that must be recognised.
    """

    def __init__(self, mode: str, share: float) -> None:
        self.mode = mode
        self.share = share
        self.counts: Counter[str] = Counter()
        #: For every reason to keep the chunks of an operation, an example of a test.
        self.examples: dict[str, str] = {}
        self.running = ""
        self.problem = ""

    @contextmanager
    def hook(self) -> Iterator[None]:
        """Enable dasktile's hook for computations."""
        settings: dict[str, Any] = {
            "array_optimize": dasktile.api.array_optimize,
            "dasktile.raise-errors": True,
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pipeline, "boundary", self._noting(pipeline.boundary))
            patch.setattr(planning, "plan_request", self._counting(planning.plan_request))
            if self.mode != "plain":
                accept_all_plans(patch)
                patch.setattr(dasktile.planning, "_moves_more", lambda *_: False)
                settings["dasktile.workers"] = 4
                settings["dasktile.cost.task-bytes"] = 1
                settings["dasktile.tiling.min-tile"] = 1
            with dask.config.set(settings):
                yield

    def _noting(self, boundary: Any) -> Any:
        def noted(*arguments: Any) -> Any:
            result = boundary(*arguments)
            self.counts["graphs"] += 1
            self.counts["unread"] += result is None
            return result

        return noted

    def _counting(self, plan: Any) -> Any:
        def counted(*arguments: Any, **options: Any) -> Any:
            planned = plan(*arguments, **options)
            captured, decided = planned.captured, planned.plan
            if self.mode == "random" and not _too_large(captured.program):
                # seeded by the test, so that equal graphs are rewritten equally
                tiled = random_tiling(captured.program, random.Random(self.running))
                decided = dataclasses.replace(decided, tiled=tiled)
            self.counts["rewritten"] += decided.tiled is not None
            for node in captured.program.nodes:
                # results of earlier computations are not operations
                if node.resident:
                    continue
                self.counts["nodes"] += 1
                if node.pinned:
                    reason = f"alone: {node.reason or node.op}"
                    self.counts[reason] += 1
                    self.examples.setdefault(reason, self.running)
            return dataclasses.replace(planned, plan=decided)

        return counted

    def close(self) -> None:
        """Check the share of recognised operations."""
        nodes = self.counts["nodes"]
        if self.share and not nodes:
            self.problem = "no operation was captured, so that nothing was tested"
        elif self.recognised < self.share:
            self.problem = (
                f"too few operations are recognised: {self.recognised:.1f} % of {nodes} operations"
                f" are not pinned, {self.share:g} % are required"
            )

    @property
    def recognised(self) -> float:
        """Percentage of the operations that are not pinned."""
        alone = sum(count for name, count in self.counts.items() if name.startswith("alone: "))
        return 100 * (1 - alone / max(1, self.counts["nodes"]))

    # Hooks of pytest --------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        self.running = item.nodeid
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        if self.mode == "off":
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
        else:
            with self.hook():
                # only the test itself is torn down, since it may run again
                reports = runtestprotocol(item, log=False, nextitem=item.parent)
            if any(report.failed for report in reports):
                reports = self._without(item, nextitem, reports)
            else:
                item.session._setupstate.teardown_exact(nextitem)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _without(
        self, item: Any, nextitem: pytest.Item | None, failed: list[pytest.TestReport]
    ) -> list[pytest.TestReport]:
        """Reports of a test that failed with the hook, as skipped if it also fails without it."""
        item._initrequest()
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if any(report.failed for report in reports):
            _as_skipped(failed, item, "also fails without dasktile")
        elif reason := _exception(item):
            _as_skipped(failed, item, reason)
        return failed

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_COUNTS] = (dict(self.counts), self.examples)
            return
        self.close()
        if self.problem and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: Any) -> None:
        counts, examples = getattr(node, "workeroutput", {}).get(_COUNTS, ({}, {}))
        self.counts.update(counts)
        self.examples = {**examples, **self.examples}

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        counts = self.counts
        if not counts["graphs"] and not self.problem:
            return
        terminalreporter.section(f"dasktile, {self.mode}")
        terminalreporter.line(
            f"{counts['graphs']} graphs, {counts['rewritten']} rewritten,"
            f" {counts['unread']} not read at all; {counts['nodes']} operations,"
            f" {self.recognised:.1f} % not pinned"
        )
        for name, count in counts.most_common():
            if name.startswith("alone: ") and count:
                reason, example = name.removeprefix("alone: "), self.examples.get(name, "")
                terminalreporter.line(f"{count:7} {reason} ({example.rpartition('/')[2]})")
        if self.problem:
            terminalreporter.line(self.problem, red=True)


def _too_large(program: Program) -> bool:
    """Whether blocks cut at random would be too many or too large."""
    return any(len(node.labels) > 8 or node.nbytes > 2**28 for node in program.nodes)


def _as_skipped(reports: Iterable[pytest.TestReport], item: pytest.Item, reason: str) -> None:
    path, line, _ = item.location
    for report in reports:
        if report.failed:
            report.outcome = "skipped"
            report.wasxfail = reason
            report.longrepr = (path, line or 0, reason)


def _exception(item: pytest.Item) -> str:
    """The reason why a test may fail; empty if it may not."""
    test = f"{item.path.stem}::{item.name}"
    for name, reason in EXCEPTIONS.items():
        if name in (test, test.partition("[")[0]) or (
            name.endswith("*") and test.startswith(name[:-1])
        ):
            return reason
    return ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--dasktile", choices=MODES, default="eager", help="how to rewrite")
    parser.addoption(
        "--dasktile-share",
        type=float,
        default=0.0,
        help="percentage of operations that must be recognised",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(
        Suite(config.getoption("--dasktile"), config.getoption("--dasktile-share")),
        "dasktile-suite",
    )
