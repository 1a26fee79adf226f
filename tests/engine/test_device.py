"""The CUDA path: what is refused where it cannot run, and that copies, computing and answers overlap rightly."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from latebind.domain.actions import Run
from latebind.domain.config import EngineConfig, PolicyConfig
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.engine.device import DeviceStaging, DeviceStream
from latebind.engine.loaded import load_model
from latebind.engine.slots import ModelSlots, SlotMemory
from latebind.engine.staging import HostStaging
from latebind.engine.worker import Worker
from latebind.program.backends import backend_named, compile_graph
from latebind.program.device import find_device
from latebind.program.export import export
from latebind.repository.listing import find_models
from tests.digits import Built
from tests.engine.rows import memory_of
from tests.engine.started import engine, soon
from tests.forked import printed_by
from tests.networks import Chain

SLOTS = 4
SPEC = ModelSpec("rows", "1", (TensorSpec("x", "float32", (8,)),), (TensorSpec("y", "float32", (8,)),), 1, SLOTS)
LONG = 200_000_000  # cycles of a GPU, about a tenth of a second


class Counting(nn.Module):
    """Adds to each row the numbers 0 to 7, which the graph makes as it runs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(8, dtype=torch.float32)


# Anywhere -------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_where_there_is_no_gpu_a_cuda_device_is_refused_with_what_to_do(models: Path) -> None:
    (path,) = find_models(models, ["chain"])
    with pytest.raises(ConfigError, match=r"'cuda' is not there, .* or use cpu"):
        load_model(path, EngineConfig(device="cuda"))


@pytest.mark.parametrize("name", ["openvino", "openvino-bf16", "openvino-int8"])
def test_openvino_refuses_cuda_and_says_what_does_not(name: str) -> None:
    with pytest.raises(ConfigError, match="computes on the CPU, not on cuda: use --backend eager or compile"):
        backend_named(name, device="cuda")


def test_a_sequence_model_is_refused_on_cuda(models: Path) -> None:
    (path,) = find_models(models, ["backwards"])
    with pytest.raises(ConfigError, match="not served on cuda yet: use --device cpu"):
        load_model(path, EngineConfig(device="cuda"))


def test_what_a_graph_makes_as_it_runs_is_made_on_its_device() -> None:
    exported = export(Counting().eval(), (torch.zeros(2, 8),))
    elsewhere = torch.device("meta")
    stage = compile_graph(exported.graph, exported.weights, backend="eager", threads=1, device="meta")
    (found,) = stage(torch.zeros(3, 8, device=elsewhere))
    assert (found.device, tuple(found.shape)) == (elsewhere, (3, 8))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_learned_caches_answer_on_a_device_as_from_the_slots(built: Built, device: str) -> None:
    expected, left = digits_answered(built, "cpu", staged=False)
    found, left_there = digits_answered(built, device, staged=True)
    assert any(left)
    assert left_there == left
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def digits_answered(built: Built, device: str, *, staged: bool) -> tuple[NDArray[np.float32], list[tuple[int, ...]]]:
    """Return the answers to some digits and who left behind each stage."""
    model = load_model(built.directory.path, EngineConfig(device=device, backend="eager"))
    name, requests = model.spec.name, tuple(range(SLOTS))
    memory = memory_of(model.spec, rows=SLOTS)
    memory.models[0].inputs[0][:] = built.unseen[:SLOTS].numpy()
    staging = DeviceStaging([name], memory, find_device(device)) if staged else HostStaging([name], memory)
    worker = Worker({name: model}, memory, stream=staging.stream())
    staging.copy_in(name, requests)
    left: list[tuple[int, ...]] = []
    with torch.inference_mode():
        while requests and len(left) < model.spec.stages:
            left.append(worker.run(Run(0, name, len(left), requests, requests)).exited)
            requests = tuple(request for request in requests if request not in left[-1])
    staging.close()
    return np.array(memory.models[0].outputs[0], np.float32), left


# On a GPU -------------------------------------------------------------------------------------------------------------


@contextmanager
def staged() -> Iterator[tuple[DeviceStaging, DeviceStream, SlotMemory]]:
    memory = memory_of(SPEC, rows=SLOTS)
    staging = DeviceStaging([SPEC.name], memory, find_device("cuda"))
    try:
        with torch.inference_mode():
            yield staging, staging.stream(), memory
    finally:
        staging.close()


def fill(slots: ModelSlots) -> None:
    slots.inputs[0][:] = np.random.default_rng(0).standard_normal((SLOTS, 8))


