"""Rows of any size, from the command that builds their models to the answers over HTTP and gRPC.

One model takes texts, of which padding changes nothing; another judges what is said of their words, which padding would
change; a query asks the one, then the other; a third enlarges images, which vary in two dimensions. One engine answers
calls of random sizes and rows to all of them at once, in every way that there is to send them: each call exactly once,
with what the modules themselves say of the same rows. Some clients give a deadline that may be too short, some leave,
and some send what no row is. `HYPOTHESIS_PROFILE=thorough pytest tests/server/test_lengths.py` sends 100,000, in ten
pieces.
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
from typing import Any

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
from latebind.domain.model import TensorSpec
from latebind.server.calls import DATATYPES
from latebind.server.frontend import Frontend
from latebind.server.gateway import Array
from latebind.server.limits import too_large_a_row
from tests.building import made_once
from tests.networks import Enlarges, Judge, Tagger
from tests.server.conftest import SERVICE
from tests.server.real import binary_body, json_body, odd_parts, read_reply, real_frontend, until_all_is_free, written
from tests.server.rpc.conftest import CONTENTS, outputs

PIECES, CALLS = (10, 10_000) if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else (1, 1000)
CLIENTS = 20
SLOTS = 16  # of each model: calls wait for some
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


def drawn_rows(random: Random, model: str, rows: int) -> Rows:
    """Return rows of any one size."""
    length = random.randint(1, LONGEST)
    if model in ("tagger", "judged"):
        return texts(random, length, rows)
    shape = (length, 3) if model == "judge" else (2, random.randrange(4, HIGHEST + 1, 4), random.randint(1, WIDEST))
    values = np.random.default_rng(random.getrandbits(32)).standard_normal((rows, *shape)).astype(np.float32)
    return {"tags" if model == "judge" else "image": values}


def sizes_of(rows: Rows) -> tuple[int, ...]:
    """Return the sizes of the named dimensions."""
    return rows["image"].shape[2:] if "image" in rows else next(iter(rows.values())).shape[1:2]


def right(model: str, rows: Rows) -> Rows:
    with torch.inference_mode():
        given = [torch.from_numpy(array) for array in rows.values()]
        if model == "enlarges":
            return {"output": ENLARGES(*given).numpy()}
        if model == "judge":
            return {"output": JUDGE(*given).numpy()}
        found = TAGGER(*given)
        if model == "judged":
            found = {"tags": found["tags"], "verdict": JUDGE(found["tags"].softmax(-1))}
    return {name: tensor.numpy() for name, tensor in found.items()}


def same(found: Mapping[str, Array], wanted: Rows) -> None:
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert found[name].shape == array.shape
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-4)


def of_reply(reply: Reply) -> tuple[str, Rows]:
    """Return the id and the outputs of a reply over HTTP, from JSON or binary."""
    data = bytes(reply.data)
    size = int(reply.headers.get("inference-header-content-length", len(data)))
    told, found, at = json.loads(data[:size]), {}, size
    for output in told["outputs"]:
        if "data" in output:
            flat = np.array(output["data"], np.float32)
        else:
            end = at + output["parameters"]["binary_data_size"]
            flat, at = np.frombuffer(data[at:end], np.float32), end
        found[output["name"]] = flat.reshape(output["shape"])
    return told.get("id", ""), found


def message(model: str, rows: Rows, *, typed: bool, identity: str = "", microseconds: int = 0) -> bytes:
    asked = service_pb2.ModelInferRequest(model_name=model, id=identity)
    if microseconds:
        asked.parameters["timeout"].int64_param = microseconds
    for name, array in rows.items():
        given = asked.inputs.add(name=name, datatype=DATATYPES[array.dtype.name], shape=array.shape)
        if typed:
            getattr(given.contents, CONTENTS[given.datatype]).extend(array.flatten().tolist())
        else:
            asked.raw_input_contents.append(array.tobytes())
    told: bytes = asked.SerializeToString()
    return told


MODELS = ("tagger", "judge", "judged", "enlarges")
WAYS = ("json", "binary", "chunks", "raw", "generate", "grpc", "grpc typed", "grpc stream")
FATES = {"answered": 85, "late": 5, "left": 5, "wrong": 5}
NOT_IN_TIME = (503, 504, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)
WRONG = (400, grpc.StatusCode.INVALID_ARGUMENT)


@dataclass
class Call:
    """A call to be made: `identity` is its own alone, and comes back with its answer."""

    identity: str
    model: str
    way: str
    fate: str
    rows: Rows
    microseconds: int = 0  # of its deadline

    @property
    def count(self) -> int:
        return len(next(iter(self.rows.values())))


@dataclass
class Crowd:
    """Clients that have `left` calls to make together. `seen` are those of each fate by model, way and sizes.

    `answered` and `uncertain` count rows: of calls whose answers came, and of those that may have been answered.
    """

    frontend: Frontend
    left: int
    seen: Counter[tuple[str, str, str, tuple[int, ...]]] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    uncertain: Counter[str] = field(default_factory=Counter)
    lengths: Counter[str] = field(default_factory=Counter)

    async def client(self, seed: int) -> None:
        """Make one call after another, over one connection of each kind; a new one after having left."""
        random = Random(seed)
        http = await self._connected()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.frontend.grpc_port}") as channel:
            infer = channel.unary_unary(
                f"{SERVICE}ModelInfer", response_deserializer=service_pb2.ModelInferResponse.FromString
            )
            stream = channel.stream_stream(
                f"{SERVICE}ModelStreamInfer", response_deserializer=service_pb2.ModelStreamInferResponse.FromString
            )(metadata=(("triton_grpc_error", "true"),))
            while self.left:
                self.left -= 1
                call = self._drawn(random, f"{seed}-{self.left}")
                if call.way.startswith("grpc"):
                    status, found = await self._over_grpc(random, call, infer, stream)
                elif call.fate == "left":
                    status, found = "left", {}
                    await self._hang_up(random, call, http[1])
                    http = await self._connected()
                else:
                    status, found = await self._over_http(random, call, *http)
                self._account(call, status, found)
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF
        http[1].write_eof()
        assert not await http[0].read()  # nothing comes that nobody asked for
        http[1].close()

    def _drawn(self, random: Random, identity: str) -> Call:
        model, way = random.choice(MODELS), random.choice(WAYS)
        (fate,) = random.choices(list(FATES), list(FATES.values()))
        if way == "raw" and model != "judge":
            way = "binary"  # a body of bytes alone is one row of one input that varies in one dimension
        if way == "grpc stream" and fate != "answered":
            way = "grpc"  # an error ends a stream
        if way == "generate" and fate == "late":
            way = "json"
        rows = drawn_rows(random, model, 1 if way in ("raw", "generate") else random.choice((1, 1, 1, 2, 3, 8)))
        if fate == "wrong":  # one of the inputs is larger than any
            name, (size, *_) = random.choice(list(rows)), sizes_of(rows)
            most, axis = (HIGHEST, 2) if model == "enlarges" else (LONGEST, 1)
            rows[name] = np.repeat(rows[name], most // size + 1, axis)
        micro = random.choice((1, 500, 2000, 10_000)) if fate == "late" else 0
        return Call(identity, model, way, fate, rows, micro)

    def _account(self, call: Call, status: object, found: Rows) -> None:
        sizes, rows = sizes_of(call.rows), call.count
        if status == "ok":
            assert call.fate in ("answered", "late", "left"), call
            same(found, right(call.model, call.rows))
            self.answered[call.model] += rows
            self.lengths[call.model] += rows * prod(sizes)
        elif call.fate == "wrong":
            assert status in WRONG, (status, call)
        else:
            assert status in (NOT_IN_TIME if call.fate == "late" else ("left",)), (status, call)
            self.uncertain[call.model] += rows
            self.lengths["uncertain"] += rows * prod(sizes)
        self.seen[call.fate, call.model, call.way, sizes] += 1

    async def _over_grpc(self, random: Random, call: Call, infer: Any, stream: Any) -> tuple[object, Rows]:
        asked = message(
            call.model,
            call.rows,
            typed=call.way == "grpc typed",
            identity=call.identity,
            microseconds=call.microseconds,
        )
        if call.way == "grpc stream":
            await stream.write(asked)
            response = (await stream.read()).infer_response
        else:
            answer = infer(asked)
            if call.fate == "left":
                await asyncio.sleep(random.choice((0.0, 0.001, 0.004)))
                answer.cancel()
            try:
                response = await answer
            except grpc.aio.AioRpcError as error:
                return error.code(), {}
            except asyncio.CancelledError:
                assert call.fate == "left"
                return "left", {}
        assert response.id == call.identity
        return "ok", dict(zip([one.name for one in response.outputs], outputs(response), strict=True))

    async def _over_http(
        self, random: Random, call: Call, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[object, Rows]:
        for piece in self._pieces(random, call):
            writer.write(piece)
            await asyncio.sleep(0)
        reply = await read_reply(reader)
        if reply.status != 200:
            return reply.status, {}
        if call.way == "generate":
            told = json.loads(bytes(reply.data))
            wanted = right(call.model, call.rows)
            assert told["id"] == call.identity
            return "ok", {name: np.array(told[name], np.float32)[None] for name in wanted}
        identity, found = of_reply(reply)
        assert identity == ("" if call.way == "raw" else call.identity)
        return "ok", found

    async def _hang_up(self, random: Random, call: Call, writer: asyncio.StreamWriter) -> None:
        """Send a call, or all but its last bytes, and go away."""
        whole = b"".join(self._pieces(random, call))
        writer.write(whole if random.random() < 0.5 else whole[:-7])
        await asyncio.sleep(random.choice((0.0, 0.001, 0.004)))
        writer.transport.abort()

    def _pieces(self, random: Random, call: Call) -> list[bytes]:
        json_bytes: int | None = None
        about: dict[str, Any] = {"id": call.identity}
        parameters: dict[str, Any] = {"timeout": call.microseconds} if call.microseconds else {}
        if call.way == "generate":
            rows = {name: array[0].tolist() for name, array in call.rows.items()}
            body = json.dumps({**rows, **about}).encode()
            (whole,) = written(call.model, [body], None, chunked=False)[:1]
            return [whole.replace(b"/infer ", b"/generate "), body]
        if call.way == "json":
            body = json_body(call.rows, parameters=parameters, **about)
        elif call.way == "raw":
            body, json_bytes = next(iter(call.rows.values())).tobytes(), 0
        else:
            parameters["binary_data_output"] = random.random() < 0.5
            body, json_bytes = binary_body(call.rows, parameters=parameters, **about)
        parts = list(odd_parts(body, random)) if call.way == "chunks" else [body]
        return written(call.model, parts, json_bytes, chunked=call.way == "chunks")

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.frontend.port)


@pytest.mark.parametrize("piece", range(PIECES))
def test_every_call_is_answered_once_and_as_its_rows_are_at_their_own_size(models: Path, piece: int) -> None:
    async def test() -> None:
        async with real_frontend(models, engine=EngineConfig(slots=SLOTS), grpc_port=0) as (client, frontend):
            crowd = Crowd(frontend, CALLS)
            async with asyncio.TaskGroup() as group:
                for seed in range(CLIENTS):
                    group.create_task(crowd.client(CLIENTS * piece + seed))
            await until_all_is_free(client)
            figures = (await client.metrics())["models"]
        assert crowd.seen.total() == CALLS
        assert {fate for fate, *_ in crowd.seen} == set(FATES)
        assert {way for _, _, way, _ in crowd.seen} == set(WAYS)
        answered = [(model, sizes) for fate, model, _, sizes in crowd.seen if fate == "answered"]
        for model in MODELS:
            seen = {size for named, sizes in answered for size in sizes if named == model}
            images = {*range(1, WIDEST + 1), *range(4, HIGHEST + 1, 4)}
            assert seen == images if model == "enlarges" else seen <= set(range(1, LONGEST + 1))
        assert {size for _, sizes in answered for size in sizes} == set(range(1, LONGEST + 1))
        steps = {"tagger": "judged", "judge": "judged"}
        for name in MODELS:
            asked = [name, *([steps[name]] if name in steps else ())]
            certain, perhaps = (sum(counts[one] for one in asked) for counts in (crowd.answered, crowd.uncertain))
            assert certain <= figures[name]["requests"]["answered"] <= certain + perhaps
            assert not figures[name]["stage_failures"]
            lengths = sum(crowd.lengths[one] for one in asked)
            assert lengths <= figures[name]["lengths"] <= lengths + crowd.lengths["uncertain"]
            if name != "judged":
                assert figures[name]["padded_lengths"] >= figures[name]["run_lengths"] >= lengths
            if name in ("judge", "enlarges"):  # whose rows share a run with those of their size
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
    assert "time by row length" in result.output


def test_whoever_builds_or_serves_rows_that_no_request_holds_is_told() -> None:
    image = TensorSpec("image", "float32", (3, 4096, 4096), sizes=(3, "H", "W"))
    assert "its largest row has 201 MB and a request at most 67 MB" in too_large_a_row([image])
    assert not too_large_a_row([TensorSpec("image", "float32", (3, 224, 224))])
