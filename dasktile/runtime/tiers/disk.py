"""The tier of files on disk."""

from __future__ import annotations

import io
import itertools
import os
import shutil
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, Literal

from dasktile._compat.distributed import serialization
from dasktile.runtime.tiers.base import Held, Tier


class Foreign:
    """A value in the files of another mapping, which a store has taken over.

    Parameters
    ----------
    load
        Reads the value, in any thread.
    owner
        The mapping from which it is deleted.
    key
        Its key there.

    Attributes
    ----------
    kept
        Whether the value stays in the mapping when the store does not need it any more.
    """

    __slots__ = ("_load", "_owner", "kept", "key")

    def __init__(self, load: Callable[[], Any], owner: MutableMapping[Any, Any], key: Any) -> None:
        self._load = load
        self._owner = owner
        self.key = key
        self.kept = False

    def load(self) -> Any:
        """The value."""
        return self._load()

    def free(self) -> None:
        """Delete the value, unless it is kept."""
        if not self.kept:
            with suppress(KeyError, OSError):
                del self._owner[self.key]


class Disk(Tier):
    """Files with one tile each, in distributed's own serialisation.

    A device's tile in the host's memory (`Packed`) is written unchanged.  A tile may be in a file
    of another mapping (`Foreign`).

    Parameters
    ----------
    directory
        The directory in which a new directory for the files is created.  The new one is readable
        for this user only, and is removed when the tier is closed or garbage-collected.
    compression
        As ``distributed.worker.memory.spill-compression``.
    """

    name = "disk"

    def __init__(self, directory: str, compression: str | Literal[False] | None = False) -> None:
        os.makedirs(directory, exist_ok=True)
        self.directory = tempfile.mkdtemp(prefix="dasktile-", dir=directory)
        self._compression: str | Literal[False] | None = compression
        self._numbers = itertools.count()
        # files that another program had open: Windows refuses to remove those
        self._unremoved: deque[str] = deque()
        self._remove = weakref.finalize(self, shutil.rmtree, self.directory, ignore_errors=True)

    def store(self, value: Any) -> Held:
        try:
            frames = serialization.to_frames(value, self._compression)
        except OSError as error:
            # raised by the value, not by the disk: others can still be stored
            raise TypeError(f"cannot serialize an object of type {type(value)}") from error
        self._retry_removal()
        # not named after the key, which may be any object, or too long for a file name
        path = os.path.join(self.directory, str(next(self._numbers)))
        try:
            with open(path, "xb", buffering=0) as file:
                for frame in frames:
                    _write(file, memoryview(frame))
        except BaseException:
            self._unlink(path)
            raise
        return Held(path, sum(map(serialization.frame_bytes, frames)))

    def load(self, held: Held) -> Any:
        if isinstance(held.content, Foreign):
            return held.content.load()
        with open(held.content, "rb", buffering=0) as file:
            # a writeable buffer, so that arrays in it are writeable, as those of the tile
            buffer = bytearray(held.size)
            rest = memoryview(buffer)
            while rest and (count := file.readinto(rest)):
                rest = rest[count:]
        if rest:
            raise OSError(f"{held.content} should have {held.size} bytes, {len(rest)} are missing")
        return serialization.from_buffer(buffer)

    def free(self, held: Held) -> None:
        if isinstance(held.content, Foreign):
            held.content.free()
            return
        self._unlink(held.content)

    def close(self) -> None:
        self._remove()

    def _unlink(self, path: str) -> None:
        try:
            os.remove(path)
        except FileNotFoundError:
            pass
        except OSError:
            self._unremoved.append(path)

    def _retry_removal(self) -> None:
        with suppress(IndexError):
            # as often as there are files, as they may be appended again
            for _ in range(len(self._unremoved)):
                self._unlink(self._unremoved.popleft())


def _write(file: io.FileIO, frame: memoryview) -> None:
    # an empty frame cannot be cast
    rest = frame.cast("B") if frame.nbytes else frame[:0]
    while rest:
        rest = rest[file.write(rest) :]
