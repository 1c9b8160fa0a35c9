"""Homes of tasks by their keys, also by keys that dasktile has not written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dasktile.ir import Sharding, Share
from dasktile.lower.names import of_sizes, part_layer_name
from dasktile.schedule.homes import Homes
from dasktile.schedule.placement import MAX_BLOCKS, Placement, decode, encode

HASH = "0123456789abcdef"


@pytest.mark.parametrize(
    "code",
    [
        "1_0e99999999",
        "2_0e524289",
        "2_0n99999999",
        "2_0r1x1.99999999x1",
        "2_0r1x1.0x99999999",
        "2_0e400000_0e400000",
        # every axis of a mesh divides a dimension once
        "65536_00000e1",
        "2_00e1",
        f"2_0e{'9' * 5000}",
    ],
)
def test_names_of_too_many_blocks_hold_no_placement(code: str) -> None:
    assert decode(f"x-dasktile-{code}-{HASH}") is None
    layer = Homes(["a", "b"]).layer(f"x-dasktile-{code}-{HASH}")
    assert layer is not None and layer.home((0, 0)) is None


@pytest.mark.parametrize("runs", [(MAX_BLOCKS // 2,) * 2, (1, MAX_BLOCKS - 1), (0, 1)])
def test_names_of_the_maximum_of_blocks_hold_a_placement(runs: tuple[int, ...]) -> None:
    placement = Placement((2,), Sharding((Share((0,), runs),)))
    assert decode(f"x-dasktile-{encode(placement)}-{HASH}") == placement


@pytest.mark.parametrize("index", ["um-dasktile", ("a", 0), (0.5, 0), (None,), 3, None, [0, 0]])
def test_keys_without_a_block_have_no_home(index: Any) -> None:
    layer = Homes(["a", "b"]).layer(f"sum-dasktile-2_0e1-{HASH}")
    assert layer is not None and layer.home(index) is None
    following = Homes(["a", "b"]).layer(f"sum-dasktile-2_f0a1b2c3d4e.1-{HASH}")
    assert following is not None and following.followed("um-dasktile") is None


def test_tiles_have_homes() -> None:
    homes = Homes(["a", "b"])
    placed = homes.layer(f"sum-dasktile-2_0e1-{HASH}")
    assert placed is not None
    assert [placed.home(index) for index in [(), (0,), (1, 7), (5,)]] == ["a", "a", "b", "b"]
    following = homes.layer(f"sum-dasktile-2_f0a1b2c3d4e.1.-{HASH}")
    assert following is not None
    assert following.followed((4, 2)) == (2, 0) and following.followed((4,)) is None


def test_a_new_worker_takes_over_the_place_of_a_lost_one() -> None:
    homes = Homes(["a", "b", "c", "d"])
    assert homes.table(4) == ("a", "b", "c", "d")
    homes.lose("b")
    assert homes.table(4) == ("a", "a", "c", "d")
    assert homes.table(3) == ("a", "c", "d")
    homes.lose("d")
    assert homes.table(4) == ("a", "a", "c", "c")
    homes.join("e", instead_of="d")
    assert homes.table(4) == ("a", "a", "c", "e")
    homes.join("b")
    assert homes.table(4) == ("a", "b", "c", "e")
    assert homes.workers == ["a", "b", "c", "e"]
    homes.join("f")
    assert homes.table(4) == ("a", "b", "c", "e")
    assert homes.table(5) == ("a", "b", "c", "e", "f")
    homes.replace(["f", "e"])
    assert homes.table(4) == ("f", "f", "e", "e")


def test_a_plan_is_ignored_where_workers_are_twice_as_many() -> None:
    name = f"sum-dasktile-2_0e1-{HASH}"
    assert Homes(["a", "b", "c"]).layer(name) is not None
    assert Homes(["a", "b", "c", "d"]).layer(name) is None


def test_a_new_worker_takes_over_the_vacant_mesh_position() -> None:
    homes = Homes(list("abcd"))
    homes.lose("d")
    assert homes.table(3) == ("a", "b", "c")
    homes.lose("c")
    homes.join("e")
    assert homes.table(3) == ("a", "b", "e")
    homes.join("f")
    assert homes.vacant == ()


def test_a_worker_that_returns_has_its_former_place() -> None:
    homes = Homes(list("abc"))
    homes.table(3)
    homes.lose("b")
    homes.lose("a")
    homes.join("a")
    assert homes.vacant == ("b",)
    homes.join("d")
    assert homes.table(3) == ("a", "d", "c")


def test_a_late_worker_takes_over_a_position_of_a_worker_with_two() -> None:
    homes = Homes(["a", "b"])
    assert homes.table(3) == ("a", "a", "b")
    homes.join("c")
    assert homes.table(3) == ("a", "c", "b")
    homes.join("d")
    assert homes.table(3) == ("a", "c", "b")
    homes.lose("c")
    homes.join("e")
    assert homes.table(3) == ("a", "e", "b")


def test_names_of_parts_depend_on_their_keys_and_not_on_the_order_of_them() -> None:
    keys = [("x", 0, 1), ("x", 1, 0), ("x", 10, 2)]
    name = part_layer_name("x", keys)
    assert part_layer_name("x", reversed(keys)) == name
    others = [keys[:2], [("y", *key[1:]) for key in keys], [*keys, ("y", 0, 1)], [*keys, "x"]]
    assert len({name, *(part_layer_name("x", other) for other in others)}) == 5
    assert part_layer_name("x", ["x", ("x", 0)]) == part_layer_name("x", [("x", 0), "x"])


def test_the_text_for_sizes_tells_them_from_those_along_other_axes() -> None:
    some = [((1, 2), (3,)), ((1,), (2, 3)), ((1, 2, 3),), ((1, 2), (3,), ()), ((3, 2), (1,))]
    texts = {of_sizes(*content) for content in [[chunks] for chunks in some]}
    assert len(texts) == len(some)
    assert of_sizes(some[0], some[1]) not in {*texts, of_sizes(some[1], some[0])}
    # sizes of the user's arrays may be numbers of NumPy, which the annotation does not name
    assert of_sizes(((np.int64(1), 2), (3,))) == of_sizes(some[0])  # type: ignore[arg-type]
