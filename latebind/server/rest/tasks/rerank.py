"""Ranks texts by how well they answer a query: the APIs of Cohere (1 and 2), Jina and TEI, distinguished by fields.

`documents` are Cohere's and Jina's, and so is the reply; it has the fields of both. `texts` are TEI's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from latebind.domain.errors import InvalidRequest, LatebindError, TooLarge
from latebind.domain.model import Task
from latebind.preprocessing.preprocessor import CUT, Kept, Prepared, Reading
from latebind.preprocessing.text import PAIR, TEXT
from latebind.server.gateway import Array
from latebind.server.rest.infer import Context
from latebind.server.rest.messages import Errors, Reply
from latebind.server.rest.protocol import Request
from latebind.server.rest.tasks.asking import Asking, AtMost, read_body, scores, usual_activation

Document = str | dict[str, Any]


def report(error: LatebindError, text: str) -> tuple[int, object]:
    """Return status and body of an error: Cohere's `message`, and Jina's `detail`."""
    return error.http_status, {"message": text, "detail": text}


COHERE = Errors("CohereError", report)


class RerankRequest(msgspec.Struct):
    """The body of `/rerank`, `/v1/rerank` and `/v2/rerank`, in any of the forms."""

    query: str
    documents: list[Document] | None = None
    texts: list[str] | None = None
    model: str | None = None
    top_n: AtMost = None
    return_documents: bool | None = None
    rank_fields: list[str] | None = None
    max_tokens_per_doc: AtMost = None
    max_chunks_per_doc: AtMost = None
    truncate_prompt_tokens: int | None = None
    priority: int | None = None
    truncate: bool | None = None  # of TEI, as what follows
    truncation_direction: str | None = None
    raw_scores: bool = False
    return_text: bool = False


REQUEST = msgspec.json.Decoder(RerankRequest)


async def rerank(context: Context, request: Request) -> Reply:
    """The best documents first."""
    body = await read_body(context, request, REQUEST)
    if not (body.documents if body.texts is None else body.texts):
        raise InvalidRequest("there is no text to rank: send `documents` (Cohere, Jina) or `texts` (TEI), one or more")
    if (body.texts is None) == (body.documents is None):
        raise InvalidRequest("send a query with `documents` (Cohere, Jina), or with `texts` (TEI), not both")
    asking = Asking.of(context, request, body.model, Task.RERANK)
    if body.texts is not None:
        return await _as_tei(asking, body, body.texts)
    assert body.documents is not None
    return await _as_cohere(asking, body, body.documents, version=2 if request.head.target.startswith(b"/v2") else 1)


async def _as_cohere(asking: Asking, body: RerankRequest, documents: list[Document], *, version: int) -> Reply:
    """Answer in the form of Cohere and Jina.

    Documents are cut to what the model reads, as in both APIs, with a warning. Unless the call says otherwise, they are
    returned, as by Jina, but not in version 2 of Cohere's form.
    """
    _check_options(body)
    texts = [_text_of(document, body.rank_fields) for document in documents]
    most = body.max_tokens_per_doc

    async def read(one: Asking) -> list[Prepared]:
        rows = await _rows(one, body.query, texts, CUT)
        if most is not None and any(row.used > most for row in rows):
            raise InvalidRequest(
                f"a document has over {most} tokens with its query: max_tokens_per_doc is not supported, send shorter "
                "documents"
            )
        return rows

    answer = await asking.ask(read)
    found = scores(answer.output, usual_activation(answer.spec))[:, 0]
    results: list[dict[str, object]] = []
    returned = version == 1 if body.return_documents is None else body.return_documents
    for place, score in _best_first(found)[: body.top_n or None]:
        entry: dict[str, object] = {"index": place, "relevance_score": score}
        results.append({**entry, "document": {"text": texts[place]}} if returned else entry)
    meta: dict[str, object] = {"api_version": {"version": str(version)}}
    meta["tokens"] = {"input_tokens": answer.tokens, "output_tokens": 0}
    if cut := [place for place, row in enumerate(answer.rows) if row.cut]:
        meta["warnings"] = [_cut_off(cut)]
    jina = {"object": "list", "model": answer.spec.public_name, "usage": answer.usage}
    return answer.reply({"id": answer.id, "results": results, "meta": meta, **jina})


async def _as_tei(asking: Asking, body: RerankRequest, texts: list[str]) -> Reply:
    """Answer in TEI's form. Texts that are longer than the model reads are refused unless the call says otherwise."""
    how = Reading(bool(body.truncate), kept=kept_by(body.truncation_direction))

    async def read(one: Asking) -> list[Prepared]:
        with as_tei():
            return await _rows(one, body.query, texts, how)

    answer = await asking.ask(read)
    found = scores(answer.output, None if body.raw_scores else usual_activation(answer.spec))[:, 0]
    return answer.reply(
        [
            {"index": place, "score": score, **({"text": texts[place]} if body.return_text else {})}
            for place, score in _best_first(found)
        ]
    )


async def _rows(asking: Asking, query: str, texts: list[str], how: Reading) -> list[Prepared]:
    return await asking.read({TEXT: [query] * len(texts), PAIR: texts}, how)


@contextmanager
def as_tei() -> Iterator[None]:
    """Raise `TooLarge` for texts that cannot be read: TEI has one status for all of them."""
    try:
        yield
    except InvalidRequest as error:
        raise TooLarge(str(error)) from None


def kept_by(direction: str | None) -> Kept | None:
    """Return which end of a text is kept by TEI's truncation in this direction; None is the model's own."""
    kept: dict[str, Kept] = {"left": "end", "right": "start"}
    if direction is None:
        return None
    if direction.lower() not in kept:
        raise InvalidRequest(f"truncation_direction is {direction!r:.40}: send Left or Right, or leave it out")
    return kept[direction.lower()]


def _check_options(body: RerankRequest) -> None:
    if body.priority:
        raise InvalidRequest("priority is not supported here: send the header latebind-priority, 1 (first) to 255")
    if body.max_chunks_per_doc not in (None, 1):
        raise InvalidRequest("max_chunks_per_doc is not supported: a document is read once, and cut to what fits")
    if body.truncate_prompt_tokens not in (None, -1):
        raise InvalidRequest("truncate_prompt_tokens may be -1, for as many as the model reads: send that, or none")


def _text_of(document: Document, fields: list[str] | None) -> str:
    """Return the text of a document, which is a text or has one."""
    if isinstance(document, str):
        return document
    text = document.get("text")
    if fields not in (None, ["text"]) or not isinstance(text, str):
        raise InvalidRequest("a document is a text, or an object whose `text` is one; other fields are not ranked")
    return text


def _best_first(found: Array) -> list[tuple[int, float]]:
    """Return place and score of all rows, of equal scores the first one first."""
    order = np.argsort(-found, kind="stable")
    return list(zip(order.tolist(), found[order].tolist(), strict=True))


def _cut_off(cut: list[int]) -> str:
    """Return the warning about documents that were cut."""
    named = ", ".join(map(str, cut[:20])) + (", and others" if len(cut) > 20 else "")
    return f"documents {named} were truncated: with the query they have more tokens than the model reads"