def keep_busy(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """Give `stream` something to do for a while; the event tells when it is done."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)  # type: ignore[no-untyped-call]
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(stream)
    return done


@pytest.mark.gpu
def test_slots_are_page_locked_as_long_as_they_are_staged() -> None:
    memory = memory_of(SPEC, rows=SLOTS)
    rows = torch.from_numpy(memory.models[0].inputs[0])
    staging = DeviceStaging([SPEC.name], memory, find_device("cuda"))
    assert rows.is_pinned()
    staging.close()
    assert not rows.is_pinned()


@pytest.mark.gpu
def test_a_worker_waits_for_the_last_input_of_its_batch() -> None:
    with staged() as (staging, stream, memory):
        fill(memory.models[0])
        for rows in staging.models[SPEC.name].rows:
            rows.fill_(torch.nan)
        torch.cuda.synchronize()
        keep_busy(staging._in_stream)
        staging.copy_in(SPEC.name, (0, 1, 2))
        with stream.running():
            (x,) = stream.inputs(Run(0, SPEC.name, 0, (3, 1), (2, 0)))
            stream.answer(SPEC.name, (2, 0), (x * 2,), (0, 1))
        np.testing.assert_array_equal(memory.models[0].outputs[0][[2, 0]], memory.models[0].inputs[0][[2, 0]] * 2)


@pytest.mark.gpu
def test_inputs_are_copied_while_a_worker_computes() -> None:
    with staged() as (staging, stream, memory):
        fill(memory.models[0])
        computed = keep_busy(stream._stream)
        staging.copy_in(SPEC.name, (0,))
        staging._in_stream.synchronize()
        assert not computed.query()  # type: ignore[no-untyped-call]
        stream.wait()
        assert computed.query()  # type: ignore[no-untyped-call]


@pytest.mark.gpu
def test_answers_of_one_worker_do_not_wait_for_the_launches_of_another() -> None:
    with staged() as (staging, stream, memory):
        fill(memory.models[0])
        staging.copy_in(SPEC.name, (0,))
        other = staging.stream()
        computed = keep_busy(other._stream)
        with stream.running():
            stream.answer(SPEC.name, (0,), stream.inputs(Run(0, SPEC.name, 0, (1,), (0,))), (0,))
        assert not computed.query()  # type: ignore[no-untyped-call]
        np.testing.assert_array_equal(memory.models[0].outputs[0][0], memory.models[0].inputs[0][0])


@pytest.mark.gpu
def test_where_slots_cannot_be_page_locked_rows_are_copied_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    memory = memory_of(SPEC, rows=SLOTS)
    fill(memory.models[0])
    first = DeviceStaging([SPEC.name], memory, find_device("cuda"))
    second = DeviceStaging([SPEC.name], memory, find_device("cuda"))  # what is locked cannot be locked again
    assert "slots cannot be page-locked" in caplog.text
    first.close()
    stream = second.stream()
    second.copy_in(SPEC.name, (0,))
    with stream.running():
        stream.answer(SPEC.name, (0,), stream.inputs(Run(0, SPEC.name, 0, (1,), (0,))), (0,))
    np.testing.assert_array_equal(memory.models[0].outputs[0][0], memory.models[0].inputs[0][0])
    second.close()


def main(words: list[str]) -> None:
    """Have an assertion fail in a kernel, and go on as if nothing had happened."""
    del words
    staging = DeviceStaging([SPEC.name], memory_of(SPEC, rows=SLOTS), find_device("cuda"))
    with suppress(RuntimeError), staging.stream().running():
        torch._assert_async(torch.zeros(1, device="cuda"))
    print("went on")


@pytest.mark.gpu
def test_an_engine_whose_device_is_lost_ends() -> None:
    assert printed_by(__name__) == ""


@pytest.mark.gpu
async def test_an_engine_on_cuda_answers_as_the_network_does(models: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((20, 3, 8, 8)).astype(np.float32)
    config = EngineConfig(workers=2, device="cuda", backend="eager")
    async with engine(models, "chain", config=config, policy=PolicyConfig("graph", max_batch=4)) as client:
        calls = [client.infer("chain", {"image": rows[i : i + 1]}, deadline=soon()) for i in range(len(rows))]
        found = [next(iter(answer.outputs.values())) for answer in await asyncio.gather(*calls)]
    with torch.inference_mode():
        np.testing.assert_allclose(np.concatenate(found), Chain()(torch.from_numpy(rows)).numpy(), rtol=1e-4, atol=1e-5)
