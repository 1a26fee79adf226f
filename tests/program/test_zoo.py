import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch import Tensor, nn

from examples.zoo.build import Zoo, described
from examples.zoo.networks import NETWORKS, examples, make, stage_bytes
from examples.zoo.size import TINY
from latebind.domain.errors import ConfigError
from latebind.program.cut import cut_points, fusion_safe_points, join_by_bytes, split
from latebind.program.eager import in_eager
from latebind.program.export import Exported, export, run_module
from latebind.program.graph import Graph
from latebind.program.load import load_program
from latebind.program.verify import relative_error
from latebind.repository.directory import WEIGHTS, ModelDirectory

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Cut:
    """A tiny network, exported, and cut as `build` cuts it."""

    name: str
    module: nn.Module
    exported: Exported
    stages: tuple[Graph, ...]

    def rows(self, batch: int) -> tuple[Tensor, ...]:
        return tuple(tensor[:batch] for tensor in examples(self.name, self.module, TINY, seed=1).values())

    def bytes(self, stage: Graph) -> int:
        return sum(self.exported.weights[name].nbytes for name in stage.weights())


@pytest.fixture(scope="module", params=NETWORKS)
def cut(request: pytest.FixtureRequest) -> Cut:
    name: str = request.param
    module = make(name, TINY)
    exported = export(module, examples(name, module, TINY))
    points = fusion_safe_points(exported.graph, cut_points(exported.graph))
    sizes = [sum(exported.weights[w].nbytes for w in piece.weights()) for piece in split(exported.graph, points)]
    return Cut(name, module, exported, split(exported.graph, join_by_bytes(points, sizes, stage_bytes(name, module))))


def test_its_stages_compute_what_the_module_computes(cut: Cut) -> None:
    for batch in (1, 3):
        passed = rows = cut.rows(batch)
        for stage in cut.stages:  # contiguous between them, as they lie when rows of a batch come and go
            passed = tuple(tensor.contiguous() for tensor in in_eager(stage, cut.exported.weights)(*passed))
        assert relative_error(passed, run_module(cut.module, rows)) <= 1e-5


def test_its_stages_are_its_blocks(cut: Cut) -> None:
    blocks = NETWORKS[cut.name].blocks(cut.module)
    assert len(blocks) <= len(cut.stages) <= len(blocks) + 2
    names = [name for name, part in cut.module.named_modules() if any(part is block for block in blocks)]
    read = [{name for name in names if any(w.startswith(f"{name}.") for w in s.weights())} for s in cut.stages]
    assert all(len(found) <= 1 for found in read)
    assert len([found for found in read if found]) == len(set().union(*read))


def test_its_stages_share_next_to_no_weights(cut: Cut) -> None:
    whole = sum(weight.nbytes for weight in cut.exported.weights.values())
    assert sum(cut.bytes(stage) for stage in cut.stages) < 1.001 * whole


def build(zoo: Zoo, *names: str) -> list[str]:
    told: list[str] = []
    zoo.build_missing(names, lambda step, _share: told.append(step))
    return told


@dataclass(frozen=True)
class Went:
    """A zoo that was broken off behind its first network and went on: what it told then, and that network's age."""

    zoo: Zoo
    told: list[str]
    before: int
    after: int


@pytest.fixture(scope="module")
def went(tmp_path_factory: pytest.TempPathFactory) -> Went:
    zoo = Zoo(tmp_path_factory.mktemp("zoo"), TINY, max_batch=2)
    weights = zoo.path_of("bert") / WEIGHTS
    build(zoo, "bert")
    before = weights.stat().st_mtime_ns
    zoo.path_of("t5").mkdir(parents=True)  # what is left of a build that was broken off
    told = build(zoo, "bert", "t5")
    return Went(zoo, told, before, weights.stat().st_mtime_ns)


@pytest.mark.parametrize("name", ["bert", "t5"])
def test_it_is_built_and_runs_as_a_program(went: Went, name: str) -> None:
    path = went.zoo.path_of(name)
    program = load_program(ModelDirectory.open(path))
    module = make(name, TINY)
    rows = examples(name, module, TINY, seed=1)
    assert relative_error(program.run(*rows.values()), run_module(module, rows)) <= 1e-5
    assert program.spec.inputs[0].limit == {"bert": 3052, "t5": 3213}[name]
    row = described(path)
    assert row["stages"] == program.spec.stages == len(program.stages)
    assert row["MB"] == round((path / WEIGHTS).stat().st_size / 1e6, 1)


def test_a_zoo_goes_on_where_it_was_broken_off(went: Went) -> None:
    assert went.told
    assert all(step.startswith("t5") for step in went.told)
    assert went.after == went.before


def test_networks_of_two_sizes_do_not_share_a_folder(tmp_path: Path) -> None:
    Zoo(tmp_path, TINY).keep_to_one_kind()
    Zoo(tmp_path, TINY, max_batch=1).keep_to_one_kind()
    with pytest.raises(ConfigError, match="name another folder"):
        Zoo(tmp_path, TINY, seed=1).keep_to_one_kind()
    assert json.loads((tmp_path / "zoo.json").read_text())["seed"] == 0
