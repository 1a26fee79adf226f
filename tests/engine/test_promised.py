"""What a network in fewer bits was shown to keep is told with each of its answers, by itself and in a query."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from latebind.cli.main import app
from latebind.domain.config import EngineConfig, ResidencyConfig
from latebind.domain.costs import Curve
from latebind.domain.model import Promised
from latebind.engine.loaded import load_model
from latebind.learned.metadata import LIST, NEARNESS, ROUNDING, Nearness, StoredCaches, StoredLookup
from latebind.program.backends import exact_backends
from latebind.program.build import build_program
from latebind.program.openvino import multiplies_bytes
from latebind.repository.directory import ModelDirectory, json_bytes
from latebind.server.frontend import Frontend
from tests.learned.test_vectors import INT8, Encoder
from tests.server.real import json_body, read_reply, real_frontend, written

pytestmark = [
    pytest.mark.skipif("openvino" not in exact_backends(), reason="OpenVINO is not installed"),
    pytest.mark.skipif(not multiplies_bytes(), reason="this processor does not multiply bytes"),
]

NEAR = Nearness(0.99, 0.97, 1.0, 0.998, 0.95, 2000, 400, 0.999, 0.99, 0.98, 1e-3, 2e-3, ROUNDING)
QUERY = '[nodes.embed]\nmodels = ["m"]\n\n[outputs]\nvector = "embed.output"\n'
ROWS = np.random.default_rng(0).standard_normal((2, 64), np.float32)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> ModelDirectory:
    """An embedding in eight bits, of which nothing was shown."""
    return build_program(
        Encoder().eval(),
        {"x": torch.from_numpy(ROWS)},
        directory=tmp_path_factory.mktemp("plain") / "1",
        name="m",
        backends=[INT8],
        tolerance=0.5,
        max_batch=4,
        min_stage_seconds=0.0,
        max_overhead=None,
    ).directory


@pytest.fixture(scope="module")
def near(plain: ModelDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the embedding, which was shown to stay near, and a query that asks it."""
    folder = tmp_path_factory.mktemp("near")
    copied(plain, folder / "m" / "1", {NEARNESS: json_bytes(NEAR)})
    (folder / "asks.query.toml").write_text(QUERY)
    return folder


def copied(directory: ModelDirectory, path: Path, more: dict[str, bytes]) -> ModelDirectory:
    return ModelDirectory.create(path, {name: directory.read(name) for name in directory.files} | more)


def listed(directory: Path) -> str:
    """Return what `latebind models` says of a model's fidelity."""
    figures = directory.with_suffix(".json")
    ran = CliRunner().invoke(app, ["models", str(directory), "--json", str(figures)])
    assert ran.exit_code == 0, ran.output
    return str(json.loads(figures.read_text())["models"][0]["fidelity"])


async def parameters(frontend: Frontend, name: str, rows: int) -> dict[str, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", frontend.port)
    writer.write(b"".join(written(name, [json_body({"x": ROWS[:rows]})], None, chunked=False)))
    reply = await read_reply(reader)
    writer.close()
    assert reply.status == 200, reply.data
    found: dict[str, Any] = json.loads(reply.data)["parameters"]
    return found


@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_each_reply_and_the_figures_say_what_was_promised(near: Path, memory: int) -> None:
    async def test() -> None:
        async with real_frontend(near, residency=ResidencyConfig(budget=memory)) as (client, frontend):
            one, two = [await parameters(frontend, "m", rows) for rows in (1, 2)]
            assert (one["fidelity"], one["cosine"]) == (0.97, 0.99)
            assert (two["fidelity"], two["cosine"]) == ([0.97, 0.97], 0.99)
            step = await parameters(frontend, "asks", 1)
            assert (step["embed.fidelity"], step["embed.cosine"]) == (0.97, 0.99)
            assert (await client.metrics())["models"]["m"]["promised"] == {"0.97": 4}

    asyncio.run(test())


def test_a_network_of_which_nothing_was_shown_promises_nothing(plain: ModelDirectory, tmp_path: Path) -> None:
    copied(plain, tmp_path / "m" / "1", {})

    async def test() -> None:
        async with real_frontend(tmp_path) as (client, frontend):
            assert not {"fidelity", "cosine"} & (await parameters(frontend, "m", 1)).keys()
            assert (await client.metrics())["models"]["m"]["promised"] == {}

    asyncio.run(test())


def test_a_promise_is_of_the_backend_that_it_was_shown_for(near: Path) -> None:
    assert load_model(near / "m" / "1", EngineConfig()).spec.promised == Promised(0.97, 0.99)
    assert load_model(near / "m" / "1", EngineConfig(backend="openvino-bf16")).spec.promised is None
    assert load_model(near / "m" / "1", EngineConfig(backend="eager")).spec.promised is None


def test_classes_are_promised_what_was_asked_for_and_shown(plain: ModelDirectory, tmp_path: Path) -> None:
    def promised(number: int, caches: StoredCaches, *, exits: bool = True) -> Promised | None:
        directory = copied(plain, tmp_path / str(number), {LIST: json_bytes(caches)})
        return load_model(directory.path, EngineConfig(exits=exits)).spec.promised

    assert promised(1, StoredCaches(4, 0.95, 0.95, 0.98, 0.96, 400, ())) == Promised(0.95)
    assert promised(2, StoredCaches(4, 0.95, 0.95, 1.0, 1.0, 400, ())) is None  # it was not shown
    assert [listed(tmp_path / number) for number in "12"] == ["at least 0.960", ""]
    lookup = StoredLookup(0, "plain", 10, Curve((1,), (1e-4,)), threshold=1.0, hit_rate=0.5, fidelity=0.97)
    learned = StoredCaches(4, 0.95, 0.95, 0.98, 0.96, 400, (lookup,), whole=0.985)
    assert promised(3, learned, exits=False) == Promised(0.985)
