"""Guards around planning: optional steps of it, and searches for garbage."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def without_collections() -> Iterator[None]:
    """Search for no garbage while a plan is made, nor among its new objects after that.

    Nearly all of them live as long as the plan, and none are in cycles: a search finds nothing, and
    takes a tenth of the time of a plan.  They become old objects at once, as if some searches had
    been made.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        # objects that the user has frozen would be thawed
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()
