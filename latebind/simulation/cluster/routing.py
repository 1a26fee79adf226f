"""Who gets a request: the rules of the routers, exactly, and what they look at.

**What happens in which order.** Deaths, returns, ticks and requests are what comes from outside. Before anything from
outside at time t, all machines do what is due up to and at t. At the same t go first deaths, then returns, then who
comes up, then the tick, then requests; deaths and returns in the order of the fleet's faults, the others in that of
their numbers (from 0).
So machines do not feel each other between two things from outside, and what they do at the same time has no order.

**What a router knows**, of each machine, always up to date:

- whether it is up: not dead, off, starting or draining;
- `unanswered`: how many requests were sent there and have no reply (trials count);
- `work`: the sum of `Tables.each` of these, in nanoseconds;
- which models lie there: all stages in memory, as `Loaded` and `Evict` tell. What is on its way does not lie there.

`expected(m, i)`, in nanoseconds, is `max(work[m] // workers[m], lack) + alone[m, i]`, with `lack` 0 where model i lies
on machine m, else `load[m, i]` (`tables.py`).

**Rules.** U are the machines that are up, in the order of their numbers. Where there are none, the request ends at
once: `FAILED`, machine -1, at its own time (of a request that a dead machine had, that of the death). Draws are 64 bits
w by the number of the request, `drawn(seed, numbers, salt=attempt)` (`draws.py`); its first sending is attempt 0, and
each after a death one more.

- `random`: `U[w % len(U)]`.
- `round-robin`: the first in U behind the machine chosen last, by number and from the front again; at first U[0].
- `least-loaded`: the fewest unanswered; of equal ones the first behind the machine chosen last, as in round-robin.
- `two-choices`: `a = w % len(U)`, `b = (w >> 32) % (len(U) - 1)`, one more where `b >= a`; of U[a] and U[b] the one
  with fewer unanswered, U[a] where equal. Where one alone is up, that.
- `home`: (1) *Candidates* are the homes of the model that are up, in the order of the placement; where none is, or no
  placement was given, all of U. (2) `best` is the candidate with the least `expected`, the first of equal ones. Where
  that is at most `room[i]`, it gets the request. (3) Else, of the machines in U where the model lies, the one with
  the least `expected`, the lowest number of equal ones, gets it, if that is at most `room[i]`. (4) Else `best`.

"Chosen last" is the last machine that got a request from the router, by this rule, retries with it, trials not.

**Trials.** A machine that refuses a request for want of its model loads that where it pays. Other homes, which get no
request for it, would never come to have it. A machine *lacks* model i where i does not lie there, no trial of it is
unanswered there, and `load[m, i] + alone[m, i] > room[i]`. When a request is routed by `home`, one machine beside that
which gets it `ought` to have its model: the first other candidate that lacks it, if any does, so that all homes come to
have it one by one; where the candidates are not homes, `best`, unless that gets it. Right after the request was sent,
that machine is sent a trial if it lacks the model (still): one more request for i that runs to the last stage, due
`TRIAL` seconds from now. The k-th trial of a run (from 0) has the number `N + k`, N the number of requests. Trials are
no part of what is reported, of rates, of `late` and of slack; they die with their machine.

**Sending** at time t of a request that came at t0: the machine's scheduler hears `Arrived` at t with the deadline `t0 +
allowed - hop`, from left to right. A reply at time t ends the request at `t + hop`, and the router knows of it at once.

**Deaths.** A machine that dies loses all; what it had unanswered is sent again at once, in the order of the numbers. At
its return its scheduler is new, its memory empty. If another fault hits it while it is away, it is back at the later of
the two returns. A machine that was off, draining or starting comes back off.

**Ticks** are at `k * period`, k from 1, up to and at the time of the last request. At a tick: (1) who drains and has
nothing unanswered is off; (2) the demand is taken; (3) the autoscaler is asked, its number brought between 1 and how
many are not dead; where that is more than are up or starting, the lowest numbers of those off or draining come up (who
drained just stays, who was off starts, and comes up `startup` later, with a new scheduler and nothing in memory, at
once where that is 0); where it is less, the highest numbers of those that start are off again, then the highest of
those up drain; (4) the placer is asked, told who is up now; (5) the mark is made: the time, and how many are up,
start, or drain and have something unanswered. Before all else, at time 0, all machines are up, the placer is asked with
all rates 0, `late` 0 and `slack` 1, and a mark is made.

Demand: `rates` are requests that came since the last tick, by model, over the period, not those sent again. `late` is
the share of those that ended since then whose outcome is not `ANSWERED` or that ended behind `t0 + allowed`; 0 where
none did. For slack each machine has the mean of `slack / allowed` over its replies since then that tell one, summed in
the order of the replies; the lowest is told, 1 where no machine had any. A machine that dies forgets what it had.

What is counted: `loads` and `loaded` at each `Load`, `busy` at each `Run`, with all its seconds as it begins.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from latebind.domain.errors import ConfigError
from latebind.simulation.cluster.policies import ROUTERS
from latebind.simulation.cluster.tables import Tables

TRIAL = 600.0  # seconds
NOBODY = -1


@dataclass(frozen=True, slots=True)
class Choice:
    """The `machine` that gets a request (-1 if none is up) and the one that `ought` to load the model (-1: none)."""

    machine: int
    ought: int


class Sight:
    """What routers know of the machines. The simulation that uses it keeps it up to date."""

    def __init__(self, tables: Tables) -> None:
        machines, models = len(tables.kind_of), len(tables.room)
        self.up = list(range(machines))  # ascending
        self.is_up = [True] * machines
        self.unanswered = [0] * machines
        self.work = [0] * machines
        self.lies: list[set[int]] = [set() for _ in range(machines)]  # models, by machine
        self.holders: list[set[int]] = [set() for _ in range(models)]  # machines, by model
        self.homes: Sequence[Sequence[int]] | None = None
        self.tried: set[tuple[int, int]] = set()  # machine and model of unanswered trials
        self._workers: list[int] = tables.workers.tolist()
        self._each, self._alone, self._load = (_by_machine(table, tables) for table in _costs(tables))
        self.room: list[int] = tables.room.tolist()

    def expected(self, machine: int, model: int) -> int:
        """Return how many nanoseconds a request would take on a machine, its waiting time included."""
        ahead = self.work[machine] // self._workers[machine]
        if model not in self.lies[machine]:
            ahead = max(ahead, self._load[machine][model])
        return ahead + self._alone[machine][model]

    def lacks(self, machine: int, model: int) -> bool:
        """Tell whether a machine would never load a model for its requests alone, and has no trial of it under way."""
        if model in self.lies[machine] or (machine, model) in self.tried:
            return False
        return self._load[machine][model] + self._alone[machine][model] > self.room[model]

    def rises(self, machine: int) -> None:
        """Note that a machine is in service."""
        insort(self.up, machine)
        self.is_up[machine] = True

    def falls(self, machine: int) -> None:
        """Note that a machine is no longer in service."""
        self.up.remove(machine)
        self.is_up[machine] = False

    def sent(self, machine: int, model: int) -> None:
        """Count a request that was sent to a machine."""
        self.unanswered[machine] += 1
        self.work[machine] += self._each[machine][model]

    def replied(self, machine: int, model: int) -> None:
        """Count the reply to it."""
        self.unanswered[machine] -= 1
        self.work[machine] -= self._each[machine][model]

    def came(self, machine: int, models: Iterable[int]) -> None:
        """Note that models are completely in the memory of a machine."""
        for model in models:
            self.lies[machine].add(model)
            self.holders[model].add(machine)

    def went(self, machine: int, models: Iterable[int]) -> None:
        """Note that models are no longer completely in the memory of a machine."""
        for model in models:
            self.lies[machine].discard(model)
            self.holders[model].discard(machine)

    def emptied(self, machine: int) -> None:
        """Forget everything about a machine, except whether it is up."""
        self.went(machine, list(self.lies[machine]))
        self.unanswered[machine] = self.work[machine] = 0


class Router:
    """Chooses machines by one of the rules above. Raises `ConfigError` for a name that is not in `ROUTERS`."""

    def __init__(self, name: str, sight: Sight) -> None:
        rules: dict[str, Callable[[int, int], Choice]] = {
            "random": self._random,
            "round-robin": self._round_robin,
            "least-loaded": self._least_loaded,
            "two-choices": self._two_choices,
            "home": self._home,
        }
        if name not in rules:
            raise ConfigError(f"there is no router {name!r}: take one of {', '.join(ROUTERS)}")
        self._rule = rules[name]
        self._sight = sight
        self._last = NOBODY

    def choose(self, model: int, word: int) -> Choice:
        """Return the machine that gets a request. `word` has the random bits that were drawn for the request."""
        if not self._sight.up:
            return Choice(NOBODY, NOBODY)
        choice = self._rule(model, word)
        self._last = choice.machine
        return choice

    def _random(self, _model: int, word: int) -> Choice:
        up = self._sight.up
        return _the(up[word % len(up)])

    def _round_robin(self, _model: int, _word: int) -> Choice:
        return _the(next(iter(self._behind_last())))

    def _least_loaded(self, _model: int, _word: int) -> Choice:
        return _the(min(self._behind_last(), key=self._sight.unanswered.__getitem__))

    def _two_choices(self, _model: int, word: int) -> Choice:
        up, unanswered = self._sight.up, self._sight.unanswered
        if len(up) == 1:
            return _the(up[0])
        first, second = word % len(up), (word >> 32) % (len(up) - 1)
        second += second >= first
        return _the(min(up[first], up[second], key=unanswered.__getitem__))

    def _home(self, model: int, _word: int) -> Choice:
        sight = self._sight

        def expected(machine: int) -> int:
            return sight.expected(machine, model)

        homes = [] if sight.homes is None else [machine for machine in sight.homes[model] if sight.is_up[machine]]
        best = min(homes or sight.up, key=expected)
        others = sorted(machine for machine in sight.holders[model] if sight.is_up[machine])
        other = best if expected(best) <= sight.room[model] else min(others, key=expected, default=NOBODY)
        chosen = other if other != NOBODY and expected(other) <= sight.room[model] else best
        lack = (home for home in homes if home != chosen and sight.lacks(home, model))
        return Choice(chosen, next(lack, NOBODY) if homes or chosen == best else best)

    def _behind_last(self) -> list[int]:
        """Return the machines that are up, in a circle that starts after the machine chosen last."""
        up = self._sight.up
        return [m for m in up if m > self._last] + [m for m in up if m <= self._last]


def _the(machine: int) -> Choice:
    return Choice(machine, NOBODY)


def _costs(tables: Tables) -> tuple[list[list[int]], ...]:
    return tables.each.tolist(), tables.alone.tolist(), tables.load.tolist()


def _by_machine(table: list[list[int]], tables: Tables) -> list[list[int]]:
    """Return the row of each machine's kind."""
    return [table[kind] for kind in tables.kind_of.tolist()]
