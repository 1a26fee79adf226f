"""OpenAI's API: `/v1/embeddings` and `/v1/models`; and vLLM's `/classify` and `/score`, whose errors are OpenAI's.

Also accepted: `truncate` of Jina, and `truncate_prompt_tokens` of vLLM, which may be -1: as many as the model reads.
"""

from base64 import b64encode
from http import HTTPStatus
from time import time
from typing import Literal

import msgspec
import numpy as np

from latebind.domain.errors import Denied, InvalidRequest, LatebindError, NotFound, Refused
from latebind.domain.model import ModelSpec, Task
from latebind.preprocessing.preprocessor import Reading
from latebind.preprocessing.text import PAIR, TEXT
from latebind.server.gateway import Array
from latebind.server.rest.infer import Context
from latebind.server.rest.messages import Errors, Reply, json_reply
from latebind.server.rest.protocol import Request
from latebind.server.rest.tasks.asking import (
    Asking,
    Result,
    Texts,
    check_finite,
    label_of,
    read_body,
    scores,
    usual_activation,
)

UNIT = 1e-3  # how far from 1 the length of a vector may be that a model has normalized, in float16 too


# As RFC 9110 names them; Python before 3.13 has older names.
CODES = {
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "content_too_large",
    HTTPStatus.UNPROCESSABLE_ENTITY: "unprocessable_content",
}


def report(error: LatebindError, text: str) -> tuple[int, object]:
    """Return status and body of an error; its code is OpenAI's where clients check it, else the name of the status."""
    status = error.http_status
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    code = CODES.get(HTTPStatus(status)) or HTTPStatus(status).name.lower()
    if isinstance(error, NotFound):
        code = "model_not_found"
    elif isinstance(error, Denied):
        code = "invalid_api_key"
    elif isinstance(error, Refused):
        kind, code = "rate_limit_error", "rate_limit_exceeded"
    return status, {"error": {"message": text, "type": kind, "param": None, "code": code}}


OPENAI = Errors("OpenAIError", report)


class Cuts(msgspec.Struct):
    """What a call may say about texts that are longer than the model reads."""

    truncate: bool | None = None
    truncate_prompt_tokens: int | None = None

    def reading(self) -> Reading:
        """Return how texts are read: whether they may be cut. Raises `InvalidRequest`."""
        if self.truncate_prompt_tokens not in (None, -1):
            raise InvalidRequest("truncate_prompt_tokens may be -1, for as many as the model reads: send that, or none")
        return Reading(bool(self.truncate) or self.truncate_prompt_tokens is not None)


class EmbeddingsRequest(Cuts, kw_only=True):
    """The body of `/v1/embeddings`."""

    input: Texts
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None


EMBEDDINGS = msgspec.json.Decoder(EmbeddingsRequest)


async def embeddings(context: Context, request: Request) -> Reply:
    """A vector for each text."""
    body = await read_body(context, request, EMBEDDINGS)
    asking = Asking.of(context, request, body.model, Task.EMBED)
    how = body.reading()
    answer = await asking.ask(lambda one: one.rows(body.input, how))
    vectors = leading(answer.output, body.dimensions)
    written: list[object]
    if body.encoding_format == "base64":
        written = [b64encode(row).decode("ascii") for row in vectors.astype("<f4", copy=False)]
    else:
        check_finite(vectors)
        written = [*vectors]
    data = [{"object": "embedding", "index": place, "embedding": one} for place, one in enumerate(written)]
    about = msgspec.json.encode({"object": "list", "model": answer.spec.public_name, "usage": answer.usage})
    return await answer.reply_each(about[:-1] + b',"data":[', data, b"]}", vectors.shape[-1])


def leading(vectors: Array, dimensions: int | None) -> Array:
    """Return the first `dimensions` of vectors `(N, D) float32`, normalized again where the model has normalized them.

    The length of the vector shows whether it has. Raises `InvalidRequest`.
    """
    if dimensions is None:
        return vectors
    size = vectors.shape[-1]
    if not 1 <= dimensions <= size:
        raise InvalidRequest(f"dimensions is {dimensions!s:.40}: the model's vectors have {size}, request 1 to {size}")
    kept = np.ascontiguousarray(vectors[:, :dimensions])
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.where(np.abs(length - 1.0) <= UNIT, unit(kept), kept)


def unit(vectors: Array) -> Array:
    """Return vectors `(N, D) float32` of length 1; one that is all 0 stays so."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(length == 0.0, np.float32(1.0), length)


# The models -----------------------------------------------------------------------------------------------------------


def as_model(spec: ModelSpec) -> dict[str, object]:
    """Return a model as OpenAI lists it, and what it is for. When it was made is not known, so `created` is 0."""
    return {"id": spec.public_name, "object": "model", "created": 0, "owned_by": "latebind", "task": spec.about.task}


async def list_models(context: Context, request: Request) -> Reply:
    """Every model that is served."""
    del request
    return json_reply({"object": "list", "data": [as_model(spec) for spec in context.service.models()]})


async def one_model(context: Context, request: Request) -> Reply:
    """One model that is served."""
    return json_reply(as_model(context.service.model(request.model)))


# vLLM's ---------------------------------------------------------------------------------------------------------------


class Classification(Cuts, kw_only=True):
    """The body of `/classify`."""

    input: Texts
    model: str | None = None


class Scoring(Cuts, kw_only=True):
    """The body of `/score`: pairs of texts, or one text with each of several."""

    text_1: str | list[str]
    text_2: str | list[str]
    model: str | None = None


CLASSIFICATION, SCORING = msgspec.json.Decoder(Classification), msgspec.json.Decoder(Scoring)


async def classify(context: Context, request: Request) -> Reply:
    """The most likely class of each text, and the scores of all."""
    body = await read_body(context, request, CLASSIFICATION)
    asking = Asking.of(context, request, body.model, Task.CLASSIFY)
    how = body.reading()
    answer = await asking.ask(lambda one: one.rows(body.input, how))
    spec = answer.spec
    found = scores(answer.output, usual_activation(spec))
    best = found.argmax(-1).tolist()
    data = [
        {"index": place, "label": label_of(spec, top), "probs": row, "num_classes": len(row)}
        for place, (top, row) in enumerate(zip(best, found, strict=True))
    ]
    return _listed(answer, "classify", data)


async def score(context: Context, request: Request) -> Reply:
    """How well the two texts of each pair go together."""
    body = await read_body(context, request, SCORING)
    asking = Asking.of(context, request, body.model, Task.RERANK)
    first, second = ([one] if isinstance(one, str) else one for one in (body.text_1, body.text_2))
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second) or not first:
        raise InvalidRequest(
            f"text_1 has {len(first)} texts and text_2 {len(second)}: send equally many, or one text_1"
        )
    how = body.reading()
    answer = await asking.ask(lambda one: one.read({TEXT: first, PAIR: second}, how))
    found = scores(answer.output, usual_activation(answer.spec))[:, 0]
    return _listed(
        answer,
        "score",
        [{"index": place, "object": "score", "score": one} for place, one in enumerate(found.tolist())],
    )


def _listed(answer: Result, kind: str, data: list[dict[str, object]]) -> Reply:
    about = {"id": f"{kind}-{answer.id}", "object": "list", "created": int(time()), "model": answer.spec.public_name}
    return answer.reply({**about, "data": data, "usage": {**answer.usage, "completion_tokens": 0}})
