"""Texts and pictures over HTTP and gRPC: every way to send them gives what the tensors give that are made of them."""

import base64
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.grpc import service_pb2

from latebind.server.limits import Limits
from tests.server.conftest import BOTH, Raw, Response, Site, address, opened
from tests.server.hostile.wire import check_clean
from tests.server.rpc.conftest import outputs
from tests.server.words import LONGEST, numbers

READS, VIEWS = "/v2/models/reads", "/v2/models/views"
TEXTS = ["höher als alles", "a", "b c", "d e f g h"]
PICTURES = [bytes([1, 2, 3, 4]), b"\0\xff\x80\n"]
LONG = "w " * (LONGEST + 3)


def scores(text: str) -> list[float]:
    ids = numbers(text)
    return [sum(ids), len(ids), -sum(ids)]


def elements(*some: bytes) -> bytes:
    """BYTES as the binary tensor extension has them."""
    return b"".join([len(one).to_bytes(4, "little") + one for one in some])


def described(*, name: str = "text", shape: Sequence[int] = (1,), **rest: Any) -> dict[str, Any]:
    return {"name": name, "shape": list(shape), "datatype": "BYTES", **rest}


def ask(site: Site, *inputs: dict[str, Any], path: str = READS, outputs: Any = ("scores",), **more: Any) -> Response:
    wanted = {"outputs": [{"name": name} for name in outputs]} if outputs else {}
    return site.post(f"{path}/infer", {"inputs": list(inputs), **wanted, **more})


def ask_binary(site: Site, blobs: bytes, *inputs: dict[str, Any], path: str = READS, **more: Any) -> Response:
    head = json.dumps({"inputs": list(inputs), **more}).encode()
    return site.post(f"{path}/infer", head + blobs, {"Inference-Header-Content-Length": str(len(head))})


def binary(blob: bytes, **about: Any) -> dict[str, Any]:
    return described(parameters={"binary_data_size": len(blob)}, **about)


def message(model: str, *inputs: dict[str, Any], raw: Sequence[bytes] = (), wanted: Sequence[str] = ()) -> Any:
    found = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=raw)
    for one in inputs:
        given = found.inputs.add(name=one["name"], datatype=one["datatype"], shape=one["shape"])
        if "contents" in one:
            given.contents.bytes_contents.extend(one["contents"])
    for name in wanted:
        found.outputs.add(name=name)
    return found


# Texts ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_texts_are_answered_alike_however_they_are_sent(site: Site, raw: Raw, shape: tuple[int, ...]) -> None:
    blob = elements(*[text.encode() for text in TEXTS])
    data: list[list[Any]] = [TEXTS] if len(shape) == 1 else [TEXTS, [[text] for text in TEXTS]]
    replies = [ask(site, described(shape=shape, data=one)) for one in data]
    replies.append(ask_binary(site, blob, binary(blob, shape=shape), outputs=[{"name": "scores"}]))
    right = [scores(text) for text in TEXTS]
    for reply in replies:
        (output,) = reply.json()["outputs"]
        assert output["shape"] == [4, 3]
        assert np.array(output["data"]).reshape(4, 3).tolist() == right
        assert reply.json()["parameters"] == {"left_at": [2] * 4, "stages": 3, "tokens": [3, 1, 2, 5]}
    contents = [text.encode() for text in TEXTS]
    for asked in (
        message("reads", described(shape=shape, contents=contents), wanted=["scores"]),
        message("reads", described(shape=shape), raw=[blob], wanted=["scores"]),
    ):
        response = raw.infer(asked)
        assert outputs(response)[0].tolist() == right
        assert response.parameters["tokens"].string_param == "[3,1,2,5]"


def test_tritonclient_sends_texts_as_it_does_elsewhere(site: Site) -> None:
    array = np.array([[text] for text in TEXTS], dtype=np.object_)
    for kind, place, client in (
        (triton_http, f"127.0.0.1:{site.port}", triton_http.InferenceServerClient),
        (triton_grpc, address(site), triton_grpc.InferenceServerClient),
    ):
        given = kind.InferInput("text", [4, 1], "BYTES")
        given.set_data_from_numpy(array)
        best = kind.InferRequestedOutput("scores", class_count=1)
        with client(place) as server:
            wanted = [kind.InferRequestedOutput("scores")]
            found = server.infer("reads", [given], outputs=wanted).as_numpy("scores")
            assert found.tolist() == [scores(text) for text in TEXTS]
            told = server.infer("reads", [given], outputs=[best]).as_numpy("scores")
            assert [text.decode() for text in told[:, 0]] == [f"{sum(numbers(text)):f}:0:low" for text in TEXTS]


