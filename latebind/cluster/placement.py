"""Decides which replicas should hold each model, by importance. Pure. The ingress and simulated clusters both use it.

The importance of a byte follows mCache (equation 1): the model's requests a second, times the loss of a request that
has to wait for a load, divided by the model's size in bytes. In mCache the loss is in seconds. Here a request that
cannot be in time is lost, so the loss is the loading time as a share of the time allowed, and at most 1.

The most important models get places in memory that nothing else may take. The other models share a few replicas that
are set aside for them. On any other replica, loading one of them would evict something more important.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NEWEST = 0.2  # weight of the last period in the rates that importance goes by
SHARED = 0.1  # of all replicas, or of the memory of each if they are few: for models without a place of their own
KEPT = 1.3  # factor on the importance of a model that has a place over one that would take it: rates always vary
FITS = 0.9  # of all memory: models that take no more together all have a place
MOST = 0.5  # of a replica that one model may keep busy there; if it needs more it gets another home
LEAST = 0.2  # of a replica: below that a home is given up
FULL = 0.6  # of a replica that all its models may keep busy before one goes to another
CROWDED = 1.3  # times as many bytes without a place as on other replicas, at which models without a place move on

Floats = NDArray[np.float64]


class Costs(NamedTuple):
    """What a replica reports about one model.

    Its `size` in bytes, the seconds of a `load`, the seconds of all of the replica's workers that one request takes
    (`work`), and the seconds within which an answer is due if the call does not say (`allowed`).
    """

    size: float
    load: float
    work: float
    allowed: float


@dataclass(frozen=True, slots=True)
class Report:
    """What a replica reports once a second: `memory` bytes for models, their costs, and which it has in memory.

    A replica without a limit of memory has every model in memory, and reports neither.
    """

    memory: float
    costs: Mapping[str, Costs]
    resident: Collection[str]


class Placement:
    """Goes through the models by importance and gives each one a home: the least busy replica that has memory for it.

    A model that is asked for more than one replica can handle gets several homes. A home is kept as long as it has
    memory and time for the model, so that few models move from one period to the next. Models for which no memory is
    left are spread by size over the replicas that are set aside, which are the last ones.
    """

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}
        self._homes: dict[str, tuple[str, ...]] = {}
        self._placed: set[str] = set()  # models that have a place of their own

    def place(self, reports: Mapping[str, Report], rates: Mapping[str, float] | None) -> dict[str, tuple[str, ...]]:
        """Return the homes of all models, the first home first; no homes if no replica is up.

        `reports` are those of the replicas that are up, `rates` the requests a second in the last period; None if
        nothing new is known of them. A model that has had no homes so far is kept, if it fits, on those replicas that
        have it in memory. If replicas report different costs of a model, the highest count.
        """
        names = sorted({name for report in reports.values() for name in report.costs})
        if not names:
            return {}
        costs = [[report.costs[name] for report in reports.values() if name in report.costs] for name in names]
        sizes, loads, work, allowed = np.array([np.max(some, axis=0) for some in costs], dtype=np.float64).T
        usual = before = np.array([self._rates.get(name, 0.0) for name in names])
        newest = before if rates is None else np.array([rates.get(name, 0.0) for name in names])
        if rates is not None:  # a moving average; the newest alone if nothing was asked for before
            usual = (1.0 - NEWEST) * before + NEWEST * newest if before.any() else newest
            self._rates = dict(zip(names, usual.tolist(), strict=True))
        kept = np.array([KEPT if name in self._placed else 1.0 for name in names])
        importance = usual * np.minimum(1.0, loads / allowed) / np.maximum(1.0, sizes) * kept
        memory = np.array([report.memory for report in reports.values()], dtype=np.float64)
        room = _Room(memory, work * np.maximum(usual, newest), np.maximum(1.0, sizes))
        machines = tuple(reports)
        places = {name: place for place, name in enumerate(machines)}
        homes: dict[str, tuple[str, ...]] = dict.fromkeys(names, ())
        for model in np.argsort(-importance, kind="stable").tolist():
            name = names[model]
            had = self._homes.get(name) or [home for home in machines if name in reports[home].resident]
            found = room.homes(model, [places[home] for home in had if home in places], len(had))
            homes[name] = tuple([machines[place] for place in found])
        self._placed = {name for name, has in zip(names, room.placed.tolist(), strict=True) if has}
        self._homes = homes
        return homes


class _Room:
    """How much memory and time is left on the replicas, by number, while models get their homes one after another."""

    def __init__(self, memory: Floats, busy: Floats, sizes: Floats) -> None:
        machines = len(memory)
        self._costs = busy.tolist()  # how busy each model alone would keep a replica, as a share of its time
        self._sizes = sizes.tolist()
        self._memory = memory
        self._busy = np.zeros(machines)
        self._taken = np.zeros(machines)  # bytes of those that have a place
        self._crowd = np.zeros(machines)  # of the others, over the memory
        self.placed = np.zeros(len(sizes), dtype=np.bool_)
        fits = float(sizes.sum()) <= FITS * float(memory.sum())
        aside = 0 if fits else round(SHARED * machines)
        self._shared = np.arange(machines) >= (machines - aside if aside else 0)
        self._limit = memory * (1.0 if fits or aside else 1.0 - SHARED)
        self._limit[self._shared & (aside > 0)] = 0.0
        without = max(0.0, float(sizes.sum()) - float(self._limit.sum()))
        self._mean_crowd = without / float(memory[self._shared].sum())

    def homes(self, model: int, before: Sequence[int], had: int) -> list[int]:
        """Return the homes of a model. It had `had`, of which those `before` are up and come first."""
        # As many as before, unless that is clearly too few or too many.
        least, most = ceil(self._costs[model] / MOST), ceil(self._costs[model] / LEAST)
        count = max(1, min(max(had, least), most, len(self._memory)))
        share = self._costs[model] / count
        found: list[int] = []
        for home in before:
            if len(found) < count and self._keeps(home, model, share):
                self._settle(home, model, share)
                found.append(home)
        while len(found) < count:
            home = self._best(model, share, found)
            self._settle(home, model, share)
            found.append(home)
        return found

    def _keeps(self, home: int, model: int, share: float) -> bool:
        """Return whether a model may keep a home.

        That is so if the home has memory and time for the model. It is also so if no replica has both, and the home is
        shared and not much more crowded than others.
        """
        if self._has_place(home, model) and self._busy[home] + share <= max(FULL, share):
            return True
        if self._places(model, share).any():
            return False
        return bool(self._shared[home] and self._crowd[home] <= CROWDED * self._mean_crowd)

    def _places(self, model: int, share: float) -> NDArray[np.bool_]:
        """Return for each replica whether it has memory for a model and time for this share of the model's requests."""
        places: NDArray[np.bool_] = (self._taken + self._sizes[model] <= self._limit) & (self._busy + share <= FULL)
        return places

    def _has_place(self, home: int, model: int) -> bool:
        return bool(self._taken[home] + self._sizes[model] <= self._limit[home])

    def _best(self, model: int, share: float, found: Sequence[int]) -> int:
        """Return the least busy replica with memory and time for a model; without one, the least crowded shared one."""
        free = np.ones(len(self._memory), dtype=np.bool_)
        free[list(found)] = False
        full = self._taken / self._memory
        for some, keys in (  # the last key counts first
            (free & self._places(model, share), (full, self._busy)),
            (free & self._shared, (self._busy, self._crowd)),
        ):
            if some.any():
                order = np.lexsort(keys)
                return int(order[some[order]][0])
        return int(np.argmin(np.where(free, self._busy, np.inf)))

    def _settle(self, home: int, model: int, share: float) -> None:
        if self._has_place(home, model):
            self._taken[home] += self._sizes[model]
            self.placed[model] = True
        else:
            self._crowd[home] += self._sizes[model] / self._memory[home]
        self._busy[home] += share
