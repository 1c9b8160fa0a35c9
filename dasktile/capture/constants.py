"""Constants of a graph: what its tasks have beside the structure, compared by value.

Graphs of the same structure and the same constants are planned alike.  What they compute differs in
the keys, and in what is handed on: futures and states of random numbers, and the order of what is
in partials and sets.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any

import numpy as np

from dasktile.capture.seen import Seen

#: States of random numbers.
STATES = (
    np.random.BitGenerator,
    np.random.SeedSequence,
    np.random.Generator,
    np.random.RandomState,
)


class Constants:
    """The constants of a graph, in the order in which they are met.

    Attributes
    ----------
    objects
        Arrays, functions and other objects, each once.
    texts
        The texts that contain a token, or what looks like one.
    unknown
        Why the constants cannot be compared; empty if they can.
    """

    def __init__(self) -> None:
        #: They are kept, so that no other object gets the id of one of them.
        self.objects: list[Any] = []
        self.texts: list[str] = []
        self.unknown = ""
        self._met: list[Any] = []
        #: Numbers of the objects, by their ids.
        self._numbers: dict[int, int] = {}
        self._seen = Seen()

    def value(self, value: Any) -> None:
        """Add a number, or a text without tokens."""
        self._met.append(value)

    def text(self, text: str) -> None:
        """Add a text with a token."""
        self.texts.append(text)
        self._met.append(text)

    def digest(self) -> bytes | None:
        """A digest of all constants; None if they cannot be compared."""
        if self.unknown:
            return None
        try:
            replaced = self._seen.replaced()
        except Exception as error:
            self.cannot(str(error) or type(error).__name__)
            return None
        return blake2b(marshal.dumps((self._met, replaced), 2), digest_size=32).digest()

    def cannot(self, reason: str) -> None:
        """Note that the constants cannot be compared."""
        self.unknown = self.unknown or reason

    def array(self, array: np.ndarray[Any, Any]) -> None:
        """Add the elements of an array."""
        self._add(array, self._seen.array)

    def identity(self, value: Any) -> None:
        """Add an object that is part of the structure: which one it is."""
        self._add(value, lambda own: "same")

    def identities(self, values: Iterable[Any]) -> None:
        """Add several objects by `identity`."""
        for value in values:
            self.identity(value)

    def function(self, function: Callable[..., Any]) -> None:
        """Add what a function is made of."""
        self._add(function, lambda own: self._seen.function(own, ()))

    def object(self, value: Any) -> None:
        """Add an object of any type."""
        is_state = isinstance(value, STATES)
        self._add(value, _of_state if is_state else self._seen.object)

    def _add(self, value: Any, describe: Callable[[Any], Any]) -> None:
        if self.unknown:
            return
        known = self._numbers.get(id(value))
        if known is not None:
            self._met.append(known)
            return
        self._numbers[id(value)] = len(self.objects)
        self.objects.append(value)
        try:
            self._met.append(describe(value))
        except Exception as error:
            # also those of methods of the user, and where objects contain each other
            self.cannot(str(error) or type(error).__name__)


def _of_state(state: Any) -> Any:
    return ("state", type(state).__name__)
