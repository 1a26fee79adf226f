"""The recipes of CONTRIBUTING.md: their code is written to files of its own, named as users name it, and runs."""

import re
from importlib import import_module
from pathlib import Path

import pytest
import torch

from latebind.domain.actions import Outcome
from latebind.domain.config import PolicyConfig, ResidencyConfig
from latebind.domain.costs import Footprint
from latebind.program.backends import BACKENDS
from latebind.program.build import build_program
from latebind.program.load import load_program
from latebind.repository.directory import ModelDirectory
from latebind.residency.memory import Memory
from latebind.residency.policy import make_policy
from latebind.server.rest.routes import ROUTES
from latebind.simulation.driver import Simulator
from latebind.simulation.workloads import Arrival
from tests.batching.chains import STATIC, chain, config
from tests.networks import Chain
from tests.server.conftest import opened

ROOT = Path(__file__).parent.parent
RECIPE = re.compile(r"```python\n# (mine/\w+\.py)\n(.*?)```", re.DOTALL)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The recipes as files on the path; returns their names."""
    found = RECIPE.findall((ROOT / "CONTRIBUTING.md").read_text())
    for name, code in found:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    return [name for name, _ in found]


def test_each_recipe_is_tried_here(mine: list[str]) -> None:
    assert mine == ["mine/oldest.py", "mine/pairs.py", "mine/count.py", "mine/torch_alone.py"]


@pytest.mark.usefixtures("mine")
def test_an_eviction_policy() -> None:
    memory = Memory(40, {name: Footprint((10,), (1.0,)) for name in ("a", "b", "c", "d")})
    policy = make_policy(ResidencyConfig(40, "mine.oldest:Oldest"))
    for now, name in enumerate(("b", "a", "c")):
        memory.begin(name, (0,))
        policy.loaded(memory.loaded(name, (0,)), float(now))
    policy.requested(memory.models["b"], 9.0)
    victims = policy.victims(memory.view(), 15, memory.models["d"], 9.0)
    assert [victim.model for victim in victims] == ["b", "a"]


@pytest.mark.usefixtures("mine")
def test_a_batching_policy() -> None:
    simulator = Simulator(config(PolicyConfig("mine.pairs:Pairs"), chain(STATIC, STATIC)))
    records = simulator.run([Arrival(0.0, "net", 100.0, 1)] * 5)
    assert {record.outcome for record in records} == {Outcome.ANSWERED}
    assert sorted(record.ended for record in records) == [2.0, 4.0, 4.0, 6.0, 6.0]  # the first came alone


@pytest.mark.usefixtures("mine")
def test_an_endpoint() -> None:
    with opened(routes=(import_module("mine.count").ROUTE, *ROUTES)) as site:
        assert site.get("/v2/count").json() == {"models": len(site.get("/v2/models").json()["models"])}


@pytest.mark.usefixtures("mine")
def test_a_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS.places, "alone", "mine.torch_alone:TorchAlone")
    module, image = Chain().eval(), torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    build_program(module, {"image": image}, directory=tmp_path / "chain" / "1", name="chain", backends=["alone"])
    program = load_program(ModelDirectory.open(tmp_path / "chain" / "1"), threads=torch.get_num_threads())
    assert program.backend == "alone"
    (answer,) = program.run(image)
    torch.testing.assert_close(answer, module(image), rtol=1e-5, atol=1e-5)
