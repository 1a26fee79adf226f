"""`/v1/embeddings`, `/v1/models`, `/classify` and `/score`: what they answer is what the networks say."""

import base64

import numpy as np
import torch

from tests.reading import LABELS, LONGEST, SENTENCES, WIDTH, answered
from tests.server.tasks.conftest import ALL, TOKEN, Served

PATH = "/v1/embeddings"
LONG = " ".join(SENTENCES)


def vectors(served: Served, *texts: str, model: str = "embedder") -> list[np.ndarray]:
    return [answered(served.tokenizer, model, text).numpy() for text in texts]


def test_a_text_becomes_the_networks_vector(served: Served) -> None:
    told = served.told(PATH, {"model": "embedder", "input": SENTENCES[0], "user": "somebody"})
    assert told["object"] == "list"
    assert told["model"] == "embedder"
    ((entry),) = told["data"]
    assert entry["object"] == "embedding"
    assert entry["index"] == 0
    np.testing.assert_allclose(entry["embedding"], vectors(served, SENTENCES[0])[0], atol=1e-6)
    tokens = len(served.tokenizer.encode(SENTENCES[0]).ids)
    assert told["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


def test_a_list_of_texts_of_all_lengths_is_answered_in_its_order(served: Served) -> None:
    texts = [text[: 1 + number % len(text)] for number in range(256) for text in [SENTENCES[number % len(SENTENCES)]]]
    told = served.told(PATH, {"model": "embedder", "input": texts, "encoding_format": "float"})
    assert [entry["index"] for entry in told["data"]] == list(range(256))
    np.testing.assert_allclose([entry["embedding"] for entry in told["data"]], vectors(served, *texts), atol=1e-6)


def test_base64_has_the_bytes_of_the_same_vectors(served: Served) -> None:
    body = {"model": "plain", "input": SENTENCES}
    floats = [entry["embedding"] for entry in served.told(PATH, body)["data"]]
    packed = [entry["embedding"] for entry in served.told(PATH, {**body, "encoding_format": "base64"})["data"]]
    unpacked = [np.frombuffer(base64.b64decode(one), "<f4") for one in packed]
    np.testing.assert_array_equal(np.array(floats, np.float32), unpacked)


def test_leading_dimensions_have_length_one_where_the_model_normalizes(served: Served) -> None:
    for model, normalizes in (("embedder", True), ("plain", False)):
        whole = vectors(served, SENTENCES[1], model=model)[0][:5]
        wanted = whole / np.linalg.norm(whole) if normalizes else whole
        told = served.told(PATH, {"model": model, "input": SENTENCES[1], "dimensions": 5})
        np.testing.assert_allclose(told["data"][0]["embedding"], wanted, atol=1e-6)
    refused = served.ask(PATH, {"model": "embedder", "input": "a", "dimensions": WIDTH + 1})
    assert refused.status == 400
    assert f"request 1 to {WIDTH}" in refused.json()["error"]["message"]


def test_token_ids_are_taken_as_they_are(served: Served) -> None:
    ids = [served.tokenizer.encode(text).ids for text in SENTENCES[:2]]
    for given, wanted in ((ids[0], ids[:1]), (ids, ids)):
        told = served.told(PATH, {"model": "embedder", "input": given})
        found = [entry["embedding"] for entry in told["data"]]
        np.testing.assert_allclose(found, vectors(served, *SENTENCES[: len(wanted)]), atol=1e-6)
        assert told["usage"]["prompt_tokens"] == sum(map(len, wanted))
    wrong: object
    for wrong in ([], [[]], [10**6], [-1], [10**30], [1, "a"], [[1], "a"], [1] * (LONGEST + 1)):
        refused = served.ask(PATH, {"model": "embedder", "input": wrong})
        assert refused.status == 400, wrong
        assert set(refused.json()["error"]) == {"message", "type", "param", "code"}


def test_a_text_that_is_too_long_is_refused_or_cut_and_then_said_so(served: Served) -> None:
    body = {"model": "embedder", "input": ["short", LONG]}
    refused = served.ask(PATH, body)
    assert refused.status == 400
    assert refused.json()["error"]["type"] == "invalid_request_error"
    for more in ({"truncate": True}, {"truncate_prompt_tokens": -1}):
        cut = served.ask(PATH, body | more)
        assert cut.status == 200, cut.body
        assert cut.headers["latebind-truncated"] == "1"
    assert served.ask(PATH, {**body, "truncate_prompt_tokens": 8}).status == 400
    assert "latebind-truncated" not in served.ask(PATH, {**body, "input": "short"}).headers


def test_a_model_must_be_there_and_be_for_this(served: Served) -> None:
    unknown = served.ask(PATH, {"model": "nobody", "input": "a"})
    assert unknown.status == 404
    assert unknown.json()["error"]["code"] == "model_not_found"
    wrong = served.ask(PATH, {"model": "intents", "input": "a"})
    assert wrong.status == 400
    assert "'intents' is one to classify" in wrong.json()["error"]["message"]
    none = served.ask(PATH, {"input": "a"})
    assert none.status == 400
    assert "embedder, plain" in none.json()["error"]["message"]


def test_models_are_listed_with_what_they_are_for(served: Served) -> None:
    told = served.call("GET", "/v1/models").json()
    assert told["object"] == "list"
    assert sorted(entry["id"] for entry in told["data"]) == sorted(ALL)
    assert {entry["id"]: entry["task"] for entry in told["data"]}["tagger"] == "tag"
    assert served.call("GET", "/v1/models/plain").json() in told["data"]
    missing = served.call("GET", "/v1/models/nobody")
    assert missing.status == 404
    assert missing.json()["error"]["code"] == "model_not_found"


def test_a_token_is_asked_for_in_openais_form(one: Served) -> None:
    body = {"input": "a"}  # the only model needs no name
    denied = one.ask(PATH, body)
    assert denied.status == 401
    assert denied.json()["error"]["code"] == "invalid_api_key"
    assert one.ask(PATH, body, {"Authorization": f"Bearer {TOKEN}"}).status == 200
    assert one.call("GET", "/health").status == 200


def test_headers_give_a_deadline_and_a_priority(served: Served) -> None:
    body = {"model": "embedder", "input": SENTENCES}
    late = served.ask(PATH, body, {"Latebind-Timeout": "0.000001"})
    assert late.status in (503, 504)
    assert late.json()["error"]["type"] in ("server_error", "rate_limit_error")
    assert served.ask(PATH, body, {"Latebind-Timeout": "30", "Latebind-Priority": "1"}).status == 200
    for header in ("Latebind-Timeout", "Latebind-Priority"):
        for wrong in ("x", "-1", "nan", "inf", "1e30", "999999999999999999999"):
            assert served.ask(PATH, body, {header: wrong}).status == 400, (header, wrong)


def test_classes_of_texts_in_vllms_form(served: Served) -> None:
    told = served.told("/classify", {"model": "intents", "input": SENTENCES})
    assert told["object"] == "list"
    assert told["usage"]["completion_tokens"] == 0
    for entry, text in zip(told["data"], SENTENCES, strict=True):
        wanted = torch.softmax(answered(served.tokenizer, "intents", text), -1).tolist()
        np.testing.assert_allclose(entry["probs"], wanted, atol=1e-6)
        assert entry["label"] == LABELS[int(np.argmax(wanted))]
        assert entry["num_classes"] == len(LABELS)


def test_scores_of_pairs_in_vllms_form(served: Served) -> None:
    wanted = [torch.sigmoid(answered(served.tokenizer, "reranker", "warm", text)).item() for text in SENTENCES[:3]]
    for path in ("/score", "/v1/score"):
        told = served.told(path, {"text_1": "warm", "text_2": SENTENCES[:3]})
        np.testing.assert_allclose([entry["score"] for entry in told["data"]], wanted, atol=1e-6)
    assert served.told("/score", {"text_1": "warm", "text_2": SENTENCES[0]})["data"][0]["index"] == 0
    for first, second in ((["a", "b"], ["a"]), ([], []), ("a", [])):
        assert served.ask("/score", {"text_1": first, "text_2": second}).status == 400
