"""Whether embeddings may leave early: how near predictors come, and what that gains; and fewer bits beside them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from typer.testing import CliRunner

from latebind.domain.costs import Curve, Grid
from latebind.learned.samples import Samples
from research import vectors
from research.__main__ import app
from research.vectors import Exit, gains
from tests.building import build_stages


class Late(nn.Module):
    """Two layers that are hard to foresee, and a last one that is linear."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 16)` to `(B, 8)`."""
        hidden = torch.sin(20 * self.second(torch.sin(20 * self.first(x))))
        return functional.normalize(self.last(hidden), dim=-1)


def test_predictors_are_near_where_only_a_linear_layer_follows(tmp_path: Path) -> None:
    rows = torch.randn(1_200, 16, generator=torch.Generator().manual_seed(1))
    build_stages(Late().eval(), {"x": rows[:4]}, tmp_path / "models" / "late" / "1", name="late", max_batch=2)
    np.savez(tmp_path / "rows.npz", x=rows.numpy())
    command = ["vectors", str(tmp_path / "models"), "--model", "late", "--data", str(tmp_path / "rows.npz")]
    options = ["--lessons", "8000", "--cosine", "0.9", "--json", str(tmp_path / "found.json")]
    done = CliRunner().invoke(app, [*command, *options])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "found.json").read_text())
    alone = found["exits"]["tables"]["predictors, each alone"]
    cosines = [float(row["mean cosine"]) for row in alone]
    assert cosines[-1] > 0.9 > cosines[0]
    bits = found["bits"]["tables"]["fewer bits"]
    assert bits[0]["mean"] == "1.00000"
    assert bits[0]["recall@10"] == "1.0000"


def test_what_leaving_early_gains_counts_whom_it_may_let_leave() -> None:
    rng = np.random.default_rng(0)
    near = rng.random(2_000) < 0.6
    cosines = np.where(near, 0.995, 0.5)
    one = Exit(0, 0.1, cosines, cosines + 1e-3 * rng.random(2_000))
    grids = [Grid((1,), (Curve((1,), (seconds,)),)) for seconds in (0.5, 1.0)]
    (row,) = gains([one], grids, Samples((torch.zeros(2_000, 1),)), (0.99,), seed=0)
    assert float(str(row["at least"])) >= vectors.SHARE
    whole, left = 1.5, 0.5 + 0.1 + 0.4 * 1.0
    assert float(str(row["times less"])) == pytest.approx(whole / left, rel=0.05)
