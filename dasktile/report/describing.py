"""Explanations of plans, made of a plan and of what is predicted of its run."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol, cast

from dasktile.ir import Chunks, Range, Sharding, axis_ranges
from dasktile.report.dimensions import with_dimensions
from dasktile.report.explanation import Explanation
from dasktile.report.rows import NodeReport
from dasktile.tiling.plan import TilingPlan

#: Bytes in a simulated run over those of the model, and bytes beyond them, up to which nothing is
#: sent that the model does not count (chosen: counts beside sums, headers).
NEARLY, FEW = 1.01, 2**16


class Run(Protocol):
    """A simulated run: tasks, bytes received, and bytes in memory of workers and of one task."""

    @property
    def tasks(self) -> int: ...

    @property
    def moved(self) -> int: ...

    @property
    def peak(self) -> int: ...

    @property
    def results(self) -> int: ...

    @property
    def by_worker(self) -> tuple[int, ...]: ...

    @property
    def task(self) -> int: ...

    @property
    def from_memory(self) -> bool: ...

    @property
    def between_hosts(self) -> int | None: ...

    @property
    def busiest_link(self) -> int: ...


class UnknownArray(Protocol):
    """An array whose chunk sizes are unknown."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> Any: ...

    @property
    def chunks(self) -> tuple[tuple[float, ...], ...]: ...


