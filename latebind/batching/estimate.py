"""How long requests take from where they are to their end (LazyBatching, algorithm 1), for every batch size."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from operator import itemgetter

from latebind.batching.exits import Exits, sizes
from latebind.batching.pace import CHANGED, Pace, PaceBySize
from latebind.domain.costs import TYPICAL_STEPS, ModelCosts
from latebind.domain.model import ModelSpec, StageKind

COVERAGE = 0.9  # of the answers in training data are no longer than assumed (LazyBatching, section IV-C)
NEARLY = 1.02  # times the least seconds per request counts as equally good


class Estimate:
    """Seconds of work of one model, from its profile, corrected by the launches that are observed.

    `outputs` is the assumed length of an answer in steps, `lengths` are those of the answers in training data.
    Corrections (`pace`) apply to all figures. Decoder steps have their own (`decoding`), because they follow each
    other, while earlier stages find their weights cold. Where sizes are compared, each size has what
    its launches showed besides (`by_size`), for models without a decoder.
    """

    def __init__(self, spec: ModelSpec, costs: ModelCosts) -> None:
        self._spec = spec
        self._costs = costs
        self.lengths = lengths = costs.output_steps
        self.outputs = _covering(lengths)
        self._covered = [_covering(lengths[bisect_right(lengths, n) :]) for n in range(lengths[-1])]
        self.fewest_outputs = lengths[0]
        self.mean_outputs = round(sum(lengths) / len(lengths))
        self.decoder = next((i for i in range(spec.stages) if spec.kind(i) is StageKind.DECODER), None)
        self.pace = self.decoding = Pace(least=-0.5 * min(costs.step(i, 1) for i in range(spec.stages)))
        if self.decoder:
            self.pace = Pace(least=-0.5 * min(costs.step(i, 1) for i in range(self.decoder)))
        kinds = [spec.kind(i) for i in range(spec.stages)]
        self._paces = [self.decoding if kind is StageKind.DECODER else self.pace for kind in kinds]
        self.by_size = PaceBySize({batch for curve in costs.stages for batch in curve.batches})
        self.exits = Exits(spec, costs, self.pace)
        self._tables: dict[int, _Table] = {}
        self._worth: dict[int, int] = {}
        self._worth_at = 0.0, 0  # the fixed cost of a launch, and `by_size.changes`, when `_worth` was last cleared
        self._answered: dict[int, Answered] = {}
        self._answered_at = 0  # the changes of all paces when `_answered` was last cleared
        self._tokens: list[float] = []
        self._tokens_at = 0  # the changes of `decoding` when `_tokens` was last made
        self._once, self._encoders, self._decoders = (
            _sums([float(spec.kind(i) is kind) for i in range(spec.stages)]) for kind in StageKind
        )

    @property
    def observed(self) -> int:
        """How many launches and changes of exits have been observed; it changes whenever the figures may have."""
        return self.pace.observed + self.decoding.observed + self.exits.moves

    @property
    def doubted(self) -> bool:
        """Whether it was doubted and no launch has shown more since."""
        return self.pace.doubted or self.decoding.doubted

    def doubt(self) -> None:
        """Believe the least until launches show more."""
        self.decoding.doubt()
        if self.pace is not self.decoding:
            self.pace.doubt()

    def outputs_after(self, steps: int) -> int:
        """Return the assumed length of an answer that has `steps` steps already: `outputs` of the longer answers."""
        return self._covered[steps] if steps < len(self._covered) else steps + 1

    def observe(self, seconds: float, batch: int, stage: int, inputs: int) -> None:
        """Note the seconds of one step of a stage, from its launch until its end was reported."""
        table = self._tables.get(batch) or self._table(batch)
        expected = table.unit[stage]
        if inputs > 1:
            expected += (table.slope[stage] - table.slope[stage + 1]) * (inputs - 1)
        pace = self._paces[stage]
        line = pace.factor * expected + pace.launch
        if pace.known and self.decoder is None and line > 0.0:  # an empty stage may be taken to cost nothing
            self.by_size.observe(batch, seconds / line)
        pace.observe(expected, seconds)

    def rest(self, batch: int, stage: int, step: int, inputs: int, outputs: int | None = None) -> float:
        """Return the seconds from before step `step` of `stage` to the end, in a batch of this size.

        `inputs` and `outputs` are the steps of the longest input and answer in it; `outputs` is assumed if left out.
        """
        table = self._table(batch)
        expected = max(1, self.outputs if outputs is None else outputs)
        seconds, decoding = table.once[stage] + table.encoder[stage] * inputs, table.decoder[stage] * expected
        if inputs > 1:
            seconds += table.slope[stage] * (inputs - 1)
        launches, steps = self._once[stage] + self._encoders[stage] * inputs, self._decoders[stage] * expected
        if step and stage < self._spec.stages:
            if self._spec.kind(stage) is StageKind.ENCODER:
                ahead = max(0, min(step, inputs - 1))
                seconds, launches = seconds - ahead * table.unit[stage], launches - ahead
            else:
                ahead = max(0, min(step, expected - 1))
                decoding, steps = decoding - ahead * table.unit[stage], steps - ahead
        return self._paced(seconds, launches) + self.decoding.factor * decoding + self.decoding.launch * steps

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
        launches = self._once[0] - self._once[stage] + (self._encoders[0] - self._encoders[stage]) * inputs + steps
        return self._paced(seconds, launches)

    def unit(self, batch: int, stage: int) -> float:
        """Return the seconds of one step of a stage."""
        pace = self._paces[stage]
        return pace.factor * self._table(batch).unit[stage] + pace.launch

    def worth_batching(self, most: int) -> int:
        """Return the smallest batch, of at most `most`, that takes nearly the least seconds per request.

        Larger batches only make requests wait for each other. This is the model-allowed maximum batch size, which is
        set by hand elsewhere (LazyBatching, section III-A). A decoder takes `most`, because finished requests leave and
        make room for others.
        """
        if self.decoder is not None:
            return most
        launch, (then, changes) = self.pace.launch / self.pace.factor, self._worth_at
        if abs(launch - then) > CHANGED * abs(then) or changes != self.by_size.changes:
            self._worth.clear()
            self._worth_at = launch, self.by_size.changes
        found = self._worth.get(most)
        if found is None:
            inputs = TYPICAL_STEPS if self._spec.kinds else 1
            each = [self._beside(batch, inputs) / batch for batch in range(1, most + 1)]
            enough = NEARLY * min(each)
            found = self._worth[most] = 1 + next(i for i, seconds in enumerate(each) if seconds <= enough)
        return found

    def answered(self, most: int) -> "Answered":
        """Return the requests per second that are answered in batches of 1, 2, 4, ... and `most`."""
        changes = self.pace.changes + self.decoding.changes + self.by_size.changes
        if changes != self._answered_at:
            self._answered.clear()
            self._answered_at = changes
        found = self._answered.get(most)
        if found is None:
            inputs = TYPICAL_STEPS if self._spec.kinds else 1
            rates = [(batch, batch / self._beside(batch, inputs)) for batch in sizes(most)]
            found = self._answered[most] = Answered(rates, *max(rates, key=itemgetter(1)))
        return found

    def tokens(self, most: int) -> list[float]:
        """Return the tokens a second that steps of 1, 2, ... and `most` requests write, for models with a decoder."""
        assert self.decoder is not None, "only decoders write tokens"
        if self.decoding.changes != self._tokens_at:
            self._tokens.clear()
            self._tokens_at = self.decoding.changes
        for batch in range(len(self._tokens) + 1, most + 1):
            self._tokens.append(batch / self.unit(batch, self.decoder))
        return self._tokens[:most]

    def _paced(self, seconds: float, launches: float) -> float:
        """Correct the profile's `seconds` of this many launches, none of which is a decoder step."""
        return self.pace.factor * seconds + self.pace.launch * launches

    def _beside(self, batch: int, inputs: int) -> float:
        """Return the seconds of the whole model in a batch of this size, for comparison with other sizes.

        A fixed cost below 0 is not believed here. It means that the profile was taken at a slower moment, which holds
        for all sizes. If it counted, small batches, which have more launches per request, would look quicker; and as
        long as only small batches run, nothing would correct that.
        """
        share, whole = self.by_size.share(batch), self.whole(batch, inputs, self.mean_outputs)
        if self.pace.launch >= 0.0:
            return share * whole
        launches = self._once[0] + self._encoders[0] * inputs
        return share * self.pace.level * (whole - self.pace.launch * launches)

    def _table(self, batch: int) -> "_Table":
        found = self._tables.get(batch)
        if found is None:
            found = self._tables[batch] = _Table(self._spec, self._costs, batch)
        return found


