"""Many mixed calls at once through the real frontend and the real engine: each answer belongs to its request.

Three models; one row or several; JSON, binary or nothing but bytes; bodies whole or in odd chunks; some clients hang up
within their body and some while they wait. There are fewer slots than calls, so they wait and slots are reused.
`HYPOTHESIS_PROFILE=thorough pytest tests/server/test_everybody.py` sends 100,000, in four pieces.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import uvloop

from latebind.bench.client import Reply
from latebind.domain.config import EngineConfig, PolicyConfig
from latebind.server.gateway import Array
from tests.networks import Chain, Words
from tests.sequences import backwards, some_sentences
from tests.server.real import binary_body, json_body, odd_parts, read_reply, real_frontend, until_all_is_free, written

PIECES, CALLS = (4, 25_000) if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else (1, 600)
CLIENTS = 20
SLOTS = 16
KNOWN = 200  # inputs of each model whose answers were worked out beforehand


@dataclass(frozen=True)
class Model:
    """A model's input by name, and rows of it with the answers that are right."""

    name: str
    input: str
    rows: list[Array]
    answers: Sequence[Sequence[float]]

    def batch(self, chosen: list[int]) -> Array:
        """Return the chosen rows as one array; shorter ones are filled up as clients do."""
        rows = [self.rows[i] for i in chosen]
        width = max(row.shape[-1] for row in rows)
        return np.stack([np.pad(row, (*[(0, 0)] * (row.ndim - 1), (0, width - row.shape[-1]))) for row in rows])


def chain() -> Model:
    rows = np.random.default_rng(0).standard_normal((KNOWN, 3, 8, 8)).astype(np.float32)
    with torch.inference_mode():
        return Model("chain", "image", list(rows), Chain()(torch.from_numpy(rows)).tolist())


def words() -> Model:
    rows = np.stack(np.unravel_index(np.arange(KNOWN), (10, 10, 10)), axis=1)
    rows = np.unique(np.sort(rows, axis=1), axis=0)  # a sum is the same in any order
    with torch.inference_mode():
        return Model("words", "word", list(rows), Words()(torch.from_numpy(rows)).tolist())


def sentences() -> Model:
    known = some_sentences(KNOWN)
    return Model("backwards", "tokens", [np.array(each) for each in known], [backwards(each) for each in known])


@dataclass
class Crowd:
    """What clients do and see. `left` is how many calls are still to be made."""

    port: int
    models: list[Model]
    left: int
    seen: Counter[str] = field(default_factory=Counter)

    async def client(self, seed: int) -> None:
        """Make calls one after another on one connection, a new one after hanging up."""
        random = Random(seed)
        connection = await self._connected()
        while self.left:
            self.left -= 1
            fate = random.choices(("answered", "wrong", "hung up within the body", "hung up waiting"), (88, 4, 4, 4))[0]
            if fate == "answered":
                await self._right_call(random, *connection)
            elif fate == "wrong":
                await self._wrong_call(random, *connection)
            else:
                await self._hang_up(random, connection[1], within=fate == "hung up within the body")
                connection = await self._connected()
            self.seen[fate] += 1
        connection[1].close()

    async def _right_call(self, random: Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        model = random.choice(self.models)
        chosen = random.choices(range(len(model.rows)), k=random.choice((1, 1, 2, 3)))
        await self._write(writer, self._pieces(random, model, model.batch(chosen)))
        reply = await read_reply(reader)
        assert reply.status == 200, bytes(reply.data)
        found = outputs(reply)
        for i, row in zip(chosen, found, strict=True):
            wanted = model.answers[i]
            np.testing.assert_allclose(row[: len(wanted)], wanted, rtol=1e-3, atol=1e-4)
            assert not np.any(row[len(wanted) :])  # the padding of an answer

    async def _wrong_call(self, random: Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send a word that the model does not know, or one byte too few; both show when all has arrived."""
        if random.random() < 0.5:
            await self._write(writer, self._pieces(random, self.models[2], np.full((1, 3), 99)))
        else:
            body, json_bytes = binary_body({"word": np.zeros((2, 3), np.int64)})
            await self._write(writer, written("words", list(odd_parts(body[:-1], random)), json_bytes, chunked=True))
        assert (await read_reply(reader)).status == 400

    async def _hang_up(self, random: Random, writer: asyncio.StreamWriter, *, within: bool) -> None:
        model = random.choice(self.models)
        pieces = self._pieces(random, model, model.batch(random.choices(range(len(model.rows)), k=3)))
        await self._write(writer, [b"".join(pieces)[:-7]] if within else pieces)
        await asyncio.sleep(random.choice((0.0, 0.001, 0.004)))
        writer.transport.abort()

    async def _write(self, writer: asyncio.StreamWriter, pieces: list[bytes]) -> None:
        """Write each piece by itself, so that the frontend sees them arrive one after another."""
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)

    def _pieces(self, random: Random, model: Model, rows: Array) -> list[bytes]:
        """Write a call in one of the ways that there are."""
        inputs, chunked = {model.input: rows}, random.random() < 0.5
        rest = {"parameters": {"binary_data_output": random.random() < 0.5}}
        way = random.choice(("binary", "binary", "json", "raw") if len(rows) == 1 else ("binary", "binary", "json"))
        json_bytes: int | None = None
        if way == "binary":
            body, json_bytes = binary_body(inputs, **rest)
        elif way == "raw":
            body, json_bytes = rows.tobytes(), 0
        else:
            body = json_body(inputs, **rest)
        parts = list(odd_parts(body, random)) if random.random() < 0.7 else [body]
        pieces = written(model.name, parts, json_bytes, chunked=chunked)
        return pieces if random.random() < 0.7 else [b"".join(pieces)]

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


def outputs(reply: Reply) -> Array:
    """Return the only output of a reply, from JSON or binary."""
    data = bytes(reply.data)
    size = int(reply.headers.get("inference-header-content-length", len(data)))
    (output,) = json.loads(data[:size])["outputs"]
    if "data" in output:
        return np.array(output["data"]).reshape(output["shape"])
    kind: Any = {"FP32": np.float32, "INT64": np.int64}[output["datatype"]]
    return np.frombuffer(data[size:], kind).reshape(output["shape"])


@pytest.mark.parametrize("piece", range(PIECES))
def test_every_answer_of_a_crowd_belongs_to_its_request(models: Path, piece: int) -> None:
    async def test() -> None:
        settings = EngineConfig(slots=SLOTS)
        async with real_frontend(models, engine=settings, policy=PolicyConfig("lazy+")) as (engine, frontend):
            crowd = Crowd(frontend.port, [chain(), words(), sentences()], CALLS)
            async with asyncio.TaskGroup() as group:
                for seed in range(CLIENTS):
                    group.create_task(crowd.client(CLIENTS * piece + seed))
            assert crowd.seen.total() == CALLS
            assert len(crowd.seen) == 4
            await until_all_is_free(engine)

    uvloop.run(test())
