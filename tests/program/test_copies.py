"""How much memory the workers of a model may take for copies of its weights."""

import pytest

from latebind.program.copies import SPARE, SPARE_FOR_DECODERS, has_copies, has_copies_of_decoder

MIB = 1 << 20


@pytest.mark.parametrize("twins", [0, 1])
def test_one_worker_has_nothing_to_copy(twins: int) -> None:
    assert not has_copies(1, twins)


@pytest.mark.parametrize(("weights", "twins"), [(5 * MIB, 2), (16 * MIB, 2), (5 * MIB, 4), (1 * MIB, 17)])
def test_each_worker_has_its_own_while_that_takes_little(weights: int, twins: int) -> None:
    assert has_copies(weights, twins)


@pytest.mark.parametrize(("weights", "twins"), [(SPARE // 2 + 1, 2), (6 * MIB, 4), (SPARE // 4 + 1, 3)])
def test_what_is_large_is_there_once(weights: int, twins: int) -> None:
    assert not has_copies(weights, twins)


MANY = SPARE_FOR_DECODERS // MIB


@pytest.mark.parametrize(
    ("step", "reading", "twins", "wanted"),
    [
        (1, 1, 0, (False, False)),
        (1, 1, 1, (False, False)),
        (MANY // 2, MANY // 2, 2, (True, True)),
        (MANY // 2, MANY // 2 + 1, 2, (True, False)),
        (MANY, 0, 2, (True, True)),
        (MANY + 1, 0, 2, (False, False)),
        (MANY // 3, MANY // 3, 3, (True, False)),
    ],
)
def test_of_a_decoder_the_step_comes_first(step: int, reading: int, twins: int, wanted: tuple[bool, bool]) -> None:
    assert has_copies_of_decoder(step * MIB, reading * MIB, twins) == wanted
