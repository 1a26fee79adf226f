"""What runs of a model cost: its profile, what launches have shown since, and who leaves where. The only cost model.

All decisions by cost use it: batch sizes, slack, admission, residency, planners of queries. Figures that take longer to
derive are cached until something has moved noticeably. Pure.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from itertools import accumulate, pairwise
from math import ceil, inf
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar, cast

from latebind.domain.costs import TYPICAL_STEPS, ModelCosts, length_class
from latebind.domain.model import ModelSpec, StageKind

# What was tuned, and its effect where that was measured.
COVERAGE = 0.9  # share of answers in training data that are no longer than assumed (LazyBatching, section IV-C)
NEARLY = 1.02  # times the least seconds per request counts as equally good
LATEST_LAUNCH = 1 / 32  # weight of the latest launch in averages; of the first launches 1 / their number
LONGEST = 3.0  # times the predicted seconds; a longer launch was held up by others on the machine and is cut to this
DOUBT = 0.1  # share of the mean by which launches must differ in length before factor and fixed cost are told apart
LEAST_FACTOR = 0.1  # the lowest that is accepted
SLOWER, DEARER = 0.02, 0.1  # relative changes of factor and fixed cost at which figures are derived again
# Learning who leaves where gives 9 % more answers in time (3,153 instead of 2,893 of 4,000, overloaded, with an exit
# that no request takes any more), and changes nothing where hit rates are as profiled.
LATEST_EXIT = 1 / 200  # weight of the latest request in the share that leaves at an exit; 1/50 moves by chance alone
MOVED = 0.1  # change of such a share at which figures are derived again; 0.05 makes events cost 40 % more
RARE = 0.005  # share below which no request is expected to leave at an exit
ROUNDING = 1e-6  # seconds
BATCH_BITS = 20  # of a batch size

Method = TypeVar("Method", bound=Callable[..., Any])


class Pace:
    """How long launches take compared with their profile: `factor` times as long and `launch` seconds more.

    A profile is taken in a loop, at another time. On a shared machine everything is slower or faster by a factor. Each
    launch also has a fixed cost whatever its batch: the core was idle, caches are cold, events and replies. Both form a
    line, fitted online to the launches observed; in a simulation launches take as long as profiled. `least` times the
    factor is the lowest fixed cost that is accepted: below 0, because the profile may have been taken at a slower
    moment, and at most half of the shortest launch.
    """

    def __init__(self, least: float) -> None:
        self.factor = 1.0
        self.launch = 0.0
        self.changes = 0  # counts changes that are large enough to derive figures again
        self._then = 1.0, 0.0  # factor and launch at the last such change
        self._least = least
        self._known = False  # whether any launch has differed from the profile
        self.launches = 1  # the observed launches that count, the profile counting as one
        self._expected = self._seen = 0.0  # average seconds by the profile, and as observed
        self._variance = self._covariance = 0.0

    def level(self) -> float:
        """Return the average seconds of launches, over what they would take without the fixed cost."""
        return self._seen / (self.factor * self._expected) if self._expected else 1.0

    def observe(self, expected: float, seconds: float) -> None:
        """Note that a launch took `seconds`, where the profile says `expected`."""
        if not self._known:
            if abs(seconds - expected) <= ROUNDING:
                return
            self._known = True
            self._expected = self._seen = expected
        self.launches += 1
        latest = 1.0 / self.launches
        if latest <= LATEST_LAUNCH:
            latest, seconds = LATEST_LAUNCH, min(seconds, LONGEST * (self.factor * expected + self.launch))
        apart, other = expected - self._expected, seconds - self._seen
        self._expected += latest * apart
        self._seen += latest * other
        self._variance = (1.0 - latest) * (self._variance + latest * apart * apart)
        self._covariance = (1.0 - latest) * (self._covariance + latest * apart * other)
        self._fit()

    def doubt(self) -> None:
        """Assume the lowest factor until the next launch, which then counts alone.

        If an estimate is too high for any request to be accepted, no launch corrects it. It may come from a time when
        the machine was crowded, and so may the profile.
        """
        self.changes += 1
        self._known, self.launches = True, 0
        self.factor, self.launch = self._then = LEAST_FACTOR, 0.0

    def _fit(self) -> None:
        factor, expected, (then, cost) = self.factor, self._expected, self._then
        doubt = DOUBT * DOUBT * expected * expected
        if doubt:
            factor = max(LEAST_FACTOR, (self._covariance + doubt) / (self._variance + doubt))
        launch = self._seen - factor * expected
        if launch < factor * self._least:  # the profile was taken at a slower moment, so the factor has to be lower
            factor = max(LEAST_FACTOR, self._seen / max(0.5 * expected, expected + self._least))
            launch = factor * self._least
        self.factor, self.launch = factor, launch
        if abs(factor - then) > SLOWER * then or abs(launch - cost) > DEARER * abs(cost):
            self.changes += 1
            self._then = factor, launch


class Answered(NamedTuple):
    """Requests per second by batch size, the size that answers the most and its rate.

    `enough` is the smallest size that answers nearly as many per second.
    """

    rates: list[tuple[int, float]]
    quickest: int
    most: float
    enough: int


class Shares(NamedTuple):
    """A worker's seconds per request until a member may leave, by batch size.

    `by_size` lists the size, the cost, and the cost above the lowest one of all sizes that a worker takes. `enough` is
    the smallest listed size whose cost is nearly the lowest listed. `answered` is the highest number of requests per
    second that a worker answers, where each stage runs the batch size that suits it best.
    """

    by_size: list[tuple[int, float, float]]
    enough: int
    answered: float


def derived(method: Method) -> Method:
    """Cache the results of a method, by its arguments, until something has moved noticeably."""
    name = method.__name__

    @wraps(method)
    def kept(self: "Estimate", *given: Any) -> Any:
        known, key = self.known(), (name, *given)
        found = known.get(key)
        if found is None:
            found = known[key] = method(self, *given)
        return found

    return cast("Method", kept)


class Estimate:
    """Seconds of work of one model, and how many of its requests leave where.

    Corrections (`pace`) apply to all figures. Decoder steps have their own (`decoding`), because they follow each
    other, while earlier stages find their weights cold. `outputs` is the assumed length of an answer in steps,
    `lengths` are those of the answers in training data.

    Hit rates are shares of all requests. While requests run, the shares observed to leave at each exit replace them:
    inputs may differ from those profiled, adaptation changes the caches, or a cache is not in memory. `exits` says
    whether any leave early, as built. With an operating curve, figures are for the level that was set last.
    """

    def __init__(self, spec: ModelSpec, costs: ModelCosts) -> None:
        self._spec = spec
        self._costs = costs
        self.lengths = lengths = costs.output_steps
        self.outputs = _covering(lengths)
        self._covered = [_covering(lengths[bisect_right(lengths, n) :]) for n in range(lengths[-1])]
        self.fewest_outputs = lengths[0]
        self.mean_outputs = round(sum(lengths) / len(lengths))
        kinds = [spec.kind(i) for i in range(spec.stages)]
        self.decoder = kinds.index(StageKind.DECODER) if StageKind.DECODER in kinds else None
        self.pace = self.decoding = Pace(least=-0.5 * min(costs.step(i, 1) for i in range(spec.stages)))
        if self.decoder:
            self.pace = Pace(least=-0.5 * min(costs.step(i, 1) for i in range(self.decoder)))
        self._paces = [self.decoding if kind is StageKind.DECODER else self.pace for kind in kinds]
        self.varies = any(len(grid.lengths) > 1 for grid in costs.stages)  # whether the length of a batch counts
        self.by_length = self.varies and not spec.kinds  # steps of a sequence are few, and counted one by one
        # Of an input, before any has come.
        self.typical = TYPICAL_STEPS if spec.kinds else length_class(costs.typical)
        self._tables: dict[int, _Table] = {}  # by length class and batch size
        self._once, self._encoders, self._decoders = (
            _sums([float(one is kind) for one in kinds]) for kind in StageKind
        )
        rates = [level.hit_rates for level in costs.levels] or [costs.hit_rates]
        self._levels = [_Leaving(spec, each) for each in rates]
        self.exits = any(level.exits for level in self._levels)
        self._moves = 0  # counts changes of the shares that leave that are large enough to derive figures again
        self._at = self._levels[costs.target]
        self._known: list[dict[Any, Any]] = [{} for _ in self._levels]
        self._known_at = 0
        self._level = costs.target

    # What is learned ------------------------------------------------------------------------------------------------

    @property
    def changes(self) -> int:
        """Counts changes that are large enough to derive figures again."""
        return self.pace.changes + self.decoding.changes + self._moves

    @property
    def level(self) -> int:
        """The level of the operating curve that figures are for."""
        return self._level

    def at_level(self, level: int) -> None:
        """Return figures for this level from now on."""
        self._level, self._at = level, self._levels[level]

    @property
    def alive(self) -> list[float]:
        """The share of requests that runs each stage, with a 0 behind the last."""
        return self._at.alive

    @property
    def first_exit(self) -> int:
        """The first stage behind which some leave, or the last."""
        return self._at.ends[0]

    def known(self) -> dict[Any, Any]:
        """Return the figures that are derived already; none if something has moved since."""
        changes = self.pace.changes + self.decoding.changes + self._moves
        if changes != self._known_at:
            self._known, self._known_at = [{} for _ in self._levels], changes
        return self._known[self._level]

    @property
    def doubted(self) -> bool:
        """Whether it was doubted and no launch has shown more since."""
        return 0 in {self.pace.launches, self.decoding.launches}

    def doubt(self) -> None:
        """Assume the least until launches show more."""
        for pace in {self.pace, self.decoding}:
            pace.doubt()

    def observe(self, seconds: float, batch: int, stage: int, inputs: int) -> None:
        """Note the seconds of one step of a stage, from its launch until its end was reported."""
        self._paces[stage].observe(self._table(batch, inputs).unit[stage], seconds)

    def observe_exits(self, stage: int, reached: int, left: int, level: int = 0) -> None:
        """Note that `left` of the requests that ran `stage` had their answer from the learned cache behind it.

        They run at this `level`. If lookups run aside, `reached` are reported first, with none that left, and those
        that left later, with none reached.
        """
        self._moves += self._levels[level].observe(stage, reached, left)

    # Seconds of runs that nobody leaves early (LazyBatching, algorithm 1) ---------------------------------------------

    def outputs_after(self, steps: int) -> int:
        """Return the assumed length of an answer that has `steps` steps already: `outputs` of the longer answers."""
        return self._covered[steps] if steps < len(self._covered) else steps + 1

    def rest(self, batch: int, stage: int, step: int, inputs: int, outputs: int | None = None) -> float:
        """Return the seconds from before step `step` of `stage` to the end, in a batch of this size.

        `inputs` and `outputs` are the steps of the longest input and answer in it; `outputs` is assumed if left out.
        """
        table, pace, of_steps = self._table(batch, inputs), self.pace, self.decoding
        if not self._spec.kinds:
            return pace.factor * table.once[stage] + pace.launch * self._once[stage]
        expected = max(1, self.outputs if outputs is None else outputs)
        seconds, decoding = table.once[stage] + table.encoder[stage] * inputs, table.decoder[stage] * expected
        launches, steps = self._once[stage] + self._encoders[stage] * inputs, self._decoders[stage] * expected
        if step and stage < self._spec.stages:
            if self._spec.kind(stage) is StageKind.ENCODER:
                ahead = max(0, min(step, inputs - 1))
                seconds, launches = seconds - ahead * table.unit[stage], launches - ahead
            else:
                ahead = max(0, min(step, expected - 1))
                decoding, steps = decoding - ahead * table.unit[stage], steps - ahead
        return pace.factor * seconds + pace.launch * launches + of_steps.factor * decoding + of_steps.launch * steps

    def whole(self, batch: int, inputs: int = 1, outputs: int | None = None) -> float:
        """Return the seconds of the whole model."""
        return self.rest(batch, 0, 0, inputs, outputs)

    @derived
    def least(self, inputs: int, counts_exits: bool) -> float:
        """Return the least seconds that a request takes: alone, with the shortest answer of all.

        That is to the end of the network, or to its first exit if the caller counts on exits (`counts_exits`).
        """
        return self.until_exit(0, 1, inputs) if counts_exits else self.whole(1, inputs, self.fewest_outputs)

    def between(self, batch: int, stage: int, step: int, inputs: int) -> float:
        """Return the seconds from the start to before step `step` of `stage`: what it takes to catch up."""
        table = self._table(batch, inputs)
        seconds = table.once[0] - table.once[stage] + (table.encoder[0] - table.encoder[stage]) * inputs
        steps = step if step and self._spec.kind(stage) is StageKind.ENCODER else 0
        seconds += steps * table.unit[stage]
        launches = self._once[0] - self._once[stage] + (self._encoders[0] - self._encoders[stage]) * inputs + steps
        return self.pace.factor * seconds + self.pace.launch * launches

    def unit(self, batch: int, stage: int, inputs: int = 1) -> float:
        """Return the seconds of one step of a stage."""
        pace = self._paces[stage]
        return pace.factor * self._table(batch, inputs).unit[stage] + pace.launch

    # Batch sizes beside each other ----------------------------------------------------------------------------------

    @derived
    def worth_batching(self, most: int) -> int:
        """Return the smallest batch, of at most `most`, that takes nearly the least seconds per request.

        It is the model-allowed maximum batch size of LazyBatching (section III-A): larger batches only make requests
        wait for each other. A decoder takes `most`, because finished requests leave and make room for others.
        """
        if self.decoder is not None:
            return most
        each = [self._beside(batch) / batch for batch in range(1, most + 1)]
        return 1 + next(i for i, seconds in enumerate(each) if seconds <= NEARLY * min(each))

    @derived
    def answered(self, most: int) -> Answered:
        """Return the requests per second that are answered in batches of 1, 2, 4, ... and `most`."""
        rates = [(batch, batch / self._beside(batch)) for batch in sizes(most)]
        quickest, highest = max(rates, key=itemgetter(1))
        return Answered(rates, quickest, highest, next(batch for batch, rate in rates if NEARLY * rate >= highest))

    @derived
    def tokens(self, most: int) -> list[float]:
        """Return the tokens a second that steps of 1, 2, ... and `most` requests write, for models with a decoder."""
        assert self.decoder is not None, "only decoders write tokens"
        return [batch / self.unit(batch, self.decoder) for batch in range(1, most + 1)]

    def _beside(self, batch: int) -> float:
        """Return the seconds of the whole model in a batch of this size, for comparison with other sizes.

        A fixed cost below 0 is ignored here: the profile was taken at a slower moment, which holds for all sizes.
        Small batches, which have more launches per request, would seem faster, and nothing would correct that.
        """
        inputs, pace = self.typical, self.pace
        whole = self.whole(batch, inputs, self.mean_outputs)
        if pace.launch >= 0.0:
            return whole
        return pace.level() * (whole - pace.launch * (self._once[0] + self._encoders[0] * inputs))

    # Where some leave early: of models whose stages all run once ------------------------------------------------------

    @derived
    def prospects(self, stage: int, batch: int, inputs: int = 1) -> list[tuple[float, float]]:
        """Return, for each exit of a batch that goes on from before `stage`, the answers expected by then, and when.

        The last exit is the end. Later stages run with the number of members that are left on average.
        """
        found: list[tuple[float, float]] = []
        seconds, alive, ends = 0.0, self._at.alive, self._at.ends
        for i in range(stage, self._spec.stages):
            seconds += self.unit(max(1, round(batch * alive[i] / alive[stage])), i, inputs)
            if i in ends:
                found.append((batch * (1.0 - alive[i + 1] / alive[stage]), seconds))
        return found

    def until_exit(self, stage: int, batch: int, inputs: int = 1) -> float:
        """Return the seconds of a batch that goes on from before `stage` until a member may leave."""
        return self.prospects(stage, batch, inputs)[0][1]

    def exits_at(self, stage: int) -> "Exits":
        """Return what `until_exit` returns at a stage, by batch size and length, cached until something has moved."""
        known = self.known()
        found: Exits | None = known.get(stage)
        if found is None:
            found = known[stage] = Exits(self, stage)
        return found

    @derived
    def best_rate(self, stage: int, batch: int, inputs: int = 1) -> float:
        """Return the answers per second of a batch that goes on to the exit at which that rate is highest.

        That rate is the index of Gittins (1979): running the job with the greatest index first minimises the sum of
        waiting times where jobs end at random and switching between them costs nothing.
        """
        return max([answers / seconds if seconds else inf for answers, seconds in self.prospects(stage, batch, inputs)])

    @derived
    def ends(self, inputs: int = 1) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the seconds after which a request alone may leave, ascending, and the share that leaves then."""
        answers, seconds = zip(*self.prospects(0, 1, inputs), strict=True)
        return seconds, tuple([after - before for before, after in pairwise((0.0, *answers))])

    def works(self, most: int, within: float) -> "Works":
        """Return what `work` returns by length, cached until something has moved."""
        known, key = self.known(), (most, within)
        found: Works | None = known.get(key)
        if found is None:
            found = known[key] = Works(self, most, within)
        return found

    @derived
    def work(self, most: int, inputs: int = 1, within: float = inf, stages: int = 0) -> float:
        """Return the average seconds of a worker that a request takes, where few requests reach the later stages.

        Each stage runs in its best batch size up to `most`, because requests that rest at a stage are joined by others.
        Batches that do not end `within` so many seconds do not count. Only the first `stages` count; 0: all.
        """
        counted = range(stages or self._spec.stages)
        batches = [size for size in sizes(most) if size == 1 or self.whole(size, inputs) <= within]
        return sum([self.alive[i] * min([self.unit(size, i, inputs) / size for size in batches]) for i in counted])

    @derived
    def shares(self, stage: int, limit: int, most: int) -> Shares:
        """Return the cost of requests at a stage in batches of 1, 2, 4, ... and `limit`; a worker takes `most`."""
        costs = {size: self.until_exit(stage, size) / size for size in {*sizes(limit), *sizes(most)}}
        least = min(costs[size] for size in sizes(most))
        enough = NEARLY * min(costs[size] for size in sizes(limit))
        return Shares(
            [(size, costs[size], costs[size] - least) for size in sizes(limit)],
            next(size for size in sizes(limit) if costs[size] <= enough),
            1.0 / work if (work := self.work(most)) > 0.0 else inf,
        )

    def _table(self, batch: int, length: int) -> "_Table":
        if not self.varies:
            length = 1
        elif self.by_length:
            length = length_class(length)
        key = length << BATCH_BITS | batch
        found = self._tables.get(key)
        if found is None:
            found = self._tables[key] = _Table(self._spec, self._costs, batch, length)
        return found


