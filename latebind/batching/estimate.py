"""How long requests take from where they are to their end: LazyBatching's algorithm 1, for every batch size."""

from dataclasses import dataclass
from itertools import accumulate
from math import ceil

from latebind.batching.exits import Exits, sizes
from latebind.batching.pace import CHANGED, Pace
from latebind.domain.costs import TYPICAL_STEPS, ModelCosts
from latebind.domain.model import ModelSpec, StageKind

NEARLY = 1.02  # times the least seconds a request


class Estimate:
    """Seconds of work of one model, from its profile. `outputs` is how long an answer is taken to be, in steps.

    It covers the share `coverage` of the answers in training data (section IV-C). How launches differ from the profile
    where they are served is learned from those seen (`observe`) and counts in all figures.
    """

    def __init__(self, spec: ModelSpec, costs: ModelCosts, *, coverage: float = 0.9) -> None:
        self._spec = spec
        self._costs = costs
        lengths = costs.output_steps
        self.outputs = lengths[max(0, ceil(coverage * len(lengths)) - 1)]
        self.fewest_outputs = lengths[0]
        self.mean_outputs = round(sum(lengths) / len(lengths))
        self.decoder = next((i for i in range(spec.stages) if spec.kind(i) is StageKind.DECODER), None)
        self.pace = Pace(least=-0.5 * min(costs.step(i, 1) for i in range(spec.stages)))
        self.exits = Exits(spec, costs, self.pace)
        self._tables: dict[int, _Table] = {}
        self._worth: dict[int, int] = {}
        self._worth_at = 0.0  # what a launch cost when that was worked out
        self._answered: dict[int, Answered] = {}
        self._answered_at = 0  # how often the pace had changed, likewise
        self._once, self._encoders, self._decoders = (
            _sums([float(spec.kind(i) is kind) for i in range(spec.stages)]) for kind in StageKind
        )

    @property
    def widens(self) -> bool:
        """Whether one request may have the cores of all workers."""
        return bool(self._costs.wide)

    def lone(self, stage: int, inputs: int, *, wide: bool) -> float:
        """Return the seconds of one step of a stage for one request, with its worker's cores or those of all."""
        return self.pace.factor * self._costs.step(stage, 1, inputs, wide=wide) + self.pace.launch

    def observe_wide(self, seconds: float, stage: int, inputs: int) -> None:
        """Hear how long one step of a stage has taken one request with the cores of all workers."""
        self.pace.observe(self._costs.step(stage, 1, inputs, wide=True), seconds)

    def observe(self, seconds: float, batch: int, stage: int, inputs: int) -> None:
        """Hear how long one step of a stage has taken, from its launch to the news of its end."""
        table = self._table(batch)
        expected = table.unit[stage]
        if inputs > 1:
            expected += (table.slope[stage] - table.slope[stage + 1]) * (inputs - 1)
        self.pace.observe(expected, seconds)

    def rest(self, batch: int, stage: int, step: int, inputs: int, outputs: int | None = None) -> float:
        """Return the seconds from before step `step` of `stage` to the end, in a batch of this size.

        `outputs` are the steps of the longest answer in it, as expected if left out.
        """
        table = self._table(batch)
        expected = max(1, self.outputs if outputs is None else outputs)
        seconds = table.once[stage] + table.encoder[stage] * inputs + table.decoder[stage] * expected
        if inputs > 1:
            seconds += table.slope[stage] * (inputs - 1)
        ahead = 0
        if step and stage < self._spec.stages:
            kind = self._spec.kind(stage)
            ahead = max(0, min(step, (inputs if kind is StageKind.ENCODER else expected) - 1))
            seconds -= ahead * table.unit[stage]
        if not self.pace.known:
            return seconds
        launches = self._once[stage] + self._encoders[stage] * inputs + self._decoders[stage] * expected - ahead
        return self.pace.factor * seconds + self.pace.launch * launches

    def whole(self, batch: int, inputs: int = 1, outputs: int | None = None) -> float:
        """Return the seconds of the whole model."""
        return self.rest(batch, 0, 0, inputs, outputs)

    def between(self, batch: int, stage: int, step: int, inputs: int) -> float:
        """Return the seconds from the start to before step `step` of `stage`: what it takes to catch up."""
        table = self._table(batch)
        seconds = table.once[0] - table.once[stage] + (table.encoder[0] - table.encoder[stage]) * inputs
        if inputs > 1:
            seconds += (table.slope[0] - table.slope[stage]) * (inputs - 1)
        steps = step if step and self._spec.kind(stage) is StageKind.ENCODER else 0
        seconds += steps * table.unit[stage]
        if not self.pace.known:
            return seconds
        launches = self._once[0] - self._once[stage] + (self._encoders[0] - self._encoders[stage]) * inputs + steps
        return self.pace.factor * seconds + self.pace.launch * launches

    def unit(self, batch: int, stage: int) -> float:
        """Return the seconds of one step of a stage."""
        return self.pace.factor * self._table(batch).unit[stage] + self.pace.launch

    def worth_batching(self, most: int) -> int:
        """Return the smallest batch, of at most `most`, that is nearly as quick for each request in it as any.

        Larger ones only keep requests waiting for each other: the largest batch that a model should be allowed, set by
        hand elsewhere (LazyBatching, section III-A). A decoder takes all: who leaves it makes place for others.
        """
        if self.decoder is not None:
            return most
        launch = self.pace.launch / self.pace.factor
        if abs(launch - self._worth_at) > CHANGED * abs(self._worth_at):
            self._worth.clear()
            self._worth_at = launch
        found = self._worth.get(most)
        if found is None:
            inputs = TYPICAL_STEPS if self._spec.kinds else 1
            each = [self.whole(batch, inputs, self.mean_outputs) / batch for batch in range(1, most + 1)]
            enough = NEARLY * min(each)
            found = self._worth[most] = 1 + next(i for i, seconds in enumerate(each) if seconds <= enough)
        return found

    def answered(self, most: int) -> "Answered":
        """Return how many requests a second are answered in batches of 1, 2, 4, ... and `most`."""
        if self.pace.changes != self._answered_at:
            self._answered.clear()
            self._answered_at = self.pace.changes
        found = self._answered.get(most)
        if found is None:
            inputs = TYPICAL_STEPS if self._spec.kinds else 1
            rates = [(batch, batch / self.whole(batch, inputs, self.mean_outputs)) for batch in sizes(most)]
            found = self._answered[most] = Answered(rates, max(rates, key=lambda one: one[1])[0])
        return found

    def _table(self, batch: int) -> "_Table":
        found = self._tables.get(batch)
        if found is None:
            found = self._tables[batch] = _Table(self._spec, self._costs, batch)
        return found


@dataclass(frozen=True, slots=True)
class Answered:
    """Requests a second by batch size, and the batch that answers the most."""

    rates: list[tuple[int, float]]
    quickest: int


class _Table:
    """For one batch size: seconds of one step of each stage, and sums of those from each stage to the end, by kind."""

    def __init__(self, spec: ModelSpec, costs: ModelCosts, batch: int) -> None:
        stages = range(spec.stages)
        self.unit = [costs.step(i, batch) for i in stages]
        self.once, self.encoder, self.decoder = (
            _sums([self.unit[i] if spec.kind(i) is kind else 0.0 for i in stages]) for kind in StageKind
        )
        self.slope = _sums([costs.slopes[i].at(batch) if i in costs.slopes else 0.0 for i in stages])


def _sums(seconds: list[float]) -> list[float]:
    """Return the sum from each place to the end, with a 0 behind the last."""
    return [0.0, *accumulate(reversed(seconds))][::-1]
