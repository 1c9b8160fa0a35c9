"""Engines that have a cluster of their own in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import dasktile
from benchmarks.meters import Cluster


class Hosted:
    """Dask or dasktile, and its cluster.

    Parameters
    ----------
    name
        ``stock`` for Dask without dasktile; ``enabled`` for a cluster where `dasktile.enable` was
        called; ``dasktile`` also plans with `dasktile.optimize`.
    workers, rate, threads
        As in `benchmarks.meters.Cluster`.
    """

    def __init__(
        self, name: str, workers: int, rate: float | None = None, threads: int = 1
    ) -> None:
        self.name = name
        self.planned = name == "dasktile"
        self.size = workers, rate, threads
        self.enabled = False

    def __enter__(self) -> Self:
        self.cluster = Cluster(*self.size)
        self.cluster.__enter__()
        # older versions of dasktile have no plugins
        if self.name != "stock" and hasattr(dasktile, "enable"):
            dasktile.enable(self.cluster.client)
            self.enabled = True
        return self

    def __exit__(self, *exception: object) -> None:
        if self.enabled:
            dasktile.disable(self.cluster.client)
            self.enabled = False
        self.cluster.__exit__(*exception)

    def restart(self) -> None:
        """Get new workers, because those after an error may be lost or busy."""
        self.__exit__()
        self.__enter__()

    def plan(self, collections: Sequence[Any], **options: Any) -> Sequence[Any]:
        """Optimise collections for the cluster, with options of `dasktile.optimize`."""
        planned = dasktile.optimize(*collections, workers=self.cluster.client, **options)
        return (planned,) if len(collections) == 1 else planned
