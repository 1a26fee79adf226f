"""TEI's API (Hugging Face's text-embeddings-inference): `/embed`, `/predict`, `/predict_tokens`, `/info`, `/health`.

A body with `parameters` is in the form of Hugging Face's Inference API, as `InferenceClient` sends it, and so is the
reply.
"""

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from latebind import __version__
from latebind.domain.errors import Expired, InvalidRequest, LatebindError, Refused
from latebind.domain.model import Activation, ModelSpec, Task
from latebind.preprocessing.preprocessor import Prepared, Reading
from latebind.preprocessing.text import PAIR, TEXT
from latebind.server.gateway import Array
from latebind.server.limits import most_rows
from latebind.server.rest.infer import Context
from latebind.server.rest.messages import Errors, Reply, json_reply
from latebind.server.rest.protocol import Request
from latebind.server.rest.tasks.asking import (
    Asking,
    AtMost,
    Result,
    Texts,
    check_finite,
    chosen,
    label_of,
    read_body,
    scores,
    usual_activation,
)
from latebind.server.rest.tasks.openai import leading, unit
from latebind.server.rest.tasks.rerank import as_tei, kept_by, rerank

TASKS = (Task.EMBED, Task.CLASSIFY, Task.RERANK, Task.TAG)
KINDS = {Task.EMBED: "embedding", Task.RERANK: "reranker", Task.CLASSIFY: "classifier", Task.TAG: "classifier"}
APPLIED = {"softmax": Activation.SOFTMAX, "sigmoid": Activation.SIGMOID, "none": None}
OUTSIDE = ("O",)  # labels of tokens outside of all entities


def report(error: LatebindError, text: str) -> tuple[int, object]:
    """Return status and body of an error."""
    status, kind = error.http_status, "Validation"
    if isinstance(error, Refused):
        status, kind = HTTPStatus.TOO_MANY_REQUESTS, "Overloaded"
    elif status == HTTPStatus.INTERNAL_SERVER_ERROR:
        status, kind = HTTPStatus.FAILED_DEPENDENCY, "Backend"
    elif status > HTTPStatus.INTERNAL_SERVER_ERROR:
        kind = "Overloaded" if isinstance(error, Expired) else "Unhealthy"
    return int(status), {"error": text, "error_type": kind}


def report_by_rerank(error: LatebindError, text: str) -> tuple[int, object]:
    """Return status and body of an error of `/rerank`, which is Cohere's and Jina's path too: the fields of all."""
    status, body = report(error, text)
    return status, {**body, "message": text, "detail": text}  # type: ignore[dict-item]


TEI, RERANK = Errors("TeiError", report), Errors("RerankError", report_by_rerank)


class CommonBody(msgspec.Struct):
    """What the bodies of TEI's calls have in common. TEI has no field `model`: it serves only one."""

    model: str | None = None
    truncate: bool | None = None
    truncation_direction: str | None = None

    def reading(self, prompt: str | None = None) -> Reading:
        """Return how texts are read. Raises `InvalidRequest`."""
        return Reading(bool(self.truncate), prompt, kept_by(self.truncation_direction))


class EmbedRequest(CommonBody, kw_only=True):
    """The body of `/embed`."""

    inputs: Texts
    normalize: bool = True
    prompt_name: str | None = None
    dimensions: int | None = None


class Parameters(msgspec.Struct):
    """Those of Hugging Face's Inference API."""

    top_k: AtMost = None
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = None
    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] = "simple"
    ignore_labels: tuple[str, ...] = OUTSIDE
    stride: AtMost = None


class PredictRequest(CommonBody, kw_only=True):
    """The body of `/predict`: a text, two texts that go together, or a batch of either."""

    inputs: str | list[str | list[str]]
    raw_scores: bool = False
    parameters: Parameters | None = None


class TokensRequest(CommonBody, kw_only=True):
    """The body of `/predict_tokens`."""

    inputs: list[str]
    raw_scores: bool = False
    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] = "none"
    ignore_labels: tuple[str, ...] = OUTSIDE


EMBED, PREDICT = msgspec.json.Decoder(EmbedRequest), msgspec.json.Decoder(PredictRequest)
TOKENS = msgspec.json.Decoder(TokensRequest)
Pair = tuple[str, str | None]


# Vectors --------------------------------------------------------------------------------------------------------------


async def embed(context: Context, request: Request) -> Reply:
    """A vector for each text. Those of a model that normalizes stay so, whatever `normalize` says."""
    body = await read_body(context, request, EMBED)
    how = body.reading(body.prompt_name)

    async def read(one: Asking) -> list[Prepared]:
        with as_tei():
            return await one.rows(body.inputs, how)

    answer = await Asking.of(context, request, body.model, Task.EMBED).ask(read)
    vectors = leading(answer.output, body.dimensions)
    check_finite(vectors)
    vectors = unit(vectors) if body.normalize else vectors
    return await answer.reply_each(b"[", [*vectors], b"]", vectors.shape[-1])


