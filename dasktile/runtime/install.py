"""Putting the plugins on a cluster that runs, and taking them off."""

from __future__ import annotations

import logging
import warnings
from dataclasses import asdict
from typing import Any

from distributed import Client, Scheduler, Worker, WorkerPlugin

from dasktile._compat import distributed as internals
from dasktile.cluster.clients import client_of
from dasktile.runtime.scheduler.plugin import TileSchedulerPlugin
from dasktile.runtime.worker.data import Spill, bytes_of, flag, part_of

#: Under this name both plugins are registered.
NAME = "dasktile"


def enable(
    client: Client | None = None,
    placement: bool = True,
    *,
    spilling: bool = True,
    memory_limit: str | float | None = None,
    device_memory_limit: str | float | None = None,
    prefetch: bool = True,
    device: str = "cupy",
) -> Any:
    """Let a cluster run tasks where their plans say, and spill what is needed last.

    Works on any running cluster, and may be called again.  Workers that join later are
    included.  A scheduler or worker without the package is left alone, with a warning: it
    works as before, but optimised collections cannot run on it.

    Parameters
    ----------
    client
        A client of the cluster, by default the current one.  With an asynchronous one,
        await the result.
    placement
        False to let tasks run where Dask would have them.
    spilling
        False to leave workers the results they have in the mapping that they have.
        Workers without a limit of memory, and those with a mapping of the user's, keep it anyhow.
    memory_limit
        Of each worker, in bytes or as ``"2 GB"``: results take the part of it that
        ``distributed.worker.memory.target`` says.  By default what the worker was started with.
    device_memory_limit
        What results may take of a GPU's memory, in bytes, as ``"10 GB"``, or a part of it up
        to 1.  By default what a worker of dask-cuda was started with, and none elsewhere.
    prefetch
        Whether spilled results are fetched before tasks ask for them.
    device
        Of what kind the GPU is; see `dasktile.runtime.tiers`.

    Raises
    ------
    TypeError
        If `client` is no ``distributed.Client``, or another argument of the wrong type.
    ValueError
        If the client is closed, there is none, or a limit is no number of bytes.

    See Also
    --------
    disable
    worker_data
    """
    client = client_of(client)
    placement = flag("placement", placement)
    spill = None
    if flag("spilling", spilling):
        spill = Spill(
            bytes_of("memory_limit", memory_limit),
            part_of("device_memory_limit", device_memory_limit),
            flag("prefetch", prefetch),
            device,
        )
    return client.sync(_enable, client, placement, spill)


def disable(client: Client | None = None) -> Any:
    """Take the plugins off again and leave the cluster as it was.

    Parameters
    ----------
    client
        A client of the cluster, by default the current one.  With an asynchronous one,
        await the result.

    Raises
    ------
    TypeError
        If `client` is no ``distributed.Client``.
    ValueError
        If it is closed, or there is none.
    """
    client = client_of(client)
    return client.sync(_disable, client)


async def _enable(client: Client, placement: bool, spill: Spill | None) -> None:
    if await client.run_on_scheduler(_finder()) is None:
        warnings.warn(
            "dasktile cannot be imported by the scheduler; the cluster is left as it is, and"
            " optimised collections cannot run on it. Install dasktile on the scheduler and on"
            " every worker",
            stacklevel=2,
        )
        return
    reason = await client.run_on_scheduler(_unusable)
    if reason is not None:
        warnings.warn(reason, stacklevel=2)
        return
    # workers that spill so already would give all results back, and take them over again
    same = await client.run_on_scheduler(_spills_so, spill)
    await client.run_on_scheduler(_take_off)
    plugin = TileSchedulerPlugin(placement=placement, tells=spill is not None)
    plugin.spill = spill
    await client.register_plugin(plugin, name=NAME)
    if not same:
        await client.register_plugin(_worker_plugin(spill), name=NAME)
    if spill is not None:
        # so that the scheduler knows whom it can tell of what is needed next
        failed = [
            address
            for address, errors in (await client.run(_heartbeat, on_error="return")).items()
            if isinstance(errors, int) and errors
        ]
        await client.run_on_scheduler(_tell_all)
        if failed:
            warnings.warn(
                "dasktile could not take over the results of these workers, which keep them as"
                f" before: {', '.join(sorted(failed))}. Their logs say why",
                stacklevel=2,
            )
    unavailable = await client.run_on_scheduler(_unavailable)
    lacking = []
    for address, features in (await client.run(_finder(), on_error="return")).items():
        if isinstance(features, dict):
            unavailable = {**features, **unavailable}
        else:
            lacking.append(address)
    for reason in unavailable.values():
        warnings.warn(reason, stacklevel=2)
    if lacking:
        warnings.warn(
            f"dasktile cannot be imported by these workers: {', '.join(sorted(lacking))}."
            " Tasks of optimised collections cannot run there, and workers may fail with them."
            " Install dasktile on every worker",
            stacklevel=2,
        )


