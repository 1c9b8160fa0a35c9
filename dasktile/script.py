"""The plan of an expression that a script or a module makes."""

from __future__ import annotations

import importlib
import runpy
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from distributed import Client

from dasktile.api import explain
from dasktile.report.explanation import Explanation

#: Name of the module that a script runs as: not ``"__main__"``, so that its main part does not run.
_NAME = "__dasktile__"


class ScriptError(Exception):
    """The script or the expression failed, or is not there."""


def explain_source(
    source: str,
    *,
    method: str = "auto",
    workers: int | None = None,
    scheduler: str | None = None,
    memory_limit: str | None = None,
    keep_chunks: bool = False,
) -> Explanation:
    """Explain an expression of a script.

    Parameters
    ----------
    source
        ``"script.py:expression"`` or ``"package.module:expression"``; the expression is Python, of
        the names that the script or module defines.
    method, workers, memory_limit, keep_chunks
        As for :func:`dasktile.explain`.
    scheduler
        Address of a cluster to plan for.

    Raises
    ------
    ScriptError
        If the script cannot be run, or its expression cannot be evaluated.
    TypeError, ValueError
        As :func:`dasktile.explain`.
    OSError
        If there is no scheduler at the address.
    """
    value = evaluated(source)
    cluster: Any = nullcontext(workers)
    if scheduler is not None:
        cluster = Client(scheduler, set_as_default=False, timeout="10s")
    with cluster as target:
        return explain(
            value,
            method=method,
            workers=target,
            memory_limit=memory_limit,
            keep_chunks=keep_chunks,
        )


def evaluated(source: str) -> Any:
    """The value of an expression of a script or module; what it prints goes to standard error.

    Raises
    ------
    ScriptError
        If the script cannot be run, or its expression cannot be evaluated.
    """
    path, expression = _parts(source)
    with redirect_stdout(sys.stderr):
        try:
            names = _names(path)
        except Exception as error:
            raise ScriptError(f"{path} failed with {type(error).__name__}: {error}") from error
        try:
            return eval(expression, names)
        except Exception as error:
            raise ScriptError(
                f"{expression!r} failed with {type(error).__name__}: {error}"
            ) from error


def _parts(source: str) -> tuple[str, str]:
    # a path on Windows has a colon of its own
    start = source.find(".py:")
    at = start + 3 if start >= 0 else source.find(":")
    path, expression = source[:at], source[at + 1 :].strip()
    if at < 0 or not path or not expression:
        raise ScriptError(
            "the source must be SCRIPT.py:EXPRESSION or MODULE:EXPRESSION, such as"
            f" analysis.py:anomalies.mean(); got {source!r}"
        )
    return path, expression


def _names(path: str) -> dict[str, Any]:
    if not path.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        try:
            return dict(vars(importlib.import_module(path)))
        finally:
            sys.path.pop(0)
    if not Path(path).is_file():
        raise FileNotFoundError("there is no such file")
    # as for `python script.py`, modules beside the script can be imported
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        return runpy.run_path(path, run_name=_NAME)
    finally:
        sys.path.pop(0)
