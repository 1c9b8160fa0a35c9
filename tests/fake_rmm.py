"""A stand-in for the parts of RMM that the CUDA tier uses, on the device of the fake CuPy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests import fake_cupy


class CudaMemoryResource:
    """Memory of the device."""

    def allocate(self, nbytes: int, stream: Any = None) -> Any:
        return fake_cupy._state.pool.malloc(nbytes)


class UpstreamResourceAdaptor:
    """A resource on top of another one."""

    def __init__(self, upstream_mr: Any) -> None:
        self.upstream_mr = upstream_mr

    def get_upstream(self) -> Any:
        return self.upstream_mr

    def allocate(self, nbytes: int, stream: Any = None) -> Any:
        return self.upstream_mr.allocate(nbytes)


class FailureCallbackResourceAdaptor(UpstreamResourceAdaptor):
    """A resource that asks a function whether to try again."""

    def __init__(self, upstream_mr: Any, callback: Callable[[int], bool]) -> None:
        super().__init__(upstream_mr)
        self.callback = callback

    def allocate(self, nbytes: int, stream: Any = None) -> Any:
        while True:
            try:
                return self.upstream_mr.allocate(nbytes)
            except MemoryError:
                if not self.callback(nbytes):
                    raise


class PoolMemoryResource(UpstreamResourceAdaptor):
    """A pool of a fixed size."""

    def __init__(self, upstream_mr: Any, initial_pool_size: int) -> None:
        super().__init__(upstream_mr)
        self.size = initial_pool_size

    def pool_size(self) -> int:
        return self.size


class TrackingResourceAdaptor(UpstreamResourceAdaptor):
    """A resource that counts what it has allocated."""

    def __init__(self, upstream_mr: Any) -> None:
        super().__init__(upstream_mr)
        self.allocated = 0

    def allocate(self, nbytes: int, stream: Any = None) -> Any:
        self.allocated += nbytes
        return super().allocate(nbytes)

    def get_allocated_bytes(self) -> int:
        return self.allocated


def rmm_cupy_allocator(nbytes: int) -> Any:
    """The allocator with which CuPy uses RMM."""
    return sys.modules["rmm"].mr.get_current_device_resource().allocate(nbytes)


rmm_cupy_allocator.__module__ = "rmm.allocators.cupy"


def install(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the fake as ``rmm``."""
    current: list[Any] = [CudaMemoryResource()]
    made: Any = ModuleType("rmm")
    made.mr = SimpleNamespace(
        get_current_device_resource=lambda: current[-1],
        set_current_device_resource=lambda mr: current.append(mr),
        CudaMemoryResource=CudaMemoryResource,
        UpstreamResourceAdaptor=UpstreamResourceAdaptor,
        FailureCallbackResourceAdaptor=FailureCallbackResourceAdaptor,
        PoolMemoryResource=PoolMemoryResource, TrackingResourceAdaptor=TrackingResourceAdaptor,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "rmm", made)
    return made