def describe_plan(
    plan: TilingPlan,
    outputs: Sequence[Chunks | None] = (),
    unknown: Sequence[UnknownArray] = (),
    seconds: tuple[float | None, float | None] | None = None,
    runs: tuple[Run | None, Run | None] = (None, None),
    room: int | None = None,
    assumed_room: int | None = None,
    joined: int = 0,
    placed: bool = True,
    handed: tuple[Mapping[int, int], Mapping[int, int]] = ({}, {}),
    unpredicted: str = "",
    layers: Mapping[int, tuple[str, ...]] = MappingProxyType({}),
    bundle: int = 0,
    unplanned: int = 0,
    variables: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    memory: int | None = None,
    dims: Mapping[str, tuple[Hashable, ...]] = MappingProxyType({}),
    in_memory: bool = False,
) -> Explanation:
    """Describe a plan.

    Parameters
    ----------
    plan
        The plan.
    outputs
        For every output of the program, its final chunks, or None if those are the tiling's.
    unknown
        Arrays on top of the program whose chunk sizes are not known.
    seconds
        Predicted seconds of the input and of the plan, None for each that is unknown; None without
        a prediction.
    runs
        Simulated runs of the input and of the plan; None for each without a prediction.
    room
        Bytes of results that a worker holds before it spills; None if that is unknown.
    assumed_room
        What the plan assumes in place of unknown `room`; None if it assumes nothing.
    joined
        Bytes of the largest result that Dask joins on one worker.
    placed
        Whether tasks run on the workers of the plan; the bytes of other runs are not shown.
    handed
        By the index of an output, bytes that workers receive for chunks that were chosen after the
        plan, of the input and of the plan.
    unpredicted
        Why there are no simulated runs.
    layers
        By the index of a node, names of the layers that make its array.
    bundle
        Tasks that one task of the plan's graph runs at the most; 0 if they are not bundled.
    unplanned
        Bytes that workers receive beside those of the plan.
    variables
        By the name of an array, the names of the variables of xarray objects that have it.
    memory
        Bytes that a worker may have in all; None if that is unknown.
    dims
        By the name of an array, its dimensions in these objects.
    in_memory
        Whether workers have blocks of the input, or data that they are made of, in memory.
    """
    before, after = seconds or (None, None)
    stock, planned = runs
    old, new = handed
    # most simulations do not know which workers have the blocks that are in memory already
    # blocks in another order than that of boxes on a grid may move fewer bytes than any of these
    is_bound = (
        not placed
        or plan.counts_unneeded
        or (
            (planned is None or planned.moved >= plan.lower_bound - FEW)
            and (stock is None or stock.moved > 0 or plan.lower_bound <= FEW)
        )
    )
    is_counted = placed and (not in_memory or (stock is not None and stock.from_memory))
    final = {
        index: chunks
        for index, chunks in zip(plan.program.outputs, outputs, strict=False)
        if chunks is not None
    }
    given = [
        plan.reasons[index] if index < len(plan.reasons) else node.reason
        for index, node in enumerate(plan.program.nodes)
    ]
    reasons = with_dimensions(plan.program, given, dims)
    nodes = tuple(
        NodeReport(
            name=node.name,
            op=f"{node.op} (recomputed)" if node.copy and node.op != "copy" else node.op,
            shape=node.shape,
            dtype=node.dtype,
            chunks_before=node.chunks,
            chunks_after=_chunks_after(plan, index, final),
            bytes_before=plan.before.received(index) + old.get(index, 0),
            bytes_after=plan.after.received(index) + new.get(index, 0),
            read_before=plan.before.read[index],
            read_after=plan.after.read[index],
            tasks_before=plan.before.tasks[index],
            tasks_after=plan.after.tasks[index],
            reason=reasons[index],
            inputs=tuple(dict.fromkeys(edge.producer for edge in node.edges)),
            homes=_homes(plan, index, final),
            positions=_positions(plan),
            layers=layers.get(index, ()),
            variables=() if node.copy else variables.get(node.name, ()),
            needed=_needed_part(plan, index),
        )
        for index, node in enumerate(plan.program.nodes)
    )
    return Explanation(
        workers=plan.workers,
        method=plan.method,
        bytes_before=plan.before.bytes + sum(old.values()),
        bytes_after=plan.after.bytes + sum(new.values()),
        read_before=sum(plan.before.read),
        read_after=sum(plan.after.read),
        tasks_before=sum(plan.before.tasks),
        tasks_after=sum(plan.after.tasks),
        lower_bound=plan.lower_bound if is_bound else 0,
        # the search does not contain bytes for chunks on which arrays agree
        proven_optimal=plan.proven_optimal
        and is_bound
        and not any(new.values())
        and (plan.tiled is None or not is_counted or _moves_as_counted(plan.after.bytes, planned)),
        grids=plan.grids if is_bound else "",
        counts_unneeded=plan.counts_unneeded,
        changed=plan.tiled is not None,
        verdict=plan.verdict if plan.tiled is None else "",
        nodes=_with_unknown(nodes, unknown, variables),
        balance_before=plan.before.balance,
        balance_after=plan.after.balance,
        spilled_before=plan.before.spilled,
        spilled_after=plan.after.spilled,
        seconds_before=before,
        seconds_after=after,
        peak_before=None if stock is None else stock.peak,
        peak_after=None if planned is None else planned.peak,
        results_before=None if stock is None else stock.results,
        results_after=None if planned is None else planned.results,
        results_by_worker=() if planned is None else planned.by_worker,
        largest_task=None if planned is None else planned.task,
        room=room,
        memory=memory,
        assumed_room=assumed_room,
        joined=joined,
        run_tasks_before=None if stock is None else stock.tasks,
        run_tasks_after=None if planned is None else planned.tasks,
        received_before=stock.moved if is_counted and stock is not None else None,
        received_after=planned.moved if is_counted and planned is not None else None,
        busiest_link_before=stock.busiest_link if is_counted and stock is not None else None,
        busiest_link_after=planned.busiest_link if is_counted and planned is not None else None,
        unpredicted=unpredicted,
        in_memory=in_memory,
        uncounted=plan.uncounted,
        bundle=0 if plan.tiled is None else bundle,
        bytes_unplanned=unplanned,
        used_workers=plan.used_workers if plan.used_workers < plan.workers else None,
        bytes_on_all=plan.bytes_on_all,
        received_between_hosts=(
            planned.between_hosts
            if is_counted and planned is not None and plan.tiled is not None
            else None
        ),
    )