async def _disable(client: Client) -> None:
    try:
        await client.run_on_scheduler(_take_off)
    except ImportError:
        return
    if NAME in await client.run_on_scheduler(_worker_plugin_names):
        await client.unregister_worker_plugin(NAME)


def _take_off(dask_scheduler: Scheduler) -> None:
    plugin = internals.plugin_of(dask_scheduler, NAME)
    if isinstance(plugin, TileSchedulerPlugin):
        internals.remove_plugin(dask_scheduler, NAME)
        plugin.detach()


def _worker_plugin_names(dask_scheduler: Scheduler) -> list[str]:
    return internals.worker_plugin_names(dask_scheduler)


def _unusable(dask_scheduler: Scheduler) -> str | None:
    """Why no plugin can be put on the scheduler; None if one can."""
    return internals.check_enable(dask_scheduler)


def _unavailable(dask_scheduler: Scheduler) -> dict[str, str]:
    """Features that the scheduler's plugin lacks, and why."""
    plugin = internals.plugin_of(dask_scheduler, NAME)
    features = plugin.unavailable if isinstance(plugin, TileSchedulerPlugin) else {}
    return {feature.value: reason for feature, reason in features.items()}


def _finder() -> Any:
    # A function of no module is sent by value, to where the package may be missing.
    def find(dask_worker: Worker | None = None) -> dict[str, str] | None:
        """Features that a worker's plugin lacks, and why; None without the package."""
        try:
            from dasktile.runtime.worker.plugin import unavailable_on
        except ImportError:
            return None
        return {} if dask_worker is None else unavailable_on(dask_worker)

    return find


async def _heartbeat(dask_worker: Worker) -> int:
    """Let the scheduler know what a worker can do; errors in taking its results over."""
    await internals.heartbeat(dask_worker)
    plugin: Any = getattr(internals.plugin_of(dask_worker, NAME), "plugin", None)
    return 0 if plugin is None or plugin.spilling is not None else int(plugin.errors)


def _spills_so(spill: Spill | None, dask_scheduler: Scheduler) -> bool:
    plugin = internals.plugin_of(dask_scheduler, NAME)
    if spill is None or not isinstance(plugin, TileSchedulerPlugin):
        return False
    return NAME in internals.worker_plugin_names(dask_scheduler) and plugin.spill == spill


def _tell_all(dask_scheduler: Scheduler) -> None:
    plugin = internals.plugin_of(dask_scheduler, NAME)
    if isinstance(plugin, TileSchedulerPlugin):
        plugin.tell_all()


def _worker_plugin(spill: Spill | None) -> WorkerPlugin:
    """The worker's plugin, in a wrapping that a worker without the package can open."""
    options = None if spill is None else asdict(spill)

    class Wrapped(WorkerPlugin):
        plugin: Any = None

        def setup(self, worker: Worker) -> Any:
            try:
                from dasktile.runtime.worker.data import Spill
                from dasktile.runtime.worker.plugin import TileWorkerPlugin
            except ImportError:
                logging.getLogger("distributed.worker").warning(
                    "dasktile is not installed here: tasks of optimised collections cannot run"
                )
                return None
            self.plugin = TileWorkerPlugin(None if options is None else Spill(**options))
            return self.plugin.setup(worker)

        def teardown(self, worker: Worker) -> Any:
            return self.plugin.teardown(worker) if self.plugin is not None else None

        def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
            if self.plugin is not None:
                self.plugin.transition(key, start, finish, **kwargs)

    return Wrapped()
