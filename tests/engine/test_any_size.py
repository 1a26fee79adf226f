"""An engine whose requests differ in size: each is answered once and as the module answers it, in whatever company."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from latebind.batching.policy import POLICIES
from latebind.bench.memory import Side
from latebind.bench.memory import measure as measure_memory
from latebind.cli.main import app
from latebind.domain.config import EngineConfig, PolicyConfig, ResidencyConfig
from latebind.domain.errors import InvalidRequest
from latebind.domain.eventlog import read_log
from latebind.domain.sizes import Dim, Size
from latebind.engine.client import EngineClient
from latebind.engine.engines import probe
from latebind.engine.on_demand import measure, open_model
from latebind.engine.order import EngineOrder
from latebind.engine.slots import KEPT
from latebind.program.build import build_program
from latebind.program.program import Program
from latebind.queries.scheduler import replayed
from latebind.repository.listing import find_served
from latebind.simulation.lengths import read_rows
from tests.building import made_once
from tests.engine.started import Started, engine, soon, started, until_slots_are_free
from tests.program.modules import Reader

CALLS, TOGETHER = 600, 48
L = Dim("L", 1, 40)


class Tags(nn.Module):
    """Each word by itself: two numbers of its own, and two for each letter that it might have."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 2)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Map `(B, L) int64` to `(B, L, 2)` and `(B, 2*L) float32`."""
        x = self.words(words)
        for layer in self.layers:
            x = torch.relu(layer(x))
        tags = self.head(x)
        return tags, tags.flatten(1)


class Mean(nn.Module):
    """Takes the mean over all words, whether padding or not."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.first, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.first(self.words(words))).mean(1))
        return out


class Pictures(nn.Module):
    """Convolutions, each of which sees beyond the edge."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 2, 3, padding=1)])

    def forward(self, image: Tensor) -> Tensor:
        """Map `(B, 2, H, W) float32` to the same."""
        for layer in self.layers:
            image = torch.relu(layer(image) + 0.1)
        return image


class Curve(nn.Module):
    """Smooths a row of numbers, and sees beyond its end."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv1d(1, 3, 5, padding=2), nn.Conv1d(3, 1, 5, padding=2)])

    def forward(self, line: Tensor) -> Tensor:
        """Map `(B, N) float32` to the same."""
        first, second = self.layers
        out: Tensor = second(torch.relu(first(line[:, None]))).flatten(1)
        return out


class Running(nn.Module):
    """Takes the mean of all numbers up to each; an export takes their number for fixed."""

    def forward(self, line: Tensor) -> Tensor:
        """Map `(B, N) float32` to the same."""
        return line.cumsum(1) / torch.arange(1, int(line.shape[1]) + 1)


CASCADE = """\
[nodes.tag]
models = ["tags"]

[nodes.smooth]
models = ["curve"]
inputs.line = "tag.flat"
when = "max(tag.flat) > 0.3"

[nodes.topic]
models = ["mean"]

[nodes.running]
models = ["running"]
inputs.line = "tag.flat"

[nodes.again]
models = ["curve"]
inputs.line = "running.output"

[outputs]
again = "again.output"
running = "running.output"
smooth = "smooth.output"
tags = "softmax(tag.tags)"
topic = "argmax(topic.output)"
"""

LOOK = """\
[dims]
H = "2..30"
W = "3..9"

[inputs.picture]
dtype = "float32"
shape = [2, "H", "W"]

[nodes.look]
models = ["pictures"]
inputs.image = "resize(picture, 4, 6)"

