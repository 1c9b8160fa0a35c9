"""Registers the plugins on a running cluster, and removes them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from distributed import Client, Scheduler, Worker, WorkerPlugin

from dasktile import config
from dasktile._compat.distributed import checks, execution, plugins
from dasktile.capture.user_kernels import carry, registrations
from dasktile.cluster.clients import client_of
from dasktile.errors import parse_flag
from dasktile.runtime.scheduler.plugin import TileSchedulerPlugin
from dasktile.runtime.worker.data import (
    SpillOptions,
    parse_bytes_limit,
    parse_share_limit,
)

#: Name of both plugins.
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
    """Let a cluster run tasks on their home workers, and spill results by next use.

    Works on any running cluster, and may be called again.  Workers that join later are
    included.  A scheduler or worker without the package is unchanged, with a warning: it
    works as before, but optimised collections cannot run on it.

    Parameters
    ----------
    client
        A client of the cluster, by default the current one.  With an asynchronous one,
        await the result.
    placement
        False to let the scheduler choose workers as without dasktile.
    spilling
        False to keep distributed's own spilling.  Workers without a memory limit, and workers
        with a mapping of the user's for their results, always keep their mapping.
    memory_limit
        Memory of each worker, in bytes or as ``"2 GiB"``: results take the share
        ``distributed.worker.memory.target`` of it.  By default the limit that the worker was
        started with.
    device_memory_limit
        GPU memory that results may take, in bytes, as ``"10 GiB"``, or a share of the GPU's memory
        up to 1.  By default the limit that a worker of dask-cuda was started with; other workers
        do not use a GPU.
    prefetch
        Whether spilled results are prefetched.
    device
        Kind of the GPU; see `dasktile.runtime.tiers`.

    Raises
    ------
    TypeError
        If `client` is no ``distributed.Client``, or another argument has the wrong type.
    ValueError
        If the client is closed, there is none, or a limit is invalid.

    See Also
    --------
    disable
    worker_data

    Examples
    --------
    >>> import dask.array as da
    >>> import dasktile
    >>> from distributed import Client
    >>> with Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
    ...     dasktile.enable(client)
    ...     x = dasktile.optimize(da.ones((1000, 1000), chunks=(100, 1000)).T.sum(axis=0))
    ...     x.sum().compute()
    np.float64(1000000.0)
    """
    client = client_of(client)
    config.check()
    placement = parse_flag("placement", placement)
    spill = None
    if parse_flag("spilling", spilling):
        spill = SpillOptions(
            parse_bytes_limit("memory_limit", memory_limit),
            parse_share_limit("device_memory_limit", device_memory_limit),
            parse_flag("prefetch", prefetch),
            device,
        )
    return client.sync(_enable, client, placement, spill)


def disable(client: Client | None = None) -> Any:
    """Remove the plugins and restore the cluster.

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

    Examples
    --------
    >>> import dasktile
    >>> from distributed import Client
    >>> with Client(n_workers=1, threads_per_worker=1, dashboard_address=":0") as client:
    ...     dasktile.enable(client)
    ...     dasktile.disable(client)
    """
    client = client_of(client)
    return client.sync(_disable, client)


async def _enable(client: Client, placement: bool, spill: SpillOptions | None) -> None:
    if await client.run_on_scheduler(_probe()) is None:
        warnings.warn(
            "dasktile cannot be imported by the scheduler; the cluster is unchanged, and"
            " optimised collections cannot run on it. Install dasktile on the scheduler and on"
            " every worker",
            stacklevel=2,
        )
        return
    reason = await client.run_on_scheduler(_unusable)
    if reason is not None:
        warnings.warn(reason, stacklevel=2)
        return
    # a second registration would move all results of workers to their old mapping and back
    unchanged = await client.run_on_scheduler(_has_options, spill)
    counts = await client.run_on_scheduler(_remove_plugin)
    plugin = TileSchedulerPlugin(placement=placement, hints=spill is not None)
    plugin.spill = spill
    if unchanged and counts is not None:
        # the workers continue to count, too
        plugin.resume(counts)
    await client.register_plugin(plugin, name=NAME)
    if not unchanged:
        await client.register_plugin(_worker_plugin(spill), name=NAME)
    if spill is not None:
        # a worker gets hints only after a heartbeat that shows that it has a handler for them
        answers = await client.run(_heartbeat, on_error="return")
        await client.run_on_scheduler(_send_all_hints)
        # a worker without the package cannot answer, see below
        failed = {at: each for at, each in answers.items() if isinstance(each, str) and each}
        if failed:
            warnings.warn(
                "dasktile could not install its store on these workers, which keep the spilling of"
                f" distributed: {_by_worker(failed)}",
                stacklevel=2,
            )
    await _declare(client)
    unavailable = await client.run_on_scheduler(_unavailable)
    without_package: dict[str, Any] = {}
    for address, features in (await client.run(_probe(), on_error="return")).items():
        if isinstance(features, dict):
            unavailable = {**features, **unavailable}
        else:
            without_package[address] = features and repr(features)
    for reason in unavailable.values():
        warnings.warn(reason, stacklevel=2)
    if without_package:
        warnings.warn(
            f"dasktile cannot be imported by these workers: {_by_worker(without_package)}."
            " Tasks of optimised collections cannot run there, and workers may fail with them."
            " Install dasktile on every worker",
            stacklevel=2,
        )


async def _declare(client: Client) -> None:
    """Register the functions of this process on the scheduler, where the hook optimises."""
    for function, use in registrations():
        # a function of a module that is not there, or that cannot be sent
        with suppress(Exception):
            await client.run_on_scheduler(partial(carry, function, use))


def _by_worker(answers: Mapping[str, Any]) -> str:
    """The addresses of workers, with their errors where these are known."""
    return ", ".join(
        address if error is None else f"{address} ({error})"
        for address, error in sorted(answers.items())
    )


async def _disable(client: Client) -> None:
    try:
        await client.run_on_scheduler(_remove_plugin)
    except ImportError:
        return
    if NAME in await client.run_on_scheduler(_worker_plugin_names):
        await client.unregister_worker_plugin(NAME)


def _remove_plugin(dask_scheduler: Scheduler) -> dict[str, Any] | None:
    """Remove the scheduler's plugin; return its counts, None if there is none."""
    plugin = plugins.plugin_of(dask_scheduler, NAME)
    if not isinstance(plugin, TileSchedulerPlugin):
        return None
    plugins.remove_plugin(dask_scheduler, NAME)
    plugin.detach()
    return plugin.counts()


