"""Warnings, and the line that they name.

Invalid arguments raise ``ValueError`` or ``TypeError``.  An expression that dasktile cannot read is
not an error: it is returned unchanged, and ``explain`` shows the reason.
"""

from __future__ import annotations

import os
import sys

# the folder as frames name it: a path may have parts that pathlib leaves out, such as "./"
_PACKAGE = os.path.dirname(__file__) + os.sep


def level_of_user() -> int:
    """The `stacklevel` by which a warning names the line that called this package."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level


class UnsupportedCollectionWarning(UserWarning):
    """A collection of a kind that dasktile cannot read was returned unchanged."""


class InternalErrorWarning(RuntimeWarning):
    """An error occurred inside dasktile; the input was returned unchanged."""


class MissingNameWarning(UserWarning):
    """A private name of Dask is missing in the installed version; a feature of dasktile is off."""


class UnknownSettingWarning(UserWarning):
    """A setting under ``dasktile`` in ``dask.config`` does not exist; it has no effect."""


class InconsistentGraphWarning(UserWarning):
    """Tasks of a graph read keys that the graph does not declare; it was returned unchanged."""
