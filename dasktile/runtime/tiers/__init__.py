"""Where tiles can lie: memory of a device, memory of the host, files on disk.

A tier below the first takes what the tier above it has, and gives the same back.  How it keeps
it is its own affair: whoever uses it holds on to what :meth:`Tier.store` has returned and
gives that back to :meth:`Tier.load` and :meth:`Tier.free`.

A device is a file of its own that is imported when one is made, and a line here.
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
from dasktile.runtime.tiers.disk import Disk
from dasktile.runtime.tiers.host import Host, Packed

__all__ = [
    "DEVICES",
    "Device",
    "Disk",
    "Held",
    "Host",
    "Packed",
    "Tier",
    "device",
    "register_device",
]


def _of(module: str, factory: str) -> Callable[[], Device]:
    """A factory of a module that need not be installed."""

    def make() -> Device:
        made: Device = getattr(import_module(module), factory)()
        return made

    return make


register_device("cupy", _of("dasktile.runtime.tiers.cuda", "CupyDevice"))
register_device("emulated", _of("dasktile.testing.emulated", "current"))
