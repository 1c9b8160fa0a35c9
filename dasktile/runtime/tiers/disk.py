"""The tier of files on disk."""

from __future__ import annotations

import io
import itertools
import os
import shutil
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, Literal

import numpy as np

from dasktile._compat.distributed import serialization
from dasktile.runtime.tiers.base import Held, Tier
from dasktile.runtime.tiers.spare import SpareFiles


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


class TileFile:
    """The file of one tile, until the tile is removed; another tile may have the file then.

    Attributes
    ----------
    path
        Path of the file.
    removed
        Whether the tile was removed.
    """

    __slots__ = ("path", "removed")

    def __init__(self, path: str) -> None:
        self.path = path
        self.removed = False


class _Buffer(np.ndarray[Any, Any]):
    """Memory for a file that is read, which is not cleared before.

    Arrays that are loaded from it are views of it.  It is no exact ``np.ndarray``, so that NumPy
    does not name it as the base of their views, and the store does not take it, with the header of
    the file, for an array of the user.
    """


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
    spare
        Bytes of files that are kept for further tiles when theirs are removed, at the most; never
        more than the bytes of the tiles that are stored.
    """

    name = "disk"

    def __init__(
        self,
        directory: str,
        compression: str | Literal[False] | None = False,
        spare: int = 0,
    ) -> None:
        os.makedirs(directory, exist_ok=True)
        self.directory = tempfile.mkdtemp(prefix="dasktile-", dir=directory)
        self._compression: str | Literal[False] | None = compression
        self._numbers = itertools.count()
        self._spare = SpareFiles(spare)
        # held while spare files are removed because the disk is full; and how many were
        self._clearing = threading.Lock()
        self._cleared = 0
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
        size = sum(map(serialization.frame_bytes, frames))
        path = self._spare.take(size)
        if path is None or not self._write_over(path, frames):
            path = self._write_new_or_clear(frames)
        self._spare.count(size)
        return Held(TileFile(path), size)

    def load(self, held: Held) -> Any:
        if isinstance(held.content, Foreign):
            return held.content.load()
        path = held.content.path
        if held.content.removed:
            # only shows a defect of the caller, which must not remove what is being loaded
            raise FileNotFoundError(f"the tile in {path} was removed")
        # writeable, so that arrays in it are, as those of the tile
        buffer = _Buffer(held.size, np.uint8).data
        with open(path, "rb", buffering=0) as file:
            rest = buffer
            while rest and (count := file.readinto(rest)):
                rest = rest[count:]
        if rest:
            raise OSError(f"{path} should have {held.size} bytes, {len(rest)} are missing")
        return serialization.from_buffer(buffer)

    def free(self, held: Held) -> None:
        if isinstance(held.content, Foreign):
            held.content.free()
            return
        if held.content.removed:
            return
        held.content.removed = True
        for path in self._spare.replace(held.content.path, held.size):
            self._unlink(path)

    def recycle(self, held: Held) -> bool:
        if isinstance(held.content, Foreign) or held.content.removed:
            return False
        held.content.removed = self._spare.add(held.content.path, held.size)
        return bool(held.content.removed)

    def close(self) -> None:
        self._remove()

    def _write_new_or_clear(self, frames: list[Any]) -> str:
        """Write a new file, and again without spare files if the disk is full; its path."""
        cleared = self._cleared
        try:
            return self._write_new(frames)
        except OSError:
            # they may have taken the room; another thread may be removing them
            with self._clearing:
                for each in self._spare.clear():
                    self._unlink(each)
                    self._cleared += 1
            if self._cleared == cleared:
                raise
        return self._write_new(frames)

    def _write_new(self, frames: list[Any]) -> str:
        """Write a new file; its path."""
        # not named after the key, which may be any object, or too long for a file name
        path = os.path.join(self.directory, str(next(self._numbers)))
        try:
            with open(path, "xb", buffering=0) as file:
                _write(file, frames)
        except BaseException:
            self._unlink(path)
            raise
        return path

    def _write_over(self, path: str, frames: list[Any]) -> bool:
        """Write over a spare file; False if that fails, and the file is removed."""
        try:
            with open(path, "r+b", buffering=0) as file:
                _write(file, frames)
        except OSError:
            self._unlink(path)
            return False
        except BaseException:
            self._unlink(path)
            raise
        return True

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


def _write(file: io.FileIO, frames: list[Any]) -> None:
    for frame in (memoryview(each) for each in frames):
        # an empty frame cannot be cast
        rest = frame.cast("B") if frame.nbytes else frame[:0]
        while rest:
            rest = rest[file.write(rest) :]
