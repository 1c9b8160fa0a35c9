"""The hook into RMM, the allocator of RAPIDS' libraries, which CuPy and torch may use, too.

Nothing here imports RMM: a process that has not done so allocates no memory through it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

#: Adaptors that keep no memory.
_PASSING = (
    *("FailureCallbackResourceAdaptor", "LoggingResourceAdaptor", "LimitingResourceAdaptor"),
    *("StatisticsResourceAdaptor", "UpstreamResourceAdaptor"),
)


class RmmHook:
    """Calls a function when an allocation of RMM fails on the current device.

    Parameters
    ----------
    retry
        Called in the thread that allocates, with a number of bytes; the allocation is tried again
        if it returns True.
    """

    def __init__(self, retry: Callable[[int], bool]) -> None:
        self._retry = retry
        self._resource: Any = None

    @property
    def is_installed(self) -> bool:
        """Whether allocations of RMM call the function."""
        return self._resource is not None

    def install(self) -> None:
        """Put the hook in front of the present resource, unless it is there."""
        resources = getattr(sys.modules.get("rmm"), "mr", None)
        if resources is None:
            return
        current = resources.get_current_device_resource()
        # other adaptors may have been put on top of it
        if self._resource is None or self._resource not in _chain(current):
            self._resource = resources.FailureCallbackResourceAdaptor(current, self._retry)
            resources.set_current_device_resource(self._resource)

    def kept_bytes(self) -> int | None:
        """Bytes that RMM keeps for reuse; None if unknown, as of a pool that is not tracked."""
        resources = getattr(sys.modules.get("rmm"), "mr", None)
        if resources is None:
            return 0
        allocated: int | None = None
        for resource in _chain(resources.get_current_device_resource()):
            if resource is self._resource:
                continue
            kind = type(resource).__name__
            if kind == "TrackingResourceAdaptor":
                # dask-cuda's `rmm_track_allocations`
                allocated = int(resource.get_allocated_bytes())
            elif kind == "PoolMemoryResource" and allocated is not None:
                return int(resource.pool_size()) - allocated
            elif kind == "CudaMemoryResource":
                return 0
            elif kind not in _PASSING:
                return None
        return None

    def remove(self) -> None:
        """Take the hook off; under another adaptor it stays, and calls the function as before."""
        if self._resource is None:
            return
        resources = sys.modules["rmm"].mr
        if resources.get_current_device_resource() is self._resource:
            # memory that it has allocated keeps it alive
            resources.set_current_device_resource(self._resource.get_upstream())
            self._resource = None


def _chain(resource: Any) -> Iterator[Any]:
    """A resource and those that it takes memory from."""
    while resource is not None:
        yield resource
        resource = resource.get_upstream() if hasattr(resource, "get_upstream") else None
