"""Whether samples of a cluster say as many machines as the simulation of all of it: one drawn cluster after another."""

from dataclasses import dataclass

from latebind.planning.plan import Row, cheapest
from latebind.planning.question import WAYS, Question
from latebind.planning.runs import playing
from latebind.planning.sampling import Estimate, Sampling
from latebind.simulation.cluster.fleet import MachineKind
from latebind.simulation.cluster.population import population_of
from latebind.simulation.cluster.workload import Drawn, Models, Traffic, Workload

MODELS, RATE, SECONDS, WARM = 220, 250.0, 45.0, 9.0


@dataclass(frozen=True, slots=True)
class Compared:
    """The machines that the whole simulation finds, and what samples say."""

    whole: int
    estimate: Estimate

    @property
    def agrees(self) -> bool:
        """Whether the whole simulation is within the interval."""
        return self.estimate.low <= self.whole <= self.estimate.high


def asked(seed: int) -> Question:
    """Return the question of one drawn cluster."""
    models = Models(
        count=MODELS, size=Drawn("400MB", 0.6), seconds=Drawn(0.05, 0.3), once=0.6, batch=8, deadline=0.5, queue=1024
    )
    traffic = Traffic(rate=RATE, duration=SECONDS)
    workload = Workload((MachineKind("machine", 6_000_000_000),), (models,), traffic, seed=seed)
    return Question(workload, population_of(workload), WAYS[:1], warm=WARM, seeds=1)


def compared(seed: int, share: float, processes: int) -> Compared:
    """Plan for one cluster by the simulation of everything, and by samples that have this share."""
    whole, sampled = (_row(asked(seed), Sampling(part), processes) for part in (1.0, share))
    assert whole.machines is not None
    assert sampled.estimate is not None
    return Compared(whole.machines, sampled.estimate)


def _row(question: Question, sampling: Sampling, processes: int) -> Row:
    with playing(question, lambda doing, done: None, processes, sampling) as runs:
        found = cheapest(question, runs)
    assert found is not None, "six times the machines that memory needs are enough"
    return found
