"""Decides which machines should hold each model: by importance, or at random for comparison.

Without a placer, every machine may hold every model. The importance of a byte follows mCache (equation 1): the model's
requests a second, times the loss of a request that has to wait for a load, divided by the model's size in bytes. In
mCache the loss is in seconds. Here a request that cannot be in time is lost, so the loss is the loading time as a share
of the time allowed, and at most 1.

The most important models get places in memory that nothing else may take. The other models share a few machines that
are set aside for them. On any other machine, loading one of them would evict something more important.
"""

from collections.abc import Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray

from latebind.domain.errors import ConfigError
from latebind.simulation.cluster.draws import drawn
from latebind.simulation.cluster.fleet import Fleet
from latebind.simulation.cluster.policies import Demand, Placement
from latebind.simulation.cluster.tables import NANO, Tables, tables_of

NEWEST = 0.2  # weight of the last period in the rates that importance goes by
SHARED = 0.1  # of all machines, or of the memory of each where they are few: for those without a place of their own
KEPT = 1.3  # times as much a model matters that has a place as one that would take it: rates are never quite the same
FITS = 0.9  # of all memory: models that take no more together all have a place
MOST = 0.5  # of a machine that one model may keep busy there; where it needs more it gets another home
LEAST = 0.2  # of a machine: below that a home is given up
FULL = 0.6  # of a machine that all its models may keep busy before one goes to another
CROWDED = 1.3  # times as many bytes without a place as on other machines: who has none moves on

Floats = NDArray[np.float64]


class ByImportance:
    """Goes through the models by importance and gives each one a home: the least busy machine that has memory for it.

    A model that is asked for more than one machine can handle gets several homes. A home is kept as long as it has
    memory and time for the model, so that few models move from one period to the next. Models for which no memory is
    left are spread by size over the machines that are set aside, which are the last ones.
    """

    def __init__(self) -> None:
        self._rates: Floats | None = None
        self._homes: list[tuple[int, ...]] = []
        self._sizes = np.zeros(0)
        self._lost = np.zeros(0)
        self._placed = np.zeros(0, dtype=np.bool_)
        self._tables: Tables | None = None

    def place(self, fleet: Fleet, up: Sequence[int], demand: Demand, now: float) -> Placement | None:
        """Return the homes of all models, or None if none of them changes."""
        if self._tables is None:
            self._learn(fleet)
        if not up:
            return None
        self._rates = _followed(self._rates, demand.rates)
        importance = self._rates * self._lost / self._sizes * np.where(self._placed, KEPT, 1.0)
        room = _Room(fleet, up, self._costs(np.maximum(self._rates, demand.rates)), self._sizes)
        homes = list(self._homes)
        for model in np.argsort(-importance, kind="stable").tolist():
            homes[model] = room.homes(model, homes[model])
        self._placed = room.placed
        if homes == self._homes:
            return None
        self._homes = homes
        return Placement(tuple(homes))

    def _learn(self, fleet: Fleet) -> None:
        self._tables = tables_of(fleet)
        self._homes = [()] * len(fleet.models)
        self._placed = np.zeros(len(fleet.models), dtype=np.bool_)
        footprints = [model.served.footprint for model in fleet.models]
        self._sizes = np.array([max(1, sum(one.sizes[: one.stages])) for one in footprints], dtype=np.float64)
        lost = [min(1.0, one.penalty / model.allowed) for one, model in zip(footprints, fleet.models, strict=True)]
        self._lost = np.array(lost)

    def _costs(self, rates: Floats) -> Floats:
        """Return how busy each model alone would keep each machine, as a share of its time `(machines, models)`."""
        assert self._tables is not None
        each = self._tables.each[self._tables.kind_of] / NANO
        shares: Floats = each * rates / self._tables.workers[:, None]
        return shares