@dataclass(frozen=True, slots=True)
class Answered:
    """Requests per second by batch size; `quickest` is the batch that answers the most, `most` its rate."""

    rates: list[tuple[int, float]]
    quickest: int
    most: float

    @property
    def enough(self) -> int:
        """The smallest batch that answers nearly as many per second."""
        return next(batch for batch, rate in self.rates if NEARLY * rate >= self.most)


class _Table:
    """For one batch size: the profile's seconds of one step of each stage, and their sums to the end, by stage kind."""

    def __init__(self, spec: ModelSpec, costs: ModelCosts, batch: int) -> None:
        stages = range(spec.stages)
        self.unit = [costs.step(i, batch) for i in stages]
        self.once, self.encoder, self.decoder = (
            _sums([self.unit[i] if spec.kind(i) is kind else 0.0 for i in stages]) for kind in StageKind
        )
        self.slope = _sums([costs.slopes[i].at(batch) if i in costs.slopes else 0.0 for i in stages])


def _covering(lengths: Sequence[int]) -> int:
    """Return the length that the share `COVERAGE` of `lengths`, ascending, does not exceed."""
    return lengths[max(0, ceil(COVERAGE * len(lengths)) - 1)]


def _sums(seconds: list[float]) -> list[float]:
    """Return the sum from each place to the end, with a 0 behind the last."""
    return [0.0, *accumulate(reversed(seconds))][::-1]
