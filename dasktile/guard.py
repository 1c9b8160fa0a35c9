"""A guard around functions whose results a plan can do without."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from dasktile import config

logger = logging.getLogger("dasktile")

_Result = TypeVar("_Result")


def or_none(function: Callable[[], _Result | None]) -> _Result | None:
    """What a function returns; None if it raises an error, without which a plan is right, too.

    Parameters
    ----------
    function
        Predicts a run, or looks up a plan.
    """
    try:
        return function()
    except Exception:
        if config.setting("raise-errors"):
            raise
        logger.debug("dasktile failed to predict a run or to look up a plan", exc_info=True)
        return None
