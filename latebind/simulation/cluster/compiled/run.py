"""Plays a whole run: compiled code handles requests; here are deaths of machines, returns and ticks between them.

Machines and models go by their numbers. Times are seconds since the start of the run.
"""

from collections import Counter
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latebind.simulation.cluster.compiled.advance import advance, empty
from latebind.simulation.cluster.compiled.compile import forget_stale
from latebind.simulation.cluster.compiled.covered import require_covered
from latebind.simulation.cluster.compiled.routing import start_of
from latebind.simulation.cluster.compiled.state import Arrays, grow, make_state
from latebind.simulation.cluster.compiled.views import addresses
from latebind.simulation.cluster.fleet import Fault, Fleet, Played, Requests
from latebind.simulation.cluster.policies import Autoscaler, Demand, Placer
from latebind.simulation.cluster.tables import tables_of

NOBODY = -1
UP, DRAINING, OFF, DEAD, STARTING = range(5)
DIES, RETURNS, RISES, TICKS = range(4)


def play(
    fleet: Fleet,
    requests: Requests,
    *,
    router: str = "home",
    placer: Placer | None = None,
    autoscaler: Autoscaler | None = None,
    period: float = 60.0,
    seed: int = 0,
) -> Played:
    """Return what becomes of each request, as `exact.play` does.

    `period` is the time between two ticks in seconds. `seed` is that of the router's draws. Raises `ConfigError` for
    what the compiled simulation does not support.
    """
    require_covered(fleet, router)
    forget_stale()
    run = _Run(fleet, requests, router, _Plugins(placer, autoscaler, period), seed)
    run.play()
    return run.played()


@dataclass(frozen=True, slots=True)
class _Plugins:
    placer: Placer | None
    autoscaler: Autoscaler | None
    period: float


