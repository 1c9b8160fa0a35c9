"""The sentences of an explanation: what a plan does, moves and holds, and how sure that is."""

from __future__ import annotations

import math

from dasktile.report.formatting import format_bytes, format_count, format_names, format_seconds
from dasktile.report.plan import PlanReport
from dasktile.report.rows import row_name
from dasktile.tiling.fewer import why_fewer

#: Optimality gap in per cent above which a lower bound is not worth showing.
_LOOSE = 100

#: Bytes of the simulation over those of the model from which the summary says why they differ.
_MORE_RECEIVED = 1.1

#: Bytes of results from which reports say where they are joined: fewer are received in about the
#: time of one task.
LARGE = 2**20

#: Begins the line of predicted memory.
_HOLDS = "results in memory: at most about"

#: Bytes with those of running tasks over those of results alone, above which both are shown.
_WHILE_RUNNING = 1.1

#: Arrays named as not all counted.
_UNCOUNTED_NAMES = 3

#: Busiest worker's work over the mean, above which the imbalance is reported.
_UNEVEN = 1.25

#: Bytes that the busiest link carries over the mean that workers receive, above which they are
#: shown (chosen).
_BUSY_LINK = 1.5


def summary(plan: PlanReport) -> list[str]:
    """What a plan does, in sentences, one a line.

    Parameters
    ----------
    plan
        The numbers of the plan.
    """
    if not plan.nodes:
        return [plan.verdict]
    lines = _head(plan)
    if gain := _kept(plan):
        lines.append(gain)
    if shared := shared_processes(plan):
        lines.append(shared)
    if fewer := _fewer(plan):
        lines.append(fewer)
    if plan.earlier_workers:
        counts = " and ".join(f"{count:,}" for count in plan.earlier_workers)
        lines.append(
            f"the input contains results of optimize for {counts} workers, which keep their tiles:"
            f" give optimize the arrays that these were made of, for {plan.workers:,}"
        )
    if plan.has_plan and plan.bytes_unplanned:
        received = format_bytes(plan.bytes_counted)
        counted = "by the model, workers" if _is_simulated(plan) else "workers"
        lines.append(
            f"{counted} receive {received} in all, with what tasks of one operation, or of an"
            " earlier plan, receive from each other"
        )
    elif plan.uncounted and plan.workers > 1:
        names = [row_name(row, plan.nodes[row]) for row in plan.uncounted]
        lines.append(
            f"not all counted: bytes received for {format_names(names, _UNCOUNTED_NAMES)},"
            " as it is unknown which blocks their tasks read"
        )
    if plan.has_plan and not plan.is_comparable:
        lines.append(
            f"with the chunks of the input {format_bytes(plan.bytes_before)} are counted,"
            " without the steps whose reads are unknown"
        )
    if plan.read_before or plan.read_after:
        lines.append(_instead("reads", plan.read_before, plan.read_after, " from storage"))
    if plan.spilled_before or plan.spilled_after:
        where = f" to disk, because arrays read in several passes do not fit in {_where(plan)}"
        lines.append(_instead("spills", plan.spilled_before, plan.spilled_after, where))
    if plan.peak_after is not None and plan.results_after is not None:
        lines.append(_memory(plan, plan.peak_after, plan.results_after))
    if plan.joined >= LARGE:
        received = ""
        if plan.workers > 1:
            more = plan.joined * (plan.workers - 1) // plan.workers
            received = f", which receives about {format_bytes(more)} more for it"
        lines.append(
            f"dask.compute joins a result of {format_bytes(plan.joined)} on one worker{received};"
            " dasktile.compute joins it in the client"
        )
    if plan.has_plan and max(plan.balance_before, plan.balance_after) > _UNEVEN:
        lines.append(
            f"the busiest worker does {plan.balance_after:.1f} times the mean work"
            + _instead_of(plan.balance_before, plan.balance_after)
        )
    if plan.seconds_before is not None and plan.seconds_after is not None:
        after, before = format_seconds(plan.seconds_after), format_seconds(plan.seconds_before)
        instead = f" instead of {before}" if plan.has_plan and after != before else ""
        lines.append(f"predicted run time: about {after}{instead}")
    return lines


