"""Measures peak goodput, and what is left of it when several times as much is asked for.

The maximum of several noisy steps is too high on average, and a machine has slow minutes. So the peak is measured
again with the best number of clients, right before the overload and right after it.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from statistics import fmean

import numpy as np

from latebind.bench.client import poisson
from latebind.bench.ledger.books import End, Ledger
from latebind.bench.ledger.play import Played, Target, connected, play
from latebind.bench.ledger.questions import Mix, Questions
from latebind.bench.rounds import Progress

CLIENTS = (1, 2, 4, 8, 16, 32)
PATIENCE = 60.0  # seconds for one answer


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the ramp: the number of clients, and right answers within the deadline a second."""

    clients: int
    goodput: float


@dataclass(frozen=True, slots=True)
class Overload:
    """The ramp, its best step again before and behind, and what came of `times` its peak in an open loop."""

    steps: Sequence[Step]
    again: tuple[Step, Step]
    times: float
    played: Played
    asked: float  # a second

    @property
    def peak(self) -> float:
        """Right answers in time a second of the best number of clients, measured again."""
        return fmean(step.goodput for step in self.again)

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
    """Ramp up closed loops of `seconds` each; ask for `times` the peak between two looks at that, thrice as long."""
    mix = replace(mix, leave=0.0, break_off=0.0)
    questions = Questions(mix)
    numbers = count(1 << 20)  # behind those of the open loop
    whole = len(CLIENTS) + 9
    steps = await ramp(
        target, questions, numbers, seconds, lambda text, share: tell(text, share * len(CLIENTS) / whole)
    )
    best = max(steps, key=lambda step: step.goodput)

    async def again(place: int) -> Step:
        tell(f"{best.clients} clients again", place / whole)
        return Step(best.clients, await _closed(target, questions, numbers, best.clients, 3 * seconds))

    before = await again(len(CLIENTS))
    asked = times * best.goodput
    tell(f"{asked:.0f} requests a second", (len(CLIENTS) + 3) / whole)
    requests = max(1, round(asked * 3 * seconds))
    played = await play(target, questions, poisson(asked, Random(mix.seed)), requests)
    return Overload(steps, (before, await again(len(CLIENTS) + 6)), times, played, asked)


async def ramp(
    target: Target, questions: Questions, numbers: "count[int]", seconds: float, tell: Progress
) -> list[Step]:
    """Measure the goodput of more and more clients, for so many seconds each."""
    steps = []
    for place, clients in enumerate(CLIENTS):
        tell(f"{clients} clients", place / len(CLIENTS))
        steps.append(Step(clients, await _closed(target, questions, numbers, clients, seconds)))
    return steps


async def _closed(target: Target, questions: Questions, numbers: "count[int]", clients: int, seconds: float) -> float:
    """Return right answers in time a second of this many clients, each of which waits for its answer."""
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
