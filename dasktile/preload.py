"""For ``dask scheduler --preload dasktile.preload`` and ``dask worker --preload ...``.

The scheduler's plugin places the tasks of optimised collections.  The worker's plugin counts
received bytes, and evicts the results whose next use is last.
"""

from __future__ import annotations

from distributed import Scheduler, Worker

from dasktile._compat import distributed as internals
from dasktile.runtime.install import NAME
from dasktile.runtime.scheduler.plugin import TileSchedulerPlugin
from dasktile.runtime.worker.data import SpillOptions
from dasktile.runtime.worker.plugin import TileWorkerPlugin


async def dask_setup(server: Scheduler | Worker) -> None:
    """Add the plugin to a scheduler or worker that starts."""
    if isinstance(server, Scheduler):
        await internals.preload_scheduler(server, TileSchedulerPlugin(), NAME)
    elif isinstance(server, Worker):
        await internals.preload_worker(server, TileWorkerPlugin(SpillOptions()), NAME)
