"""GATI's traffic application: models by table 5, branches and learned caches by what section 7 says of them. Seconds.

Latencies and accuracies are the paper's. Where the gate is left early is made from what it tells:

- with 80 ms, 79 % of faces and 80 % of vehicles get the larger models (section 7.3), which fit where ResNet-18 ended
  within 21.66 and 25.88 of its 27.36 ms: so four fifths leave in the first 79 %, and the others run to the end;
- ResNet-18 is 1.72 times as quick on average, ResNet-50 1.95 times (table 6);
- GATI on ResNet-50 is quicker than a network in 12 bits, which is little quicker than the whole one, for 87 % of
  requests (section 7.1.1): so many leave. ResNet-34 stands half-way between the two, in all of this.

The plainest curve that agrees: who leaves does so at one of `places` that are evenly spaced and equally likely. The
first is at the same share of each network, which ResNet-18's figures fix (16 %); the last is where the mean comes out.
"""

from dataclasses import dataclass

from latebind.domain.costs import Outlook
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec
from latebind.domain.query import Node, PlannerConfig, Query


@dataclass(frozen=True, slots=True)
class Timed:
    """A model that may answer a step."""

    name: str
    seconds: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Leaving:
    """Of a network with learned caches: how much quicker it is on average, and how many leave early."""

    gain: float
    share: float


OBJECTS, FACES, VEHICLES = range(3)  # the nodes
STEPS = ("objects", "faces", "vehicles")
TABLE_5 = (
    (
        Timed("ResNet-18", 0.02736, 0.911),
        Timed("ResNet-34", 0.04105, 0.929),
        Timed("ResNet-50", 0.0545, 0.941),
    ),
    (
        Timed("SE-LResNet9E-IR", 0.01738, 0.955),
        Timed("SE-LResNet18E-IR", 0.03675, 0.976),
        Timed("SE-LResNet50E-IR", 0.05834, 0.981),
        Timed("SE-LResNet101E-IR", 0.11032, 0.991),
    ),
    (
        Timed("ResNet-9", 0.01614, 0.902),
        Timed("ResNet-18", 0.02368, 0.918),
        Timed("ResNet-50", 0.05412, 0.926),
        Timed("ResNet-101", 0.11142, 0.934),
    ),
)
LEAVING = {
    "ResNet-18": Leaving(1.72, 0.80),
    "ResNet-34": Leaving((1.72 + 1.95) / 2, (0.80 + 0.87) / 2),
    "ResNet-50": Leaving(1.95, 0.87),
}
LAST_OF_RESNET_18 = 0.79  # of its time
SHARES = (0.46, 0.45)  # of faces and vehicles; the others end after the gate
WAYS = ((True, False), (False, True), (False, False))


@dataclass(frozen=True)
class Traffic:
    """The application. `gain`, where it is not 0, is how much quicker caches make any gate on average.

    Who leaves then does so at the same places, but more or fewer do.
    """

    places: int = 8
    gain: float = 0.0

    def __post_init__(self) -> None:
        if self.places < 1:
            raise ConfigError(f"places is {self.places}: give 1 or more")
        for timed in TABLE_5[OBJECTS]:
            if not 0.0 <= self.leaving(timed.name) <= 1.0:
                most = 1.0 / (_middle(LEAVING[timed.name]))
                raise ConfigError(f"gain is {self.gain}: give 1 to {most:.2f}, which is all leaving {timed.name} early")

    def leaving(self, gate: str) -> float:
        """Return the share of requests that leave a gate early."""
        leaving = LEAVING[gate]
        if not self.gain:
            return leaving.share
        return (1.0 - 1.0 / self.gain) / (1.0 - _middle(leaving))

    def exits(self, gate: str) -> list[float]:
        """Return the shares of its time at which a gate is left early."""
        first, last = first_place(), 2 * _middle(LEAVING[gate]) - first_place()
        steps = max(1, self.places - 1)
        return (
            [first + (last - first) * i / steps for i in range(self.places)]
            if self.places > 1
            else [_middle(LEAVING[gate])]
        )

    def outlook(self, step: int, option: int, *, caches: bool) -> Outlook:
        """Return what a request for a model of a step is to expect; only gates may have learned caches."""
        timed = TABLE_5[step][option]
        if not caches or step != OBJECTS:
            return Outlook(0.0, (timed.seconds,), (1.0,))
        leaving, exits = self.leaving(timed.name), self.exits(timed.name)
        ends = (*(share * timed.seconds for share in exits), timed.seconds)
        return Outlook(0.0, ends, (*(leaving / len(exits) for _ in exits), 1.0 - leaving))

    def outlooks(self, *, caches: bool) -> dict[str, Outlook]:
        """Return what is to be expected of each model of the query, by its name there."""
        return {
            model_name(step, option): self.outlook(step, option, caches=caches)
            for step, models in enumerate(TABLE_5)
            for option in range(len(models))
        }


def _middle(leaving: Leaving) -> float:
    """Return the share of its time at which a network is left by those who leave it early, on average."""
    return (1.0 / leaving.gain - (1.0 - leaving.share)) / leaving.share


def first_place() -> float:
    """Return at which share of a network the first learned cache is."""
    return 2 * _middle(LEAVING["ResNet-18"]) - LAST_OF_RESNET_18


def model_name(step: int, option: int) -> str:
    """Return the name of a model in the query; ResNet-18 is a gate and also knows vehicles."""
    return f"{STEPS[step]}: {TABLE_5[step][option].name}"


def application(planner: PlannerConfig) -> Query:
    """Return the query of figure 2: a gate, then faces or vehicles."""
    nodes = tuple(
        Node(
            name,
            tuple(model_name(step, option) for option in range(len(TABLE_5[step]))),
            tuple(timed.accuracy for timed in TABLE_5[step]),
            () if step == OBJECTS else (OBJECTS,),
            () if step == OBJECTS else ((OBJECTS,),),
            guarded=step != OBJECTS,
        )
        for step, name in enumerate(STEPS)
    )
    return Query(ModelSpec("traffic", "1", (), (), len(nodes), 1), nodes, planner)
