"""Sentence-transformers behind FastAPI, as its users write it. Run as `text_app.py FOLDER PORT WORKERS`.

Texts that wait are encoded together, up to `BATCH` of them.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

BATCH = int(os.environ.get("LATEBIND_PEER_BATCH", "16"))


class Asked(BaseModel):  # type: ignore[misc]  # pydantic is not there where types are checked
    """What comes."""

    text: str | list[str]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load the model as a worker starts, and encode what waits until it ends."""
    torch.set_num_threads(1)
    app.state.model = SentenceTransformer(sys.argv[1], device="cpu")
    app.state.waiting = asyncio.Queue()
    encoding = asyncio.create_task(encode(app.state.model, app.state.waiting))
    yield
    encoding.cancel()


async def encode(model: Any, waiting: "asyncio.Queue[tuple[str, asyncio.Future[list[float]]]]") -> None:
    """Encode all texts that wait, batch by batch, in a thread."""
    loop = asyncio.get_running_loop()
    while True:
        asked = [await waiting.get()]
        while not waiting.empty() and len(asked) < BATCH:
            asked.append(waiting.get_nowait())
        texts = [text for text, _ in asked]
        encode_these = partial(model.encode, texts, normalize_embeddings=True, show_progress_bar=False)
        found = await loop.run_in_executor(None, encode_these)
        for (_, answered), row in zip(asked, found.tolist(), strict=True):
            if not answered.cancelled():
                answered.set_result(row)


async def embed(asked: Asked) -> dict[str, Any]:
    """Return the embedding of a text, or those of a list, which has the cores of both workers."""
    if isinstance(asked.text, list):
        torch.set_num_threads(2)
        encode_these = partial(app.state.model.encode, asked.text, batch_size=BATCH, normalize_embeddings=True)
        found = await asyncio.get_running_loop().run_in_executor(None, encode_these)
        torch.set_num_threads(1)
        return {"embedding": found.tolist()}
    answered: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()
    await app.state.waiting.put((asked.text, answered))
    return {"embedding": await answered}


async def ready() -> dict[str, Any]:
    """Say that it serves."""
    return {}


app = FastAPI(lifespan=lifespan)
app.add_api_route("/embed", embed, methods=["POST"])
app.add_api_route("/ready", ready)

if __name__ == "__main__":
    uvicorn.run("text_app:app", port=int(sys.argv[2]), workers=int(sys.argv[3]), access_log=False, log_level="warning")
