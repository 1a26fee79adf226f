"""Queries in a real engine's process: steps are requests, tensors stay in slots, and every call ends once."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from latebind.domain.config import EngineConfig, PolicyConfig, ResidencyConfig
from latebind.domain.errors import Expired, Refused, StepFailed
from latebind.domain.eventlog import read_log
from latebind.domain.model import ModelSpec
from latebind.engine.client import EngineClient
from latebind.engine.order import EngineOrder
from latebind.queries.scheduler import make_scheduler
from latebind.repository.listing import find_served
from latebind.server.calls import Call
from latebind.server.gateway import AdaptationFigures, Answer, Array
from latebind.server.service import Service
from tests.engine.started import Started, check_refused, engine, soon, started, until_slots_are_free
from tests.querying import ANIMALS, CARS, Floats, Gate, Join, by_hand, rows_going, traffic


@pytest.fixture(scope="module")
def all_queries(queried: Path) -> Iterator[Started]:
    """An engine of two workers with every model and query."""
    models, queries = (tuple(map(str, found)) for found in find_served(queried, ()))
    with started(EngineOrder(models, EngineConfig(workers=2), PolicyConfig(), queries=queries)) as found:
        yield found


async def expiry(client: EngineClient, query: str) -> str:
    """Return what a call is told whose deadline passes once it is let in, however long the way there takes."""
    for seconds in (0.05, 0.5, 0.5, 5.0):
        try:
            await ask(client, query, rows_going([0]), time.monotonic() + seconds)
        except Refused:
            continue
        except Expired as error:
            if "step" in str(error):
                return str(error)  # else the frontend was quicker than the engine, and does not know how far it was
    raise AssertionError("no call was let in and expired")


def check(found: Array, wanted: Floats) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


async def ask(client: EngineClient, query: str, rows: Floats, deadline: float | None = None) -> Answer:
    return await client.infer(query, {"x": rows}, deadline=deadline or soon())


async def until_all_is_free(client: EngineClient) -> None:
    await until_slots_are_free(client)
    figures = await client.metrics()
    assert not any(model["pending"] for model in figures["models"].values())
    assert figures["scheduler"]["queries_live"] == 0  # type: ignore[typeddict-item]
    assert not client.sent


async def test_rows_of_one_call_are_one_batch_at_every_step(queried: Path) -> None:
    async with engine(queried, "chain", policy=PolicyConfig("graph")) as client:
        rows = rows_going([0, 1])
        check((await ask(client, "chain", rows)).outputs["scores"], by_hand(CARS, rows))
        figures = await client.metrics()
        batches = {name: figures["models"][name]["batches"] for name in figures["models"] if name != "chain"}
        assert set(map(str, batches.values())) == {"{'2': 1}"}


async def test_rows_of_one_call_take_different_branches_and_the_answer_says_what_ran(all_queries: Started) -> None:
    client, rows = all_queries.client, rows_going([0, 1, 2, 0])
    begun = time.monotonic()
    answer = await ask(client, "traffic", rows)
    took = time.monotonic() - begun
    check(answer.outputs["scores"], traffic(rows))
    ran = [[(step.step, step.model) for step in steps] for steps in answer.steps]
    gate, cars = ("gate", "gate"), ("cars", "cars")
    assert ran == [[gate, cars], [gate, ("animals", "animals")], [gate], [gate, cars]]
    for step in answer.steps[0]:
        assert step.left_at == client.models[step.model].stages - 1
        assert 0.0 < step.spent < took < step.budget
    assert client.deadlines == {"traffic": 20.0}
    await until_all_is_free(client)


class Watching:
    """Keeps a copy of what an observer is told: which model, of what row, and its answer."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[Array], Array, tuple[int, ...]]] = []

    def answered(self, spec: ModelSpec, rows: Mapping[str, Sequence[Array]], answer: Answer) -> None:
        (output, *_) = answer.outputs.values()
        self.seen.append((spec.name, [row.copy() for row in rows["x"]], output.copy(), answer.left_at))

    def figures(self) -> Mapping[str, AdaptationFigures]:
        return {}

    def unwatched(self) -> str:
        return ""


async def test_who_observes_a_model_sees_the_steps_that_it_answered(all_queries: Started) -> None:
    client, watching = all_queries.client, Watching()
    rows = rows_going([0, 1, 2])

    async def fill(places: Mapping[str, Sequence[Array]]) -> None:
        for place, row in zip(places["x"], rows, strict=True):
            place[...] = row

    await Service(client, observer=watching).infer(client.models["traffic"], Call((), 3, ()), fill)
    await until_all_is_free(client)
    (query, *_), *steps = watching.seen
    assert query == "traffic"
    assert [name for name, *_ in steps] == ["gate", "cars", "gate", "animals", "gate"]
    wanted = ((rows[0], Gate()), (2 * rows[0] + 1, CARS), (rows[1], Gate()), (rows[1], ANIMALS), (rows[2], Gate()))
    for (name, (given,), found, left_at), (row, module) in zip(steps, wanted, strict=True):
        check(given, row)
        check(found, by_hand(module, row[None]))
        assert left_at == (client.models[name].stages - 1,)