class _Leaving:
    """Who leaves where at one level of the operating curve: as profiled, and then as observed.

    `alive` is the share of requests that runs each stage, with a 0 behind the last, and `ends` are the stages behind
    which some leave. `exits` says whether any leave early, as built.
    """

    def __init__(self, spec: ModelSpec, hit_rates: Mapping[int, float]) -> None:
        self._stages = spec.stages
        alive = shares_alive(spec.stages, hit_rates)
        self._leaving = {i: min(1.0, hit_rates.get(i, 0.0) / alive[i]) for i in spec.lookups}
        self._then = dict(self._leaving)  # when figures were last derived
        self.exits = any(share > 0.0 for share in self._leaving.values())
        self.alive: list[float] = []
        self.ends: list[int] = []
        self._derive()

    def observe(self, stage: int, reached: int, left: int) -> bool:
        """Note who left; return whether the share has moved so far that figures are to be derived again."""
        share = self._leaving[stage]
        share = self._leaving[stage] = min(1.0, max(0.0, share + LATEST_EXIT * (left - share * reached)))
        then = self._then[stage]
        if abs(share - then) <= MOVED and (share < RARE) == (then < RARE):
            return False
        self._then = dict(self._leaving)
        self._derive()
        return True

    def _derive(self) -> None:
        stages, leaving = range(self._stages), self._then
        alive = [1.0]
        for i in stages[:-1]:
            alive.append(max(1e-6, alive[i] * (1.0 - leaving.get(i, 0.0))))
        self.alive = [*alive, 0.0]
        self.ends = [i for i in stages if leaving.get(i, 0.0) >= RARE or i + 1 == self._stages]


