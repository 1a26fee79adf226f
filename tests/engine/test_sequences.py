"""Sequence models over the engine's process: rows of any length in, rows trimmed to the longest answer out."""

import asyncio
import time
from pathlib import Path

import numpy as np
import pytest

from latebind.batching import POLICIES
from latebind.domain.config import EngineConfig, PolicyConfig
from latebind.engine.client import EngineClient
from latebind.engine.order import EngineOrder
from latebind.repository.listing import find_models
from tests.sequences import backwards, rows_of, some_sentences


def order(models: Path, policy: PolicyConfig, workers: int = 1) -> EngineOrder:
    (path,) = find_models(models, ["backwards"])
    return EngineOrder((str(path),), EngineConfig(workers=workers), policy)


@pytest.mark.parametrize(("policy", "workers"), [*((policy, 2) for policy in POLICIES), ("lazy+", 1)])
def test_every_policy_answers_every_sentence_as_if_it_were_alone(models: Path, policy: str, workers: int) -> None:
    sentences = some_sentences(60, seed=2)

    async def ask(client: EngineClient, number: int) -> None:
        words = sentences[number]
        await asyncio.sleep(0.001 * (number % 20))
        answer = await client.infer("backwards", {"tokens": np.array([words])}, deadline=time.monotonic() + 30)
        assert answer.outputs["tokens"].tolist() == [backwards(words)]
        assert answer.left_at == (1,)

    async def test() -> None:
        client = await EngineClient.start(order(models, PolicyConfig(policy), workers))
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(len(sentences)):
                    group.create_task(ask(client, number))
        finally:
            await client.close()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_call_of_several_rows_has_answers_as_wide_as_the_longest(models: Path) -> None:
    sentences = [[3, 4], [5], [6, 7, 8, 9, 10]]

    async def test() -> None:
        client = await EngineClient.start(order(models, PolicyConfig("lazy+")))
        try:
            rows = {"tokens": rows_of(sentences, 5).numpy()}
            answer = await client.infer("backwards", rows, deadline=time.monotonic() + 30)
            found = answer.outputs["tokens"]
            assert found.shape == (3, 6)
            assert [[word for word in row if word] for row in found.tolist()] == [
                backwards(words) for words in sentences
            ]
        finally:
            await client.close()

    asyncio.run(asyncio.wait_for(test(), 60))
