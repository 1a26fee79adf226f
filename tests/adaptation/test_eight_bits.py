"""Following a model whose network computes in eight bits: all is compared with the network in full precision."""

import asyncio
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from latebind.adaptation.adapter import Adapter
from latebind.adaptation.client import AdaptationClient
from latebind.adaptation.controller import FULL_DEPTH, Controller, Retrain
from latebind.adaptation.messages import AdaptationOrder, Answered, Draw
from latebind.adaptation.versions import Versions, versions_folder
from latebind.domain.config import AdaptationConfig, EngineConfig, PolicyConfig
from latebind.domain.errors import ConfigError
from latebind.engine.client import EngineClient
from latebind.engine.order import EngineOrder
from latebind.learned.activations import observe
from latebind.learned.samples import Samples
from latebind.learned.stored import HELD_OUT, read_rows
from latebind.program.load import load_program
from latebind.program.openvino import multiplies_bytes
from latebind.repository.directory import ModelDirectory
from latebind.repository.tensors import tensor_bytes
from tests.adaptation.in_use import OfEngine
from tests.adaptation.test_service import until
from tests.forked import FORKS
from tests.texts import LONGEST, WORDS, build_texts, filled_up

pytest.importorskip("openvino")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not multiplies_bytes(), reason="this processor does not multiply bytes"),
]
SAMPLE = 0.04


@pytest.fixture(scope="module")
def coarse(tmp_path_factory: pytest.TempPathFactory) -> ModelDirectory:
    folder = tmp_path_factory.mktemp("coarse")
    return build_texts(folder, backend="openvino-int8", tolerance=0.3, fidelity=0.9, busy=0.01).directory


@pytest.fixture(scope="module")
def differing(coarse: ModelDirectory) -> list[tuple[Tensor, int, int]]:
    """Texts of one length, what the network says of each, and what it says in full precision, which is otherwise."""
    ids = torch.randint(1, WORDS, (50_000, 8), generator=torch.Generator().manual_seed(3))
    rows = Samples((list(ids), list(torch.ones_like(ids))), lengths=torch.full((len(ids),), 8))
    seen = observe(load_program(coarse), rows, (), base=load_program(coarse, backend="eager"))
    assert seen.own is not None
    assert seen.seen.end is not None
    own, exact = seen.own.argmax(dim=1), seen.answers.argmax(dim=1)
    return [(ids[row], int(own[row]), int(exact[row])) for row in (~torch.from_numpy(seen.seen.end)).nonzero()[:, 0]]


def told(row: Tensor, answer: int, *, shows: bool = True) -> Answered:
    data = b"".join(part.numpy().tobytes() for part in filled_up([row], len(row)))
    return Answered(0, answer, 0, Draw(shows=shows), data, b"", (len(row),))


def adapter(directory: ModelDirectory, folder: Path, *, floor: float = 1.0) -> Adapter:
    config = AdaptationConfig(on=True, folder=str(folder))
    return Adapter(directory, config, threads=1, backend=None, floor=floor)


def test_answers_of_the_network_itself_are_compared_with_full_precision(
    coarse: ModelDirectory, differing: list[tuple[Tensor, int, int]], tmp_path: Path
) -> None:
    assert len(differing) > 20
    found = adapter(coarse, tmp_path)
    for row, own, exact in differing:
        found.take(told(row, own))
        found.take(told(row, exact))
        found.take(told(row, own, shows=False))
    while batch := found.batch():
        found.see(batch)
    assert isinstance(found.controller, Controller)
    recent, teaches = found.shown.recent(), found.taught.recent()
    assert recent is not None
    assert teaches is not None
    for rows in (recent.rows, teaches.rows):
        assert rows.end is not None
        assert not rows.end.any(), "the network itself would answer none of them as in full precision"
    assert recent.rows.classes.tolist() == [exact for _, _, exact in differing for _ in range(2)]
    assert found.controller.watch.alarms > 0, "half of the answers were wrong"


