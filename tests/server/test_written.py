"""Models that write texts: what a client sends and gets is text, whole or in pieces, over HTTP and gRPC."""

import json
from collections.abc import Iterator
from dataclasses import replace
from queue import Queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from latebind.domain.model import LENGTH, About, Media, RawInput, Task, TensorSpec
from latebind.domain.sizes import Dim
from latebind.preprocessing.settings import Role, TextSettings
from latebind.preprocessing.text import TextPreprocessor
from latebind.preprocessing.tokenizer import read_tokenizer
from tests.server.arithmetic import Arithmetic, spec
from tests.server.conftest import BOTH, PATIENCE, Site, address, opened

LONGEST = 60
ECHO = "/v2/models/echo"
TEXTS = ["höher als 3 €", "a", "色は 🙂 匂へど", "plain words"]


def preprocessor() -> TextPreprocessor:
    """Return one whose tokens are pieces of characters, and whose token 0 is left out of texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=270, special_tokens=["<pad>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["plain words are words"], trainer)
    settings = TextSettings(inputs={Role.IDS: "x"}, longest=LONGEST)
    return TextPreprocessor(settings, read_tokenizer(tokenizer.to_str().encode()), writes=True)


MODEL = replace(
    spec(
        "echo",
        [TensorSpec("x", "int64", (LONGEST,), 0, sizes=(LENGTH,))],
        [TensorSpec("y", "int64", (LONGEST,), 0)],
        Dim(LENGTH, 1, LONGEST),
    ),
    about=About(Task.GENERATE, (RawInput("text", Media.TEXT),)),
)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A frontend whose only model, `echo`, says what it reads: a text becomes tokens, and these a text."""

    def gateway() -> Arithmetic:
        found = Arithmetic(MODEL)
        found.preprocessors = {"echo": preprocessor()}
        return found

    with opened(BOTH, gateway=gateway) as site:
        yield site


def tokens_of(text: str) -> list[int]:
    (row,) = preprocessor().prepare({"text": [text]})
    return [int(token) for token in row.tensors["x"]]


def events(site: Site, body: dict[str, Any]) -> list[dict[str, Any]]:
    reply = site.post(f"{ECHO}/generate_stream", body)
    assert reply.status == 200
    return [json.loads(line[6:]) for line in reply.body.decode().split("\n\n") if line]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_answered_by_a_text(site: Site, text: str) -> None:
    reply = site.post(f"{ECHO}/generate", {"text": text}).json()
    assert (reply["text"], reply["y"]) == (text, tokens_of(text))


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_of_a_stream_join_to_the_text(site: Site, text: str) -> None:
    pieces = events(site, {"text": text})
    assert "".join(piece["text"] for piece in pieces) == text
    assert [token for piece in pieces for token in piece["y"]] == tokens_of(text)
    assert not any("\ufffd" in piece["text"] for piece in pieces)


def test_what_was_sent_as_tokens_is_answered_by_a_text_too(site: Site) -> None:
    assert site.post(f"{ECHO}/generate", {"x": tokens_of("3 €")}).json()["text"] == "3 €"
    assert "".join(piece["text"] for piece in events(site, {"x": [*tokens_of("3 €")[:-1], 0]})) == "3 \ufffd"


def test_the_text_is_an_output_of_v2(site: Site) -> None:
    given = {"name": "text", "shape": [4, 1], "datatype": "BYTES", "data": TEXTS}
    reply = site.post(f"{ECHO}/infer", {"inputs": [given], "outputs": [{"name": "text"}]}).json()
    assert reply["outputs"] == [{"name": "text", "datatype": "BYTES", "shape": [4, 1], "data": TEXTS}]
    both = site.post(f"{ECHO}/infer", {"inputs": [given]}).json()["outputs"]
    assert [(output["name"], output["datatype"]) for output in both] == [("y", "INT64"), ("text", "BYTES")]
    tokens = {"name": "x", "shape": [1, 1], "datatype": "INT64", "data": tokens_of("a")}
    assert site.post(f"{ECHO}/infer", {"inputs": [tokens]}).json()["outputs"][1]["data"] == ["a"]
    described = site.get(ECHO).json()["outputs"]
    assert described[1] == {"name": "text", "datatype": "BYTES", "shape": [-1, 1]}
    assert site.get(f"{ECHO}/config").json()["output"][1] == {"name": "text", "data_type": "TYPE_STRING", "dims": [1]}
    best = {"name": "text", "parameters": {"classification": 1}}
    assert site.post(f"{ECHO}/infer", {"inputs": [given], "outputs": [best]}).status == 400


def test_tritonclient_gets_texts(site: Site) -> None:
    array = np.array([[text] for text in TEXTS], dtype=np.object_)
    for kind, place in ((triton_http, f"127.0.0.1:{site.port}"), (triton_grpc, address(site))):
        given = kind.InferInput("text", [4, 1], "BYTES")
        given.set_data_from_numpy(array)
        with kind.InferenceServerClient(place) as client:
            found = client.infer("echo", [given], outputs=[kind.InferRequestedOutput("text")]).as_numpy("text")
        assert [text.decode() for text in found[:, 0]] == TEXTS


def test_grpc_streams_texts(site: Site) -> None:
    given = triton_grpc.InferInput("text", [1, 1], "BYTES")
    given.set_data_from_numpy(np.array([[TEXTS[0]]], dtype=np.object_))
    responses: Queue[tuple[Any, Any]] = Queue()
    with triton_grpc.InferenceServerClient(address(site)) as client:
        client.start_stream(lambda result, error: responses.put((result, error)))
        client.async_stream_infer("echo", [given], parameters={"stream": True})
        said, last = "", False
        while not last:
            result, error = responses.get(timeout=PATIENCE)
            assert error is None
            said += result.as_numpy("text")[0, 0].decode()
            last = result.get_response().parameters["triton_final_response"].bool_param
        client.stop_stream()
    assert said == TEXTS[0]
