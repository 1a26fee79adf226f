"""`python -m research lengths-one`: what a call of a single client takes, from its backend in a loop to its answer."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typer import Option

from latebind.bench.client import Connections
from latebind.bench.rounds import Progress
from latebind.bench.statistics import mean_interval, ratio_of_means
from latebind.cli.bench.options import ServeWords
from latebind.cli.console import Rows, reporting
from latebind.cli.options import Seed
from latebind.domain.actions import Run
from latebind.domain.config import EngineConfig, PolicyConfig
from latebind.engine.client import EngineClient
from latebind.engine.loaded import LoadedModel, load_for_workers
from latebind.engine.order import EngineOrder
from latebind.engine.slots import SlotMemory, create_file, file_bytes
from latebind.engine.worker import Worker
from latebind.program.load import load_program, load_uncut
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from research.evaluation import Found, Output, Rounds, Words, evaluate
from research.lengths.peers import MODEL, Texts, build, latebind_side

WORKERS = (1, 2)  # of engines; a server has the most
ALLOWED = 60.0  # seconds that a call may take
WARM_UP = 50  # calls of each part
QUEUED, RAN = ", of it in the queue", ", of it with the worker"

Part = Callable[[Sequence[int]], Coroutine[None, None, Mapping[str, float]]]
"""Runs these texts one after another and returns the mean seconds of each, and of what it tells of them besides."""


def lengths_one(
    weights: Annotated[Path, Option(help="A sentence-transformers folder: an encoder with tokenizer.json.")],
    texts: Annotated[Path, Option(help="A text in each line, behind its last tab; may be packed by gzip.")],
    *,
    models: Annotated[Path | None, Option(help="Where the model is, or is built. Default: built anew.")] = None,
    most: Annotated[int, Option(min=1, help="Take the first texts of the file.")] = 2000,
    longest: Annotated[int, Option(min=1, help="Texts are cut to so many tokens.")] = 256,
    max_batch: Annotated[int, Option(min=1, help="The largest batch.")] = 16,
    backend: Words = None,
    serve: ServeWords = None,
    pause_ms: Annotated[
        float, Option(min=0.0, help="Between two calls; one is about what client, frontend and engine take there.")
    ] = 1.0,
    rounds: Rounds = 10,
    calls: Annotated[int, Option(min=1, help="How many texts each part takes in a round.")] = 100,
    seed: Seed = 0,
    output: Output,
) -> None:
    """Tell where the time of one client's calls goes, texts of their own lengths.

    Each part has the one before it within it, and all take turns with the same texts: the uncut model, with the texts
    sorted by length and as they come; its stages; these after a pause, as whoever waits for a client makes one, for on
    a shared machine a core that rested is slower; a worker; an engine in a process of its own, of one worker and of
    two; and a server.

    Example: python -m research lengths-one --weights all-MiniLM-L6-v2 --texts requests.tsv
    """

    def found(on_progress: Progress) -> Found:
        with TemporaryDirectory() as folder:
            place = models or Path(folder) / "models"
            if not (place / MODEL).exists():
                on_progress("building", 0.0)
                build(weights, place, longest=longest, max_batch=max_batch, backends=backend or ["openvino"])
            directory = ModelDirectory.open(find_models(place, [MODEL])[0])
            given = Texts.read(texts, weights, most=most, longest=longest)

            async def measured() -> dict[str, list[float]]:
                taken: dict[str, list[float]] = {}
                async with parts_of(directory, place, Path(folder), given, serve or (), pause_ms / 1e3) as parts:
                    for part in parts.values():
                        await part(range(min(WARM_UP, len(given.texts))))
                    for number in range(rounds):
                        on_progress("calls", number / rounds)
                        random = Random(f"{seed} {number}")
                        rows = [random.randrange(len(given.texts)) for _ in range(calls)]
                        for name in random.sample(list(parts), len(parts)):
                            for what, seconds in (await parts[name](rows)).items():
                                taken.setdefault(f"{name}{what}", []).append(seconds)
                    return {
                        what: taken[what]
                        for name in parts
                        for what in (name, name + QUEUED, name + RAN)
                        if what in taken
                    }

            return Found({"one client, a call after another": _table(asyncio.run(measured()))})

    with reporting():
        evaluate({"parts": found}, output)


def _table(taken: Mapping[str, Sequence[float]]) -> Rows:
    rows: Rows = []
    before: NDArray[np.float64] | None = None
    loop, paused = (np.array(taken[name]) for name in ("stages", "stages after a pause"))
    for name, seconds in taken.items():
        within = name.endswith((QUEUED, RAN))
        more = "" if before is None or within else mean_interval((np.array(seconds) - before) * 1e3).written("+.2f")
        rows.append(
            {
                "part": name,
                "ms": f"{np.mean(seconds) * 1e3:.2f}",
                "more than before": more,
                "/ stages": "" if within else str(ratio_of_means(seconds, loop)),
                "/ stages after a pause": "" if within else str(ratio_of_means(seconds, paused)),
            }
        )
        before = before if within else np.array(seconds)
    return rows


@asynccontextmanager
async def parts_of(
    directory: ModelDirectory, repository: Path, folder: Path, texts: Texts, options: Sequence[str], pause: float
) -> AsyncIterator[dict[str, Part]]:
    """Yield the parts by name, each of which has the one before it within it; `pause` in seconds."""
    given = [(tokens, torch.ones_like(tokens)) for tokens in texts.tokens]
    uncut, program = load_uncut(directory), load_program(directory)
    (model,), *_ = load_for_workers([directory.path], EngineConfig())
    async with AsyncExitStack() as stack:
        engines = {}
        for workers in WORKERS:
            order = EngineOrder((str(directory.path),), EngineConfig(workers=workers), PolicyConfig())
            engine = await EngineClient.start(order)
            stack.push_async_callback(engine.close)
            engines[f"engine of {workers}"] = _asking(engine, given)
        options = ["--workers", str(WORKERS[-1]), *options]
        side = latebind_side(repository, options, folder / "served.log")
        served = stack.enter_context(side.start())
        there = Connections(served.url)
        stack.callback(there.close)
        requests = [side.call(there.host, "", tokens, None) for tokens in texts.tokens]

        async def ask_server(rows: Sequence[int]) -> Mapping[str, float]:
            taken = list[float]()
            for row in rows:
                begun = time.perf_counter()
                async with there.one() as connection:
                    reply = await connection.ask(requests[row])
                taken.append(time.perf_counter() - begun)
                assert reply.status == 200, reply.data
            return {"": float(np.mean(taken))}

        yield {
            "uncut, texts sorted by length": _loop(lambda row: uncut(*given[row]), texts.tokens),
            "uncut": _loop(lambda row: uncut(*given[row])),
            "stages": _loop(lambda row: program.run(*given[row])),
            "stages after a pause": _loop(lambda row: program.run(*given[row]), pause=pause),
            "worker": _loop(partial(_work, *_worker(model), given), pause=pause),
            **engines,
            "server": ask_server,
        }


def _asking(engine: EngineClient, given: Sequence[tuple[Tensor, Tensor]]) -> Part:
    """Return the part that asks an engine."""

    async def part(rows: Sequence[int]) -> Mapping[str, float]:
        taken, queued, ran = list[float](), list[float](), list[float]()
        for row in rows:
            tokens, mask = given[row]
            arrays = {"input_ids": tokens.numpy(), "attention_mask": mask.numpy()}
            begun = time.perf_counter()
            answer = await engine.infer(MODEL, arrays, deadline=time.monotonic() + ALLOWED)
            taken.append(time.perf_counter() - begun)
            queued.append(answer.waited[0])
            ran.append(answer.ran[0])
        return {"": float(np.mean(taken)), QUEUED: float(np.mean(queued)), RAN: float(np.mean(ran))}

    return part


def _worker(model: LoadedModel) -> tuple[Worker, SlotMemory]:
    """Return a worker for a model, with a slot."""
    counts, file = {MODEL: 1}, create_file()
    try:
        os.ftruncate(file, file_bytes([model.spec], counts))
        memory = SlotMemory(file, [model.spec], counts)
    finally:
        os.close(file)
    return Worker({MODEL: model}, memory), memory


def _loop(call: Callable[[int], object], sort_by: Sequence[Tensor] | None = None, *, pause: float = 0.0) -> Part:
    """Return the part that calls a function of this process in a loop, without the pauses before each call."""

    async def part(rows: Sequence[int]) -> Mapping[str, float]:
        order = rows if sort_by is None else sorted(rows, key=lambda row: sort_by[row].numel())
        taken = 0.0
        with torch.inference_mode():
            for row in order:
                if pause:
                    time.sleep(pause)
                begun = time.perf_counter()
                call(row)
                taken += time.perf_counter() - begun
        return {"": taken / len(rows)}

    return part


def _work(worker: Worker, memory: SlotMemory, given: Sequence[tuple[Tensor, Tensor]], row: int) -> None:
    """Have a worker run a row, which begins where the memory for rows does."""
    (slots,) = memory.models
    sized, tensors = slots.sized, given[row]
    assert sized is not None
    sized.place(memory.extents().first, [0], (tensors[0].shape[1],))
    for number, tensor in enumerate(tensors):
        sized.row(0, number)[...] = tensor[0].numpy()
    for stage in range(sized.spec.stages):
        worker.run(Run(0, MODEL, stage, (row,), (0,)))
    worker.owners.end(row)
