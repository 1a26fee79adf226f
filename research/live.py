"""Live engines under test: rows to ask for, and a client that sends them and tells what became of each request."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from math import inf, prod
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import numpy as np

from latebind.bench.client import Array
from latebind.bench.subject import Setting
from latebind.domain.errors import ConfigError, Expired, Refused
from latebind.domain.model import ModelSpec
from latebind.engine.client import EngineClient
from latebind.engine.order import EngineOrder
from latebind.sequence.program import counted
from latebind.server.gateway import Answer, StepAnswer
from research.sides import SLOTS, Side

T = TypeVar("T")

MADE_UP = 4  # rows of each model, where none are given
PATIENCE = 120.0  # seconds that any call may take
WAITING = 3  # batches' worth of rows under way while an engine has always enough to do


class Rows:
    """Arrays `(N, *shape)` by input, or N arrays where rows differ in size, asked for in turn or by number.

    What is right is `labels` `(N,)`, or else the first answer to the same row: all of its tokens, or its class.
    """

    def __init__(self, inputs: Mapping[str, Array | Sequence[Array]], labels: Array | None = None) -> None:
        self.count = len(next(iter(inputs.values())))
        self.next = 0
        self._rows = [
            {name: np.asarray(part[row : row + 1]) for name, part in inputs.items()} for row in range(self.count)
        ]
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

    @classmethod
    def of_sizes(cls, spec: ModelSpec, sizes: Sequence[tuple[int, ...]], random: Random) -> "Rows":
        """Return made-up rows of a model with these sizes of its named dimensions; whole numbers without limit are 1.

        So masks are.
        """
        found, numbers = cls.made_up(spec, random), np.random.default_rng(random.getrandbits(32))
        found.count, found._rows = len(sizes), []
        for row in sizes:
            dims, arrays = dict(zip([dim.name for dim in spec.dims], row, strict=True)), dict[str, Array]()
            for tensor in spec.inputs:
                shape, dtype = (1, *tensor.shape_of(dims)), np.dtype(tensor.dtype)
                drawn: Array = numbers.standard_normal(shape) if dtype.kind == "f" else np.ones(shape)
                if tensor.limit is not None:
                    drawn = numbers.integers(tensor.least, tensor.limit, shape)
                arrays[tensor.name] = drawn.astype(dtype)
            found._rows.append(arrays)
        return found

    def take(self) -> int:
        """Return the number of the next row."""
        row, self.next = self.next % self.count, self.next + 1
        return row

    def given(self, row: int, spec: ModelSpec) -> dict[str, Array]:
        """Return the inputs of a model or a query of this row, each `(1, *shape)`. Raises `ConfigError` without one."""
        missing = [tensor.name for tensor in spec.inputs if tensor.name not in self._rows[row]]
        if missing:
            raise ConfigError(f"{spec.name} takes {missing[0]!r}, the rows have {', '.join(sorted(self._rows[row]))}")
        found = {tensor.name: self._rows[row][tensor.name] for tensor in spec.inputs}
        for tensor in spec.inputs:
            if spec.kinds:  # an array has all sentences filled up to the longest
                words = found[tensor.name]
                found[tensor.name] = words[:, : max(counted(words, tensor.padding or 0))]
        return found

    def right(self, row: int, answer: Answer, spec: ModelSpec) -> bool:
        """Return whether an answer is right."""
        output: Array = next(iter(answer.outputs.values()))[0]
        found = np.asarray(output if spec.kinds or not output.ndim else output.argmax())
        return np.array_equal(self._right.setdefault(row, found), found)

    def lengths(self, spec: ModelSpec, rows: Iterable[int] | None = None) -> list[tuple[int, int]]:
        """Return the steps of input and answer of rows, by default of all answered ones; 1 where there are none."""
        some = [row % self.count for row in (sorted(self._right) or range(1) if rows is None else rows)]
        if not spec.kinds:
            return [(1, 1)] * len(some)
        (tokens,) = spec.inputs
        return [(self.given(row, spec)[tokens.name].shape[1], len(self._right[row])) for row in some]


@dataclass(frozen=True, slots=True)
class Call:
    """One request as its client saw it: when it was `due` to be sent, was, and had ended (`time.monotonic()`).

    It was given `allowed` seconds from when it was due. `left_at` is the last stage that it ran, -1 without an answer;
    `early` tells whether that was not the model's last. `waited` are the seconds until its batch began, `inside` those
    until its answer, both in the engine. `inputs` and `outputs` are the steps of a sequence's input and answer, or the
    length of a row where they differ in size, and `sizes` the same number for equal ones; `steps` those of a query.
    `promised` is the fidelity of the answer, 1 where none is told, and `row` its number.
    """

    model: str
    due: float
    sent: float
    ended: float
    allowed: float
    left_at: int = -1
    waited: float = inf
    inside: float = inf
    right: bool = False
    early: bool = False
    inputs: int = 1
    outputs: int = 1
    sizes: int = 0
    steps: tuple[StepAnswer, ...] = ()
    promised: float = 1.0
    row: int = 0

    @property
    def seconds(self) -> float:
        """From when it should have been sent to its end, whatever that was."""
        return self.ended - self.due

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
        given, sent = rows.given(row, spec), time.monotonic()
        due = sent if due is None else due
        try:
            answer = await self.engine.infer(model, given, deadline=due + allowed)
        except (Refused, Expired):
            return Call(model, due, sent, time.monotonic(), allowed, row=row)
        ended = time.monotonic()
        dims = spec.dims_of({name: array.shape[1:] for name, array in given.items()}) if spec.dims else {}
        return Call(
            model,
            due,
            sent,
            ended,
            allowed,
            answer.left_at[0],
            answer.waited[0],
            answer.waited[0] + answer.ran[0],
            rows.right(row, answer, spec),
            answer.left_at[0] < spec.stages - 1,
            prod(dims.values()),
            len(answer.outputs[spec.outputs[0].name][0]) if spec.kinds else 1,
            hash(tuple(dims.values())) if dims else 0,
            answer.steps[0] if answer.steps else (),
            answer.promised[0] if answer.promised else 1.0,
            row,
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
            [(at, partial(self.call, model, row, allowed=allowed, due=now + at)) for (at, model), row in each], now
        )

    async def crowd(self, clients: Sequence[Iterator[str]], seconds: float) -> list[Call]:
        """Let each client ask for its next model as soon as it has its answer, for this many seconds."""
        end, found = time.monotonic() + seconds, list[Call]()

        async def client(models: Iterator[str]) -> None:
            while time.monotonic() < end:
                found.append(await self.call(next(models)))

        await asyncio.gather(*map(client, clients))
        return found

    async def saturate(self, model: str, count: int, waiting: int, rows: Iterable[int | None] = repeat(None)) -> float:
        """Return the seconds a request takes while `waiting` of them are always under way, over `count` of them.

        As many requests as there are clients do not count at the beginning, when all are at the same step, and at the
        end, when batches empty.
        """
        ends, coming = list[float](), iter(rows)

        async def client() -> None:
            for row in coming:
                await self.call(model, row)
                ends.append(time.perf_counter())
                if len(ends) + waiting > count + 2 * waiting:
                    return

        await asyncio.gather(*(client() for _ in range(waiting)))
        return (ends[waiting + count - 1] - ends[waiting - 1]) / count


async def in_time(
    calls: Sequence[tuple[float, Callable[[], Coroutine[Any, Any, T]]]], begun: float | None = None
) -> list[T]:
    """Make each call at its time, in seconds from now or from when it has `begun` (`time.monotonic()`).

    Returns what they return, in their order, when all have ended.
    """
    begun, tasks = time.monotonic() if begun is None else begun, list[asyncio.Task[T]]()
    for at, call in calls:
        await asyncio.sleep(max(0.0, begun + at - time.monotonic()))
        tasks.append(asyncio.create_task(call()))
    return await asyncio.gather(*tasks)


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
    order = EngineOrder(
        tuple(map(str, paths)),
        side.engine(cores or (setting.engine_core,), slots, setting.backend),
        side.policy,
        queries=tuple(map(str, queries)),
        event_log=str(log) if log else None,
    )
    engine = await EngineClient.start(order)
    stack.push_async_callback(engine.close)
    return engine
