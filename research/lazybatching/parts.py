"""The parts of LazyBatching's evaluation: loads (figures 12 to 14), deadlines (15), other networks (16), and VI-C."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from latebind.bench.rounds import Progress
from research.lazybatching.policies import SHARES
from research.lazybatching.scene import Scene
from research.lazybatching.sides import Group, Side, sides
from research.lazybatching.simulated import Result, Task, covering, run_all, shedding

MAIN = ("resnet", "gnmt", "transformer")
OTHERS = ("gnmt-steps", "vgg", "mobilenet", "las", "bert")
COLOCATED = ("resnet", "gnmt", "transformer", "bert")
LOADS = (16.0, 64.0, 128.0, 250.0, 500.0, 1000.0, 1500.0, 2000.0)
LOADS_OF_OTHERS = (16.0, 250.0, 1000.0)
LOADS_TOGETHER = (50.0, 100.0, 200.0)
MULTIPLES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)  # of what a measured model answers one after another
HEAVY = 1000.0
DEADLINES = {
    "resnet": (0.005, 0.010, 0.020, 0.040, 0.060, 0.100),
    "gnmt": (0.020, 0.030, 0.040, 0.060, 0.100),
    "transformer": (0.005, 0.010, 0.015, 0.020, 0.040, 0.060, 0.100),
}
STEP = 1.07  # between two loads when the highest is looked for
MOST_LATE = 0.01
LATE = 10.0  # times what a request of a measured model takes alone
OVERLOAD = 1.2
RUSH = 20_000.0  # requests a second, more than any network here keeps up with


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to simulate: seeds, requests of each run, processes (0: one for each core)."""

    scene: Scene
    seeds: int = 20
    requests: int = 2_000
    processes: int = 0

    def run(self, tasks: Sequence[Task], progress: Progress) -> list[Result]:
        """Run tasks once for each seed."""
        every = [replace(task, seed=seed) for task in tasks for seed in range(self.seeds)]
        return run_all(every, self.scene, progress=progress, processes=self.processes)


def loads(plan: Plan, networks: Sequence[str], rates: Sequence[float], progress: Progress) -> list[Result]:
    """Run every policy at every load (figures 12 to 14, 16)."""
    tasks = [
        Task((network,), rate, side, 0, plan.requests)
        for network in networks
        for rate in rates
        for side in sides(recurrent=plan.scene.recurrent(network))
    ]
    return plan.run(tasks, progress)


def measured(plan: Plan, multiples: Sequence[float], progress: Progress) -> list[Result]:
    """Run every policy on models measured on this machine, at multiples of what they answer one after another."""
    tasks = [
        Task((name,), round(multiple * capacity, 1), side, 0, plan.requests, LATE / capacity)
        for name in plan.scene.measured
        for capacity in (plan.scene.capacity(name),)
        for multiple in multiples
        for side in sides(recurrent=plan.scene.recurrent(name), size=plan.scene.served(name).spec.max_batch)
    ]
    return plan.run(tasks, progress)


def deadlines(plan: Plan, progress: Progress) -> list[Result]:
    """Run the policies of figure 15 at a heavy load, with each deadline."""
    tasks = [
        Task((network,), HEAVY, side, 0, plan.requests, allowed)
        for network, some in DEADLINES.items()
        for allowed in some
        for side in _few(plan, network)
    ]
    return plan.run(tasks, progress)


def lengths(plan: Plan, progress: Progress) -> list[Result]:
    """Run LazyBatching with answers assumed to be short (section VI-C)."""
    tasks = [
        Task((network,), HEAVY, covering(side, share), 0, plan.requests, 0.060)
        for network in ("gnmt", "transformer")
        for side in _few(plan, network)
        if side.group is Group.LAZY
        for share in SHARES
    ]
    return plan.run(tasks, progress)


def sizes(plan: Plan, progress: Progress) -> dict[int, list[Result]]:
    """Run every policy with a largest batch of 16 and 32 (section VI-C)."""
    return {
        size: plan.run(
            [
                Task((network,), rate, side, 0, plan.requests)
                for network in MAIN
                for rate in (16.0, 250.0, HEAVY)
                for side in sides(recurrent=plan.scene.recurrent(network), size=size)
            ],
            progress,
        )
        for size in (16, 32)
    }


def colocated(plan: Plan, progress: Progress) -> list[Result]:
    """Run four networks on one worker, each at the same load (section VI-C)."""
    tasks = [Task(COLOCATED, rate, side, 0, plan.requests) for rate in LOADS_TOGETHER for side in sides(recurrent=True)]
    return plan.run(tasks, progress)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The throughput of one policy, in requests a second.

    `highest` is the most with at most 1 % of answers after 100 ms, `saturated` what is answered when there is always
    enough to do; `in_time` is the share in time at 1.2 times that when it sheds.
    """

    network: str
    policy: str
    highest: float
    saturated: float
    in_time: float


def capacities(plan: Plan, progress: Progress) -> list[Capacity]:
    """Find the throughput of each policy; runs are three times as long as usual."""
    found = []
    places = [(network, side) for network in MAIN for side in _few(plan, network)]
    for number, (network, side) in enumerate(places):
        progress(f"capacity of {network}, {side.label}", number / len(places))
        saturated = _mean([run.throughput for run in _at(plan, network, side, RUSH, allowed=1e9)])
        highest, load = 0.0, saturated / 2
        while _late(_at(plan, network, side, load)) <= MOST_LATE:
            highest, load = load, load * STEP
        in_time = 1.0 - _late(_at(plan, network, shedding(side), OVERLOAD * saturated))
        found.append(Capacity(network, side.label, highest, saturated, in_time))
    return found


def _at(plan: Plan, network: str, side: Side, load: float, *, allowed: float = 0.1) -> list[Result]:
    return plan.run([Task((network,), load, side, 0, 3 * plan.requests, allowed)], lambda text, share: None)


def _late(runs: Sequence[Result]) -> float:
    return _mean([run.late for run in runs])


def _few(plan: Plan, network: str) -> list[Side]:
    """Return window 0 at the largest batch, with and without leaving early, and the judged policies."""
    every = sides(recurrent=plan.scene.recurrent(network))
    largest = [side for side in every if side.group in (Group.ZERO, Group.LEAVING) and side.policy.max_batch == 64]
    return largest + [side for side in every if side.group in (Group.LAZY, Group.ORACLE, Group.OURS)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
