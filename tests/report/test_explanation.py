from __future__ import annotations

import json
import pickle
import re
import textwrap
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from dasktile.ir import AxisMap, Edge, Kind, Label, Node, Program, Role, TiledProgram, Tiling
from dasktile.prediction import Prediction
from dasktile.report.describing import describe_plan, describe_unplanned
from dasktile.report.formatting import (
    format_bytes,
    format_count,
    format_names,
    format_ranges,
    shortened_words,
)
from dasktile.report.html import chunk_drawing, outline
from dasktile.report.svg import _grid
from dasktile.tiling.plan import Price, TilingPlan

SIX = (1000,) * 6


def gram(tiled: bool = True) -> TilingPlan:
    """``y = (noise(x).T @ noise(x))`` with x in column chunks, re-tiled by rows."""
    i, j, k = AxisMap(0), AxisMap(1), AxisMap(2)
    x = Node(
        name="from-zarr-1",
        op="from-zarr",
        kind=Kind.SOURCE,
        labels=(Label(6000, Role.FREE, (6000,)), Label(3000, Role.FREE, (1000,) * 3)),
        out=(i, j),
        shape=(6000, 3000),
        dtype="float64",
        itemsize=8,
        chunks=((6000,), (1000,) * 3),
        stored=((6000,), (1000,) * 3),
    )
    noise = Node(
        name="noise-2",
        op="map_blocks of a very long function name",
        kind=Kind.OPAQUE,
        labels=(),
        out=(AxisMap(None), AxisMap(None)),
        shape=(6000, 3000),
        dtype="float64",
        itemsize=8,
        chunks=((6000,), (1000,) * 3),
        edges=(Edge(0, (AxisMap(None), AxisMap(None)), ((6000,), (1000,) * 3)),),
        reason="user function in map_blocks",
    )
    product = Node(
        name="sum-3",
        op="matmul",
        kind=Kind.CONTRACT,
        labels=(
            Label(3000, Role.FREE, (1000,) * 3),
            Label(3000, Role.FREE, (1000,) * 3),
            Label(6000, Role.REDUCE, (6000,)),
        ),
        out=(i, j),
        shape=(3000, 3000),
        dtype="float64",
        itemsize=8,
        chunks=((1000,) * 3, (1000,) * 3),
        edges=(Edge(1, (k, i)), Edge(1, (k, j))),
        partial=8,
        work=2,
    )
    program = Program((x, noise, product), (2,))
    tilings = (
        Tiling(((6000,), (1000,) * 3), x.chunks),
        Tiling((), noise.chunks),
        Tiling(((3000,), (3000,), SIX), ((3000,), (3000,))),
    )
    after = Price((0, 0, 72_000_000), (144_000_000,) * 1 + (0, 0), (3, 3, 9), (1.0,) * 4, (0, 0, 0))
    before = Price((0, 0, 1_300_000_000), (432_000_000, 0, 0), (3, 3, 1200), (1.0,) * 4, (0, 0, 0))
    return TilingPlan(
        program=program,
        workers=4,
        method="exact",
        before=before,
        after=after if tiled else before,
        tiled=TiledProgram(program, (4,), tilings) if tiled else None,
        lower_bound=70_000_000,
        proven_optimal=False,
        reasons=("", noise.reason, ""),
        verdict="retiled" if tiled else "the input's own chunks cost no more",
    )


def test_table() -> None:
    assert str(describe_plan(gram())) == textwrap.dedent(
        """\
        4 workers, moves 68.7 MiB instead of 1.2 GiB between workers (lower bound 66.8
          MiB: within 3 %); 15 tasks instead of 1,206
        reads 137 MiB instead of 412 MiB from storage

           operation                 from  shape         chunks             moved before
                                           dtype         tiles               moved after
        --------------------------------------------------------------------------------
        0  from-zarr                       (6000, 3000)  3 of (6000, 1000)           0 B
                                           float64       =                           0 B
        1  map_blocks of a very lo…  0     (6000, 3000)  3 of (6000, 1000)           0 B
                                           float64       =                           0 B
        2  matmul                    1     (3000, 3000)  9 of (1000, 1000)       1.2 GiB
                                           float64       1 of (3000, 3000)      68.7 MiB

        chunks kept:
          1 map_blocks of a very lo…: user function in map_blocks"""
    )