def test_two_texts_make_a_row(site: Site, raw: Raw) -> None:
    pair = described(name="text_pair", data=["b c"])
    reply = ask(site, described(data=["a"]), pair, outputs=("tags",))
    right = [*numbers("a"), 1, *numbers("b c")]
    assert reply.json()["outputs"][0]["data"] == right
    first, second = (elements(text.encode()) for text in ("a", "b c"))
    mixed = ask_binary(site, second, described(data=["a"]), binary(second, name="text_pair"))
    assert mixed.json()["outputs"][1]["data"] == right
    asked = message("reads", described(), described(name="text_pair"), raw=[first, second], wanted=["tags"])
    assert outputs(raw.infer(asked))[0].tolist() == [right]


def test_ids_are_taken_as_before(site: Site, raw: Raw) -> None:
    ids = [{"name": name, "shape": [1, 3], "datatype": "INT64"} for name in ("ids", "mask")]
    data = ([5, 6, 7], [1, 1, 0])
    reply = ask(site, *[{**one, "data": some} for one, some in zip(ids, data, strict=True)])
    assert reply.json()["outputs"][0]["data"] == [11, 2, -11]
    asked = message("reads", *ids, raw=[np.array(some).tobytes() for some in data], wanted=["scores"])
    assert outputs(raw.infer(asked))[0].tolist() == [[11, 2, -11]]


def test_a_text_that_is_too_long_is_refused_or_cut_where_it_may_be_and_the_reply_says_so(site: Site, raw: Raw) -> None:
    given = described(shape=(2,), data=["a", LONG])
    assert f"element 1 of 'text' has 15 words, and the model takes {LONGEST}" in check_clean(ask(site, given))
    reply = ask(site, given, parameters={"truncate": True}).json()
    assert reply["parameters"]["truncated"] == [False, True]
    assert reply["parameters"]["tokens"] == [1, LONGEST]
    assert reply["outputs"][0]["data"][3:] == scores("w " * LONGEST)
    asked = message("reads", described(contents=[LONG.encode()]), wanted=["scores"])
    assert "takes 12" in raw.refusal(asked.SerializeToString())[1]
    asked.parameters["truncate"].bool_param = True
    response = raw.infer(asked)
    assert (response.parameters["truncated"].bool_param, response.parameters["tokens"].int64_param) == (True, LONGEST)


def test_outputs_as_long_as_their_rows_come_for_rows_of_one_length_alone(site: Site) -> None:
    told = check_clean(ask(site, described(shape=(2,), data=["a", "b c"]), outputs=None))
    assert "output 'tags' is as large as its row" in told
    assert "each as a separate call" in told
    reply = ask(site, described(shape=(2,), data=["a b", "c d"]), outputs=("tags",)).json()
    assert (reply["outputs"][0]["shape"], reply["outputs"][0]["data"]) == ([2, 2], [*numbers("a b"), *numbers("c d")])


def test_many_texts_are_one_call(site: Site) -> None:
    texts = [" ".join("abcdefghij"[: 1 + place % 10]) for place in range(300)]
    (output,) = ask(site, described(shape=(300, 1), data=texts)).json()["outputs"]
    assert np.array(output["data"]).reshape(300, 3).tolist() == [scores(text) for text in texts]


def test_generate_takes_a_text_and_tells_what_was_read(site: Site) -> None:
    about = {"model_name": "reads", "model_version": "1", "parameters": {"tokens": 2}}
    right = {**about, "scores": scores("a b"), "tags": numbers("a b")}
    assert site.post(f"{READS}/generate", {"text": "a b"}).json() == right
    streamed = site.post(f"{READS}/generate_stream", {"text": "a b"}).body
    assert json.loads(streamed.removeprefix(b"data: ")) == right
    cut = site.post(f"{READS}/generate", {"text": LONG, "parameters": {"truncate": True}}).json()
    assert cut["parameters"] == {"tokens": LONGEST, "truncated": True}
    assert site.post(f"{READS}/generate", {"ids": [5], "mask": [1]}).json()["scores"] == [5, 1, -5]
    assert "takes 12" in check_clean(site.post(f"{READS}/generate", {"text": LONG}))
    assert "base64" in check_clean(site.post(f"{VIEWS}/generate", {"image": "AAAA"}))


def test_a_stream_over_grpc_takes_texts(site: Site, raw: Raw) -> None:
    asked = message("reads", described(contents=[b"a b"]), wanted=["scores"])
    asked.parameters["stream"].bool_param = True
    stream = raw.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    (answer,) = stream(iter([asked.SerializeToString()]), timeout=60.0)
    response = service_pb2.ModelStreamInferResponse.FromString(answer).infer_response
    assert outputs(response)[0].tolist() == [scores("a b")]
    assert response.parameters["tokens"].int64_param == 2


