"""Answers in pieces: from a claim to the last token, and as events. A separate file: mypyc has no async generators."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, aclosing

import numpy as np
from msgspec import structs

from latebind.domain.model import TEXT_OUTPUT, ModelSpec
from latebind.preprocessing.decoding import TextDecoder, TextPieces
from latebind.server.calls import Call
from latebind.server.gateway import Answer, Claim
from latebind.server.rest.messages import reply_to
from latebind.server.tracing import TracedCall

Claimed = Callable[[], Awaitable[tuple[Claim, float]]]  # returns filled slots and the deadline


async def stream(
    call: Call, claim_filled: Claimed, following: AbstractContextManager[TracedCall | None]
) -> AsyncGenerator[Answer]:
    """Yield the answer to a call in pieces (`Claim.stream`), and give its slots back whatever happens."""
    with following as followed:
        claim, deadline = await claim_filled()
        try:
            pieces = claim.stream(
                deadline=deadline, priority=call.priority, trace=0 if followed is None else followed.sends()
            )
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece
        finally:
            claim.release()


async def in_text(spec: ModelSpec, pieces: AsyncGenerator[Answer], decoder: TextDecoder) -> AsyncGenerator[Answer]:
    """Yield the pieces of an answer, each with the text it adds `(1, 1)`, often "" because none is certain yet."""
    tokens, texts = spec.outputs[0], TextPieces(decoder)
    async with aclosing(pieces):
        async for piece in pieces:
            (row,) = piece.outputs[tokens.name].tolist()
            text = texts.add(written(row, tokens.padding) if piece.complete else row, complete=piece.complete)
            yield structs.replace(piece, outputs={**piece.outputs, TEXT_OUTPUT: np.array([[text]], object)})


def written(tokens: list[int], padding: int | None) -> list[int]:
    """Return the tokens of an answer without its padding."""
    count = len(tokens)
    while count and tokens[count - 1] == padding:
        count -= 1
    return tokens[:count]


async def events(
    encode: Callable[[Answer], bytes], first: Answer, pieces: AsyncGenerator[Answer]
) -> AsyncGenerator[bytes]:
    """Yield server-sent events (HTML standard, 9.2)."""
    async with aclosing(pieces):
        try:
            yield b"data: %b\n\n" % encode(first)
            async for piece in pieces:
                yield b"data: %b\n\n" % encode(piece)
        except Exception as error:  # the head is sent: log it, and send the client an event with the error
            yield b"data: %b\n\n" % reply_to(error).body
