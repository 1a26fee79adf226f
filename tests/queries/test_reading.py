"""Queries that begin with texts, over real models that read them, through a real server."""

import asyncio
import io
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import copytree
from signal import SIGKILL
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http as triton_http
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor, nn
from typer.testing import CliRunner

from latebind.bench.server import serving
from latebind.cli.main import app
from latebind.domain.config import FrontendConfig
from latebind.domain.model import About, Media, RawInput, Task
from latebind.preprocessing.settings import FORMAT, PREPROCESSING, TOKENIZER, PictureSettings, Stored
from latebind.program.build import build_program
from latebind.program.metadata import read_model
from latebind.repository.directory import MODEL, ModelDirectory, json_bytes
from latebind.server.frontend import Frontend
from tests.building import made_once
from tests.engine.started import serving as engines_for
from tests.reading import LABELS, LONGEST, SENTENCES, answered, tokenizer_of
from tests.server.conftest import PATIENCE
from tests.server.real import read_reply, written
from tests.server.tasks.conftest import Served, readers_made

ROUTE = """
[inputs.sentence]
kind = "text"

[nodes.gate]
models = ["intents"]
inputs.text = "sentence"

[nodes.known]
models = ["embedder"]
inputs.text = "sentence"
when = 'label(gate.logits) in ["weather", "music"]'

[nodes.other]
models = ["plain"]
inputs.text = "sentence"
when = 'label(gate.logits) not in ["weather", "music"]'

[nodes.again]
models = ["intents"]
inputs.text = "sentence"
when = 'label(gate.logits) == "alarm"'

[outputs]
embedding = "first(known.embedding, other.embedding)"
topic = "label(gate.logits)"
alarm = "label(again.logits)"
"""
JUDGE = """
[nodes.fit]
models = ["reranker"]
inputs.text_pair = "text_pair"

[nodes.about]
models = ["intents"]
inputs.text = "text_pair"

[outputs]
score = "fit.logits"
topic = "label(about.logits)"
"""
TOPIC = """
[nodes.quick]
models = ["intents"]

[nodes.sure]
models = ["intents"]
when = "max(softmax(quick.logits)) < 0.6"

[outputs]
logits = "first(sure.logits, quick.logits)"
"""
VECTOR = """
[nodes.topic]
models = ["intents"]

[nodes.query]
models = ["embedder"]
when = 'label(topic.logits) == "alarm"'

[nodes.other]
models = ["embedder"]
when = 'not label(topic.logits) == "alarm"'

[outputs]
embedding = "first(query.embedding, other.embedding)"
"""


SCENE = """
[nodes.see]
models = ["sees"]

[nodes.read]
models = ["intents"]
when = 'label(see.logits) == "dark"'

[outputs]
seen = "label(see.logits)"
read = "label(read.logits)"
"""
EITHER = """
[nodes.embed]
models = ["plain", "embedder"]
accuracy = {accuracy}

[outputs]
embedding = "embed.embedding"
"""
LONG = "play " * 40
QUERIES = {
    "route": ROUTE,
    "judge": JUDGE,
    "topic": TOPIC,
    "vector": VECTOR,
    "scene": SCENE,
    "first": EITHER.format(accuracy=[0.9, 0.5]),
    "second": EITHER.format(accuracy=[0.5, 0.9]),
    "hurried": f"deadline_ms = 0.001\n{TOPIC}",
}


class Sees(nn.Module):
    """Whether a picture is dark or light."""

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        mean = pixels.mean((1, 2, 3)) - 0.5
        return {"logits": torch.stack([-mean, mean], 1)}