# Pictures -------------------------------------------------------------------------------------------------------------


def test_pictures_are_answered_alike_however_they_are_sent(site: Site, raw: Raw) -> None:
    blob, right = elements(*PICTURES), [[2.0 * byte for byte in picture] for picture in PICTURES]
    coded = [base64.b64encode(picture).decode() for picture in PICTURES]
    image: dict[str, Any] = {"name": "image", "shape": (2, 1)}
    replies = [
        ask_binary(site, blob, binary(blob, **image), path=VIEWS),
        ask(site, described(**image, data=coded, parameters={"content_type": "base64"}), path=VIEWS, outputs=()),
    ]
    for reply in replies:
        (output,) = reply.json()["outputs"]
        assert np.array(output["data"]).reshape(2, 4).tolist() == right
        assert "tokens" not in reply.json()["parameters"]
    for asked in (
        message("views", described(**image, contents=PICTURES)),
        message("views", described(**image), raw=[blob]),
    ):
        assert outputs(raw.infer(asked))[0].tolist() == right


def test_a_body_that_is_one_picture_is_enough(site: Site) -> None:
    reply = site.post(f"{VIEWS}/infer", PICTURES[0], {"Inference-Header-Content-Length": "0"})
    assert np.frombuffer(reply.body[-16:], np.float32).tolist() == [2, 4, 6, 8]


def test_base64_of_a_text_is_a_text(site: Site) -> None:
    given = described(data=[base64.b64encode("höher".encode()).decode()], parameters={"content_type": "base64"})
    assert ask(site, given).json()["outputs"][0]["data"] == scores("höher")


# What is said of such models ------------------------------------------------------------------------------------------


def test_metadata_have_the_raw_inputs_and_the_configuration_the_tensors_in_their_place(site: Site) -> None:
    told = site.get(READS).json()
    assert told["inputs"] == [{"name": name, "datatype": "BYTES", "shape": [-1, 1]} for name in ("text", "text_pair")]
    config = site.get(f"{READS}/config").json()
    assert config["input"] == [
        {"name": "text", "data_type": "TYPE_STRING", "dims": [1]},
        {"name": "text_pair", "data_type": "TYPE_STRING", "dims": [1], "optional": True},
    ]
    values = {name: one["string_value"] for name, one in config["parameters"].items()}
    assert values == {"L": "1..12", "ids": "INT64 [-1, -1]", "mask": "INT64 [-1, -1]"}
    with triton_grpc.InferenceServerClient(address(site)) as client:
        assert client.get_model_metadata("reads", as_json=True)["inputs"] == [
            {"name": name, "datatype": "BYTES", "shape": ["-1", "1"]} for name in ("text", "text_pair")
        ]
        assert client.get_model_config("reads").config.input[1].optional


# What is refused ------------------------------------------------------------------------------------------------------

REFUSED: list[tuple[list[dict[str, Any]], str]] = [
    ([described(data=[1])], "not BYTES"),
    ([described(data=["a", "b"])], "more elements than its shape"),
    ([described(shape=(2,), data=["a"])], "has 1 elements: its shape needs 2"),
    ([described(data=[["a", "b"]])], "more elements than its shape"),
    ([described(shape=(1, 2), data=["a", "b"])], "must be [-1, 1] or [-1]"),
    ([described(shape=(), data="a")], "must be [-1, 1] or [-1]"),
    ([described(shape=(0,), data=[])], "send 1 to"),
    ([described(shape=(1 << 62,), data=["a"])], "send 1 to"),
    ([described(shape=(2049,), data=["a"] * 2049)], "send 1 to 2048"),
    ([described(data=["a"]), described(data=["a"])], "given twice"),
    ([described(name="text_pair", data=["a"])], "'text' is missing"),
    ([described(shape=(2,), data=["a", "b"]), described(name="text_pair", data=["a"])], "a batch of 1 rows"),
    ([{**described(data=["a"]), "datatype": "FP32"}], "must be BYTES"),
    ([described(data=["a"]), {"name": "ids", "shape": [1, 1], "datatype": "INT64", "data": [1]}], "in their place"),
    ([described(data=["a\0b"])], "has a NUL"),
    ([described(data=[""])], "has no words"),
    ([described()], "must have either data or"),
    ([described(data=["a"], parameters={"binary_data_size": 5})], "must have either data or"),
    ([described(parameters={"binary_data_size": 3})], "elements have 4 bytes each"),
    (
        [described(parameters={"shared_memory_region": "r", "shared_memory_byte_size": 8})],
        "not read from shared memory",
    ),
    ([described(data=["a b"], parameters={"content_type": "base64"})], "element 0 of input 'text' is not base64"),
    ([described(data=["/w=="], parameters={"content_type": "base64"})], "not UTF-8 at byte 0"),
]


