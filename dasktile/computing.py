"""``compute``: optimise collections, compute them, and join the results in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import dask
from dask.base import compute as dask_compute
from dask.base import get_scheduler
from dask.diagnostics.progress import ProgressBar
from distributed import Client, get_client, get_worker
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dasktile.api import optimize, optimize_to_gather
from dasktile.collections.containers import unpack
from dasktile.errors import parse_flag
from dasktile.runtime.results import gather, gather_asynchronously


def compute(
    *collections: Any,
    method: str = "auto",
    workers: Any = None,
    memory_limit: float | str | None = None,
    traverse: bool = True,
    progress: bool = False,
    scheduler: Any = None,
) -> Any:
    """Optimise collections and compute them, as ``dask.compute(*optimize(...))`` does.

    Results of :func:`optimize` for as many workers are computed as they are, without another plan,
    unless `method` or `memory_limit` is given, or many blocks would be tasks of their own.

    On a cluster of distributed the results are joined in this process: Dask first joins all blocks
    of a result on one worker, which needs memory for all of it, and sends it to the client then.
    Blocks that one task makes arrive together, and need no tasks of their own.
    In a task, and for collections that are expressions, such as dataframes, Dask does that here,
    too.

    Parameters
    ----------
    *collections
        Dask collections, also in lists, tuples, dicts and other containers.  Other objects are
        returned as they are.
    method, memory_limit
        As for :func:`optimize`.
    workers
        As for :func:`optimize`; a ``distributed.Client`` also computes the results.
    traverse
        False to look for collections in no containers.
    progress
        Whether to show a progress bar on the standard error stream.
    scheduler
        What runs the tasks, as for ``dask.compute``: ``"threads"``, ``"processes"``, ``"sync"``, a
        client or a function.  None for what Dask would choose.

    Returns
    -------
    tuple
        A tuple of the results, one for each argument; an awaitable of it with an asynchronous
        client.

    Raises
    ------
    TypeError, ValueError
        As for :func:`optimize`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dasktile
    >>> x = da.ones((1000, 1000), chunks=(100, 1000))
    >>> total, means = dasktile.compute(x.sum(), x.mean(axis=0))
    """
    progress = parse_flag("progress", progress)
    found, repack = unpack(*collections, traverse=parse_flag("traverse", traverse))
    # only while the plan is made: other threads have the same configuration
    with nullcontext() if scheduler is None else dask.config.set(scheduler=scheduler):
        try:
            client = _client(workers, found)
        except (RuntimeError, ValueError):
            # as Dask, which looks for no scheduler where there is nothing to compute
            if found:
                raise
            client = None
        if not found:
            is_awaited = client is not None and client.asynchronous
            return _completed(collections) if is_awaited else collections
        options = {"method": method, "workers": workers, "memory_limit": memory_limit}
        if client is None:
            optimized = optimize(*found, **options)
            optimized = (optimized,) if len(found) == 1 else optimized
        else:
            optimized = optimize_to_gather(*found, **options)
    if client is not None and client.asynchronous:
        return _awaited(client, optimized, progress, repack)
    if client is not None:
        with _progress_bar(progress) as received:
            return repack(gather(client, optimized, received))
    with ProgressBar(out=sys.stderr) if progress else nullcontext():
        return repack(dask_compute(*optimized, traverse=False, scheduler=scheduler))


async def _completed(results: tuple[Any, ...]) -> tuple[Any, ...]:
    """What there is nothing to compute of."""
    return results


async def _awaited(
    client: Client,
    optimized: Sequence[Any],
    progress: bool,
    repack: Callable[[Sequence[Any]], tuple[Any, ...]],
) -> tuple[Any, ...]:
    """The results of collections that an asynchronous client computes."""
    with _progress_bar(progress) as received:
        return repack(await gather_asynchronously(client, optimized, received))


def _client(workers: Any, collections: Any) -> Client | None:
    """The client that computes collections; None if no cluster does, or if a task computes them."""
    client = workers
    if not isinstance(client, Client):
        # as dask.compute chooses, by its configuration and the current client
        try:
            client = getattr(get_scheduler(collections=collections), "__self__", None)
        except RuntimeError:
            # that of an asynchronous client, or there is none
            client = dask.config.get("scheduler", default=None)
            if not isinstance(client, Client):
                with suppress(ValueError):
                    client = get_client()
            if not isinstance(client, Client):
                raise
    if not isinstance(client, Client):
        return None
    if client.asynchronous:
        return client
    try:
        # a task that waits must leave its thread to others, which Dask sees to
        get_worker()
    except ValueError:
        return client
    return None


@contextmanager
def _progress_bar(progress: bool) -> Iterator[Callable[[int, int], object]]:
    """A function that shows how many blocks have arrived."""
    if not progress:
        yield lambda count, total: None
        return
    columns = (TextColumn("blocks"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as bar:
        task = bar.add_task("blocks", total=None)
        yield lambda count, total: bar.update(task, completed=count, total=total)
