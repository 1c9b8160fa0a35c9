"""What differs between operating systems, imitated on any of them."""

from __future__ import annotations

import ast
import ctypes
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dasktile
from dasktile import demo
from dasktile._compat.distributed import pages
from dasktile.runtime.tiers.disk import Disk

PACKAGE = Path(dasktile.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").rglob("*.py"))

#: Modules of the standard library that only some systems have.
SOME_SYSTEMS = {"fcntl", "grp", "msvcrt", "posix", "pwd", "resource", "termios", "winreg"}

#: Functions and constants that only some systems have.
SOME_NAMES = {
    *(
        "SIGKILL",
        "SIGUSR1",
        "SIGUSR2",
        "SIGSTOP",
        "fork",
        "forkpty",
        "getuid",
        "geteuid",
        "getppid",
    ),
    *("sched_getaffinity", "getloadavg", "uname", "mkfifo", "posix_fadvise", "posix_fallocate"),
    *("pread", "pwrite", "preadv", "pwritev", "add_signal_handler", "get_event_loop"),
}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_the_package_uses_what_all_systems_have(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    used = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                used |= {each.name.partition(".")[0] for each in names} & SOME_SYSTEMS
            case ast.ImportFrom(module=str(module), names=names):
                used |= {module.partition(".")[0]} & SOME_SYSTEMS
            case ast.Attribute(attr=name):
                used |= {name} & SOME_NAMES
            case ast.Constant(value=str(text)):
                used |= {text} if text.startswith(("/proc/", "/dev/", "/tmp")) else set()
            # os.rename does not replace an existing file on Windows; os.replace does
            case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr="rename")):
                used.add("rename")
            case ast.Call(func=ast.Name(id="open"), args=[_, *mode], keywords=keywords):
                binary = any("b" in str(getattr(each, "value", "")) for each in mode)
                named = {keyword.arg for keyword in keywords}
                used |= set() if binary or "encoding" in named else {"open without encoding"}
            case ast.Call(func=ast.Attribute(attr="read_text" | "write_text"), keywords=keywords):
                named = {keyword.arg for keyword in keywords}
                used |= set() if "encoding" in named else {"text without encoding"}
    assert used == set()
    # annotations are not evaluated, in any version of Python
    has_definitions = any(
        isinstance(node, (ast.FunctionDef, ast.AnnAssign)) for node in ast.walk(tree)
    )
    assert not has_definitions or "from __future__ import annotations" in source


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_can_be_imported_by_new_processes(path: Path) -> None:
    # where processes are spawned, each imports the script again
    tree = ast.parse(path.read_text(encoding="utf-8"))
    starts = {"Client", "LocalCluster", "main"}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
            continue
        called = {
            ast.unparse(each.func).rpartition(".")[2]
            for each in ast.walk(node)
            if isinstance(each, ast.Call)
        }
        assert not called & starts, ast.unparse(node)


# Files ------------------------------------------------------------------------------


def test_files_that_cannot_be_removed_yet_are_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(str(tmp_path))
    first, second = disk.store(np.ones(10)), disk.store(np.ones(20))

    def remove(path: str) -> None:
        raise PermissionError(13, "used by another process", path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "remove", remove)
        disk.free(first)
        third = disk.store(np.ones(30))
        assert len(os.listdir(disk.directory)) == 3
    disk.store(np.ones(40))
    assert sorted(os.listdir(disk.directory)) == ["1", "2", "3"]
    disk.free(second)
    np.testing.assert_array_equal(disk.load(third), np.ones(30))
    disk.close()
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_gone_is_not_tried_again(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path))
    held = disk.store(np.ones(10))
    os.remove(held.content.path)
    disk.free(held)
    assert not disk._unremoved


def test_warnings_name_the_line_of_the_user_however_the_path_is_written() -> None:
    # such an entry of sys.path stays in the names of files
    code = (
        "import sys; sys.path.insert(0, './.')\n"
        "from dasktile import errors\n"
        "assert errors.warn_user.__code__.co_filename.startswith(errors._PACKAGE), vars(errors)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE.parent, env=environment)


# The demonstration ------------------------------------------------------------------


@pytest.mark.parametrize("lacking", ["library", "function"])
def test_the_demonstration_runs_without_glibc(
    lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str) -> Any:
        if lacking == "library":
            raise OSError(f"{name}: cannot open shared object file")
        return object()

    monkeypatch.setattr(ctypes, "CDLL", load)
    demo._free_memory()


def test_files_of_the_demonstration_that_are_still_open_raise_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unlink(path: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "used by another process", path)

    with monkeypatch.context() as patch, demo._temporary_directory() as folder:
        file = Path(folder) / "mapped.npy"
        file.touch()
        patch.setattr(os, "unlink", unlink)
    with monkeypatch.context():
        file.unlink(missing_ok=True)
        Path(folder).rmdir()


# Releases of other packages ---------------------------------------------------------


def test_the_page_is_removed_without_waiting() -> None:
    class Application:
        app_paths = ("/dasktile",)
        stopped = False

        def stop(self, wait: bool = True) -> None:
            if wait:
                raise RuntimeError("Cannot synchronously wait on a running event loop")
            self.stopped = True

    application = Application()
    scheduler: Any = SimpleNamespace(
        http_application=SimpleNamespace(applications=[application, object()])
    )
    pages.remove_page(scheduler, "dasktile")
    assert application.stopped
    assert application not in scheduler.http_application.applications


# Integers of 32 bits ----------------------------------------------------------------


def test_the_integer_program_has_indices_that_every_solver_accepts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from scipy import optimize

    from dasktile.tiling.settings import SolverLimits
    from dasktile.tiling.solve.milp import integer
    from dasktile.tiling.solve.problem import Problem

    solve, types = optimize.milp, set()

    def milp(*args: Any, constraints: Any, **kwargs: Any) -> Any:
        types.update({constraints.A.indices.dtype, constraints.A.indptr.dtype})
        return solve(*args, constraints=constraints, **kwargs)

    monkeypatch.setattr(optimize, "milp", milp)
    problem = Problem([np.array([1.0, 0.0])] * 2, {(0, 1): np.eye(2)})
    solution = integer(problem, (0, 0), SolverLimits())
    assert solution is not None and solution.cost == 1.0
    assert types == {np.dtype(np.int32)}


def test_the_package_needs_no_compiled_module() -> None:
    assert not [path for path in PACKAGE.rglob("*") if path.suffix in {".so", ".pyd", ".dylib"}]
    assert importlib.util.find_spec("dasktile.__main__") is not None
