"""A server without torch and transformers: it answers as one with them does, and says so where it needs them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import torch
from torch import nn

from latebind.child import started
from latebind.domain.errors import ConfigError
from latebind.program.build import build_program
from latebind.repository.directory import STAGES, ModelDirectory
from tests.building import build_stages, made_once
from tests.server.conftest import PATIENCE
from tests.texts import BuiltTexts, build_texts, texts

BLOCKED = ("torch", "transformers", "safetensors", "scipy")
# Python imports this at its start in every process that finds it on its path, so in the server's own processes too.
HIDES = f"""
import sys
class Hides:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {BLOCKED!r} else self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(Hides, sys.meta_path)
"""
LEFT = re.compile(r"^(latebind_left_at_total\{[^}]*\}) ([0-9.]+)$", re.MULTILINE)


class Network(nn.Module):
    """Convolutions with a sum beside them: weights that OpenVINO lays out in its own way, and constants."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.last = nn.Linear(256, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Map `(B, 1, 8, 8) float32` to `(B, 10)`."""
        x = torch.relu(self.first(image))
        x = nn.functional.avg_pool2d(torch.relu(x + self.second(x)), 2)
        found: torch.Tensor = self.last(x.flatten(1))
        return found


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models on OpenVINO, one that reads texts and has learned caches, and one of torch's, in `eager`."""
    pytest.importorskip("openvino")
    return made_once(tmp_path_factory, "openvino", build_both)


def build_both(root: Path) -> None:
    torch.set_num_threads(1)
    image = {"image": torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))}
    on_openvino = {"backends": ["openvino"], "min_stage_seconds": 0.0, "max_overhead": None, "max_batch": 4}
    settings: dict[str, Any] = on_openvino
    build_program(Network().eval(), image, directory=root / "both" / "network" / "1", name="network", **settings)
    built: BuiltTexts = build_texts(root / "texts", backend="openvino")
    ModelDirectory.create(root / "both" / "texts" / "1", {n: built.directory.read(n) for n in built.directory.files})
    build_stages(Network().eval(), image, root / "eager" / "network" / "1", name="network", max_batch=2)


@pytest.fixture
def hides(tmp_path: Path, nobody_lends: None) -> Path:
    """Return a folder that hides torch from processes that have it on their path."""
    folder = tmp_path / "hides"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HIDES)
    return folder


@contextmanager
def serving(repository: Path, hides: Path | None, *words: str) -> Iterator[str]:
    """Serve a repository, in processes that do not see what `hides` hides; yields the address."""
    with pytest.MonkeyPatch.context() as patch:
        if hides is not None:
            patch.setenv("PYTHONPATH", str(hides), prepend=os.pathsep)
        with started([str(repository), "--port", "0", "--workers", "1", *words]) as child:
            yield child.url


def answers(url: str) -> list[Any]:
    """Return what the two models answer to some rows, and where these left."""
    found = []
    # One by one: several are a batch, whose last bits change once stages are compiled for batches.
    for image in torch.randn(3, 1, 1, 8, 8, generator=torch.Generator().manual_seed(1)):
        found.append(ask(url, "network", {"image": ("FP32", image)}))
    for row in texts()[0][-40:]:
        inputs = {"ids": ("INT64", row[None]), "mask": ("INT64", torch.ones_like(row)[None])}
        found.append(ask(url, "texts", inputs))
    with urlopen(f"{url}/metrics", timeout=PATIENCE) as reply:
        left = {place: float(count) for place, count in LEFT.findall(reply.read().decode()) if '"texts"' in place}
    return [*found, {place: count for place, count in left.items() if count}]


def ask(url: str, model: str, inputs: dict[str, tuple[str, torch.Tensor]]) -> list[float]:
    given = [
        {"name": name, "shape": list(rows.shape), "datatype": kind, "data": rows.flatten().tolist()}
        for name, (kind, rows) in inputs.items()
    ]
    request = Request(f"{url}/v2/models/{model}/infer", json.dumps({"inputs": given}).encode())
    with urlopen(request, timeout=PATIENCE) as reply:
        data: list[float] = json.load(reply)["outputs"][0]["data"]
    return data


def test_what_openvino_runs_is_answered_as_with_torch_bit_for_bit(repository: Path, hides: Path) -> None:
    assert ModelDirectory.open(repository / "both" / "network" / "1").names(STAGES)
    with serving(repository / "both", None) as url:
        expected = answers(url)
    with serving(repository / "both", hides) as url:
        found = answers(url)
    assert found == expected
    assert len(found[-1]) > 1, "all left at one place"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("serve", "{}/eager"), "runs on the backend eager, which is torch's"),
        (("serve", "{}/both", "--backend", "eager"), "runs on the backend eager, which is torch's"),
        (("serve", "{}/both", "--adapt"), "--adapt trains learned caches, which torch does"),
        (("serve", "{}/both", "--device", "cuda"), "the device 'cuda' needs torch"),
        (("build", "somewhere:module"), "is not installed"),
    ],
)
def test_what_needs_torch_says_in_a_line_how_to_get_it(
    repository: Path, tmp_path: Path, hides: Path, words: tuple[str, ...], said: str
) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(hides), os.environ["PYTHONPATH"]])}
    done = subprocess.run(
        [sys.executable, "-m", "latebind", *(word.format(repository) for word in words)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        cwd=tmp_path,
    )
    told = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 2, told
    assert said in told
    assert "pip install 'latebind[torch]'" in told
    assert "Traceback" not in told


def test_a_model_that_was_built_without_files_is_converted_or_refused(
    repository: Path, tmp_path: Path, hides: Path
) -> None:
    whole = ModelDirectory.open(repository / "both" / "network" / "1")
    files = {name: whole.read(name) for name in whole.files if not name.startswith(f"{STAGES}/")}
    ModelDirectory.create(tmp_path / "old" / "network" / "1", files)
    image = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    with serving(tmp_path / "old", None) as url:
        found = ask(url, "network", {"image": ("FP32", image)})
    with serving(repository / "both", None, "--model", "network") as url:
        assert ask(url, "network", {"image": ("FP32", image)}) == found
    with pytest.raises(ConfigError, match="status 2"), serving(tmp_path / "old", hides):
        pass
