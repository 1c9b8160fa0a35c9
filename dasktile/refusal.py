"""Memory limits that make too many tasks are refused, before a graph is written."""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from dataclasses import replace

from dasktile import config
from dasktile.capture.base import Captured
from dasktile.needs import needed_program, needs_of
from dasktile.planning import capture, plan_request, tile, too_many_tasks
from dasktile.request import Request
from dasktile.tiling import (
    FEW_TASKS,
    MemoryLimitError,
    TooManyTasksError,
    least_tasks,
    most_tasks,
)

logger = logging.getLogger("dasktile")

#: Factors over the least possible limit that are tried, in this order, until a plan has few enough
#: tasks; and those for programs whose search may take seconds (chosen: plans have two to four times
#: as many tasks as the bound).
STEPS, FEW_STEPS = tuple(1.5**step for step in range(8)), (2.0, 4.0)

#: Units of bytes, each 1024 times the one before.
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def refuse_many_tasks(request: Request, captured: Captured) -> None:
    """Refuse a limit that the user gave and that makes too many tasks, before tiles are searched.

    Parameters
    ----------
    request, captured
        The arrays, and the captured program.

    Raises
    ------
    TooManyTasksError
        Unless the limit may be ignored, as chunks that cannot be cut are the largest.
    """
    limit = request.machine.memory_limit if request.machine.limit_given else None
    if limit is None or request.method == "none":
        return
    program = captured.program
    least = least_tasks(program, limit)
    if least <= FEW_TASKS:
        return
    ranges = needs_of(request, captured).ranges
    if ranges is not None:
        program = needed_program(captured, ranges)
        least = least_tasks(program, limit)
    price = tile(captured, request.machine, "none", limit, ranges).before
    before, allowed = sum(price.tasks), config.setting("tiling.many-tasks")
    uncut = (
        peak
        for node, peak in zip(program.nodes, price.peak, strict=True)
        if node.pinned or node.stored is not None
    )
    if least > most_tasks(before, allowed) and max(uncut, default=0) < max(price.peak):
        raise TooManyTasksError(limit, least, True, before, allowed)


def advise(request: Request, error: TooManyTasksError) -> TooManyTasksError:
    """The same error, with a memory limit that does not make too many tasks, if one is found.

    Parameters
    ----------
    request
        The arrays and their graph.
    error
        Why their plan is not carried out.
    """
    try:
        return error.with_larger(_larger_limit(request, error))
    except Exception:
        if config.setting("raise-errors"):
            raise
        logger.debug("dasktile failed to find a memory limit", exc_info=True)
        return error


def _larger_limit(request: Request, error: TooManyTasksError) -> str:
    """A memory limit that does not make too many tasks, in words; empty if none is found."""
    captured, settings = capture(request, {}), request.machine.settings()
    machine, ranges = request.machine, needs_of(request, captured).ranges
    program = needed_program(captured, ranges)
    own = tile(captured, machine, "none", error.limit, ranges).before
    most, largest = most_tasks(error.before, error.allowed), max(own.peak)
    # the smallest limit for which the bound allows few enough tasks
    first = bisect_left(
        range(largest),
        -most,
        lo=min(error.limit + 1, largest),
        key=lambda limit: -(least_tasks(program, limit) or math.inf),
    )
    for step in STEPS if len(program.nodes) <= settings.wider.few_nodes else FEW_STEPS:
        limit, name = _rounded_up(step * first)
        other = replace(request, machine=replace(machine, memory_limit=limit))
        try:
            plan = plan_request(other, captured, settings).plan
        except MemoryLimitError:
            continue
        is_kept = plan.tiled is not None or largest <= limit
        if is_kept and too_many_tasks(other, plan) is None:
            return f'"{name}" with {sum(plan.after.tasks):,} tasks'
    return ""


def _rounded_up(limit: float) -> tuple[int, str]:
    """Bytes rounded up to two digits, as a number and as users write them."""
    size, unit = limit, 0
    while size > 990 and unit < len(UNITS) - 1:
        size, unit = size / 1024, unit + 1
    step = 10.0 ** max(math.ceil(math.log10(size)) - 2, -1 if unit else 0)
    number = f"{math.ceil(size / step) * step:.6g}"
    return int(float(number) * 1024**unit), f"{number} {UNITS[unit]}"
