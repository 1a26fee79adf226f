"""Learned caches for classifiers of many kinds: 2 to 1,000 classes, embeddings, sounds, sequences; others are refused.

The networks classify for real, by the nearest mean on random features, so nothing has to be trained; the layers behind
hand on what they get and only take time, so that leaving early pays on any machine: nearly all rows leave, and a lookup
would have to take as long as the network for that not to be worth it.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.learned.build import build_caches
from latebind.learned.lookup import load_lookups
from latebind.learned.report import CacheReport
from latebind.learned.samples import Samples, Task, checked
from latebind.program.build import build_program
from latebind.program.load import load_program
from tests.building import build_stages, on_one_core

TARGET, CONFIDENCE = 0.9, 0.9
HELD_OUT, UNSEEN = 250, 300
SLOW, WIDTH = 4, 512  # layers, and how wide they are
SHARPNESS = 0.3  # so that logits of neighbouring classes are about ten apart


@dataclass(frozen=True)
class Kind:
    """Rows `(*shape)` with `noise` around the mean of their class; how caches are made for them."""

    shape: tuple[int, ...]
    classes: int
    lookup: str
    noise: float
    fit: int = 500
    lessons: int = 4_000


KINDS = {
    "a thousand classes of embeddings": Kind((384,), 1_000, "plain", noise=0.3, fit=1_500, lessons=8_000),
    "twelve classes of sequences": Kind((16, 24), 12, "plain", noise=1.0),
}


class NearestMean(nn.Module):
    """Logits are minus the squared distances of a row's features to those of each class's mean, up to a constant."""

    def __init__(self, means: Tensor) -> None:
        super().__init__()
        self.project = nn.Linear(means[0].numel(), WIDTH)
        self.slow = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(SLOW))
        for layer in self.slow:
            assert isinstance(layer, nn.Linear)
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.answer = nn.Linear(WIDTH, len(means))
        with torch.no_grad():
            features = functional.relu(self.project(means.flatten(1)))
            self.answer.weight.copy_(SHARPNESS * features)
            self.answer.bias.copy_(-SHARPNESS * features.square().sum(dim=1) / 2)

    def forward(self, row: Tensor) -> Tensor:
        """Map `(B, *shape) float32` to logits `(B, classes) float32`."""
        hidden = functional.relu(self.project(row.flatten(1)))
        for layer in self.slow:
            hidden = functional.relu(layer(hidden))
        logits: Tensor = self.answer(hidden)
        return logits


@dataclass(frozen=True)
class Tried:
    """What came of building: the report, and the answers early and whole on unseen rows."""

    report: CacheReport
    early: Tensor
    whole: Tensor
    share: float


def build(kind: Kind, folder: Path) -> Tried:
    """Build the network and its caches, and answer unseen rows with exits and without."""
    torch.manual_seed(0)
    means = torch.randn(kind.classes, *kind.shape)
    labels = torch.randint(kind.classes, (kind.fit + HELD_OUT + UNSEEN,))
    rows = means[labels] + kind.noise * torch.randn(len(labels), *kind.shape)
    fit, held_out, unseen = torch.split(rows, [kind.fit, HELD_OUT, UNSEEN])
    directory = build_stages(
        NearestMean(means).eval(), {"row": rows[:8]}, folder / "1", name="kind", max_batch=2
    ).directory
    report = build_caches(
        directory,
        Samples((fit,)),
        Samples((held_out,)),
        fidelity=TARGET,
        confidence=CONFIDENCE,
        candidates=1,
        kinds=(kind.lookup,),
        presentations=kind.lessons,
        aside=False,
        task=Task.CLASSIFY,
    )
    program = load_program(report.directory)
    (whole,) = program.run(unseen)
    early, share = whole.clone(), 0.0
    for stage, lookup in load_lookups(report.directory, backend="eager").items():
        answers, hit = map(torch.from_numpy, lookup(program.run_through(stage, unseen)))
        early[hit], share = answers[hit], float(hit.float().mean())
    return Tried(report, early, whole, share)


@pytest.fixture(scope="module", params=KINDS)
def tried(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tried:
    torch.set_num_threads(1)
    with on_one_core():
        return build(KINDS[request.param], tmp_path_factory.mktemp("kinds"))


def test_what_leaves_early_answers_like_the_network_in_its_shape(tried: Tried) -> None:
    assert tried.early.shape == tried.whole.shape
    assert tried.early.dtype == torch.float32
    same = float((tried.early.argmax(dim=1) == tried.whole.argmax(dim=1)).float().mean())
    assert same >= TARGET - 3 * (TARGET * (1 - TARGET) / UNSEEN) ** 0.5


def test_caches_pay_for_every_kind(tried: Tried) -> None:
    assert tried.report.lookups
    assert tried.report.seconds_with < tried.report.seconds_without
    assert tried.share > 0.4


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
        (Yields(4, torch.int64), "yields int64"),
        (Yields(4, torch.float64), "yields float64"),
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
        build_caches(directory, Samples((rows,)), Samples((rows,)), task=Task.CLASSIFY)
    assert load_program(directory).run(rows[:2])


@pytest.mark.parametrize(
    "labels",
    [torch.zeros(100), torch.full((100,), 4), torch.full((100,), -1), torch.zeros(100, 1).long(), torch.ones(100) > 0],
    ids=["fractions", "one too many", "negative", "a column", "true and false"],
)
def test_labels_that_number_no_classes_are_refused(labels: Tensor) -> None:
    spec = ModelSpec("m", "1", (TensorSpec("row", "float32", (4,)),), (TensorSpec("output", "float32", (4,)),), 1, 1)
    with pytest.raises(ConfigError, match="whole numbers from 0 to 3, one for each row"):
        checked(Samples((torch.zeros(100, 4),), labels), spec)
