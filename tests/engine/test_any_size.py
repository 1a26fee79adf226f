"""An engine whose requests differ in size: each is answered once and as the module answers it, in whatever company."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from latebind.batching.policy import POLICIES
from latebind.domain.config import EngineConfig, PolicyConfig, ResidencyConfig
from latebind.domain.errors import InvalidRequest
from latebind.domain.sizes import Dim, Size
from latebind.engine.client import EngineClient
from latebind.engine.engines import probe
from latebind.engine.order import EngineOrder
from latebind.engine.slots import KEPT
from latebind.program.build import build_program
from latebind.repository.listing import find_models
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


class Kind(NamedTuple):
    """A module, the sizes of its inputs, and whether its rows are padded."""

    module: nn.Module
    dims: tuple[Dim, ...]
    sizes: Mapping[str, tuple[Size, ...]]
    pads: bool

    def rows(self, number: int, dims: Mapping[str, int], random: np.random.Generator) -> dict[str, Tensor]:
        """Return drawn rows of these sizes."""
        found = {}
        for name, sizes in self.sizes.items():
            shape = number, *[dims[size] if isinstance(size, str) else size for size in sizes]
            drawn = random.standard_normal(shape) if len(sizes) > 1 else random.integers(1, 20, shape)
            found[name] = torch.from_numpy(drawn.astype(np.float32 if len(sizes) > 1 else np.int64))
        if "counts" in found:
            found["counts"] = torch.ones_like(found["counts"])
        return found


def kinds() -> dict[str, Kind]:
    torch.manual_seed(0)
    found = {
        "reader": Kind(Reader(), (L,), {"words": ("L",), "counts": ("L",)}, True),
        "tags": Kind(Tags(), (L,), {"words": ("L",)}, True),
        "mean": Kind(Mean(), (L,), {"words": ("L",)}, False),
        "pictures": Kind(Pictures(), (Dim("H", 2, 12, 2), Dim("W", 3, 9)), {"image": (2, "H", "W")}, False),
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
        )


@pytest.fixture(scope="session")
def any_size(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "any-size", build_all)


@pytest.fixture(scope="module", params=POLICIES)
def by_policy(request: pytest.FixtureRequest, any_size: Path) -> Iterator[Started]:
    paths = tuple(map(str, find_models(any_size)))
    config = EngineConfig(workers=2, slots=32)
    with started(EngineOrder(paths, config, PolicyConfig(request.param, 8, shed=False))) as found:
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
    for name, kind in traffic.kinds.items():
        assert client.models[name].pads is kind.pads
        assert models[name]["requests"]["answered"] >= traffic.answered[name] > 0
        assert models[name]["stage_failures"] == 0 or not kind.pads
    assert traffic.left > 0


async def test_trial_requests_are_of_the_least_and_the_largest_rows(by_policy: Started) -> None:
    await probe(by_policy.client, by_policy.client.models)


async def test_a_size_that_is_not_allowed_is_refused_with_the_range(by_policy: Started) -> None:
    with pytest.raises(InvalidRequest, match="for L: it must be 1 to 40"):
        await by_policy.client.claim("tags", 1, deadline=soon(), dims={"L": 41})


async def test_models_of_any_size_are_measured_loaded_and_served_within_a_budget(any_size: Path) -> None:
    residency = ResidencyConfig(200 << 20, "late", back_off=60.0)
    async with engine(any_size, config=EngineConfig(slots=16), residency=residency) as client:
        traffic = Traffic(client, seed=2)
        await traffic.calls(60)
        assert sum(traffic.answered.values()) > 60