class RandomHomes:
    """Gives each model `count` machines by rendezvous hashing: those with the highest random numbers for this model.

    When a machine leaves, only the models that it held move.
    """

    def __init__(self, count: int = 2, seed: int = 0) -> None:
        if count < 1:
            raise ConfigError(f"models are to have {count} homes: give 1 or more")
        self._count = count
        self._seed = seed
        self._up: tuple[int, ...] = ()

    def place(self, fleet: Fleet, up: Sequence[int], demand: Demand, now: float) -> Placement | None:
        """Return the homes of all models, or None if the same machines are up as before."""
        if tuple(up) == self._up:
            return None
        self._up = tuple(up)
        models, machines = len(fleet.models), np.array(up, dtype=np.int64)
        every = machines[None, :] + len(fleet.machines) * np.arange(models)[:, None]
        words = drawn(self._seed, every.ravel()).reshape(every.shape)
        chosen = machines[np.argsort(words, axis=1)[:, ::-1][:, : self._count]]
        return Placement(tuple([tuple(row) for row in chosen.tolist()]))


class _Room:
    """How much memory and time is left on the machines that are up, while models get their homes one after another."""

    def __init__(self, fleet: Fleet, up: Sequence[int], costs: Floats, sizes: Floats) -> None:
        self._up = np.array(up, dtype=np.int64)
        self._is_up = set(up)
        self._costs = costs
        self._mean_costs = costs[self._up].mean(axis=0)
        self._sizes = sizes
        self._memory = np.array([float(machine.memory) for machine in fleet.machines])
        self._busy = np.zeros(len(fleet.machines))
        self._taken = np.zeros(len(fleet.machines))  # bytes of those that have a place
        self._crowd = np.zeros(len(fleet.machines))  # of the others, over the memory
        self.placed = np.zeros(len(sizes), dtype=np.bool_)  # models that have a place of their own
        fits = float(sizes.sum()) <= FITS * float(self._memory[self._up].sum())
        aside = 0 if fits else round(SHARED * len(up))
        self._shared = np.isin(np.arange(len(fleet.machines)), self._up[len(up) - aside :] if aside else self._up)
        self._limit = self._memory * (1.0 if fits or aside else 1.0 - SHARED)
        self._limit[self._shared & (aside > 0)] = 0.0
        without = max(0.0, float(sizes.sum()) - float(self._limit[self._up].sum()))
        self._mean_crowd = without / float(self._memory[self._shared].sum())

    def homes(self, model: int, before: tuple[int, ...]) -> tuple[int, ...]:
        """Return the homes of a model. Those that it had before come first."""
        count = self._count(model, len(before))
        found: list[int] = []
        for home in before:
            if len(found) < count and home in self._is_up and self._keeps(home, model, count):
                self._settle(home, model, count)
                found.append(home)
        while len(found) < count:
            home = self._best(model, count, found)
            self._settle(home, model, count)
            found.append(home)
        return tuple(found)

    def _count(self, model: int, before: int) -> int:
        """Return how many homes a model needs: as many as before, unless that is clearly too few or too many."""
        cost = float(self._mean_costs[model])
        least, most = ceil(cost / MOST), ceil(cost / LEAST)
        return max(1, min(max(before, least), most, len(self._up)))

    def _keeps(self, home: int, model: int, count: int) -> bool:
        """Tell whether a model may keep a home.

        That is so if the home has memory and time for the model. It is also so if no machine has both, and the home is
        shared and not much more crowded than others.
        """
        share = self._costs[:, model] / count
        if self._has_place(home, model) and self._busy[home] + share[home] <= max(FULL, float(share[home])):
            return True
        if self._places(self._up, model, share).any():
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
        others = np.array([machine for machine in self._up.tolist() if machine not in found]) if found else self._up
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


def _followed(before: Floats | None, newest: Floats) -> Floats:
    """Return a moving average of request rates, or the newest rates if there are none before."""
    if before is None or not before.any():
        return newest.copy()
    return (1.0 - NEWEST) * before + NEWEST * newest
