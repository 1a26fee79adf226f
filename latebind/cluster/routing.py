"""Decides which replica gets each call. Pure. The ingress and simulated clusters both use it.

It knows only what an ingress knows: its own calls under way, which replicas were lost or hang, and what each replica
reports once a second, above all which models it has in memory. What replicas are doing at this moment cannot be known
in time, so no rule may depend on it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from latebind.cluster.placement import Placement, Report

# Seconds between two looks at how often models are asked for; the first look comes early. With 5 s always, 95.3
# instead of 98.5 % of the requests were in time with memory for all models once: rates fluctuate and models move.
PERIOD, FIRST = 60.0, 5.0
ASKED_AGAIN = 1.0  # seconds after a home was sent a call for a model that it lacks, until it gets the next


@dataclass(slots=True, eq=False)
class Replica:
    """One replica as a router sees it.

    `under_way` counts the calls that it has from here. It is suspected to be lost until `suspect_until`. One that is
    `silent` hangs, and gets no calls until it answers again. `report` is None if its memory is not limited.
    """

    name: str
    report: Report | None = None
    under_way: int = 0
    suspect_until: float = -inf
    silent: bool = False
    last: int = 0  # the number of the last call that it was chosen for
    asked: dict[str, float] = field(default_factory=dict)  # when it was last sent a call for a model that it lacks

    def lacks(self, model: str) -> bool:
        """Return whether, by its last report, it serves the model but does not have it in memory."""
        report = self.report
        return report is not None and model in report.costs and model not in report.resident


class Router:
    """Chooses replicas, each of which takes `most` calls at once, and has models placed every minute.

    Research compares it, and `Placement`, with subclasses.

    The homes of a model are the replicas on which it is placed. If no replica reports limits of memory there are none.
    """

    def __init__(self, *, most: float = inf, placement: Placement | None = None) -> None:
        self.replicas: dict[str, Replica] = {}
        self.homes: Mapping[str, Sequence[str]] = {}
        self._most = most
        self._placement = placement or Placement()
        self._limited: Collection[str] = ()  # the replicas on which models were placed
        self._calls: Counter[str] = Counter()  # by model, since the last look; only of models that replicas serve
        self._number = 0  # of the call that is being routed
        self._looked = -inf
        self._rated = False  # whether the rates of models have been looked at

    def see(self, replicas: Iterable[Replica], now: float) -> None:
        """Take in which replicas there are, with their last reports.

        Models are placed again if it is time, or if a replica has reported for the first time or is gone.
        """
        self.replicas = {replica.name: replica for replica in replicas}
        elapsed, rates = now - self._looked, None
        if elapsed >= (PERIOD if self._rated else FIRST):
            rates = {model: count / elapsed for model, count in self._calls.items()}
            self._rated = self._looked > -inf
            self._looked = now
            self._calls.clear()
        limited = {name: one.report for name, one in self.replicas.items() if one.report is not None}
        if rates is not None or limited.keys() != self._limited:
            self._limited = limited.keys()
            self.homes = self._placement.place(limited, rates)

    def choose(self, model: str, now: float, tried: Collection[str] = ()) -> Replica | None:
        """Return the replica for a call, None if none takes one. Those in `tried` and suspected ones come last.

        1. A home that lacks the model gets one call for it, and then another every second at most, until it has it.
           Only a call makes a replica load a model, and most calls should not wait for that, or be refused meanwhile.
        2. Else replicas that have the model: homes before others, which may have it from before.
        3. Else homes, else all. Of equal ones the one with the fewest calls under way, then the one chosen longest ago.
        """
        homes = self.homes.get(model, ())
        able = [replica for replica in self.replicas.values() if self.takes(replica)]

        def rank(replica: Replica) -> tuple[bool, bool, int, int, int]:
            name, lacks, home = replica.name, replica.lacks(model), replica.name in homes
            if lacks and home and now - replica.asked.get(model, -inf) >= ASKED_AGAIN:
                order = 0
            else:
                order = 1 + 2 * lacks + (bool(homes) and not home)
            return name in tried, replica.suspect_until > now, order, replica.under_way, replica.last

        found = min(able, key=rank, default=None)
        if found is not None:  # a refused call does not count
            if homes:
                self._calls[model] += 1
            self._number += 1
            found.last = self._number
            if found.lacks(model):
                found.asked[model] = now
        return found

    def takes(self, replica: Replica) -> bool:
        """Return whether a replica takes another call."""
        return replica.under_way < self._most and not replica.silent
