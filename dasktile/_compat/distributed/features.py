"""The features of dasktile that need undocumented names of distributed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

#: Releases of distributed with which the table was checked.
CHECKED_WITH = ("2026.1.1", "2026.7.1", "2026.8.0")


class Feature(Enum):
    """A part of dasktile that can be switched off alone."""

    ENABLE = "dasktile.enable"
    PRELOAD = "dasktile.preload"
    PLACEMENT = "placement"
    ROOTS = "root throttle"
    STEALING = "protection from work stealing"
    LATE_WORKERS = "stealing from late workers"
    REPLICAS = "replicas for readers"
    ORDER = "order of plans"
    HINTS = "next-use hints"
    METRICS = "metrics of transfers"
    PAGE = "dashboard page"
    SPILLING = "spilling"
    PREFETCH = "prefetch for ready tasks"
    CALIBRATION = "kept calibration"
    OWN_SCHEDULER = "planning on the scheduler"
    EMULATED = "emulated device"


#: The effect on users where a feature is unavailable.
WITHOUT = {
    Feature.ENABLE: "the cluster is unchanged",
    Feature.PRELOAD: "the scheduler or worker starts without dasktile",
    Feature.PLACEMENT: "distributed chooses the workers of tasks",
    Feature.ROOTS: "root tasks are sent to their home workers at once",
    Feature.STEALING: "idle workers may steal tasks from their home workers",
    Feature.LATE_WORKERS: "tasks wait for their home workers, however slow these are",
    Feature.REPLICAS: "distributed may drop copies that a task will read",
    Feature.ORDER: "plans run after graphs that were submitted later",
    Feature.HINTS: "workers evict the least recently used results",
    Feature.METRICS: "transfers are not counted, and workers get no next-use hints",
    Feature.PAGE: "the dashboard has no dasktile page",
    Feature.SPILLING: "workers store their results as distributed configures them",
    Feature.PREFETCH: "the inputs of the next tasks are not fetched before others",
    Feature.CALIBRATION: "a restarted scheduler forgets the calibration",
    Feature.OWN_SCHEDULER: "plans are made for the threads of one process",
    Feature.EMULATED: "arrays of the emulated device cannot be sent to other workers",
}


@dataclass(frozen=True)
class Internal:
    """One name of distributed.

    Parameters
    ----------
    owner
        The object that has it: ``package.module:Class``, or a path from one of the objects that
        are passed to `checks.check`, as in ``worker.memory_manager``.
    name
        The name of an attribute of the owner, or of an item if the owner is a mapping, a set or
        a ``Literal``.
    used_for
        The use of it in dasktile.
    signature
        Parameters, without annotations, of a function that dasktile replaces and distributed
        calls.  Empty for all other names.
    call
        Arguments with which dasktile calls it; keyword arguments end in ``=``.  None if dasktile
        does not call it.
    only_with
        The name of an object; the feature needs this name only where there is such an object.
    instead
        What the feature does without this name; empty if it is off then.
    checked_with
        Releases of distributed with which it was checked.
    """

    owner: str
    name: str
    used_for: str
    signature: str = ""
    call: str | None = None
    only_with: str = ""
    instead: str = ""
    checked_with: tuple[str, ...] = CHECKED_WITH

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}"
