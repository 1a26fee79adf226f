"""A classifier whose learned caches are adapted while everything else happens: what it is asked and what is right."""

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from latebind.bench.ledger.play import Target
from latebind.program.load import load_program
from latebind.repository.directory import ModelDirectory
from tests.digits import build_digits, digits
from tests.soak.beside import ask

NAME, LARGEST, TOLERANCE = "digits", 4, 1e-3
SAMPLED = "latebind_fidelity_samples_total", NAME


def build(repository: Path) -> None:
    """Put the classifier there."""
    report = build_digits(repository.parent / "building", candidates=2).report
    shutil.copytree(report.directory.path, repository / NAME / "1")


class Classifying:
    """Asks for random images. A row that ran to the end is answered as by the network, all others by some class."""

    def __init__(self, target: Target, repository: Path, random: Random) -> None:
        self._target = target
        self._random = random
        self._images, _ = digits()
        (right,) = load_program(ModelDirectory.open(repository / NAME / "1"), threads=1).run(self._images)
        self._right: NDArray[Any] = right.numpy()

    def __call__(self) -> None:
        """Ask once."""
        places = self._random.sample(range(len(self._images)), self._random.randint(1, LARGEST))
        images = self._images[places]
        tensor = {"name": "image", "datatype": "FP32", "shape": images.shape, "data": images.flatten().tolist()}
        status, text = ask(self._target, "POST", f"/v2/models/{NAME}/infer", json.dumps({"inputs": [tensor]}).encode())
        assert status in {200, 503, 504}, (status, text)
        if status == 200:
            self._check(places, json.loads(text))

    def _check(self, places: list[int], reply: Any) -> None:
        (output,), told = reply["outputs"], reply["parameters"]
        rows = torch.tensor(output["data"]).view(output["shape"]).numpy()
        assert rows.shape == (len(places), 10)
        assert np.isfinite(rows).all()
        left = told["left_at"] if len(places) > 1 else [told["left_at"]]
        for place, row, stage in zip(places, rows, left, strict=True):
            if stage == told["stages"] - 1:
                assert np.abs(row - self._right[place]).max() < TOLERANCE, (row, self._right[place])
