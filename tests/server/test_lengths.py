"""Rows of any size, from the command that builds their models to the answers over HTTP and gRPC.

One model takes texts, of which padding changes nothing, and a query has another judge what it says of them, whose
answer padding would change; a third enlarges images, which vary in two dimensions. Calls of random sizes and rows, in
every way that there is to send them, come at once; each answer is that of the modules themselves to the same rows.
`HYPOTHESIS_PROFILE=thorough pytest tests/server/test_lengths.py` sends 100,000 to each, in ten pieces.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from random import Random

import grpc
import numpy as np
import pytest
import torch
import uvloop
from tritonclient.grpc import service_pb2
from typer.testing import CliRunner

from latebind.bench.client import Reply
from latebind.cli.main import app
from latebind.domain.config import EngineConfig
from latebind.server.calls import DATATYPES
from latebind.server.frontend import Frontend
from latebind.server.gateway import Array
from tests.building import made_once
from tests.networks import Enlarges, Judge, Tagger
from tests.server.conftest import SERVICE
from tests.server.real import binary_body, json_body, odd_parts, read_reply, real_frontend, until_all_is_free, written
from tests.server.rpc.conftest import CONTENTS, outputs

PIECES, CALLS = (10, 10_000) if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else (1, 400)
CLIENTS = 12
SLOTS = 16
LONGEST, HIGHEST, WIDEST = 40, 24, 9
TAGGER, JUDGE, ENLARGES = Tagger(), Judge(), Enlarges()
Rows = dict[str, Array]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "lengths", built)


JUDGED = """\
[nodes.tag]
models = ["tagger"]
[nodes.judge]
models = ["judge"]
inputs.tags = "softmax(tag.tags)"
[outputs]
tags = "tag.tags"
verdict = "judge.output"
"""


def built(folder: Path) -> None:
    length, sides = f"--dim L=1..{LONGEST}", f"--dim H=4..{HIGHEST}:4 --dim W=1..{WIDEST}"
    for words in (
        f"tests.networks:Tagger --name tagger --input ids=int64:L --input mask=int64:L {length}",
        f"tests.networks:Judge --name judge --input tags=float32:Lx3 {length}",
        f"tests.networks:Enlarges --name enlarges --input image=float32:2xHxW {sides}",
    ):
        made = f"build {words} --out {folder} --max-batch 4 --backend eager --min-stage-ms 0"
        result = CliRunner().invoke(app, made.split())
        assert result.exit_code == 0, result.output
    (folder / "judged.query.toml").write_text(JUDGED)


def texts(random: Random, length: int, rows: int) -> Rows:
    """Return texts of one length, of each of which the mask hides some words but the first."""
    drawn = np.random.default_rng(random.getrandbits(32))
    mask = (drawn.random((rows, length)) < random.choice((0.6, 1.0))).astype(np.int64)
    mask[:, 0] = 1
    return {"ids": drawn.integers(0, 50, (rows, length)), "mask": mask}


def images(random: Random, rows: int) -> Rows:
    drawn = np.random.default_rng(random.getrandbits(32))
    shape = rows, 2, random.randrange(4, HIGHEST + 1, 4), random.randint(1, WIDEST)
    return {"image": drawn.standard_normal(shape).astype(np.float32)}


def right(model: str, rows: Rows) -> Rows:
    with torch.inference_mode():
        if model == "enlarges":
            return {"output": ENLARGES(torch.from_numpy(rows["image"])).numpy()}
        found = TAGGER(*[torch.from_numpy(array) for array in rows.values()])
        if model == "judged":
            found = {"tags": found["tags"], "verdict": JUDGE(found["tags"].softmax(-1))}
    return {name: tensor.numpy() for name, tensor in found.items()}


def same(found: Mapping[str, Array], wanted: Rows) -> None:
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert found[name].shape == array.shape
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-4)


def of_reply(reply: Reply) -> Rows:
    """Return the outputs of a reply over HTTP, from JSON or binary."""
    data = bytes(reply.data)
    size = int(reply.headers.get("inference-header-content-length", len(data)))
    found, at = {}, size
    for output in json.loads(data[:size])["outputs"]:
        if "data" in output:
            flat = np.array(output["data"], np.float32)
        else:
            end = at + output["parameters"]["binary_data_size"]
            flat, at = np.frombuffer(data[at:end], np.float32), end
        found[output["name"]] = flat.reshape(output["shape"])
    return found


def message(model: str, rows: Rows, *, typed: bool) -> bytes:
    asked = service_pb2.ModelInferRequest(model_name=model)
    for name, array in rows.items():
        given = asked.inputs.add(name=name, datatype=DATATYPES[array.dtype.name], shape=array.shape)
        if typed:
            getattr(given.contents, CONTENTS[given.datatype]).extend(array.flatten().tolist())
        else:
            asked.raw_input_contents.append(array.tobytes())
    told: bytes = asked.SerializeToString()
    return told


@dataclass
class Crowd:
    """Clients that have `left` calls to make together; `seen` counts those answered by their way and length."""

    frontend: Frontend
    model: str
    left: int
    seen: Counter[tuple[str, tuple[int, ...]]] = field(default_factory=Counter)
    rows: int = 0
    lengths: int = 0

    async def client(self, seed: int) -> None:
        random = Random(seed)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.frontend.port)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.frontend.grpc_port}") as channel:
            infer = channel.unary_unary(
                f"{SERVICE}ModelInfer", response_deserializer=service_pb2.ModelInferResponse.FromString
            )
            while self.left:
                self.left -= 1
                count = random.choice((1, 1, 1, 2, 3))
                is_image = self.model == "enlarges"
                rows = images(random, count) if is_image else texts(random, random.randint(1, LONGEST), count)
                way = random.choice(("json", "binary", "chunks", "grpc", "grpc typed"))
                if way.startswith("grpc"):
                    response = await infer(message(self.model, rows, typed=way == "grpc typed"))
                    names = [one.name for one in response.outputs]
                    found = dict(zip(names, outputs(response), strict=True))
                else:
                    found = await self._over_http(random, way, rows, reader, writer)
                same(found, right(self.model, rows))
                sizes = next(iter(rows.values())).shape[2 if is_image else 1 :]
                self.seen[way, sizes] += 1
                self.rows += count
                self.lengths += count * prod(sizes)
        writer.close()

    async def _over_http(
        self, random: Random, way: str, rows: Rows, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Rows:
        json_bytes: int | None = None
        if way == "json":
            body = json_body(rows)
        else:
            body, json_bytes = binary_body(rows, parameters={"binary_data_output": random.random() < 0.5})
        parts = list(odd_parts(body, random)) if way == "chunks" else [body]
        for piece in written(self.model, parts, json_bytes, chunked=way == "chunks"):
            writer.write(piece)
            await asyncio.sleep(0)
        reply = await read_reply(reader)
        assert reply.status == 200, bytes(reply.data)
        return of_reply(reply)


@pytest.mark.parametrize("piece", range(PIECES))
@pytest.mark.parametrize("model", ["tagger", "judged", "enlarges"])
def test_every_answer_is_the_modules_own_at_the_rows_own_length(models: Path, model: str, piece: int) -> None:
    async def test() -> None:
        async with real_frontend(models, model, engine=EngineConfig(slots=SLOTS), grpc_port=0) as (client, frontend):
            crowd = Crowd(frontend, model, CALLS)
            async with asyncio.TaskGroup() as group:
                for seed in range(CLIENTS):
                    group.create_task(crowd.client(CLIENTS * piece + seed))
            assert crowd.seen.total() == CALLS
            seen = {size for _, sizes in crowd.seen for size in sizes}
            texts_seen, images_seen = set(range(1, LONGEST + 1)), {*range(1, WIDEST + 1), *range(4, HIGHEST + 1, 4)}
            assert seen == (images_seen if model == "enlarges" else texts_seen)
            await until_all_is_free(client)
            figures = (await client.metrics())["models"]
            assert figures[model]["requests"]["answered"] == crowd.rows
            assert {figures[name]["lengths"] for name in figures} == {crowd.lengths}
            for name in figures.keys() - {"judged"}:
                assert figures[name]["padded_lengths"] >= figures[name]["run_lengths"] >= crowd.lengths
                assert not figures[name]["stage_failures"]
            for name in figures.keys() & {"judge", "enlarges"}:  # whose rows share a run with those of their size
                assert figures[name]["padded_lengths"] == figures[name]["run_lengths"]

    uvloop.run(test())


def test_lengths_that_are_none_are_refused_and_the_rest_goes_on(models: Path) -> None:
    async def status(frontend: Frontend, rows: Rows) -> tuple[int, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", frontend.port)
        writer.write(b"".join(written("tagger", [json_body(rows)], None, chunked=False)))
        reply = await read_reply(reader)
        writer.close()
        return reply.status, json.loads(bytes(reply.data)).get("error", "")

    async def test() -> None:
        drawn = Random(0)
        async with real_frontend(models, "tagger", engine=EngineConfig(slots=2)) as (client, frontend):
            too_long, unequal = texts(drawn, LONGEST + 1, 1), texts(drawn, 4, 1)
            unequal["mask"] = unequal["mask"][:, :3]
            said = f"tensor 'ids' has L={LONGEST + 1}: it must be 1 to {LONGEST}"
            assert await status(frontend, too_long) == (400, said)
            assert (await status(frontend, unequal))[0] == 400
            assert await status(frontend, texts(drawn, LONGEST, 2)) == (200, "")
            await until_all_is_free(client)

    uvloop.run(test())


def test_what_rows_of_each_length_take_is_listed(models: Path, tmp_path: Path) -> None:
    file = tmp_path / "told.json"
    result = CliRunner().invoke(app, ["models", str(models), "--stages", "--json", str(file)])
    assert result.exit_code == 0, result.output
    told = json.loads(file.read_text())
    assert {(row["model"], row["rows"], row["a batch"]) for row in told["models"]} == {
        ("tagger", f"L=1..{LONGEST}", "padded"),
        ("judge", f"L=1..{LONGEST}", "of one size"),
        ("enlarges", f"H=4..{HIGHEST}:4, W=1..{WIDEST}", "of one size"),
    }
    lengths = [row["length"] for row in told["lengths"] if row["model"] == "tagger"]
    assert (lengths[0], lengths[-1]) == (1, LONGEST)
    assert lengths == sorted(set(lengths))
    assert {row["length"] for row in told["stages"]} == {LONGEST, HIGHEST * WIDEST}
    assert "what rows of some lengths take" in result.output
