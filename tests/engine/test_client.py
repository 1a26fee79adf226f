"""The engine in its own process, over real slots and messages, with real models."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import uvloop

from latebind.batching.policy import POLICIES
from latebind.domain.config import EngineConfig, PolicyConfig
from latebind.domain.errors import Expired, Failed, Refused, Unavailable
from latebind.domain.eventlog import read_log
from latebind.engine.client import EngineClient
from latebind.engine.order import EngineOrder
from latebind.repository.listing import find_models
from latebind.scheduler import Scheduler
from latebind.server.gateway import Answer
from tests.engine.started import Started, check_refused, started
from tests.forked import FORKS
from tests.networks import Chain, Words
from tests.sequences import backwards, some_sentences
from tests.sequences import rows_of as sentences_as_rows

Images = np.ndarray[Any, np.dtype[np.float32]]


@asynccontextmanager
async def engine(
    models: Path, *, engine: EngineConfig | None = None, policy: PolicyConfig | None = None, log: Path | None = None
) -> AsyncIterator[EngineClient]:
    paths = tuple(str(path) for path in find_models(models))
    order = EngineOrder(paths, engine or EngineConfig(), policy or PolicyConfig(), str(log) if log else None)
    client = await EngineClient.start(order, FORKS)
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture(scope="module")
def two_workers(models: Path) -> Iterator[Started]:
    """An engine of two workers, for tests that leave it as it was."""
    order = EngineOrder(tuple(map(str, find_models(models))), EngineConfig(workers=2), PolicyConfig())
    with started(order) as found:
        yield found


@pytest.fixture(scope="module", params=POLICIES)
def each_policy(request: pytest.FixtureRequest, models: Path) -> Iterator[Started]:
    """Engines of two workers by policy."""
    paths = tuple(map(str, find_models(models, ["chain", "backwards"])))
    with started(EngineOrder(paths, EngineConfig(workers=2), PolicyConfig(request.param, 4))) as found:
        yield found


def images(count: int, seed: int = 0) -> Images:
    return np.random.default_rng(seed).standard_normal((count, 3, 8, 8)).astype(np.float32)


def expected(rows: Images) -> Images:
    with torch.inference_mode():
        found: Images = Chain()(torch.from_numpy(rows)).numpy()
    return found


def soon() -> float:
    return time.monotonic() + 30


async def test_rows_come_back_as_the_module_would_answer_them(models: Path) -> None:
    async with engine(models, policy=PolicyConfig("graph", 8, window=0.05)) as client:
        assert client.ready("chain")
        assert not client.ready("stranger")
        for count in (1, 3, 7, 20):  # 20 is more than a batch
            rows = images(count)
            answer = await client.infer("chain", {"image": rows}, deadline=soon())
            np.testing.assert_allclose(answer.outputs["output"], expected(rows), rtol=1e-4, atol=1e-5)
            assert set(answer.left_at) == {client.models["chain"].stages - 1}
            assert answer.waited[-1] > 0.049  # for others to fill the batch
            assert 0.0 < answer.ran[-1] != answer.waited[-1]


async def test_everyone_of_many_at_once_gets_the_own_answer_whoever_runs_with_whom(each_policy: Started) -> None:
    client, sentences = each_policy.client, some_sentences(60, seed=2)

    async def ask_chain(number: int) -> None:
        rows = images(1 + number % 3, seed=number)
        await asyncio.sleep(0.001 * (number % 7))  # some come while others run
        answer = await client.infer("chain", {"image": rows}, deadline=soon())
        np.testing.assert_allclose(answer.outputs["output"], expected(rows), rtol=1e-4, atol=1e-5)

    async def ask_backwards(number: int) -> None:
        await asyncio.sleep(0.001 * (number % 20))
        answer = await client.infer("backwards", {"tokens": np.array([sentences[number]])}, deadline=soon())
        assert answer.outputs["tokens"].tolist() == [backwards(sentences[number])]
        assert answer.left_at == (1,)

    await asyncio.gather(*map(ask_chain, range(60)), *map(ask_backwards, range(60)))
    figures = (await client.metrics())["models"]
    assert figures["chain"]["requests"]["answered"] == sum(1 + number % 3 for number in range(60))
    assert figures["chain"]["pending"] == figures["backwards"]["pending"] == 0


async def test_a_call_of_several_sequences_has_answers_as_wide_as_the_longest(two_workers: Started) -> None:
    sentences = [[3, 4], [5], [6, 7, 8, 9, 10]]
    rows = {"tokens": sentences_as_rows(sentences, 5).numpy()}
    found = (await two_workers.client.infer("backwards", rows, deadline=soon())).outputs["tokens"]
    assert found.shape == (3, 6)
    assert [[word for word in row if word] for row in found.tolist()] == [backwards(words) for words in sentences]


async def test_who_asks_gets_the_own_answer_also_behind_somebody_who_gave_up(two_workers: Started) -> None:
    client = two_workers.client
    asking = asyncio.ensure_future(client.traces())
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the question is on its way
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert "chain" in (await client.metrics())["models"]


async def test_cancelled_calls_give_their_slots_back(models: Path) -> None:
    # The window holds every call in the queue until it is cancelled there.
    policy = PolicyConfig("graph", 8, window=20.0)
    async with engine(models, engine=EngineConfig(slots=4), policy=policy) as client:
        for _ in range(10):
            call = asyncio.create_task(client.infer("chain", {"image": images(3)}, deadline=soon()))
            while not (await client.metrics())["models"]["chain"]["pending"]:
                pass
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            while (await client.metrics())["models"]["chain"]["pending"]:
                pass
        assert (await client.metrics())["models"]["chain"]["requests"]["cancelled"] == 30


def test_who_tells_an_engine_something_that_has_just_gone_hears_that_it_has(models: Path) -> None:
    """The frontend's end of the stream may be closed before anybody is told of it (uvloop)."""

    async def test() -> None:
        async with engine(models) as client:
            claims = [await client.claim("chain", 1, deadline=soon()) for _ in range(4)]
            assert client._messages is not None
            client._messages.abort()
            calls = [asyncio.create_task(claim.send(deadline=soon())) for claim in claims]
            ends = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(end) for end in ends} == {Unavailable}

    uvloop.run(asyncio.wait_for(test(), 200))


