"""Ways to run many machines: who gets a request, where models belong, and what lies in each memory."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from latebind.domain.errors import ConfigError
from latebind.residency import POLICIES
from latebind.simulation.cluster.placement import ByImportance, RandomHomes
from latebind.simulation.cluster.policies import ROUTERS, Placer

PLACERS: dict[str, Callable[[], Placer | None]] = {
    "none": lambda: None,
    "importance": ByImportance,
    **{f"random-{homes}": partial(RandomHomes, homes) for homes in (1, 2, 4, 8)},
}


@dataclass(frozen=True, slots=True)
class Way:
    """A router, a placer (none: no model belongs anywhere) and a policy of residency, of whole models or of stages."""

    router: str
    placer: str
    residency: str
    stages: bool = False

    @property
    def label(self) -> str:
        """How tables and options call it."""
        return f"{self.router}/{self.placer}/{self.residency}"


WAYS = (
    Way("home", "importance", "late"),
    Way("two-choices", "none", "late"),
    Way("two-choices", "none", "lru"),
    Way("least-loaded", "none", "lru"),
)


def way(text: str) -> Way:
    """Return the way that an option spells as router/placer/residency; raises `ConfigError` where there is none."""
    parts = text.split("/")
    known = (ROUTERS, tuple(PLACERS), tuple(POLICIES))
    if len(parts) != len(known):
        raise ConfigError(
            f"--way {text!r} is not of the form router/placer/residency: give one such as {WAYS[0].label}"
        )
    for part, names in zip(parts, known, strict=True):
        if part not in names:
            raise ConfigError(f"--way {text!r} has {part!r}: take one of {', '.join(names)}")
    router, placer, residency = parts
    return Way(router, placer, residency)


def placer(one: Way) -> Placer | None:
    """Return a new placer for a run."""
    return PLACERS[one.placer]()
