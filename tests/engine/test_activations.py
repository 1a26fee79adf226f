"""Activations between stages: whoever goes on, sooner or later, finds its own."""

import torch

from latebind.domain.actions import Run
from latebind.engine.activations import Activations


def run(stage: int, *requests: int) -> Run:
    return Run(0, "net", stage, requests, tuple(request + 10 for request in requests))


def test_those_who_rest_find_their_rows_after_others_of_their_batch_have_gone_on() -> None:
    kept = Activations()
    kept.keep(run(0, 1, 2, 3, 4), torch.tensor([[1.0], [2.0], [3.0], [4.0]]))
    kept.let_go((2,))
    assert kept.take(run(1, 3)).tolist() == [[3.0]]
    kept.keep(run(1, 3), torch.tensor([[30.0]]))
    assert kept.take(run(1, 4, 1)).tolist() == [[4.0], [1.0]]
    assert kept.take(run(2, 3)).tolist() == [[30.0]]


def test_a_row_that_rests_outlives_the_memory_of_its_batch() -> None:
    kept, memory = Activations(), torch.tensor([[1.0], [2.0]])
    kept.keep(run(0, 1, 2), memory)
    kept.take(run(1, 1))
    memory.zero_()
    assert kept.take(run(1, 2)).tolist() == [[2.0]]