def describe_unplanned(
    workers: int,
    method: str,
    unknown: Sequence[UnknownArray] = (),
    verdict: str = "",
    variables: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> Explanation:
    """The explanation of an expression without arrays that could be tiled."""
    verdict = verdict or ("" if unknown else "no dask arrays to tile")
    rows = tuple(_unknown_row(array, variables) for array in unknown)
    return Explanation(
        workers=workers,
        method=method,
        bytes_before=0,
        bytes_after=0,
        read_before=0,
        read_after=0,
        tasks_before=0,
        tasks_after=0,
        lower_bound=0,
        proven_optimal=not unknown,
        changed=False,
        verdict=verdict,
        nodes=rows,
        counts_all=workers == 1 or not unknown,
    )


def _with_unknown(
    nodes: Sequence[NodeReport],
    unknown: Sequence[UnknownArray],
    variables: Mapping[str, tuple[str, ...]],
) -> tuple[NodeReport, ...]:
    """The rows of a plan, in which results of unknown chunk sizes have these, and further ones."""
    rows = {array.name: _unknown_row(array, variables) for array in unknown}
    known = {node.name for node in nodes}
    changed = [
        replace(
            node,
            shape=rows[node.name].shape,
            chunks_before=rows[node.name].chunks_before,
            chunks_after=rows[node.name].chunks_after,
            reason=rows[node.name].reason,
            variables=rows[node.name].variables,
        )
        if node.name in rows
        else node
        for node in nodes
    ]
    return (*changed, *(row for name, row in rows.items() if name not in known))


def _unknown_row(array: UnknownArray, variables: Mapping[str, tuple[str, ...]]) -> NodeReport:
    chunks = cast(Chunks, tuple(tuple(sizes) for sizes in array.chunks))
    return NodeReport(
        name=array.name,
        op=array.name.rpartition("-")[0] or array.name,
        shape=tuple(map(sum, chunks)),
        dtype=str(array.dtype),
        chunks_before=chunks,
        chunks_after=chunks,
        bytes_before=0,
        bytes_after=0,
        read_before=0,
        read_after=0,
        tasks_before=0,
        tasks_after=0,
        reason="its chunk sizes are unknown until it is computed (see compute_chunk_sizes)",
        inputs=(),
        variables=variables.get(array.name, ()),
    )


def _needed_part(plan: TilingPlan, index: int) -> tuple[Range, ...] | None:
    """The range of every axis that contains all that is needed; None if that is everything."""
    if plan.tiled is None or plan.tiled.ranges is None:
        return None
    node = plan.program.nodes[index]
    part = axis_ranges(node, plan.tiled.ranges[index])
    return None if part == tuple((0, size) for size in node.shape) else part


def _chunks_after(plan: TilingPlan, index: int, final: dict[int, Chunks]) -> Chunks:
    tiles = plan.program.nodes[index].chunks
    if plan.tiled is not None:
        tiles = plan.tiled.tilings[index].chunks
    return final.get(index, tiles)


def _homes(plan: TilingPlan, index: int, final: dict[int, Chunks]) -> tuple[tuple[int, ...], ...]:
    """The workers of an array's tiles, as :attr:`NodeReport.homes`."""
    if plan.tiled is None:
        return ()
    tiling, mesh = plan.tiled.tilings[index], plan.tiled.mesh
    if final.get(index, tiling.chunks) != tiling.chunks:
        return ()
    held = tiling.held_at
    if not isinstance(held, Sharding) or len(held.dims) != len(tiling.chunks):
        return ()
    homes = []
    for share, sizes in zip(held.dims, tiling.chunks, strict=True):
        workers = _part_workers(share.by, mesh)
        runs = share.runs or (len(sizes),)
        owners = [worker for worker, run in zip(workers, runs, strict=False) for _ in range(run)]
        if len(owners) != len(sizes):
            return ()
        homes.append(tuple(owners))
    return tuple(homes)


def _moves_as_counted(counted: int, run: Run | None) -> bool:
    """Whether workers receive no more in a simulated run than the model counts."""
    return run is None or run.moved <= NEARLY * counted + FEW


def _positions(plan: TilingPlan) -> int:
    """Positions of the mesh of a plan, if these are more than the workers; else 0."""
    positions = 0 if plan.tiled is None else math.prod(plan.tiled.mesh)
    return positions if positions > plan.workers else 0


def _part_workers(by: Sequence[int], mesh: Sequence[int]) -> list[int]:
    """For every part along mesh axes, slowest first, what it adds to the number of a worker."""
    workers = [0]
    for axis in by:
        stride = math.prod(mesh[axis + 1 :])
        workers = [worker + stride * place for worker in workers for place in range(mesh[axis])]
    return workers
