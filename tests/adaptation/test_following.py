"""Another service is started when the models that are followed are others, and only then."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from latebind.adaptation.client import Followed, Following
from latebind.adaptation.messages import AdaptationOrder
from latebind.domain.config import AdaptationConfig
from latebind.domain.errors import ConfigError
from latebind.forks.client import Forked
from latebind.learned.metadata import read_caches, with_caches
from latebind.program.load import load_program
from latebind.repository.directory import ModelDirectory
from tests.adaptation.in_use import Noted
from tests.digits import Built
from tests.forked import FORKS

CONFIG = AdaptationConfig(on=True, sample=1.0, interval=3600.0, yields=False)


def followed(model: Path, *, made: int) -> Followed:
    directory = ModelDirectory.open(model)
    program = load_program(directory, threads=1)
    spec, _ = with_caches(program.spec, program.costs, read_caches(directory))
    order = AdaptationOrder((str(model),), CONFIG, threads=1, backend=None, cores=())
    return Followed(order, (spec,), ((str(model), made, 0),))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120.0):
        while not condition():
            await asyncio.sleep(0.01)


def another(following: Following, service: object) -> bool:
    """Return whether another service than this has figures."""
    return following._client is not service and "digits" in following.figures()


def test_where_no_model_can_be_followed_serving_begins_without_and_the_reason_is_told(
    models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    order = AdaptationOrder((str(models / "chain" / "1"),), CONFIG, threads=1, backend=None, cores=())

    async def test() -> None:
        following = Following(lambda: Followed(order, (), ()), Noted(), FORKS)
        await following.begin(60.0)
        assert following.figures() == {}
        await following.close()

    asyncio.run(test())
    assert "nothing to adapt: chain has no learned caches in use" in caplog.text


def test_another_service_is_started_when_a_model_is_another(built: Built) -> None:
    first, exchanged = (followed(built.directory.path, made=made) for made in (1, 2))

    async def test() -> None:
        there: list[Followed | None] = [first]
        following = Following(lambda: there[0], Noted(), FORKS)
        await following.begin(120.0)
        await until(lambda: "digits" in following.figures())
        service = following._client
        following.look()
        await asyncio.sleep(0)
        assert following._client is service  # nothing has changed
        there[0] = None
        following.look()
        assert following.figures() == {}  # nothing is told to a service that knows another model
        await asyncio.to_thread(service._process.ended, 120.0) if service else None
        there[0] = exchanged
        following.look()
        await until(lambda: "digits" in following.figures())
        await following.close()

    asyncio.run(test())


def test_another_service_follows_one_that_has_died(
    built: Built, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("latebind.adaptation.client.PAUSE", 0.0)

    async def test() -> None:
        following = Following(lambda: followed(built.directory.path, made=1), Noted(), FORKS)
        await following.begin(120.0)
        for _ in range(2):
            service = following._client
            assert service is not None
            service._process.kill()
            await until(partial(another, following, service))
        await following.close()
        assert caplog.text.count("has died") == 2  # one that is told to end has not

    asyncio.run(test())


def test_a_service_that_cannot_be_started_is_tried_again(
    built: Built, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("latebind.adaptation.client.PAUSE", 0.0)
    forked, refusals = FORKS.forked, list[Exception]()

    async def fork(*words: Any, **more: Any) -> Forked:
        if refusals:
            raise refusals.pop()
        return await forked(*words, **more)

    async def test() -> None:
        following = Following(lambda: followed(built.directory.path, made=1), Noted(), FORKS)
        await following.begin(120.0)
        service = following._client
        assert service is not None
        refusals.extend((OSError("too many open files"), ConfigError("no room")))
        service._process.kill()
        await until(partial(another, following, service))
        await following.close()

    monkeypatch.setattr(FORKS, "forked", fork)
    asyncio.run(test())
    assert caplog.text.count("can be started yet") == 2
