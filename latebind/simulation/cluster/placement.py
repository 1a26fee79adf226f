"""Placers for simulated clusters: by importance, as the ingress places models, or at random for comparison.

Without a placer, every machine may hold every model.
"""

from collections.abc import Sequence

import numpy as np

from latebind.cluster import placement
from latebind.domain.errors import ConfigError
from latebind.simulation.cluster.draws import drawn
from latebind.simulation.cluster.fleet import Fleet
from latebind.simulation.cluster.policies import Demand, Placement
from latebind.simulation.cluster.tables import NANO, Tables, tables_of


class ByImportance:
    """Tells the rule of the ingress (`cluster/placement.py`) what there is to place, and where."""

    def __init__(self) -> None:
        self._rule = placement.ByImportance[int, int]()
        self._homes: tuple[tuple[int, ...], ...] = ()
        self._tables: Tables | None = None

    def place(self, fleet: Fleet, up: Sequence[int], demand: Demand, now: float) -> Placement | None:
        """Return the homes of all models, or None if none of them changes."""
        if self._tables is None:
            self._tables = tables_of(fleet)
        if not up:
            return None
        homes = self._rule.place(models_of(fleet, demand), machines_of(fleet, self._tables, up))
        every = tuple([homes[model] for model in range(len(fleet.models))])
        if every == self._homes:
            return None
        self._homes = every
        return Placement(every)


def models_of(fleet: Fleet, demand: Demand) -> placement.Models[int]:
    """Return the models of a fleet, by number, with what was asked of them."""
    footprints = [model.served.footprint for model in fleet.models]
    return placement.Models(
        range(len(fleet.models)),
        np.array([max(1, sum(one.sizes[: one.stages])) for one in footprints], dtype=np.float64),
        np.array([one.penalty for one in footprints], dtype=np.float64),
        np.array([model.allowed for model in fleet.models], dtype=np.float64),
        demand.rates,
    )


def machines_of(fleet: Fleet, tables: Tables, up: Sequence[int]) -> placement.Machines[int]:
    """Return the machines that are up, by number; a request counts as it does in the largest batch."""
    some = np.array(up, dtype=np.int64)
    work = tables.each[tables.kind_of[some]] / NANO / tables.workers[some][:, None]
    memory = np.array([fleet.machines[machine].memory for machine in up], dtype=np.float64)
    return placement.Machines(tuple(up), memory, work)


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
