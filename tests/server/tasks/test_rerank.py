"""Texts in the order in which they answer a query, in each of the forms that people's tools speak."""

import numpy as np
import pytest
import torch

from tests.reading import SENTENCES, answered
from tests.server.tasks.conftest import Served

QUERY = "how warm is it"
LONG = " ".join(SENTENCES)
PATHS = ["/rerank", "/v1/rerank", "/v2/rerank"]


def wanted(served: Served, *, raw: bool = False) -> list[tuple[int, float]]:
    logits = [answered(served.tokenizer, "reranker", QUERY, text) for text in SENTENCES]
    found = [(logit if raw else torch.sigmoid(logit)).item() for logit in logits]
    return sorted(enumerate(found), key=lambda entry: -entry[1])


@pytest.mark.parametrize("path", PATHS)
def test_documents_come_by_their_scores_in_the_form_of_cohere_and_jina(served: Served, path: str) -> None:
    told = served.told(path, {"query": QUERY, "documents": SENTENCES, "model": "reranker", "top_n": 4})
    for entry, (place, score) in zip(told["results"], wanted(served)[:4], strict=True):
        assert entry["index"] == place
        assert abs(entry["relevance_score"] - score) < 1e-6
        assert entry.get("document") == (None if path == "/v2/rerank" else {"text": SENTENCES[place]})
    assert told["model"] == "reranker"
    assert told["usage"]["total_tokens"] == told["meta"]["tokens"]["input_tokens"] > 0
    assert told["meta"]["api_version"]["version"] == ("2" if path == "/v2/rerank" else "1")
    assert isinstance(told["id"], str)
    assert "warnings" not in told["meta"]


def test_documents_may_be_objects_and_are_returned_where_that_is_asked(served: Served) -> None:
    documents = [{"text": SENTENCES[0], "title": "first"}, SENTENCES[1]]
    for returned in (True, False):
        body = {"query": QUERY, "documents": documents, "return_documents": returned}
        for entry in served.told("/v2/rerank", body)["results"]:
            assert entry.get("document") == ({"text": SENTENCES[entry["index"]]} if returned else None)
    for wrong in ({"title": "no text"}, {"text": 1}):
        refused = served.ask("/v1/rerank", {"query": QUERY, "documents": [wrong]})
        assert refused.status == 400
        assert set(refused.json()) == {"message", "detail"}


def test_a_long_document_is_cut_and_the_reply_names_it(served: Served) -> None:
    reply = served.ask("/v2/rerank", {"query": QUERY, "documents": ["short", LONG]})
    assert reply.status == 200
    assert reply.headers["latebind-truncated"] == "1"
    assert "documents 1 were truncated" in reply.json()["meta"]["warnings"][0]


def test_texts_are_answered_in_teis_form(served: Served) -> None:
    for raw in (False, True):
        for returned in (False, True):
            body = {"query": QUERY, "texts": SENTENCES, "raw_scores": raw, "return_text": returned}
            told = served.told("/rerank", body)
            for entry, (place, score) in zip(told, wanted(served, raw=raw), strict=True):
                assert entry["index"] == place
                assert abs(entry["score"] - score) < 1e-5
                assert entry.get("text") == (SENTENCES[place] if returned else None)


def test_tei_refuses_what_is_too_long_unless_it_may_be_cut(served: Served) -> None:
    refused = served.ask("/rerank", {"query": QUERY, "texts": ["short", LONG]})
    assert refused.status == 413
    assert refused.json()["error_type"] == "Validation"
    cut = served.ask("/rerank", {"query": QUERY, "texts": ["short", LONG], "truncate": True})
    assert cut.status == 200
    assert cut.headers["latebind-truncated"] == "1"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        {"query": QUERY},
        {"query": QUERY, "documents": ["a"], "texts": ["a"]},
        {"query": QUERY, "documents": []},
        {"documents": ["a"]},
        {"query": QUERY, "documents": ["a"], "top_n": -1},
        {"query": QUERY, "documents": ["a"], "max_tokens_per_doc": 1},
        {"query": QUERY, "documents": ["a"], "max_chunks_per_doc": 10},
        {"query": QUERY, "documents": ["a"], "rank_fields": ["title"]} | {"documents": [{"text": "a", "title": "b"}]},
        {"query": QUERY, "documents": ["a"], "priority": 3},
        {"query": QUERY, "texts": ["a"], "truncation_direction": "Up"},
        {"query": QUERY, "documents": ["a"], "model": "embedder"},
    ],
)
def test_what_is_not_served_is_refused_and_named(served: Served, path: str, body: dict[str, object]) -> None:
    reply = served.ask(path, body)
    assert reply.status == 400, reply.body
    fields = {"message", "detail"} | ({"error", "error_type"} if path == "/rerank" else set())
    assert set(reply.json()) == fields
    assert len({reply.json()[name] for name in fields - {"error_type"}}) == 1


def test_of_equal_scores_the_first_comes_first(served: Served) -> None:
    told = served.told("/rerank", {"query": QUERY, "texts": ["warm"] * 20})
    assert [entry["index"] for entry in told] == list(range(20))
    assert len({np.float32(entry["score"]) for entry in told}) == 1


def test_a_number_of_tokens_for_each_document_may_be_given_where_it_cuts_nothing(served: Served) -> None:
    body = {"query": QUERY, "documents": SENTENCES[:2], "max_tokens_per_doc": 4096, "max_chunks_per_doc": None}
    assert len(served.told("/v2/rerank", {**body, "priority": 0, "rank_fields": ["text"]})["results"]) == 2
