"""Tiers load what was stored, for values of all types, and leave nothing after it is freed."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.sizeof import sizeof
from distributed.protocol import deserialize, serialize

from dasktile.runtime.tiers import (
    DEVICES,
    Disk,
    Held,
    Host,
    Packed,
    Tier,
    device,
    disk,
    register_device,
    spare,
    takes_memory,
)
from dasktile.runtime.tiers.host import SLAB, UNIT, Piece, PiecePool
from dasktile.testing import emulated
from dasktile.testing.emulated import (
    DeviceFullError,
    EmulatedArray,
    EmulatedDevice,
    current,
    to_device,
    use,
)
from dasktile.testing.emulated_array import Allocation
from tests import fake_cupy

LIMIT = 30
CAPACITY = 1 << 26
HOST_MEMORY = 1 << 30


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> EmulatedDevice:
    """The device of this process, for one test."""
    monkeypatch.setattr(emulated, "_current", [])
    return use(EmulatedDevice(CAPACITY))


@pytest.fixture(autouse=True, scope="module")
def small_heap() -> None:
    """Exempt what earlier tests left from garbage collection, which many tests here request."""
    gc.collect()
    gc.freeze()


# All tiers


class Below(Tier):
    """A disk below a device's host tier, as one tier."""

    name = "below"

    def __init__(self, host: Tier, disk: Disk) -> None:
        self.host = host
        self.disk = disk

    def store(self, value: Any) -> Held:
        packed = self.host.store(value)
        try:
            return self.disk.store(packed.content)
        finally:
            self.host.free(packed)

    def load(self, held: Held) -> Any:
        packed = self.disk.load(held)
        assert type(packed) is Packed
        return self.host.load(Held(packed, held.size))

    def free(self, held: Held) -> None:
        self.disk.free(held)

    def close(self) -> None:
        self.disk.close()
        self.host.close()


class Subject:
    """A tier, and functions that convert arrays for the tier above and back."""

    def __init__(self, kind: str, directory: Path, gpu: EmulatedDevice) -> None:
        spare = 1 << 20 if "spare" in kind else 0
        self.disk = Disk(str(directory), spare=spare) if "disk" in kind else None
        self.others = 0
        if self.disk is not None and spare:
            # there are no more bytes of spare files than of tiles
            self.disk.store(np.zeros(spare, np.uint8))
            self.others = 1
        self.host: Host | None = None
        self.up: Callable[[Any], Any] = lambda value: value
        if kind in ("host", "disk under host"):
            self.up = gpu.asarray
            made = gpu.host(HOST_MEMORY)
        elif kind == "fake cupy":
            self.up = fake_cupy.array
            made = device("cupy").host(HOST_MEMORY)
        elif kind == "cupy":
            cupy = pytest.importorskip("cupy")
            try:
                cupy.cuda.runtime.getDeviceCount()
            except cupy.cuda.runtime.CUDARuntimeError:
                pytest.skip("there is no CUDA device")
            self.up = partial(cupy.array, order="K")
            made = device("cupy").host(HOST_MEMORY)
        if not kind.startswith("disk with") and kind != "disk":
            assert isinstance(made, Host)
            self.host = made
        tiers = [one for one in (self.host, self.disk) if one is not None]
        self.tier = Below(*tiers) if len(tiers) == 2 else tiers[0]
        self.is_cupy = "cupy" in kind

    def rounds(self, size: int) -> float:
        """Bytes that a value of `size` bytes takes on the tier at the most."""
        return size * 1.125 + UNIT if self.is_cupy else size + 1000

    def kept(self) -> int:
        """Number of stored values."""
        files = len(os.listdir(self.disk.directory)) - len(self.disk._spare) if self.disk else 0
        return files - self.others + (len(self.host._kept) if self.host else 0)


def down(value: Any) -> Any:
    return value.get() if hasattr(value, "get") else value


@pytest.fixture(
    params=[
        "disk", "disk with spare files", "host", "disk under host", "fake cupy",
        pytest.param("cupy", marks=pytest.mark.gpu),
    ]
)  # fmt: skip
def subject(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    gpu: EmulatedDevice,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Subject]:
    fake = request.param == "fake cupy"
    with fake_cupy.install(CAPACITY, monkeypatch) if fake else nullcontext():
        made = Subject(request.param, tmp_path, gpu)
        yield made
        made.tier.close()
    assert not list(tmp_path.iterdir())
    assert not made.host or not made.host._kept