async def _ask(asking: Asking, pairs: Sequence[Pair], body: CommonBody) -> Result:
    """Ask a model for texts, alone or in pairs."""
    how = body.reading()

    async def read(one: Asking) -> list[Prepared]:
        rows: dict[int, Prepared] = {}
        for paired in (False, True):
            places = [place for place, (_, second) in enumerate(pairs) if (second is not None) is paired]
            if places:
                texts = {TEXT: [pairs[place][0] for place in places]}
                if paired:
                    texts[PAIR] = [pairs[place][1] or "" for place in places]
                with as_tei():
                    made = await one.read(texts, how)
                rows |= zip(places, made, strict=True)
        return [rows[place] for place in range(len(pairs))]

    return await asking.ask(read)


# Classes --------------------------------------------------------------------------------------------------------------


async def predict(context: Context, request: Request) -> Reply:
    """The classes of texts with their scores, the best first; of a model that tags, those of each token."""
    body = await read_body(context, request, PREDICT)
    asking = Asking.of(context, request, body.model, Task.CLASSIFY, Task.RERANK, Task.TAG)
    pairs, batch = _pairs(body.inputs)
    tags = asking.spec.about.task is Task.TAG
    answer = await _ask(asking, pairs, body)
    spec, parameters = answer.spec, body.parameters
    if tags:
        texts = [text for text, _ in pairs]
        if parameters is None:
            tokens_body = TokensRequest(inputs=texts, raw_scores=body.raw_scores)
            return answer.reply(_token_predictions(answer, texts, tokens_body))
        entities = _entities(answer, texts, parameters)
        return answer.reply(entities if batch else entities[0])
    activation: Activation | None = usual_activation(spec)
    if parameters is not None and parameters.function_to_apply is not None:
        activation = APPLIED[parameters.function_to_apply]
    found = scores(answer.output, None if body.raw_scores else activation)
    classes = _classes(spec, found, None if parameters is None else parameters.top_k)
    return answer.reply(classes if batch or parameters is not None else classes[0])


def _pairs(inputs: str | list[str | list[str]]) -> tuple[list[Pair], bool]:
    """Return texts with what belongs to each, and whether they are a batch. Raises `InvalidRequest`."""
    if isinstance(inputs, str):
        return [(inputs, None)], False
    batch = not inputs or isinstance(inputs[0], list)
    items = inputs if batch else [inputs]
    pairs: list[Pair] = []
    for item in items:
        match item:
            case [str(text)]:
                pairs.append((text, None))
            case [str(text), str(second)]:
                pairs.append((text, second))
            case _:
                raise InvalidRequest(
                    "inputs are a text, two texts, or a batch of lists of one or two: [[TEXT], [TEXT, TEXT]]"
                )
    if not pairs:
        raise InvalidRequest("inputs are empty: send a text, or a batch of them")
    return pairs, batch


def _classes(spec: ModelSpec, found: Array, most: int | None) -> list[list[dict[str, object]]]:
    """Return the classes of each row `(N, C)`, the best first, at most `most`."""
    order = np.argsort(-found, axis=-1, kind="stable")[:, :most]
    best = np.take_along_axis(found, order, axis=-1)
    names = [label_of(spec, index) for index in range(found.shape[-1])]
    return [
        [{"score": score, "label": names[index]} for index, score in zip(indices, row, strict=True)]
        for indices, row in zip(order.tolist(), best.tolist(), strict=True)
    ]


# Tokens ---------------------------------------------------------------------------------------------------------------


class Tag(NamedTuple):
    """The best class of one token, or of several that belong together."""

    place: int  # of the (first) token in its row
    label: str
    score: float
    start: int  # of its characters in the text
    end: int  # behind the last of them


async def predict_tokens(context: Context, request: Request) -> Reply:
    """The class of each token of texts, with its place."""
    body = await read_body(context, request, TOKENS)
    if not body.inputs:
        raise InvalidRequest("inputs are empty: send a list of texts")
    pairs: list[Pair] = [(text, None) for text in body.inputs]
    asking = Asking.of(context, request, body.model, Task.TAG)
    answer = await _ask(asking, pairs, body)
    return answer.reply(_token_predictions(answer, body.inputs, body))


def _token_predictions(answer: Result, texts: Sequence[str], body: TokensRequest) -> list[list[dict[str, object]]]:
    """Return tokens in TEI's form: each with its best class and the score of that."""
    activation = None if body.raw_scores else usual_activation(answer.spec)
    return [
        [
            {
                "token": text[tag.start : tag.end],
                "token_id": int(row.tensors[answer.ids][tag.place]),
                "start": tag.start,
                "end": tag.end,
                "results": {tag.label: tag.score},
            }
            for tag in _kept(answer.spec, row, logits, activation, body.aggregation_strategy, body.ignore_labels)
        ]
        for text, row, logits in zip(texts, answer.rows, answer.outputs, strict=True)
    ]


