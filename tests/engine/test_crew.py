"""Workers over the same models: learned caches, sequences, adopted heads, all at the same time."""

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import torch

from latebind.domain.actions import Run
from latebind.domain.config import EngineConfig, PolicyConfig
from latebind.domain.errors import RepositoryError
from latebind.domain.eventlog import read_log
from latebind.engine.client import EngineClient
from latebind.engine.cores import at_once, usable_cores
from latebind.engine.crew import LoadedModel, load_crew, with_queries
from latebind.engine.order import EngineOrder
from latebind.engine.shared import ModelSlots, SlotMemory, create_file, file_bytes
from latebind.engine.worker import Worker
from latebind.repository.listing import find_models
from tests.digits import Built
from tests.forked import FORKS
from tests.halves import at_half
from tests.networks import Chain
from tests.program.test_backends import usable
from tests.sequences import backwards, rows_of, some_sentences

WORKERS = 3
EACH = 20  # requests that each worker answers


def workers_over(crew: Sequence[LoadedModel]) -> tuple[list[Worker], ModelSlots]:
    """Return a worker for each twin of one model, and the slots that they share: `EACH` for each."""
    spec, slots = crew[0].spec, EACH * len(crew)
    fd = create_file()
    os.ftruncate(fd, file_bytes([spec], {spec.name: slots}))
    memory = SlotMemory(fd, [spec], {spec.name: slots})
    os.close(fd)
    return [Worker({spec.name: model}, memory) for model in crew], memory.models[0]


def in_threads(work: Callable[[int], None], count: int) -> None:
    """Do the work of each of `count` workers in a thread of its own, all from the same moment on."""
    together = Barrier(count)

    def one(number: int) -> None:
        together.wait()
        with torch.inference_mode():
            work(number)

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(one, range(count)))


@pytest.mark.parametrize("backend", ["eager", "openvino"])
def test_learned_caches_of_all_workers_answer_as_those_of_one(built: Built, backend: str) -> None:
    usable(backend)
    unseen = built.unseen[: EACH * WORKERS]
    crew = [
        replace(model, lookups={stage: at_half(one, model, stage, unseen) for stage, one in model.lookups.items()})
        for (model,) in load_crew([built.directory.path], EngineConfig(workers=WORKERS, backend=backend))
    ]
    workers, rows = workers_over(crew)
    rows.inputs[0][:] = unseen.numpy()
    name, stages = crew[0].spec.name, crew[0].spec.stages
    left: dict[int, int] = {}

    def answer(worker: Worker, slots: tuple[int, ...]) -> None:
        for first in range(0, len(slots), 4):
            remaining = slots[first : first + 4]
            for stage in range(stages):
                exited = worker.run(Run(0, name, stage, remaining, remaining)).exited
                left.update(dict.fromkeys(exited, stage))
                for request in remaining if stage + 1 == stages else exited:
                    worker.owners.end(request)
                remaining = tuple(slot for slot in remaining if slot not in exited)
                if not remaining:
                    break

    every = tuple(range(EACH * WORKERS))
    with torch.inference_mode():
        answer(workers[0], every)
    expected, expected_left = torch.from_numpy(rows.outputs[0].copy()), dict(left)
    assert 0 < len(expected_left) < len(every)
    for _ in range(5):
        rows.outputs[0][:] = 0.0
        left.clear()
        in_threads(lambda number: answer(workers[number], every[number::WORKERS]), WORKERS)
        assert set(left) == set(expected_left)
        torch.testing.assert_close(torch.from_numpy(rows.outputs[0]), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "openvino"])
def test_sequences_of_all_workers_are_answered_as_if_each_were_alone(models: Path, backend: str) -> None:
    usable(backend)
    (path,) = find_models(models, ["backwards"])
    crew = [model for (model,) in load_crew([path], EngineConfig(workers=WORKERS, backend=backend))]
    workers, rows = workers_over(crew)
    sentences = some_sentences(EACH * WORKERS, seed=4)
    rows.inputs[0][:] = rows_of(sentences).numpy()

    def answer(number: int) -> None:
        mine = list(range(number, len(sentences), WORKERS))
        while mine:
            running, mine = tuple(mine[:7]), mine[7:]
            workers[number].run(Run(0, "backwards", 0, running, running))
            while running:
                exited = workers[number].run(Run(0, "backwards", 1, running, running)).exited
                running = tuple(slot for slot in running if slot not in exited)

    in_threads(answer, WORKERS)
    said = [[int(word) for word in row if word] for row in rows.outputs[0]]
    assert said == [backwards(words) for words in sentences]


