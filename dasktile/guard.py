"""A guard around optional steps of planning."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from dasktile import config

logger = logging.getLogger("dasktile")

_Result = TypeVar("_Result")


def or_none(function: Callable[[], _Result | None]) -> _Result | None:
    """The result of an optional step of planning; None if it raises an error.

    A plan is right without it.

    Parameters
    ----------
    function
        The step.
    """
    try:
        return function()
    except Exception:
        if config.setting("raise-errors"):
            raise
        logger.debug("dasktile skipped an optional step of planning", exc_info=True)
        return None
