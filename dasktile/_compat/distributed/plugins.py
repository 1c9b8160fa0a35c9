"""Plugins of schedulers and workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dasktile._compat.distributed.checks import check
from dasktile._compat.distributed.features import Feature
from dasktile._compat.distributed.table import PROCESS

if TYPE_CHECKING:
    from distributed import Scheduler, SchedulerPlugin, Worker, WorkerPlugin


def plugin_of(server: Scheduler | Worker, name: str) -> Any:
    """A plugin by its name, None if there is none."""
    return getattr(server, "plugins", {}).get(name)


def worker_plugin_names(scheduler: Scheduler) -> list[str]:
    """Names of the plugins that new workers get."""
    return list(getattr(scheduler, "worker_plugins", ()))


def remove_plugin(scheduler: Scheduler, name: str) -> None:
    """Remove a plugin from a scheduler."""
    scheduler.remove_plugin(name)


async def preload_scheduler(scheduler: Scheduler, plugin: SchedulerPlugin, name: str) -> None:
    """Add a plugin to a scheduler that starts; do nothing where that is unavailable."""
    if not check(PROCESS, {}, [Feature.PRELOAD]):
        await scheduler.register_scheduler_plugin(plugin, name=name, idempotent=True)


async def preload_worker(worker: Worker, plugin: WorkerPlugin, name: str) -> None:
    """Add a plugin to a worker that starts; do nothing where that is unavailable."""
    if not check(PROCESS, {}, [Feature.PRELOAD]):
        await worker.plugin_add(plugin, name=name)
