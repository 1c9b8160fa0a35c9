"""Exceptions inside the plugins are counted and suppressed."""

from __future__ import annotations

import logging
import sys

logger = logging.getLogger("dasktile")


class Guarded:
    """A part that keeps working after an exception in it.

    Attributes
    ----------
    errors
        Number of exceptions.  The first is logged, none is raised.
    first_error
        The first of them, as text; empty if there was none.
    """

    def __init__(self) -> None:
        self.errors = 0
        self.first_error = ""

    def _count_error(self, action: str) -> None:
        """Count the exception that is being handled.

        Parameters
        ----------
        action
            What failed, for the log: a verb and its object.
        """
        self.errors += 1
        if self.errors == 1:
            self.first_error = repr(sys.exception())
            logger.exception("dasktile could not %s; further errors are only counted", action)
