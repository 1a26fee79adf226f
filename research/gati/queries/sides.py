"""The planners of the benchmark, and whether the gate has learned caches."""

from dataclasses import dataclass

from latebind.domain.query import PlannerConfig

PAPERS = ("equal", "proportional")
OWN = "expected"
EVERY = (*PAPERS, OWN)


@dataclass(frozen=True, slots=True)
class Side:
    """A planner. The paper's baseline has no learned caches and does not replan."""

    planner: PlannerConfig
    caches: bool = True

    @property
    def label(self) -> str:
        """Its name in tables."""
        if not self.caches:
            return f"{self.planner.name}, baseline"
        price = "" if self.planner.price is None else f", price {self.planner.price:g}"
        return f"{self.planner.name}{price}, {'replanned' if self.planner.replan else 'caches only'}"


def baseline(name: str) -> Side:
    """Return a planner as the paper's baseline."""
    return Side(PlannerConfig(name, replan=False), caches=False)


def caches_only(name: str) -> Side:
    """Return a planner whose gate has learned caches, but which picks all models beforehand."""
    return Side(PlannerConfig(name, replan=False))


def replanned(name: str, price: float | None = None) -> Side:
    """Return a planner with learned caches that picks each model as late as possible.

    Our own planner finds the `price` of a second if none is given.
    """
    return Side(PlannerConfig(name, price=price))


def sides(prices: tuple[float, ...]) -> tuple[Side, ...]:
    """Return all sides: each planner in three ways, and our own with each of these prices of a second."""
    priced = tuple(replanned(OWN, price) for price in prices)
    return (*(make(name) for make in (baseline, caches_only, replanned) for name in EVERY), *priced)
