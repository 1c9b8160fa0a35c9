"""Seconds of planning, and what the plans move and run."""

from __future__ import annotations

import dasktile
from dasktile.capture.highlevel import capture
from dasktile.decisions import forget
from dasktile.lower.writer import lower
from dasktile.tiling import tile

from .expressions import EXPRESSIONS


class _Planned:
    """Every benchmark runs once for each expression."""

    params = tuple(EXPRESSIONS)
    param_names = ("expression",)

    #: Blocks along an axis of the arrays, and workers that are planned for.
    blocks = 12
    workers = 8

    def setup(self, name: str) -> None:
        self.array = EXPRESSIONS[name](self.blocks)
        self.captured = capture([self.array])
        self.plan = tile(self.captured.program, workers=self.workers, force=True)


class Seconds(_Planned):
    """The stages of planning, and all of them together."""

    def time_capture(self, name: str) -> None:
        capture([self.array])

    def time_tile(self, name: str) -> None:
        # a plan even if the chunks of the input are as good
        tile(self.captured.program, workers=self.workers, force=True)

    def time_lower(self, name: str) -> None:
        if self.plan.tiled is not None:
            lower(self.captured, self.plan.tiled)

    def time_optimize(self, name: str) -> None:
        forget()
        dasktile.optimize(self.array, workers=self.workers)


class Planned(_Planned):
    """Numbers of the plans: they do not depend on the machine."""

    def setup(self, name: str) -> None:
        super().setup(name)
        forget()
        self.explanation = dasktile.explain(self.array, workers=self.workers).to_dict()

    def track_bytes_moved(self, name: str) -> int:
        return int(self.explanation["bytes_after"])

    def track_tasks(self, name: str) -> int:
        return int(self.explanation["tasks_after"])

    def track_share_of_bytes(self, name: str) -> float:
        """Bytes of the plan for each byte of the input's own chunks."""
        before = int(self.explanation["bytes_before"])
        return int(self.explanation["bytes_after"]) / before if before else 1.0


Planned.track_bytes_moved.unit = "bytes"  # type: ignore[attr-defined]
Planned.track_tasks.unit = "tasks"  # type: ignore[attr-defined]
