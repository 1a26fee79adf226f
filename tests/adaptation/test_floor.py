"""A watch over the levels of an operating curve beside a real engine: it closes one that errs, and opens it again."""

import asyncio
import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor

from latebind.adaptation.adapter import Adapter
from latebind.adaptation.client import AdaptationClient
from latebind.adaptation.controller import BUILT, FULL_DEPTH, Version, number_of
from latebind.adaptation.messages import Answered, Draw
from latebind.adaptation.versions import Leadership, Versions, versions_folder
from latebind.domain.config import AdaptationConfig, EngineConfig, PolicyConfig
from latebind.domain.errors import ConfigError, Expired, Refused, Unavailable
from latebind.domain.eventlog import read_log
from latebind.engine.client import EngineClient
from latebind.engine.loaded import load_model
from latebind.engine.order import EngineOrder
from latebind.learned.metadata import LIST
from latebind.queries.scheduler import replayed
from latebind.repository.directory import ModelDirectory
from tests.adaptation.test_service import serving, until
from tests.digits import Built
from tests.forked import FORKS

TARGET, FLOOR = 0.9, 0.85
AT_TARGET = f"{BUILT}@{TARGET:g}"
ENGINE = EngineConfig(floor=FLOOR)
CONFIG = AdaptationConfig(on=True, sample=1.0, interval=3600.0, yields=False)