async def test_one_bad_row_fails_alone_in_its_batch_and_the_log_of_it_replays(models: Path, tmp_path: Path) -> None:
    log, rows = tmp_path / "events.jsonl", [np.full((1, 3), 99 if number == 5 else number) for number in range(8)]
    async with engine(models, policy=PolicyConfig("graph", 8, window=20.0), log=log) as client:
        calls = [client.infer("words", {"word": row}, deadline=soon()) for row in rows]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        figures = (await client.metrics())["models"]["words"]
    assert [isinstance(end, Failed) for end in ends] == [number == 5 for number in range(8)]
    for row, end in zip(rows, ends, strict=True):
        if isinstance(end, Answer):
            expected = Words()(torch.from_numpy(row)).detach().numpy()
            np.testing.assert_allclose(end.outputs["output"], expected, rtol=1e-5)
    assert figures["stage_failures"] == 4  # of 8, 4, 2 and 1
    with log.open("rb") as file:
        config, entries = read_log(file)
        scheduler = Scheduler(config)
        for entry in entries:
            assert tuple(scheduler.handle(entry.event, entry.now)) == entry.actions


async def test_when_the_engine_dies_calls_are_answered_so_and_it_is_not_ready(models: Path) -> None:
    policy = PolicyConfig("graph", 8, window=20.0)
    async with engine(models, policy=policy) as client:
        call = asyncio.create_task(client.infer("chain", {"image": images(1)}, deadline=soon()))
        while not (await client.metrics())["models"]["chain"]["pending"]:
            pass
        client._process.kill()
        with pytest.raises(Unavailable):
            await call
        assert not client.live()
        assert not client.ready()
        with pytest.raises(Unavailable):
            await client.infer("chain", {"image": images(1)}, deadline=soon())


async def test_an_engine_that_dies_with_a_question_unread_is_told_of_as_one_that_ended(models: Path) -> None:
    async with engine(models) as client:
        os.kill(client.process_id, signal.SIGSTOP)
        asked = asyncio.create_task(client.metrics())
        await asyncio.sleep(0)  # it is sent
        os.kill(client.process_id, signal.SIGKILL)  # the system resets what has bytes that nobody read
        with pytest.raises(Unavailable):
            await asked


def test_a_model_that_cannot_be_loaded_is_told_at_the_start(tmp_path: Path) -> None:
    order = EngineOrder((str(tmp_path),), EngineConfig(), PolicyConfig())
    check_refused(order, r"manifest\.json is missing")


async def test_a_live_event_log_replays_to_the_identical_actions(models: Path, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    policy = PolicyConfig("graph", 4, window=0.002)
    async with engine(models, engine=EngineConfig(workers=2, slots=16), policy=policy, log=log) as client:

        async def one(i: int) -> None:
            allowed = 0.02 * (i % 4) if i else 30.0  # for one at least runs, however slow the machine is
            try:
                await client.infer("chain", {"image": images(1 + i % 5)}, deadline=time.monotonic() + allowed)
            except (Refused, Expired):
                await asyncio.sleep(0)

        for _ in range(4):
            await asyncio.gather(*(one(i) for i in range(20)))
    with log.open("rb") as file:
        config, entries = read_log(file)
        scheduler = Scheduler(config)
        kinds = set()
        for entry in entries:
            assert tuple(scheduler.handle(entry.event, entry.now)) == entry.actions
            kinds.add(type(entry.event).__name__)
    assert kinds >= {"Arrived", "StageDone"}


async def test_a_picture_tells_what_workers_have_begun(two_workers: Started) -> None:
    client = two_workers.client
    picture = await client.picture()
    assert [worker.batches for worker in picture.workers] == [(), ()]
    assert set(picture.models) == set(client.models)
    figures, picture = await asyncio.gather(client.metrics(), client.picture())
    assert set(figures["models"]) == set(picture.models)