def _kept(plan: PlanReport) -> str:
    """What a plan changes in which all arrays keep their chunks; empty for others."""
    if not plan.keeps_all_chunks:
        return ""
    text = "all arrays keep their chunks: the plan decides where tasks run"
    before, after = plan.run_tasks_before, plan.run_tasks_after
    if plan.bundle and before is not None and after is not None and after < before:
        text += ", and runs several of them as one"
    return text


def _instead_of(before: float, after: float) -> str:
    """The unevenness of the work before, in words."""
    if f"{before:.1f}" == f"{after:.1f}":
        return ", as with the input's chunks"
    return f" instead of {before:.1f}"


def shared_processes(plan: PlanReport) -> str:
    """Why fewer workers are planned for than there are; empty if they are as many."""
    if plan.scheduler_workers <= plan.workers:
        return ""
    processes = "one process" if plan.workers == 1 else f"{plan.workers:,} processes"
    return (
        f"the {plan.scheduler_workers:,} workers of the cluster are in {processes} and count as"
        f" {plan.workers:,}: workers of one process share memory, so nothing is copied between"
        " them"
    )


def _fewer(plan: PlanReport) -> str:
    """Why the plan is for fewer workers than there are; empty if it is for all."""
    if not plan.has_plan or plan.used_workers is None or plan.bytes_on_all is None:
        return ""
    used, count = f"{plan.used_workers:,}", f"{plan.workers:,}"
    return (
        f"tiles for {used} of {count} workers, as {why_fewer(plan.workers)}: a plan for all of"
        f" them would move {format_bytes(plan.bytes_on_all)}"
    )


def _where(plan: PlanReport) -> str:
    """The memory that held arrays do not fit in."""
    if plan.assumed_room is None:
        return "memory"
    size = format_bytes(plan.assumed_room)
    return f"{size} on each worker (assumed: memory_limit times threads)"


def _head(plan: PlanReport) -> list[str]:
    """What ``optimize`` does, what runs, and what the model counts: what is surest first."""
    if not plan.has_plan:
        first, model = _unchanged(plan)
        return [first, *_run(plan), model]
    workers = format_count(plan.workers, "worker")
    moved, run = _moved(plan), _run(plan)
    if _is_simulated(plan):
        lines = [f"{workers}, {run[0]}", f"{_model(plan)}: {moved}"]
    else:
        lines = [f"{workers}, {moved}", *run]
    if plan.planned:
        lines[0] = f"optimize returns the input itself: {plan.verdict}; its plan: {lines[0]}"
    return lines


def _model(plan: PlanReport) -> str:
    """What bytes of tilings are counted by."""
    more = ", which also counts blocks that are not needed" if plan.counts_unneeded else ""
    return f"by the model{more}"


def _is_simulated(plan: PlanReport) -> bool:
    """Whether it is predicted what workers receive for both graphs."""
    known = plan.received_before is not None and plan.received_after is not None
    return known and plan.workers > 1 and not plan.unpredicted


def _moved(plan: PlanReport) -> str:
    """What the model counts for a plan, and how near that is to the least possible."""
    before, after = plan.bytes_before, plan.bytes_after
    if plan.counts_all:
        moved = f"moves {format_bytes(after)} between workers"
    else:
        moved = f"moves {_lacking(plan.bytes_counted)} between workers"
    if plan.is_comparable and plan.counts_all:
        # on their best workers, where Dask's scheduler would not place all tasks
        same = ", as with the input's chunks on these workers"
        moved = _instead("moves", before, after, " between workers", same=same)
    line = f"{moved} ({_certificate(plan)})"
    if after > _MORE_RECEIVED * max(before, LARGE) and (gains := _gains(plan)):
        line += f"; it has {' and '.join(gains)}"
    if plan.run_tasks_before is None or plan.run_tasks_after is None:
        # those that run are unknown, of one graph at least
        model = "by the model, " if plan.unpredicted else ""
        line += f"; {model}{_tasks(plan.tasks_before, plan.tasks_after)}"
        if plan.bundle:
            line += f", which run in bundles of up to {plan.bundle:,}"
    return line


