"""The buffers of dask-cuda's ``DeviceHostFile``, which a store of dasktile takes over.

They are attributes that dask-cuda does not document.  Where one is missing, the values are read as
from any other mapping.  dask-cuda is never imported: where there is a mapping of its own, that has
happened already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

#: The module of the mapping.  Checked with dask-cuda 26.2.
_MODULE: Final = "dask_cuda.device_host_file"


@dataclass(frozen=True, slots=True, eq=False)
class Buffers:
    """What a ``DeviceHostFile`` has spilled.

    Parameters
    ----------
    on_host
        Values of the device that are in the memory of the host: header and frames, as distributed
        serializes them.
    on_disk
        Functions that read values in files; they may be called in any thread.  For values of the
        device they return what :func:`parts` takes.
    device_keys
        The keys of the device's values.
    """

    on_host: Mapping[Any, tuple[dict[str, Any], list[Any]]]
    on_disk: Mapping[Any, Callable[[], Any]]
    device_keys: frozenset[Any]


def buffers(data: Any) -> Buffers | None:
    """What a ``DeviceHostFile`` has spilled; None for another mapping, or if that is unknown."""
    if type(data).__module__ != _MODULE:
        return None
    try:
        device_keys, device, host, disk = data.device_keys, data.device, data.host, data.disk
        on_host = {key: parts(host[key]) for key in device_keys if key in host}
        on_disk = {}
        if disk is not None:
            values = data.host_buffer.slow
            on_disk = {key: partial(values.__getitem__, key) for key in values}
        if any(key in device or key in on_disk for key in on_host):
            return None
    except (AttributeError, TypeError):
        return None
    return Buffers(on_host, on_disk, frozenset(device_keys))


def parts(value: Any) -> tuple[dict[str, Any], list[Any]]:
    """Header and frames of a ``DeviceSerialized``.

    Raises
    ------
    AttributeError
        If it is another object.
    """
    return value.header, list(value.frames)


def keys(data: Mapping[Any, Any]) -> list[Any]:
    """All keys of a mapping.

    A ``DeviceHostFile`` without a limit of the device's memory iterates over those of the device
    only.
    """
    found = dict.fromkeys(data)
    if type(data).__module__ == _MODULE:
        found.update(dict.fromkeys(getattr(data, "host_buffer", ())))
    return list(found)