def build(folder: Path, readers: Path) -> None:
    for name in ("embedder", "plain", "intents", "reranker"):
        copytree(readers / name, folder / name)
    build_program(
        Sees(),
        {"pixels": torch.rand(2, 3, 8, 8)},
        directory=folder / "sees" / "1",
        name="sees",
        backends=["eager"],
        min_stage_seconds=0.0,
        max_overhead=None,
        max_batch=8,
        about=About(Task.CLASSIFY, (RawInput("image", Media.PICTURE),), ("dark", "light")),
        files={PREPROCESSING: json_bytes(Stored(FORMAT, PictureSettings("pixels", (8, 8))))},
    )
    for name, text in QUERIES.items():
        (folder / f"{name}.query.toml").write_text(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    readers = readers_made(tmp_path_factory)
    return made_once(tmp_path_factory, "reading", lambda folder: build(folder, readers))


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    with serving(folder, "--deadline-ms", str(int(PATIENCE * 1e3))) as url:
        yield Served(url, tokenizer_of(folder))


def texts(name: str, *some: str) -> dict[str, Any]:
    return {"name": name, "shape": [len(some), 1], "datatype": "BYTES", "data": list(some)}


def told(served: Served, query: str, *inputs: dict[str, Any], **more: Any) -> Any:
    return served.told(f"/v2/models/{query}/infer", {"inputs": list(inputs), **more})


def topic_of(tokenizer: Tokenizer, text: str) -> str:
    return LABELS[int(answered(tokenizer, "intents", text).argmax())]


def some_texts(tokenizer: Tokenizer, *, each: int = 3) -> list[str]:
    """Texts of 1 to 9 words, so many of them about each topic."""
    random, found = Random(0), list[str]()
    words = " ".join(SENTENCES).split()
    left = dict.fromkeys(LABELS, each)
    while any(left.values()):
        text = " ".join(random.choices(words, k=random.randint(1, 9)))
        topic = topic_of(tokenizer, text)
        if left[topic] and len(tokenizer.encode(text).ids) <= LONGEST:
            left[topic] -= 1
            found.append(text)
    return found


def outputs(reply: Any) -> dict[str, Any]:
    return {one["name"]: one["data"] for one in reply["outputs"]}


def close(found: Any, right: Tensor) -> None:
    torch.testing.assert_close(torch.tensor(found), right, rtol=0, atol=1e-5)


# Answers --------------------------------------------------------------------------------------------------------------


def test_a_text_is_read_for_each_step_and_the_label_of_the_first_chooses_the_next(served: Served) -> None:
    some = some_texts(served.tokenizer)
    for text in some:
        reply = told(served, "route", texts("sentence", text))
        found, topic = outputs(reply), topic_of(served.tokenizer, text)
        close(found["embedding"], answered(served.tokenizer, "plain" if topic == "alarm" else "embedder", text))
        assert found["topic"] == [topic]
        assert found["alarm"] == ["alarm" if topic == "alarm" else ""]  # no step has run that could say
        assert reply["parameters"]["tokens"] == 3 * len(served.tokenizer.encode(text).ids)  # read in three ways
    together = outputs(told(served, "route", texts("sentence", *some)))
    assert together["topic"] == [topic_of(served.tokenizer, text) for text in some]


def test_two_texts_are_judged_together_and_one_of_them_by_itself(served: Served) -> None:
    first, *others = some_texts(served.tokenizer, each=2)
    others = [text for text in others if len(served.tokenizer.encode(first, text).ids) <= LONGEST]
    found = outputs(told(served, "judge", texts("text", *[first] * len(others)), texts("text_pair", *others)))
    close(found["score"], torch.cat([answered(served.tokenizer, "reranker", first, text) for text in others]))
    assert found["topic"] == [topic_of(served.tokenizer, text) for text in others]


def test_models_of_one_node_read_each_in_its_own_way_and_any_may_be_picked(served: Served) -> None:
    text = some_texts(served.tokenizer)[0]
    for query, model in (("first", "plain"), ("second", "embedder")):
        reply = told(served, query, texts("text", text))
        assert reply["parameters"]["embed.model"] == model
        close(outputs(reply)["embedding"], answered(served.tokenizer, model, text))
        found = served.told("/v1/embeddings", {"model": query, "input": text})["data"][0]
        close(found["embedding"], answered(served.tokenizer, model, text))


def test_the_deadline_of_a_query_counts_what_is_read(served: Served) -> None:
    body = {"inputs": [texts("text", LONG * 20)], "parameters": {"truncate": True}}
    reply = served.ask("/v2/models/hurried/infer", body)
    assert (reply.status, reply.json()["error"]) == (
        504,
        "the inputs could not be read by the deadline: allow more time (`timeout`)",
    )


def test_a_picture_is_seen_and_then_a_text_is_read(served: Served) -> None:
    for level, seen in ((20, "dark"), (240, "light")):
        file = io.BytesIO()
        Image.new("RGB", (31, 17), (level,) * 3).save(file, "PNG")
        text = some_texts(served.tokenizer)[0]
        with triton_http.InferenceServerClient(served.url.removeprefix("http://")) as client:
            given = [triton_http.InferInput(name, [1, 1], "BYTES") for name in ("image", "text")]
            for one, value in zip(given, (file.getvalue(), text.encode()), strict=True):
                one.set_data_from_numpy(np.array([[value]], np.object_))
            reply = client.infer("scene", given)
        read = topic_of(served.tokenizer, text).encode() if seen == "dark" else b""
        assert reply.as_numpy("seen").tolist() == [[seen.encode()]]
        assert reply.as_numpy("read").tolist() == [[read]]


def test_clients_of_grpc_and_of_tensors_get_the_same(folder: Path) -> None:
    tokenizer = tokenizer_of(folder)
    text = some_texts(tokenizer)[0]

    async def test() -> None:
        config = FrontendConfig(port=0, deadline=PATIENCE, grpc_port=0)
        async with (
            engines_for(folder) as (engines, _),
            Frontend(engines, config) as frontend,
            triton_grpc.InferenceServerClient(f"127.0.0.1:{frontend.grpc_port}") as stub,
        ):
            about = await stub.get_model_metadata("vector", as_json=True)
            assert [(one["name"], one["datatype"]) for one in about["inputs"]] == [("text", "BYTES")]
            given = triton_grpc.InferInput("text", [1, 1], "BYTES")
            given.set_data_from_numpy(np.array([[text.encode()]], np.object_))
            right = answered(tokenizer, "embedder", text)
            close((await stub.infer("vector", [given])).as_numpy("embedding")[0], right)
            encoding, tensors = tokenizer.encode(text), []
            for node in ("topic", "query"):
                rows = (encoding.ids, encoding.attention_mask, encoding.type_ids)
                for name, values in zip(("ids", "mask", "types"), rows, strict=True):
                    one = triton_grpc.InferInput(f"{node}.{name}", [1, len(values)], "INT64")
                    one.set_data_from_numpy(np.array([values], np.int64))
                    tensors.append(one)
            close((await stub.infer("vector", tensors)).as_numpy("embedding")[0], right)

    asyncio.run(asyncio.wait_for(test(), 300.0))


def test_metadata_tell_texts_and_labels_as_bytes(served: Served) -> None:
    about = served.call("GET", "/v2/models/route").json()
    assert about["inputs"] == [{"name": "sentence", "datatype": "BYTES", "shape": [-1, 1]}]
    assert [(one["name"], one["datatype"], one["shape"]) for one in about["outputs"]] == [
        ("embedding", "FP32", [-1, 16]),
        ("topic", "BYTES", [-1, 1]),
        ("alarm", "BYTES", [-1, 1]),
    ]
    config = served.call("GET", "/v2/models/route/config").json()
    assert [(one["data_type"], one["dims"]) for one in config["output"]] == [
        ("TYPE_FP32", [16]),
        ("TYPE_STRING", [1]),
        ("TYPE_STRING", [1]),
    ]
    assert config["input"] == [{"name": "sentence", "data_type": "TYPE_STRING", "dims": [1]}]


def test_what_queries_read_is_listed(folder: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["models", str(folder), "--json", str(tmp_path / "told.json")])
    assert result.exit_code == 0
    queries = json.loads((tmp_path / "told.json").read_text())["queries"]
    takes = {one["query"]: one["takes"] for one in queries}
    assert takes["route"] == "sentence (text)"
    assert takes["scene"] == "image (picture), text (text)"


def test_a_row_in_plain_json_is_answered_with_its_label(served: Served) -> None:
    text = some_texts(served.tokenizer)[0]
    found = served.told("/v2/models/route/generate", {"sentence": text})
    assert found["topic"] == topic_of(served.tokenizer, text)


def test_a_traced_call_tells_how_long_its_inputs_were_read(served: Served) -> None:
    body = {"inputs": [texts("sentence", "a")], "id": "followed"}
    reply = served.ask("/v2/models/route/infer", body, {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"})
    assert reply.status == 200
    traced = list[Any]()
    while not traced:
        traced = [one for one in served.call("GET", "/v2/traces").json()["traces"] if one["id"] == "followed"]
    assert 0 < traced[0]["read"] < traced[0]["seconds"]
    assert traced[0]["read"] <= traced[0]["rows"][0]["arrived"]


# Endpoints of other tools ---------------------------------------------------------------------------------------------


def test_embeddings_are_answered_by_a_query_whose_answer_is_one(served: Served) -> None:
    some = some_texts(served.tokenizer)
    found = served.told("/v1/embeddings", {"model": "vector", "input": some})["data"]
    for one, text in zip(found, some, strict=True):
        close(one["embedding"], answered(served.tokenizer, "embedder", text))


def test_predict_and_rerank_are_answered_by_queries_of_such_models(served: Served) -> None:
    first, *others = some_texts(served.tokenizer)
    others = [text for text in others if len(served.tokenizer.encode(first, text).ids) <= LONGEST]
    best = max(others, key=lambda text: float(answered(served.tokenizer, "reranker", first, text)))
    found = served.told("/v1/rerank", {"model": "judge", "query": first, "documents": others})
    assert others[found["results"][0]["index"]] == best
    found = served.told("/classify", {"model": "topic", "input": [first]})
    assert found["data"][0]["label"] == topic_of(served.tokenizer, first)


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/embeddings", {"model": "route", "input": "a"}, "model 'route' reads sentence, not text"),
        ("/v1/embeddings", {"model": "vector", "input": [5, 6]}, "'vector' takes no tokens: send texts"),
        ("/v1/embeddings", {"model": "scene", "input": "a"}, "model 'scene' is a query whose first output"),
        ("/v1/embeddings", {"model": "judge", "input": "a"}, "model 'judge' is one to rerank"),
        ("/classify", {"model": "judge", "input": ["a"]}, "'judge'"),
    ],
)
def test_an_endpoint_that_a_query_cannot_answer_says_so(served: Served, path: str, body: Any, said: str) -> None:
    reply = served.ask(path, body)
    assert reply.status == 400
    assert said in reply.body.decode()


# What cannot be read --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([texts("sentence", "a", LONG)], "element 1 of 'sentence' has"),
        ([texts("sentence", "\0")], "has a NUL"),
        ([texts("sentence", "\ud800")], ""),
        ([texts("text", "a")], "no input 'text'"),
        ([], ""),
        ([texts("sentence", "a"), texts("sentence", "a")], "given twice"),
        ([texts("sentence", *["a"] * 100_000)], "rows"),
        ([{**texts("sentence", "a"), "datatype": "INT64"}], "must be BYTES"),
        ([{**texts("sentence", "a"), "data": [7]}], "not BYTES"),
        ([{**texts("sentence", "a"), "shape": [2]}], "has 1 elements"),
    ],
)
def test_texts_that_no_step_can_read_are_refused_and_the_next_is_answered(
    served: Served, inputs: Any, said: str
) -> None:
    reply = served.ask("/v2/models/route/infer", {"inputs": inputs})
    assert 400 <= reply.status < 500
    assert said in reply.json()["error"]
    assert "Traceback" not in reply.body.decode()
    assert outputs(told(served, "route", texts("sentence", "a")))["topic"] == [topic_of(served.tokenizer, "a")]


