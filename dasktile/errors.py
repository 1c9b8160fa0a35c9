"""What dasktile warns of.

Wrong arguments raise plain ``ValueError`` and ``TypeError``; an expression that is not
understood is no error at all, and ``explain`` says why it was left alone.
"""

from __future__ import annotations


class UnsupportedCollectionWarning(UserWarning):
    """A collection of a kind that dasktile does not read was returned as it was."""


class InternalErrorWarning(RuntimeWarning):
    """Something failed inside dasktile; the input was returned as it was."""


class InconsistentGraphWarning(UserWarning):
    """Tasks of a graph read what the graph does not declare; it was returned as it was."""
