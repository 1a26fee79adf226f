"""What loading leaves until an engine serves: compiling stages for batches, whose rows run one by one until then."""

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from latebind.domain.config import EngineConfig
from latebind.engine.loaded import LoadedModel, load_for_workers
from latebind.program.arrays import OverArrays
from latebind.program.backends import StageFunction, compile_graph, twin
from latebind.program.build import build_program
from latebind.program.export import export, run_module
from latebind.program.openvino import OpenVinoStage
from latebind.program.verify import relative_error
from latebind.repository.directory import PROFILE
from tests.networks import Chain
from tests.program.test_backends import usable

ROWS = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
BATCHES = (ROWS, ROWS[:1], ROWS[1:2])


def compiled(stages: Iterable[StageFunction]) -> list[bool]:
    """Return whether each of these is compiled for any number of rows."""
    arrays = [stage.arrays for stage in stages if isinstance(stage, OverArrays)]
    return [stage.dynamic.ready for stage in arrays if isinstance(stage, OpenVinoStage) and stage.dynamic is not None]


def of_workers(workers: Iterable[Iterable[LoadedModel]]) -> list[bool]:
    return compiled([stage for models in workers for model in models for stage in model.program.stages])


@pytest.mark.parametrize("streams", [1, 2])
def test_a_stage_answers_batches_before_it_is_compiled_for_them_and_after(streams: int) -> None:
    module, kept = Chain(), list[Callable[[], None]]()
    graph, weights = export(module, (ROWS,))
    stage = compile_graph(graph, weights, backend=usable("openvino"), threads=1, streams=streams, later=kept.append)
    both = [stage, twin(stage)]

    def answers() -> list[Tensor]:
        return [one(rows)[0].clone() for one in both for rows in BATCHES]

    before = answers()
    assert (compiled(both), len(kept)) == ([False, False], 2)
    for work in kept:
        work()
    assert compiled([*both, twin(stage)]) == [True] * 3
    assert len(kept) == 2
    expected = [run_module(module, (rows,)) for _ in both for rows in BATCHES]
    for found in (before, answers()):
        assert max(relative_error((one,), right) for one, right in zip(found, expected, strict=True)) <= 1e-5


def test_a_model_whose_costs_are_measured_at_the_start_is_compiled_whole_before(tmp_path: Path) -> None:
    directory = build_program(
        Chain(),
        (ROWS,),
        directory=tmp_path / "1",
        name="chain",
        max_batch=4,
        min_stage_seconds=0.0,
        max_overhead=None,
        backends=[usable("openvino")],
    ).directory
    config, kept = EngineConfig(workers=2), list[tuple[int, Callable[[], None]]]()

    def leave(number: int, work: Callable[[], None]) -> None:
        kept.append((number, work))

    workers = load_for_workers([directory.path], config, later=leave)
    before = of_workers(workers)
    for number, work in kept:
        assert number == 1
        work()
    assert len(before) == len(kept) > 2
    assert (any(before), all(of_workers(workers))) == (False, True)

    profile = msgspec.json.decode(directory.read(PROFILE))
    profile["hardware"]["cpu"] = "another"
    elsewhere = directory.write_files({PROFILE: msgspec.json.encode(profile)})
    kept.clear()
    assert all(of_workers(load_for_workers([elsewhere.path], config, later=leave)))
    assert not kept
