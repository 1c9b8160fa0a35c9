"""Errors inside capture: counted, logged, and kept for the setting `raise-errors`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from dasktile.capture.base import GraphView

logger = logging.getLogger("dasktile")

#: How often each function of capture has raised an exception in this process.
failures: Counter[str] = Counter()


def note_failure(view: GraphView, function: Callable[..., Any], error: Exception) -> str:
    """Note an exception of a function of capture, which is being handled; the function's name."""
    label = f"{function.__module__}.{function.__name__}"
    failures[label] += 1
    view.errors.append(error)
    logger.debug("%s failed", label, exc_info=True)
    return label