BASE = np.arange(24000.0).reshape(20, 30, 40)
RECORDS = np.zeros(50, [("a", "i4"), ("b", "f8", (3,))])
READ_ONLY = np.arange(7)
READ_ONLY.flags.writeable = False

ARRAYS = {
    "C order": BASE,
    "Fortran order": np.asfortranarray(BASE),
    "no dimensions": np.array(3.5),
    "one element": np.ones((1, 1, 1)),
    "empty": np.empty((0, 3)),
    "empty inside": np.empty((4, 0, 3), "i2"),
    "large": np.arange(3_000_000),
    "bool": BASE > 7,
    "complex": BASE[0] * 1j,
    "other byte order": BASE.astype(">i4"),
}
#: Views of one array, made where the array is.
VIEWS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda x: x.T,
    "permuted": lambda x: x.transpose(1, 2, 0),
    "with gaps": lambda x: x[::2, 3:7, ::3],
    "backwards": lambda x: x[::-1, :, ::-2],
    "one index": lambda x: x[:, 3],
    "new axis": lambda x: x[:, None, 5:],
    "nothing": lambda x: x[:0],
}
#: What no device has arrays for.
OTHERS = {
    "records": RECORDS,
    "times": np.arange(5).astype("M8[ns]"),
    "objects": np.array(["x" * 100, None, {"a": 1}] * 10, dtype=object),
    "text": np.array(["one", "three"]),
    "read only": READ_ONLY,
    "masked": np.ma.masked_greater(np.arange(10.0), 4),
    "a dict": {"a": 1, ("b", 2): "c" * 1000},
}


