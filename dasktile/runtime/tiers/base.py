"""The interfaces of tiers and devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Held:
    """One tile on a tier.

    Attributes
    ----------
    content
        An object that depends on the tier, such as the path of a file.
    size
        Bytes of the tile on the tier.
    """

    content: Any
    size: int


class Tier(ABC):
    """One kind of memory.  Methods are called from several threads at once, for different tiles.

    Attributes
    ----------
    name
        Name in reports.
    """

    name: str

    @abstractmethod
    def store(self, value: Any) -> Held:
        """Store a tile.

        Parameters
        ----------
        value
            The tile, as a value of the tier above.

        Raises
        ------
        OSError
            If the tier is full, or does not work.
        Exception
            If this tile can never be stored here.
        """

    @abstractmethod
    def load(self, held: Held) -> Any:
        """Load a tile, as a value of the tier above.

        Raises
        ------
        MemoryError
            If the tier above is full.
        Exception
            If the tile cannot be loaded.
        """

    def adopt(self, header: dict[str, Any], frames: list[Any]) -> Held | None:
        """Keep a value of the tier above that distributed has serialised, without a copy.

        Parameters
        ----------
        header, frames
            As of distributed's serialisation; the frames are used as they are.

        Returns
        -------
        The tile; None if this tier cannot keep it so.
        """
        return None

    def lend(self, held: Held) -> Any:
        """What a peer is sent in place of a tile, without loading it; None if that is impossible.

        The peer receives the tile as a value of the tier above.  The memory of the tile is not
        reused before :meth:`take_back`, even if the tile is removed.
        """
        return None

    def take_back(self, lent: Any) -> None:
        """End a loan: what :meth:`lend` returned has been sent, or will not be."""
        raise NotImplementedError("a tier that lends tiles has to take them back")

    @abstractmethod
    def free(self, held: Held) -> None:
        """Remove a tile; never raises."""

    def recycle(self, held: Held) -> bool:
        """Remove a tile at once, by keeping its memory for another; False if that is impossible.

        Never waits: called with locks held, in any thread.
        """
        return False

    @abstractmethod
    def close(self) -> None:
        """Remove all tiles; no method is called afterwards."""


class Device(ABC):
    """A device with memory of its own, such as a GPU.

    It is constructed before other code configures the device's memory, so that neither the import
    of its module nor its constructor may initialise the device.

    Attributes
    ----------
    name
        Name in reports.
    """

    name: str

    @abstractmethod
    def total(self) -> int:
        """Bytes of the device's memory; the only method here that may initialise the device."""

    def free(self) -> int | None:
        """Bytes that an allocation of this thread may take now at most; None if unknown.

        Called only after an allocation has failed.
        """
        return None

    def in_use(self) -> int | None:
        """Bytes of the device's memory that all processes use; None if unknown.

        Without what allocators of this process keep for reuse.  Called only while the device is in
        use, in a thread that may wait for it.
        """
        return None

    @abstractmethod
    def holds(self, value: Any) -> bool:
        """Whether a value is on the device, wholly or in part."""

    @abstractmethod
    def memory_of(self, value: Any) -> tuple[Hashable, int] | None:
        """The memory that a value is a view of a part of.

        Returns
        -------
        An identifier of the memory, unique as long as the value exists, and its bytes; None if
        that is unknown.
        """

    @abstractmethod
    def host(self, limit: int) -> Tier:
        """A new tier that keeps the device's tiles in the memory of the host.

        Parameters
        ----------
        limit
            Bytes of the worker's memory on the host.
        """

    @abstractmethod
    def on_full(self, make_room: Callable[[int], bool] | None) -> None:
        """Set the callback for allocations that fail because the device is full.

        Parameters
        ----------
        make_room
            Called in the thread that allocates, with a number of bytes, and with no lock held;
            if it returns True, the allocation is retried.  It is also called for copies to the
            device, which it has to recognise by the thread.  None to fail at once.
        """

    @abstractmethod
    def remove_on_full(self, make_room: Callable[[int], bool]) -> None:
        """Undo :meth:`on_full`, unless another function was given since then."""


#: Factories of devices, by kind.
DEVICES: dict[str, Callable[[], Device]] = {}


def register_device(name: str, factory: Callable[[], Device]) -> None:
    """Register a kind of device.

    Parameters
    ----------
    name
        A new name.
    factory
        Called in every worker that uses such a device; must not initialise it.

    Raises
    ------
    ValueError
        If the name is registered already.
    """
    if name in DEVICES:
        raise ValueError(f"name must be new, but there is a device {name!r} already")
    DEVICES[name] = factory


def device(name: str) -> Device:
    """Construct a device.

    Parameters
    ----------
    name
        One of :data:`DEVICES`.

    Raises
    ------
    ValueError
        If the name is not registered.
    ImportError
        If a library that it needs is not installed.
    """
    if name not in DEVICES:
        raise ValueError(f"name must be one of {', '.join(sorted(DEVICES))}, not {name!r}")
    return DEVICES[name]()