def test_each_level_counts_by_what_the_network_itself_says_of_whom_no_lookup_answers(
    coarse: ModelDirectory, differing: list[tuple[Tensor, int, int]], tmp_path: Path
) -> None:
    found = adapter(coarse, tmp_path, floor=0.9)
    for row, own, _ in differing:
        found.take(told(row, own))
    while batch := found.batch():
        found.see(batch)
    assert found.controller.wanted == FULL_DEPTH, "not even the surest level answers these as in full precision"


def test_a_version_is_shown_with_what_the_network_itself_gets_wrong(coarse: ModelDirectory, tmp_path: Path) -> None:
    """Were it right whenever no lookup answers, such a version would be shown."""
    held_out = read_rows(coarse, HELD_OUT)
    assert held_out is not None
    assert held_out.end is not None
    count = len(held_out.classes)
    for wrong in (0.0, 0.2):
        end = torch.arange(count) >= wrong * count
        files = {name: coarse.read(name) for name in coarse.files}
        files[HELD_OUT] = tensor_bytes(replace(held_out, end=end).tensors())
        made = ModelDirectory.create(tmp_path / f"{wrong}" / "1", files)
        found = adapter(made, tmp_path / f"versions-{wrong}")
        for answer in held_out.classes.tolist():
            found.controller.answered(answer)
        version = found.lesson(Retrain("a test"))()
        assert (version is None) == (wrong > 0.0)


def test_what_does_not_say_how_often_the_network_is_right_is_not_followed(
    coarse: ModelDirectory, tmp_path: Path
) -> None:
    held_out = read_rows(coarse, HELD_OUT)
    assert held_out is not None
    files = {name: coarse.read(name) for name in coarse.files}
    files[HELD_OUT] = tensor_bytes(replace(held_out, end=None).tensors())
    earlier = ModelDirectory.create(tmp_path / "1", files)
    with pytest.raises(ConfigError, match="run `latebind calibrate` for this backend"):
        adapter(earlier, tmp_path)


def test_a_server_hears_what_its_network_gets_wrong_and_runs_few_of_its_answers_again(
    coarse: ModelDirectory, differing: list[tuple[Tensor, int, int]], tmp_path: Path
) -> None:
    model = Path(shutil.copytree(coarse.path, tmp_path / "texts" / "1"))
    Versions(versions_folder(model), ModelDirectory.open(model)).make_current(FULL_DEPTH)  # so all run to the end
    config = AdaptationConfig(on=True, sample=SAMPLE, interval=3600.0, yields=False)

    async def test() -> None:
        engine = await EngineClient.start(EngineOrder((str(model),), EngineConfig(), PolicyConfig()), FORKS)
        order = AdaptationOrder((str(model),), config, threads=1, backend=None, cores=())
        try:
            adaptation = await AdaptationClient.start(order, list(engine.models.values()), OfEngine(engine), FORKS)
            try:
                for row, own, _ in (differing * 30)[:600]:
                    given = dict(zip(("ids", "mask"), filled_up([row], len(row)), strict=True))
                    arrays = {name: part.numpy() for name, part in given.items()}
                    answer = await engine.infer("texts", arrays, deadline=time.monotonic() + 30)
                    assert int(answer.outputs["output"].argmax()) == own
                    adaptation.answered(
                        engine.models["texts"], {name: list(part) for name, part in arrays.items()}, answer
                    )
                await until(lambda: adaptation.figures().get("texts", {"sampled": 0})["sampled"] > 9)
                figures = adaptation.figures()["texts"]
                assert figures["sampled"] < 2 * SAMPLE * 600
                assert figures["alarms"] > 0 or figures["fidelity"] == 0.0
            finally:
                await adaptation.close()
        finally:
            await engine.close()

    assert LONGEST > 8
    asyncio.run(test())
