"""The plan of an expression that a script or a module makes."""

from __future__ import annotations

import ast
import importlib
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from dasktile.api import explain
from dasktile.doctor import connect
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
    chunks: Any = None,
) -> Explanation:
    """Explain an expression of a script.

    Parameters
    ----------
    source
        ``"script.py:expression"`` or ``"package.module:expression"``; the expression is Python, of
        the names that the script or module defines.
    method, workers, memory_limit, keep_chunks, chunks
        As for :func:`dasktile.explain`.
    scheduler
        Address of a cluster to plan for.

    Raises
    ------
    ScriptError
        If the script cannot be run, or its expression cannot be evaluated.
    TypeError, ValueError
        As :func:`dasktile.explain`; ValueError also if the scheduler's address cannot be used.
    OSError
        If there is no scheduler at the address.
    """
    value = evaluated(source)
    cluster: Any = nullcontext(workers)
    if scheduler is not None:
        cluster = connect(scheduler)
    with cluster as target:
        return explain(
            value,
            method=method,
            workers=target,
            memory_limit=memory_limit,
            keep_chunks=keep_chunks,
            chunks=chunks,
        )


def evaluated(source: str) -> Any:
    """The value of an expression of a script or module; what it prints goes to standard error.

    Parameters
    ----------
    source
        As for :func:`explain_source`.

    Raises
    ------
    ScriptError
        If the script cannot be run, or its expression cannot be evaluated.
    """
    path, expression = _parts(source)
    with redirect_stdout(sys.stderr), _surroundings(path):
        with _failures(path):
            names = _names(path)
        with _failures(repr(expression)):
            try:
                return eval(expression, names)
            except NameError as error:
                if error.name in names or error.name not in _guarded_names(path):
                    raise
                raise ScriptError(
                    f'{error.name} is defined under if __name__ == "__main__":, which does not run:'
                    " put the expression in a function, and name its call, such as"
                    " script.py:result()"
                ) from error


@contextmanager
def _failures(what: str) -> Iterator[None]:
    """Raise a ScriptError for whatever goes wrong, or ends the process."""
    try:
        yield
    except ScriptError:
        raise
    except SystemExit as error:
        given = "" if error.code is None else repr(error.code)
        raise ScriptError(
            f"{what} called sys.exit({given}), so that there is nothing to explain; in a script,"
            ' put the call under if __name__ == "__main__":'
        ) from error
    except Exception as error:
        raise ScriptError(f"{what} failed with {type(error).__name__}: {error}") from error


@contextmanager
def _surroundings(path: str) -> Iterator[None]:
    """The arguments and the folders of modules that ``python script.py`` would have."""
    is_script = path.endswith(".py")
    folder = Path(path).resolve().parent if is_script else Path.cwd()
    # both are also restored if the script has replaced the lists
    arguments, folders = sys.argv, sys.path
    old = folders[:]
    sys.argv = [path]
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.argv, sys.path = arguments, folders
        sys.path[:] = old


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


def _guarded_names(path: str) -> set[str]:
    """The names that a script assigns in a conditional statement at its top level."""
    if not path.endswith(".py"):
        return set()
    statements = ast.parse(Path(path).read_text(encoding="utf-8")).body
    guarded = [node for node in statements if isinstance(node, ast.If)]
    return {
        node.id
        for each in guarded
        for node in ast.walk(each)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _names(path: str) -> dict[str, Any]:
    if not path.endswith(".py"):
        return dict(vars(importlib.import_module(path)))
    if not Path(path).is_file():
        raise FileNotFoundError("there is no such file")
    return runpy.run_path(path, run_name=_NAME)
