"""Texts through a real engine: many clients at once, each with texts of many lengths, for fewer slots than texts."""

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc.aio as triton
from tokenizers import Tokenizer

from latebind.domain.config import EngineConfig, FrontendConfig
from latebind.domain.errors import Unavailable
from latebind.domain.model import About, Task
from latebind.domain.sizes import Dim
from latebind.engine.client import EngineClient
from latebind.preprocessing.settings import FORMAT, PREPROCESSING, TOKENIZER, Role, Stored, TextSettings
from latebind.program.build import build_program
from latebind.program.metadata import read_model
from latebind.repository.directory import MODEL, ModelDirectory, json_bytes
from latebind.server.calls import Terms
from latebind.server.frontend import Frontend
from latebind.server.gateway import Array
from latebind.server.service import Service
from tests.building import made_once
from tests.engine.started import serving
from tests.networks import Tagger
from tests.preprocessing.making import bert
from tests.server.real import read_reply, real_frontend, until_all_is_free, written
from tests.server.words import LONGEST, RAW, Words, numbers

SLOTS, CLIENTS, CALLS = 16, 6, 8
TAGGER = Tagger(words=300)
READS = TextSettings({Role.IDS: "ids", Role.MASK: "mask"}, LONGEST, pair=True)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "texts", built)


def built(folder: Path) -> None:
    ones = torch.ones(2, 5, dtype=torch.int64)
    build_program(
        TAGGER,
        {"ids": ones, "mask": ones},
        directory=folder / "tagger",
        name="tagger",
        backends=["eager"],
        min_stage_seconds=0.0,
        max_overhead=None,
        max_batch=4,
        dims=[Dim("L", 1, LONGEST)],
        sizes={"ids": ["L"], "mask": ["L"]},
        about=About(Task.TAG, RAW),
        files={PREPROCESSING: json_bytes(Stored(FORMAT, READS)), TOKENIZER: bert().to_str().encode()},
    )


def text(random: Random) -> str:
    return " ".join(random.choices(["alpha", "beta", "gamma", "delta", "epsilon"], k=random.randint(1, LONGEST)))


def right(one: str) -> tuple[Array, Array]:
    return told_of(numbers(one))


def told_of(ids_of_one: list[int]) -> tuple[Array, Array]:
    ids = torch.tensor([ids_of_one])
    with torch.inference_mode():
        found = TAGGER(ids, torch.ones_like(ids))
    return found["tags"].numpy(), found["topic"].numpy()


def reads(client: EngineClient) -> None:
    client.preprocessors = {"tagger": Words()}


def test_every_text_has_its_own_answer_whoever_asks_and_however(models: Path) -> None:
    async def over_http(port: int, random: Random) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(CALLS):
            texts = [text(random) for _ in range(random.choice((1, 3, 40)))]
            given = {"name": "text", "shape": [len(texts), 1], "datatype": "BYTES", "data": texts}
            body = json.dumps({"inputs": [given], "outputs": [{"name": "topic"}]}).encode()
            for piece in written("tagger", [body], None, chunked=random.random() < 0.5):
                writer.write(piece)
            told = json.loads((await read_reply(reader)).data)
            assert told["parameters"]["tokens"] in ([len(one.split()) for one in texts], len(texts[0].split()))
            same(np.array(told["outputs"][0]["data"]).reshape(len(texts), 4), [right(one)[1] for one in texts])
        writer.close()

    async def over_grpc(port: int | None, random: Random) -> None:
        async with triton.InferenceServerClient(f"127.0.0.1:{port}") as stub:
            for _ in range(CALLS):
                one = text(random)
                given = triton.InferInput("text", [1], "BYTES")
                given.set_data_from_numpy(np.array([one], np.object_))
                same((await stub.infer("tagger", [given])).as_numpy("tags"), [right(one)[0]])

    async def test() -> None:
        async with real_frontend(models, engine=EngineConfig(slots=SLOTS), grpc_port=0) as (client, frontend):
            reads(client)
            async with asyncio.TaskGroup() as group:
                for seed in range(CLIENTS):
                    group.create_task(over_http(frontend.port, Random(seed)))
                    group.create_task(over_grpc(frontend.grpc_port, Random(100 + seed)))
            await until_all_is_free(client)

    asyncio.run(asyncio.wait_for(test(), 300.0))


def same(found: Array | None, wanted: list[Array]) -> None:
    assert found is not None
    np.testing.assert_allclose(found, np.concatenate(wanted), rtol=1e-3, atol=1e-4)


