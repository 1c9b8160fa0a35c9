"""Attributes and items that are replaced, and restored later."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Override:
    """An attribute, or an item of a mapping, that was replaced.

    Parameters
    ----------
    owner
        The object or mapping.
    name
        Of the attribute or item.
    replacement
        The value that was assigned.
    before
        The value before; `NOTHING` where the owner had none of its own, as for methods.
    """

    owner: Any
    name: str
    replacement: Any
    before: Any


#: The value before an override, where the owner had no such attribute or item of its own.
NOTHING = object()


def install(owner: Any, name: str, replacement: Any) -> Override:
    """Replace an attribute of an object, or an item of a mapping."""
    if isinstance(owner, MutableMapping):
        before = owner.get(name, NOTHING)
        owner[name] = replacement
    else:
        before = vars(owner).get(name, NOTHING)
        setattr(owner, name, replacement)
    return Override(owner, name, replacement, before)


def uninstall(override: Override) -> None:
    """Restore the value before, unless another value was assigned since."""
    owner, name, before = override.owner, override.name, override.before
    if isinstance(owner, MutableMapping):
        if owner.get(name) == override.replacement:
            if before is NOTHING:
                del owner[name]
            else:
                owner[name] = before
    elif getattr(owner, name, None) == override.replacement:
        if before is NOTHING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
