"""Exceptions inside the plugins are counted and suppressed."""

from __future__ import annotations

import logging

logger = logging.getLogger("dasktile")


class Guarded:
    """A part that keeps working after an exception in it.

    Attributes
    ----------
    errors
        Number of exceptions.  The first is logged, none is raised.
    """

    def __init__(self) -> None:
        self.errors = 0

    def _count_error(self, action: str) -> None:
        """Count the exception that is being handled.

        Parameters
        ----------
        action
            What failed, for the log: a verb and its object.
        """
        self.errors += 1
        if self.errors == 1:
            logger.exception("dasktile could not %s; further errors are only counted", action)
