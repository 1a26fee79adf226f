"""The service in its own process beside a real engine: it hears answers, makes versions, and the engine takes them."""

import asyncio
import shutil
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from latebind.adaptation.client import AdaptationClient
from latebind.adaptation.controller import BUILT, FULL_DEPTH
from latebind.adaptation.messages import AdaptationOrder
from latebind.adaptation.process import main
from latebind.adaptation.versions import Versions, versions_folder
from latebind.domain.config import AdaptationConfig, EngineConfig, PolicyConfig
from latebind.domain.errors import ConfigError
from latebind.engine.client import EngineClient
from latebind.engine.order import EngineOrder
from latebind.learned.metadata import read_caches, with_caches
from latebind.learned.stored import HELD_OUT, read_rows
from latebind.program.load import load_program
from latebind.repository.directory import ModelDirectory
from latebind.repository.tensors import tensor_bytes
from latebind.server.gateway import Answer
from tests.adaptation.in_use import Noted, OfEngine
from tests.digits import Built
from tests.forked import FORKS

PATIENCE = 120.0  # with a machine that has much else to do
CONFIG = AdaptationConfig(on=True, sample=1.0, interval=3600.0, yields=False)


@pytest.fixture
def model(built: Built, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built.directory.path, tmp_path / "digits" / "1"))


@asynccontextmanager
async def serving(
    model: Path, *, log: Path | None = None, floor: float = 1.0
) -> AsyncIterator[tuple[EngineClient, AdaptationClient]]:
    engine_order = EngineOrder((str(model),), EngineConfig(floor=floor), PolicyConfig(), str(log) if log else None)
    engine = await EngineClient.start(engine_order, FORKS)
    order = AdaptationOrder((str(model),), CONFIG, threads=1, backend=None, cores=(), floor=floor)
    try:
        adaptation = await AdaptationClient.start(order, list(engine.models.values()), OfEngine(engine), FORKS)
        try:
            yield engine, adaptation
        finally:
            await adaptation.close()
    finally:
        await engine.close()


async def ask(engine: EngineClient, adaptation: AdaptationClient, images: torch.Tensor) -> list[int]:
    """Send rows one by one and show the answers; return the stages they left at."""
    left = []
    for row in torch.split(images, 1):
        rows = {"image": row.numpy()}
        answer = await engine.infer("digits", rows, deadline=time.monotonic() + 30)
        adaptation.answered(engine.models["digits"], {"image": list(rows["image"])}, answer)
        left.append(answer.left_at[0])
    return left


@asynccontextmanager
async def sharing(
    model: Path, engine: EngineClient, folder: Path
) -> AsyncIterator[tuple[AdaptationClient, AdaptationClient, list[str]]]:
    """Two services on one folder of versions; what the second wants its engine to use is noted."""
    config = msgspec.structs.replace(CONFIG, folder=str(folder))
    order = AdaptationOrder((str(model),), config, threads=1, backend=None, cores=())
    models, noted = list(engine.models.values()), Noted()
    async with AsyncExitStack() as stack:
        first = await AdaptationClient.start(order, models, OfEngine(engine), FORKS)
        stack.push_async_callback(first.close)
        await until(lambda: any(folder.glob("*/*/leader")))
        second = await AdaptationClient.start(order, models, noted, FORKS)
        stack.push_async_callback(second.close)
        await until(lambda: bool(noted.versions))
        yield first, second, noted.versions


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.05)


def test_a_version_is_made_for_the_traffic_and_the_engine_takes_it(built: Built, model: Path) -> None:
    async def test() -> None:
        there = Versions(versions_folder(model), ModelDirectory.open(model))
        async with serving(model) as (engine, adaptation):
            await ask(engine, adaptation, built.unseen[:120])
            await until(lambda: "digits" in adaptation.figures() and adaptation.figures()["digits"]["retrained"] >= 1)
            figures = adaptation.figures()["digits"]
            assert figures["sampled"] > 0
            assert figures["fidelity"] is None or figures["lower"] <= figures["fidelity"] <= figures["upper"]
            await until(lambda: adaptation.figures()["digits"]["version"] == there.current())

    asyncio.run(test())


