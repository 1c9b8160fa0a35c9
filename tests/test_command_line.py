"""``python -m dasktile explain`` and ``doctor``."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import dask
import pytest
from distributed import Client, LocalCluster

import dasktile
from dasktile import doctor
from dasktile.__main__ import main
from dasktile.report.formatting import WIDTH
from dasktile.script import evaluated

SCRIPT = """
import dask.array as da

print("the script prints")
a = da.ones((400, 300), chunks=(50, 300))
gram = a.T @ a
if __name__ == "__main__":
    late = gram + 1
    raise SystemExit("the main part ran")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "analysis.py"
    path.write_text(SCRIPT)
    return path


def test_explains_an_expression_of_a_script(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", f"{script}:gram + 1", "--workers", "4"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("4 workers") and "matmul" in out and "add" in out
    assert "--workers" not in out
    assert "the script prints" in err


def test_some_rows_of_the_table(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = f"{script}:gram + 1"
    assert main(["explain", source, "--workers", "4", "--largest", "1"]) == 0
    out = capsys.readouterr().out
    assert "matmul" in out and "add" not in out and "more arrays\n" in out
    with pytest.raises(SystemExit, match="2"):
        main(["explain", source, "--largest", "0"])
    assert "--largest must be an integer >= 1; got 0" in capsys.readouterr().err


def test_explanation_as_json_and_picture(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "plan.svg"
    arguments = ["--workers", "4", "--method", "none", "--json", "--picture", str(picture)]
    assert main(["explain", f"{script}:gram", *arguments]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["workers"] == 4 and values["method"] == "none" and not values["changed"]
    assert picture.read_text().startswith("<svg")


def test_a_plan_for_one_worker_by_default_says_so(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hint = "Planned for 1 worker, which moves no bytes: --workers N"
    assert main(["explain", f"{script}:gram"]) == 0
    assert hint in capsys.readouterr().out
    assert main(["explain", f"{script}:gram", "--workers", "1"]) == 0
    assert hint not in capsys.readouterr().out
    assert main(["explain", f"{script}:gram", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["workers"] == 1


@pytest.mark.parametrize(
    ("given", "chunks"),
    [
        ("150", 150),
        ("auto", "auto"),
        ("100 KiB", "100 KiB"),
        ("100,-1", (100, -1)),
        ("-1,100", (-1, 100)),
        ("None, auto", (None, "auto")),
        ("1=-1", {1: -1}),
        ("1e2", 100),
        ("0=1e2", {0: 100}),
        ("0=100, 1=100 KiB", {0: 100, 1: "100 KiB"}),
        ("(100, (200, 100))", (100, (200, 100))),
    ],
)
def test_results_in_given_chunks(
    given: str, chunks: object, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"{script}:gram", "--workers", "4", f"--chunks={given}"]
    assert main(["explain", *arguments, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    gram = evaluated(f"{script}:gram")
    capsys.readouterr()
    expected = json.dumps(dasktile.explain(gram, workers=4, chunks=chunks).to_dict()["nodes"])
    assert shown["in_chunks"] and shown["nodes"] == json.loads(expected)


def test_results_in_chunks_by_dimension(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("xarray")
    path = tmp_path / "dataset.py"
    path.write_text(
        "import dask.array as da\nimport xarray as xr\n"
        "x = xr.DataArray(da.ones((40, 30), chunks=(10, 30)), dims=('time', 'lat')) + 1\n"
    )
    arguments = ["--workers", "2", "--chunks", "time=-1,lat=6", "--json"]
    assert main(["explain", f"{path}:x", *arguments]) == 0
    last = json.loads(capsys.readouterr().out)["nodes"][-1]
    assert last["chunks_after"] == [[40], [6] * 5]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("100,1=5", "or all of them with an axis"),
        ("100,", "one for each axis"),
        ("(100", "no Python literal"),
        ("0=", "or all of them with an axis, such as time=-1,lat=90; got '0='"),
        ("=3", "or all of them with an axis, such as time=-1,lat=90; got '=3'"),
        ("None", "give one size, such as 1000, auto or '100 MiB'"),
        ("1.5", "a number of elements must be an integer; got '1.5'"),
        ("inf", "a number of elements must be an integer; got 'inf'"),
        ("5,5,5", "chunks=(5, 5, 5) must have one entry for each axis of shape (300, 300)"),
        ("2=5", "out of bounds for array of dimension 2; chunks={2: 5} of dasktile: give a size"),
        ("-2", "must have sizes of at least 1"),
        ("some", "or bytes such as '100 MiB'; got 'some'"),
        ("100,q", "or bytes such as '100 MiB'; got 'q'"),
    ],
)
def test_wrong_chunks_are_one_line(
    given: str, message: str, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(["explain", f"{script}:gram", f"--chunks={given}"])
    except SystemExit as stopped:
        status = int(stopped.code or 0)
    assert status == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_two_sources_are_refused_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["explain", "a.py:x", "b.py:y"])
    hint = "unrecognized arguments: b.py:y; to explain several arrays, give one expression"
    assert hint in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["explain", "a.py:x", "--wrong"])
    assert capsys.readouterr().err.endswith("unrecognized arguments: --wrong\n")


def test_chunks_and_keep_chunks_exclude_each_other(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["explain", f"{script}:gram", "--chunks", "100", "--keep-chunks"])
    assert "--chunks and --keep-chunks exclude each other" in capsys.readouterr().err


def test_explanation_as_page(script: Path, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    assert main(["explain", f"{script}:gram", "--workers", "4", "--html", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.lower().startswith("<!doctype html>") and "matmul" in text


def test_modules_are_found_from_the_current_folder(
    script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(script.parent)
    path = list(sys.path)
    assert main(["explain", "analysis:gram", "--workers", "2"]) == 0
    assert "matmul" in capsys.readouterr().out
    assert sys.path == path
    sys.modules.pop("analysis")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{script}:absent", "NameError: name 'absent' is not defined"),
        ("{script}:late", 'late is defined under if __name__ == "__main__":, which does not run'),
        ("{script}:3", ":3 has no dask arrays to tile"),
        ("{script}", "must be SCRIPT.py:EXPRESSION"),
        ("{script}:", "must be SCRIPT.py:EXPRESSION"),
        ("nothing.py:x", "nothing.py failed with FileNotFoundError"),
        ("no_such_module:x", "no_such_module failed with ModuleNotFoundError"),
        ("{script}:gram +", "SyntaxError"),
    ],
)
def test_errors_are_one_line(
    source: str, message: str, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", source.format(script=script)]) == 2
    out, err = capsys.readouterr()
    assert not out and message in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("code", "expression", "call"),
    [
        ("import sys\nsys.exit(0)\n", "x", "sys.exit(0)"),
        ("import sys\nsys.exit()\n", "x", "sys.exit()"),
        ("import sys\nleave = sys.exit\n", "leave('early')", "sys.exit('early')"),
    ],
)
def test_a_script_that_ends_the_process_is_an_error(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    code: str,
    expression: str,
    call: str,
) -> None:
    path = tmp_path / "ends.py"
    path.write_text(code)
    assert main(["explain", f"{path}:{expression}"]) == 2
    out, err = capsys.readouterr()
    assert not out and f"called {call}, so that there is nothing to explain" in err
    assert len(err.splitlines()) == 1


def test_scripts_do_not_see_the_arguments_of_explain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "arguments.py"
    path.write_text("import sys\nseen = list(sys.argv)\nsys.argv = ['other']\n")
    arguments = ["dasktile", "explain", "--workers", "4"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert evaluated(f"{path}:seen") == [str(path)]
    assert sys.argv is arguments and arguments == ["dasktile", "explain", "--workers", "4"]


def test_expressions_may_import_what_is_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "beside_the_script.py").write_text("value = 3\n")
    extra = tmp_path / "extra"
    extra.mkdir()
    path = tmp_path / "imports.py"
    path.write_text(
        f"import sys\nsys.path.insert(0, {str(extra)!r})\n"
        "def late():\n    from beside_the_script import value\n    return value\n"
    )
    before = list(sys.path)
    assert evaluated(f"{path}:late()") == 3
    assert sys.path == before
    sys.modules.pop("beside_the_script")


def test_invalid_arguments_are_rejected(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{script}:gram", "--method", "best"]) == 2
    assert "method must be one of" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main(["explain", f"{script}:gram", "--workers", "2", "--scheduler", "tcp://x:1"])
    assert stopped.value.code == 2


def test_doctor_of_this_process(capsys: pytest.CaptureFixture[str]) -> None:
    with dask.config.set({"dasktile.bundle": 8}):
        status = main(["doctor", "--json"])
    values = json.loads(capsys.readouterr().out)
    assert status == (1 if values["problems"] else 0)
    assert values["versions"]["dasktile"] == dasktile.__version__
    assert values["versions"]["dask"] == dask.__version__
    assert values["settings"]["bundle"] == 8 and values["cluster"] is None
    assert set(values["optional"]) >= {"numba", "bokeh", "cupy", "xarray"}


def test_doctor_knows_the_packages_of_extras() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"]
    users = [extras[name] for name in extras.keys() - {"test", "docs"}]
    names = {re.split(r"[\[<>=;]", each)[0] for each in itertools.chain(*users)}
    report = doctor.examine()
    assert "dask-array" in names
    assert {re.sub(r"-cuda\d+x$", "", name) for name in names} <= set(report.optional)
    assert "arrays of dask_array" in str(report)


def test_doctor_names_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.dask_names, "CHECKED", ("1.0", "2.0"))
    with dask.config.set({"dasktile.bundle": "many"}):
        report = doctor.examine()
    assert any("dask" in problem and "1.0 to 2.0" in problem for problem in report.problems)
    assert any("dasktile.bundle" in problem for problem in report.problems)
    assert str(report).count("problem: ") == len(report.problems)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0",
        protocol="tcp",
    ) as cluster:  # fmt: skip
        yield cluster


def test_doctor_of_a_cluster(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    address = cluster.scheduler_address
    main(["doctor", "--scheduler", address])
    out = capsys.readouterr().out
    assert "problem: dasktile is not enabled on the cluster" in out and "not calibrated" in out
    with Client(cluster) as client:
        dasktile.enable(client)
        report = doctor.run(address)
        dasktile.disable(client)
    assert report.cluster is not None
    assert report.cluster["scheduler"]["enabled"] and len(report.cluster["workers"]) == 2
    for facts in report.cluster["workers"].values():
        assert facts["enabled"] and facts["versions"]["dasktile"] == dasktile.__version__
    assert not any("enabled" in problem for problem in report.problems)


def test_explains_for_a_cluster(
    cluster: LocalCluster, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", f"{script}:gram", "--scheduler", cluster.scheduler_address]) == 0
    assert capsys.readouterr().out.startswith("2 workers")


def test_no_scheduler_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "CONNECT_TIMEOUT", "1s")
    assert main(["doctor", "--scheduler", "tcp://127.0.0.1:9"]) == 2
    assert "doctor: error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nonsense://x:1", "unknown address scheme 'nonsense'"),
        ("127.0.0.1:notaport", "'notaport'"),
        ("127.0.0.1:99999", "a port from 1 to 65535"),
        ("tcp://", "missing port"),
        ("inproc://host/1/2", "inproc address"),
        ("tls://127.0.0.1:9", "needs the configuration distributed.comm.tls"),
    ],
)
@pytest.mark.parametrize("command", ["doctor", "explain"])
def test_addresses_are_checked_before_a_client_is_made(
    command: str,
    address: str,
    message: str,
    script: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "Client", None)
    source = [f"{script}:gram"] if command == "explain" else []
    assert main([command, *source, "--scheduler", address]) == 2
    out, err = capsys.readouterr()
    assert not out and f"{command}: error: " in err.splitlines()[-1]
    assert message in err.splitlines()[-1]


def test_unencrypted_addresses_are_refused_if_encryption_is_required(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with dask.config.set({"distributed.comm.require-encryption": True}):
        assert main(["doctor", "--scheduler", "tcp://127.0.0.1:9"]) == 2
    assert "tcp:// is unencrypted" in capsys.readouterr().err


def test_help_says_where_certificates_come_from(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    assert "distributed.comm.tls" in capsys.readouterr().out


def test_asynchronous_clients_are_rejected(cluster: LocalCluster) -> None:
    async def check() -> None:
        async with Client(cluster.scheduler_address, asynchronous=True) as client:
            with pytest.raises(TypeError, match=r"client must not be asynchronous.*outside of"):
                doctor.examine(client)

    asyncio.run(check())


def test_what_is_no_client_is_rejected() -> None:
    with pytest.raises(TypeError, match=r"client must be a distributed\.Client"):
        # an address is what the argument must not be
        doctor.examine("tcp://127.0.0.1:9")  # type: ignore[arg-type]


def test_help_imports_little() -> None:
    code = (
        "import sys\n"
        "from dasktile.__main__ import main\n"
        "try:\n"
        "    main(['explain', '--help'])\n"
        "except SystemExit as stopped:\n"
        "    assert stopped.code == 0\n"
        "assert 'distributed' not in sys.modules and 'rich' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_reader_that_ends_is_no_error(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("import dask.array as da\nx = da.ones((8, 8), chunks=2).sum()\n")
    command = [sys.executable, "-m", "dasktile", "explain", f"{script}:x"]
    reading, writing = os.pipe()
    os.close(reading)
    with subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(writing)
        _, errors = process.communicate()
    assert b"Traceback" not in errors


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert not out and "show the plan of an expression" in err


def test_uses_of_packages_fit_a_terminal() -> None:
    # name, version and two gaps; versions have up to 9 characters
    widest = max(map(len, doctor._OPTIONAL)) + 9 + 4
    assert all(widest + len(use) <= WIDTH for use in doctor._OPTIONAL.values())
