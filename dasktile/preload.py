"""For ``dask scheduler --preload dasktile.preload`` and ``dask worker --preload ...``.

The scheduler's plugin places the tasks of optimised collections.  The worker's plugin counts
received bytes, and evicts the results whose next use is last.
"""

from __future__ import annotations

from distributed import Scheduler, Worker

from dasktile._compat.distributed import plugins
from dasktile.runtime.install import NAME
from dasktile.runtime.scheduler.plugin import TileSchedulerPlugin
from dasktile.runtime.worker.data import SpillOptions
from dasktile.runtime.worker.plugin import TileWorkerPlugin


async def dask_setup(server: Scheduler | Worker) -> None:
    """Add the plugin to a scheduler or worker that starts."""
    if isinstance(server, Scheduler):
        await plugins.preload_scheduler(server, TileSchedulerPlugin(), NAME)
    elif isinstance(server, Worker):
        await plugins.preload_worker(server, TileWorkerPlugin(SpillOptions()), NAME)
