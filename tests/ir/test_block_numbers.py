"""Numbers of blocks in the names of layers."""

from __future__ import annotations

import numpy as np
import pytest

from dasktile.ir.block_numbers import are_short, code_of, numbers_of


@pytest.mark.parametrize(
    "numbers, code",
    [
        ((3,), "3"),
        ((0, 1, 2, 3), "0n4"),
        ((7, 7, 6, 6, 5, 5), "7d1x2n3"),
        ((0, 0, 2, 3, 3, 5, 6, 6, 8), "0x2.2r3u3"),
        ((9, 8, 8, 6, 5, 5, 3, 2, 2), "9.8x2r3d3"),
        ((1, 4, 1, 4, 1, 4, 1, 4), "1u3n2r4u0"),
    ],
)
def test_numbers_have_short_codes(numbers: tuple[int, ...], code: str) -> None:
    assert code_of(numbers) == code
    assert numbers_of(code, len(numbers)) == numbers


@pytest.mark.parametrize("seed", range(50))
def test_codes_have_their_numbers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    own = rng.integers(0, 6, rng.integers(1, 8))
    shift = rng.integers(-1, 5)
    repeats = int(rng.integers(1, 6))
    numbers = np.concatenate([own + 5 + shift * at for at in range(repeats)]).tolist()
    code = code_of(tuple(numbers))
    assert numbers_of(code, len(numbers)) == tuple(numbers)
    with pytest.raises(ValueError):
        numbers_of(code, len(numbers) - 1)


@pytest.mark.parametrize("code", ["", "r3u1", "0r1u1", "0r999999u1", "1r4d1", "0r3", "0r2u1r2u1x"])
def test_other_texts_are_no_codes(code: str) -> None:
    with pytest.raises(ValueError):
        numbers_of(code, 100)


def test_arrays_that_are_rolled_again_have_short_numbers() -> None:
    # blocks of 200 that were cut at 1 and 199, and are cut there again after a shift by 1
    numbers = [block + 3 * at for at in range(8) for block in (0, 1, 1, 1, 2)]
    assert are_short([tuple(numbers)])
