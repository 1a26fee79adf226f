"""Whose the weights of a model are: how much memory its workers may take for copies."""

import pytest

from latebind.program.copies import SPARE, Copies, copies_for, is_dense

MIB = 1 << 20


def test_one_worker_has_nothing_to_copy() -> None:
    assert copies_for(1, 1) is Copies.SHARED


def test_who_is_told_of_no_twins_shares() -> None:
    assert copies_for(1, 0) is Copies.SHARED


@pytest.mark.parametrize(("weights", "twins"), [(5 * MIB, 2), (16 * MIB, 2), (5 * MIB, 4), (1 * MIB, 17)])
def test_each_worker_has_its_own_while_that_takes_little(weights: int, twins: int) -> None:
    assert copies_for(weights, twins) is Copies.OWN


def test_two_workers_of_a_large_model_have_a_copy_each_instead_of_one_for_each_size() -> None:
    assert copies_for(SPARE // 2 + 1, 2) is Copies.PAIR


@pytest.mark.parametrize(("weights", "twins"), [(6 * MIB, 4), (SPARE // 2 + 1, 3)])
def test_more_workers_share_what_is_large(weights: int, twins: int) -> None:
    assert copies_for(weights, twins) is Copies.SHARED


def test_a_free_batch_is_cheap_beside_operators_with_many_weights() -> None:
    assert is_dense(45 * MIB, 49)


def test_it_is_not_beside_those_with_few() -> None:
    assert not is_dense(9 * MIB, 83)
