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

#: Spare files at the most (chosen).
_MOST_SPARE = 256


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


class TileFile(str):
    """The path of the file of one tile; another tile may have the file later.

    Attributes
    ----------
    removed
        Whether the tile was removed.
    """

    __slots__ = ("removed",)

    def __init__(self, path: str) -> None:
        self.removed = False


class SpareFiles:
    """Files of removed tiles, which the next tiles of the same size are written over.

    To write over a file whose pages are in memory takes about a tenth of the processor time that
    is taken to create, write and remove one: the system need not find, clear and free its pages.
    Only files of exactly the same size are used again, so that no file is larger than its tile.

    Parameters
    ----------
    most
        Bytes of all spare files at the most; 0 to keep none.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        #: Paths and sizes, the oldest first; and the paths of each size.
        self._files: dict[str, int] = {}
        self._by_size: dict[int, list[str]] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._files)

    def add(self, path: str, size: int) -> bool:
        """Add a file; False if there is no room for it."""
        with self._lock:
            full = self.nbytes + size > self._most or len(self._files) >= _MOST_SPARE
            if full or not self._most:
                return False
            self._files[path] = size
            self._by_size.setdefault(size, []).append(path)
            self.nbytes += size
            return True

    def take(self, size: int) -> str | None:
        """Take a file of a size, the latest, whose pages are most likely in memory."""
        with self._lock:
            paths = self._by_size.get(size)
            return None if not paths else self._remove(paths[-1])

    def make_room(self, size: int) -> list[str]:
        """Take the oldest files, so that there is room for one of a size if there can be."""
        taken: list[str] = []
        with self._lock:
            if size > self._most:
                return taken
            while self.nbytes + size > self._most or len(self._files) >= _MOST_SPARE:
                taken.append(self._remove(next(iter(self._files))))
        return taken

    def clear(self) -> list[str]:
        """Take all files."""
        with self._lock:
            paths = list(self._files)
            self._files.clear()
            self._by_size.clear()
            self.nbytes = 0
        return paths

    def _remove(self, path: str) -> str:
        size = self._files.pop(path)
        paths = self._by_size[size]
        paths.remove(path)
        if not paths:
            del self._by_size[size]
        self.nbytes -= size
        return path


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
        Bytes of files that are kept for further tiles when theirs are removed, at the most.
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
        if path is not None and self._write_over(path, frames):
            return Held(TileFile(path), size)
        try:
            return Held(TileFile(self._write_new(frames)), size)
        except OSError:
            spare = self._spare.clear()
            if not spare:
                raise
        # they may have taken the room
        for each in spare:
            self._unlink(each)
        return Held(TileFile(self._write_new(frames)), size)

    def load(self, held: Held) -> Any:
        if isinstance(held.content, Foreign):
            return held.content.load()
        if held.content.removed:
            raise FileNotFoundError(f"the tile in {held.content} was removed")
        # writeable, so that arrays in it are, as those of the tile; and not cleared before
        buffer = np.empty(held.size, np.uint8).data
        with open(held.content, "rb", buffering=0) as file:
            rest = buffer
            while rest and (count := file.readinto(rest)):
                rest = rest[count:]
        if rest:
            raise OSError(f"{held.content} should have {held.size} bytes, {len(rest)} are missing")
        return serialization.from_buffer(buffer)

    def free(self, held: Held) -> None:
        if isinstance(held.content, Foreign):
            held.content.free()
            return
        if held.content.removed:
            return
        held.content.removed = True
        for path in self._spare.make_room(held.size):
            self._unlink(path)
        if not self._spare.add(str(held.content), held.size):
            self._unlink(held.content)

    def recycle(self, held: Held) -> bool:
        if isinstance(held.content, Foreign) or held.content.removed:
            return False
        held.content.removed = self._spare.add(str(held.content), held.size)
        return bool(held.content.removed)

    def close(self) -> None:
        self._remove()

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
