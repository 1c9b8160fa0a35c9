"""Warnings.

Invalid arguments raise ``ValueError`` or ``TypeError``.  An expression that dasktile cannot read is
not an error: it is returned unchanged, and ``explain`` shows the reason.
"""

from __future__ import annotations


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
