"""Engines that have less memory than their models take, and what clients hear."""

import os
import shutil
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from latebind.domain.config import EngineConfig, PolicyConfig, ResidencyConfig
from latebind.domain.errors import ConfigError, Refused, Unavailable
from latebind.engine.client import EngineClient
from latebind.engine.cores import at_once
from latebind.engine.on_demand import open_for_workers, open_model, report_memory
from latebind.engine.slots import file_bytes
from latebind.program.build import build_program
from latebind.repository.directory import WEIGHTS
from tests.engine.resident import MB, WIDTH, mapped_bytes
from tests.engine.started import engine, soon

pytestmark = pytest.mark.usefixtures("frozen")

SLOTS = 256


def test_slots_count_and_a_budget_that_leaves_nothing_is_refused(wide: Path) -> None:
    path = wide / "one" / "1"
    spec = open_model(path, EngineConfig()).model.spec
    config = EngineConfig(workers=2, slots=SLOTS)
    slots = file_bytes([spec], {spec.name: SLOTS})
    with pytest.raises(ConfigError, match="fewer --slots"):
        open_for_workers([path], config, ResidencyConfig(slots, "lru"))
    with pytest.raises(ConfigError, match="more --memory"):
        open_for_workers([path], config, ResidencyConfig(slots + MB, "lru"))
    _, pieces, left = open_for_workers([path], config, ResidencyConfig(slots + 50 * MB, "lru"))
    assert 48 * MB < left.budget < 50 * MB  # a batch takes little, and in whole MiB
    kept = spec.max_batch * WIDTH * 4  # what requests of a batch keep between stages
    assert (50 * MB - left.budget) % (1 << 20) == (2 * config.workers - at_once(config)) * kept
    assert left.resting == config.workers * kept
    assert list(pieces) == ["one"]


class Broad(nn.Module):
    """Next to no weights, and 4 MiB for each row while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 8) float32` to the same shape."""
        moved: Tensor = self.linear(x) + x.repeat(1, 1 << 17).mean(1, keepdim=True)
        return moved


def test_what_the_largest_batches_of_all_workers_take_while_they_run_counts(tmp_path: Path) -> None:
    path, config = tmp_path / "broad" / "1", EngineConfig(workers=2, slots=SLOTS)
    build_program(
        Broad().eval(), {"x": torch.zeros(2, 8)}, directory=path, name="broad", backends=["eager"], max_batch=4
    )
    spec = open_model(path, config).model.spec
    slots = file_bytes([spec], {spec.name: SLOTS})
    _, _, left = open_for_workers([path], config, ResidencyConfig(slots + 100 * MB, "lru"))
    assert left.budget == pytest.approx(100 * MB - at_once(config) * 18 * MB, abs=at_once(config) * 4 * MB)
    with pytest.raises(ConfigError, match="smaller --max-batch"):
        open_for_workers([path], config, ResidencyConfig(slots + 10 * MB, "lru"))


def limited(
    places: Sequence[Path], budget: int, policy: str = "late", *, idle: float = 0.0
) -> AbstractAsyncContextManager[EngineClient]:
    """Have an engine whose memory is limited to so many bytes; 0: unlimited."""
    residency = ResidencyConfig(budget, policy, back_off=60.0, idle=idle)
    return engine(places, config=EngineConfig(slots=8), policy=PolicyConfig(shed=False), residency=residency)


@pytest.mark.parametrize("policy", ["late", "lru"])
async def test_models_take_turns_in_memory_that_holds_one_and_answer_as_always(wide: Path, policy: str) -> None:
    paths = [wide / name / "1" for name in ("one", "two")]
    whole = sum(piece.size for piece in open_model(paths[0], EngineConfig()).pieces)
    rows = np.random.default_rng(0).standard_normal((1, WIDTH)).astype(np.float32)

    async def asked(budget: int) -> list[bytes]:
        found = []
        async with limited(paths, budget, policy) as client:
            for name in ("one", "two", "one", "one"):
                answer = await client.infer(name, {"x": rows}, deadline=soon())
                found.append(next(iter(answer.outputs.values())).tobytes())
                lies = [mapped_bytes(client.process_id, path / WEIGHTS) for path in paths]
                assert sum(lies) <= budget
                asked_for, other = lies if name == "one" else lies[::-1]
                assert budget == 0 or policy == "late" or asked_for > other == 0
            if budget:
                memory = (await client.metrics()).get("memory")
                assert memory is not None
                evicted = [memory["models"][name]["evictions"] for name in ("one", "two")]
                assert min(evicted) >= 1 if policy == "late" else evicted == [1, 1]
        return found

    assert await asked(int(1.2 * whole)) == await asked(0)


async def test_a_model_that_nobody_asks_gives_its_memory_back_and_answers_again(wide: Path) -> None:
    path = wide / "one" / "1"
    rows = np.ones((1, WIDTH), np.float32)
    async with limited([path], 1 << 30, idle=0.05) as client:
        for _ in range(3):
            answer = await client.infer("one", {"x": rows}, deadline=soon())
            assert next(iter(answer.outputs.values())).shape == (1, WIDTH)
            given_up = soon()
            while (await client.metrics())["memory"]["models"]["one"]["resident_bytes"]:
                assert time.monotonic() < given_up
            assert mapped_bytes(client.process_id, path / WEIGHTS) == 0


async def test_a_model_that_memory_does_not_hold_as_a_whole_is_told_with_what_it_takes(
    wide: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = wide / "one" / "1"
    spec, config = open_model(path, EngineConfig()).model.spec, EngineConfig(slots=8)
    whole = sum(piece.size for piece in open_model(path, EngineConfig()).pieces)
    memory = file_bytes([spec], {spec.name: 8}) + int(0.9 * whole)
    by_worker, _, left = open_for_workers([path], config, ResidencyConfig(memory))
    budget = left.budget
    with caplog.at_level("INFO"):
        too_large = report_memory(by_worker[0], memory, budget)
    assert too_large == {"one": f"it takes {whole / 1e6:.1f} MB and models may take {budget / 1e6:.1f} MB of --memory"}
    assert f"models may take {budget / 1e6:.1f} of {memory / 1e6:.1f} MB" in caplog.text
    assert "one does not fit into memory as a whole" in caplog.text
    assert report_memory(by_worker[0], memory, whole) == {}
    async with engine([path], config=config, residency=ResidencyConfig(memory)) as client:
        rows = np.zeros((1, WIDTH), np.float32)
        with pytest.raises(Refused, match=r"loaded piece by piece: it takes [\d.]+ MB .* more --memory"):
            await client.infer("one", {"x": rows}, deadline=time.monotonic())
        await client.infer("one", {"x": rows}, deadline=soon())


async def test_a_client_hears_that_a_model_could_not_be_loaded(wide: Path, tmp_path: Path) -> None:
    shutil.copytree(wide / "one" / "1", tmp_path / "1")
    rows = np.zeros((1, WIDTH), np.float32)
    async with limited([tmp_path / "1"], 20 * MB) as client:
        os.truncate(tmp_path / "1" / WEIGHTS, 1000)
        for _ in range(2):
            with pytest.raises(Unavailable, match="could not be loaded into memory"):
                await client.infer("one", {"x": rows}, deadline=soon())
        memory = (await client.metrics()).get("memory")
        assert memory is not None
        assert memory["models"]["one"]["failures"] == 1