def test_spilled_bytes_name_the_memory_that_they_assume() -> None:
    plan = gram()
    spills = replace(plan, after=replace(plan.after, spilled=2**30))
    text = " ".join(str(describe_plan(spills, assumed_room=2**24)).split())
    assert "do not fit in 16.0 MiB on each worker (assumed: memory_limit times threads)" in text
    assert "do not fit in memory\n" in str(describe_plan(spills, room=2**24)).replace("\n  ", " ")


def test_tables_fit_80_columns_whatever_the_names() -> None:
    plan = gram()
    source, noise, product = plan.program.nodes
    wide = replace(
        noise,
        op="a function with a name that is very long indeed",
        dtype="[('first', '<f8'), ('second', '<f8')]",
        shape=(14600, 50, 721, 1440),
        chunks=((1,) * 14600, (50,), (721,), (1440,)),
        reason="a reason of many words, " * 10,
    )
    program = Program((source, wide, product), (2,))
    text = str(describe_plan(replace(plan, program=program, reasons=("", wide.reason, ""))))
    assert max(map(len, text.splitlines())) <= 80
    table = text.split("\n\n")[1].splitlines()
    # the last column is aligned to the right
    assert {len(line) for line in table} == {len(table[0])}
    assert "14600 of (1,50,721,1440)" in text
    assert " ".join(text.split()).count("a reason of many words") == 10


def test_numbers_of_inputs_are_not_cut() -> None:
    numbers = [2, 10, 12, 14, 16, 18, 20]
    assert format_ranges([0, 3, 4, 5, 7, 8]) == "0 3-5 7 8"
    assert shortened_words(format_ranges(numbers), 16) == "2 10 12 14 16 …"
    for width in range(6, 20):
        text = shortened_words(format_ranges(numbers), width)
        assert len(text) <= width
        assert set(text.split()) <= {*map(str, numbers), "…"}


def test_an_unknown_lower_bound_is_not_shown() -> None:
    text = " ".join(str(describe_plan(replace(gram(), lower_bound=0))).split())
    assert "(no lower bound is known)" in text
    text = str(describe_plan(replace(gram(), lower_bound=0, proven_optimal=True)))
    assert "(lower bound 0 B: proven optimal)" in " ".join(text.split())


def test_a_plan_that_moves_more_than_the_input_is_optimal_of_some_tilings() -> None:
    plan = describe_plan(gram())
    more = plan.bytes_before + 1
    text = str(replace(plan, bytes_after=more, lower_bound=more, proven_optimal=True))
    assert "proven optimal of these tilings)" in " ".join(text.split())


def test_plans_with_as_many_tasks_say_so() -> None:
    plan = gram()
    same = replace(plan, before=replace(plan.before, tasks=plan.after.tasks))
    first = " ".join(str(describe_plan(same)).split("\n\n")[0].split())
    assert first.endswith("; 15 tasks, as before reads 137 MiB instead of 412 MiB from storage")
    bundled = describe_plan(same, runs=runs_of(5, 6), bundle=32)
    text = " ".join(str(bundled).split())
    # those of the model are not beside those that run
    assert "15 tasks" not in text
    assert "as it runs: 20 tasks instead of 1,000, each bundle counted once," in text
    stock, planned = runs_of(5, 6)
    assert stock is not None and planned is not None
    as_many = describe_plan(same, runs=(stock, replace(planned, tasks=stock.tasks)))
    assert "as it runs: 1,000 tasks, as before," in str(as_many)
    assert bundled.bundle == 32 and describe_plan(gram(tiled=False), bundle=32).bundle == 0
    assert "15 tasks instead of 1,206, which run in bundles of up to 32 reads" in " ".join(
        str(describe_plan(gram(), bundle=32)).split()
    )


def test_unchanged_plans_are_reported() -> None:
    lines = str(describe_plan(gram(tiled=False))).split("\n\n")[0].splitlines()
    text = " ".join(" ".join(lines).split())
    assert text.startswith(
        "4 workers: optimize returns the input itself: the input's own chunks cost no more by the"
        " model it moves 1.2 GiB between workers; 1,206 tasks"
    )


