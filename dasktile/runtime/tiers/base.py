"""What a tier must do, and what a device must."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Held:
    """What a tier has of one tile.

    Attributes
    ----------
    content
        The tier's own.
    size
        Bytes that it takes there.
    """

    content: Any
    size: int


class Tier(ABC):
    """One kind of memory.  Called from several threads at once, for different tiles.

    Attributes
    ----------
    name
        As reports have it.
    """

    name: str

    @abstractmethod
    def store(self, value: Any) -> Held:
        """Keep a tile.

        Parameters
        ----------
        value
            As the tier above has it.

        Raises
        ------
        OSError
            If there is no room for it, or the tier does not work.
        Exception
            If it cannot be kept here at all.
        """

    @abstractmethod
    def load(self, held: Held) -> Any:
        """What was stored, as the tier above has it.

        Raises
        ------
        MemoryError
            If there is no room for it above.
        Exception
            If it cannot be had back.
        """

    @abstractmethod
    def free(self, held: Held) -> None:
        """Forget what was stored; never raises."""

    @abstractmethod
    def close(self) -> None:
        """Forget everything; nothing is called any more."""


class Device(ABC):
    """What tasks compute on besides the host's own memory.

    One is made before whatever sets up the device's memory has run, so neither importing nor
    making one may touch the device.

    Attributes
    ----------
    name
        As reports have it.
    """

    name: str

    @abstractmethod
    def total(self) -> int:
        """Bytes of memory that the device has; the one thing that may have to touch it."""

    @abstractmethod
    def holds(self, value: Any) -> bool:
        """Whether a value lies on the device, wholly or in part."""

    @abstractmethod
    def memory_of(self, value: Any) -> tuple[Hashable, int] | None:
        """The memory that a value is a view of a part of.

        Returns
        -------
        What tells it from other memory as long as the value lives, and its bytes; None if that
        is not known.
        """

    @abstractmethod
    def host(self) -> Tier:
        """A new tier that keeps the device's tiles in the memory of the host."""

    @abstractmethod
    def on_full(self, make_room: Callable[[int], bool] | None) -> None:
        """Say what to do when there is no room for what a task makes.

        Parameters
        ----------
        make_room
            Called in the thread that allocates, with a number of bytes, and with no lock held;
            if it returns True it is tried again.  It is called for copies to the device as
            well, and has to tell those by its thread.  None to fail at once.
        """

    @abstractmethod
    def remove_on_full(self, make_room: Callable[[int], bool]) -> None:
        """Undo :meth:`on_full`, unless another function was given since then."""


#: Makes a device, by its name.
DEVICES: dict[str, Callable[[], Device]] = {}


def register_device(name: str, factory: Callable[[], Device]) -> None:
    """Make a kind of device known.

    Parameters
    ----------
    name
        New.
    factory
        Called in every worker that is to have one; must not touch the device.

    Raises
    ------
    ValueError
        If there is a device of that name.
    """
    if name in DEVICES:
        raise ValueError(f"name must be new, but there is a device {name!r} already")
    DEVICES[name] = factory


def device(name: str) -> Device:
    """Make a device.

    Parameters
    ----------
    name
        One of :data:`DEVICES`.

    Raises
    ------
    ValueError
        If there is none of that name.
    ImportError
        If a library that it needs is not installed.
    """
    if name not in DEVICES:
        raise ValueError(f"name must be one of {', '.join(sorted(DEVICES))}, not {name!r}")
    return DEVICES[name]()
