"""The engine in its own process, over real slots and messages, with real models."""

import asyncio
import os
import shutil
import signal
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import uvloop

from latebind.batching.policy import POLICIES
from latebind.domain.config import EngineConfig, PolicyConfig
from latebind.domain.errors import Failed, RepositoryError, Unavailable
from latebind.domain.eventlog import read_log
from latebind.engine.loaded import load_for_workers
from latebind.engine.order import EngineOrder, with_queries
from latebind.repository.listing import find_models
from latebind.scheduler import Scheduler
from latebind.server.gateway import Answer
from tests.digits import Built
from tests.engine.started import Started, check_refused, engine, soon, started
from tests.networks import Chain, Words
from tests.sequences import backwards, some_sentences
from tests.sequences import rows_of as sentences_as_rows

Images = np.ndarray[Any, np.dtype[np.float32]]


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
            wanted = Words()(torch.from_numpy(row)).detach().numpy()
            np.testing.assert_allclose(end.outputs["output"], wanted, rtol=1e-5)
    assert figures["stage_failures"] == 4  # of 8, 4, 2 and 1
    with log.open("rb") as file:
        config, entries = read_log(file)
        scheduler = Scheduler(config)
        for entry in entries:
            assert tuple(scheduler.handle(entry.event, entry.now)) == entry.actions


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


async def test_learned_caches_of_all_workers_answer_alike_and_what_the_engine_adopts_reaches_all(
    built: Built,
) -> None:
    async with engine(built.directory.path, config=EngineConfig(granularities=(1, 2, 4))) as client:
        rows = built.unseen[:60].numpy()

        def ask(number: int) -> Coroutine[Any, Any, Answer]:
            return client.infer("digits", {"image": rows[number : number + 1]}, deadline=soon())

        together = await asyncio.gather(*map(ask, range(60)))
        alone = [await ask(number) for number in range(60)]
        last, exits = client.models["digits"].stages - 1, 0
        for one, other in zip(together, alone, strict=True):
            if one.left_at == other.left_at:  # a lookup may just hit, or just not, in another batch
                exits += one.left_at[0] < last
                (found,), (expected,) = one.outputs.values(), other.outputs.values()
                np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
        assert exits > 10
        await client.adopt("digits", "none")
        assert {answer.left_at for answer in await asyncio.gather(*map(ask, range(60)))} == {(last,)}


async def test_workers_of_several_granularities_answer_every_call_and_no_more_run_than_have_cores(
    models: Path, tmp_path: Path
) -> None:
    config, log = EngineConfig(granularities=(1, 1, 2, 4, 8)), tmp_path / "events.jsonl"
    sent = [images(1 + number % 6, number) for number in range(30)]
    async with engine(models, "chain", config=config, log=log) as client:
        calls = [client.infer("chain", {"image": rows}, deadline=soon()) for rows in sent]
        for rows, answer in zip(sent, await asyncio.gather(*calls), strict=True):
            np.testing.assert_allclose(answer.outputs["output"], expected(rows), rtol=1e-4, atol=1e-5)
    with log.open("rb") as file:
        scheduled, _ = read_log(file)
    assert (scheduled.workers, scheduled.granularities) == (5, config.granularities)
    assert scheduled.at_once == min(5, len(os.sched_getaffinity(0)))


def test_two_folders_that_hold_models_of_one_name_are_told(models: Path, tmp_path: Path) -> None:
    (path,) = find_models(models, ["backwards"])
    shutil.copytree(path, tmp_path / "copy" / "1")
    by_worker = load_for_workers([path, tmp_path / "copy" / "1"], EngineConfig(workers=1))
    with pytest.raises(RepositoryError, match=r"copy/1 both hold a model named 'backwards': build one"):
        with_queries(by_worker[0], [], 4)