def check(loaded: Any, expected: np.ndarray) -> None:
    loaded = down(loaded)
    assert (loaded.dtype, loaded.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(loaded, expected)


def require_order(subject: Subject, dtype: np.dtype) -> None:
    # its arrays are in the byte order of the machine
    if subject.is_cupy and not dtype.isnative:
        pytest.skip("CuPy has no other byte order")


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_loaded_unchanged(subject: Subject, name: str) -> None:
    array = ARRAYS[name]
    require_order(subject, array.dtype)
    held = subject.tier.store(subject.up(array))
    assert array.nbytes <= held.size <= subject.rounds(array.nbytes)
    assert subject.kept() == 1
    for _ in range(2):
        loaded = subject.tier.load(held)
        check(loaded, array)
        assert loaded.flags.c_contiguous == array.flags.c_contiguous
        assert loaded.flags.f_contiguous == array.flags.f_contiguous
        loaded[...] = 1
    subject.tier.free(held)
    assert subject.kept() == 0


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_loaded_unchanged(subject: Subject, name: str) -> None:
    expected = VIEWS[name](BASE)
    held = subject.tier.store(VIEWS[name](subject.up(BASE)))
    assert expected.nbytes <= held.size <= subject.rounds(expected.nbytes)
    loaded = subject.tier.load(held)
    check(loaded, expected)
    loaded[...] = 1
    subject.tier.free(held)


@pytest.mark.parametrize("name", OTHERS)
def test_other_values_are_loaded_unchanged(subject: Subject, name: str) -> None:
    value = OTHERS[name]
    held = subject.tier.store({"here": value, "there": [subject.up(BASE)]})
    assert held.size > BASE.nbytes
    loaded = subject.tier.load(held)
    check(loaded["there"][0], BASE)
    loaded = loaded["here"]
    assert type(loaded) is type(value)
    if isinstance(value, np.ndarray):
        assert loaded.dtype == value.dtype
        assert str(loaded.tolist()) == str(value.tolist())
        assert loaded.flags.writeable or not value.flags.writeable
        assert not np.shares_memory(loaded, value)
    else:
        assert loaded == value
    subject.tier.free(held)


def received(lent: Any) -> Any:
    """What another worker makes of a message with it."""
    header, frames = serialize(lent, serializers=["cuda", "dask", "pickle", "error"])
    return deserialize(header, [bytearray(frame) for frame in frames])


@pytest.mark.parametrize("name", [*ARRAYS, *VIEWS, *OTHERS])
def test_values_are_sent_as_they_are_on_the_host(subject: Subject, name: str) -> None:
    if name in ARRAYS:
        require_order(subject, ARRAYS[name].dtype)
    if name in OTHERS:
        value: Any = [subject.up(BASE), OTHERS[name]]
    else:
        value = VIEWS[name](subject.up(BASE)) if name in VIEWS else subject.up(ARRAYS[name])
    held = subject.tier.store(value)
    lent = subject.tier.lend(held)
    # a disk has no value of the memory above it
    assert (lent is None) == (subject.disk is not None)
    subject.tier.free(held)
    if lent is not None:
        result = received(lent)
        assert subject.kept() == 0
        if name in OTHERS:
            check(result[0], BASE)
            assert str(result[1]) == str(OTHERS[name])
        else:
            expected = VIEWS[name](BASE) if name in VIEWS else ARRAYS[name]
            check(result, expected)
            result[...] = 1
        subject.tier.take_back(lent)
        # distributed makes a TypeError of the tile's error
        with pytest.raises(TypeError, match="the tile has been sent"):
            received(lent)


def test_stored_values_share_no_memory_with_others(subject: Subject) -> None:
    mine = np.arange(1000.0)
    held = subject.tier.store([subject.up(mine), mine])
    single = subject.tier.store(subject.up(mine))
    mine[:] = -1
    gc.collect()
    for _ in range(2):
        for loaded in (*subject.tier.load(held), subject.tier.load(single)):
            check(loaded, np.arange(1000.0))
            loaded[:] = 7


def test_freed_values_are_removed(subject: Subject) -> None:
    held = subject.tier.store(subject.up(BASE))
    other = subject.tier.store(subject.up(BASE))
    subject.tier.free(held)
    subject.tier.free(held)
    with pytest.raises((OSError, ValueError)):
        subject.tier.load(held)
    subject.tier.free(held)
    check(subject.tier.load(other), BASE)
    assert subject.kept() == 1


class Stubborn:
    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error("cannot be pickled")


@pytest.mark.parametrize("error", (TypeError, ValueError, OSError))
def test_a_failed_store_leaves_nothing(subject: Subject, error: type[Exception]) -> None:
    with pytest.raises(Exception, match=r".") as raised:
        subject.tier.store([subject.up(BASE), Stubborn(error)])
    # that would say that there is no room
    assert not isinstance(raised.value, OSError)
    assert subject.kept() == 0


def test_a_full_tier_leaves_nothing(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    if subject.disk:
        write = disk._write

        def full(file: Any, frame: memoryview) -> None:
            write(file, frame[:5])
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(disk, "_write", full)
    else:

        def no_memory(value: Any) -> Any:
            raise MemoryError

        monkeypatch.setattr(subject.tier, "pack", no_memory)
    with pytest.raises(OSError) as raised:
        subject.tier.store(subject.up(BASE))
    assert raised.value.errno in (errno.ENOSPC, errno.ENOMEM)
    assert subject.kept() == 0
    monkeypatch.undo()


def test_closing_removes_everything(subject: Subject) -> None:
    held = [subject.tier.store(subject.up(BASE)) for _ in range(3)]
    assert subject.kept() == 3
    subject.tier.close()
    for one in held:
        with pytest.raises((OSError, ValueError)):
            subject.tier.load(one)
        subject.tier.free(one)
    assert not subject.disk or not os.path.exists(subject.disk.directory)
    subject.tier.close()


def test_four_threads(subject: Subject) -> None:
    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        kept: list[tuple[np.ndarray, Held]] = []
        for _ in range(60):
            value = rng.random(rng.integers(1, 5000))
            kept.append((value, subject.tier.store(subject.up(value))))
            if len(kept) > 5:
                value, held = kept.pop(rng.integers(5))
                check(subject.tier.load(held), value)
                subject.tier.free(held)
        for value, held in kept:
            check(subject.tier.load(held), value)
            subject.tier.free(held)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4), timeout=LIMIT))
    assert subject.kept() == 0


# Disks


def test_a_directory_is_private_and_removed_with_its_disk(tmp_path: Path) -> None:
    one = Disk(str(tmp_path / "made"))
    if os.name == "posix":
        assert os.stat(one.directory).st_mode & 0o777 == 0o700
    one.store(BASE)
    [name] = os.listdir(one.directory)
    assert len(name) < 20
    del one
    assert not list((tmp_path / "made").iterdir())


@pytest.mark.parametrize("size", (0, 100))
def test_a_file_that_is_cut(tmp_path: Path, size: int) -> None:
    one = Disk(str(tmp_path))
    held = one.store(BASE)
    os.truncate(held.content.path, size)
    with pytest.raises(OSError, match="are missing"):
        one.load(held)


