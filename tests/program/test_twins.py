"""Twins of a stage: several threads at a time, each with outputs of its own, over one copy of the weights."""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Barrier

import msgspec
import pytest
import torch
from torch import Tensor, nn

from latebind.bench.memory import Side
from latebind.bench.server import Resident
from latebind.domain.config import EngineConfig
from latebind.program import openvino
from latebind.program.agreement import chain_error
from latebind.program.backends import StageFunction, twin
from latebind.program.cut import cut_points, split
from latebind.program.export import Exported, export
from latebind.program.graph import Graph
from latebind.program.load import compile_graph, compile_stages
from tests.building import build_stages
from tests.forked import printed_by
from tests.networks import Chain
from tests.program.test_backends import usable

WORKERS = 4
SIZES = (1, 2, 3, 5, 8, 33)
TIMES = 25 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 10  # that each thread runs each size
WIDTH = 2048  # of the model whose workers are weighed


class Wide(nn.Module):
    """Few operators over many weights: two square matrices."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.eval()

    def forward(self, row: Tensor) -> Tensor:
        """Map `(B, width) float32` to the same."""
        found: Tensor = self.layers(row)
        return found


def check_together(stages: Sequence[StageFunction], batches: Sequence[Tensor]) -> None:
    """Run every batch on every stage, each stage in a thread of its own; all must give what the first gives alone."""
    with torch.inference_mode():
        expected = [stages[0](batch)[0].clone() for batch in batches]
    together = Barrier(len(stages))

    def run(number: int) -> list[int]:
        wrong = []
        with torch.inference_mode():
            together.wait()
            for time in range(TIMES * len(batches)):
                place = (time + number) % len(batches)
                (found,) = stages[number](batches[place])
                for _ in range(10):  # while others run, nobody writes over what was found
                    if not torch.equal(found, expected[place]):
                        wrong.append(time)
                        break
        return wrong

    with ThreadPoolExecutor(len(stages)) as threads:
        assert list(threads.map(run, range(len(stages)))) == [[]] * len(stages)


def check_twins(module: nn.Module, example: Tensor, backend: str, streams: int, *, copies: bool = False) -> None:
    torch.set_num_threads(1)
    exported = export(module, (example,))
    stage = compile_graph(
        exported.graph,
        exported.weights,
        backend=usable(backend),
        threads=1,
        sizes=(1, 2, 8),
        streams=streams,
        copies=copies,
    )
    stages = [stage, *(twin(stage) for _ in range(1, WORKERS))]
    check_together(stages, [torch.randn(size, *example.shape[1:]) for size in SIZES])


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("backend", ["eager", "openvino", "openvino-bf16"])
def test_twins_that_run_at_the_same_time_give_what_each_gives_alone(backend: str, streams: int) -> None:
    check_twins(Chain(), torch.randn(2, 3, 8, 8), backend, streams)


@pytest.mark.parametrize("streams", [1, 2])
def test_so_do_twins_that_share_weights_and_streams(streams: int) -> None:
    width = 640
    assert width * width * 4 * 2 > openvino.SHARED_FROM
    check_twins(Wide(width), torch.randn(2, width), "openvino", streams)


def test_so_do_twins_with_a_copy_of_the_weights_each() -> None:
    check_twins(Wide(640), torch.randn(2, 640), "openvino", 2, copies=True)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
@pytest.mark.parametrize("copies", [False, True])
def test_where_twins_have_copies_each_computes_on_the_thread_that_calls(*, copies: bool) -> None:
    exported = export(Wide(640), (torch.randn(2, 640),))
    compiled = compile_graph(
        exported.graph, exported.weights, backend=usable("openvino"), threads=1, streams=2, copies=copies
    )
    rows = torch.randn(64, 640)
    for stage in (compiled, twin(compiled)):
        stage(rows)
        here, whole = time.thread_time(), time.process_time()
        for _ in range(100):
            stage(rows)
        assert (2 * (time.thread_time() - here) > time.process_time() - whole) is copies


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
def test_threads_that_divide_an_operator_may_use_every_core() -> None:
    exported, here, before = export(Wide(640), (torch.randn(2, 640),)), os.sched_getaffinity(0), cores_of_threads()
    stage = compile_graph(exported.graph, exported.weights, backend=usable("openvino"), threads=2)
    for _ in range(10):
        stage(torch.randn(64, 640))
        assert all(cores == before.get(thread, here) for thread, cores in cores_of_threads().items())


def cores_of_threads() -> dict[int, set[int]]:
    """Return the cores that each thread of this process may use."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended
            found[int(task.name)] = os.sched_getaffinity(int(task.name))
    return found


@dataclass(frozen=True)
class Compiled:
    """A network in two stages of torch.compile, which take seconds to make."""

    exported: Exported
    graphs: Sequence[Graph]
    stages: Sequence[StageFunction]


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    torch.set_num_threads(1)
    exported = export(Chain(), (torch.randn(2, 3, 8, 8),))
    graphs = split(exported.graph, cut_points(exported.graph)[1:2])
    assert len(graphs) == 2
    stages = compile_stages(graphs, exported.weights, backend=usable("compile"), threads=1, streams=2)
    return Compiled(exported, graphs, stages)


@pytest.mark.slow
def test_the_chain_of_torch_compile_equals_eager(compiled: Compiled) -> None:
    rows = torch.randn(32, 3, 8, 8)
    assert chain_error(compiled.stages, compiled.graphs, compiled.exported.weights, (rows,), (1, 2, 5, 32)) <= 1e-5


@pytest.mark.slow
def test_so_do_threads_that_share_a_stage_of_torch_compile(compiled: Compiled) -> None:
    stage = compiled.stages[0]
    stages = [stage, *(twin(stage) for _ in range(1, WORKERS))]
    check_together(stages, [torch.randn(size, 3, 8, 8) for size in SIZES])


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights are what it takes."""
    examples = {"row": torch.randn(2, WIDTH)}
    folder = tmp_path_factory.mktemp("wide") / "1"
    return build_stages(Wide(WIDTH), examples, folder, name="wide", max_batch=16).directory.path


@pytest.mark.parametrize("backend", ["eager", "openvino"])
def test_six_workers_have_the_weights_of_one(backend: str, wide: Path) -> None:
    usable(backend)
    weights = 2 * WIDTH * WIDTH * 4
    granularities = (1, 1, 2, 4, 8, 16)
    one, six, copies = (
        private_bytes(Side(str(wide), EngineConfig(backend=backend, granularities=crew), copies))
        for crew, copies in (((16,), False), (granularities, False), (granularities, True))
    )
    assert six < one + weights
    assert copies > one + 3 * weights


def test_two_workers_have_what_is_large_once(wide: Path) -> None:
    usable("openvino")
    one, two = (
        private_bytes(Side(str(wide), EngineConfig(backend="openvino", granularities=crew)))
        for crew in ((16,), (16, 16))
    )
    assert two < one + WIDTH * WIDTH * 4


@cache
def private_bytes(side: Side) -> int:
    """Return what only a process has that has loaded a side and run it."""
    *_, used = printed_by("latebind.bench.memory", msgspec.json.encode(side).decode()).splitlines()
    return msgspec.json.decode(used, type=Resident).private
