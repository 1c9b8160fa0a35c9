"""Warnings.

Invalid arguments raise ``ValueError`` or ``TypeError``.  An expression that dasktile cannot read is
not an error: it is returned unchanged, and ``explain`` shows the reason.
"""

from __future__ import annotations


class UnsupportedCollectionWarning(UserWarning):
    """A collection of a kind that dasktile cannot read was returned unchanged."""


class InternalErrorWarning(RuntimeWarning):
<<<<<<< HEAD
    """An error occurred inside dasktile; the input was returned unchanged."""
=======
    """Something failed inside dasktile; the input was returned as it was."""


class MissingNameWarning(UserWarning):
    """The installed Dask lacks a private name that dasktile uses; what needs it is off."""
>>>>>>> compat-dask