def test_a_spare_file_is_written_over_by_a_tile_of_its_size(tmp_path: Path) -> None:
    one = Disk(str(tmp_path), spare=1000)
    kept = one.store(np.arange(200.0))
    first, second = one.store(np.arange(20.0)), one.store(np.arange(10.0))
    one.free(first)
    assert one.recycle(second)
    assert len(os.listdir(one.directory)) == 1 + len(one._spare) == 3
    again, other = one.store(np.arange(20.0) + 1), one.store(np.arange(15.0))
    assert again.content.path == first.content.path
    assert other.content.path not in (first.content.path, second.content.path)
    with pytest.raises(OSError, match="was removed"):
        one.load(first)
    one.free(first)
    assert not one.recycle(first)
    check(one.load(again), np.arange(20.0) + 1)
    check(one.load(other), np.arange(15.0))
    check(one.load(kept), np.arange(200.0))
    # for the latest, as its pages are most likely in memory
    held = [one.store(np.full(2, each)) for each in range(3)]
    for each in held:
        one.free(each)
    assert one.store(np.zeros(2)).content.path == held[-1].content.path
    assert one._spare.nbytes == sum(os.path.getsize(path) for path in one._spare._files)


def test_spare_files_have_a_limit_and_the_oldest_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Disk(str(tmp_path))
    held = one.store(BASE)
    assert not one.recycle(held)
    one.free(held)
    assert os.listdir(one.directory) == []
    size = held.size
    one = Disk(str(tmp_path), spare=2 * size)
    kept = one.store(np.zeros(10 * size, np.uint8))
    tiles = [one.store(BASE) for _ in range(3)]
    assert one.recycle(tiles[0]) and one.recycle(tiles[1])
    # to remove a file takes time
    assert not one.recycle(tiles[2])
    one.free(tiles[2])
    assert list(one._spare._files) == [tiles[1].content.path, tiles[2].content.path]
    assert len(os.listdir(one.directory)) == 3
    large = one.store(np.zeros(3 * size, np.uint8))
    one.free(large)
    assert not os.path.exists(large.content.path)
    assert len(one._spare) == 2
    monkeypatch.setattr(spare, "_MOST_SPARE", 1)
    last = one.store(np.zeros(5))
    assert not one.recycle(last)
    one.free(last)
    assert list(one._spare._files) == [last.content.path]
    assert set(os.listdir(one.directory)) == names(kept, last)


def names(*tiles: Held) -> set[str]:
    return {os.path.basename(each.content.path) for each in tiles}


def test_spare_files_have_no_more_bytes_than_the_tiles(tmp_path: Path) -> None:
    one = Disk(str(tmp_path), spare=1 << 30)
    tiles = [one.store(BASE) for _ in range(6)]
    size = tiles[0].size
    assert one._spare.stored == 6 * size
    for number, each in enumerate(tiles[:3]):
        assert one.recycle(each)
        assert (one._spare.nbytes, one._spare.stored) == ((number + 1) * size, (5 - number) * size)
    for left, each in zip((2, 1, 0), tiles[3:], strict=True):
        # for each tile less, a spare file has to be removed
        assert not one.recycle(each)
        assert one._spare.stored == (left + 1) * size
        one.free(each)
        assert (one._spare.nbytes, one._spare.stored) == (left * size, left * size)
        assert len(os.listdir(one.directory)) == 2 * left
    # nothing is stored: nothing is kept, also of what another thread has written over meanwhile
    assert os.listdir(one.directory) == []
    last = one.store(BASE)
    assert not one.recycle(last)
    one.free(last)
    assert os.listdir(one.directory) == []


