"""The same expressions run with the package dask-array, in an interpreter of its own.

dask-array (https://github.com/mrocklin/dask-array) is dask.array with an expression optimiser.
``python -m benchmarks.placement --peer PATH_TO_PYTHON`` starts this module with that
interpreter, which needs dask-array, distributed, zarr and psutil.  The protocol is one JSON object
per line for each request, and one for each answer.  ``--module dask.array`` runs Dask itself.

    python -m venv peer && peer/bin/pip install dask-array distributed psutil zarr
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import subprocess
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

#: Prefix of the lines with answers: workers print to the same stream.
_MARK = "@peer "


class Peer:
    """The other process, as an engine of `benchmarks.placement`."""

    name = "peer"

    def __init__(
        self,
        python: str,
        workers: int,
        rate: float | None,
        size: float,
        module: str = "dask_array",
    ) -> None:
        self.command = [python, "-m", "benchmarks.peer", "--workers", str(workers)]
        self.command += ["--size", repr(size), "--module", module]
        if rate:
            self.command += ["--rate", repr(rate)]

    def __enter__(self) -> Peer:
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        self.about = self._answer()
        return self

    def __exit__(self, *exception: object) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def cell(self, workload: str, mode: str, folder: Path, values: bool) -> dict[str, Any]:
        """Run one cell, as `benchmarks.placement.Local.cell`."""
        assert self.process.stdin is not None
        request = {"workload": workload, "mode": mode, "folder": str(folder), "values": values}
        try:
            print(json.dumps(request), file=self.process.stdin, flush=True)
            return self._answer()
        except (OSError, RuntimeError) as error:
            # the other engines continue
            return {"error": f"{type(error).__name__}: {error}"[:300]}

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(_MARK):
                answer: dict[str, Any] = json.loads(line[len(_MARK) :])
                return answer
        raise RuntimeError(f"{' '.join(self.command)} ended with {self.process.wait()}")


def _print_answer(answer: dict[str, Any]) -> None:
    print(_MARK + json.dumps(answer), flush=True)


def main() -> None:
    """Answer requests from the standard input until it is closed."""
    from benchmarks.meters import Cluster, run_cell
    from benchmarks.sized import sized

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--size", type=float, default=0.5)
    parser.add_argument("--module", default="dask_array")
    options = parser.parse_args()
    xp = importlib.import_module(options.module)
    warnings.simplefilter("ignore", xp.PerformanceWarning)
    every = sized(options.size)
    with Cluster(options.workers, options.rate) as cluster:
        package = options.module.split(".")[0].replace("_", "-")
        _print_answer({"package": package, "version": importlib.metadata.version(package)})
        for line in sys.stdin:
            request = json.loads(line)
            try:
                answer = run_cell(
                    cluster,
                    every[request["workload"]],
                    request["mode"],
                    Path(request["folder"]),
                    xp,
                    values=request["values"],
                )
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"[:300]}
            _print_answer(answer)


if __name__ == "__main__":
    main()
