"""Twins of a stage: several threads at a time, each with outputs of its own, over one copy of the weights."""

import ctypes
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import msgspec
import pytest
import torch
from torch import Tensor, nn

from latebind.bench.memory import Side
from latebind.bench.server import Resident
from latebind.domain.config import EngineConfig
from latebind.domain.costs import Curve, at_any_length
from latebind.program import openvino
from latebind.program.backends import StageFunction, Use, compile_graph, twin
from latebind.program.export import export, run_module
from latebind.program.graph import graph_to_json
from latebind.program.load import SPARE, has_copies
from latebind.program.metadata import FORMAT, Profile, StoredModel, this_hardware
from latebind.program.stored import write_model
from latebind.program.verify import relative_error
from latebind.repository.directory import GRAPH
from tests.forked import printed_by
from tests.networks import Chain
from tests.program.test_backends import usable

WORKERS = 4
SIZES = (1, 2, 3, 5, 8, 33)
TIMES = 25 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 10  # that each thread runs each size
WIDTH = 2048  # of the model whose workers are weighed
LARGE = 640  # the width of a model that twins may share


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


def twins_of(module: nn.Module, example: Tensor, backend: str, streams: int, *, copies: bool = False) -> StageFunction:
    """Return a stage after its twins and it were run together."""
    torch.set_num_threads(1)
    exported = export(module, (example,))
    use: Use = {"sizes": (1, 2, 8), "streams": streams, "copies": copies}
    stage = compile_graph(exported.graph, exported.weights, backend=usable(backend), threads=1, **use)
    stages = [stage, *(twin(stage) for _ in range(1, WORKERS))]
    check_together(stages, [torch.randn(size, *example.shape[1:]) for size in SIZES])
    return stage


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("backend", ["eager", "openvino", "openvino-bf16"])
def test_twins_that_run_at_the_same_time_give_what_each_gives_alone(backend: str, streams: int) -> None:
    twins_of(Chain(), torch.randn(2, 3, 8, 8), backend, streams)


@pytest.mark.parametrize("backend", ["openvino", "openvino-int8"])
@pytest.mark.parametrize(("streams", "copies"), [(1, False), (2, False), (2, True)])
def test_so_do_twins_of_what_is_large_whether_they_share_it_or_not(backend: str, streams: int, *, copies: bool) -> None:
    assert LARGE * LARGE * 4 * 2 > openvino.SHARED_FROM
    twins_of(Wide(LARGE), torch.randn(2, LARGE), backend, streams, copies=copies)


@pytest.mark.slow
def test_a_stage_of_torch_compile_equals_eager_and_threads_share_it() -> None:
    module, rows = Wide(8), torch.randn(32, 8)
    stage = twins_of(module, rows[:2], "compile", 2)
    for batch in (1, 2, 5, 32):
        assert relative_error(stage(rows[:batch]), run_module(module, (rows[:batch],))) <= 1e-5


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights are what it takes, written as a build writes it."""
    exported, spec = export(Wide(WIDTH), {"row": torch.randn(2, WIDTH)}), at_any_length(Curve((1,), (1e-3,)))
    inputs, outputs = exported.graph.inputs, exported.graph.output_specs()
    model = StoredModel(FORMAT, "wide", "1", inputs, outputs, (), "eager", None, 16)
    profile = Profile(this_hardware(1), "eager", spec, 2 * WIDTH * WIDTH * 4, 0.0)
    folder = tmp_path_factory.mktemp("wide") / "1"
    return write_model(folder, model, exported.weights, profile, {GRAPH: graph_to_json(exported.graph)}).path


def test_workers_share_weights_and_those_with_copies_have_their_own(wide: Path) -> None:
    backend, weights = usable("openvino"), 2 * WIDTH * WIDTH * 4
    config = EngineConfig(backend=backend, granularities=(1, 4, 16))
    shared, copies = (private_bytes(Side(str(wide), config, copies)) for copies in (False, True))
    assert copies > shared + 1.5 * weights  # two workers more have some


def private_bytes(side: Side) -> int:
    """Return what only a process has that has loaded a side and run it."""
    *_, used = printed_by("latebind.bench.memory", msgspec.json.encode(side).decode()).splitlines()
    return msgspec.json.decode(used, type=Resident).private


def test_each_worker_has_its_own_while_that_takes_little() -> None:
    spare = {(SPARE, 2): True, (SPARE + 1, 2): False, (SPARE // 3, 4): True, (SPARE // 2 + 1, 3): False}
    alone = {(1, 0): False, (1, 1): False}  # there is nothing to copy
    for (size, twins), copies in {**spare, **alone}.items():
        assert has_copies(size, twins) is copies


class SignalStack(ctypes.Structure):
    """`stack_t` of Linux."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def own_signal_stack() -> int | None:
    """Return where the stack for signals of this thread begins, if it has one."""
    found = SignalStack()
    assert ctypes.CDLL(None).sigaltstack(None, ctypes.byref(found)) == 0
    start: int | None = found.start
    return start


def is_mapped(address: int) -> bool:
    spans = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(start, 16) <= address < int(end, 16) for start, end in spans)


def test_a_thread_that_has_compiled_and_let_go_can_still_be_signalled() -> None:
    def compiled_and_let_go() -> int | None:
        exported = export(nn.Linear(4, 4).eval(), (torch.randn(2, 4),))
        stages = [
            compile_graph(exported.graph, exported.weights, backend=usable("openvino"), threads=1) for _ in range(3)
        ]
        while stages:
            stages.pop(0)
        return own_signal_stack()

    with ThreadPoolExecutor(1) as thread:  # a thread ends with its stack for signals
        left = thread.submit(compiled_and_let_go).result()
    assert left is None or is_mapped(left)
