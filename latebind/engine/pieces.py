"""An answer in pieces: the tokens of a claim as they are written. Apart, as mypyc compiles no async generator."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Protocol

import msgspec

from latebind.server.gateway import Answer


class Written(Protocol):
    """What pieces need of a claim: how many tokens are written, and a callback for when there are more."""

    tokens: int
    on_tokens: Callable[[], None] | None

    def written(self, begin: int, end: int) -> Answer:
        """Return a copy of these tokens."""
        ...


async def in_pieces(claim: Written, sent: Coroutine[Any, Any, Answer]) -> AsyncGenerator[Answer]:
    """Yield the tokens of `claim` in pieces while `sent` (`Claim.send`) waits for all; the last piece is complete.

    A slow reader gets several tokens in one piece. A call that does not write a sequence has one piece. Raises what
    `sent` raises; closing the iterator cancels it.
    """
    news = asyncio.Event()
    claim.on_tokens = news.set
    whole = asyncio.create_task(sent)
    whole.add_done_callback(lambda _: news.set())
    read = 0
    try:
        while not whole.done():
            await news.wait()
            news.clear()
            if not whole.done() and claim.tokens > read:
                begin, read = read, claim.tokens
                yield claim.written(begin, read)
        answer = await whole
    finally:
        whole.cancel()
        await asyncio.gather(whole, return_exceptions=True)
        del whole  # its exception refers to this frame: the cycle would keep the engine's memory mapped
    if read:
        rest = {name: rows[:, read:] for name, rows in answer.outputs.items()}
        answer = msgspec.structs.replace(answer, outputs=rest)
    yield answer
