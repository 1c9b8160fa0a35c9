"""Whether a plan is better than the input's own chunks, and why not."""

from __future__ import annotations

from dasktile.tiling.mesh_planner import Candidate, MeshPlanner
from dasktile.tiling.objective import Objective
from dasktile.tiling.plan import Price
from dasktile.tiling.settings import Acceptance


def objection(
    unchanged: MeshPlanner,
    before: Candidate,
    planner: MeshPlanner,
    after: Candidate,
) -> str:
    """Why the input's own chunks are kept; empty where the plan is better."""
    if needs_less(before.price, after.price, planner.memory_limit):
        return ""
    old, new = unchanged.stock_cost(before.price), planner.cost(after.price)
    rules = planner.settings.acceptance
    is_cheaper = new < old * rules.max_cost_ratio or _moves_less_data(planner, before, after)
    if not is_cheaper:
        return "no other tiles cost clearly less, tasks and moved bytes together"
    if moves_too_much(planner.objective, before.price, after.price, rules):
        return _moves_more(before.price, after.price, planner.placed)
    return ""


def _moves_less_data(planner: MeshPlanner, before: Candidate, after: Candidate) -> bool:
    """Whether a plan costs less in bundles, and the bytes that it saves may be data in memory.

    The runs of such plans are not simulated, so that tasks would count before they are bundled.
    """
    if not (planner.placed and planner.bundled):
        return False
    in_memory = sum(node.nbytes for node in planner.program.nodes if node.homes)
    if in_memory < before.price.bytes - after.price.bytes:
        return False
    old, new = (
        each.price.bytes + planner.objective.cost_in_bundles(each.price) for each in (before, after)
    )
    is_less = after.price.bytes < before.price.bytes
    return is_less and new < old * planner.settings.acceptance.max_cost_ratio


def _moves_more(before: Price, after: Price, placed: bool) -> str:
    """Why cheaper tiles that move more bytes are not used, and what to do instead."""
    instead = "for fewer tasks, make the inputs in larger chunks"
    if not placed:
        instead = "on a cluster after dasktile.enable(client), a task runs several blocks"
    old, new = sum(before.tasks), sum(after.tasks)
    cheaper = "tiles that cost less otherwise"
    if new < old:
        # numbers of the model would stand beside those of tasks as they run
        cheaper = f"tiles with {max(1, round(100 * new / old))} % of the tasks"
    moved = "bytes between workers, where the input's own chunks move none"
    if before.bytes:
        moved = f"{_growth(after.bytes / before.bytes)} between workers"
    return f"{cheaper} would move {moved}, and no plan may move more; {instead}"


def _growth(ratio: float) -> str:
    """A growth of bytes in words: ``2.8 % more bytes``, ``13 times the bytes``."""
    if ratio >= 2:
        return f"{ratio:,.{0 if ratio >= 10 else 1}f} times the bytes"
    percent = 100 * (ratio - 1)
    return f"{percent:.{0 if percent >= 10 else 1}f} % more bytes"


def needs_less(before: Price, after: Price, limit: int | None) -> bool:
    """Whether the largest task takes more bytes than a limit, and fewer in a plan."""
    largest = max(before.peak, default=0)
    return limit is not None and largest > limit and max(after.peak) < largest


def moves_too_much(
    objective: Objective, before: Price, after: Price, rules: Acceptance, more: int | None = None
) -> bool:
    """Whether a plan moves more bytes than the input's own chunks, which are even enough.

    Where they are not, what it saves beside tasks must be worth the bytes: the time in which few
    workers do most of the work, and what they read and spill.

    Parameters
    ----------
    objective
        What time costs.
    before, after
        The prices of the input's own chunks, and of the plan.
    rules
        When chunks are even enough.
    more
        Bytes that the plan moves beyond the input's; by default, those of the prices.
    """
    more = after.bytes - before.bytes if more is None else more
    if more <= 0:
        return False
    return before.balance <= rules.uneven or more > objective.saved(before, after)


def objection_with_bundles(planner: MeshPlanner, before: Candidate, after: Candidate) -> str:
    """Why the input's own chunks are kept where tasks are bundled; empty if they are not.

    Larger tiles then save little, and to join them takes time and memory.
    """
    objective, rules = planner.objective, planner.settings.acceptance
    old, new = before.price, after.price
    saves = new.bytes < old.bytes or sum(new.read) < sum(old.read) or new.spilled < old.spilled
    if saves or not worth_placing(before, rules):
        return ""
    if objective.cost_in_bundles(new) < objective.cost_in_bundles(old) * rules.max_cost_ratio:
        return ""
    return "the input's own chunks cost no more in bundles of tasks"


def worth_placing(before: Candidate, rules: Acceptance) -> bool:
    """Whether to place the input's own chunks, if tiles can be placed.

    Where few workers have most of the work, as with one chunk for a whole array, Dask runs later
    tasks on these workers, and spreading them would move more bytes.  It is unknown who has most
    of it where blocks take tasks that the program does not have.
    """
    if len(before.price.loads) < 2:
        return False
    nodes = before.tiled.program.nodes
    made = sum(node.nbytes for node in nodes if node.has_inner_tasks)
    is_unknown = made > rules.most_unknown * sum(node.nbytes for node in nodes)
    return is_unknown or before.price.balance <= rules.concentrated