[outputs]
seen = "look.output"
picture = "picture"
"""


class Kind(NamedTuple):
    """A module and the sizes of its inputs."""

    module: nn.Module
    dims: tuple[Dim, ...]
    sizes: Mapping[str, tuple[Size, ...]]

    def rows(self, number: int, dims: Mapping[str, int], random: np.random.Generator) -> dict[str, Tensor]:
        """Return drawn rows of these sizes."""
        found = {}
        for name, sizes in self.sizes.items():
            shape = number, *[dims[size] if isinstance(size, str) else size for size in sizes]
            whole = name in ("words", "counts")
            drawn = random.integers(1, 20, shape) if whole else random.standard_normal(shape)
            found[name] = torch.from_numpy(drawn.astype(np.int64 if whole else np.float32))
        if "counts" in found:
            found["counts"] = torch.ones_like(found["counts"])
        return found


def kinds() -> dict[str, Kind]:
    torch.manual_seed(0)
    found = {
        "reader": Kind(Reader(), (L,), {"words": ("L",), "counts": ("L",)}),
        "tags": Kind(Tags(), (L,), {"words": ("L",)}),
        "mean": Kind(Mean(), (L,), {"words": ("L",)}),
        "curve": Kind(Curve(), (Dim("N", 1, 80),), {"line": ("N",)}),
        "running": Kind(Running(), (Dim("N", 1, 80),), {"line": ("N",)}),
        "pictures": Kind(Pictures(), (Dim("H", 2, 12, 2), Dim("W", 3, 9)), {"image": (2, "H", "W")}),
    }
    for kind in found.values():
        kind.module.eval()
    return found


def build_all(root: Path) -> None:
    torch.set_num_threads(1)
    for name, kind in kinds().items():
        build_program(
            kind.module,
            kind.rows(2, {dim.name: dim.near(7) for dim in kind.dims}, np.random.default_rng(0)),
            directory=root / name / "1",
            name=name,
            dims=kind.dims,
            sizes=kind.sizes,
            backends=["eager"],
            min_stage_seconds=0.0,
            max_overhead=None,
            max_batch=8,
            output_names=["tags", "flat"] if name == "tags" else ["output"],
        )
    (root / "cascade.query.toml").write_text(CASCADE)
    (root / "look.query.toml").write_text(LOOK)


@pytest.fixture(scope="session")
def any_size(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "any-size", build_all)


SERVED_BY = [*((policy, "cpu") for policy in POLICIES), pytest.param(("late", "cuda"), marks=pytest.mark.gpu)]


@pytest.fixture(scope="module", params=SERVED_BY, ids="-".join)
def by_policy(request: pytest.FixtureRequest, any_size: Path) -> Iterator[Started]:
    models, queries = (tuple(map(str, some)) for some in find_served(any_size, ()))
    policy, device = request.param
    config = EngineConfig(workers=2, slots=32, device=device)
    with started(EngineOrder(models, config, PolicyConfig(policy, 8, shed=False), queries=queries)) as found:
        yield found


class Traffic:
    """Calls of random sizes, some of whose clients leave."""

    def __init__(self, client: EngineClient, seed: int) -> None:
        self.client, self.kinds, self.random = client, kinds(), np.random.default_rng(seed)
        self.sent, self.answered, self.left = Counter[str](), Counter[str](), 0

    async def call(self, name: str, *, leaves: bool = False) -> None:
        kind = self.kinds[name]
        dims = {dim.name: dim.near(self.random.uniform(dim.least, dim.most)) for dim in kind.dims}
        rows = kind.rows(int(self.random.integers(1, 4)), dims, self.random)
        given = {name: tensor.numpy() for name, tensor in rows.items()}
        call = asyncio.ensure_future(self.client.infer(name, given, deadline=soon()))
        if leaves:
            await asyncio.wait({call}, timeout=self.random.uniform(0.0, 0.01))
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            self.left += 1
            return
        outputs = list((await call).outputs.values())
        with torch.inference_mode():
            wanted = kind.module(**rows)
        for found, one in zip(outputs, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            assert found.shape == one.shape
            np.testing.assert_allclose(found, one.numpy(), rtol=1e-4, atol=1e-5)
        self.answered[name] += len(next(iter(given.values())))

    async def calls(self, number: int) -> None:
        """Have so many calls, in all, by clients that each send the next one when they have their answer."""
        turns = iter(range(number))

        async def client() -> None:
            for _ in turns:
                name = list(self.kinds)[self.random.integers(len(self.kinds))]
                await self.call(name, leaves=self.random.random() < 0.1)

        await asyncio.gather(*[client() for _ in range(TOGETHER)])


async def test_each_of_many_mixed_requests_is_answered_once_and_right(by_policy: Started) -> None:
    client = by_policy.client
    traffic = Traffic(client, seed=1)
    await traffic.calls(CALLS)
    await until_slots_are_free(client)
    client.extents.check()
    assert client.extents.taken == 0
    assert client.extents.there <= KEPT
    models = (await client.metrics())["models"]
    assert client.models["tags"].pads
    assert client.models["mean"].one_size
    for name in traffic.kinds:
        assert models[name]["requests"]["answered"] >= traffic.answered[name] > 0
        assert models[name]["stage_failures"] == 0, "rows that may not run together did"
    assert traffic.left > 0


async def test_a_step_takes_what_another_gives_of_any_length(by_policy: Started) -> None:
    client, modules, random = by_policy.client, kinds(), np.random.default_rng(3)
    at_once = asyncio.Semaphore(TOGETHER)

    async def ask(length: int) -> bool:
        words = torch.from_numpy(random.integers(1, 20, (2, length)))
        async with at_once:
            outputs = (await client.infer("cascade", {"words": words.numpy()}, deadline=soon())).outputs
        with torch.inference_mode():
            tags, flat = modules["tags"].module(words)
            smooth, topic = modules["curve"].module(flat), modules["mean"].module(words).argmax(1)
            running = modules["running"].module(flat)
            again = modules["curve"].module(running)
        ran = flat.amax(1, keepdim=True) > 0.3
        wanted = {"smooth": torch.where(ran, smooth, 0.0), "tags": tags.softmax(2), "topic": topic}
        wanted |= {"running": running, "again": again}
        for name, one in wanted.items():
            assert outputs[name].shape == one.shape
            np.testing.assert_allclose(outputs[name], one.numpy(), rtol=1e-4, atol=1e-5)
        return bool(ran.any() and not ran.all())

    lengths = random.integers(1, 41, 150).tolist()
    assert any(await asyncio.gather(*map(ask, lengths))), "none was decided for each row by itself"


async def test_a_picture_of_any_size_is_made_one_that_a_step_takes(by_policy: Started) -> None:
    client, random = by_policy.client, np.random.default_rng(4)

    async def ask(height: int, width: int) -> None:
        picture = torch.from_numpy(random.standard_normal((2, 2, height, width)).astype(np.float32))
        outputs = (await client.infer("look", {"picture": picture.numpy()}, deadline=soon())).outputs
        with torch.inference_mode():
            resized = nn.functional.interpolate(picture, (4, 6), mode="bilinear", align_corners=False)
            seen = kinds()["pictures"].module(resized)
        np.testing.assert_allclose(outputs["seen"], seen.numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(outputs["picture"], picture.numpy())

    sizes = zip(random.integers(2, 31, 40).tolist(), random.integers(3, 10, 40).tolist(), strict=True)
    await asyncio.gather(*[ask(*size) for size in sizes])
    await until_slots_are_free(client)
    client.extents.check()
    assert client.extents.taken == 0


async def test_trial_requests_are_of_the_least_and_the_largest_rows(by_policy: Started) -> None:
    await probe(by_policy.client, by_policy.client.order)


async def test_a_size_that_is_not_allowed_is_refused_with_the_range(by_policy: Started) -> None:
    with pytest.raises(InvalidRequest, match="for L: it must be 1 to 40"):
        await by_policy.client.claim("tags", 1, deadline=soon(), dims={"L": 41})


async def test_the_log_of_rows_of_any_size_replays_and_tells_how_long_they_were(any_size: Path, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    async with engine(any_size, config=EngineConfig(workers=2, slots=32), log=log) as client:
        traffic = Traffic(client, seed=5)
        await traffic.calls(150)
        sizes, words = (9, 2, 9, 31), np.ones((2, 31), np.int64)
        await asyncio.gather(
            *[client.infer("tags", {"words": words[:, :length]}, deadline=soon()) for length in sizes],
            client.infer("cascade", {"words": words[:, :5]}, deadline=soon()),
        )
    with log.open("rb") as file:
        events, actions, differs = replayed(*read_log(file))
    assert not differs
    assert min(events, actions) > 300
    found = Counter(read_rows(str(log), kinds()["tags"].dims, "tags"))
    for length in sizes:
        assert any(long == length for long, _ in found)
    assert len({key for _, key in found}) == len(found), "equal sizes have one number"
    runner = CliRunner().invoke(
        app, ["simulate", str(any_size), "--model", "pictures", "--lengths", str(log), "--requests", "300"]
    )
    assert (runner.exit_code, "half up to" in runner.output) == (0, True), runner.output


async def test_models_of_any_size_are_measured_loaded_and_served_within_a_budget(any_size: Path) -> None:
    residency = ResidencyConfig(200 << 20, "late", back_off=60.0)
    async with engine(any_size, config=EngineConfig(slots=16), residency=residency) as client:
        traffic = Traffic(client, seed=2)
        await traffic.calls(60)
        assert sum(traffic.answered.values()) > 60


def test_costs_of_another_machine_are_measured_anew_over_lengths_piece_by_piece(any_size: Path) -> None:
    opened = open_model(any_size / "pictures" / "1", EngineConfig())
    assert isinstance(opened.model.program, Program)
    elsewhere = replace(opened.model, program=replace(opened.model.program, costs_fit=False))
    found = measure(replace(opened, model=elsewhere), 200 << 20)
    for grid in found.costs.stages:
        assert (grid.lengths[0], grid.lengths[-1]) == (2 * 3, 12 * 9)
        assert {curve.batches for curve in grid.curves} == {(1, 2, 4, 8)}
    assert found.footprint.row == max(4, 2) * 12 * 9 * 4, "a row between stages is of the largest size"


def test_workers_can_be_weighed_with_the_largest_rows(any_size: Path) -> None:
    idle, used = measure_memory(Side(str(any_size / "tags" / "1"), EngineConfig(granularities=(1, 4))))
    assert 0 < idle.whole <= used.whole * 1.2
