"""Live engines of several policies and models, visited in turn: calibrate, play, calibrate again."""

import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from latebind.bench.client import Array, during, rising
from latebind.bench.rounds import Progress, in_rounds
from latebind.bench.subject import Setting
from latebind.domain.config import EngineConfig, PolicyConfig
from latebind.engine.order import EngineOrder
from research.live.requests import Sent, Visit
from research.live.sides import SLOTS, begun
from research.validate.client import Clients
from research.validate.logged import Logged, check_can_replay

WARM_UP = 0.3  # seconds
WAITING = 3  # batches' worth of requests under way while an engine has always enough to do
SATURATED = 0.25  # seconds
POLICIES: Mapping[str, PolicyConfig] = {
    "late": PolicyConfig("late"),
    "lazy+": PolicyConfig("lazy+"),
    "graph": PolicyConfig("graph"),
    "serial": PolicyConfig("graph", 1),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """`load` is a multiple of what a policy answers at most, `deadline` of what a request takes alone.

    Each round visits every engine for so many `blocks` of `seconds`, with `calibration` seconds before and after each:
    a machine that others share changes its pace within seconds.
    """

    load: float = 0.7
    deadline: float = 10.0
    rounds: int = 5
    blocks: int = 5
    seconds: float = 0.6
    calibration: float = 0.4


@dataclass(slots=True)
class Engine:
    """One running engine."""

    model: str
    policy: str
    clients: Clients
    waiting: int
    log: Path
    visits: list[Visit] = field(default_factory=list)

    async def visit(self, plan: Plan, random: Random) -> None:
        """Calibrate, play and calibrate again, at what it answers now."""
        alone = 1.0 / await self.clients.saturate(self.model, SATURATED, 1)
        most = await self.clients.saturate(self.model, SATURATED, self.waiting)
        rate, allowed = plan.load * most, plan.deadline * alone
        calibrations, blocks = [await self._rising(plan, rate, allowed, random)], []
        for _ in range(plan.blocks):
            blocks.append(await self._play(during(plan.seconds, rate, random), allowed))
            calibrations.append(await self._rising(plan, rate, allowed, random))
        self.visits.append(Visit(calibrations, blocks))

    async def _rising(self, plan: Plan, rate: float, allowed: float, random: Random) -> list[Sent]:
        return await self._play(rising(plan.calibration, rate, random), allowed)

    async def _play(self, times: Sequence[float], allowed: float) -> list[Sent]:
        return await self.clients.play([(at, self.model) for at in times], allowed)


@asynccontextmanager
async def engines(
    paths: Mapping[str, Path],
    policies: Sequence[str],
    rows: Mapping[str, Sequence[Mapping[str, Array]]],
    setting: Setting,
    folder: Path,
) -> AsyncIterator[list[Engine]]:
    """Start an engine for each model and policy, all on the same core, and warm them up; logs go to `folder`."""
    async with AsyncExitStack() as stack:
        found = []
        for number, (model, policy) in enumerate((model, policy) for model in paths for policy in policies):
            log = folder / f"{number}.jsonl"
            config = EngineConfig(threads=1, cores=(setting.engine_core,), slots=SLOTS, backend=setting.backend)
            order = EngineOrder((str(paths[model]),), config, POLICIES[policy], event_log=str(log))
            client = await begun(stack, order)
            spec = client.models[model]
            waiting = 1 if policy == "serial" else WAITING * spec.max_batch
            engine = Engine(model, policy, Clients(client, rows), waiting, log)
            await engine.clients.saturate(model, WARM_UP, waiting)
            found.append(engine)
        yield found


@dataclass(frozen=True, slots=True)
class Played:
    """All visits of one engine, and its log."""

    model: str
    policy: str
    visits: Sequence[Visit]
    log: Logged


async def play(
    paths: Mapping[str, Path],
    policies: Sequence[str],
    rows: Mapping[str, Sequence[Mapping[str, Array]]],
    plan: Plan,
    setting: Setting,
    tell: Progress,
) -> list[Played]:
    """Visit engines in as many rounds as planned, in another order in each."""
    check_can_replay()
    random = Random(setting.seed)
    with tempfile.TemporaryDirectory(prefix="latebind-validate-") as name:
        async with engines(paths, policies, rows, setting, Path(name)) as every:
            for number in in_rounds(plan.rounds):
                for at, engine in enumerate(random.sample(every, len(every))):
                    tell(f"{engine.model}, {engine.policy}", (number + at / len(every)) / plan.rounds)
                    await engine.visit(plan, random)
        return [Played(one.model, one.policy, one.visits, Logged.read(one.log)) for one in every]