def _lacking(counted: int) -> str:
    """Bytes of which only some are counted."""
    unknown = "an unknown number of bytes"
    return f"{format_bytes(counted)}, and {unknown} more" if counted else unknown


def _gains(plan: PlanReport) -> list[str]:
    """What a plan has that moves more bytes than the input's chunks."""
    gains = {
        "fewer tasks": plan.tasks_after < plan.tasks_before,
        "less to spill": plan.spilled_after < plan.spilled_before,
        "less to read": plan.read_after < plan.read_before,
        "more even work": plan.balance_after < plan.balance_before,
    }
    return [gain for gain, is_gained in gains.items() if is_gained]


def _unchanged(plan: PlanReport) -> tuple[str, str]:
    """That the input is returned, and why; and what the model counts for it."""
    workers, moved = format_count(plan.workers, "worker"), format_bytes(plan.bytes_before)
    because = f": {plan.verdict}" if plan.verdict else ""
    result = "returns what Dask's rechunk returns" if plan.in_chunks else "returns the input itself"
    if plan.refused:
        result = "raises a TooManyTasksError"
    comma = "," if plan.counts_unneeded else ""
    if not plan.counts_all:
        moved = _lacking(plan.bytes_before)
    model = f"{_model(plan)}{comma} it moves {moved} between workers"
    if plan.in_memory and plan.received_before is not None:
        model = f"the model that chooses plans counts {moved} for its chunks"
    if plan.run_tasks_before is None:
        model += f"; {format_count(plan.tasks_before, 'task')}"
    if 0 < plan.lower_bound <= plan.bytes_before:
        model += f" (other tiles would move at least {format_bytes(plan.lower_bound)})"
    return f"{workers}: optimize {result}{because}", model


def _run(plan: PlanReport) -> list[str]:
    """What runs and moves in the simulation, of Dask's own graph and of the plan's."""
    tasks, before = plan.run_tasks_after, plan.run_tasks_before
    first, last = plan.received_before, plan.received_after
    unknown = f"not predicted, as {plan.unpredicted}"
    if before is None and not plan.unpredicted:
        return []
    if not plan.has_plan:
        if before is None:
            return [f"as it runs: {unknown}"]
        if first is None or plan.workers == 1:
            return []
        run = f"{format_count(before, 'task')}, workers receive about {format_bytes(first)}"
        return [f"as it runs: {run} where Dask's scheduler places them"]
    if tasks is None:
        return [f"as it runs: {unknown}"] if plan.unpredicted else []
    run = format_count(tasks, "task") if before is None else _tasks(before, tasks)
    line = f"as it runs: {run}{', each bundle counted once' if plan.bundle else ''}"
    if plan.unpredicted:
        if plan.workers > 1 and last is not None:
            line += f", workers receive about {format_bytes(last)}"
        what = "how many tasks Dask's own graph has, and what it moves and holds,"
        if before is not None:
            what = "what Dask's own graph moves and holds"
        return [f"{line}; {what} is {unknown}"]
    if plan.workers > 1 and first is not None and last is not None:
        line += f", workers {_instead('receive about', first, last, '', roughly='roughly ')}"
        if format_bytes(first) != format_bytes(last):
            line += " where Dask's scheduler places its own graph"
        has_tiles = not plan.keeps_all_chunks
        if has_tiles and last > _MORE_RECEIVED * max(plan.bytes_counted, LARGE):
            line += (
                "; that is more than the model counts, as parts of an array that a worker"
                " reads in tiles of two shapes are sent for each of them"
            )
        if busiest := _busiest(plan, last):
            line += f"; {busiest}"
        if last and plan.received_between_hosts is not None:
            line += f"; {format_bytes(plan.received_between_hosts)} of these come from other hosts"
    elif plan.workers > 1 and plan.in_memory:
        line += (
            "; what workers receive for Dask's own graph is not predicted, as blocks of the"
            " input are in their memory already: it may be more or less than the model counts"
        )
    return [line]