def test_operators_choose_while_serving_and_without_the_service_it_goes_on(built: Built, model: Path) -> None:
    async def test() -> None:
        there = Versions(versions_folder(model), ModelDirectory.open(model))
        async with serving(model) as (engine, adaptation):
            assert min(await ask(engine, adaptation, built.unseen[:40])) == 0  # some leave before the network
            there.make_current(FULL_DEPTH, by_hand=True)
            await until(lambda: "digits" in adaptation.figures())
            await until(lambda: adaptation.figures()["digits"]["version"] == FULL_DEPTH)
            last = engine.models["digits"].stages - 1
            assert set(await ask(engine, adaptation, built.unseen[:40])) == {last}
            with pytest.raises(ConfigError, match="there is no version '000042'"):
                await engine.adopt("digits", "000042")
            assert "digits" in (await engine.metrics())["models"]
            adaptation._process.kill()
            await asyncio.to_thread(adaptation._process.ended, PATIENCE)
            assert set(await ask(engine, adaptation, built.unseen[:10])) == {last}

    asyncio.run(test())


def test_a_model_that_cannot_be_followed_keeps_what_was_built_and_the_others_are_followed(
    built: Built, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fixed = Path(shutil.copytree(model, tmp_path / "fixed" / "1"))
    directory = ModelDirectory.open(fixed)
    held_out = read_rows(directory, HELD_OUT)
    assert held_out is not None
    directory.write_files({HELD_OUT: tensor_bytes(replace(held_out, features={}).tensors())})
    program = load_program(ModelDirectory.open(model), threads=1)
    spec, _ = with_caches(program.spec, program.costs, read_caches(ModelDirectory.open(model)))

    async def test() -> None:
        order = AdaptationOrder((str(fixed), str(model)), CONFIG, threads=1, backend=None, cores=())
        models = [replace(spec, name="fixed"), spec]
        service = await AdaptationClient.start(order, models, Noted(), FORKS)
        rows = {"image": list(built.unseen[:1].numpy())}
        (output,) = program.run(built.unseen[:1])
        for name in ("fixed", "digits"):
            answer = Answer({"output": output.numpy()}, (spec.stages - 1,), caches=(0,), promised=(0.9,))
            service.answered(replace(spec, name=name), rows, answer)
        await until(lambda: any(figures["sampled"] for figures in service.figures().values()))
        assert set(service.figures()) == {"digits"}
        await service.close()

    asyncio.run(test())
    assert "fixed keeps the learned caches that it was built with" in caplog.text
    assert "too many features to adapt: 0-" in caplog.text


@pytest.mark.slow
def test_one_of_two_that_share_a_folder_retrains_and_the_other_follows_and_takes_over(
    built: Built, model: Path, tmp_path: Path
) -> None:
    async def test() -> None:
        shared = Versions(versions_folder(model, str(tmp_path / "shared")), ModelDirectory.open(model))
        order = EngineOrder((str(model),), EngineConfig(), PolicyConfig(), adapted=str(tmp_path / "shared"))
        engine = await EngineClient.start(order, FORKS)
        try:
            async with sharing(model, engine, tmp_path / "shared") as (first, second, wanted):
                await ask(engine, second, built.unseen[:120])  # a follower is shown as much, and retrains nothing
                await ask(engine, first, built.unseen[:120])
                await until(lambda: shared.names() != [])
                if shared.current() == BUILT:  # what was made is not better
                    shared.make_current(shared.names()[0])
                await until(lambda: wanted[-1] == shared.current() != BUILT)
                await until(lambda: "digits" in second.figures())
                assert second.figures()["digits"]["retrained"] == 0
                made = shared.names()
                first._process.kill()
                async with asyncio.timeout(PATIENCE):
                    while shared.names() <= made:  # traffic goes on; before it leads it teaches nothing
                        await ask(engine, second, built.unseen[:100])
                await until(lambda: second.figures()["digits"]["retrained"] > 0)
                await until(lambda: wanted[-1] == shared.current())
        finally:
            await engine.close()

    asyncio.run(test())


@pytest.fixture
def signals() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("sent", [b"", b"\x00\x00\x00\x40half of it"])
def test_a_service_whose_server_died_before_its_order_ends_in_silence(sent: bytes) -> None:
    theirs, ours = socket.socketpair()
    with ours:
        ours.sendall(sent)
        ours.shutdown(socket.SHUT_WR)
        main([str(theirs.detach())])