async def test_a_step_that_raises_fails_its_query_with_the_step_named_and_no_other(all_queries: Started) -> None:
    client = all_queries.client
    failing = [ask(client, "spelling", rows_going([0]) * 100) for _ in range(5)]
    going = [ask(client, "fork", rows_going([0])) for _ in range(5)]
    found = await asyncio.gather(*failing, *going, return_exceptions=True)
    assert [type(one) for one in found] == [StepFailed] * 5 + [Answer] * 5
    assert str(found[0]).startswith("step 'words' of spelling raised")
    assert (await ask(client, "spelling", rows_going([0]))).outputs["out"].shape == (1, 4)
    figures = (await client.metrics())["models"]
    assert figures["spelling"]["requests"]["failed"] == 5
    assert figures["words"]["requests"]["failed"] == 0, "a word that it does not know is not sent to it"
    await until_all_is_free(client)


async def test_a_cancelled_query_ends_with_its_steps(queried: Path) -> None:
    policy = PolicyConfig("graph", 8, window=20.0)  # it holds the first step in the queue until it is cancelled
    async with engine(queried, "chain", config=EngineConfig(slots=2), policy=policy) as client:
        for _ in range(5):
            call = asyncio.create_task(ask(client, "chain", rows_going([0, 1])))
            while not (await client.metrics())["scheduler"]["queued"]:  # type: ignore[typeddict-item]
                pass
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until_all_is_free(client)
        figures = (await client.metrics())["models"]
        assert figures["chain"]["requests"]["cancelled"] == figures["gate"]["requests"]["cancelled"] == 10
        assert not figures["cars"]["stage_runs"]


async def test_a_deadline_that_no_step_could_meet_is_refused_and_one_that_passes_on_the_way_is_told(
    queried: Path,
) -> None:
    policy = PolicyConfig("graph", 8, window=20.0)
    async with engine(queried, "chain", policy=policy) as client:
        with pytest.raises(Refused, match="chain cannot answer by the deadline"):
            await ask(client, "chain", rows_going([0]), time.monotonic())
        assert "step 'gate' of chain" in await expiry(client, "chain")
        await until_all_is_free(client)


@pytest.mark.parametrize("policy", ["late", "graph"])
async def test_many_queries_and_requests_for_their_models_each_get_their_own_answer(queried: Path, policy: str) -> None:
    async with engine(queried, config=EngineConfig(workers=2, slots=64), policy=PolicyConfig(policy)) as client:
        rows = rows_going([number % 3 for number in range(200)])
        scores, cars = traffic(rows), by_hand(CARS, rows)
        joined = by_hand(Join(), by_hand(CARS, rows), by_hand(ANIMALS, rows))

        async def one(number: int) -> None:
            row = slice(number, number + 1)
            match number % 4:
                case 0 | 1:
                    found, wanted = (await ask(client, "traffic", rows[row])).outputs["scores"], scores
                case 2:
                    found, wanted = (await ask(client, "fork", rows[row])).outputs["sum"], joined
                case _:
                    found, wanted = (await ask(client, "cars", rows[row])).outputs["output"], cars
            check(found, wanted[row])

        await asyncio.gather(*map(one, range(200)))
        figures = await client.metrics()
        answered = figures["steps"]["traffic"]["cars"]["answered"]
        assert answered == {"small": 0, "cars": sum(n % 3 == 0 for n in range(200) if n % 4 < 2)}
        assert figures["models"]["traffic"]["requests"]["answered"] == 100
        assert figures["models"]["cars"]["requests"]["answered"] == answered["cars"] + 50 + 50
        await until_all_is_free(client)


async def test_models_of_a_query_come_to_memory_when_it_asks_for_them(queried: Path) -> None:
    async with engine(
        queried, "traffic", config=EngineConfig(slots=4), residency=ResidencyConfig(40_000_000)
    ) as client:
        rows = rows_going([0, 1])
        answer = await ask(client, "traffic", rows)
        check(answer.outputs["scores"], traffic(rows))
        loads = {name: figures["loads"] for name, figures in (await client.metrics())["memory"]["models"].items()}
        assert set(loads) == {"gate", "small", "cars", "animals"}
        assert all(loads[name] for name in ("gate", "cars", "animals"))


def test_a_query_that_is_not_right_is_told_at_the_start_with_its_line(queried: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.query.toml"
    broken.write_text('[nodes.gate]\nmodels = ["gates"]\n[outputs]\ny = "gate.output"\n')
    order = EngineOrder((str(queried / "gate" / "1"),), EngineConfig(), PolicyConfig(), queries=(str(broken),))
    check_refused(order, r"broken\.query\.toml:2: .*gates")


async def test_a_log_with_queries_replays_to_the_identical_actions(queried: Path, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    config = EngineConfig(workers=2, slots=16)
    async with engine(queried, config=config, log=log) as client:

        async def one(number: int) -> None:
            name = ("traffic", "fork", "spelling", "gate")[number % 4]
            allowed = 0.001 if number % 5 == 0 else 30.0
            rows = rows_going([number % 3, 1], number) * (30 if number % 3 else 1)
            with suppress(Refused, Expired, StepFailed):
                await ask(client, name, rows, time.monotonic() + allowed)

        await asyncio.gather(*(one(number) for number in range(40)))
        await until_all_is_free(client)
    with log.open("rb") as file:
        scheduled, entries = read_log(file)
        scheduler = make_scheduler(scheduled)
        kinds = set()
        for entry in entries:
            assert tuple(scheduler.handle(entry.event, entry.now)) == entry.actions
            kinds.add(type(entry.event).__name__)
        scheduler.check()
    assert kinds >= {"Arrived", "StageDone", "Branched", "Mapped"}
