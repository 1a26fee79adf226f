"""What the forms make of a model's numbers, without a server."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latebind.domain.errors import Denied, Expired, InvalidRequest, NotFinite, NotFound, Refused, TooLarge
from latebind.domain.model import Activation
from latebind.server.faults import Reported
from latebind.server.rest.tasks import openai, rerank, tei
from latebind.server.rest.tasks.asking import model_named, scores, texts_or_ids
from latebind.server.rest.tasks.tei import Tag, _groups, _joined
from tests.server.arithmetic import Arithmetic
from tests.server.conftest import logging_as_before, opened
from tests.server.words import Words


@pytest.mark.parametrize("size", [1.0, 100.0, 1e30])
def test_scores_are_right_however_large_the_logits_are(size: float) -> None:
    logits = np.array([[size, 0.0, -size], [-size, -size, -size]], np.float32)
    exact = logits.astype(np.longdouble)
    with np.errstate(all="raise", under="ignore"):
        soft, each = scores(logits, Activation.SOFTMAX), scores(logits, Activation.SIGMOID)
    grown = np.exp(exact - exact.max(-1, keepdims=True))
    np.testing.assert_allclose(soft, grown / grown.sum(-1, keepdims=True), rtol=1e-6, atol=1e-30)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(each, 1 / (1 + np.exp(-exact)), rtol=1e-6, atol=1e-30)
    assert soft.dtype == each.dtype == np.float32
    np.testing.assert_array_equal(scores(logits, None), logits)


@pytest.mark.parametrize("activation", [None, *Activation])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_has_no_score(activation: Activation | None, value: float) -> None:
    with pytest.raises(NotFinite, match="NaN or infinity"):
        scores(np.array([[0.0, value]], np.float32), activation)


def test_leading_dimensions_of_a_model_that_normalises_are_normalized_again() -> None:
    vectors = np.array([[0.6, 0.0, 0.8], [3.0, 4.0, 0.0]], np.float32)
    np.testing.assert_allclose(openai.leading(vectors, 2), [[1.0, 0.0], [3.0, 4.0]])
    np.testing.assert_array_equal(openai.leading(vectors, None), vectors)
    np.testing.assert_allclose(openai.leading(np.array([[0.0, 1.0]], np.float32), 1), [[0.0]])
    for dimensions in (0, -1, 4, 10**30):
        with pytest.raises(InvalidRequest, match="request 1 to 3"):
            openai.leading(vectors, dimensions)


def test_an_input_is_texts_or_tokens_and_never_both() -> None:
    assert texts_or_ids("a") == (["a"], [])
    assert texts_or_ids(["a", "b"]) == (["a", "b"], [])
    assert texts_or_ids([1, 2]) == ([], [[1, 2]])
    assert texts_or_ids([[1, 2], [3]]) == ([], [[1, 2], [3]])
    for mixed in (["a", 1], [1, [1]], ["a", [1]], []):
        with pytest.raises(InvalidRequest, match=r"mixes|empty"):
            texts_or_ids(mixed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        (["B-PER", "I-PER", "O", "B-PER"], ["PER 0-2", "O 2-3", "PER 3-4"]),
        (["B-PER", "B-PER"], ["PER 0-1", "PER 1-2"]),
        (["I-PER", "I-PER", "I-LOC"], ["PER 0-2", "LOC 2-3"]),
        (["I-PER", "B-LOC", "I-PER"], ["PER 0-1", "LOC 1-2", "PER 2-3"]),
        (["PER", "PER"], ["PER 0-2"]),
        ([], []),
    ],
)
def test_tokens_of_one_kind_side_by_side_belong_together_unless_one_begins(
    labels: list[str], wanted: list[str]
) -> None:
    tags = [Tag(place, label, 0.5, place, place + 1) for place, label in enumerate(labels)]
    joined = [_joined(group) for group in _groups(tags)]
    assert [f"{tag.label} {tag.start}-{tag.end}" for tag in joined] == wanted


ERRORS = [
    (InvalidRequest("x"), 400, "invalid_request_error", "bad_request", 400, "Validation"),
    (Denied("x"), 401, "invalid_request_error", "invalid_api_key", 401, "Validation"),
    (NotFound("x"), 404, "invalid_request_error", "model_not_found", 404, "Validation"),
    (TooLarge("x"), 413, "invalid_request_error", "content_too_large", 413, "Validation"),
    (Refused("x"), 503, "rate_limit_error", "rate_limit_exceeded", 429, "Overloaded"),
    (Expired("x"), 504, "server_error", "gateway_timeout", 504, "Overloaded"),
    (Reported("x"), 500, "server_error", "internal_server_error", 424, "Backend"),
]


@pytest.mark.parametrize(("error", "status", "kind", "code", "as_tei", "tei_kind"), ERRORS)
def test_each_form_tells_an_error_as_its_clients_read_it(
    error: Exception, status: int, kind: str, code: str, as_tei: int, tei_kind: str
) -> None:
    told: object = {"error": {"message": "x", "type": kind, "param": None, "code": code}}
    assert openai.report(error, "x") == (status, told)  # type: ignore[arg-type]
    assert rerank.report(error, "x") == (status, {"message": "x", "detail": "x"})  # type: ignore[arg-type]
    assert tei.report(error, "x") == (as_tei, {"error": "x", "error_type": tei_kind})  # type: ignore[arg-type]


def test_the_ingress_finds_which_model_a_body_names() -> None:
    assert model_named(b'{"input": ["a", {"b": 1}], "model": "x"}') == "x"
    for body in (b"{}", b"", b'{"model": null}', b'{"model": 1}', b"[" * 100_000, b'{"model": "x"'):
        assert model_named(body) == ""


class Turning(Arithmetic):
    """Another version, which reads texts with another preprocessor, takes over at these claims."""

    turns: Sequence[int] = (1,)

    async def claim(self, model: str, rows: int, **how: Any) -> Any:
        claim = await super().claim(model, rows, **how)
        if len(self.claims) in self.turns:
            self.models = {**self.models, "reads": replace(self.models["reads"], version=str(1 + len(self.claims)))}
            self.preprocessors["reads"] = Words()
        return claim


@pytest.mark.parametrize(
    ("path", "body"), [("/classify", {"input": ["a b", "c"]}), ("/predict", {"inputs": [["a b"], ["c"]]})]
)
def test_a_call_is_read_and_asked_once_more_where_another_version_takes_over_meanwhile(path: str, body: Any) -> None:
    with logging_as_before(), opened(gateway=Turning) as site:
        told = site.post(path, {"model": "reads", **body})
        assert told.status == 200, told.body
        assert "low" in told.body.decode()
        assert isinstance(site.gateway, Turning)
        site.gateway.turns = range(100)
        assert site.post(path, {"model": "reads", **body}).status == 503
        assert site.taken == 0