def _busiest(plan: PlanReport, received: int) -> str:
    """What one worker receives or sends of the bytes that all receive; empty if they are even."""
    busiest, before = plan.busiest_link_after, plan.busiest_link_before
    if busiest is None or busiest * plan.workers < _BUSY_LINK * max(received, LARGE):
        return ""
    line = f"one worker receives or sends {format_bytes(busiest)} of these"
    if before is not None and format_bytes(before) != format_bytes(busiest):
        line += f" instead of {format_bytes(before)}"
    return line


def _memory(plan: PlanReport, peak: int, results: int) -> str:
    """What the worker that holds most has in memory, and whether that fits."""
    verdict = ""
    if peak > _WHILE_RUNNING * results:
        verdict = f", {format_bytes(peak)} while tasks run"
    if plan.memory is not None and (plan.largest_task or 0) > plan.memory:
        least, there = format_bytes(plan.largest_task or 0), format_bytes(plan.memory)
        verdict += f": does not fit, as one task needs about {least} and a worker has {there}"
    elif plan.room is not None:
        excess, room = max(0, results - plan.room), format_bytes(plan.room)
        spilled = f"about {format_bytes(excess)} spill, as {room} fit"
        verdict += f": {spilled}" if excess else f": fits in {room}"
    if plan.has_plan and plan.results_before is not None:
        return _instead(_HOLDS, plan.results_before, results, " on one worker") + verdict
    unknown = ", unknown before" if plan.has_plan else ""
    return f"{_HOLDS} {format_bytes(results)} on one worker{unknown}{verdict}"


def _certificate(plan: PlanReport) -> str:
    if not plan.lower_bound and not plan.proven_optimal:
        return "no lower bound is known"
    bound = f"lower bound {format_bytes(plan.lower_bound)}"
    if plan.grids:
        bound += f" on {plan.grids}{_if_computed(plan)}, used evenly"
    elif plan.lower_bound > plan.bytes_before:
        bound += ", of tilings that use all workers evenly"
    if plan.proven_optimal:
        # the input's own chunks, which leave workers idle, may move fewer
        of_these = " of these tilings" if plan.bytes_after > plan.bytes_before else ""
        return f"{bound}: proven optimal{of_these}"
    if 0 < plan.lower_bound < plan.bytes_after:
        above = 100 * (plan.bytes_after / plan.lower_bound - 1)
        if above > _LOOSE:
            return f"{bound}: optimality gap unknown"
        return f"{bound}: within {max(1, math.ceil(above))} %"
    return bound


def _if_computed(plan: PlanReport) -> str:
    """The premise of a bound that counts blocks which are not needed."""
    return ", if all blocks of all arrays were computed" if plan.counts_unneeded else ""


def _instead(
    verb: str,
    before: int,
    after: int,
    what: str,
    roughly: str = "",
    same: str = ", as before",
) -> str:
    if format_bytes(before) == format_bytes(after):
        return f"{verb} {format_bytes(after)}{what}{same}"
    return f"{verb} {format_bytes(after)} instead of {roughly}{format_bytes(before)}{what}"


def _tasks(before: int, after: int) -> str:
    """The tasks of a plan, and of the input."""
    instead = ", as before" if after == before else f" instead of {before:,}"
    return f"{format_count(after, 'task')}{instead}"