def _worker_plugin_names(dask_scheduler: Scheduler) -> list[str]:
    return plugins.worker_plugin_names(dask_scheduler)


def _unusable(dask_scheduler: Scheduler) -> str | None:
    """Why no plugin can be registered on the scheduler; None if one can."""
    return checks.check_enable(dask_scheduler)


def _unavailable(dask_scheduler: Scheduler) -> dict[str, str]:
    """Features that the scheduler's plugin lacks, and why."""
    plugin = plugins.plugin_of(dask_scheduler, NAME)
    features = plugin.unavailable if isinstance(plugin, TileSchedulerPlugin) else {}
    return {feature.value: reason for feature, reason in features.items()}


def _probe() -> Any:
    # A nested function is pickled by value, for servers without the package.
    def find(dask_worker: Worker | None = None) -> dict[str, str] | None:
        """Features that a worker's plugin lacks, and why; None without the package."""
        try:
            from dasktile.runtime.worker.plugin import unavailable_on
        except ImportError:
            return None
        return {} if dask_worker is None else unavailable_on(dask_worker)

    return find


async def _heartbeat(dask_worker: Worker) -> str:
    """Send a heartbeat; return the error if the store could not be installed, else nothing."""
    await execution.heartbeat(dask_worker)
    plugin: Any = getattr(plugins.plugin_of(dask_worker, NAME), "plugin", None)
    return "" if plugin is None or plugin.spilling is not None else str(plugin.first_error)


def _has_options(spill: SpillOptions | None, dask_scheduler: Scheduler) -> bool:
    plugin = plugins.plugin_of(dask_scheduler, NAME)
    if spill is None or not isinstance(plugin, TileSchedulerPlugin):
        return False
    return NAME in plugins.worker_plugin_names(dask_scheduler) and plugin.spill == spill


def _send_all_hints(dask_scheduler: Scheduler) -> None:
    plugin = plugins.plugin_of(dask_scheduler, NAME)
    if isinstance(plugin, TileSchedulerPlugin):
        plugin.send_all_hints()


def _worker_plugin(spill: SpillOptions | None) -> WorkerPlugin:
    """The worker's plugin, in a wrapper that a worker without the package can unpickle."""
    options = None if spill is None else asdict(spill)

    class Wrapped(WorkerPlugin):
        plugin: Any = None

        def setup(self, worker: Worker) -> Any:
            try:
                from dasktile.runtime.worker.data import SpillOptions
                from dasktile.runtime.worker.plugin import TileWorkerPlugin
            except ImportError:
                logging.getLogger("distributed.worker").warning(
                    "dasktile is not installed here: tasks of optimised collections cannot run"
                )
                return None
            self.plugin = TileWorkerPlugin(None if options is None else SpillOptions(**options))
            # called for every transition: not by way of this object
            self.transition = self.plugin.transition  # type: ignore[method-assign]
            return self.plugin.setup(worker)

        def teardown(self, worker: Worker) -> Any:
            return self.plugin.teardown(worker) if self.plugin is not None else None

    return Wrapped()


async def installed(client: Client) -> dict[str, Any]:
    """What is installed and enabled on the processes of a cluster.

    Parameters
    ----------
    client
        A client of the cluster.

    Returns
    -------
    For ``"scheduler"`` and for each address under ``"workers"``: ``"versions"`` of Python and of
    packages (None if one is missing), ``"enabled"``, ``"store"`` (whether a worker keeps its
    results in dasktile's store), and ``"unavailable"`` features with reasons.
    """
    scheduler = await client.run_on_scheduler(_describe())
    workers = await client.run(_describe(), on_error="return")
    return {
        "scheduler": scheduler,
        "workers": {
            address: answer if isinstance(answer, dict) else {"error": repr(answer)}
            for address, answer in sorted(workers.items())
        },
    }


def _describe() -> Any:
    # a nested function is pickled by value, for servers without the package
    name = NAME

    def describe(
        dask_scheduler: Scheduler | None = None, dask_worker: Worker | None = None
    ) -> dict[str, Any]:
        import platform
        from importlib import metadata

        versions: dict[str, str | None] = {"python": platform.python_version()}
        for package in ("dask", "distributed", "numpy", "dasktile"):
            try:
                versions[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                versions[package] = None
        server = dask_worker or dask_scheduler
        plugin: Any = None if server is None else server.plugins.get(name)
        plugin = getattr(plugin, "plugin", plugin)
        features = getattr(plugin, "unavailable", {})
        return {
            "versions": versions,
            "enabled": plugin is not None,
            "store": getattr(plugin, "spilling", None) is not None,
            "unavailable": {feature.value: reason for feature, reason in features.items()},
        }

    return describe
