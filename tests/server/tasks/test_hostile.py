"""Bodies that are nearly right, or nothing at all: each gets an answer, or an error in the form of its API.

`HYPOTHESIS_PROFILE=thorough pytest tests/server/tasks/test_hostile.py` sends 10,000 to each path.
"""

import copy
import http.client
import json
import os
from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.reading import SENTENCES, answered
from tests.server.conftest import PATIENCE, Response
from tests.server.hostile.wire import LEAKS, LONGEST
from tests.server.tasks.conftest import Served

COUNT = 10_000 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 300
OPENAI = {"error": {"message": str, "type": str, "param": type(None), "code": str}}
COHERE = {"message": str, "detail": str}
TEI = {"error": str, "error_type": str}
RIGHT: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "/v1/embeddings": (
        OPENAI,
        [
            {"model": "embedder", "input": SENTENCES[:2], "encoding_format": "base64", "dimensions": 4, "user": "x"},
            {"model": "plain", "input": [[5, 6], [7]], "truncate": True, "truncate_prompt_tokens": -1},
        ],
    ),
    "/classify": (OPENAI, [{"model": "intents", "input": SENTENCES[:2], "truncate": True}, {"input": [5, 6]}]),
    "/score": (OPENAI, [{"text_1": "a", "text_2": ["b", "c"], "model": "reranker"}]),
    "/rerank": (
        {**TEI, **COHERE},
        [
            {"query": "a", "texts": ["b", "c"], "raw_scores": True, "return_text": True, "truncate": False},
            {"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1, "return_documents": True},
        ],
    ),
    "/v1/rerank": (COHERE, [{"query": "a", "documents": ["b", {"text": "c"}], "rank_fields": ["text"], "top_n": 1}]),
    "/v2/rerank": (COHERE, [{"query": "a", "documents": ["b", "c"], "max_tokens_per_doc": 4096, "priority": 0}]),
    "/embed": (
        TEI,
        [{"model": "embedder", "inputs": ["a", "b"], "normalize": True, "prompt_name": "query", "dimensions": 3}],
    ),
    "/predict": (
        TEI,
        [
            {"model": "intents", "inputs": [["a"], ["b", "c"]], "raw_scores": True, "truncation_direction": "Right"},
            {"model": "tagger", "inputs": "a b", "parameters": {"aggregation_strategy": "simple", "ignore_labels": []}},
            {"model": "intents", "inputs": ["a", "b"], "parameters": {"top_k": 1, "function_to_apply": "none"}},
        ],
    ),
    "/predict_tokens": (TEI, [{"inputs": ["a b", "c"], "aggregation_strategy": "none", "ignore_labels": ["O"]}]),
    "/": (TEI, [{"inputs": "a"}]),
}
ODD: list[Any] = [
    *[None, True, False, 0, -1, 1, 2**31, 2**63, -(2**64), 10**400, 0.5, 1e308, "", " ", "a", "\0", "\u202e", "é" * 40],
    *[
        [],
        [[]],
        [[[]]],
        {},
        {"text": "a"},
        [None],
        ["a", 1],
        [1, 2],
        [[1], [2]],
        ["a"] * 5000,
        "b" * 300_000,
        [0] * 9999,
    ],
    *["\ud800", "NaN", "embedder", "tagger", "reranker", "intents", "left", "base64", "\n", ["\ud800"], [2**70], [-1]],
]
NOTHING = [
    b"",
    b" ",
    b"null",
    b"[]",
    b"{}",
    b"1",
    b'"a"',
    b"\xff\xfe",
    b"{" * 100_000,
    b"[" * 100_000,
    b'{"model":NaN}',
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to everything in a body."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [path, *[found for key in keys for found in places(value[key], (*path, key))]]


def changed(body: Any, random: Random) -> Any:
    """A body with something else in it somewhere, something left out, or something more."""
    body = copy.deepcopy(body)
    for _ in range(random.randrange(1, 4)):
        path = random.choice(places(body))
        if not path:
            continue
        parent = body
        for key in path[:-1]:
            parent = parent[key]
        match random.randrange(4):
            case 0:
                del parent[path[-1]]
            case 1 if isinstance(parent, dict):
                parent["x" + str(path[-1])] = copy.deepcopy(random.choice(ODD))
            case 1:
                parent.append(copy.deepcopy(random.choice(ODD)))
            case _:
                parent[path[-1]] = copy.deepcopy(random.choice(ODD))
    return body


def broken(body: bytes, random: Random) -> bytes:
    """Some bytes of it changed, left out or doubled."""
    parts = bytearray(body)
    for _ in range(random.randrange(1, 6)):
        place = random.randrange(len(parts) + 1)
        match random.randrange(3):
            case 0:
                parts[place : place + 1] = bytes([random.randrange(256)])
            case 1:
                del parts[place : place + random.randrange(1, 8)]
            case _:
                parts[place:place] = random.choice(
                    [b'"', b"[", b"{", b"\\", b"\\ud800", b"\0", b",", b"9" * 50, b"\xc3"]
                )
    return bytes(parts)


def check(reply: Response, form: dict[str, Any]) -> None:
    """See that a reply is an answer, or an error in this form that tells nothing of the server's inside."""
    assert reply.headers["content-type"] == "application/json"
    told = reply.json()
    if reply.status == 200:
        return
    assert 400 <= reply.status < 500, (reply.status, reply.body[:300])
    assert told.keys() == form.keys(), told
    inner, kinds = (told["error"], form["error"]) if isinstance(form.get("error"), dict) else (told, form)
    assert {name: type(value) for name, value in inner.items()} == kinds
    text = inner.get("message") or inner["error"]
    assert text
    assert len(text) <= LONGEST
    assert not LEAKS.search(text)


@pytest.mark.parametrize("path", RIGHT)
def test_every_body_is_answered_or_refused_in_the_form_of_its_api(served: Served, path: str) -> None:
    form, bodies = RIGHT[path]
    random = Random(path)
    connection = http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=PATIENCE)
    seen: Counter[int] = Counter()
    sent = [*NOTHING, *[json.dumps(body).encode() for body in bodies]]
    for number in range(COUNT):
        body = random.choice(bodies)
        if number % 3:
            sent.append(json.dumps(changed(body, random)).encode())
        else:
            sent.append(broken(json.dumps(body).encode(), random))
    for one in sent:
        connection.request("POST", path, one)
        reply = connection.getresponse()
        response = Response(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        check(response, form)
        seen[response.status] += 1
    connection.close()
    assert seen[200] >= len(bodies) or path == "/"
    assert seen[400] > COUNT / 10
    told = served.told("/v1/embeddings", {"model": "embedder", "input": SENTENCES[0]})
    wanted = answered(served.tokenizer, "embedder", SENTENCES[0])
    np.testing.assert_allclose(told["data"][0]["embedding"], wanted, atol=1e-6)


HEADERS = {
    "Latebind-Timeout": ["-1", "x", "1e400", "nan", "0x10", "9" * 5000],
    "Latebind-Priority": ["256", "-1", "1.5", "9" * 5000, "\u00b2"],
    "Latebind-Waited": ["x", "-1", "nan"],
    "X-Request-Id": ["a" * 300, "<b>", "\u00e9"],
    "Traceparent": ["00-0-0-0", "x" * 200],
}


@pytest.mark.parametrize("header", HEADERS)
def test_headers_of_any_kind_are_taken_or_refused(served: Served, header: str) -> None:
    for value in HEADERS[header]:
        reply = served.ask("/v1/embeddings", {"model": "embedder", "input": "a"}, {header: value})
        check(reply, OPENAI)
        assert (reply.status == 200) == (header in ("X-Request-Id", "Traceparent")), value


@pytest.mark.parametrize("path", RIGHT)
def test_too_much_is_refused_in_the_form_of_its_api(served: Served, path: str) -> None:
    form, bodies = RIGHT[path]
    for name, value in bodies[0].items():
        if name in ("input", "inputs", "texts", "documents", "text_2") and isinstance(value, list):
            many = served.ask(path, {**bodies[0], name: value * 2_049})
            check(many, form)
            assert many.status == 413, many.body
    large = served.call("POST", path, json.dumps({**bodies[0], "more": "a" * (17 << 20)}).encode())
    check(large, form)
    assert large.status == (400 if path == "/" else 413)
    assert served.call("POST", path, json.dumps(bodies[0]).encode(), {"Content-Encoding": "br"}).status in (400, 415)
