"""The examples in docstrings of public names run, and print what they show."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from typing import Any

import pytest

import dasktile

PUBLIC = [name for name in dasktile.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_an_example_that_runs(name: str) -> None:
    value: Any = getattr(dasktile, name)
    module = importlib.import_module(value.__module__)
    examples = [
        test
        for test in doctest.DocTestFinder(recurse=False).find(value, name, module=module, globs={})
        if test.examples
    ]
    assert examples, f"dasktile.{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    for test in examples:
        output: list[str] = []
        failed, _ = runner.run(test, out=output.append)
        assert not failed, "".join(output)


@pytest.mark.parametrize("expression", ["tiling.methods()", "errors", "doctor", "testing"])
def test_modules_are_attributes_of_the_package(expression: str) -> None:
    code = f"import dasktile; dasktile.{expression}"
    subprocess.run([sys.executable, "-c", code], check=True)
