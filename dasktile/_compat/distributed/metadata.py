"""Values that a scheduler keeps for clients, which read them by ``client.get_metadata``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Scheduler


def publish(scheduler: Scheduler, topic: str, name: str, value: Any) -> None:
    """Store a value for ``client.get_metadata([topic, name])``."""
    scheduler.task_metadata.setdefault(topic, {})[name] = value


def withdraw(scheduler: Scheduler, topic: str, name: str) -> None:
    """Remove a value that :func:`publish` has stored."""
    values = scheduler.task_metadata.get(topic, {})
    values.pop(name, None)
    if not values:
        scheduler.task_metadata.pop(topic, None)


def keeper(
    name: str, topic: str, item: str, value: dict[str, Any]
) -> Callable[[Scheduler], str | None]:
    """A function for ``Client.run_on_scheduler`` that stores a value and restores it on restart.

    It is pickled by value, since the scheduler may lack this package.

    Parameters
    ----------
    name
        Name of the plugin that assigns the value again.
    topic, item
        Clients read it by ``client.get_metadata([topic, item])``.
    value
        The value.

    Returns
    -------
    A function that returns None, or the reason why it could not store the value.
    """
    from distributed import SchedulerPlugin

    def keep(dask_scheduler: Scheduler) -> str | None:
        try:
            from dasktile._compat.distributed.checks import check_calibration
        except ImportError:
            pass
        else:
            reason = check_calibration(dask_scheduler)
            if reason is not None:
                return reason

        class Keeper(SchedulerPlugin):
            def restart(self, scheduler: Scheduler) -> None:
                scheduler.task_metadata.setdefault(topic, {})[item] = dict(value)

        dask_scheduler.plugins.pop(name, None)
        plugin = Keeper()
        dask_scheduler.add_plugin(plugin, name=name)
        plugin.restart(dask_scheduler)
        return None

    return keep