def test_a_text_that_is_too_long_is_cut_where_the_call_says_so(served: Served) -> None:
    reply = told(served, "route", texts("sentence", LONG), parameters={"truncate": True})
    assert reply["parameters"]["truncated"] is True


def test_a_hundred_odd_texts_are_read_or_refused(served: Served) -> None:
    random = Random(1)
    for _ in range(100):
        text = "".join(chr(random.choice((random.randrange(32, 127), random.randrange(1, 0xD800)))) for _ in range(30))
        reply = served.ask("/v2/models/judge/infer", {"inputs": [texts("text", text), texts("text_pair", text[:3])]})
        assert reply.status in (200, 400), reply.body
        if reply.status == 400:
            assert reply.json()["error"].startswith("element 0 of 'text")


# Engines and versions -------------------------------------------------------------------------------------------------


def test_a_query_is_read_as_before_by_the_engine_that_follows_one_that_died(folder: Path) -> None:
    text, tokenizer = "play something slow", tokenizer_of(folder)
    body = json.dumps({"inputs": [texts("text", text)]}).encode()

    async def test() -> None:
        async with engines_for(folder) as (engines, _):
            reads = engines.preprocessor("vector")
            async with Frontend(engines, FrontendConfig(port=0, deadline=PATIENCE)) as frontend:
                os.kill(engines.process_id, SIGKILL)
                while engines.ready():  # a call that this engine has been sent fails with it
                    await asyncio.sleep(0.01)
                reader, writer = await asyncio.open_connection("127.0.0.1", frontend.port)
                for piece in written("vector", [body], None, chunked=False):
                    writer.write(piece)
                reply = json.loads((await read_reply(reader)).data)
                writer.close()
            assert "error" not in reply, reply
            close(outputs(reply)["embedding"], answered(tokenizer, "embedder", text))
            assert (await engines.metrics())["restarts"] == 1
            assert engines.preprocessor("vector") is reads

    asyncio.run(asyncio.wait_for(test(), 300.0))


