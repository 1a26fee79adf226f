"""Peak goodput; what is left of it when several times as much is asked for; and whom admission refuses for nothing.

The maximum of several noisy steps is too high on average, and a machine has slow minutes. So the peak is measured
again with the best number of clients, right before the overload and right after it.

With near and far deadlines together, two servers get the same requests at the same times, in turn, while the other is
idle: one with admission and one without. A request is refused for nothing if the one refuses it and the other answers
it in time.
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
from latebind.cli.console import Row, Rows

CLIENTS = (1, 2, 4, 8, 16, 32)
PATIENCE = 60.0  # seconds for one answer
LEAST_KEPT, LATEST_REFUSAL = 0.9, 0.02  # of the peak's goodput under overload; seconds at p99
NEVER_REFUSES = "[policy]\nshed = false\n"  # the configuration of the server without admission
DEADLINES = (0.1, 0.3, 2.0, 30.0)
BLOCKS = 3  # of the seconds of a step of the ramp: how long an overload and a mixed load last
FOR_NOTHING = 0.01  # the largest share of requests that may be refused for nothing


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the ramp: the number of clients, and right answers within the deadline a second."""

    clients: int
    goodput: float


@dataclass(frozen=True, slots=True)
class Overload:
    """The ramp, its best step again before and after, and what came of `times` its peak in an open loop."""

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

    def rows(self) -> Rows:
        """Return the ramp, and what was left of its peak between two measurements of that."""
        before, after = self.again
        loads = [(f"{step.clients} clients", step.goodput) for step in self.steps]
        loads += [
            (f"{before.clients} clients again", before.goodput),
            (f"{self.times:g} times the peak", self.goodput),
            (f"{after.clients} clients again", after.goodput),
        ]
        return [
            {"load": load, "right and in time a second": round(goodput, 1), "of the peak": f"{goodput / self.peak:.0%}"}
            for load, goodput in loads
        ]

    def problems(self) -> list[str]:
        """Return what did not hold under overload."""
        found = []
        if self.goodput < LEAST_KEPT * self.peak:
            found.append(f"goodput fell to {self.goodput / self.peak:.0%} of its peak")
        refusals = self.played.ledger.times[End.REFUSED].seconds
        if len(refusals) and (p99 := float(np.percentile(refusals, 99))) > LATEST_REFUSAL:
            found.append(f"refusals took {p99 * 1e3:.1f} ms at p99")
        return found


async def overload(target: Target, mix: Mix, *, times: float, seconds: float, tell: Progress) -> Overload:
    """Ramp up closed loops of `seconds` each; ask for `times` the peak between two looks at that, thrice as long."""
    mix = replace(mix, leave=0.0, break_off=0.0)
    questions, numbers = Questions(mix), count(1 << 20)  # after those of the open loop
    steps = await _ramp(target, questions, numbers, seconds, lambda text, share: tell(text, 0.4 * share))
    best = max(steps, key=lambda step: step.goodput)

    async def again(share: float) -> Step:
        tell(f"{best.clients} clients again", share)
        return Step(best.clients, await _closed(target, questions, numbers, best.clients, BLOCKS * seconds))

    before = await again(0.4)
    asked = times * best.goodput
    tell(f"{asked:.0f} requests a second", 0.6)
    requests = max(1, round(asked * BLOCKS * seconds))
    played = await play(target, questions, poisson(asked, Random(mix.seed)), requests)
    return Overload(steps, (before, await again(0.8)), times, played, asked)


@dataclass(frozen=True, slots=True)
class Mixed:
    """What came of so much `load`, a multiple of the peak, with admission and without (`free`)."""

    load: float
    played: Played
    free: Played

    @property
    def for_nothing(self) -> float:
        """The share of requests that were refused and would have been in time."""
        refused = set(self.played.ledger.times[End.REFUSED].numbers)
        return len(refused & set(self.free.ledger.good.numbers)) / self.played.ledger.asked_count

    def row(self) -> Row:
        """Return the shares of what became of requests."""
        ledger, free = self.played.ledger, self.free.ledger
        return {
            "of the peak": f"{self.load:g}",
            "requests": ledger.asked_count,
            "refused": f"{len(ledger.times[End.REFUSED].numbers) / ledger.asked_count:.2%}",
            "for nothing": f"{self.for_nothing:.2%}",
            "in time": f"{len(ledger.good.numbers) / ledger.asked_count:.2%}",
            "without admission": f"{len(free.good.numbers) / free.asked_count:.2%}",
        }

    def problems(self) -> list[str]:
        """Return what did not hold."""
        if self.for_nothing <= FOR_NOTHING:
            return []
        return [f"at {self.load:g} of the peak {self.for_nothing:.2%} of the requests were refused for nothing"]


async def mixed(
    target: Target, free: Target, mix: Mix, *, loads: Sequence[float], seconds: float, tell: Progress
) -> list[Mixed]:
    """Find the peak goodput of `target`, then play each load to both."""
    mix = replace(mix, leave=0.0, break_off=0.0)
    steps = await _ramp(target, Questions(mix), count(1 << 20), seconds, lambda text, share: tell(text, share / 2))
    peak = max(step.goodput for step in steps)
    questions, found = Questions(replace(mix, deadlines=DEADLINES)), []
    for place, load in enumerate(loads):
        tell(f"{load:g} of the peak", (1.0 + place / len(loads)) / 2)
        asked = load * peak
        requests = max(1, round(asked * BLOCKS * seconds))
        both = [await play(one, questions, poisson(asked, Random(mix.seed)), requests) for one in (target, free)]
        found.append(Mixed(load, *both))
    return found


async def _ramp(
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
