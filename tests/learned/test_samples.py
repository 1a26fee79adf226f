"""Samples: in the model's order, of what is known to be a classifier, without NaN; or refused with what is wrong."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from typer.testing import CliRunner

from latebind.cli.main import app
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.hosting import build_once
from latebind.learned.build import build_caches
from latebind.learned.samples import (
    Samples,
    checked,
    doubt,
    split_worlds,
    whole,
)
from latebind.program.build import build_program
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import Repository

LEFT, RIGHT = TensorSpec("left", "float32", (2,)), TensorSpec("right", "int64", ())


def test_named_inputs_come_in_the_models_order() -> None:
    given = Samples({"right": torch.arange(3), "left": torch.zeros(3, 2)})
    inputs = given.ordered((LEFT, RIGHT)).inputs
    assert isinstance(inputs, tuple)
    assert [tuple(whole(part).shape) for part in inputs] == [(3, 2), (3,)]
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


ROWS = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
SAMPLES = Samples((ROWS,))


class Ends(nn.Module):
    """A layer with 24 columns, and an end."""

    def __init__(self, end: str) -> None:
        super().__init__()
        self.layer, self.end = nn.Linear(6, 24), end

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)
        match self.end:
            case "softmax":
                return found.softmax(1)
            case "log_softmax":
                return functional.log_softmax(found, -1)
            case "sigmoid":
                return found.sigmoid()
            case "normalized":
                return functional.normalize(found)
            case "softmax within":
                return found.softmax(1) * 100
        return found


def regressor() -> nn.Module:
    """What `latebind build` makes: 24 numbers that are no scores of classes."""
    return Ends("linear")


def directory_of(module: nn.Module, folder: Path) -> ModelDirectory:
    return build_program(module.eval(), {"x": ROWS[:4]}, directory=folder / "m", name="m", backends=["eager"]).directory


@pytest.mark.parametrize("end", ["linear", "sigmoid", "normalized", "softmax within"])
def test_nothing_is_taken_for_a_classifier_that_only_may_be_one(end: str, tmp_path: Path) -> None:
    directory = directory_of(Ends(end), tmp_path)
    assert "--task classify" in doubt(directory, (SAMPLES, SAMPLES), "")
    with pytest.raises(ConfigError, match="nothing says that the output of m is scores of classes"):
        build_caches(directory, SAMPLES, SAMPLES)


def test_a_declaration_labels_and_a_final_softmax_say_that_it_is_one(tmp_path: Path) -> None:
    directory = directory_of(Ends("linear"), tmp_path)
    labeled = Samples((ROWS,), torch.zeros(40, dtype=torch.int64))
    assert not doubt(directory, (SAMPLES, SAMPLES), "classify")
    assert not doubt(directory, (SAMPLES, labeled), "")
    for end in ("softmax", "log_softmax"):
        assert not doubt(directory_of(Ends(end), tmp_path), (SAMPLES, SAMPLES), "")


def test_an_unknown_task_is_told_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="task is 'regress': give 'classify', or leave it out"):
        build_once(regressor(), ROWS, tmp_path, task="regress")


def test_from_python_rows_of_what_may_be_no_classifier_are_a_warning_and_not_again_for_the_same(tmp_path: Path) -> None:
    module = regressor()
    with pytest.warns(UserWarning, match="no learned caches: .*task='classify'"):
        name = build_once(module, ROWS[:4], tmp_path, samples=ROWS, backends=("eager",))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_once(module, ROWS[:4], tmp_path, samples=ROWS, backends=("eager",))
    with pytest.warns(UserWarning, match="too few to train"):  # what is declared is another version, with caches
        build_once(module, ROWS[:4], tmp_path, samples=ROWS, task="classify", backends=("eager",))
    assert [listed.version for listed in Repository(tmp_path).models() if listed.name == name] == ["1", "2"]


def test_rows_with_nan_are_refused_before_anything_is_learned_from_them(tmp_path: Path) -> None:
    rows = ROWS.clone()
    rows[3, 2] = rows[7, 0] = rows[7, 1] = float("nan")
    directory = directory_of(Ends("softmax"), tmp_path)
    with pytest.raises(ConfigError, match="samples for 'x' contain NaN in 2 of 40 rows"):
        build_caches(directory, SAMPLES, Samples((rows,)))
    np.savez(tmp_path / "rows.npz", x=rows.numpy())
    words = ["build", "tests.learned.test_samples:regressor", "--input", "x=float32:6", "--out", str(tmp_path / "out")]
    found = CliRunner().invoke(app, [*words, "--backend", "eager", "--data", str(tmp_path / "rows.npz")])
    assert (found.exit_code, "contain NaN" in found.output) == (2, True)
    assert not (tmp_path / "out").exists()


class Yields(nn.Module):
    """Four numbers a row made into `count` outputs of `width` columns and this dtype; no width means no axis."""

    def __init__(self, width: int | None, dtype: torch.dtype = torch.float32, count: int = 1) -> None:
        super().__init__()
        self.width, self.dtype, self.count = width, dtype, count

    def forward(self, row: Tensor) -> tuple[Tensor, ...]:
        found = row.sum(dim=1) if self.width is None else row[:, : self.width] * 2
        return tuple((found + k).to(self.dtype) for k in range(self.count))


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Yields(1), r"float32 of shape \(1,\)"),
        (Yields(None), r"float32 of shape \(\)"),
        (Yields(4, torch.int64), "returns int64"),
        (Yields(4, torch.float64), "returns float64"),
        (Yields(4, count=2), "2 outputs"),
    ],
    ids=["regression", "one number", "whole numbers", "another precision", "two outputs"],
)
def test_what_is_no_classifier_is_refused_with_what_to_do_instead(
    module: nn.Module, reason: str, tmp_path: Path
) -> None:
    rows = torch.randn(100, 4)
    directory = build_program(
        module, {"row": rows[:4]}, directory=tmp_path / "m", name="m", backends=["eager"]
    ).directory
    with pytest.raises(ConfigError, match=f"{reason}.*without data for caches"):
        build_caches(directory, Samples((rows,)), Samples((rows,)), task="classify")