@pytest.mark.parametrize(("inputs", "says"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_no_text_is_refused(site: Site, inputs: list[dict[str, Any]], says: str) -> None:
    assert says in check_clean(ask(site, *inputs))
    assert site.taken == 0


@pytest.mark.parametrize("text", [b"\\ud83d", b"\\udc00\\ud800", b"\xc0\xaf", b"\xed\xa0\x80", b"\xe2\x82", b"a\nb"])
def test_a_string_that_is_no_unicode_is_refused(site: Site, text: bytes) -> None:
    body = b'{"inputs":[{"name":"text","shape":[1],"datatype":"BYTES","data":["%b"]}]}' % text
    check_clean(site.post(f"{READS}/infer", body))
    check_clean(site.post(f"{READS}/generate", b'{"text":"%b"}' % text))


BLOBS: list[tuple[bytes, int, str]] = [
    (b"", 1, "must have either data or"),
    (b"\1\0\0", 1, "elements have 4 bytes each"),
    (b"\xff\xff\xff\xff", 1, "has a stated length of 4294967295 bytes, but 0 are left"),
    (elements(b"a") + b"x", 1, "has 1 bytes after the 1 elements"),
    (elements(b"a"), 2, "elements have 4 bytes each"),
    (elements(b"abcd"), 2, "has 1 complete elements and some bytes"),
    (elements(b"a", b"b"), 1, "has 5 bytes after"),
    (elements(b"a\xff"), 1, "not UTF-8 at byte 1"),
    (elements(b"\xed\xa0\x80"), 1, "not UTF-8 at byte 0"),
    (elements(b"a\0"), 1, "has a NUL"),
]


@pytest.mark.parametrize(("blob", "count", "says"), BLOBS, ids=range(len(BLOBS)))
def test_binary_elements_that_lie_are_refused(site: Site, raw: Raw, blob: bytes, count: int, says: str) -> None:
    if blob:
        assert says in check_clean(ask_binary(site, blob, binary(blob, shape=(count,))))
        asked = message("reads", described(shape=(count,)), raw=[blob])
        status, told = raw.refusal(asked.SerializeToString())
        assert status == "INVALID_ARGUMENT"
        assert says in told or "and some bytes" in told
    assert site.taken == 0


def test_a_body_that_is_shorter_or_longer_than_said_is_refused(site: Site) -> None:
    blob = elements(b"a b c")
    for cut in (blob[:-1], blob + b"x"):
        assert "but the body has" in check_clean(ask_binary(site, cut, binary(blob)))


def test_rpc_contents_that_do_not_fit_are_refused(raw: Raw) -> None:
    for asked, says in (
        (message("reads", described(shape=(2,), contents=[b"a"])), "has 1 bytes_contents: its shape needs 2"),
        (message("reads", described()), "has 0 bytes_contents"),
        (message("reads", described(contents=[b"a"]), raw=[elements(b"a")]), "send one of them"),
        (message("reads", described(), raw=[elements(b"a")] * 2), "raw_input_contents has 2 entries"),
        (message("reads", described(contents=[b"\xff"])), "not UTF-8 at byte 0"),
        (message("views", described(name="image", contents=[b"abc"])), "element 0 of 'image' is no picture"),
    ):
        status, told = raw.refusal(asked.SerializeToString())
        assert status == "INVALID_ARGUMENT"
        assert says in told


def test_pictures_in_json_without_base64_are_refused_with_what_to_do(site: Site) -> None:
    told = check_clean(ask(site, described(name="image", data=["abcd"]), path=VIEWS, outputs=()))
    assert 'base64 with the input\'s parameter {"content_type": "base64"}' in told


@pytest.fixture(scope="module")
def strict() -> Iterator[Site]:
    with opened(BOTH, Limits(element_bytes=100)) as found:
        yield found


def test_more_bytes_than_a_call_may_have_are_refused_before_they_are_read(strict: Site) -> None:
    blob = elements(b"a" * 101)
    reply = ask_binary(strict, blob, binary(blob))
    assert (reply.status, reply.json()["error"][:21]) == (413, "the call has 101 byte")
    assert ask(strict, described(data=["a" * 101])).status == 413
    assert ask(strict, described(data=["a" * 100])).status == 200
