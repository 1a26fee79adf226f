"""An engine that is asked for a query, or for one of its models, and the outcome of each request."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latebind.bench.client import Array
from latebind.domain.errors import ConfigError, Expired
from latebind.domain.model import ModelSpec
from latebind.domain.query import Query
from latebind.engine.client import EngineClient
from latebind.learned.stored import read_accuracies
from latebind.queries.file.definition import read_query
from latebind.repository.directory import ModelDirectory
from latebind.server.gateway import Answer, StepAnswer
from research.gati.queries.live.sides import Served
from research.live.requests import in_time

PATIENCE = 60.0  # seconds that a request without a deadline may take


@dataclass(frozen=True, slots=True)
class Call:
    """One request: whether its answer was right, and seconds at the client and between the engine's ears and mouth.

    `steps` are those of a query, and `early` says which of them left before the last stage; of a model there are none,
    nor of a request that was not answered.
    """

    right: bool
    seconds: float
    inside: float
    steps: tuple[StepAnswer, ...]
    early: tuple[bool, ...]


class Rows:
    """Arrays `(N, *shape)` by name to ask for, and what is right: a class for each row `(N,)`."""

    def __init__(self, inputs: Mapping[str, Array], labels: Array) -> None:
        self.count = len(labels)
        self._rows = [{name: array[row : row + 1] for name, array in inputs.items()} for row in range(self.count)]
        self._labels = labels.tolist()
        self.names = frozenset(inputs)

    def take(self, row: int, spec: ModelSpec) -> dict[str, Array]:
        """Return what a model or a query is given of a row, which must have an input of each name."""
        return {tensor.name: self._rows[row][tensor.name] for tensor in spec.inputs}

    def right(self, row: int, answer: Answer) -> bool:
        """Whether the first output, a class or a score for each class, tells what is right."""
        output: NDArray[Any] = next(iter(answer.outputs.values()))[0]
        label: int = self._labels[row]
        return int(output.argmax() if output.ndim else output) == label

    def check(self, spec: ModelSpec) -> None:
        """Raise `ConfigError` where rows have not all inputs."""
        missing = [tensor.name for tensor in spec.inputs if tensor.name not in self.names]
        if missing:
            raise ConfigError(f"{spec.name} takes {missing[0]!r}, the rows have {', '.join(sorted(self.names))}")


class Asked:
    """One running engine and the rows that it is asked for."""

    def __init__(self, engine: EngineClient, rows: Rows) -> None:
        self.models = engine.models
        self.process = engine.process_id
        self._engine = engine
        self._rows = rows

    def query(self, served: Served) -> Query:
        """Return the query that is asked for, as it is planned."""
        models = {name: spec for name, spec in self.models.items() if not spec.steps}
        return read_query(served.file, models, read_accuracies(map(ModelDirectory.open, served.directories))).query

    async def call(self, name: str, row: int, *, allowed: float = PATIENCE, sent: float | None = None) -> Call:
        """Ask for one row; `sent` is when it should have been sent, by `time.perf_counter`."""
        given = self._rows.take(row, self.models[name])
        begun = time.perf_counter() if sent is None else sent
        left = begun + allowed - time.perf_counter()
        try:
            answer = await self._engine.infer(name, given, deadline=time.monotonic() + left)
        except Expired:  # where the engine is held up, whoever asked is told so a little behind the deadline
            late = time.perf_counter() - begun
            return Call(False, late, late, (), ())
        seconds = time.perf_counter() - begun
        steps = answer.steps[0] if answer.steps else ()
        right = self._rows.right(row, answer)
        early = tuple([step.left_at < self.models[step.model].stages - 1 for step in steps])
        return Call(right, seconds, answer.waited[0] + answer.ran[0], steps, early)

    async def one_by_one(self, name: str, rows: Sequence[int], *, allowed: float = PATIENCE) -> list[Call]:
        """Ask for rows one after another."""
        return [await self.call(name, row, allowed=allowed) for row in rows]

    async def at(self, name: str, rows: Sequence[int], times: Sequence[float], *, allowed: float) -> list[Call]:
        """Ask for rows at these times, without waiting for answers; return when all are answered."""
        begun = time.perf_counter()
        due = zip(rows, times, strict=True)
        return await in_time([(at, partial(self.call, name, row, allowed=allowed, sent=begun + at)) for row, at in due])

    async def saturated(self, paths: Sequence[Sequence[str]], clients: int) -> float:
        """Return answers a second where so many clients ask for rows, each as soon as it has its answer.

        `paths` are, for each row in order, what a client asks for one after another. As many rows as there are clients
        do not count at the beginning and at the end.
        """
        left, ends = iter(range(len(paths))), list[float]()

        async def client() -> None:
            for row in left:
                for name in paths[row]:
                    await self.call(name, row % self._rows.count)
                ends.append(time.perf_counter())

        await asyncio.gather(*(client() for _ in range(clients)))
        counted = ends[clients:-clients]
        return (len(counted) - 1) / (counted[-1] - counted[0])


def mean(values: Sequence[float]) -> float:
    """Return the mean of values."""
    return float(np.mean(values))
