"""A call that is answered in pieces: from its claim to its last token, and its places given back whatever happens."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, aclosing

from latebind.server.calls import Call
from latebind.server.gateway import Answer, Claim
from latebind.server.tracing import TracedCall, note_sent

Claimed = Callable[[], Awaitable[tuple[Claim, float]]]  # returns filled slots and the deadline


async def stream(
    call: Call, claim_filled: Claimed, following: AbstractContextManager[TracedCall | None]
) -> AsyncGenerator[Answer]:
    """Yield the answer to a call in pieces (`Claim.stream`)."""
    with following as followed:
        claim, deadline = await claim_filled()
        try:
            pieces = claim.stream(deadline=deadline, priority=call.priority, trace=note_sent(followed))
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece
        finally:
            claim.release()