def _entities(answer: Result, texts: Sequence[str], parameters: Parameters) -> list[list[dict[str, object]]]:
    """Return tokens, or the entities that they form, in the form of Hugging Face's Inference API."""
    if parameters.stride:
        raise InvalidRequest("stride is not supported: a text is read whole, or refused; leave it out")
    strategy = parameters.aggregation_strategy
    name = "entity" if strategy == "none" else "entity_group"
    activation = usual_activation(answer.spec)
    return [
        [
            {name: tag.label, "score": tag.score, "word": text[tag.start : tag.end], "start": tag.start, "end": tag.end}
            for tag in _kept(answer.spec, row, logits, activation, strategy, parameters.ignore_labels)
        ]
        for text, row, logits in zip(texts, answer.rows, answer.outputs, strict=True)
    ]


def _kept(
    spec: ModelSpec, row: Prepared, logits: Array, activation: Activation | None, strategy: str, ignored: Sequence[str]
) -> list[Tag]:
    """Return the tags of one row with logits `(1, L, C)`, without the ignored ones. Raises `InvalidRequest`."""
    if strategy not in ("none", "simple"):
        raise InvalidRequest(f"aggregation_strategy {strategy!r} is not supported: send 'simple' or 'none'")
    assert row.spans is not None, "a model that tags has the places of its tokens"
    spans = row.spans
    found = scores(logits[0, : len(spans)], activation)
    places = np.flatnonzero(spans[:, 1])  # without special tokens; that of a space may span no character
    tags = [
        Tag(place, label_of(spec, label), score, start, end)
        for place, label, score, (start, end) in zip(
            places.tolist(),
            found[places].argmax(-1).tolist(),
            found[places].max(-1).tolist(),
            spans[places].tolist(),
            strict=True,
        )
    ]
    if strategy == "simple":
        tags = [_joined(group) for group in _groups(tags)]
    return [tag for tag in tags if tag.label not in ignored]


def _groups(tags: Sequence[Tag]) -> Iterator[list[Tag]]:
    """Yield runs of tokens of one class, in which only the first may begin an entity (`B-`)."""
    group: list[Tag] = []
    for tag in tags:
        begins, kind = _parts(tag.label)
        if group and (begins or kind != _parts(group[-1].label)[1]):
            yield group
            group = []
        group.append(tag)
    if group:
        yield group


def _parts(label: str) -> tuple[bool, str]:
    """Return whether a label begins an entity (`B-`), and the entity's class."""
    return label.startswith("B-"), label[2:] if label.startswith(("B-", "I-")) else label


def _joined(group: Sequence[Tag]) -> Tag:
    score = sum([tag.score for tag in group]) / len(group)
    return Tag(group[0].place, _parts(group[0].label)[1], score, group[0].start, group[-1].end)


# What is served -------------------------------------------------------------------------------------------------------


async def info(context: Context, request: Request) -> Reply:
    """What a model is, in TEI's form, as far as it is known here."""
    spec = chosen(context.service, request.names.get("model"), *TASKS)
    about: dict[str, object] = {}
    if spec.about.task is not Task.EMBED:
        names = [label_of(spec, index) for index in range(spec.outputs[0].shape[-1])]
        about = {
            "id2label": {str(index): name for index, name in enumerate(names)},
            "label2id": {name: index for index, name in enumerate(names)},
        }
    assert spec.about.task is not None
    return json_reply(
        {
            "model_id": spec.public_name,
            "model_sha": None,
            "model_dtype": spec.outputs[0].dtype,
            "model_type": {KINDS[spec.about.task]: about},
            "max_input_length": max(spec.inputs[0].shape, default=0),
            "max_client_batch_size": most_rows(spec, context.limits),
            "max_batch_requests": spec.max_batch,
            "auto_truncate": False,
            "version": __version__,
        }
    )


async def health(context: Context, request: Request) -> Reply:
    """Whether every model can be called."""
    del request
    return Reply(status=HTTPStatus.OK if context.service.ready() else HTTPStatus.SERVICE_UNAVAILABLE)


async def whatever(context: Context, request: Request) -> Reply:
    """Answer by the model's task: `POST /` or `/models/NAME`, from clients that know no other path."""
    match chosen(context.service, request.names.get("model"), *TASKS).about.task:
        case Task.EMBED:
            return await embed(context, request)
        case Task.RERANK:
            return await rerank(context, request)
        case _:
            return await predict(context, request)
