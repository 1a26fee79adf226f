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
from latebind.repository.directory import MANIFEST, WEIGHTS, ModelDirectory

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


@pytest.fixture(scope="module", params=[name for name in NETWORKS if name != "roberta"])  # which is bert, and larger
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


def test_a_zoo_goes_on_where_it_was_broken_off_and_what_it_builds_runs(tmp_path: Path) -> None:
    zoo = Zoo(tmp_path, TINY, max_batch=2)
    built = zoo.path_of("t5") / MANIFEST
    built.parent.mkdir(parents=True)
    built.write_text("built before")
    path = zoo.path_of("bert")
    path.mkdir(parents=True)  # what is left of a build that was broken off
    told = list[str]()
    zoo.build_missing(["t5", "bert"], lambda step, _share: told.append(step))
    assert told
    assert all(step.startswith("bert") for step in told)
    assert built.read_text() == "built before"
    program, module = load_program(ModelDirectory.open(path)), make("bert", TINY)
    rows = examples("bert", module, TINY, seed=1)
    assert relative_error(program.run(*rows.values()), run_module(module, rows)) <= 1e-5
    assert program.spec.inputs[0].limit == 3052
    row = described(path)
    assert row["stages"] == program.spec.stages == len(program.stages)
    assert row["MB"] == round((path / WEIGHTS).stat().st_size / 1e6, 1)


def test_networks_of_two_sizes_do_not_share_a_folder(tmp_path: Path) -> None:
    Zoo(tmp_path, TINY).keep_to_one_kind()
    Zoo(tmp_path, TINY, max_batch=1).keep_to_one_kind()
    with pytest.raises(ConfigError, match="name another folder"):
        Zoo(tmp_path, TINY, seed=1).keep_to_one_kind()
    assert json.loads((tmp_path / "zoo.json").read_text())["seed"] == 0