class Exits(dict[tuple[int, int], float]):
    """The seconds until a member of a batch that goes on from before `stage` may leave, by batch size and length."""

    def __init__(self, estimate: Estimate, stage: int) -> None:
        self._estimate = estimate
        self._stage = stage

    def __missing__(self, key: tuple[int, int]) -> float:
        seconds = self[key] = self._estimate.until_exit(self._stage, *key)
        return seconds


class Works(dict[int, float]):
    """The average seconds of a request, by length, where batches are of `most` requests and end `within` seconds."""

    def __init__(self, estimate: Estimate, most: int, within: float) -> None:
        self._estimate = estimate
        self._most = most
        self._within = within

    def __missing__(self, length: int) -> float:
        seconds = self[length] = self._estimate.work(self._most, length, self._within)
        return seconds


class _Table:
    """For one batch: the profile's seconds of one step of each stage, and their sums to the end, by stage kind."""

    def __init__(self, spec: ModelSpec, costs: ModelCosts, batch: int, length: int) -> None:
        stages = range(spec.stages)
        self.unit = [costs.step(i, batch, length) for i in stages]
        self.once, self.encoder, self.decoder = (
            _sums([self.unit[i] if spec.kind(i) is kind else 0.0 for i in stages]) for kind in StageKind
        )


def sizes(most: int) -> list[int]:
    """Return the batch sizes that are compared: 1, 2, 4, ... and the largest."""
    return [*(1 << exponent for exponent in range((most - 1).bit_length())), most]


def shares_alive(stages: int, hit_rates: Mapping[int, float]) -> list[float]:
    """Return the share of requests that run each stage by these hit rates, and a 0 behind the last."""
    shares = [1.0]
    for stage in range(stages - 1):
        shares.append(max(1e-6, shares[-1] - hit_rates.get(stage, 0.0)))
    return [*shares, 0.0]


def _covering(lengths: Sequence[int]) -> int:
    """Return the length that the share `COVERAGE` of `lengths`, ascending, does not exceed."""
    return lengths[max(0, ceil(COVERAGE * len(lengths)) - 1)]


def _sums(seconds: list[float]) -> list[float]:
    """Return the sum from each place to the end, with a 0 behind the last."""
    return [0.0, *accumulate(reversed(seconds))][::-1]
