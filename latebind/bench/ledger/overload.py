"""Peak goodput, and what is left of it where several times as much is asked for."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random

import numpy as np

from latebind.bench.ledger.arrivals import poisson
from latebind.bench.ledger.books import End, Ledger
from latebind.bench.ledger.play import Played, Target, connected, play
from latebind.bench.ledger.questions import Mix, Questions
from latebind.bench.spread import Progress

CLIENTS = (1, 2, 4, 8, 16, 32)
PATIENCE = 60.0  # seconds for one answer


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the ramp: so many clients, right answers within the deadline a second."""

    clients: int
    goodput: float


@dataclass(frozen=True, slots=True)
class Overload:
    """The ramp, and what came of `times` its peak in an open loop."""

    steps: Sequence[Step]
    times: float
    played: Played
    asked: float  # a second

    @property
    def peak(self) -> float:
        """The most right answers in time a second, of all steps."""
        return max(step.goodput for step in self.steps)

    @property
    def goodput(self) -> float:
        """Right answers in time a second under overload, from the first request to the last."""
        return len(self.played.ledger.good.due) / (self.played.ledger.asked_count / self.asked)

    @property
    def refusal_p99(self) -> float:
        """The 99th percentile of the seconds to a refusal, NaN without any."""
        seconds = self.played.ledger.times[End.REFUSED].seconds
        return float(np.percentile(seconds, 99)) if len(seconds) else float("nan")


async def run(target: Target, mix: Mix, *, times: float, seconds: float, tell: Progress) -> Overload:
    """Ramp up closed loops of `seconds` each, then ask for `times` the peak for three times as long."""
    mix = replace(mix, leave=0.0, break_off=0.0)
    questions = Questions(mix)
    numbers = count(1 << 20)  # behind those of the open loop
    steps = []
    for place, clients in enumerate(CLIENTS):
        tell(f"{clients} clients", place / (len(CLIENTS) + 3))
        steps.append(Step(clients, await _closed(target, questions, numbers, clients, seconds)))
    peak = max(step.goodput for step in steps)
    asked = times * peak
    tell(f"{asked:.0f} requests a second", len(CLIENTS) / (len(CLIENTS) + 3))
    requests = max(1, round(asked * 3 * seconds))
    played = await play(target, questions, poisson(asked, Random(mix.seed)), requests)
    return Overload(steps, times, played, asked)


async def _closed(target: Target, questions: Questions, numbers: "count[int]", clients: int, seconds: float) -> float:
    """Return right answers in time a second of so many clients, each of which waits for its answer."""
    loop = asyncio.get_running_loop()
    waiting: dict[int, asyncio.Future[None]] = {}
    ledger = Ledger(questions, on_end=lambda number: waiting.pop(number).set_result(None))
    until = loop.time() + seconds
    async with connected(target, ledger) as every:

        async def ask() -> None:
            while loop.time() < until:
                question = questions[next(numbers)]
                ledger.ask(question, loop.time())
                waiting[question.number] = ended = loop.create_future()
                every[question.protocol].send(question)
                await asyncio.wait_for(ended, PATIENCE)

        await asyncio.gather(*(ask() for _ in range(clients)))
    return len(ledger.good.due) / seconds
