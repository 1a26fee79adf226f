"""Builds the state of a cluster before the first request, and enlarges what has become too small."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from latebind.domain.config import ServedModel
from latebind.simulation.cluster.compiled.layout import (
    BATCH,
    BELIEF,
    CHOICE,
    IAM,
    LANE,
    LATE,
    LRU,
    MACHINE,
    MODEL,
    OFFER,
    QUEUE,
    REQUEST,
    RING,
    SETTINGS,
    TALLY,
    WORKER,
)
from latebind.simulation.cluster.compiled.profiles import Profiles, profiles_of
from latebind.simulation.cluster.fleet import Fleet, Requests
from latebind.simulation.cluster.policies import ROUTERS
from latebind.simulation.cluster.tables import Tables, largest_batch, scaled

Arrays = dict[str, NDArray[Any]]
EVICTIONS = {"late": LATE, "iam": IAM, "lru": LRU}
FEW = 8  # a pool with fewer free places than this is enlarged
ROOM = 4096  # places that are added to an empty pool
NEARLY = 1.02  # times the least seconds for each request; a batch within this is as quick as any
MOST_CHOICES = 1 << 16  # batches that a worker may choose from at one time


def make_state(fleet: Fleet, requests: Requests, router: str, tables: Tables) -> Arrays:
    """Return the state of a cluster before the first request, as arrays by name; all machines are up.

    There is one record for each machine, worker and lane, and one for each model on each kind of machine.
    """
    served = [scaled(model.served, kind) for kind in tables.kinds for model in fleet.models]
    largest = [largest_batch(model, fleet.policy) for model in served]
    profiles, own = profiles_of(served, largest)
    machines, models = len(fleet.machines), len(fleet.models)
    slots = 2 + max(machine.workers for machine in fleet.machines)
    stages = max(model.served.spec.stages for model in fleet.models)
    state: Arrays = {
        "settings": _settings(fleet, requests, router, slots=slots, exits=bool((profiles.ends > 1).any())),
        "tally": np.zeros(1, TALLY),
        "machines": _machines(fleet, tables),
        "workers": np.zeros(machines * (slots - 2), WORKER),
        "lanes": np.zeros(machines * models, LANE),
        "queues": np.zeros(2 * machines * models, QUEUE),
        "models": _models(fleet, served, largest, profiles, own, tables),
        "holders": np.zeros(models, np.int64),
        "home_starts": np.zeros(models + 1, np.int64),
        "homes": np.zeros(1, np.int64),
        "some": np.zeros(models, np.int64),
        "marks": np.zeros(max(models, 8), np.uint8),
        "offers": np.zeros(2 * models, OFFER),
        "choices": np.zeros(min(models * (stages + 1) + 1, MOST_CHOICES), CHOICE),
        **_pools(fleet),
        **_costs(profiles),
        **_events(machines * slots),
        **_up(machines),
        **_asked(requests),
    }
    state["tally"]["last"] = -1
    state["tally"]["up"] = machines
    grow(state)
    return state


def grow(state: Arrays) -> None:
    """Double the pools that are nearly full; an empty one gets `ROOM` places."""
    tally = state["tally"]
    if tally["spare_requests"][0] < FEW:  # there is never a batch without requests, but for a moment
        state["requests"] = _pool(state["requests"], "next", tally, ("free_request", "spare_requests"))
        state["batches"] = _pool(state["batches"], "above", tally, ("free_batch", "spare_batches"))
    for name in ("rings", "beliefs"):
        if tally["rings"][0] + FEW > len(state[name]) > FEW:
            state[name] = np.concatenate([state[name], np.zeros(len(state[name]), state[name].dtype)])


def _pool(old: NDArray[Any], link: str, tally: NDArray[Any], counts: tuple[str, str]) -> NDArray[Any]:
    """Return a pool with twice as many places. The new ones are put in the list of free places, linked by `link`."""
    free, spare = counts
    more = max(ROOM, len(old))
    new = np.concatenate([old, np.zeros(more, old.dtype)])
    new[link][len(old) :] = np.arange(len(old) + 1, len(new) + 1)
    new[link][-1] = tally[free][0]
    tally[free] = len(old)
    tally[spare] += more
    return new


def _pools(fleet: Fleet) -> Arrays:
    """Return the arrays that `grow` enlarges, still without free places for requests and batches."""
    residency = fleet.residency.policy
    return {
        "requests": np.zeros(1, REQUEST),
        "batches": np.zeros(1, BATCH),
        "rings": np.zeros(ROOM if residency == "iam" else FEW, RING),
        "beliefs": np.zeros(ROOM if residency == "late" else FEW, BELIEF),
    }


def _costs(profiles: Profiles) -> Arrays:
    """Return seconds of stages and chances to leave after them: tables by profile, stage and batch (`Profiles`)."""
    return {
        "seconds": profiles.seconds,
        "rest": profiles.rest,
        "soon": profiles.soon,
        "best": profiles.best,
        "answered": profiles.answered,
        "chance_seconds": profiles.chance_seconds,
        "chance_shares": profiles.chance_shares,
        "ends": profiles.ends.astype(np.int64),
        "alive": profiles.alive,
        "lookups": profiles.lookups,
    }


def _events(most: int) -> Arrays:
    """Return an empty heap with room for `most` events."""
    return {
        "event_times": np.zeros(most),
        "event_orders": np.zeros(most, np.int64),
        "event_slots": np.zeros(most, np.int64),
        "event_places": np.full(most, -1, np.int64),
    }


def _up(machines: int) -> Arrays:
    """Return what routers know of machines, all of which are up and idle; `work` is in nanoseconds."""
    return {
        "up": np.arange(machines),
        "is_up": np.ones(machines, np.uint8),
        "unanswered": np.zeros(machines, np.int64),
        "work": np.zeros(machines, np.int64),
        "busy": np.zeros(machines),
    }


def _asked(requests: Requests) -> Arrays:
    """Return the requests of the run, and the arrays for when, how and on which machine each ends."""
    return {
        "times": np.ascontiguousarray(requests.times, np.float64),
        "wanted": np.ascontiguousarray(requests.models, np.int32),
        "leaves": np.ascontiguousarray(requests.leaves, np.int16),
        "ended": np.zeros(len(requests)),
        "outcomes": np.zeros(len(requests), np.int8),
        "taken": np.full(len(requests), -1, np.int32),
    }


def _settings(fleet: Fleet, requests: Requests, router: str, *, slots: int, exits: bool) -> NDArray[Any]:
    settings, residency = np.zeros(1, SETTINGS), fleet.residency
    values = {
        "hop": fleet.hop,
        "patience": residency.patience,
        "window": residency.window,
        "requests": len(requests),
        "models": len(fleet.models),
        "slots": slots,
        "graph": fleet.policy.name == "graph",
        "exits": exits,
        "sheds": fleet.policy.shed,
        "whole": not residency.stages,
        "eviction": EVICTIONS[residency.policy],
        "foresight": residency.foresight,
        "oldest": residency.order == "oldest",
        "router": ROUTERS.index(router),
    }
    for name, value in values.items():
        settings[name] = value
    return settings


def _machines(fleet: Fleet, tables: Tables) -> NDArray[Any]:
    machines = np.zeros(len(fleet.machines), MACHINE)
    machines["kind"] = tables.kind_of
    machines["workers"] = tables.workers
    machines["budget"] = [machine.memory for machine in fleet.machines]
    return machines


def _models(
    fleet: Fleet, served: list[ServedModel], largest: list[int], profiles: Profiles, own: list[int], tables: Tables
) -> NDArray[Any]:
    models = np.zeros(len(served), MODEL)
    names = [model.served.spec.name for model in fleet.models]
    places = {name: place for place, name in enumerate(sorted(names))}
    late, residency = fleet.policy.name == "late", fleet.residency
    trims = residency.policy == "late" and residency.stages and residency.trim
    for record, model, most, profile in zip(models, served, largest, own, strict=True):
        worth = _worth(profiles.rest[profile, 0], most) if late else most
        hopes = late and profiles.ends[profile] > 1
        each = profiles.work[profile, worth] if hopes else profiles.rest[profile, 0, worth] / worth
        least = (profiles.soon if hopes else profiles.rest)[profile, 0, 1]
        footprint = model.footprint
        record["profile"], record["stages"], record["most"], record["worth"] = profile, model.spec.stages, most, worth
        record["max_queued"], record["name"] = model.max_queued, places[model.spec.name]
        record["pieces"], record["bytes"] = footprint.stages, footprint.size
        record["grain"] = footprint.grain if trims else 0
        record["seconds"], record["fixed"] = sum(footprint.seconds), footprint.fixed
        record["each"], record["least"] = each, least
    models["allowed"] = [model.allowed for model in fleet.models] * len(tables.kinds)
    models["room"] = np.tile(tables.room, len(tables.kinds))
    models["router_each"], models["router_alone"] = tables.each.ravel(), tables.alone.ravel()
    models["router_load"] = tables.load.ravel()
    return models


def _worth(seconds: NDArray[np.float64], most: int) -> int:
    """Return the smallest batch with nearly the least seconds for each request: `Estimate.worth_batching`."""
    each = seconds[1 : most + 1] / np.arange(1, most + 1)
    return 1 + int(np.argmax(each <= NEARLY * each.min()))