def test_heads_that_one_worker_adopts_are_no_others(built: Built) -> None:
    crew = [model for (model,) in load_crew([built.directory.path], EngineConfig(workers=2))]
    workers, rows = workers_over(crew)
    rows.inputs[0][:] = built.unseen[: 2 * EACH].numpy()
    name, lookups = crew[0].spec.name, crew[0].lookups
    everyone = tuple(range(EACH))
    heads = {one: (function.head, 1e9) for lookup in lookups.values() for one, function in lookup.functions.items()}
    workers[1].adopt(name, 1, heads)  # thresholds that nothing passes
    stages = range(min(lookups) + 1)
    with torch.inference_mode():
        found = [[worker.run(Run(0, name, stage, everyone, everyone)).exited for stage in stages] for worker in workers]
    assert found[1][-1] == ()
    assert found[0][-1] != ()


async def test_what_the_engine_adopts_reaches_every_worker(built: Built, tmp_path: Path) -> None:
    order = EngineOrder(
        (str(built.directory.path),), EngineConfig(granularities=(1, 2, 4)), PolicyConfig(), adapted=str(tmp_path)
    )
    client = await EngineClient.start(order, FORKS)
    try:
        images = built.unseen[:60].numpy()

        async def stages_left_at() -> set[int]:
            calls = [client.infer("digits", {"image": images[i : i + 1]}, deadline=soon()) for i in range(60)]
            return {answer.left_at[0] for answer in await asyncio.gather(*calls)}

        last = client.models["digits"].stages - 1
        assert min(await stages_left_at()) < last
        await client.adopt("digits", "none")
        assert await stages_left_at() == {last}
    finally:
        await client.close()


async def test_workers_of_several_granularities_answer_every_call_and_no_more_run_than_have_cores(
    models: Path, tmp_path: Path
) -> None:
    config = EngineConfig(granularities=(1, 1, 2, 4, 8))
    log = tmp_path / "events.jsonl"
    order = EngineOrder(
        tuple(str(path) for path in find_models(models, ["chain"])), config, PolicyConfig(), event_log=str(log)
    )
    sent = [np.random.default_rng(n).standard_normal((1 + n % 6, 3, 8, 8)).astype(np.float32) for n in range(30)]
    client = await EngineClient.start(order, FORKS)
    try:
        calls = [client.infer("chain", {"image": rows}, deadline=soon()) for rows in sent]
        for rows, answer in zip(sent, await asyncio.gather(*calls), strict=True):
            expected = Chain()(torch.from_numpy(rows)).detach().numpy()
            np.testing.assert_allclose(answer.outputs["output"], expected, rtol=1e-4, atol=1e-5)
    finally:
        await client.close()
    with log.open("rb") as file:
        scheduled, _ = read_log(file)
    assert (scheduled.workers, scheduled.granularities) == (5, config.granularities)
    assert scheduled.at_once == min(5, len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (EngineConfig(cores=(0, 1)), 1),
        (EngineConfig(cores=(0, 1), workers=4), 2),
        (EngineConfig(cores=(0, 1, 2, 3), granularities=(1, 2, 4)), 3),
        (EngineConfig(cores=(0, 1, 2, 3), granularities=(1, 2, 4), threads=2), 2),
        (EngineConfig(cores=(0, 1), granularities=(1, 2, 4), threads=3), 1),
    ],
)
def test_as_many_workers_run_at_once_as_have_cores_for_their_threads(config: EngineConfig, count: int) -> None:
    assert at_once(config) == count
    assert usable_cores(config) == len(config.cores)


def soon() -> float:
    return time.monotonic() + 30


def test_two_folders_that_hold_models_of_one_name_are_told(models: Path, tmp_path: Path) -> None:
    (path,) = find_models(models, ["backwards"])
    shutil.copytree(path, tmp_path / "copy" / "1")
    crew = load_crew([path, tmp_path / "copy" / "1"], EngineConfig(workers=1))
    with pytest.raises(RepositoryError, match=r"copy/1 both hold a model named 'backwards': build one"):
        with_queries(crew[0], [], 4)
