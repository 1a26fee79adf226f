"""Chance by number: the generator is splitmix64, and what one number draws has nothing to do with others."""

import numpy as np

from latebind.simulation.cluster.draws import GAMMA, drawn, mixed, shares


def test_the_generator_gives_the_published_numbers_of_splitmix64() -> None:
    states = 1234567 + np.arange(1, 4, dtype=np.uint64) * GAMMA
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert mixed(states).tolist() == expected


def test_a_number_draws_the_same_alone_and_among_others() -> None:
    every = drawn(7, np.arange(100))
    assert drawn(7, np.array([42])).tolist() == [every[42]]


def test_another_seed_and_another_salt_draw_afresh() -> None:
    first, second, third = drawn(1, np.arange(50)), drawn(2, np.arange(50)), drawn(1, np.arange(50), salt=1)
    assert len({*first.tolist(), *second.tolist(), *third.tolist()}) == 150


def test_shares_are_spread_evenly_from_0_to_1() -> None:
    found = np.histogram(shares(drawn(0, np.arange(10_000))), bins=10, range=(0.0, 1.0))[0]
    assert found.sum() == 10_000
    assert found.min() > 900
