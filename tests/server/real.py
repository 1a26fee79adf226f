"""A frontend with a real engine behind it on the test's own event loop, and calls written by hand, byte by byte."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from latebind.bench.client import Reply
from latebind.domain.config import EngineConfig, FrontendConfig, PolicyConfig, ResidencyConfig
from latebind.engine.client import EngineClient
from latebind.engine.order import EngineOrder
from latebind.repository.listing import find_served
from latebind.server.calls import DATATYPES
from latebind.server.frontend import Frontend
from latebind.server.gateway import Array
from latebind.server.limits import Limits
from tests.engine.started import until_slots_are_free
from tests.forked import FORKS


@asynccontextmanager
async def real_frontend(
    models: Path,
    *names: str,
    engine: EngineConfig | None = None,
    policy: PolicyConfig | None = None,
    residency: ResidencyConfig | None = None,
    limits: Limits | None = None,
    deadline: float = 30.0,
    grpc_port: int | None = None,
) -> AsyncIterator[tuple[EngineClient, Frontend]]:
    paths, queries = (tuple(map(str, found)) for found in find_served(models, names))
    settings = engine or EngineConfig(), policy or PolicyConfig()
    order = EngineOrder(paths, *settings, residency=residency or ResidencyConfig(), queries=queries)
    client = await EngineClient.start(order, FORKS)
    try:
        grpc = {"grpc_port": grpc_port}
        async with frontend_before(client, limits=limits, deadline=deadline, grpc=grpc) as frontend:
            yield client, frontend
    finally:
        await client.close()


def frontend_before(
    client: EngineClient, *, limits: Limits | None = None, deadline: float = 30.0, grpc: Mapping[str, Any] | None = None
) -> Frontend:
    """Return a frontend on any free port, still to be entered, before an engine that others may use too."""
    config = FrontendConfig(port=0, deadline=deadline, **(grpc or {}))
    return Frontend(client, config, limits=limits, deadlines=client.deadlines)


async def until_all_is_free(client: EngineClient) -> None:
    """Wait until the engine has nothing and every slot is free."""
    await until_slots_are_free(client)
    assert not client.sent
    assert not any(figures["pending"] for figures in (await client.metrics())["models"].values())


def binary_body(inputs: Mapping[str, Array], **rest: object) -> tuple[bytes, int]:
    """Return a body with binary tensors and the length of its JSON."""
    tensors = [
        {**_described(name, array), "parameters": {"binary_data_size": array.nbytes}} for name, array in inputs.items()
    ]
    text = json.dumps({"inputs": tensors, **rest}).encode()
    return text + b"".join(array.tobytes() for array in inputs.values()), len(text)


def json_body(inputs: Mapping[str, Array], **rest: object) -> bytes:
    tensors = [{**_described(name, array), "data": array.flatten().tolist()} for name, array in inputs.items()]
    return json.dumps({"inputs": tensors, **rest}).encode()


def written(model: str, parts: Sequence[bytes], json_bytes: int | None, *, chunked: bool) -> list[bytes]:
    """Return the pieces of an infer call, the first with its head; chunked ones do not tell the size beforehand."""
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {sum(map(len, parts))}"
    binary = "" if json_bytes is None else f"Inference-Header-Content-Length: {json_bytes}\r\n"
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\n{length}\r\n{binary}\r\n".encode()
    if not chunked:
        return [head, *parts]
    return [head, *(b"%x\r\n%s\r\n" % (len(part), part) for part in parts if part), b"0\r\n\r\n"]


def odd_parts(body: bytes, random: Random) -> Iterator[bytes]:
    """Cut a body into up to five parts of any size."""
    cuts = sorted(random.randrange(len(body) + 1) for _ in range(random.randrange(5)))
    for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
        yield body[start:end]


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    reply = Reply()
    while not reply.whole:
        received = await reader.read(1 << 16)
        if not received:
            raise ConnectionError("the frontend closed the connection before it had answered")
        reply.feed(received)
    return reply


def _described(name: str, array: Array) -> dict[str, object]:
    return {"name": name, "shape": list(array.shape), "datatype": DATATYPES[array.dtype.name]}