def test_bytes_are_not_compared_where_steps_of_the_input_are_not_counted() -> None:
    explanation = describe_plan(gram())
    assert "instead of 1.2 GiB between" in str(replace(explanation, uncounted=(1,)))
    fewer = replace(explanation, uncounted=(1,), bytes_before=7_168)
    text = " ".join(str(fewer).split())
    assert text.startswith("4 workers, moves 68.7 MiB between workers (lower bound 66.8 MiB,")
    assert "with the chunks of the input 7.0 KiB are counted, without the steps whose" in text
    assert "bytes moved" in explanation._repr_html_()
    rows = ET.fromstring(fewer._repr_html_()).findall(".//table[@class='numbers']/tbody/tr")
    assert [cell.text for cell in rows[1].findall("td")] == [
        "bytes moved, by the model",
        "not counted",
        "68.7 MiB",
    ]
    assert ", 1.2 GiB -> 68.7 MiB moved, " in repr(explanation)
    assert ", not counted -> 68.7 MiB moved, " in repr(fewer)


def test_nothing_to_tile() -> None:
    assert str(describe_unplanned(1, "auto")) == "no dask arrays to tile"


def test_outputs_are_shown_in_their_returned_chunks() -> None:
    plan = gram()
    original = plan.program.nodes[2].chunks
    assert describe_plan(plan, [original]).nodes[2].chunks_after == original
    assert describe_plan(plan, [None]).nodes[2].chunks_after == ((3000,), (3000,))


def test_numbers_add_up() -> None:
    explanation = describe_plan(gram())
    assert explanation.bytes_before == sum(node.bytes_before for node in explanation.nodes)
    assert explanation.bytes_after == sum(node.bytes_after for node in explanation.nodes)
    assert explanation.tasks_after == sum(node.tasks_after for node in explanation.nodes) == 15
    assert explanation.read_after == 144_000_000


def test_dict_round_trips_through_json() -> None:
    content = describe_plan(gram()).to_dict()
    assert json.loads(json.dumps(content)) == content
    assert content["nodes"][1]["reason"] == "user function in map_blocks"
    assert content["nodes"][2]["chunks_after"] == [[3000], [3000]]


def test_explanations_can_be_pickled_and_compared() -> None:
    explanation = describe_plan(gram())
    assert pickle.loads(pickle.dumps(explanation)) == explanation
    assert "3 arrays, 4 workers, " in repr(explanation)
    single = describe_plan(replace(gram(), workers=1))
    assert "1 worker, " in repr(single)


def test_html_is_well_formed() -> None:
    root = ET.fromstring(describe_plan(gram())._repr_html_())
    assert len(root.findall(".//table[@class='arrays']/tbody/tr")) == 3
    rows = root.findall(".//table[@class='numbers']/tbody/tr")
    assert [[cell.text for cell in row.findall("td")] for row in rows][:2] == [
        ["tasks", "1,206", "15"],
        ["bytes moved, by the model", "1.2 GiB", "68.7 MiB"],
    ]


@pytest.mark.parametrize("tiled", [True, False])
def test_svg_shows_every_array_and_its_bytes(tmp_path: Path, tiled: bool) -> None:
    path = describe_plan(gram(tiled)).visualize(tmp_path / "x.svg")
    text = "".join(ET.parse(path).getroot().itertext())
    for piece in ("from-zarr", "matmul", "(6000, 3000) float64", "user function in map_blocks"):
        assert piece in text
    assert ("1.2 GiB → 68.7 MiB" in text) == tiled


def test_dot_needs_no_package(tmp_path: Path) -> None:
    text = describe_plan(gram()).visualize(tmp_path / "x.dot").read_text()
    assert text.startswith("digraph") and "n1 -> n2" in text


