"""Warnings and the line that they name, and arguments that are True or False.

Invalid arguments raise ``ValueError`` or ``TypeError``.  An expression that dasktile cannot read is
not an error: it is returned unchanged, and ``explain`` shows the reason.
"""

from __future__ import annotations

import os
import sys
import warnings

# the folder as frames name it: a path may have parts that pathlib leaves out, such as "./"
_PACKAGE = os.path.dirname(__file__) + os.sep


def warn_user(message: str, category: type[Warning]) -> None:
    """Give a warning that names the line that called this package.

    The line is given in full: packages of RAPIDS replace ``warnings.warn`` by a function that adds
    to its `stacklevel`.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        frame.f_globals.get("__name__", "<unknown>"),
        frame.f_globals.setdefault("__warningregistry__", {}),
    )


class UnsupportedCollectionWarning(UserWarning):
    """A collection of a kind that dasktile cannot read was returned unchanged."""


class ContradictedKernelWarning(UserWarning):
    """A function has other values than its ``register_kernel`` allows; its chunks are unchanged."""


class InternalErrorWarning(RuntimeWarning):
    """An error occurred inside dasktile; the input was returned unchanged."""


class MissingNameWarning(UserWarning):
    """A private name of Dask is missing in the installed version; a feature of dasktile is off."""


class UnknownSettingWarning(UserWarning):
    """A setting under ``dasktile`` in ``dask.config`` does not exist; it has no effect."""


class InconsistentGraphWarning(UserWarning):
    """Tasks of a graph read keys that the graph does not declare; it was returned unchanged."""


def parse_flag(name: str, value: object) -> bool:
    """The value of an argument that must be True or False.

    Raises
    ------
    TypeError
        If it is anything else; the message names the argument.
    """
    if not isinstance(value, bool):
        kind = type(value).__name__
        raise TypeError(f"{name} must be True or False; got {value!r} of type {kind}")
    return value
