"""Operations, layers and rows are read off the names of layers."""

from __future__ import annotations

from dasktile.report.layer_names import owners, rows_of_layers, short_name, short_names

HASH = "0123456789abcdef" * 2


def test_names_of_layers() -> None:
    assert short_name(f"x-{HASH}") == "x"
    assert short_name(f"dot-{HASH}-q3") == "dot-q3"
    assert short_name(f"matmul-dasktile-2x2_0e1_b5-{HASH}") == "matmul"
    assert short_name("x-y") == "x-y"
    names = [f"x-{HASH}", f"x-{HASH[::-1]}", "x 2", "x", f"y-{HASH}"]
    assert list(short_names(names).values()) == ["x", "x 2", "x 2 2", "x 3", "y"]


def test_steps_belong_to_their_layer() -> None:
    owner = owners([f"matmul-dasktile-2x2_b9-{HASH}", f"add-{HASH}"], {"cut": f"add-{HASH}"})
    assert owner("cut") == f"add-{HASH}"
    assert owner(f"matmul-partial-dasktile-2x2-{HASH}") == f"matmul-dasktile-2x2_b9-{HASH}"
    assert owner(f"matmul-partial-dasktile-{HASH}") == f"matmul-dasktile-2x2_b9-{HASH}"
    assert owner(f"add-{HASH}") == f"add-{HASH}"
    assert owner(f"retile-dasktile-{HASH[::-1]}") == f"retile-dasktile-{HASH[::-1]}"
    assert owner("x") == "x"


def test_results_that_compute_gathers_belong_to_their_row() -> None:
    """Their names have another hash than those of what ``optimize`` returns."""
    one, other = "1" * 32, "2" * 32
    rows = {f"sub-dasktile-2x2-{one}": "2 sub", f"sum-dasktile-2x2-{one}": "3 sum"}
    ran = [f"sub-dasktile-2x2-{other}", f"sum-dasktile-2x2-{one}", f"sum-dasktile-2x2-{other}"]
    # a row that has run by its own name takes no other layer
    assert rows_of_layers(ran, rows) == {ran[0]: "2 sub", ran[1]: "3 sum"}
    two = {f"sub-dasktile-2x2-{one}": "2 sub", f"sub-dasktile-2x2-{'3' * 32}": "5 sub"}
    assert rows_of_layers(ran, two) == {}