def test_unknown_picture_format(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in \.svg.*got .*x\.bmp"):
        describe_plan(gram()).visualize(tmp_path / "x.bmp")


def test_suffixes_may_have_capital_letters(tmp_path: Path) -> None:
    explanation = describe_plan(gram())
    assert explanation.visualize(tmp_path / "x.SVG").read_text().startswith("<svg")
    assert explanation.visualize(tmp_path / "x.GV").read_text().startswith("digraph")
    assert explanation.save(tmp_path / "x.HTML").read_text().startswith("<!doctype html>")
    with pytest.raises(ValueError, match=r"must end in \.html, \.json or \.txt; got .*x\.svg"):
        explanation.save(tmp_path / "x.svg")


def test_numbers_are_saved_as_json(tmp_path: Path) -> None:
    explanation = describe_plan(gram())
    path = explanation.save(tmp_path / "x.json")
    assert json.loads(path.read_text(encoding="utf-8")) == explanation.to_dict()


def test_text_is_saved_as_it_is_printed(tmp_path: Path) -> None:
    explanation = describe_plan(gram())
    path = explanation.save(tmp_path / "x.txt")
    assert path.read_text(encoding="utf-8") == f"{explanation}\n"


def test_some_rows_of_the_table() -> None:
    explanation = describe_plan(gram())
    rows = explanation.table(largest=1).splitlines()
    assert [line.split()[0] for line in rows[3:]] == ["2", "float64", "and"]
    assert rows[-1] == "and 2 more arrays"
    assert explanation.table(min_bytes=1) == explanation.table(largest=1)
    assert explanation.table(min_bytes=2e9) == "and 3 more arrays"
    assert explanation.table(min_bytes="2 GB") == "and 3 more arrays"
    assert explanation.table() == explanation.table(largest=3) == str(explanation).split("\n\n")[1]


def test_names_in_full() -> None:
    explanation = describe_plan(gram())
    name = explanation.nodes[1].op
    assert len(name) > 24 and name not in str(explanation)
    assert name in explanation.text(full_names=True)
    assert f"<span title='{name}'>" in explanation._repr_html_()
    assert name in explanation.table(full_names=True)
    frame = pytest.importorskip("pandas").DataFrame(explanation.to_dict()["nodes"])
    assert list(frame[frame.bytes_after > 0].op) == ["matmul"] and frame.op[1] == name


def test_arguments_of_the_table() -> None:
    explanation = describe_plan(gram())
    for error, options in (
        (ValueError, {"largest": 0}),
        (TypeError, {"largest": 1.5}),
        (ValueError, {"min_bytes": -1}),
        (TypeError, {"min_bytes": None}),
        (ValueError, {"min_bytes": "large"}),
        (ValueError, {"min_bytes": "-1 MB"}),
    ):
        (name,) = options
        with pytest.raises(error, match=f"{name} must be a.* >= [01]; got"):
            # arguments of wrong types are meant
            explanation.table(**options)  # type: ignore[arg-type]


def test_arrays_with_one_axis_are_drawn_as_rows() -> None:
    drawn = outline((8,), ((2, 6),), 44, 8.0)
    assert drawn == (44, 8, [0, 8], [0, 11, 44])
    assert outline((8, 4), ((2, 6), (4,)), 44, 8.0) == (44 / 2, 44, [0, 11, 44], [0, 22])
    for text in (chunk_drawing((8,), ((2, 6),)), _grid((8,), ((2, 6),), 0, 0)):
        # one line, from the upper to the lower side
        assert re.findall(r"M[\d.]+ [\d.]+([hv])", text) == ["v"]
    homes = _grid((8,), ((2, 6),), 0, 0, ((0, 1),))
    assert re.findall(r'width="(\d+)" height="(\d+)"', homes) == [("11", "8"), ("33", "8")]


def test_drawings_in_pages_and_pictures_have_as_many_lines() -> None:
    for count, lines in ((24, 23), (25, 0)):
        for text in (
            chunk_drawing((count,), ((1,) * count,)),
            _grid((count,), ((1,) * count,), 0, 0),
        ):
            assert len(re.findall(r"M[\d.]+ [\d.]+v", text)) == lines


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    explanation = describe_plan(gram())
    for name in ("x.svg", "x.dot"):
        with pytest.raises(OSError, match=name):
            explanation.visualize(tmp_path / "missing" / name)
    with pytest.raises(OSError, match=r"x\.html"):
        explanation.save(tmp_path / "missing" / "x.html")


def test_png_without_cairosvg_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cairosvg", None)
    with pytest.raises(ImportError, match="cairosvg"):
        describe_plan(gram()).visualize(tmp_path / "x.png")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KiB"),
        (1024, "1.0 KiB"),
        (12.3 * 2**20, "12.3 MiB"),
        (1000 * 2**20, "1.0 GiB"),
        (5 * 2**60, "5242880 TiB"),
    ],
)
def test_format_bytes(count: float, text: str) -> None:
    assert format_bytes(count) == text


def test_counts_and_names() -> None:
    assert [format_count(count, "task") for count in (0, 1, 1206)] == [
        "0 tasks", "1 task", "1,206 tasks",
    ]  # fmt: skip
    assert format_names(["a", "b"], 2) == "a, b"
    assert format_names(["a", "b", "c"], 2) == "a, b, ..."
    assert format_names(["a"] * 1203, 2, " and {} more") == "a, a and 1,201 more"


def runs_of(before: int | None, after: int | None) -> tuple[Prediction | None, Prediction | None]:
    """Simulated runs with these peaks of memory."""
    stock = None if before is None else Prediction(1.0, 4 * 2**20, before, None, 1000, before)
    planned = None if after is None else Prediction(1.0, 2**20, after, None, 20, after)
    return stock, planned