def test_a_model_is_served_with_the_tokenizer_that_lies_beside_it(models: Path) -> None:
    texts = ["Can you tell?", "a lazy dog", "How long must a carrot cake bake without eggs, and how do I make it?"]
    given = {"name": "text", "shape": [3], "datatype": "BYTES", "data": texts}
    asked = {"inputs": [given], "outputs": [{"name": "topic"}], "parameters": {"truncate": True}}
    ids = [bert().encode(one).ids for one in texts]
    assert max(map(len, ids)) > LONGEST
    ids = [one if len(one) <= LONGEST else [*one[: LONGEST - 1], one[-1]] for one in ids]

    async def test() -> None:
        config = FrontendConfig(port=0, deadline=30.0)
        async with serving(models) as (engines, _), Frontend(engines, config) as frontend:
            reader, writer = await asyncio.open_connection("127.0.0.1", frontend.port)
            for piece in written("tagger", [json.dumps(asked).encode()], None, chunked=False):
                writer.write(piece)
            told = json.loads((await read_reply(reader)).data)
            writer.close()
        same(np.array(told["outputs"][0]["data"]).reshape(3, 4), [told_of(one)[1] for one in ids])
        assert told["parameters"]["tokens"] == [len(one) for one in ids]
        assert told["parameters"]["truncated"] == [False, False, True]

    asyncio.run(asyncio.wait_for(test(), 300.0))


SEEN = ["a lazy dog", "can you tell me a", "the quick brown fox", "a a a a", "how do I bake"] * 4


def swapped() -> str:
    """Return the tokenizer with other ids for some letters: the vocabulary of a version after this one."""
    file = json.loads(bert().to_str())
    words = file["model"]["vocab"]
    for one, other in (("a", "b"), ("t", "q"), ("h", "z")):
        words[one], words[other] = words[other], words[one]
    return json.dumps(file)


def test_texts_are_answered_by_the_version_that_has_read_them_while_another_takes_over(
    models: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "tagger" / "1", tmp_path / "tagger" / "2"
    copytree(models / "tagger", first)
    copytree(models / "tagger", second)
    directory = ModelDirectory.open(second)
    changed = {MODEL: json_bytes(replace(read_model(directory), version="2")), TOKENIZER: swapped().encode()}
    directory.write_files(changed)
    tokenizers = {"1": bert(), "2": Tokenizer.from_str(swapped())}
    wanted = {
        version: np.concatenate([told_of(tokenizer.encode(one).ids)[1] for one in SEEN])
        for version, tokenizer in tokenizers.items()
    }
    assert not np.allclose(wanted["1"], wanted["2"], atol=0.01)
    given = {"name": "text", "shape": [len(SEEN)], "datatype": "BYTES", "data": SEEN}
    body = json.dumps({"inputs": [given], "outputs": [{"name": "topic"}]}).encode()
    told: Counter[str] = Counter()

    async def client(port: int, over: asyncio.Event) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while not over.is_set():
            for piece in written("tagger", [body], None, chunked=False):
                writer.write(piece)
            reply = json.loads((await read_reply(reader)).data)
            assert "error" not in reply, reply
            told[reply["model_version"]] += 1
            found = np.array(reply["outputs"][0]["data"]).reshape(len(SEEN), 4)
            np.testing.assert_allclose(found, wanted[reply["model_version"]], rtol=1e-3, atol=1e-4)
        writer.close()

    async def test() -> None:
        over = asyncio.Event()
        async with (
            serving(tmp_path) as (engines, catalogue),
            Frontend(engines, FrontendConfig(port=0, deadline=60.0)) as frontend,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(4):
                group.create_task(client(frontend.port, over))
            for version in ("1", "2", "1"):
                before = told[version]
                await catalogue.load("tagger", version)
                while told[version] < before + 8:
                    await asyncio.sleep(0.01)
            over.set()
        assert min(told["1"], told["2"]) >= 8

    asyncio.run(asyncio.wait_for(test(), 300.0))


async def many(service: Service, client: EngineClient, random: Random) -> list[Any]:
    spec, texts = client.models["tagger"], [text(random) for _ in range(100)]
    rows = await service.prepare(spec, {"text": texts})
    return await service.infer_each(spec, rows, Terms(timeout=60_000_000))


def test_calls_that_are_cancelled_leave_nothing_behind(models: Path) -> None:
    async def test() -> None:
        async with real_frontend(models, engine=EngineConfig(slots=SLOTS)) as (client, _):
            reads(client)
            service = Service(client)
            random = Random(0)
            for _ in range(20):
                calls = [asyncio.create_task(many(service, client, random)) for _ in range(3)]
                for _ in range(random.randrange(60)):
                    await asyncio.sleep(0)
                calls[0].cancel()
                calls[1].cancel()
                done = await asyncio.gather(*calls, return_exceptions=True)
                assert [len(one) if isinstance(one, list) else type(one) for one in done[2:]] == [100]
            await until_all_is_free(client)
            await service.close()

    asyncio.run(asyncio.wait_for(test(), 300.0))


def test_an_engine_that_dies_fails_the_whole_call_and_no_other_waits_for_it(models: Path) -> None:
    async def test() -> None:
        async with real_frontend(models, engine=EngineConfig(slots=SLOTS)) as (client, _):
            reads(client)
            service = Service(client)
            call = asyncio.create_task(many(service, client, Random(1)))
            while not client.sent:
                await asyncio.sleep(0)
            await client.kill()
            with pytest.raises(Unavailable):
                await call
            await service.close()

    asyncio.run(asyncio.wait_for(test(), 300.0))
