"""What clients are told, in each form, of a model that fails, is full or late; and calls that nobody waits for."""

import asyncio
import base64
import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from latebind.domain.model import About, Task, TensorSpec
from tests.server.arithmetic import COMPUTE, ERRORS, SPECS_BY_NAME, Arithmetic
from tests.server.conftest import PATIENCE, Site, opened, until
from tests.server.words import RAW, Words

FAILING = [name for name in ERRORS if name != "jammed"]
EMBEDS = replace(
    SPECS_BY_NAME["reads"], outputs=(TensorSpec("embedding", "float32", (2,)),), about=About(Task.EMBED, RAW)
)
RERANKS = replace(EMBEDS, outputs=(TensorSpec("logits", "float32", (1,)),), about=About(Task.RERANK, RAW))


def failing() -> Arithmetic:
    found = Arithmetic(
        SPECS_BY_NAME["scalar"],
        *[replace(EMBEDS, name=name) for name in (*FAILING, "stuck", "void")],
        replace(RERANKS, name="endless"),
    )
    found.preprocessors = {name: Words() for name in found.models}
    return found


@pytest.fixture(scope="module")
def fails() -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(COMPUTE, "void", lambda rows: {"embedding": np.full((len(rows["ids"]), 2), np.nan, np.float32)})
        patch.setitem(COMPUTE, "endless", lambda rows: {"logits": np.full((len(rows["ids"]), 1), np.inf, np.float32)})
        with opened(gateway=failing) as found:
            yield found


STATUSES = {"full": (503, 429), "late": (504, 504), "gone": (503, 503), "failing": (500, 424), "crashing": (500, 424)}


@pytest.mark.parametrize("model", FAILING)
def test_a_failure_has_the_status_and_the_form_of_the_api(fails: Site, model: str) -> None:
    reply = fails.post("/v1/embeddings", {"model": model, "input": ["a", "b c"]})
    as_tei = fails.post(f"/models/{model}/embed", {"inputs": "a"})
    assert (reply.status, as_tei.status) == STATUSES[model]
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    assert set(as_tei.json()) == {"error", "error_type"}
    for text in (reply.json()["error"]["message"], as_tei.json()["error"]):
        assert "/srv" not in text
        assert ("request id" in text) == (STATUSES[model][0] == 500)
    assert ("retry-after" in reply.headers) == ("retry-after" in as_tei.headers) == (reply.status == 503)


def test_what_is_no_number_is_an_error_in_json_and_there_in_base64(fails: Site) -> None:
    body = {"model": "void", "input": "a"}
    refused = fails.post("/v1/embeddings", body)
    assert refused.status == 500
    assert "NaN or infinity" in refused.json()["error"]["message"]
    assert fails.post("/models/void/embed", {"inputs": "a"}).status == 424
    packed = fails.post("/v1/embeddings", {**body, "encoding_format": "base64"}).json()["data"][0]["embedding"]
    assert np.isnan(np.frombuffer(base64.b64decode(packed), "<f4")).all()
    for path, name in (("/rerank", "texts"), ("/v2/rerank", "documents")):
        ranked = fails.post(path, {"query": "a", name: ["b"]})
        assert ranked.status == (424 if path == "/rerank" else 500)
        assert "NaN or infinity" in ranked.json()["message"]


def test_who_hangs_up_ends_the_call(fails: Site) -> None:
    text = json.dumps({"model": "stuck", "input": ["a", "b c"]}).encode()
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(text)

    async def happened(event: asyncio.Event) -> bool:
        async with asyncio.timeout(PATIENCE):
            return await event.wait()

    with fails.connect() as connection:
        connection.sendall(head + text)
        fails.await_(happened(fails.gateway.stuck))
    fails.await_(happened(fails.gateway.cancelled))
    until(lambda: fails.taken == 0)
    assert fails.is_well()