@pytest.fixture(scope="module")
def curve(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits with a curve of two levels that are made up: at the target nobody leaves, at the floor everybody."""
    files = {name: built.directory.read(name) for name in built.directory.files}
    caches = json.loads(files[LIST])
    stages = {str(one["stage"]): 0.0 for one in caches["lookups"]}
    (first, *_) = caches["lookups"]
    name = f"{first['stage']}-{first['kind']}"
    caches["levels"] = [
        {"target": TARGET, "fidelity": 1.0, "lower": 0.9, "thresholds": {name: 1e3}, "hit_rates": stages}
        | {"seconds": 1e-3},
        {"target": FLOOR, "fidelity": 0.9, "lower": 0.85, "thresholds": {name: -1e3}, "seconds": 5e-4}
        | {"hit_rates": stages | {str(first["stage"]): 1.0}},
    ]
    folder = tmp_path_factory.mktemp("curve") / "digits" / "1"
    return ModelDirectory.create(folder, files | {LIST: json.dumps(caches).encode()}).path


@pytest.fixture
def model(curve: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(curve, tmp_path / "digits" / "1"))


def hard_and_easy(model: Path, built: Built) -> tuple[Tensor, Tensor]:
    """Images that the lookup takes for something else than the network does, and others."""
    loaded = load_model(model, ENGINE)
    images = torch.cat([built.unseen, torch.rand(1_000, 1, 8, 8, generator=torch.Generator().manual_seed(0))])
    stage, lookup = next(iter(loaded.lookups.items()))
    right = []
    with torch.inference_mode():
        for rows in torch.split(images, 4):
            (whole,) = loaded.program.run(rows)
            everybody = [loaded.promises.thresholds[2]] * len(rows)
            answers, _ = lookup(loaded.program.run_through(stage, rows), (), everybody)
            right.append(torch.from_numpy(answers).argmax(dim=1) == whole.argmax(dim=1))
    alike = torch.cat(right)
    return images[~alike], images[alike]


@pytest.fixture
def led(model: Path) -> Iterator[Leadership]:
    """Somebody else leads, so a service here makes no versions."""
    lead = Leadership(versions_folder(model))
    assert lead.held()
    yield lead
    lead.release()


async def ask(engine: EngineClient, adaptation: AdaptationClient, images: Tensor) -> None:
    """Send rows one by one and show the answers."""
    for row in torch.split(images, 1):
        rows = {"image": row.numpy()}
        answer = await engine.infer("digits", rows, deadline=time.monotonic() + 30)
        adaptation.answered(engine.models["digits"], {"image": list(rows["image"])}, answer)


async def crowd(engine: EngineClient, images: Tensor) -> Counter[float]:
    """Send rows at once, with little time for each; return what was promised, and how many of these left early."""
    found = Counter[float]()

    async def one(row: Tensor) -> None:
        with suppress(Refused, Expired, Unavailable):
            answer = await engine.infer("digits", {"image": row[None].numpy()}, deadline=time.monotonic() + 0.25)
            found[answer.promised[0]] += answer.left_at[0] + 1 < engine.models["digits"].stages

    await asyncio.gather(*map(one, images))
    return found


@pytest.mark.usefixtures("led")
def test_a_level_that_errs_is_closed_and_opened_once_it_is_shown(built: Built, model: Path) -> None:
    hard, easy = hard_and_easy(model, built)
    assert len(hard) > 15

    async def test() -> None:
        async with serving(model, floor=FLOOR) as (engine, adaptation):
            assert FLOOR in await crowd(engine, easy[:250])
            await ask(engine, adaptation, hard.repeat(8, 1, 1, 1)[:120])
            await until(lambda: engine.caches["digits"].version == AT_TARGET)
            assert set(await crowd(engine, easy[:250])) <= {1.0, TARGET}
            await until(lambda: "digits" in adaptation.figures())
            figures = adaptation.figures()["digits"]
            at_target, at_floor = figures["levels"]
            assert (at_target["promised"], at_target["used"], at_target["alarms"]) == (TARGET, True, 0)
            assert (at_floor["promised"], at_floor["used"], at_floor["alarms"]) == (FLOOR, False, 1)
            assert figures["target"] == TARGET
            await ask(engine, adaptation, easy.repeat(2, 1, 1, 1)[:600])
            await until(lambda: engine.caches["digits"].version == BUILT)
            assert FLOOR in await crowd(engine, easy[:250])

    asyncio.run(test())


def test_a_version_that_is_made_while_serving_keeps_the_levels_and_a_restart_finds_it_with_them(
    built: Built, model: Path, tmp_path: Path
) -> None:
    log, there = tmp_path / "events", Versions(versions_folder(model), ModelDirectory.open(model))
    made = ""

    async def test() -> None:
        nonlocal made
        async with serving(model, floor=FLOOR, log=log) as (engine, adaptation):
            await ask(engine, adaptation, built.unseen[:120])
            await until(lambda: engine.caches["digits"].version not in {BUILT, FULL_DEPTH})
            made = engine.caches["digits"].version
            assert set(there.levels(made, TARGET)) == {TARGET, FLOOR}
            assert FLOOR in await crowd(engine, built.unseen[:250])
            await until(lambda: adaptation.figures()["digits"]["retrained"] > 0)
            assert [level["used"] for level in adaptation.figures()["digits"]["levels"]] == [True, True]
        with log.open("rb") as file:
            assert replayed(*read_log(file))[2] == ""
        async with serving(model, floor=FLOOR) as (engine, adaptation):
            assert engine.caches["digits"].version == made
            assert FLOOR in await crowd(engine, built.unseen[:250])
            rows = {"image": built.unseen[:1].numpy()}
            answer = await engine.infer("digits", rows, deadline=time.monotonic() + 30)
            assert answer.caches == (number_of(made),)

    asyncio.run(test())


@pytest.mark.usefixtures("led")
def test_a_version_without_levels_is_used_down_to_the_target(built: Built, model: Path, tmp_path: Path) -> None:
    loaded = load_model(model, ENGINE)
    (lookup,) = loaded.promises.thresholds[2]
    there = Versions(versions_folder(model), ModelDirectory.open(model))
    config = AdaptationConfig(on=True, folder=str(tmp_path / "versions"))
    heads = Adapter(ModelDirectory.open(model), config, threads=1, backend=None).built_lookups()
    # thresholds that let everybody leave, and those of the target let nobody
    version = Version(thresholds={lookup: -1e3}, wrong=(0.0,) * 10, seconds=(1e-3,) * 10, lower=0.9)
    name = there.publish(version, {lookup: heads[lookup][0]}).name
    there.make_current(name)

    async def test() -> None:
        async with serving(model, floor=FLOOR) as (engine, adaptation):
            assert engine.caches["digits"].version == name
            promised = await crowd(engine, built.unseen[:250])
            assert TARGET in promised
            assert FLOOR not in promised
            assert promised[TARGET] > 0, "by the version's thresholds, not by those of the curve"
            assert promised[1.0] == 0
            await ask(engine, adaptation, built.unseen[:20])
            await until(lambda: "digits" in adaptation.figures())
            used = [level["used"] for level in adaptation.figures()["digits"]["levels"]]
            assert (used, engine.caches["digits"].version) == ([True, False], name)

    asyncio.run(test())


def test_an_operator_stops_all_levels(built: Built, model: Path) -> None:
    async def test() -> None:
        there = Versions(versions_folder(model), ModelDirectory.open(model))
        async with serving(model, floor=FLOOR) as (engine, adaptation):
            await ask(engine, adaptation, built.unseen[:20])
            there.make_current(FULL_DEPTH, by_hand=True)
            await until(lambda: engine.caches["digits"].version == FULL_DEPTH)
            assert dict(await crowd(engine, built.unseen[:250])) == {1.0: 0}
            with pytest.raises(ConfigError, match=r"there is no version '000009'"):
                await engine.adopt("digits", "000009")

    asyncio.run(test())


def test_without_a_floor_a_least_fidelity_that_was_not_calibrated_for_stops_exits(model: Path, built: Built) -> None:
    async def test() -> None:
        engine = await EngineClient.start(EngineOrder((str(model),), EngineConfig(), PolicyConfig()), FORKS)
        try:
            rows = {"image": built.unseen[:100].numpy()}
            left = []
            for version in (BUILT, f"{BUILT}@0.8", f"{BUILT}@0.99"):
                await engine.adopt("digits", version)
                answers = [
                    await engine.infer("digits", {"image": row[None]}, deadline=time.monotonic() + 30)
                    for row in rows["image"]
                ]
                left.append([answer.left_at[0] for answer in answers])
            assert left[0] == left[1]
            assert set(left[2]) == {engine.models["digits"].stages - 1} != set(left[0])
        finally:
            await engine.close()

    asyncio.run(test())


def test_a_floor_needs_a_policy_that_chooses_levels(model: Path) -> None:
    order = EngineOrder((str(model),), ENGINE, PolicyConfig("lazy+"))
    with pytest.raises(ConfigError, match=r"lazy\+ chooses no levels: take late"):
        asyncio.run(EngineClient.start(order, FORKS))


def test_a_level_is_watched_while_nobody_runs_at_it(built: Built, model: Path, tmp_path: Path) -> None:
    hard = hard_and_easy(model, built)[0][:40]
    config = AdaptationConfig(on=True, folder=str(tmp_path / "versions"))
    found = Adapter(ModelDirectory.open(model), config, threads=1, backend=None, floor=FLOOR)
    (whole,) = found._program.run(hard)
    for row, answers in zip(hard, whole, strict=True):  # each by the whole network, which is always right
        told = Answered(0, int(answers.argmax()), 0, Draw(shows=True), row.numpy().tobytes(), answers.numpy().tobytes())
        found.take(told)
        found.see(found.batch())
    assert found.controller.asked == AT_TARGET
    status = found.status()
    assert status.fidelity == 1.0
    assert [(level.fidelity, level.used, level.alarms) for level in status.levels] == [(1.0, True, 0), (0.0, False, 1)]
    begun = Adapter(ModelDirectory.open(model), config, threads=1, backend=None, floor=FLOOR, wanted=AT_TARGET)
    assert begun.controller.asked == AT_TARGET, "the service that follows one goes on"
