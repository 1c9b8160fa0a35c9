"""The code of pages about clusters runs, with a stand-in for what this machine lacks.

Pages with cells are executed when the site is built, and the README in ``tests/test_examples.py``.
Other code is in ``test_code.py``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

import dasktile
from dasktile._compat.dask import collections_to_expr
from dasktile.report.cluster_counts import _LEGEND, Metrics
from dasktile.report.explanation import Explanation

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"

BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)

#: Replaces a class that starts workers elsewhere by one that starts them here.
STAND_IN = """
import sys
from types import ModuleType
from distributed import LocalCluster

class {name}(LocalCluster):
    def __init__(self, **options):
        options = {{key: options[key] for key in options.keys() & {{"data"}}}}
        super().__init__(n_workers=1, processes=False, dashboard_address=":0", **options)

module = sys.modules["{module}"] = ModuleType("{module}")
module.{name} = {name}
"""

#: Code that runs before the code of a page.
BEFORE = {
    "kubernetes.md": STAND_IN.format(name="KubeCluster", module="dask_kubernetes.operator")
    + 'sys.modules["dask_kubernetes"] = ModuleType("dask_kubernetes")\n',
    "hosted.md": STAND_IN.format(name="Service", module="service") + "cluster = Service()\n",
    "gpus.md": STAND_IN.format(name="LocalCUDACluster", module="dask_cuda")
    + "from dasktile.runtime.tiers import DEVICES\nDEVICES['cupy'] = DEVICES['emulated']\n",
    "slurm.md": "",
}

#: Code that runs after it: what the page is about works.
AFTER = """
import dask.array as da
x = da.ones((400, 400), chunks=(50, 400))
assert dasktile.optimize(x.T @ x).sum().compute() == 400**3
assert dasktile.metrics(client).tasks > 0
client.close()
cluster.close()
print("done")
"""


def code_of(page: str) -> str:
    """The Python blocks of a page, one after the other."""
    text = (HOW_TO / page).read_text(encoding="utf-8")
    return "".join(
        re.sub(f"^{indent}", "", code, flags=re.M) for indent, code in BLOCK.findall(text)
    )


def run(code: str, folder: Path, **environment: str) -> None:
    script = folder / "page.py"
    body = "\n".join(f"    {line}".rstrip() for line in code.splitlines())
    script.write_text(f"if __name__ == '__main__':\n{body}\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=folder,
        env=os.environ | environment,
    )
    assert done.stdout.endswith("done\n"), done.stdout + done.stderr


def test_every_page_with_code_is_here() -> None:
    pages = {path.name for path in HOW_TO.glob("*.md") if "```python" in path.read_text("utf-8")}
    assert pages == BEFORE.keys()


@pytest.mark.parametrize("page", ["kubernetes.md", "hosted.md", "gpus.md"])
def test_page(page: str, tmp_path: Path) -> None:
    code = "import dasktile\nfrom distributed import Client\n" + code_of(page)
    if page == "hosted.md":
        assert "cluster.get_client()" in code
    run(BEFORE[page] + code + AFTER, tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="SLURM does not run on Windows")
def test_slurm(tmp_path: Path) -> None:
    """dask-jobqueue writes and submits jobs; a script in the place of ``sbatch`` runs them here."""
    pytest.importorskip("dask_jobqueue")
    programs = tmp_path / "bin"
    programs.mkdir()
    job = (
        f"cp \"$1\" '{tmp_path}/job.sh'; sh '{tmp_path}/job.sh' >'{tmp_path}/log' 2>&1 </dev/null &"
    )
    for name, line in {"sbatch": f"{job}\necho Submitted batch job $!", "scancel": ":"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    code = code_of("slurm.md")
    smaller = {
        "cores=16": "cores=2",
        "processes=4": "processes=2",
        '"64 GB"': '"2 GB"',
        "jobs=8": "jobs=1",
        "wait_for_workers(32)": "wait_for_workers(2)",
    }
    for before, after in smaller.items():
        assert before in code
        code = code.replace(before, after)
    run(
        code + AFTER,
        tmp_path,
        PATH=f"{programs}{os.pathsep}{os.environ['PATH']}",
        TMPDIR=str(tmp_path),
        DASK_JOBQUEUE__SLURM__INTERFACE="lo" if sys.platform == "linux" else "lo0",
    )


def test_storing_adds_a_task_for_each_block_of_a_bundled_array() -> None:
    """As zarr.md says."""
    assert "add one task for each block" in (HOW_TO / "zarr.md").read_text(encoding="utf-8")
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        dasktile.enable(client)
        x = da.from_array(np.ones((4000, 200)), chunks=(20, 200))
        centred = x - x.mean(axis=0)
        y = dasktile.optimize(centred, keep_chunks=True)
        stored = da.store(y, np.empty(y.shape), compute=False, lock=False)
        before, after, with_store = (
            len(collections_to_expr([each]).optimize().__dask_graph__())
            for each in (centred, y, stored)
        )
        assert after < before
        # and the NumPy array that is written to
        assert with_store - after == y.npartitions + 1 == 201


def test_readme_on_a_cluster(tmp_path: Path) -> None:
    """The blocks of the README that need a cluster run, one after the other."""
    text = (HOW_TO.parents[1] / "README.md").read_text(encoding="utf-8")
    example, cluster, spilling = (code for _, code in BLOCK.findall(text)[:3])
    assert 'Client("scheduler:8786")' in cluster and "memory_limit=" in spilling
    # with its own sizes it runs in tests/test_examples.py
    for before, after in {"2000": "500", "3000": "750"}.items():
        assert before in example
        example = example.replace(before, after)
    begin = "from distributed import LocalCluster\ncluster = LocalCluster(n_workers=2)\n"
    run(
        begin + example + cluster.replace('"scheduler:8786"', "cluster") + 'print("done")\n',
        tmp_path,
    )
    run(spilling + '\nprint("done")\n', tmp_path)


def test_figures_have_the_same_names_in_the_page_and_in_the_reports() -> None:
    """The bytes that workers receive: by the model, simulated, measured, and in `metrics`."""
    page = (HOW_TO / "read-explain.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| figure \|.*?(?=^$)", page, re.MULTILINE | re.DOTALL)
    names = [row.split("|")[1].strip() for row in table.splitlines()[2:]]
    assert len(names) == 4
    legend = " ".join((Explanation.__doc__ or "").split())
    for name in names:
        assert f"- {name}" in legend
    for name in ("predicted", "received"):
        assert f"{name}:" in _LEGEND or f"*{name}*" in (Metrics.__doc__ or "")
