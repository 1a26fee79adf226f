"""Ways to run many machines: the router, the placement of models, and the residency policy of each machine."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from latebind.domain.errors import ConfigError
from latebind.residency.policy import POLICIES
from latebind.simulation.cluster.placement import ByImportance, RandomHomes
from latebind.simulation.cluster.policies import ROUTERS, Placer

WAITS = "wait"  # the ending of labels where no request is refused for being late
PLACERS: dict[str, Callable[[], Placer | None]] = {
    "none": lambda: None,
    "importance": ByImportance,
    **{f"random-{homes}": partial(RandomHomes, homes) for homes in (1, 2, 4, 8)},
}


@dataclass(frozen=True, slots=True)
class Way:
    """A router, a placer ("none": models have no homes) and a residency policy, of whole models or of `stages`.

    Where it `sheds`, machines refuse requests that would be late; else all requests wait, also for their models.
    """

    router: str
    placer: str
    residency: str
    stages: bool = False
    sheds: bool = True

    @property
    def label(self) -> str:
        """Its name in tables and options."""
        return f"{self.router}/{self.placer}/{self.residency}" + ("" if self.sheds else f"/{WAITS}")


WAYS = (
    Way("home", "importance", "late"),
    Way("home", "random-2", "lru"),
    Way("two-choices", "none", "lru"),
    Way("two-choices", "none", "lru", sheds=False),
)


def way(text: str) -> Way:
    """Return the way with this label; raises `ConfigError` where there is none."""
    parts = text.removesuffix(f"/{WAITS}").split("/")
    known = (ROUTERS, tuple(PLACERS), tuple(POLICIES))
    if len(parts) != len(known):
        raise ConfigError(
            f"--way {text!r} is not of the form router/placer/residency: give one such as {WAYS[0].label}"
        )
    for part, names in zip(parts, known, strict=True):
        if part not in names:
            raise ConfigError(f"--way {text!r} has {part!r}: take one of {', '.join(names)}")
    router, placer, residency = parts
    return Way(router, placer, residency, sheds=not text.endswith(f"/{WAITS}"))


def placer(one: Way) -> Placer | None:
    """Return a new placer for a run."""
    return PLACERS[one.placer]()
