"""Values as buffers, in files, in host memory and on the way to other workers.

All may be called before the features are checked, as workers start with a store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

# Files ---------------------------------------------------------------------------------


def compression(setting: str) -> Any:
    """The compression for a value of distributed's setting."""
    from distributed.protocol.compression import get_compression_settings

    return get_compression_settings(setting)


def frame_bytes(frame: Any) -> int:
    """Bytes of a buffer."""
    from distributed.utils import nbytes

    return nbytes(frame)


def to_frames(value: Any, compression: Any) -> list[Any]:
    """A value as buffers to write to a file."""
    from distributed.protocol.serialize import serialize_bytelist

    return serialize_bytelist(value, compression=compression, on_error="raise")


def from_buffer(buffer: bytearray | memoryview) -> Any:
    """The value that is stored in a file."""
    from distributed.protocol.serialize import deserialize_bytes

    return deserialize_bytes(buffer)


# Devices -------------------------------------------------------------------------------


def to_host(value: Any) -> tuple[dict[str, Any], Iterable[Any]]:
    """A value of a device as buffers in host memory, and a header to restore it."""
    from distributed.protocol.serialize import serialize

    return serialize(value, serializers=("dask", "pickle"), on_error="raise")


def from_host(header: dict[str, Any], frames: Iterable[Any]) -> Any:
    """The value on a device, restored from its header and buffers."""
    from distributed.protocol.serialize import deserialize

    return deserialize(header, frames)


def register_serialization(
    kind: type,
    serialize: Callable[[Any], tuple[dict[str, Any], list[Any]]],
    deserialize: Callable[[dict[str, Any], list[Any]], Any],
) -> None:
    """Register functions that serialize values of a type, where distributed supports that."""
    with suppress(ImportError):
        from distributed.protocol.serialize import dask_deserialize, dask_serialize

        dask_serialize.register(kind, serialize)
        dask_deserialize.register(kind, deserialize)


# NumPy arrays --------------------------------------------------------------------------


def serialize_array(array: Any) -> tuple[dict[str, Any], list[Any]]:
    """The header and frames of a NumPy array, as distributed sends it."""
    from distributed.protocol.numpy import serialize_numpy_ndarray

    return serialize_numpy_ndarray(array)


def deserialize_array(header: dict[str, Any], frames: list[Any]) -> Any:
    """The NumPy array of a header and frames."""
    from distributed.protocol.numpy import deserialize_numpy_ndarray

    return deserialize_numpy_ndarray(header, frames)
