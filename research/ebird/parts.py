"""The parts of Ebird's evaluation: a rising load (figure 2), splitting (6), two loads (8), throughput (9), a day."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from latebind.bench.rounds import Progress, in_parallel
from latebind.simulation.agenda import Agenda
from research.ebird.sides import (
    ELASTIC,
    EVALUATED,
    LATE,
    NO_WAIT,
    OPTIMAL,
    PAPERS_WINDOW,
    PARTS,
    POOL_WORKERS,
    POOL_ZERO,
    STATIC,
    Kind,
    Side,
)
from research.ebird.simulated import Burst, Day, Figures, Result, Search, Stable, Steps, Task, highest, run
from research.hardware.chip import SIX, TITAN_RTX, Chip
from research.hardware.gpu import CopyEngine, Multiprocessors
from research.hardware.npu import Product

RISING = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)  # of what optimal wait carries: figure 2 has no numbers in its text
STEP = 150  # requests (section III-A)
PAPERS_NETWORK = "resnet152"
LAUNCHES = (0.0, 0.001, 0.005, 0.010, 0.020, 0.040)  # seconds between two batches
SPLIT = 256  # inferences, and copies (section VI-B)
FAKE = (Product(128 * 9, 128, 28 * 28),) * 50  # FakeNet: a convolution 50 times (section VI-B); its shape is ours

Found = Mapping[str, Mapping[Side, Figures]]  # figures by network and side, one for each seed


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is simulated: networks, seeds, seconds of requests of each search, processes (0: one for each core).

    The low load is the share `low` of the high one, which is the highest that optimal wait carries.
    """

    networks: tuple[str, ...] = tuple(SIX)
    seeds: int = 5
    seconds: float = 10.0
    low: float = 0.1
    chip: Chip = TITAN_RTX
    processes: int = 0

    @property
    def stable(self) -> Stable:
        """A load that does not change."""
        return Stable(self.seconds)

    @property
    def burst(self) -> Burst:
        """A low load that becomes a high one."""
        return Burst(self.low)

    def highest(
        self, networks: Sequence[str], sides: Sequence[Side], progress: Progress, load: Stable | Burst | None = None
    ) -> Found:
        """Find the highest load within the target of each side, a stable one unless said otherwise."""
        some = [
            Search(network, side, self.chip, load or self.stable, seed)
            for network in networks
            for side in sides
            for seed in range(self.seeds)
        ]
        loads = in_parallel(
            highest, some, name=partial(_named, "highest load of"), progress=progress, processes=self.processes
        )
        shape = len(networks), len(sides), self.seeds
        by_seed = np.reshape(loads, shape)
        return {
            network: dict(zip(sides, values, strict=True)) for network, values in zip(networks, by_seed, strict=True)
        }

    def run(self, tasks: Sequence[Task], progress: Progress) -> list[Result]:
        """Run tasks once for each seed."""
        every = [replace(task, seed=seed) for task in tasks for seed in range(self.seeds)]
        return in_parallel(run, every, name=partial(_named, "latency of"), progress=progress, processes=self.processes)


def _named(what: str, task: Task | Search) -> str:
    return f"{what} {task.network}"


def carried(
    plan: Plan, networks: Sequence[str], progress: Progress, load: Stable | Burst | None = None
) -> dict[str, float]:
    """Return the throughput of optimal wait within the target: the mean over seeds, at the best window."""
    found = plan.highest(networks, OPTIMAL, progress, load)
    return {network: max(float(loads.mean()) for loads in sides.values()) for network, sides in found.items()}


def throughput(plan: Plan, progress: Progress) -> Found:
    """Find the throughput of all sides within the target (figure 9)."""
    return plan.highest(plan.networks, EVALUATED, progress)


def parts_throughput(plan: Plan, progress: Progress) -> Found:
    """Find the throughput of Ebird in parts, beside all of Ebird and optimal wait."""
    return plan.highest(plan.networks, (*OPTIMAL, *PARTS, ELASTIC), progress)


def rising(plan: Plan, capacity: float, progress: Progress) -> list[Result]:
    """Run the policies of figure 2, and those with a pool, on ResNet-152 while the load rises."""
    steps = Steps(tuple((share * capacity, STEP) for share in RISING))
    papers = tuple(side for side in (*OPTIMAL, *STATIC) if side.window == PAPERS_WINDOW)
    sides = (NO_WAIT, *papers, POOL_ZERO, *POOL_WORKERS, ELASTIC, *LATE)
    return plan.run([Task(PAPERS_NETWORK, side, steps, plan.chip) for side in sides], progress)


def bursts(plan: Plan, sides: Sequence[Side], capacity: Mapping[str, float], progress: Progress) -> list[Result]:
    """Run a low and then a high load (figure 8)."""
    return plan.run(
        [
            Task(network, side, plan.burst.at(high)[0], plan.chip)
            for network, high in capacity.items()
            for side in sides
        ],
        progress,
    )


def day(plan: Plan, capacity: Mapping[str, float], progress: Progress) -> list[Result]:
    """Run a day, as long as a search, between the low and the high load."""
    return plan.run(
        [
            Task(network, side, Day(plan.low * high, high, plan.seconds), plan.chip)
            for network, high in capacity.items()
            for side in EVALUATED
            if side.kind is not Kind.STATIC
        ],
        progress,
    )


def gaps(plan: Plan, progress: Progress) -> dict[float, Found]:
    """Find the throughput of optimal wait by the server's time between two batches, beside sides that need none."""
    pooled = plan.highest(plan.networks, (POOL_ZERO, ELASTIC), progress)
    found: dict[float, Found] = {}
    for launch in LAUNCHES:
        slower = replace(plan, chip=replace(plan.chip, launch=launch))
        waiting = slower.highest(plan.networks, OPTIMAL, progress)
        found[launch] = {network: {**waiting[network], **pooled[network]} for network in plan.networks}
    return found


@dataclass(frozen=True, slots=True)
class Split:
    """Seconds that 256 inferences take on this many workers, and 256 inputs in this many copies."""

    pieces: int
    computed: float
    copied: float


def splits(chip: Chip) -> list[Split]:
    """Split computation and copies into 1 to 256 pieces (figure 6)."""
    return [_split(chip, 2**power) for power in range(9)]


def _split(chip: Chip, pieces: int) -> Split:
    agenda = Agenda()
    computed, copied = list[float](), list[float]()
    shared = Multiprocessors(agenda, chip)
    batch = SPLIT // pieces
    busy, alone = (sum(of(layer, batch) for layer in FAKE) for of in (chip.busy, chip.seconds))
    for _ in range(pieces):
        shared.begin(busy, alone, 0.0, computed.append)
    CopyEngine(agenda, chip).copy(
        SPLIT * SIX[PAPERS_NETWORK].footprint(chip).input_bytes, 0.0, copied.append, pieces=pieces
    )
    agenda.run_until()
    return Split(pieces, max(computed), max(copied))
