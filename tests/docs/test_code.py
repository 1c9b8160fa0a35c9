"""Python code of pages that are not executed when the site is built.

Code of ``docs/upstream`` has to show what its page says of Dask, distributed or dask_array; where
it does not any more, the page is outdated.  Proposals run with stand-ins for the names around them.
"""

from __future__ import annotations

import ast
import contextlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import GraphNode, Task, TaskRef
from distributed import Client, LocalCluster
from distributed.deploy.spec import SpecCluster

from tests.docs.test_pages import BLOCK

DOCS = Path(__file__).parents[2] / "docs"

#: Pages with code that is not executed for the site, and the number of their blocks.  They run
#: here, those of ``how-to`` in ``test_pages.py``.
PAGES = {
    "index.md": 1,
    "gallery/gpu.md": 1,
    "how-to/gpus.md": 1,
    "how-to/hosted.md": 2,
    "how-to/kubernetes.md": 1,
    "how-to/slurm.md": 1,
    "upstream/clone-stale-keys.md": 2,
    "upstream/expression-hook.md": 2,
    "upstream/join-results-in-the-client.md": 1,
    "upstream/lost-worker-check.md": 2,
}


def blocks(page: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return [textwrap.dedent(code) for _, code in BLOCK.findall(text)]


def run(code: str, **names: Any) -> dict[str, Any]:
    """The names of a block after it has run."""
    exec(compile(code, "page", "exec"), names)
    return names


def replaced(code: str, changes: dict[str, str]) -> str:
    for before, after in changes.items():
        assert before in code
        code = code.replace(before, after)
    return code


def test_all_pages_with_code_are_here() -> None:
    pages = (path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
    found = {path.relative_to(DOCS).as_posix(): len(blocks(str(path))) for path in pages}
    assert {page: count for page, count in found.items() if count} == PAGES


def test_index() -> None:
    (code,) = blocks("index.md")
    x = da.ones((60, 60), chunks=(10, 60))
    with (
        LocalCluster(n_workers=2, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        y = run(code, client=client, x=x.T @ x)["y"]
        assert np.array_equal(y.compute(), (x.T @ x).compute())


def test_the_notebook_of_gpus_has_the_code_of_the_page() -> None:
    """Which runs in ``test_pages.py``."""
    (notebook,), (page,) = blocks("gallery/gpu.md"), blocks("how-to/gpus.md")
    assert page.replace("import dasktile\n", "") == notebook


# upstream -------------------------------------------------------------------------------


def test_clones_keep_stale_keys(capsys: pytest.CaptureFixture[str]) -> None:
    example, _ = blocks("upstream/clone-stale-keys.md")
    with (
        dask.config.set(scheduler="sync"),
        pytest.raises(ValueError, match="Cannot fuse tasks with multiple outputs"),
    ):
        run(example)
    out = capsys.readouterr().out
    assert "the task says ('rechunk-merge-" in out and "[1 2 3 4 5 6]" not in out.splitlines()[-1]


def test_the_proposal_for_clones() -> None:
    _, proposal = blocks("upstream/clone-stale-keys.md")
    task = Task(("x", 0), abs, TaskRef(("y", 0)))

    def clone_key(key: tuple[str, int], seed: int) -> tuple[str, int]:
        return (f"{key[0]}-{seed}", key[1])

    names = {"GraphNode": GraphNode, "keys": {("y", 0)}, "clone_key": clone_key, "seed": 7}
    after = run(proposal, value=task, key=("x-7", 0), **names)
    assert after["value"].key == ("x-7", 0) and after["value"].dependencies == {("y-7", 0)}
    assert not after["is_leaf"]


def test_dask_array_has_no_hook(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("dask_array")
    example, proposal = blocks("upstream/expression-hook.md")
    with dask.config.set(scheduler="sync"):
        run(example)
    assert capsys.readouterr().out == "optimises\n"
    settings = {"array.expression-optimize": lambda exprs: [f"better {expr}" for expr in exprs]}
    config = SimpleNamespace(get=settings.get)
    assert run(proposal, config=config, optimize_graph=True, expr="x")["expr"] == "better x"


def test_compute_joins_blocks_on_a_worker() -> None:
    (code,) = blocks("upstream/join-results-in-the-client.md")
    code = replaced(
        code,
        {"n_workers=4, ": "n_workers=2, processes=False, dashboard_address=':0', ", "8000": "80",
         "chunks=1000": "chunks=10",
         # workers would pause where this process has more memory
         'memory_limit="1 GiB"': "memory_limit=0"},
    )  # fmt: skip
    *before, computed, gathered = ast.parse(code).body
    assert ast.unparse(computed) == "x.compute()"
    names = run("\n".join(map(ast.unparse, before)))
    with names["client"] as client, contextlib.closing(client.cluster):
        prefixes = client.cluster.scheduler.task_prefixes
        run(ast.unparse(gathered), **names)
        assert not any(name.startswith("finalize") for name in prefixes)
        run(ast.unparse(computed), **names)
        assert any(name.startswith("finalize") for name in prefixes)


def test_the_proposal_for_lost_workers_overrides_a_method() -> None:
    _, proposal = blocks("upstream/lost-worker-check.md")
    (function,) = ast.parse(proposal).body
    assert isinstance(function, ast.FunctionDef)
    theirs = SpecCluster._update_worker_status.__code__
    assert theirs.co_name == function.name
    assert [each.arg for each in function.args.args] == list(theirs.co_varnames[:3])


#: Puts the proposal in the place of distributed's method.
_PATCH = """
import asyncio
import dask
from dask.utils import parse_timedelta
from distributed.deploy.spec import Cluster, SpecCluster

{method}

SpecCluster._update_worker_status = _update_worker_status
SpecCluster._lost_worker_checks = {{}}
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="processes of Windows are ended otherwise")
@pytest.mark.parametrize("proposed", [False, True])
def test_restarted_workers_are_lost(tmp_path: Path, proposed: bool) -> None:
    example, proposal = blocks("upstream/lost-worker-check.md")
    if proposed:
        method = proposal.replace("super()", "super(SpecCluster, self)")
        example = _PATCH.format(method=method) + example
    script = tmp_path / "restarts.py"
    script.write_text(example, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        capture_output=True, text=True, timeout=200, check=False,
        env=os.environ | {"PYTHONPATH": ""},
    )  # fmt: skip
    first, *_, last = done.stdout.splitlines() or [""]
    assert first == "3 workers", done.stderr
    assert last.startswith("3 workers, {") if proposed else last == "0 workers, {}", done.stdout
