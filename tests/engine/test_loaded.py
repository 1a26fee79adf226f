"""What loading leaves until an engine serves: compiling stages for batches, whose rows run one by one until then."""

import os
import socket
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copytree

import msgspec
import pytest
import torch
from torch import Tensor, nn

from latebind.domain.config import EngineConfig, PolicyConfig
from latebind.domain.sizes import Dim
from latebind.engine.loaded import LoadedModel, load_for_workers
from latebind.engine.order import EngineOrder
from latebind.engine.process import Engine
from latebind.engine.shared import Running
from latebind.engine.slots import create_file
from latebind.program.arrays import OverArrays
from latebind.program.backends import StageFunction, compile_graph, twin
from latebind.program.build import build_program
from latebind.program.export import export, run_module
from latebind.program.openvino import OpenVinoStage
from latebind.program.verify import relative_error
from latebind.repository.directory import PROFILE, ModelDirectory
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


class Passing(nn.Module):
    """A table of ten words, a linear layer, and the words themselves as a second output."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.linear = nn.Embedding(10, 4), nn.Linear(4, 4)
        self.eval()

    def forward(self, word: Tensor) -> tuple[Tensor, Tensor]:
        """Map `(B, 3) int64` to `(B, 3) int64` and `(B, 4) float32`."""
        return word, self.linear(self.table(word).sum(1))


def test_a_batch_with_a_bad_row_raises_and_outputs_that_are_inputs_stay_before_and_after_alike() -> None:
    module, kept = Passing(), list[Callable[[], None]]()
    good = torch.tensor([[0, 1, 9], [3, 3, 3], [7, 0, 2]])
    graph, weights = export(module, (good,))
    stage = compile_graph(graph, weights, backend=usable("openvino"), threads=1, later=kept.append)
    for is_compiled in (False, True):
        assert compiled([stage]) == [is_compiled]
        for rows in (good, good[:1]):
            with pytest.raises(IndexError, match="an index from 10 to 10 is out of"):
                stage(torch.full_like(rows, 10))
            words, sums = stage(rows)
            assert torch.equal(words, rows)
            assert relative_error((sums,), run_module(module, (rows,))[1:]) <= 1e-5
        with pytest.raises(IndexError, match="an index from 0 to 10 is out of"):
            stage(torch.cat([good, torch.full((1, 3), 10)]))
        for work in kept:
            work()


def test_what_has_no_size_of_its_own_for_one_row_is_compiled_at_once() -> None:
    kept, rows = list[Callable[[], None]](), torch.randn(3, 5, 4)
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval()
    graph, weights = export(module, {"x": rows}, dims=[Dim("L", 1, 9)], sizes={"x": ["L", 4]})
    stage = compile_graph(graph, weights, backend=usable("openvino"), threads=1, later=kept.append)
    assert (compiled([stage]), kept) == ([True], [])
    assert relative_error(stage(rows), run_module(module, (rows,))) <= 1e-5


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> ModelDirectory:
    return build_program(
        Chain(),
        (ROWS,),
        directory=tmp_path_factory.mktemp("chain") / "1",
        name="chain",
        max_batch=4,
        min_stage_seconds=0.0,
        max_overhead=None,
        backends=[usable("openvino")],
    ).directory


def test_a_model_whose_costs_are_measured_at_the_start_is_compiled_whole_before(
    chain: ModelDirectory, tmp_path: Path
) -> None:
    config, kept = EngineConfig(workers=2), list[tuple[int, Callable[[], None]]]()

    def leave(number: int, work: Callable[[], None]) -> None:
        kept.append((number, work))

    workers = load_for_workers([chain.path], config, later=leave)
    before = of_workers(workers)
    for number, work in kept:
        assert number == 1
        work()
    assert len(before) == len(kept) > 2
    assert (any(before), all(of_workers(workers))) == (False, True)

    profile = msgspec.json.decode(chain.read(PROFILE))
    profile["hardware"]["cpu"] = "another"
    elsewhere = ModelDirectory.open(copytree(chain.path, tmp_path / "1")).write_files(
        {PROFILE: msgspec.json.encode(profile)}
    )
    kept.clear()
    assert all(of_workers(load_for_workers([elsewhere.path], config, later=leave)))
    assert not kept


@pytest.mark.parametrize("replaces", [False, True])
def test_an_engine_compiles_for_batches_while_it_serves_unless_another_serves(
    chain: ModelDirectory, replaces: bool
) -> None:
    order = EngineOrder((str(chain.path),), EngineConfig(workers=2), PolicyConfig(), replaces=replaces)
    threads, slots = torch.get_num_threads(), create_file()
    (ours, messages), (asking, control) = socket.socketpair(), socket.socketpair()
    with ours, messages, asking, control, ThreadPoolExecutor(1) as beside:
        engine = Engine(order, slots, Running(2), messages, control)
        workers = [list(worker._models.values()) for worker in engine._workers]
        before = of_workers(workers)
        serving = beside.submit(engine.serve)
        until = time.monotonic() + 60.0
        while not all(of_workers(workers)) and not serving.done() and time.monotonic() < until:
            time.sleep(0.01)
        ours.close()
        serving.result()
    os.close(slots)
    torch.set_num_threads(threads)
    assert len(before) > 2
    assert before == [replaces] * len(before)
    assert all(of_workers(workers))
