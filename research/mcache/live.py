"""Live engines of several residency policies: a trace sped up, clients that wait for answers, and cold starts.

A trace plays requests of an hour, faster, to one side after another, the same for each. Clients of a crowd ask for
their next model as soon as they have an answer. A cold start is the first answer of a model that others have pushed out
of memory, whole or in part: others are asked for until enough of it is evicted, as the engine itself reports.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle
from random import Random

import numpy as np

from latebind.bench.report import Plot, bars, blank, distributions, lines
from latebind.bench.rounds import Progress, in_rounds
from latebind.bench.statistics import ratio_of_means
from latebind.cli.console import Rows
from latebind.domain.errors import ConfigError
from latebind.engine.cores import at_once
from research.evaluation import Found
from research.live import Call
from research.mcache.play import halves
from research.mcache.traces import HOUR, REQUESTS, Pairing, Request, Service, hour_of, invocations, paired
from research.mcache.zoo import INTERVAL, LATE, LRU, SIDES, Growth, Setting, Watched, Weighed, Zoo, watched
from research.sides import Figures

MINUTE = 60.0
CLIENTS = 32  # as mCache's
NEIGHBOURS = 5  # requests that are resampled together: those who come next to each other wait for the same loads
ROOM = 1.05  # of the largest model's bytes: what all may take together at least, for cold starts
ASKED = 200  # requests for others at most until enough of a model has gone
LARGEST, RESIDENT = 3, 0.5  # models that start cold, and the share of one that is there where it starts in part


@dataclass(frozen=True, slots=True)
class Plan:
    """Each round plays another piece of another hour: `warm_up` and `seconds`, at `speed` times the trace's.

    Models may take a share of what all take. Only requests that come after the warm-up count.
    """

    services: tuple[Service, ...]
    shares: tuple[float, ...] = ()
    speed: float = 10.0
    seconds: float = 20.0
    warm_up: float = 5.0
    rounds: int = 1
    clients: int = CLIENTS
    pairing: Pairing = Pairing.RANDOM
    seed: int = 0
    sides: tuple[str, ...] = tuple(SIDES)

    def requests(self, models: Sequence[str], number: int, *, whole: bool = False) -> list[Request]:
        """Return the requests of a round, or of its `whole` hour; `models` by decreasing loading time."""
        half, seed = number % 2, self.seed + number // 2
        random = Random(f"{half} {seed}")
        hour = hour_of(halves(self.services)[half], Random(f"hour {half} {seed}"), REQUESTS)
        every = invocations(hour, paired(hour, models, self.pairing, random), random)
        if whole:
            return list(every)
        span = self.speed * (self.warm_up + self.seconds)
        if span > MINUTE * HOUR:
            raise ConfigError(
                f"{span:.0f} s of the trace are more than the hour that is drawn: give less --speed or --seconds"
            )
        first = random.uniform(0.0, MINUTE * HOUR - span)
        return [
            Request((one.time - first) / self.speed, one.model) for one in every if first <= one.time < first + span
        ]


@dataclass(frozen=True, slots=True)
class Loads:
    """Loads of pieces or models, the bytes that they read, and those of them that lay in the page cache."""

    times: int
    read: int
    cached: int


@dataclass(frozen=True, slots=True)
class Block:
    """The outcome of one round on one side. `calls` are those that count; what was `loaded` includes the warm-up.

    Weights may take `budget` bytes, `beside` those of slots and batches. `began` is when the block did.
    """

    calls: tuple[Call, ...]
    began: float
    growth: Growth
    budget: int
    beside: int
    loaded: Loads

    @property
    def lost(self) -> int:
        """How many requests had no answer."""
        return sum(not call.answered for call in self.calls)

    def throughput(self, plan: Plan) -> float:
        """Return the answers a second after the warm-up."""
        first, end = self.began + plan.warm_up, self.began + plan.warm_up + plan.seconds
        return sum(call.answered and first <= call.sent.ended < end for call in self.calls) / plan.seconds


Blocks = dict[str, list[Block]]


async def loads(here: Watched) -> Loads:
    """Return what an engine has loaded since its start."""
    every = list((await here.memory()).values())
    return Loads(*(sum(one[name] for one in every) for name in ("loads", "read_bytes", "cached_bytes")))


async def _block(
    here: Watched, plan: Plan, setting: Setting, models: "Sequence[Request] | Popular", name: str
) -> Block:
    """Play requests of a trace, or let a crowd ask for popular models, and look at the process meanwhile."""
    with here.looking() as growth:
        if isinstance(models, Popular):
            clients = [models.drawn(f"{name} {client}") for client in range(plan.clients)]
            calls = await here.crowd(clients, plan.warm_up + plan.seconds)
        else:
            calls = await here.play([(one.time, one.model) for one in models])
    began = min(call.due for call in calls)
    counted = calls if isinstance(models, Popular) else [one for one in calls if one.due - began >= plan.warm_up]
    beside = here.zoo.beside_weights(list(here.zoo.models), setting.slots, at_once(setting.engine))
    return Block(tuple(counted), began, growth, here.budget, beside, await loads(here))


@dataclass(frozen=True, slots=True)
class Popular:
    """Models and how often each is asked for."""

    models: tuple[str, ...]
    weights: tuple[int, ...]

    @classmethod
    def of(cls, requests: Sequence[Request]) -> "Popular":
        """Return how often models are asked for in requests."""
        names = sorted({one.model for one in requests})
        return cls(tuple(names), tuple([sum(one.model == name for one in requests) for name in names]))

    def drawn(self, seed: str) -> Iterator[str]:
        """Yield models without end."""
        random = Random(seed)
        while True:
            yield from random.choices(self.models, self.weights)


async def trace(zoo: Zoo, plan: Plan, setting: Setting, tell: Progress) -> Found:
    """Play all rounds of a trace; the order of sides is turned round with each. Raises `ConfigError`."""
    found, share = Blocks(), (plan.shares or (0.4,))[0]
    for number in in_rounds(plan.rounds):
        requests = plan.requests(zoo.slowest_first, number)
        for at, name in enumerate(plan.sides[:: -1 if number % 2 else 1]):
            tell(f"{name}, {len(requests)} requests", (number + at / len(plan.sides)) / plan.rounds)
            async with watched(
                zoo, SIDES[name], budget=round(share * zoo.size), setting=setting, seed=plan.seed
            ) as here:
                found.setdefault(name, []).append(await _block(here, plan, setting, requests, ""))
    tables = {
        f"requests of a trace in {share:.0%} of the memory": trace_rows(found, plan.seed),
        "what was loaded, warm-up included": load_rows(found),
        "memory of the engines' processes above what they take with nothing loaded": memory_rows(found),
    }
    return Found(tables, lambda: _trace_plots(found))


async def crowd(zoo: Zoo, plan: Plan, setting: Setting, tell: Progress) -> Found:
    """Let a crowd ask each side in each share of the memory; each client asks for the same models in all of them."""
    shares = plan.shares or (0.4, 0.6)
    found: dict[float, Blocks] = {share: {name: [] for name in plan.sides} for share in shares}
    steps = [(share, name) for share in shares for name in plan.sides]
    for number in in_rounds(plan.rounds):
        models = Popular.of(plan.requests(zoo.slowest_first, number, whole=True))
        for at, (share, name) in enumerate(steps):
            tell(f"{name}, {share:.0%}", (number + at / len(steps)) / plan.rounds)
            async with watched(
                zoo, SIDES[name], budget=round(share * zoo.size), setting=setting, seed=plan.seed
            ) as here:
                found[share][name].append(await _block(here, plan, setting, models, f"{plan.seed} {number}"))
    title = f"{plan.clients} clients that send their next request as soon as they have an answer"
    tables = {title: crowd_rows(found, plan, setting)}
    for share, sides in found.items():
        tables[f"what was loaded in {share:.0%} of the memory"] = load_rows(sides)
        tables[f"memory of the engines' processes, {share:.0%}"] = memory_rows(sides)
    rates = {
        name: ([f"{share:.0%}" for share in shares], [_through(found[share][name], plan).mean() for share in shares])
        for name in plan.sides
    }
    x, y = "share of all models' memory", "answers a second"
    return Found(tables, lambda: [bars("Clients that wait for their answers", rates, x=x, y=y)])


class Start(StrEnum):
    """How a model starts."""

    WHOLE = "all of it loaded, then run"
    COLD = "run while it loads"
    PARTIAL = "part of it there, run while the rest loads"
    WARM = "all of it there"


@dataclass(frozen=True, slots=True)
class First:
    """The first answer of a model: its share in memory before, seconds, bytes read and those from the page cache."""

    model: str
    start: Start
    there: float
    seconds: float
    read: int
    cached: int


async def cold(zoo: Zoo, plan: Plan, setting: Setting, tell: Progress) -> Found:
    """Start the largest models in every way; where one starts in part, only so many others are asked for before."""
    names = zoo.largest_first[:LARGEST]
    budget, found = round(ROOM * zoo.models[names[0]].size), list[First]()
    for at, (side, start) in enumerate(((LRU, Start.WHOLE), (LATE, Start.COLD))):
        tell(start, at / 3)
        async with watched(zoo, SIDES[side], budget=budget, setting=setting, seed=plan.seed) as here:
            for name in names * plan.rounds:
                found += await _first(here, name, start, 0.0)
    tell(Start.PARTIAL, 2 / 3)
    for name in names:
        beside = _beside(zoo, name)
        budget = round(RESIDENT * zoo.models[name].size) + beside.size
        few = beside.having(name, zoo.models[name])
        async with watched(few, SIDES[LATE], budget=budget, setting=setting, seed=plan.seed) as here:
            await here.call(name)
            for _ in range(plan.rounds):
                found += await _first(here, name, Start.PARTIAL, RESIDENT)

    def draw() -> list[Plot]:
        figure = blank("First answers", y={"title": "first answer, ms", "rangemode": "tozero"}, boxmode="group")
        for start in Start:
            some = [one for one in found if one.start is start]
            figure.add_box(x=[one.model for one in some], y=[one.seconds * 1e3 for one in some], name=str(start))
        return [figure]

    return Found({"first answers of the largest models": cold_rows(found)}, draw, found)


def _beside(zoo: Zoo, name: str) -> Zoo:
    """Return the least models, the largest first, that leave no more than a share `RESIDENT` of one its place."""
    models: dict[str, Weighed] = {}
    for other in zoo.largest_first:
        if other != name and sum(one.size for one in models.values()) < (ROOM - RESIDENT) * zoo.models[name].size:
            models[other] = zoo.models[other]
    return Zoo(zoo.folder, models)


async def _first(here: Watched, name: str, start: Start, share: float) -> list[First]:
    """Evict a model until at most `share` of it is in memory, ask for it, and then once more."""
    others = cycle([other for other in here.zoo.largest_first if other != name])
    for _ in range(ASKED):
        there = await _share_there(here, name)
        if there <= share:
            break
        await here.call(next(others))
    if there > share:
        return []
    before = await loads(here)
    call = await here.call(name)
    after = await loads(here)
    firsts = [First(name, start, there, call.seconds, after.read - before.read, after.cached - before.cached)]
    if (there := await _share_there(here, name)) == 1.0:
        firsts.append(First(name, Start.WARM, there, (await here.call(name)).seconds, 0, 0))
    return firsts


async def _share_there(here: Watched, name: str) -> float:
    figures = (await here.memory())[name]
    return figures["resident_bytes"] / figures["bytes"]


def trace_rows(blocks: Blocks, seed: int) -> Rows:
    """Return latencies and ratios of mean latency to LRU, paired request by request."""
    rows: Rows = []
    for name, some in blocks.items():
        every, ms = _seconds(some), 1e3 * _seconds(some)[np.isfinite(_seconds(some))]
        ratios = {}
        if LRU in blocks:
            theirs = _seconds(blocks[LRU])
            both = np.isfinite(every) & np.isfinite(theirs)
            ratios[f"mean / {LRU}"] = str(ratio_of_means(every[both], theirs[both], block=NEIGHBOURS, seed=seed))
        told = {"mean ms": ms.mean(), "p50": np.percentile(ms, 50), "p99": np.percentile(ms, 99)}
        milliseconds = {title: round(float(value), 1) for title, value in told.items()}
        lost = sum(block.lost for block in some)
        rows.append({"side": name, "requests": len(ms), **milliseconds, **ratios, "lost": lost})
    return rows


def load_rows(blocks: Blocks) -> Rows:
    """Return what each side loaded, and from where. A load of `late` is one piece."""
    rows: Rows = []
    for name, some in blocks.items():
        read = sum(block.loaded.read for block in some)
        cached = sum(block.loaded.cached for block in some) / max(1, read)
        told = {"loads": sum(block.loaded.times for block in some), "GB read": round(read / 1e9, 2)}
        rows.append({"side": name, **told, "of it from the page cache": f"{cached:.1%}"})
    return rows


def memory_rows(blocks: Blocks) -> Rows:
    """Return how much larger each engine was at most than with nothing loaded, beside what models may take."""

    def above(pairs: Sequence[tuple[Sequence[int], int]]) -> str:
        more = sum(size > budget for sizes, budget in pairs for size in sizes)
        return f"{more} of {sum(len(sizes) for sizes, _ in pairs)} samples"

    def megabytes(values: Iterator[int]) -> float:
        return round(max(values) / 1e6, 1)

    return [
        {
            "side": name,
            "budget MB": megabytes(block.budget for block in some),
            "weights MB at most": megabytes(max(block.growth.weights, default=0) for block in some),
            "weights above it": above([(block.growth.weights, block.budget) for block in some]),
            "with slots and batches MB": megabytes(block.budget + block.beside for block in some),
            "process MB at most": megabytes(max(block.growth.all, default=0) for block in some),
            "process above it": above([(block.growth.all, block.budget + block.beside) for block in some]),
        }
        for name, some in blocks.items()
    ]


def crowd_rows(crowds: Mapping[float, Blocks], plan: Plan, setting: Setting) -> Rows:
    """Return answers a second, their ratio to LRU, and the longest wait until a batch began."""
    rows: Rows = []
    for share, sides in crowds.items():
        base = _through(sides[LRU], plan) if LRU in sides else None
        for name, some in sides.items():
            through = _through(some, plan)
            over = "" if base is None else str(ratio_of_means(through, base, seed=plan.seed))
            longest = max(call.waited for block in some for call in block.calls if call.answered)
            rows.append(
                {
                    "memory": f"{share:.0%}",
                    "side": name,
                    "answers a second": round(float(through.mean()), 2),
                    f"over {LRU}": over,
                    "longest wait s": round(longest, 2),
                    "bound s": setting.patience,
                    "lost": sum(block.lost for block in some),
                }
            )
    return rows


def cold_rows(firsts: Sequence[First]) -> Rows:
    """Return the median of the first answers of each model, by how it starts, and what of a whole start that is."""
    rows: Rows = []
    for model in dict.fromkeys(one.model for one in firsts):
        by_start = {start: [one for one in firsts if (one.model, one.start) == (model, start)] for start in Start}
        medians = {start: np.median([one.seconds for one in some]) for start, some in by_start.items() if some}
        for start, seconds in medians.items():
            some, read = by_start[start], sum(one.read for one in by_start[start])
            rows.append(
                {
                    "model": model,
                    "start": str(start),
                    "times": len(some),
                    "of it there": f"{np.mean([one.there for one in some]):.0%}",
                    "first answer ms": round(float(seconds) * 1e3, 1),
                    "of a whole start": f"{seconds / medians.get(Start.WHOLE, np.nan):.2f}",
                    "from the page cache": f"{sum(one.cached for one in some) / read:.1%}" if read else "",
                }
            )
    return rows


def _trace_plots(blocks: Blocks) -> list[Plot]:
    seconds = {name: _seconds(some)[np.isfinite(_seconds(some))] for name, some in blocks.items()}
    sizes = {name: np.array(some[0].growth.weights) / 1e6 for name, some in blocks.items()}
    curves = {name: (INTERVAL * np.arange(len(some)), some) for name, some in sizes.items()}
    y = "pages of weights in the process, MB"
    figure = lines("Memory as seen from outside", curves, x="seconds", y=y, mode="lines")
    figure.add_hline(y=next(iter(blocks.values()))[0].budget / 1e6, line_dash="dot", line_color="#7f7f7f")
    return [distributions("Latency", seconds), figure]


def _seconds(blocks: Sequence[Block]) -> Figures:
    """Return the seconds of all calls, inf where there was no answer."""
    return np.array([call.seconds if call.answered else np.inf for block in blocks for call in block.calls])


def _through(blocks: Sequence[Block], plan: Plan) -> Figures:
    return np.array([block.throughput(plan) for block in blocks])
