"""TEI's paths: vectors, classes and tags, in its form and in that of Hugging Face's Inference API."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.reading import LABELS, LONGEST, SENTENCES, TAGS, answered
from tests.server.tasks.conftest import TOKEN, Served

LONG = " ".join(SENTENCES)
TEXT = SENTENCES[4]  # with characters of several bytes


def test_texts_become_vectors_of_length_one_unless_they_should_not(served: Served) -> None:
    for normalize in (None, True, False):
        body = {"model": "plain", "inputs": SENTENCES} | ({} if normalize is None else {"normalize": normalize})
        found = served.told("/embed", body)
        wanted = np.stack([answered(served.tokenizer, "plain", text).numpy() for text in SENTENCES])
        if normalize is not False:
            wanted /= np.linalg.norm(wanted, axis=-1, keepdims=True)
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    (alone,) = served.told("/embed", {"model": "plain", "inputs": SENTENCES[0], "normalize": False, "dimensions": 3})
    np.testing.assert_allclose(alone, answered(served.tokenizer, "plain", SENTENCES[0])[:3], atol=1e-6)


def test_a_prompt_goes_before_the_texts_where_it_is_named(served: Served) -> None:
    (found,) = served.told("/embed", {"model": "embedder", "inputs": "jazz", "prompt_name": "query"})
    np.testing.assert_allclose(found, answered(served.tokenizer, "embedder", "play jazz"), atol=1e-6)
    unknown = served.ask("/embed", {"model": "embedder", "inputs": "jazz", "prompt_name": "nothing"})
    assert unknown.status == 413
    assert "query" in unknown.json()["error"]


def test_what_is_too_long_is_refused_with_teis_status(served: Served) -> None:
    for path, body in (("/embed", {"model": "plain"}), ("/predict", {"model": "intents"})):
        refused = served.ask(path, {**body, "inputs": LONG})
        assert refused.status == 413
        assert refused.json()["error_type"] == "Validation"
        cut = served.ask(path, {**body, "inputs": LONG, "truncate": True})
        assert cut.status == 200
        assert cut.headers["latebind-truncated"] == "1"


def test_a_text_is_cut_at_the_end_that_the_call_names(served: Served) -> None:
    ids = served.tokenizer.encode(LONG).ids
    for direction, kept in (("Left", [ids[0], *ids[1 - LONGEST :]]), ("right", [*ids[: LONGEST - 1], ids[-1]])):
        asked = {"model": "plain", "normalize": False}
        cut = served.ask("/embed", {**asked, "inputs": LONG, "truncate": True, "truncation_direction": direction})
        assert cut.headers["latebind-truncated"] == "1"
        whole = served.told("/embed", {**asked, "inputs": [kept]})
        np.testing.assert_allclose(cut.json(), whole, atol=1e-6)
    refused = served.ask("/embed", {**asked, "inputs": LONG, "truncate": True, "truncation_direction": "up"})
    assert refused.status == 400
    assert "send Left or Right" in refused.json()["error"]


def classes(served: Served, *texts: str) -> dict[str, float]:
    return dict(zip(LABELS, torch.softmax(answered(served.tokenizer, "intents", *texts), -1).tolist(), strict=True))


def check_classes(found: list[dict[str, Any]], wanted: dict[str, float]) -> None:
    assert [entry["label"] for entry in found] == sorted(wanted, key=lambda label: -wanted[label])
    for entry in found:
        assert abs(entry["score"] - wanted[entry["label"]]) < 1e-6


def test_classes_come_with_the_best_first_for_texts_pairs_and_batches_of_either(served: Served) -> None:
    one, two = SENTENCES[0], "and tomorrow?"
    check_classes(served.told("/predict", {"model": "intents", "inputs": one}), classes(served, one))
    check_classes(served.told("/predict", {"model": "intents", "inputs": [one]}), classes(served, one))
    check_classes(served.told("/predict", {"model": "intents", "inputs": [one, two]}), classes(served, one, two))
    batch = served.told("/predict", {"model": "intents", "inputs": [[one], [two, one], [two]]})
    for found, texts in zip(batch, ((one,), (two, one), (two,)), strict=True):
        check_classes(found, classes(served, *texts))
    raw = served.told("/predict", {"model": "intents", "inputs": one, "raw_scores": True})
    logits = dict(zip(LABELS, answered(served.tokenizer, "intents", one).tolist(), strict=True))
    assert all(abs(entry["score"] - logits[entry["label"]]) < 1e-5 for entry in raw)


@pytest.mark.parametrize("inputs", [[], [[]], [["a", "b", "c"]], ["a", "b", "c"], [["a"], "b"], ["a", ["b"]]])
def test_inputs_of_no_form_are_refused(served: Served, inputs: object) -> None:
    refused = served.ask("/predict", {"model": "intents", "inputs": inputs})
    assert refused.status == 400
    assert "inputs are" in refused.json()["error"]


def test_parameters_are_those_of_the_inference_api_and_so_is_the_reply(served: Served) -> None:
    (found,) = served.told("/predict", {"model": "intents", "inputs": SENTENCES[0], "parameters": {"top_k": 2}})
    assert len(found) == 2
    body = {"model": "intents", "inputs": SENTENCES[0], "parameters": {"function_to_apply": "sigmoid"}}
    (found,) = served.told("/predict", body)
    each = torch.sigmoid(answered(served.tokenizer, "intents", SENTENCES[0])).tolist()
    np.testing.assert_allclose(sorted(entry["score"] for entry in found), sorted(each), atol=1e-6)


def tokens(served: Served, text: str) -> list[dict[str, Any]]:
    """The best tag of each token that is of the text, with its place."""
    scores = torch.softmax(answered(served.tokenizer, "tagger", text), -1)
    places = served.tokenizer.encode(text).offsets
    return [
        {"label": TAGS[int(row.argmax())], "score": row.max().item(), "start": start, "end": end}
        for row, (start, end) in zip(scores, places, strict=True)
        if end > start
    ]


def test_tokens_are_tagged_with_the_characters_they_are_of(served: Served) -> None:
    wanted = [entry for entry in tokens(served, TEXT) if entry["label"] != "O"]
    assert wanted
    read = served.tokenizer.encode(TEXT).offsets
    for path, inputs in (("/predict", TEXT), ("/predict_tokens", [TEXT])):
        (found,) = served.told(path, {"model": "tagger", "inputs": inputs})
        for entry, right in zip(found, wanted, strict=True):
            ((label, score),) = entry["results"].items()
            assert (entry["start"], entry["end"], label) == (right["start"], right["end"], right["label"])
            assert served.tokenizer.encode(TEXT).ids[read.index((entry["start"], entry["end"]))] == entry["token_id"]
            assert entry["token"] == TEXT[right["start"] : right["end"]]
            assert abs(score - right["score"]) < 1e-6
    (every,) = served.told("/predict_tokens", {"model": "tagger", "inputs": [TEXT], "ignore_labels": []})
    assert len(every) == len(tokens(served, TEXT))


def test_tokens_that_belong_together_are_one_entity(served: Served) -> None:
    body = {"model": "tagger", "inputs": TEXT}
    single = served.told("/predict", {**body, "parameters": {"aggregation_strategy": "none", "ignore_labels": []}})
    assert [entry["entity"] for entry in single] == [entry["label"] for entry in tokens(served, TEXT)]
    joined = served.told("/predict", {**body, "parameters": {"ignore_labels": []}})
    # Which tags an untrained network gives depends on how the tokenizer's training broke ties.
    tags = [entry["entity"] for entry in single]
    kinds = [tag.removeprefix("B-").removeprefix("I-") for tag in tags]
    first = [n for n, tag in enumerate(tags) if not n or tag.startswith("B-") or kinds[n] != kinds[n - 1]]
    assert [entry["start"] for entry in joined] == [single[n]["start"] for n in first]
    assert [entry["entity_group"] for entry in joined] == [kinds[n] for n in first]
    assert joined[-1]["end"] == single[-1]["end"]
    for entry in joined:
        parts = [one["score"] for one in single if entry["start"] <= one["start"] and one["end"] <= entry["end"]]
        assert abs(entry["score"] - np.mean(parts)) < 1e-6
        assert entry["word"] == TEXT[entry["start"] : entry["end"]]
    for parameters in ({"aggregation_strategy": "max"}, {"stride": 4}):
        assert served.ask("/predict", {**body, "parameters": parameters}).status == 400


def test_a_server_of_one_model_is_asked_without_a_name_or_a_path(one: Served) -> None:
    told = {"Authorization": f"Bearer {TOKEN}"}
    wanted = answered(one.tokenizer, "embedder", "jazz")
    for path in ("/", "/embed"):
        np.testing.assert_allclose(one.ask(path, {"inputs": ["jazz"]}, told).json(), wanted[None], atol=1e-6)
    info = one.call("GET", "/info", headers=told).json()
    assert info["model_id"] == "embedder"
    assert info["max_input_length"] == LONGEST
    assert "embedding" in info["model_type"]


def test_a_server_of_several_models_names_them(served: Served) -> None:
    for method, path in (("GET", "/info"), ("POST", "/")):
        reply = served.call(method, path, b'{"inputs": "a"}')
        assert reply.status == 400
        assert "embedder, intents, plain, reranker, tagger" in reply.json()["error"]