def fails_while(full: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let writes fail while a disk is full."""
    write = disk._write

    def _write(*arguments: Any) -> None:
        if full():
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*arguments)

    monkeypatch.setattr(disk, "_write", _write)


def test_a_disk_that_is_full_removes_its_spare_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Disk(str(tmp_path), spare=1 << 20)
    kept = one.store(np.zeros(200))
    tiles = [one.store(np.full(each, 1.0)) for each in (10, 20)]
    for each in tiles:
        one.free(each)
    writes: list[None] = []

    def full() -> bool:
        writes.append(None)
        return len(os.listdir(one.directory)) > 2

    fails_while(full, monkeypatch)
    held = one.store(np.full(30, 2.0))
    check(one.load(held), np.full(30, 2.0))
    assert set(os.listdir(one.directory)) == names(kept, held)
    assert len(writes) == 2
    with pytest.raises(OSError, match="No space left"):
        one.store(np.zeros(40))
    # nothing was removed, so that it is not written again
    assert len(writes) == 3
    assert set(os.listdir(one.directory)) == names(kept, held)
    assert one._spare.stored == kept.size + held.size


def test_two_tiles_are_written_while_a_full_disk_removes_its_spare_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Disk(str(tmp_path), spare=1 << 20)
    one.store(np.zeros(200))
    spare = one.store(np.full(10, 1.0))
    one.free(spare)
    both, again = threading.Barrier(2), threading.Event()
    failed = threading.local()
    remove = os.remove

    def full() -> bool:
        if not getattr(failed, "once", False):
            failed.once = True
            both.wait(LIMIT)
            return True
        is_full = os.path.exists(spare.content.path)
        again.set()
        return is_full

    def slow_remove(path: str) -> None:
        if path == spare.content.path:
            # the other thread must not write again before it is removed
            again.wait(0.2)
        remove(path)

    fails_while(full, monkeypatch)
    monkeypatch.setattr(os, "remove", slow_remove)
    with ThreadPoolExecutor(2) as pool:
        held = list(pool.map(lambda size: one.store(np.full(size, 2.0)), (20, 30)))
    for size, each in zip((20, 30), held, strict=True):
        check(one.load(each), np.full(size, 2.0))
    assert len(os.listdir(one.directory)) == 3


def test_a_spare_file_that_was_removed_or_cut(tmp_path: Path) -> None:
    one = Disk(str(tmp_path), spare=1 << 20)
    one.store(np.zeros(200))
    tiles = [one.store(np.full(10, float(each))) for each in range(2)]
    for each in tiles:
        one.free(each)
    os.remove(tiles[1].content.path)
    os.truncate(tiles[0].content.path, 3)
    again = [one.store(np.full(10, float(each))) for each in range(2)]
    for number, held in enumerate(again):
        check(one.load(held), np.full(10, float(number)))
    assert again[1].content.path == tiles[0].content.path


@pytest.mark.skipif(os.name != "posix", reason="there are no such filesystems")
def test_which_directories_take_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.path.realpath(tmp_path)
    mounts: list[tuple[str, str]] | None = []

    def disk_partitions(**options: bool) -> list[SimpleNamespace]:
        assert options == {"all": True}
        if mounts is None:
            raise PermissionError("the list of what is mounted cannot be read")
        return [SimpleNamespace(mountpoint=place, fstype=kind) for place, kind in mounts]

    monkeypatch.setattr(spare.psutil, "disk_partitions", disk_partitions)
    link = tmp_path / "link"
    link.symlink_to("there")
    for kind, other, expected in (("tmpfs", "ext4", True), ("ext4", "tmpfs", False)):
        mounts = [("/", other), (f"{real}/there", other), (f"{real}/there", kind)]
        mounts.append((f"{real}/the", other))
        for each in ("there", "there/not/yet", "link", "link/storage"):
            assert takes_memory(str(tmp_path / each)) == expected
        for each in ("", "thereafter", "the"):
            assert takes_memory(str(tmp_path / each)) != expected
    mounts = []
    assert not takes_memory(str(tmp_path))
    mounts = None
    assert not takes_memory(str(tmp_path))


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="there is no /dev/shm")
def test_shared_memory_takes_memory() -> None:
    assert takes_memory("/dev/shm/storage")
    assert not takes_memory("/proc")


def test_compression(tmp_path: Path) -> None:
    one = Disk(str(tmp_path), "zlib")
    held = one.store(np.zeros(100_000))
    assert held.size == os.path.getsize(held.content.path) < 100_000
    check(one.load(held), np.zeros(100_000))


# Memory of the host


def test_packed_values_are_pickled() -> None:
    packed = Packed({"a": (1, "b")}, [b"abc", bytearray(), memoryview(b"xy")])
    assert sizeof(packed) == packed.nbytes == 5
    for loaded in (deserialize(*serialize(packed)), pickle.loads(pickle.dumps(packed))):
        assert loaded.header == packed.header
        assert [bytes(frame) for frame in loaded.frames] == [b"abc", b"", b"xy"]


def test_a_full_device(gpu: EmulatedDevice) -> None:
    host = gpu.host(HOST_MEMORY)
    held = host.store(gpu.asarray(BASE))
    gpu.capacity = gpu.used + BASE.nbytes - 1
    with pytest.raises(MemoryError):
        host.load(held)
    gpu.capacity += 1
    check(host.load(held), BASE)


def pool_of(slabs: int, system: int | None = None) -> PiecePool:
    """A pool of a number of slabs, on a system that has memory for `system` of them."""
    made: list[Any] = []

    def allocate(size: int) -> Any:
        if len(made) == system:
            raise MemoryError
        made.append(np.empty(size, np.uint8))
        return made[-1]

    return PiecePool(allocate, slabs * SLAB + UNIT)


def total(pieces: list[Piece]) -> int:
    return sum(piece.memory.nbytes for piece in pieces)


@pytest.mark.parametrize("seed", range(20))
def test_pieces_have_the_size_asked_for_and_never_overlap(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pool = pool_of(4)
    held: list[tuple[int, list[Piece]]] = []
    for number in range(200):
        if held and rng.random() < 0.45:
            value, pieces = held.pop(rng.integers(len(held)))
            for piece in pieces:
                assert (piece.memory[:: UNIT // 2] == value).all()
            pool.give(pieces)
        size = int(2 ** rng.uniform(1, 26))
        try:
            pieces = pool.take(size)
        except MemoryError:
            assert pool.allocated == 4 * SLAB
            assert pool.free < 1.125 * size + UNIT
            continue
        assert size <= total(pieces) < 1.125 * size + UNIT
        assert total(pieces[:-1]) < size
        # a piece that belonged to two tiles would have the number of the later one
        for piece in pieces:
            piece.memory[:: UNIT // 2] = number % 256
        held.append((number % 256, pieces))
        assert pool.free + sum(total(pieces) for _, pieces in held) == pool.allocated
    for _, pieces in held:
        pool.give(pieces)
    assert pool.free == pool.allocated
    # halves were put together again
    slabs = pool.allocated // SLAB
    assert [piece.memory.nbytes for piece in pool.take(pool.free)] == [SLAB] * slabs


def test_no_more_pieces_are_taken_than_are_needed() -> None:
    pool = pool_of(1)
    mebi = 1 << 20
    pieces = [pool.take(mebi)[0] for _ in range(32)]
    pool.give(pieces[:16])
    pool.give(pieces[16::2])
    # the last one of 2 MiB is not left in one piece, and one of 1 MiB is enough
    taken = pool.take(16 * mebi + 1)
    assert [piece.memory.nbytes for piece in taken] == [16 * mebi, mebi]
    assert pool.take(0) == []
    assert pool.free == 7 * mebi


def test_few_pieces_are_taken_while_there_are_large_ones() -> None:
    pool = pool_of(4)
    assert len(pool.take(UNIT + 1)) == 1
    assert len(pool.take(SLAB)) == 1
    for size in range(UNIT, 2 * SLAB, UNIT * 3 + 3):
        pieces = pool.take(size)
        assert len(pieces) <= 4 + size // SLAB
        pool.give(pieces)


def test_memory_of_a_pool_is_reused() -> None:
    pool = pool_of(2)
    for _ in range(10):
        pieces = [pool.take(SLAB // 2) for _ in range(4)]
        assert pool.free == 0
        for taken in pieces:
            pool.give(taken)
    assert pool.allocated == 2 * SLAB
    with pytest.raises(MemoryError):
        pool.take(2 * SLAB + 1)
    assert pool.free == 2 * SLAB
    pool.close()
    assert pool.allocated == pool.free == 0


def test_small_pieces_are_used_where_no_large_one_is_left() -> None:
    pool = pool_of(1)
    small = [pool.take(UNIT) for _ in range(SLAB // UNIT)]
    for taken in small[::2]:
        pool.give(taken)
    assert len(pool.take(4 * UNIT)) == 4


def test_a_system_without_memory_is_asked_once() -> None:
    pool = pool_of(4, system=1)
    pool.give(pool.take(SLAB))
    for _ in range(2):
        with pytest.raises(MemoryError):
            pool.take(SLAB + UNIT)
    assert total(pool.take(SLAB)) == SLAB


# Devices


def test_devices_by_name(gpu: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    assert device("emulated") is gpu
    with pytest.raises(ValueError, match="name must be one of cupy, emulated, not 'tpu'"):
        device("tpu")
    with pytest.raises(ValueError, match="'cupy' already"):
        register_device("cupy", current)
    monkeypatch.delitem(DEVICES, "emulated")
    register_device("emulated", current)


def test_devices_are_imported_when_they_are_made() -> None:
    code = (
        "import sys, dasktile.runtime.tiers; "
        "made = {'dasktile.runtime.tiers.cuda', 'dasktile.testing.emulated'}; "
        "assert not made & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_capacity(gpu: EmulatedDevice) -> None:
    gpu.capacity = 1000
    x = gpu.asarray(np.ones(100))
    with pytest.raises(DeviceFullError, match="no room for 240 bytes on the device: 800 of 1000"):
        gpu.asarray(np.ones(30))
    with pytest.raises(MemoryError):
        x + 1
    assert gpu.used == gpu.peak == 800
    y = gpu.asarray(np.ones(25))
    assert (gpu.used, gpu.peak) == (1000, 1000)
    del x, y
    assert (gpu.used, gpu.peak, gpu.total()) == (0, 1000, 1000)


def test_a_full_device_calls_back_for_memory(gpu: EmulatedDevice) -> None:
    gpu.capacity = 1000
    kept = [gpu.asarray(np.ones(50)) for _ in range(2)]
    asked: list[tuple[int, int]] = []

    def make_room(size: int) -> bool:
        asked.append((size, threading.get_ident()))
        if kept:
            kept.pop()
            return True
        return False

    gpu.on_full(make_room)
    x = gpu.asarray(np.ones(80))
    assert asked == [(640, threading.get_ident())] * len(asked)
    assert len(kept) == 2 - len(asked) < 2
    with pytest.raises(DeviceFullError):
        x * 2
    assert not kept
    gpu.on_full(None)
    with pytest.raises(DeviceFullError):
        x * 2
    count = len(asked)
    with pytest.raises(DeviceFullError):
        gpu.asarray(np.ones(1000))
    assert len(asked) == count


def test_freed_memory_is_poisoned(gpu: EmulatedDevice) -> None:
    x = gpu.asarray(np.ones(10))
    whole = gpu.asarray(np.arange(10))
    behind, numbers = x.elements, whole.elements
    del x
    assert np.isnan(behind).all()
    part = whole[3:5].reshape(2, 1).T
    del whole
    assert gpu.used == 80
    check(part, np.array([[3, 4]]))
    del part
    assert gpu.used == 0
    assert (numbers == -1).all()


def test_views_share_memory(gpu: EmulatedDevice) -> None:
    x = gpu.asarray(BASE)
    memory = gpu.memory_of(x)
    assert memory is not None
    assert memory[1] == BASE.nbytes
    for view in VIEWS.values():
        if view(BASE).size:
            assert gpu.memory_of(view(x)) == memory
    for other in (x + 0, x.copy(), gpu.asarray(BASE), x[[1, 2]], x[:0]):
        assert gpu.memory_of(other) != memory
    assert gpu.memory_of(BASE) is None
    assert gpu.holds(x)
    assert gpu.holds({"a": [1, (x,)]})
    assert not gpu.holds([BASE, "a"])
    assert sizeof(x[0]) == BASE[0].nbytes


def test_copies_are_counted_and_take_time() -> None:
    slept: list[float] = []
    gpu = EmulatedDevice(CAPACITY, 1e6, 0.5, clock=lambda: 0.0, sleep=slept.append)
    x = gpu.asarray(np.ones(1000))
    assert slept == [0.508]
    y = x + x
    y[:100].get()
    assert slept == [0.508, 0.5008]
    assert (gpu.copied_up, gpu.copied_down) == (8000, 800)


def test_directions_overlap_and_copies_in_one_do_not() -> None:
    both = threading.Barrier(2)
    gpu = EmulatedDevice(CAPACITY, sleep=lambda seconds: both.wait(LIMIT), latency=1.0)
    x = emulated.EmulatedArray(np.ones(5), Allocation(gpu, np.ones(5), 0))
    up = threading.Thread(target=gpu.asarray, args=(BASE,))
    up.start()
    x.get()
    up.join(LIMIT)

    inside: list[int] = []
    most = []

    def alone(seconds: float) -> None:
        inside.append(1)
        threading.Event().wait(0.01)
        most.append(len(inside))
        inside.pop()

    gpu = EmulatedDevice(CAPACITY, sleep=alone, latency=1.0)
    threads = [threading.Thread(target=gpu.asarray, args=(BASE,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert most == [1, 1, 1]


@pytest.mark.parametrize(
    "mix",
    (
        np.asarray,
        lambda x: np.ones(3) + x,
        lambda x: x * np.ones(3),
        lambda x: np.concatenate([x, np.ones(3)]),
        lambda x: np.ones(3).__setitem__(slice(None), x),
        lambda x: x.__setitem__(slice(None), np.ones(3)),
        lambda x: x.device.asarray(np.array([None])),
        lambda x: x.astype(object),
    ),
)
def test_nothing_is_copied_by_accident(gpu: EmulatedDevice, mix: Callable[[Any], Any]) -> None:
    x = gpu.asarray(np.zeros(3))
    with pytest.raises((TypeError, ValueError)):
        mix(x)
    assert gpu.copied_down == 0


def test_arrays_as_numpys(gpu: EmulatedDevice) -> None:
    x = gpu.asarray(BASE)
    total = x.sum()
    assert isinstance(total, EmulatedArray)
    assert (float(total), int(total), bool(total)) == (BASE.sum(), BASE.sum(), True)
    assert x[0, 0, :2].tolist() == [0, 1]
    assert len(x) == len(list(x)) == 20
    assert (x.dtype, x.strides, x.itemsize, x.size) == ("f8", BASE.strides, 8, BASE.size)
    y = x.copy()
    y += 1
    y[0] = 5
    y[1] = x[2]
    check(y[:2], np.stack([np.full((30, 40), 5.0), BASE[2]]))
    check(np.where(x > 5, x, 0), np.where(BASE > 5, BASE, 0))
    check(np.asarray([1, 2], like=x), np.array([1, 2]))
    check(x.T.real, BASE.T)
    check(x.imag, BASE.imag)
    with pytest.raises(AttributeError, match="no attribute 'tofile'"):
        x.tofile("x")
    with pytest.raises(TypeError):
        x + "a"


def test_arrays_are_sent_to_other_processes(gpu: EmulatedDevice) -> None:
    x = gpu.asarray(BASE).T
    other = use(EmulatedDevice(CAPACITY))
    for received in (deserialize(*serialize(x)), pickle.loads(pickle.dumps(x))):
        check(received, BASE.T)
        assert received.device is other
        assert received.flags.f_contiguous
    assert pickle.loads(pickle.dumps(gpu)) is other
    with pytest.raises(ValueError, match="use"):
        gpu.host(HOST_MEMORY)


EXPRESSIONS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: x.sum(),
    "sum of rows": lambda x: x.sum(axis=1, keepdims=True),
    "mean": lambda x: x.mean(),
    "mean of columns": lambda x: x.mean(axis=0),
    "standard deviation": lambda x: x.std(axis=0),
    "numbers there": lambda x: da.nanmean(x, axis=1),
    "place of the greatest": lambda x: x.argmax(axis=0),
    "running sum": lambda x: x.cumsum(axis=0),
    "standardised": lambda x: (x - x.mean(axis=0)) / x.std(axis=0),
    "product": lambda x: x @ x.T,
    "gram": lambda x: x.T @ (x + 1),
    "tensordot": lambda x: da.tensordot(x, x, axes=([0], [0])),
    "einsum": lambda x: da.einsum("ij,kj->ik", x, x),
    "slice": lambda x: x[3:50:2, ::-1],
    "indices": lambda x: x[[5, 1, 33]],
    "mask": lambda x: x[x[:, 0] > 0.5],
    "stack": lambda x: da.stack([x, x + 1]),
    "concatenate": lambda x: da.concatenate([x, 2 * x], axis=1),
    "other type": lambda x: (10 * x).astype("i4"),
    "functions": lambda x: np.exp(-x) + np.maximum(x, 0.5),
    "where": lambda x: da.where(x > 0.5, x, 0),
    "rechunk": lambda x: x.rechunk((31, 40)),
    "reshape": lambda x: x.rechunk((60, 40)).reshape(30, 80),
    "new axis": lambda x: x[:, None, :] * x[:, :, None],
    "norm": lambda x: da.linalg.norm(x),
    "overlap": lambda x: x.map_overlap(lambda block: block * 2, depth=1, boundary="reflect"),
    "qr": lambda x: abs(da.linalg.qr(x.rechunk((20, 40)))[1]),
    "singular values": lambda x: da.linalg.svd(x.rechunk((20, 40)))[1],
}


@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize("made", ("from_array", "map_blocks"))
def test_dask_computes_on_the_device(gpu: EmulatedDevice, name: str, made: str) -> None:
    array = np.random.default_rng(1).random((60, 40))
    chunks = (20, 17)
    if made == "from_array":
        x = da.from_array(gpu.asarray(array), chunks=chunks, asarray=False)
    else:
        x = da.from_array(array, chunks=chunks).map_blocks(to_device, dtype=array.dtype)
    expression = EXPRESSIONS[name]
    down_before = gpu.copied_down
    loaded = expression(x).compute(scheduler="threads")
    assert isinstance(loaded, EmulatedArray)
    if name not in ("mask", "qr", "singular values"):
        assert gpu.copied_down == down_before
    expected = expression(da.from_array(array, chunks=chunks)).compute()
    assert loaded.dtype == expected.dtype
    np.testing.assert_allclose(loaded.get(), expected, atol=1e-12)
    del x, loaded
    gc.collect()
    assert gpu.used == 0
