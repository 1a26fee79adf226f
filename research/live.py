"""Live engines under test: rows to ask for, a client that sends them, and sides that take turns at the machine's pace.

The speed of a machine that others share changes within seconds, by a third and more. So before each block of a session,
its serial engine answers some requests one after another. The time that they take is the pace: arrivals and deadlines
are scaled to it, and results are given at the mean pace of the whole run.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from math import inf, nan
from pathlib import Path
from random import Random
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from latebind.bench.client import Array
from latebind.bench.rounds import Progress, in_rounds
from latebind.bench.subject import Setting
from latebind.domain.config import ServedModel
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec
from latebind.engine.client import EngineClient
from latebind.engine.order import EngineOrder
from latebind.program.stored import read_spec_and_costs
from latebind.repository.directory import ModelDirectory
from latebind.sequence.padding import steps
from latebind.server.gateway import Answer, StepAnswer
from research.requests import PATIENCE, Sent, ask, in_time
from research.sides import SERIAL, SLOTS, Side, alone, begun

MADE_UP = 4  # rows of each model, where none are given
WARM_UP = 40  # requests
WAITING = 3  # batches' worth of rows under way while an engine has always enough to do

Seconds = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Rows:
    """Arrays `(N, *shape)` by input, asked for in turn or by number, and what is right.

    That is `labels` `(N,)`, or else the first answer to the same row: all of its tokens, or its class.
    """

    def __init__(self, inputs: Mapping[str, Array], labels: Array | None = None) -> None:
        self.count = len(next(iter(inputs.values())))
        self.next = 0
        self.others = 0  # answers that were not right
        self._rows = [{name: array[row : row + 1] for name, array in inputs.items()} for row in range(self.count)]
        self._right: dict[int, Array] = {} if labels is None else dict(enumerate(labels))

    @classmethod
    def made_up(cls, spec: ModelSpec, random: Random) -> "Rows":
        """Return some rows of normal numbers, or of numbers of words."""
        numbers, arrays = np.random.default_rng(random.getrandbits(32)), dict[str, Array]()
        for tensor in spec.inputs:
            shape, dtype = (MADE_UP, *tensor.shape), np.dtype(tensor.dtype)
            drawn = (
                numbers.standard_normal(shape) if dtype.kind == "f" else numbers.integers(0, tensor.limit or 1, shape)
            )
            arrays[tensor.name] = drawn.astype(dtype)
        return cls(arrays)

    def take(self) -> int:
        """Return the number of the next row."""
        row, self.next = self.next % self.count, self.next + 1
        return row

    def given(self, row: int, spec: ModelSpec) -> dict[str, Array]:
        """Return the inputs of a model or a query of this row, each `(1, *shape)`."""
        return {tensor.name: self._rows[row][tensor.name] for tensor in spec.inputs}

    def check(self, spec: ModelSpec) -> None:
        """Raise `ConfigError` where rows have not all inputs."""
        missing = [tensor.name for tensor in spec.inputs if tensor.name not in self._rows[0]]
        if missing:
            raise ConfigError(f"{spec.name} takes {missing[0]!r}, the rows have {', '.join(sorted(self._rows[0]))}")

    def right(self, row: int, answer: Answer, spec: ModelSpec) -> bool:
        """Tell whether an answer is right, and count it in `others` if not."""
        output: Array = next(iter(answer.outputs.values()))[0]
        found = np.asarray(output if spec.kinds or not output.ndim else output.argmax())
        same = np.array_equal(self._right.setdefault(row, found), found)
        self.others += not same
        return same

    def lengths(self, spec: ModelSpec, rows: Sequence[int] | None = None) -> list[tuple[int, int]]:
        """Return the steps of input and answer of rows, by default of all answered ones; 1 where there are none."""
        some = [row % self.count for row in (sorted(self._right) or range(1) if rows is None else rows)]
        if not spec.kinds:
            return [(1, 1)] * len(some)
        return [(steps(spec, self.given(row, spec))[0], len(self._right[row])) for row in some]


@dataclass(frozen=True, slots=True)
class Call:
    """One request as its client saw it; `due` is when it should have been sent (`time.monotonic()`).

    `waited` are the seconds until its batch began, `inside` those until its answer, both in the engine; inf where it
    was refused or dropped. `early` tells whether it left before the last stage; of a query, `steps` and which of them.
    """

    sent: Sent
    due: float
    waited: float = inf
    inside: float = inf
    right: bool = False
    early: bool = False
    steps: tuple[StepAnswer, ...] = ()
    steps_early: tuple[bool, ...] = ()

    @property
    def seconds(self) -> float:
        """From when it should have been sent to its end, whatever that was."""
        return self.sent.ended - self.due

    @property
    def answered(self) -> bool:
        """Whether it was answered."""
        return self.inside < inf


class Asked:
    """A running engine and the rows that it is asked for, of one kind for all models or by model."""

    def __init__(self, engine: EngineClient, rows: Rows | Mapping[str, Rows]) -> None:
        self.engine = engine
        self.models = engine.models
        self._rows = rows

    async def call(
        self, model: str, row: int | None = None, *, allowed: float = PATIENCE, due: float | None = None
    ) -> Call:
        """Ask for a row, the next one by default, and wait for the end; `allowed` seconds count from when it is due."""
        rows, spec = self._rows if isinstance(self._rows, Rows) else self._rows[model], self.models[model]
        row = rows.take() if row is None else row
        due = time.monotonic() if due is None else due
        sent, answer = await ask(self.engine, model, rows.given(row, spec), due + allowed - time.monotonic())
        if answer is None:
            return Call(sent, due)
        taken = answer.steps[0] if answer.steps else ()
        return Call(
            sent,
            due,
            answer.waited[0],
            answer.waited[0] + answer.ran[0],
            rows.right(row, answer, spec),
            answer.left_at[0] < spec.stages - 1,
            taken,
            tuple([step.left_at < self.models[step.model].stages - 1 for step in taken]),
        )

    async def one_by_one(self, model: str, rows: Sequence[int], *, allowed: float = PATIENCE) -> list[Call]:
        """Ask for rows one after another."""
        return [await self.call(model, row, allowed=allowed) for row in rows]

    async def play(
        self, calls: Sequence[tuple[float, str]], *, rows: Sequence[int] | None = None, allowed: float = PATIENCE
    ) -> list[Call]:
        """Send requests for models at their times (seconds from now), never waiting; return when all have ended."""
        now = time.monotonic()
        each = zip(calls, [None] * len(calls) if rows is None else rows, strict=True)
        return await in_time(
            [(at, partial(self.call, model, row, allowed=allowed, due=now + at)) for (at, model), row in each]
        )

    async def crowd(self, clients: Sequence[Iterator[str]], seconds: float) -> list[Call]:
        """Let each client ask for its next model as soon as it has its answer, for this many seconds."""
        end, found = time.monotonic() + seconds, list[Call]()

        async def client(models: Iterator[str]) -> None:
            while time.monotonic() < end:
                found.append(await self.call(next(models)))

        await asyncio.gather(*map(client, clients))
        return found

    async def saturate(self, paths: Iterator[tuple[int | None, Sequence[str]]], count: int, waiting: int) -> float:
        """Return the seconds a request takes while `waiting` of them are always under way, over `count` of them.

        A path is a row and the models that a client asks for it, one after another. As many requests as there are
        clients do not count at the beginning, when all are at the same step, and at the end, when batches empty.
        """
        ends: list[float] = []

        async def client() -> None:
            for row, models in paths:
                for model in models:
                    await self.call(model, row)
                ends.append(time.perf_counter())
                if len(ends) + waiting > count + 2 * waiting:
                    return

        await asyncio.gather(*(client() for _ in range(waiting)))
        return (ends[waiting + count - 1] - ends[waiting - 1]) / count


@dataclass(frozen=True, slots=True)
class Played:
    """The outcomes of N requests in the order of sending, live or simulated.

    `seconds` are those between the engine's hearing of a request and its answer, inf where it was refused or dropped;
    `early` tells who left before the last stage, `alike` whose answer is the right one; simulated, nobody knows.
    """

    seconds: Seconds
    early: Flags
    alike: Flags | None = None

    @property
    def answered(self) -> Flags:
        """Which requests were answered, in time or not."""
        return np.isfinite(self.seconds)

    @property
    def fidelity(self) -> float:
        """The share of answers that are right; NaN if there are none or if that is not known."""
        right = None if self.alike is None else self.alike[self.answered]
        return nan if right is None or not len(right) else float(right.mean())

    def latency(self) -> dict[str, object]:
        """Return mean and 99th percentile of the answers as cells of a table, empty where there are none."""
        seconds = self.seconds[self.answered] * 1e3
        if not len(seconds):
            return {"mean ms": "", "p99 ms": ""}
        return {"mean ms": f"{seconds.mean():.2f}", "p99 ms": f"{np.percentile(seconds, 99):.2f}"}


def joined(parts: Sequence[Played]) -> Played:
    """Return several outcomes joined, one after another."""
    alike = [part.alike for part in parts if part.alike is not None]
    return Played(
        np.concatenate([part.seconds for part in parts]),
        np.concatenate([part.early for part in parts]),
        np.concatenate(alike) if len(alike) == len(parts) else None,
    )


class Contest(Protocol):
    """Sides that are ready to answer requests for one model. `Session` is the live one, `joint.simulated` the other."""

    @property
    def alone(self) -> float:
        """Seconds that the base model takes for one request after another."""

    async def saturated(
        self, names: Sequence[str], seconds: float, rounds: int, random: Random, tell: Progress
    ) -> dict[str, list[float]]:
        """Return for each side and round the time per request when saturated, in units of `alone`."""

    async def block(
        self, names: Sequence[str], times: Sequence[float], random: Random, *, alone: float, allowed: float
    ) -> Mapping[str, Played]:
        """Return the outcomes of requests at these times, each due `allowed` seconds later, on each side."""


Measure = Callable[[Contest, Random, Progress], Coroutine[Any, Any, None]]


class Session:
    """A contest of live engines under way. `served` is the model without learned caches, as `build` measured it."""

    def __init__(
        self, served: ServedModel, sides: Mapping[str, Side], rows: Rows, asked: Mapping[str, Asked], paced: float
    ) -> None:
        self.served, self.sides, self.rows, self.asked = served, sides, rows, asked
        self._paced = paced
        self._requests = 0  # by which the pace is taken
        self._typical = 1.0  # by profile, the mean of all rows over the mean of those
        self._paces: list[float] = []

    @property
    def alone(self) -> float:
        """Seconds that one request after another takes, at the mean pace so far."""
        return float(np.mean(self._paces))

    async def pace(self) -> float:
        """Return the seconds per request now, one after another, always by the same rows."""
        serial, spec = self.asked[SERIAL], self.served.spec
        if not self._requests:
            took = await serial.saturate(_again(spec.name), WARM_UP, 1)
            self._requests = max(WARM_UP // 4, round(self._paced / took))
            paced = self.rows.lengths(spec, range(1, self._requests + 1))  # between the first and the last asked for
            self._typical = alone(self.served, self.rows.lengths(spec)) / alone(self.served, paced)
        self.rows.next, following = 0, self.rows.next
        self._paces.append(self._typical * await serial.saturate(_again(spec.name), self._requests, 1))
        self.rows.next = following
        return self._paces[-1]

    async def saturated(
        self, names: Sequence[str], seconds: float, rounds: int, random: Random, tell: Progress
    ) -> dict[str, list[float]]:
        """Return for each side and round the time a request takes with always enough to do, in units of `alone`.

        Over as many requests as a serial engine answers in so many seconds, in whole batches.
        """
        requests = max(WARM_UP, round(seconds / self.alone))
        found: dict[str, list[float]] = {name: [] for name in names}
        for number in in_rounds(rounds):
            tell("saturation", number / rounds)
            for name in random.sample(list(names), len(names)):
                here = await self.pace()
                waiting = WAITING * self.sides[name].largest_batch(self.served.spec)
                count = -(-requests // waiting) * waiting
                taken = await self.asked[name].saturate(_again(self.served.spec.name), count, waiting)
                found[name].append(taken / here)
        return found

    async def block(
        self, names: Sequence[str], times: Sequence[float], random: Random, *, alone: float, allowed: float = PATIENCE
    ) -> dict[str, Played]:
        """Return the outcomes of requests at these times on each side, with the same rows for all.

        Times, what is allowed and seconds are those at the pace at which a request takes `alone` seconds serially.
        """
        first, found = self.rows.next, {}
        for name in random.sample(list(names), len(names)):
            slower, self.rows.next = await self.pace() / alone, first
            sent = [(slower * at, self.served.spec.name) for at in times]
            calls = await self.asked[name].play(sent, allowed=slower * allowed)
            found[name] = Played(
                np.array([call.inside / slower for call in calls]),
                np.array([call.early for call in calls]),
                np.array([call.right for call in calls]),
            )
        return {name: found[name] for name in names}


@asynccontextmanager
async def session(
    path: Path,
    sides: Mapping[str, Side],
    inputs: Mapping[str, Array],
    setting: Setting,
    *,
    known: int,
    cores: tuple[int, ...] = (),
) -> AsyncIterator[Session]:
    """Start an engine for each side, on `cores` or that of the setting, and warm them up.

    `serial` must be among them: it gives the pace, and the right answers to the first `known` rows.
    """
    served = ServedModel(*read_spec_and_costs(ModelDirectory.open(path)))
    rows, name = Rows(inputs), served.spec.name
    async with AsyncExitStack() as stack:
        asked = {
            side: Asked(await started(stack, (path,), one, setting, cores=cores), rows) for side, one in sides.items()
        }
        for _ in range(min(known, rows.count)):
            await asked[SERIAL].call(name)
        here = Session(served, sides, rows, asked, setting.paced)
        for side, one in sides.items():
            batches = one.largest_batch(served.spec) if served.spec.kinds else 1
            await asked[side].saturate(_again(name), WARM_UP * batches, WARM_UP)
        await here.pace()
        yield here


async def started(
    stack: AsyncExitStack,
    paths: Sequence[Path],
    side: Side,
    setting: Setting,
    *,
    cores: tuple[int, ...] = (),
    slots: int = SLOTS,
    queries: Sequence[Path] = (),
    log: Path | None = None,
) -> EngineClient:
    """Return an engine of this side with models and queries, which ends with the stack; `log` takes its events."""
    return await begun(
        stack,
        EngineOrder(
            tuple(map(str, paths)),
            side.engine(cores or (setting.engine_core,), slots, setting.backend),
            side.policy,
            queries=tuple(map(str, queries)),
            event_log=str(log) if log else None,
        ),
    )


def _again(model: str) -> Iterator[tuple[None, tuple[str]]]:
    """Yield the next row of a model without end."""
    while True:
        yield None, (model,)
