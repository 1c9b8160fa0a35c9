"""Errors in here are counted, and harm nobody."""

from __future__ import annotations

import logging

logger = logging.getLogger("dasktile")


class Guarded:
    """What goes on when something in it fails.

    Attributes
    ----------
    errors
        Errors in here; the first is logged, none is raised.
    """

    def __init__(self) -> None:
        self.errors = 0

    def _failed(self, what: str) -> None:
        """Count the error that is being handled."""
        self.errors += 1
        if self.errors == 1:
            logger.exception("dasktile could not %s; further errors are only counted", what)