def test_tasks_and_bytes_of_simulated_runs() -> None:
    told = describe_plan(gram(True), runs=runs_of(5, 6))
    line = (
        "as it runs: 20 tasks instead of 1,000, workers receive about 1.0 MiB instead of roughly"
        " 4.0 MiB"
    )
    assert f"{line} where Dask's scheduler places its own graph" in str(told).replace("\n  ", " ")
    assert (told.run_tasks_before, told.run_tasks_after) == (1000, 20)
    assert (told.received_before, told.received_after) == (4 * 2**20, 2**20)
    elsewhere = describe_plan(gram(True), runs=runs_of(5, 6), placed=False)
    assert "as it runs: 20 tasks instead of 1,000\n" in str(elsewhere)
    assert elsewhere.received_after is None
    assert "as it runs" not in str(describe_plan(gram(True), runs=runs_of(None, 6)))
    same = str(describe_plan(gram(False), runs=runs_of(5, 5))).replace("\n  ", " ")
    assert "as it runs: 1,000 tasks, workers receive about 4.0 MiB where Dask's" in same


def test_results_that_dask_joins_on_a_worker() -> None:
    text = str(describe_plan(gram(True), joined=4 * 2**20)).replace("\n  ", " ")
    assert "joins a result of 4.0 MiB on one worker, which receives about 3.0 MiB more for" in text
    assert "for it; dasktile.compute joins it in the client" in text
    assert "joins" not in str(describe_plan(gram(True), joined=1000))


def test_peaks_of_memory() -> None:
    def line(before: int | None, after: int | None, tiled: bool = True) -> str:
        text = str(describe_plan(gram(tiled), runs=runs_of(before, after)))
        return next((line for line in text.split("\n") if "in memory: " in line), "")

    alone = "results in memory: at most about 1.0 MiB on one worker"
    assert (
        line(3 * 2**20, 2**20)
        == "results in memory: at most about 1.0 MiB instead of 3.0 MiB on one worker"
    )
    assert line(2**20, 2**20) == f"{alone}, as before"
    assert line(None, 2**20) == f"{alone}, unknown before"
    assert line(2**20, 2**20, tiled=False) == alone
    assert line(2**20, None) == ""
    running = Prediction(1.0, 0, 3 * 2**20, room=2**20, results=2**20)
    text = str(describe_plan(gram(False), runs=(running, running), room=2**20))
    assert f"{alone}, 3.0 MiB while tasks run: fits" in text.replace("\n  ", " ")
    text = str(describe_plan(gram(False), runs=(running, running), room=2**19))
    assert "while tasks run: about 512 KiB spill" in text.replace("\n  ", " ")


def test_a_task_that_no_worker_has_memory_for() -> None:
    run = Prediction(1.0, 0, 2**20, room=2**20, results=2**20, task=2**21, by_worker=(2**20, 0))
    told = describe_plan(gram(False), runs=(run, run), room=2**20, memory=3 * 2**19)
    refused = ": does not fit, as one task needs about 2.0 MiB and a worker has 1.5 MiB"
    assert refused in str(told).replace("\n  ", " ")
    assert (told.largest_task, told.results_by_worker) == (2**21, (2**20, 0))
    told = describe_plan(gram(False), runs=(run, run), room=2**20, memory=2**21)
    assert ": fits in 1.0 MiB" in str(told).replace("\n  ", " ")


def test_print_shows_the_rows_that_move_most_of_a_large_graph() -> None:
    explanation = describe_plan(gram())
    large = replace(explanation, nodes=explanation.nodes * 20)
    table = str(large).split("\n\n")[1].splitlines()
    assert table[-1] == "and 40 more arrays" and len(table) == 3 + 2 * 20 + 1
    assert str(large).endswith("\n\nexplain(...).text() has all arrays")
    assert "more arrays" not in large.text() and ".text()" not in str(explanation)


def test_bytes_that_a_plan_moves_as_it_runs_are_predicted_where_they_are_clearly_others() -> None:
    explanation = describe_plan(gram())
    counted = explanation.bytes_after
    assert counted and not explanation.keeps_all_chunks

    def predicted(moved: int) -> int:
        return replace(explanation, received_after=moved).bytes_predicted

    assert predicted(counted // 2) == counted // 2
    assert predicted(2 * counted) == 2 * counted
    # about the same, and a few, are those that names of layers book
    assert predicted(counted - 1) == predicted(counted + 1) == counted
