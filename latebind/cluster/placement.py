"""Decides which machines should hold each model, by importance. Used by the ingress and by simulated clusters alike.

The importance of a byte follows mCache (equation 1): the model's requests a second, times the loss of a request that
has to wait for a load, divided by the model's size in bytes. In mCache the loss is in seconds. Here a request that
cannot be in time is lost, so the loss is the loading time as a share of the time allowed, and at most 1.

The most important models get places in memory that nothing else may take. The other models share a few machines that
are set aside for them. On any other machine, loading one of them would evict something more important.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

NEWEST = 0.2  # weight of the last period in the rates that importance goes by
SHARED = 0.1  # of all machines, or of the memory of each where they are few: for those without a place of their own
KEPT = 1.3  # times as much a model matters that has a place as one that would take it: rates are never quite the same
FITS = 0.9  # of all memory: models that take no more together all have a place
MOST = 0.5  # of a machine that one model may keep busy there; where it needs more it gets another home
LEAST = 0.2  # of a machine: below that a home is given up
FULL = 0.6  # of a machine that all its models may keep busy before one goes to another
CROWDED = 1.3  # times as many bytes without a place as on other machines: who has none moves on

Floats = NDArray[np.float64]
Model = TypeVar("Model")
Machine = TypeVar("Machine")


@dataclass(frozen=True, slots=True)
class Models(Generic[Model]):
    """The models to place, by their `names`, and for each, `(models,)`, what is known of it.

    `sizes` are bytes; `loads` the seconds of a load; `allowed` the seconds within which an answer is due; `rates` the
    requests a second in the last period.
    """

    names: Sequence[Model]
    sizes: Floats
    loads: Floats
    allowed: Floats
    rates: Floats


@dataclass(frozen=True, slots=True)
class Machines(Generic[Machine]):
    """The machines that are up, by their `names`: `memory` `(machines,)` in bytes that models may take.

    `work` `(machines, models)` is how many seconds of all of a machine's workers one request takes there.
    """

    names: Sequence[Machine]
    memory: Floats
    work: Floats


class ByImportance(Generic[Model, Machine]):
    """Goes through the models by importance and gives each one a home: the least busy machine that has memory for it.

    A model that is asked for more than one machine can handle gets several homes. A home is kept as long as it has
    memory and time for the model, so that few models move from one period to the next. Models for which no memory is
    left are spread by size over the machines that are set aside, which are the last ones.
    """

    def __init__(self) -> None:
        self._rates: dict[Model, float] = {}
        self._homes: dict[Model, tuple[Machine, ...]] = {}
        self._placed: set[Model] = set()  # models that have a place of their own

    def place(
        self,
        models: Models[Model],
        machines: Machines[Machine],
        resident: Mapping[Model, Sequence[Machine]] | None = None,
    ) -> dict[Model, tuple[Machine, ...]]:
        """Return the homes of all models, the first home first; no homes where no machine is up.

        A model that has had no homes so far is kept, where it fits, on those machines that have it in memory
        (`resident`).
        """
        if not machines.names:
            return {}
        rates = self._followed(models)
        placed = np.array([name in self._placed for name in models.names], dtype=np.bool_)
        importance = rates * np.minimum(1.0, models.loads / models.allowed) / models.sizes * np.where(placed, KEPT, 1.0)
        busy = machines.work * np.maximum(rates, models.rates)
        room = _Room(machines.memory, busy, models.sizes)
        places = {name: place for place, name in enumerate(machines.names)}
        homes: dict[Model, tuple[Machine, ...]] = dict.fromkeys(models.names, ())
        for model in np.argsort(-importance, kind="stable").tolist():
            name = models.names[model]
            before = self._homes.get(name) or (resident or {}).get(name, ())
            found = room.homes(model, [places[home] for home in before if home in places], len(before))
            homes[name] = tuple([machines.names[place] for place in found])
        self._placed = {name for name, has in zip(models.names, room.placed.tolist(), strict=True) if has}
        self._homes = homes
        return homes

    def _followed(self, models: Models[Model]) -> Floats:
        """Return moving averages of the request rates, or the newest rates if nothing was asked for before."""
        before = np.array([self._rates.get(name, 0.0) for name in models.names])
        rates = (1.0 - NEWEST) * before + NEWEST * models.rates if before.any() else models.rates
        self._rates = dict(zip(models.names, rates.tolist(), strict=True))
        return rates


class _Room:
    """How much memory and time is left on the machines, by number, while models get their homes one after another."""

    def __init__(self, memory: Floats, busy: Floats, sizes: Floats) -> None:
        machines = len(memory)
        self._costs = busy  # how busy each model alone would keep each machine, as a share of its time
        self._mean_costs = busy.mean(axis=0)
        self._sizes = sizes
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
        count = self._count(model, had)
        found: list[int] = []
        for home in before:
            if len(found) < count and self._keeps(home, model, count):
                self._settle(home, model, count)
                found.append(home)
        while len(found) < count:
            home = self._best(model, count, found)
            self._settle(home, model, count)
            found.append(home)
        return found

    def _count(self, model: int, before: int) -> int:
        """Return how many homes a model needs: as many as before, unless that is clearly too few or too many."""
        cost = float(self._mean_costs[model])
        least, most = ceil(cost / MOST), ceil(cost / LEAST)
        return max(1, min(max(before, least), most, len(self._memory)))

    def _keeps(self, home: int, model: int, count: int) -> bool:
        """Tell whether a model may keep a home.

        That is so if the home has memory and time for the model. It is also so if no machine has both, and the home is
        shared and not much more crowded than others.
        """
        share = self._costs[:, model] / count
        if self._has_place(home, model) and self._busy[home] + share[home] <= max(FULL, float(share[home])):
            return True
        if self._places(np.arange(len(self._memory)), model, share).any():
            return False
        return bool(self._shared[home] and self._crowd[home] <= CROWDED * self._mean_crowd)

    def _places(self, machines: NDArray[np.int64], model: int, share: Floats) -> NDArray[np.bool_]:
        """Tell for each machine whether it has memory for a model and time for this share of the model's requests."""
        has_room = self._taken[machines] + self._sizes[model] <= self._limit[machines]
        has_time = self._busy[machines] + share[machines] <= FULL
        places: NDArray[np.bool_] = has_room & has_time
        return places

    def _has_place(self, home: int, model: int) -> bool:
        return bool(self._taken[home] + self._sizes[model] <= self._limit[home])

    def _best(self, model: int, count: int, found: Sequence[int]) -> int:
        """Return the least busy machine with memory and time for a model; without one, the least crowded shared one."""
        others = np.setdiff1d(np.arange(len(self._memory)), found)
        busy = self._busy[others] + self._costs[others, model] / count
        full, crowd = self._taken[others] / self._memory[others], self._crowd[others]
        places = self._places(others, model, self._costs[:, model] / count)
        for some, keys in ((places, (full, busy)), (self._shared[others], (busy, crowd))):  # the last key counts first
            if some.any():
                order = np.lexsort(keys)
                return int(others[order[some[order]][0]])
        return int(others[np.argmin(busy)])

    def _settle(self, home: int, model: int, count: int) -> None:
        if self._has_place(home, model):
            self._taken[home] += self._sizes[model]
            self.placed[model] = True
        else:
            self._crowd[home] += self._sizes[model] / self._memory[home]
        self._busy[home] += self._costs[home, model] / count
