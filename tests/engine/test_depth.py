"""Depth by the load, live: an engine with an operating curve, calls one by one and in crowds, and what each is told."""

import asyncio
import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from latebind.cli.main import app
from latebind.domain.actions import Run
from latebind.domain.config import EngineConfig
from latebind.domain.errors import ConfigError
from latebind.domain.eventlog import read_log
from latebind.engine.loaded import load_model
from latebind.learned.metadata import LIST, read_caches
from latebind.program.load import load_program
from latebind.repository.directory import MODEL, PROFILE, ModelDirectory
from latebind.server.frontend import Frontend
from tests.digits import Built
from tests.engine.started import engine, soon
from tests.server.real import json_body, read_reply, real_frontend, until_all_is_free, written

FLOOR, TARGET = 0.85, 0.9


@pytest.fixture(scope="module")
def curve(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits with a curve of two levels whose thresholds are made up, so that it is plain who leaves at which."""
    folder = tmp_path_factory.mktemp("curve")
    files = {name: built.directory.read(name) for name in built.directory.files}
    caches = json.loads(files[LIST])
    (first, *_) = caches["lookups"]
    names = [one["name"] if "name" in one else f"{one['stage']}-{one['kind']}" for one in caches["lookups"]]
    stages = {str(one["stage"]): 0.0 for one in caches["lookups"]}
    caches["levels"] = [
        {"target": TARGET, "fidelity": 0.95, "lower": 0.9, "thresholds": {names[0]: first["threshold"]}}
        | {"hit_rates": stages | {str(first["stage"]): 0.4}, "seconds": 1e-3},
        {"target": FLOOR, "fidelity": 0.9, "lower": 0.85, "thresholds": {names[0]: -1e3}}
        | {"hit_rates": stages | {str(first["stage"]): 1.0}, "seconds": 5e-4},
    ]
    ModelDirectory.create(folder / "digits" / "1", files | {LIST: json.dumps(caches).encode()})
    return folder


def test_a_build_writes_a_curve_of_the_lookups_in_use(built: Built) -> None:
    caches = read_caches(built.directory)
    assert caches is not None
    targets = [level.target for level in caches.levels]
    assert caches.target in targets
    assert targets == sorted(targets, reverse=True)
    assert all(level.lower >= level.target for level in caches.levels)
    shares = [sum(level.hit_rates.values()) for level in caches.levels]
    assert shares == sorted(shares), "the less sure, the more leave"
    assert all(level.thresholds.keys() <= {one.name for one in caches.lookups} for level in caches.levels)


def test_whoever_comes_alone_gets_the_network_and_a_crowd_as_much_as_there_is_time_for(
    curve: Path, built: Built
) -> None:
    images = built.unseen[:250]
    program = load_program(built.directory)
    (whole,) = program.run(images)
    last = program.spec.stages - 1

    async def test() -> None:
        async with real_frontend(curve, engine=EngineConfig(floor=FLOOR)) as (client, frontend):
            for number in range(3):
                label, promised, left_at = await asked(frontend, images[number], 5.0) or (-1, 0.0, -1)
                assert (promised, left_at) == (1.0, last)
                assert label == int(whole[number].argmax())
            crowd = await asyncio.gather(*(asked(frontend, image, 0.25) for image in images))
            found = [(number, *one) for number, one in enumerate(crowd) if one is not None]
            assert min(promised for _, _, promised, _ in found) < 1.0
            assert {promised for _, _, promised, _ in found} <= {1.0, TARGET, FLOOR}
            for number, label, promised, left_at in found:
                assert (left_at == last) if promised == 1.0 else (left_at == 0) if promised == FLOOR else True
                if left_at == last:
                    assert label == int(whole[number].argmax()), "who ran to the end has the network's own answer"
            await until_all_is_free(client)

    asyncio.run(test())


async def asked(frontend: Frontend, image: Tensor, timeout: float) -> tuple[int, float, int] | None:
    """The label, the fidelity promised and where the row left; None where it was refused."""
    body = json_body({"image": image[None].numpy()}, parameters={"timeout": round(timeout * 1e6)})
    reader, writer = await asyncio.open_connection("127.0.0.1", frontend.port)
    writer.write(b"".join(written("digits", [body], None, chunked=False)))
    reply = await read_reply(reader)
    writer.close()
    if reply.status != 200:
        assert reply.status in (429, 503, 504), reply.data
        return None
    told = json.loads(reply.data)
    return int(np.argmax(told["outputs"][0]["data"])), told["parameters"]["fidelity"], told["parameters"]["left_at"]


QUERY = """
[nodes.gate]
models = ["digits"]
accuracy = [0.95]
[nodes.rest]
models = ["quick", "slow"]
accuracy = [0.5, 0.9]
inputs.image = "image"
after = ["gate"]
[outputs]
gate = "gate.output"
scores = "rest.output"
"""


def taking(files: dict[str, bytes], seconds: float, *, since: int = 0) -> dict[str, bytes]:
    """Files of a model whose stages from `since` on take so many seconds together, by its profile."""
    profile = json.loads(files[PROFILE])
    every = [curve for stage in profile["stages"][since:] for curve in stage["curves"]]
    whole = sum(curve["seconds"][0] for curve in every)
    for curve in every:
        curve["seconds"] = [seconds / whole * one for one in curve["seconds"]]
    return files | {PROFILE: json.dumps(profile).encode()}


def test_a_query_runs_its_first_step_at_the_level_that_leaves_time_for_what_follows(
    curve: Path, built: Built, tmp_path: Path
) -> None:
    """Of 10 s the whole network takes 4 by its profile and the better of what follows 7."""
    there = ModelDirectory.open(curve / "digits" / "1")
    files = {name: there.read(name) for name in there.files}
    ModelDirectory.create(tmp_path / "digits" / "1", taking(files, 4.0, since=1))
    bare = {name: data for name, data in files.items() if not name.startswith("caches/")}
    for name, seconds in (("quick", 0.01), ("slow", 7.0)):
        model = json.dumps(json.loads(bare[MODEL]) | {"name": name}).encode()
        ModelDirectory.create(tmp_path / name / "1", taking(bare | {MODEL: model}, seconds))
    (tmp_path / "both.query.toml").write_text(QUERY)

    async def test() -> None:
        async with engine(tmp_path, config=EngineConfig(floor=FLOOR)) as client:
            rows = {"image": built.unseen[:1].numpy()}
            answer = await client.infer("both", rows, deadline=time.monotonic() + 10.0)
            gate, rest = answer.steps[0]
            assert (gate.fidelity, gate.left_at) == (FLOOR, 0)
            assert rest.model == "slow"

    asyncio.run(test())


def test_without_a_floor_every_answer_is_promised_what_was_calibrated(curve: Path, built: Built) -> None:
    async def test() -> None:
        async with real_frontend(curve) as (_, frontend):
            _, promised, _ = await asked(frontend, built.unseen[0], 5.0) or (-1, 0.0, -1)
            assert promised == TARGET

    asyncio.run(test())


def test_a_floor_that_the_curve_does_not_reach_is_refused_with_what_to_do(built: Built, tmp_path: Path) -> None:
    files = {name: built.directory.read(name) for name in built.directory.files}
    old = json.loads(files[LIST])
    del old["levels"]
    directory = ModelDirectory.create(tmp_path / "old", files | {LIST: json.dumps(old).encode()})
    with pytest.raises(ConfigError, match=r"no operating curve down to 0\.85: run `latebind calibrate`"):
        load_model(directory.path, EngineConfig(floor=0.85))
    with pytest.raises(ConfigError, match=r"above the 0\.9"):
        load_model(built.directory.path, EngineConfig(floor=0.95))
    with pytest.raises(ConfigError, match="exits are off"):
        EngineConfig(floor=0.9, exits=False)


def test_rows_of_one_batch_are_asked_at_their_own_levels(curve: Path, built: Built) -> None:
    model = load_model(curve / "digits" / "1", EngineConfig(floor=FLOOR))
    stage, lookup = next(iter(model.lookups.items()))
    with torch.inference_mode():
        activation = model.program.run_through(stage, built.unseen[:8])
        _, fixed = lookup(activation)
        thresholds = model.promises.thresholds
        _, mixed = lookup(activation, (), [thresholds[number % 3] for number in range(8)])
    expected = [False if n % 3 == 0 else bool(fixed[n]) if n % 3 == 1 else True for n in range(8)]
    np.testing.assert_array_equal(mixed, expected)


async def test_a_log_with_levels_replays_to_the_identical_actions(curve: Path, built: Built, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    async with engine(curve, config=EngineConfig(floor=FLOOR, slots=256), log=log) as client:
        await client.infer("digits", {"image": built.unseen[:1].numpy()}, deadline=soon())
        calls = [
            client.infer("digits", {"image": image[None].numpy()}, deadline=time.monotonic() + 0.5)
            for image in built.unseen[:200]
        ]
        await asyncio.gather(*calls, return_exceptions=True)
    with log.open("rb") as file:
        entries = list(read_log(file)[1])
    runs = [action for entry in entries for action in entry.actions if isinstance(action, Run)]
    levels = {level for run in runs for level in run.levels}
    assert 0 in levels
    assert max(levels) > 0
    ran = CliRunner().invoke(app, ["replay", str(log)])
    assert (ran.exit_code, "all identical" in ran.output) == (0, True), ran.output


def test_a_simulation_with_a_floor_says_what_was_promised_and_its_log_replays(curve: Path, tmp_path: Path) -> None:
    log, figures = tmp_path / "simulated.jsonl", tmp_path / "figures.json"
    words = ["--floor", str(FLOOR), "--policy", "late", "--requests", "600"]
    written = ["--event-log", str(log), "--json", str(figures)]
    ran = CliRunner().invoke(app, ["simulate", str(curve), *words, "--rate", "1", "--rate", "100000", *written])
    assert ran.exit_code == 0, ran.output
    alone, crowd = (one["promised"] for one in json.loads(figures.read_text()))
    assert set(alone) == {"1"}
    assert max(crowd, key=crowd.__getitem__) == str(FLOOR)
    assert CliRunner().invoke(app, ["replay", str(log)]).exit_code == 0


def test_a_floor_is_no_share_or_for_nothing_and_a_simulation_says_so(curve: Path) -> None:
    for words, said in ((["--floor", "2"], "up to 1"), (["--floor", "0.85", "--no-exits"], "has none")):
        ran = CliRunner().invoke(app, ["simulate", str(curve), *words])
        assert (ran.exit_code, said in " ".join(ran.output.split())) == (2, True), ran.output


def test_the_curve_of_a_model_is_listed(curve: Path, tmp_path: Path) -> None:
    figures = tmp_path / "models.json"
    ran = CliRunner().invoke(app, ["models", str(curve), "--stages", "--json", str(figures)])
    assert (ran.exit_code, "operating curves" in ran.output) == (0, True), ran.output
    assert [row["fidelity"] for row in json.loads(figures.read_text())["curves"]] == [str(TARGET), str(FLOOR)]
