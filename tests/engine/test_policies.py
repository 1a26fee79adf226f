"""Every policy in a real engine with two workers: whoever runs with whom, each call gets its own answer."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latebind.domain.config import EngineConfig, PolicyConfig
from latebind.engine.order import EngineOrder
from latebind.repository.listing import find_models
from research.policies import BATCHING
from tests.engine.started import Started, started
from tests.networks import Chain
from tests.sequences import backwards, some_sentences

Images = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture(scope="module", params=list(BATCHING.values()), ids=list(BATCHING))
def engine(request: pytest.FixtureRequest, models: Path) -> Iterator[Started]:
    paths = tuple(map(str, find_models(models, ["chain", "backwards"])))
    with started(EngineOrder(paths, EngineConfig(workers=2), PolicyConfig(request.param, 4))) as found:
        yield found


def soon() -> float:
    return time.monotonic() + 30


def images(count: int, seed: int) -> Images:
    return np.random.default_rng(seed).standard_normal((count, 3, 8, 8)).astype(np.float32)


def expected(rows: Images) -> Images:
    with torch.inference_mode():
        found: Images = Chain()(torch.from_numpy(rows)).numpy()
    return found


def test_each_row_is_answered_as_the_module_would(engine: Started) -> None:
    async def test() -> None:
        sent = [images(1 + number % 3, seed=number) for number in range(24)]
        calls = []
        for rows in sent:
            calls.append(asyncio.create_task(engine.client.infer("chain", {"image": rows}, deadline=soon())))
            await asyncio.sleep(0.0005 * (len(calls) % 3))  # some come while others run
        for rows, answer in zip(sent, await asyncio.gather(*calls), strict=True):
            (found,) = answer.outputs.values()
            np.testing.assert_allclose(found, expected(rows), rtol=1e-4, atol=1e-5)

    engine.run(test())


def test_every_sentence_is_answered_as_if_it_were_alone(engine: Started) -> None:
    sentences = some_sentences(60, seed=2)

    async def ask(number: int) -> None:
        words = sentences[number]
        await asyncio.sleep(0.001 * (number % 20))
        answer = await engine.client.infer("backwards", {"tokens": np.array([words])}, deadline=soon())
        assert answer.outputs["tokens"].tolist() == [backwards(words)]
        assert answer.left_at == (1,)

    async def test() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(len(sentences)):
                group.create_task(ask(number))

    engine.run(test())
