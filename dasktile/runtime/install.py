"""Putting the plugins on a cluster that runs, and taking them off."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from distributed import Client, Scheduler, Worker, WorkerPlugin

from dasktile.runtime.clients import client_of
from dasktile.runtime.scheduler_plugin import TileSchedulerPlugin

#: Under this name both plugins are registered.
NAME = "dasktile"


def enable(client: Client | None = None, placement: bool = True) -> Any:
    """Let a cluster run the tasks of optimised collections where their plans say.

    Works on any running cluster, and may be called again.  Workers that join later are
    included.  A scheduler or worker without the package is left alone, with a warning: it
    works as before, but optimised collections cannot run on it.

    Parameters
    ----------
    client
        A client of the cluster, by default the current one.  With an asynchronous one,
        await the result.
    placement
        False to measure only (:func:`dasktile.metrics`).

    Raises
    ------
    TypeError
        If `client` is no ``distributed.Client``.
    ValueError
        If it is closed, or there is none.

    See Also
    --------
    disable
    """
    client = client_of(client)
    if not isinstance(placement, bool):
        raise TypeError(
            f"placement must be True or False; got {placement!r} of type {type(placement).__name__}"
        )
    return client.sync(_enable, client, placement)


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


async def _enable(client: Client, placement: bool) -> None:
    if not await client.run_on_scheduler(_finder()):
        warnings.warn(
            "dasktile cannot be imported by the scheduler; the cluster is left as it is, and"
            " optimised collections cannot run on it. Install dasktile on the scheduler and on"
            " every worker",
            stacklevel=2,
        )
        return
    await client.run_on_scheduler(_take_off)
    await client.register_plugin(TileSchedulerPlugin(placement=placement), name=NAME)
    await client.register_plugin(_worker_plugin(), name=NAME)
    lacking = [
        address
        for address, found in (await client.run(_finder(), on_error="return")).items()
        if found is not True
    ]
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
    if NAME in await client.run_on_scheduler(_worker_plugins):
        await client.unregister_worker_plugin(NAME)


def _take_off(dask_scheduler: Scheduler) -> None:
    plugin = dask_scheduler.plugins.get(NAME)
    if isinstance(plugin, TileSchedulerPlugin):
        dask_scheduler.remove_plugin(NAME)
        plugin.detach()


def _worker_plugins(dask_scheduler: Scheduler) -> list[str]:
    return list(dask_scheduler.worker_plugins)


def _finder() -> Any:
    # A function of no module is sent by value, to where the package may be missing.
    def find() -> bool:
        try:
            import dasktile.runtime.scheduler_plugin  # noqa: F401
        except ImportError:
            return False
        return True

    return find


def _worker_plugin() -> WorkerPlugin:
    """The worker's plugin, in a wrapping that a worker without the package can open."""

    class Wrapped(WorkerPlugin):
        plugin: Any = None

        def setup(self, worker: Worker) -> Any:
            try:
                from dasktile.runtime.worker_plugin import TileWorkerPlugin
            except ImportError:
                logging.getLogger("distributed.worker").warning(
                    "dasktile is not installed here: tasks of optimised collections cannot run"
                )
                return None
            self.plugin = TileWorkerPlugin()
            return self.plugin.setup(worker)

        def teardown(self, worker: Worker) -> Any:
            return self.plugin.teardown(worker) if self.plugin is not None else None

        def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
            if self.plugin is not None:
                self.plugin.transition(key, start, finish, **kwargs)

    return Wrapped()
