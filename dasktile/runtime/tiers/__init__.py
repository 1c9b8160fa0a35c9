"""Tiers of memory for tiles: memory of a device, memory of the host, files on disk.

A tier below the first stores values of the tier above and loads them back.  The caller keeps the
result of :meth:`Tier.store` and passes it to :meth:`Tier.load` and :meth:`Tier.free`; its content
depends on the tier.

Each kind of device has a module, which is imported when a device is constructed, and a line here.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from dasktile.runtime.tiers.base import (
    DEVICES,
    Device,
    Held,
    Tier,
    device,
    register_device,
)
from dasktile.runtime.tiers.disk import Disk, Foreign, TileFile
from dasktile.runtime.tiers.host import Host, Packed, packed_by_distributed
from dasktile.runtime.tiers.spare import takes_memory

__all__ = [
    "DEVICES",
    "Device",
    "Disk",
    "Foreign",
    "Held",
    "Host",
    "Packed",
    "Tier",
    "TileFile",
    "device",
    "packed_by_distributed",
    "register_device",
    "takes_memory",
]


def _of(module: str, factory: str) -> Callable[[], Device]:
    """A factory in a module whose requirements may be missing: it is imported when called."""

    def make() -> Device:
        device: Device = getattr(import_module(module), factory)()
        return device

    return make


register_device("cupy", _of("dasktile.runtime.tiers.cuda", "CupyDevice"))
register_device("emulated", _of("dasktile.testing.emulated", "current"))