class _Run:
    """The state of one run, and what becomes of its machines."""

    def __init__(self, fleet: Fleet, requests: Requests, router: str, plugins: _Plugins, seed: int) -> None:
        self._fleet = fleet
        self._requests = requests
        self._plugins = plugins
        self._seed = seed
        self._s: Arrays = make_state(fleet, requests, router, tables_of(fleet))
        self._at = addresses(self._s)[0]
        self._fresh: NDArray[Any] = self._s["machines"].copy()
        self._start = start_of(seed, 0)
        self._life = [UP] * len(fleet.machines)
        self._back: dict[int, float] = {}  # when each dead machine returns
        self._was_up: dict[int, bool] = {}  # of each dead machine: whether it was up when it died
        self._due: dict[int, float] = {}  # when each starting machine is up
        self._attempts: Counter[int] = Counter()  # how often each request was sent again after its machine had died
        self._told = 0  # how many requests had come by the last tick
        self._marks: list[tuple[float, int]] = []  # at each tick: the time and the machines in use

    def play(self) -> None:
        """Play the run to its end: the last answer."""
        models = len(self._fleet.models)
        self._place(Demand(np.zeros(models), 0.0, 1.0), 0.0)
        self._mark(0.0)
        for time, kind, fault in self._outside():
            self._start_up((time, kind))
            self._advance(time)
            if kind == TICKS:
                self._tick(time)
            elif kind == DIES:
                self._die(fault, time)
            elif self._back.get(fault.machine) == time:
                self._return(fault.machine)
        self._start_up((inf, TICKS))
        self._advance(inf)

    def played(self) -> Played:
        """Return what became of each request."""
        s = self._s
        times, up = zip(*self._marks, strict=True)
        return Played(
            self._requests,
            s["ended"],
            s["outcomes"],
            s["taken"],
            np.array(times),
            np.array(up, dtype=np.int32),
            int(s["tally"]["loads"][0]),
            float(s["tally"]["loaded"][0]),
            s["busy"],
        )

    def _outside(self) -> list[tuple[float, int, Fault]]:
        """Return deaths, returns and ticks as (time, kind, fault), by time and kind; ticks have an empty fault."""
        last = float(self._requests.times[-1]) if len(self._requests) else 0.0
        nobody = Fault(0.0, 0, 0.0)
        ticks = [(k * self._plugins.period, TICKS, nobody) for k in range(1, int(last / self._plugins.period) + 2)]
        deaths = [(fault.time, DIES, fault) for fault in self._fleet.faults]
        returns = [(fault.time + fault.away, RETURNS, fault) for fault in self._fleet.faults]
        return sorted([*deaths, *returns, *(t for t in ticks if t[0] <= last)], key=lambda one: one[:2])

    def _start_up(self, before: tuple[float, int]) -> None:
        """Let the machines finish starting that are ready before the next event from outside, a pair (time, kind)."""
        for due, machine in sorted((due, machine) for machine, due in self._due.items()):
            if (due, RISES) < before:
                self._advance(due)
                del self._due[machine]
                self._life[machine] = UP
                self._tell_up()

    def _advance(self, limit: float) -> None:
        """Simulate what happens on machines up to `limit`, and enlarge pools where they turn out too small."""
        while not advance(self._at, limit, self._start, NOBODY):
            self._grow()

    def _grow(self) -> None:
        grow(self._s)
        self._at = addresses(self._s)[0]

    # Ticks ----------------------------------------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        """Turn off machines that have answered all, and ask the autoscaler and the placer."""
        s = self._s
        for machine, life in enumerate(self._life):
            if life == DRAINING and not s["unanswered"][machine]:
                self._life[machine] = OFF
                self._renew(machine)
        demand = self._demand()
        if self._plugins.autoscaler is not None and self._life.count(DEAD) < len(self._life):
            self._scale(self._plugins.autoscaler.wanted(self._fleet, self._life.count(UP), demand, now), now)
        self._place(demand, now)
        self._mark(now)

    def _demand(self) -> Demand:
        """Return what was asked of the cluster since the last tick, and begin to count anew."""
        s, tally = self._s, self._s["tally"][0]
        came = np.bincount(s["wanted"][self._told : tally["next"]], minlength=len(self._fleet.models))
        self._told = int(tally["next"])
        late = float(tally["late"] / tally["ended"]) if tally["ended"] else 0.0
        some = s["machines"]["slacks"] > 0
        means = s["machines"]["slack"][some] / s["machines"]["slacks"][some]
        tally["late"] = tally["ended"] = 0
        s["machines"]["slack"] = s["machines"]["slacks"] = 0
        return Demand(came / self._plugins.period, late, float(means.min()) if len(means) else 1.0)

    def _scale(self, wanted: int, now: float) -> None:
        """Start machines, or let some end their work and rest, until `wanted` of them are up or starting."""
        wanted = min(max(wanted, 1), len(self._life) - self._life.count(DEAD))
        there = self._life.count(UP) + len(self._due)
        for machine, life in enumerate(self._life):
            if there < wanted and life in (OFF, DRAINING):
                startup = self._fleet.machines[machine].startup if life == OFF else 0.0
                self._life[machine] = STARTING if startup else UP
                self._due |= {machine: now + startup} if startup else {}
                there += 1
        for surplus, rests in ((STARTING, OFF), (UP, DRAINING)):
            for machine in range(len(self._life) - 1, -1, -1):
                if there > wanted and self._life[machine] == surplus:
                    self._life[machine] = rests
                    self._due.pop(machine, None)
                    there -= 1
        self._tell_up()

    def _place(self, demand: Demand, now: float) -> None:
        """Ask the placer which machines are the homes of each model, and write its answer to the state."""
        if self._plugins.placer is None:
            return
        up = [machine for machine, life in enumerate(self._life) if life == UP]
        placement = self._plugins.placer.place(self._fleet, up, demand, now)
        if placement is not None:
            starts = np.cumsum([0, *map(len, placement.homes)])
            homes = np.array([machine for some in placement.homes for machine in some] or [0], dtype=np.int64)
            self._s |= {"home_starts": starts, "homes": homes}
            self._s["settings"]["placed"] = 1
            self._at = addresses(self._s)[0]

    def _mark(self, now: float) -> None:
        """Note how many machines are in use: up, starting, or draining with requests left."""
        draining = [machine for machine, life in enumerate(self._life) if life == DRAINING]
        still = sum([self._s["unanswered"][machine] > 0 for machine in draining])
        self._marks.append((now, self._life.count(UP) + len(self._due) + int(still)))

    # Faults ---------------------------------------------------------------------------------------------------------

    def _die(self, fault: Fault, now: float) -> None:
        """Let a machine die, and send its unanswered requests to others."""
        machine, back = fault.machine, fault.time + fault.away
        if self._life[machine] == DEAD:
            self._back[machine] = max(back, self._back[machine])
            return
        self._was_up[machine] = self._life[machine] == UP
        self._due.pop(machine, None)
        self._back[machine], self._life[machine] = back, DEAD
        numbers = np.zeros(int(self._s["unanswered"][machine]) + 1, dtype=np.int64)
        lost = sorted(numbers[: self._renew(machine, numbers)].tolist())
        self._tell_up()
        for number in lost:
            self._attempts[number] += 1
            start = start_of(self._seed, self._attempts[number])
            while not advance(self._at, now, start, number):
                self._grow()

    def _return(self, machine: int) -> None:
        """Let a dead machine come back; it is up only if it was when it died."""
        self._life[machine] = UP if self._was_up.pop(machine) else OFF
        del self._back[machine]
        self._tell_up()

    def _renew(self, machine: int, numbers: NDArray[np.int64] | None = None) -> int:
        """Give a machine a new scheduler and an empty memory.

        The numbers of its unanswered requests are written to `numbers`; returns how many they are.
        """
        s, models = self._s, len(self._fleet.models)
        count = empty(self._at, machine, np.zeros(1, np.int64) if numbers is None else numbers)
        s["machines"][machine] = self._fresh[machine]
        s["lanes"][machine * models : (machine + 1) * models] = np.zeros((), s["lanes"].dtype)
        s["queues"][2 * machine * models : 2 * (machine + 1) * models] = np.zeros((), s["queues"].dtype)
        workers = s["settings"]["slots"][0] - 2
        s["workers"][machine * workers : (machine + 1) * workers] = np.zeros((), s["workers"].dtype)
        return int(count)

    def _tell_up(self) -> None:
        """Tell the router which machines are up."""
        up = [machine for machine, life in enumerate(self._life) if life == UP]
        self._s["up"][: len(up)] = up
        self._s["tally"]["up"] = len(up)
        self._s["is_up"][:] = [life == UP for life in self._life]
