"""Samples: in the model's order, or refused with what is wrong."""

import pytest
import torch

from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.learned.samples import Samples, checked, split_worlds

LEFT, RIGHT = TensorSpec("left", "float32", (2,)), TensorSpec("right", "int64", ())


def test_named_inputs_come_in_the_models_order() -> None:
    given = Samples({"right": torch.arange(3), "left": torch.zeros(3, 2)})
    inputs = given.ordered((LEFT, RIGHT)).inputs
    assert isinstance(inputs, tuple)
    assert [tuple(tensor.shape) for tensor in inputs] == [(3, 2), (3,)]
    assert len(given) == 3


def test_wrong_names_shapes_types_and_lengths_are_refused() -> None:
    with pytest.raises(ConfigError, match="takes the inputs left, right"):
        Samples({"left": torch.zeros(3, 2)}).ordered((LEFT, RIGHT))
    with pytest.raises(ConfigError, match="takes 2 inputs"):
        Samples((torch.zeros(3, 2),)).ordered((LEFT, RIGHT))
    with pytest.raises(ConfigError, match="'left'"):
        Samples((torch.zeros(3, 4),)).ordered((LEFT,))
    with pytest.raises(ConfigError, match="'right'"):
        Samples((torch.zeros(3),)).ordered((RIGHT,))
    with pytest.raises(ConfigError, match="different numbers of rows"):
        Samples((torch.zeros(3, 2),), labels=torch.zeros(2, dtype=torch.int64)).ordered((LEFT,))


def test_taking_rows_takes_labels_and_worlds_along() -> None:
    whole = Samples((torch.arange(4.0).view(4, 1),), torch.arange(4), torch.arange(4))
    taken = whole.take(torch.tensor([2, 0]))
    assert isinstance(taken.inputs, tuple)
    assert taken.inputs[0].flatten().tolist() == [2.0, 0.0]
    assert taken.labels is not None
    assert taken.labels.tolist() == [2, 0]


def test_what_is_seen_in_several_worlds_is_never_chosen_and_verified_on() -> None:
    worlds = torch.arange(3).repeat_interleave(50)
    choose, verify = split_worlds(Samples((torch.zeros(150, 1),), worlds=worlds), seed=4)
    assert [rows.tolist() for rows in choose[1:]] == [(choose[0] + 50 * k).tolist() for k in (1, 2)]
    assert not {row % 50 for rows in choose for row in rows} & {row % 50 for rows in verify for row in rows}
    assert sum(map(len, choose)) + sum(map(len, verify)) == 150


def test_labels_may_be_any_whole_numbers_and_come_as_int64() -> None:
    spec = ModelSpec("model", "1", (LEFT,), (TensorSpec("logits", "float32", (3,)),), 2, 4)
    for dtype in (torch.uint8, torch.int16, torch.int32):
        found = checked(Samples((torch.zeros(3, 2),), labels=torch.tensor([0, 1, 2], dtype=dtype)), spec)
        assert found.labels is not None
        assert found.labels.dtype == torch.int64
    with pytest.raises(ConfigError, match="whole numbers from 0 to 2"):
        checked(Samples((torch.zeros(2, 2),), labels=torch.tensor([0, 3])), spec)
