"""Following the traffic of a model whose rows are of any length: samples of several sizes, versions, and the watch."""

import asyncio
import shutil
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from latebind.adaptation.adapter import Adapter
from latebind.adaptation.client import AdaptationClient
from latebind.adaptation.controller import FULL_DEPTH, Controller, Retrain
from latebind.adaptation.messages import AdaptationOrder, Answered, Draw
from latebind.adaptation.traffic import looks
from latebind.adaptation.versions import Versions, versions_folder
from latebind.domain.config import AdaptationConfig, EngineConfig, PolicyConfig
from latebind.engine.client import EngineClient
from latebind.engine.order import EngineOrder
from latebind.learned.samples import Samples
from latebind.repository.directory import ModelDirectory
from tests.adaptation.in_use import OfEngine
from tests.adaptation.test_service import until
from tests.forked import FORKS
from tests.texts import BuiltTexts, filled_up, unseen

CONFIG = AdaptationConfig(on=True, sample=1.0, interval=3600.0, yields=False)


def rows() -> list[Tensor]:
    some = unseen()
    assert isinstance(some.inputs, dict)
    return list(some.inputs["ids"])


def adapter(built: BuiltTexts, folder: Path) -> Adapter:
    config = AdaptationConfig(on=True, folder=str(folder))
    return Adapter(built.directory, config, threads=1, backend=None)


def told(row: Tensor, answer: int, *, shows: bool = True, end: bytes = b"") -> Answered:
    parts = filled_up([row], len(row))
    data = b"".join(part.numpy().tobytes() for part in parts)
    return Answered(0, answer, 0, Draw(shows=shows), data, end, (len(row),))


def test_samples_of_several_lengths_show_what_the_network_says_and_make_a_version(
    built_texts: BuiltTexts, tmp_path: Path
) -> None:
    found = adapter(built_texts, tmp_path)
    some = rows()[:400]
    classes = []
    for number, row in enumerate(some):
        ids, mask = filled_up([row], len(row))
        (answers,) = found._program.run(ids, mask)
        classes.append(int(answers.argmax()))
        end = answers.numpy().tobytes() if number % 2 else b""
        found.take(told(row, classes[-1], shows=bool(number % 4 < 2), end=end))
    while batch := found.batch():
        found.see(batch)
    assert isinstance(found.controller, Controller)
    assert all(found.controller.last)  # what was said is what the network says, at every length
    assert (len(found.shown), len(found.taught)) == (200, 200)
    recent = found.shown.recent()
    assert recent is not None
    assert recent.rows.lengths is not None
    assert set(recent.rows.lengths.tolist()) == {len(row) for number, row in enumerate(some) if number % 4 < 2}
    version = found.lesson(Retrain("a test", moved=False, alarmed=False))()
    assert version is not None
    assert version.thresholds
    assert found.versions.names() == [version.name]


def test_what_lookups_save_is_weighed_over_the_lengths_that_came(built_texts: BuiltTexts, tmp_path: Path) -> None:
    whole = []
    for least, most in ((1, 6), (20, 24)):
        found = adapter(built_texts, tmp_path / str(least))
        for row in [row for row in rows() if least <= len(row) <= most][:30]:
            ids, mask = filled_up([row], len(row))
            answers = found.look(Samples((list(ids), list(mask)), lengths=torch.tensor([len(row)]))).answers
            found.take(told(row, int(answers.argmax())))
        while batch := found.batch():
            found.see(batch)
        whole.append(found._costs_of(found.built_lookups()).whole)
    assert whole[1] > 1.5 * whole[0]


def test_texts_of_another_length_look_strange() -> None:
    short, long = ([torch.randint(1, 30, (length,)) for _ in range(50)] for length in (4, 20))
    seen = [looks(Samples((part,), lengths=torch.tensor([len(row) for row in part]))) for part in (short, long)]
    assert seen[0].shape == (50, 3)
    assert torch.equal(seen[1][:, 2], torch.full((50,), float(np.log(np.float32(20)))))


def test_a_version_is_made_for_texts_of_any_length_and_the_engine_takes_it(
    built_texts: BuiltTexts, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(built_texts.directory.path, tmp_path / "texts" / "1"))

    async def test() -> None:
        there = Versions(versions_folder(model), ModelDirectory.open(model))
        engine = await EngineClient.start(EngineOrder((str(model),), EngineConfig(), PolicyConfig()), FORKS)
        order = AdaptationOrder((str(model),), CONFIG, threads=1, backend=None, cores=())
        try:
            adaptation = await AdaptationClient.start(order, list(engine.models.values()), OfEngine(engine), FORKS)
            try:
                for row in rows()[:150]:
                    given = dict(zip(("ids", "mask"), filled_up([row], len(row)), strict=True))
                    arrays = {name: part.numpy() for name, part in given.items()}
                    answer = await engine.infer("texts", arrays, deadline=time.monotonic() + 30)
                    parts = {name: list(part) for name, part in arrays.items()}
                    adaptation.answered(engine.models["texts"], parts, answer)
                await until(lambda: adaptation.figures().get("texts", {"retrained": 0})["retrained"] >= 1)
                figures = adaptation.figures()["texts"]
                assert figures["sampled"] > 0
                assert figures["alarms"] == 0
                await until(lambda: adaptation.figures()["texts"]["version"] == there.current() != FULL_DEPTH)
            finally:
                await adaptation.close()
        finally:
            await engine.close()

    asyncio.run(test())
