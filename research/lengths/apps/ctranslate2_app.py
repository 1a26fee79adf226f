"""CTranslate2 behind FastAPI, in float32. Run as `ctranslate2_app.py FOLDER MODEL PORT WORKERS THREADS TOKENS BATCH`.

Texts that wait are translated together, up to `BATCH` of them; each of `WORKERS` translators has `THREADS`. `FOLDER` is
that of transformers, and `MODEL` is made of it where it is not there yet. Answers have so many `TOKENS`.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ctranslate2
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from tokenizers import Tokenizer

FOLDER, MODEL, PORT = sys.argv[1:4]
WORKERS, THREADS, TOKENS, BATCH = map(int, sys.argv[4:])
GATHERED = 0.005  # seconds that a text waits for others: a batch of one takes a third as long as one of sixteen


class Asked(BaseModel):  # type: ignore[misc]  # pydantic is not there where types are checked
    """What comes."""

    text: str


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load the model as the server starts, and translate what waits until it ends."""
    app.state.tokenizer = Tokenizer.from_file(f"{FOLDER}/tokenizer.json")
    app.state.waiting = asyncio.Queue()
    translator = ctranslate2.Translator(
        MODEL, device="cpu", compute_type="float32", inter_threads=WORKERS, intra_threads=THREADS
    )
    translating = [asyncio.create_task(translate(translator, app.state.waiting)) for _ in range(WORKERS)]
    yield
    for one in translating:
        one.cancel()


async def translate(translator: Any, waiting: "asyncio.Queue[tuple[list[str], asyncio.Future[list[str]]]]") -> None:
    """Translate all texts that wait, batch by batch, in a thread."""
    loop = asyncio.get_running_loop()
    while True:
        asked = [await waiting.get()]
        await asyncio.sleep(GATHERED)
        while not waiting.empty() and len(asked) < BATCH:
            asked.append(waiting.get_nowait())
        translate_these = partial(
            translator.translate_batch,
            [tokens for tokens, _ in asked],
            beam_size=1,
            max_decoding_length=TOKENS,
            min_decoding_length=TOKENS,
        )
        found = await loop.run_in_executor(None, translate_these)
        for (_, answered), one in zip(asked, found, strict=True):
            if not answered.cancelled():
                answered.set_result(one.hypotheses[0])


async def generate(asked: Asked) -> dict[str, Any]:
    """Return the answer to a text, and its tokens."""
    tokenizer = app.state.tokenizer
    answered: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
    await app.state.waiting.put((tokenizer.encode(asked.text).tokens, answered))
    tokens = [tokenizer.token_to_id(token) for token in await answered]
    return {"tokens": tokens, "text": tokenizer.decode(tokens)}


async def ready() -> dict[str, Any]:
    """Say that it serves."""
    return {}


app = FastAPI(lifespan=lifespan)
app.add_api_route("/generate", generate, methods=["POST"])
app.add_api_route("/ready", ready)

if __name__ == "__main__":
    if not Path(MODEL).exists():
        ctranslate2.converters.TransformersConverter(FOLDER).convert(MODEL)
    uvicorn.run(app, port=int(PORT), access_log=False, log_level="warning")
