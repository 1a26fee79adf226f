"""Answers in pieces: from a claim to the last token, and as events. Apart, for async generators cannot be compiled."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, aclosing

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


async def events(
    encode: Callable[[Answer], bytes], first: Answer, pieces: AsyncGenerator[Answer]
) -> AsyncGenerator[bytes]:
    """Yield server-sent events (HTML standard, 9.2)."""
    async with aclosing(pieces):
        try:
            yield b"data: %b\n\n" % encode(first)
            async for piece in pieces:
                yield b"data: %b\n\n" % encode(piece)
        except Exception as error:  # the root of a reply whose head is sent: report it, and tell the client in an event
            yield b"data: %b\n\n" % reply_to(error).body