def swapped(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer of a version after this one: other ids for the same words."""
    file = json.loads(tokenizer.to_str())
    words = file["model"]["vocab"]
    pairs = [word for word in words if not word.startswith("[")]
    for one, other in zip(pairs[::2], pairs[1::2], strict=False):
        words[one], words[other] = words[other], words[one]
    return Tokenizer.from_str(json.dumps(file))


def test_a_call_of_a_query_is_read_and_answered_by_one_version_of_its_models(folder: Path, tmp_path: Path) -> None:
    copytree(folder, tmp_path / "models")
    second = tmp_path / "models" / "embedder" / "2"
    copytree(second.parent / "1", second)
    tokenizer = tokenizer_of(folder)
    directory, other = ModelDirectory.open(second), swapped(tokenizer)
    directory.write_files(
        {MODEL: json_bytes(replace(read_model(directory), version="2")), TOKENIZER: other.to_str().encode()}
    )
    some = some_texts(tokenizer)
    wanted = {
        version: torch.stack([answered(reads, "embedder", text) for text in some]).numpy()
        for version, reads in {"1": tokenizer, "2": other}.items()
    }
    assert not np.allclose(wanted["1"], wanted["2"], atol=0.01)
    body = json.dumps({"inputs": [texts("text", *some)]}).encode()
    seen: Counter[str] = Counter()

    async def client(port: int, over: asyncio.Event) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while not over.is_set():
            for piece in written("vector", [body], None, chunked=False):
                writer.write(piece)
            reply = json.loads((await read_reply(reader)).data)
            assert "error" not in reply, reply
            found = np.array(outputs(reply)["embedding"]).reshape(len(some), -1)
            (version,) = [one for one, right in wanted.items() if np.allclose(found, right, atol=1e-4)]
            seen[version] += 1
        writer.close()

    async def test() -> None:
        over = asyncio.Event()
        async with (
            engines_for(tmp_path / "models") as (engines, catalogue),
            Frontend(engines, FrontendConfig(port=0, deadline=PATIENCE)) as frontend,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(3):
                group.create_task(client(frontend.port, over))
            for version in ("1", "2", "1"):
                await catalogue.load("embedder", version)
                before = seen[version]
                while seen[version] < before + 5:
                    await asyncio.sleep(0.01)
            over.set()

    asyncio.run(asyncio.wait_for(test(), 300.0))
