"""The usual ways to route and to place, to compare ours with. They plug into simulated clusters."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from random import Random

from latebind.cluster.placement import Placement, Report
from latebind.cluster.routing import Replica, Router


class Usual(Router):
    """A router that ignores what replicas have in memory: one of them, by what `rule` says of those that are up."""

    def __init__(self, rule: Callable[[Sequence[Replica], Random], Replica]) -> None:
        super().__init__()
        self._rule = rule
        self._random = Random(0)
        self._up: list[Replica] = []

    def see(self, replicas: Iterable[Replica], now: float) -> None:
        """Take in which machines are up."""
        del now
        self._up = list(replicas)

    def choose(self, model: str, now: float, tried: Collection[str] = ()) -> Replica | None:
        """Return the machine for a request."""
        del model, now
        able = [one for one in self._up if one.name not in tried]
        return self._rule(able, self._random) if able else None


def _at_random(up: Sequence[Replica], random: Random) -> Replica:
    return random.choice(up)


def _least_loaded(up: Sequence[Replica], random: Random) -> Replica:
    return min(up, key=lambda one: (one.under_way, random.random()))


def _two_choices(up: Sequence[Replica], random: Random) -> Replica:
    return _least_loaded(random.sample(up, min(2, len(up))), random)


RULES = {"random": _at_random, "least-loaded": _least_loaded, "two-choices": _two_choices}


class RandomHomes(Placement):
    """Gives each model `count` machines by rendezvous hashing, so that few models move when a machine leaves."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def place(self, reports: Mapping[str, Report], rates: Mapping[str, float] | None) -> dict[str, tuple[str, ...]]:
        """Return the homes of all models; none where `count` is 0."""
        del rates
        names = {name for report in reports.values() for name in report.costs} if self._count else ()
        return {
            name: tuple(sorted(reports, key=lambda one: Random(f"{name} {one}").random())[: self._count])
            for name in names
        }
