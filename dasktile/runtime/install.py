"""Putting the plugins on a cluster that runs, and taking them off."""

from __future__ import annotations

import warnings
from typing import Any

from distributed import Client, Scheduler, Worker, WorkerPlugin

from dasktile.runtime.scheduler_plugin import TileSchedulerPlugin

#: Under this name both plugins are registered.
NAME = "dasktile"


def enable(client: Client, placement: bool = True) -> Any:
    """Let a cluster run the tasks of optimised collections where their plans say.

    Works on any running cluster.  Workers that join later are included.  A scheduler or
    worker without the package is left alone, with a warning, and works as before.

    Parameters
    ----------
    client
        A client of the cluster.  With an asynchronous one, await the result.
    placement
        False to measure only (:func:`dasktile.metrics`).

    Raises
    ------
    TypeError
        If `client` is no ``distributed.Client``.

    See Also
    --------
    disable
    """
    _check(client)
    if not isinstance(placement, bool):
        raise TypeError(
            f"placement must be True or False; got {placement!r} of type {type(placement).__name__}"
        )
    return client.sync(_enable, client, placement)


def disable(client: Client) -> Any:
    """Take the plugins off again and leave the cluster as it was.

    Parameters
    ----------
    client
        A client of the cluster.  With an asynchronous one, await the result.

    Raises
    ------
    TypeError
        If `client` is no ``distributed.Client``.
    """
    _check(client)
    return client.sync(_disable, client)


def _check(client: object) -> None:
    if not isinstance(client, Client):
        raise TypeError(
            f"client must be a distributed.Client; got {client!r} of type {type(client).__name__}"
        )


async def _enable(client: Client, placement: bool) -> None:
    if not await client.run_on_scheduler(_finder()):
        warnings.warn(
            "dasktile cannot be imported by the scheduler; the cluster is left as it is."
            " Install dasktile there, or start it with --preload dasktile.preload",
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
            "dasktile cannot be imported by these workers; they run as without it:"
            f" {', '.join(sorted(lacking))}. Install dasktile there",
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
                return None
            self.plugin = TileWorkerPlugin()
            return self.plugin.setup(worker)

        def teardown(self, worker: Worker) -> Any:
            return self.plugin.teardown(worker) if self.plugin is not None else None

        def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
            if self.plugin is not None:
                self.plugin.transition(key, start, finish, **kwargs)

    return Wrapped()
