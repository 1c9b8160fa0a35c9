"""Columns of results that the input keeps whole stay whole, where that costs hardly more.

Libraries for tables, as dask-ml, refuse arrays whose columns are in several chunks.  Tiles that cut
the columns may save a few kilobytes of means; then the plan without such cuts is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dasktile.capture.base import Captured
from dasktile.ir import Node, Program, Role
from dasktile.tiling.objective import Objective
from dasktile.tiling.plan import TilingPlan
from dasktile.tiling.settings import Settings

#: Bytes that a plan may cost more if it cuts no axis that was whole (chosen: less than a task of
#: the usual price).
MORE_COST = 2**18

#: Share of the bytes of the results that it may move more, and bytes that it may move more in any
#: case (chosen: means of columns are a smaller share of a table of many rows).
MOVED_SHARE, LEAST_MOVED = 0.01, 2**16


def cut_axes(plan: TilingPlan) -> dict[int, list[int]]:
    """Axes of results that are in one chunk in the input, and in several tiles in a plan.

    Parameters
    ----------
    plan
        The plan.

    Returns
    -------
    By the index of an output, labels of its node.  Only arrays count whose first axis is in several
    chunks, as that of a table, and axes along which a result is free.
    """
    if plan.tiled is None:
        return {}
    axes: dict[int, list[int]] = {}
    for index in plan.program.outputs:
        labels = _whole_labels(plan.program.nodes[index])
        cuts = plan.tiled.tilings[index].cuts
        if cut := [label for label in labels if len(cuts[label]) > 1]:
            axes[index] = cut
    return axes


def _whole_labels(node: Node) -> list[int]:
    """Labels along which a table is free, and in one chunk in the input."""
    if not node.chunks or len(node.chunks[0]) == 1:
        return []
    return [
        axis.label
        for axis, sizes in zip(node.out, node.chunks, strict=True)
        if axis.label is not None
        and len(sizes) == 1
        and node.labels[axis.label].role is Role.FREE
        and len(node.labels[axis.label].cuts) == 1
    ]


def kept_whole(captured: Captured, axes: Mapping[int, list[int]]) -> Captured:
    """A captured program in which some labels must not be cut.

    Parameters
    ----------
    captured
        The program.
    axes
        By the index of a node, some of its labels.
    """
    nodes = list(captured.program.nodes)
    for index, whole in axes.items():
        labels = tuple(
            replace(label, role=Role.WHOLE) if number in whole else label
            for number, label in enumerate(nodes[index].labels)
        )
        nodes[index] = replace(nodes[index], labels=labels)
    return replace(captured, program=Program(tuple(nodes), captured.program.outputs))


def costs_hardly_more(
    plan: TilingPlan, other: TilingPlan, settings: Settings, threads: int, limit: int | None
) -> bool:
    """Whether a plan costs, and moves, hardly more than another one, and keeps to the limit.

    Parameters
    ----------
    plan, other
        Plans of the same arrays.
    settings
        Speeds and constants of the cost model.
    threads
        Tasks that each worker runs at once.
    limit
        Bytes that a task should not exceed, or None.
    """
    if limit is not None and max(plan.after.peak) > max(limit, *other.after.peak):
        return False  # a search exceeds a limit that is a default if it has to
    objective = Objective(settings, threads)
    if objective.cost(plan.after) > objective.cost(other.after) + MORE_COST:
        return False
    results = sum(plan.program.nodes[index].nbytes for index in plan.program.outputs)
    return plan.after.bytes - other.after.bytes <= max(LEAST_MOVED, MOVED_SHARE * results)
