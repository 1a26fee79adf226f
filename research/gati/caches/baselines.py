"""Learned caches against fewer bits, a smaller model and a cascade of both (GATI, table 6, figures 6 and 8a).

Every method that has exits is given the same promise, by the same search and test, at each precision alike. Methods
without exits promise nothing; their fidelity is reported.
"""

from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from latebind.bench.rounds import Progress
from latebind.domain.errors import ConfigError
from latebind.learned.promise import Promise
from latebind.learned.samples import Samples
from research.gati.caches.contest import Contender, Plan, Standings, no_exits, promised, standings
from research.gati.caches.models import CachedModel
from research.gati.caches.route import (
    Classes,
    Exit,
    Route,
    Stage,
    answers_of,
    confident,
    costs_of,
    selected,
    unselected,
)

RANGE_ROWS = 128  # that show a network in eight bits how large its numbers get; they are used for nothing else


def set_aside(samples: Samples, seed: int) -> tuple[Samples, Samples]:
    """Return a few rows for ranges of eight bits, and the others; raises `ConfigError` where few would be left."""
    if len(samples) < 2 * RANGE_ROWS:
        raise ConfigError(f"{len(samples)} rows are too few to compare on: give {2 * RANGE_ROWS} or more")
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))
    return samples.take(order[:RANGE_ROWS]), samples.take(order[RANGE_ROWS:].sort().values)


def compare(
    base: CachedModel, smaller: CachedModel | None, ranges: Samples, samples: Samples, plan: Plan, *, tell: Progress
) -> Standings:
    """Measure the base model and every method on the same rows. `ranges` are rows for eight bits alone."""
    assert isinstance(ranges.inputs, tuple)
    if smaller is not None and smaller.program.spec.inputs != base.program.spec.inputs:
        raise ConfigError(f"{smaller.name} takes other inputs than {base.name}: name a model of the same")
    methods = _methods(base, smaller, ranges.inputs)
    tell("what the base model says", 0.0)
    says = answers_of(base.whole(), samples).ends
    contenders = [Contender(f"{base.name} alone", base.whole(), base.bytes, no_exits)]
    for number, (name, route, size) in enumerate(methods):
        tell(f"what {name} says", 0.3 * number / len(methods))
        contenders.append(contender(name, route, size, samples, says, plan.promise))
    return standings(contenders, samples, plan, tell=lambda text, share: tell(text, 0.3 + 0.7 * share))


def contender(name: str, route: Route, size: int, samples: Samples, says: Classes, promise: Promise) -> Contender:
    """Return a method with thresholds that promise to answer as the base model `says`, class by row."""
    if not route.exits:
        return Contender(name, route, size, no_exits)
    seen = answers_of(route, samples).against(says)
    return Contender(name, route, size, promised(seen, costs_of(route, samples), promise))


Method = tuple[str, Route, int]


@dataclass(frozen=True, slots=True)
class Form:
    """A model in one precision: whole, and in stages with its learned caches; `bytes` without those."""

    whole: Stage
    cached: Route
    bytes: int
    entry: bool

    @property
    def again(self) -> Stage:
        """Return the whole model as the second network of a cascade."""
        return Stage(self.whole.run, again=True)

    @property
    def cached_again(self) -> tuple[Stage | Exit, ...]:
        """Return the cached model as the second network of a cascade."""
        first, *others = self.cached.pieces
        assert isinstance(first, Stage)
        return (Stage(first.run, again=True), *others)

    @property
    def before(self) -> tuple[Stage | Exit, ...]:
        """The learned caches before the network, if there are any."""
        entry, *others = self.cached.pieces
        exits = tuple(takewhile(lambda piece: isinstance(piece, Exit), others))
        return (entry, *exits) if self.entry and exits else ()


def _exact(model: CachedModel) -> Form:
    return Form(Stage(model.uncut), model.cached(selected), model.bytes, model.program.entry)


def _in_bytes(model: CachedModel, rows: tuple[Tensor, ...]) -> Form:
    cached = model.cached_in_bytes(selected, rows)
    return Form(model.in_bytes(rows), cached, model.quantised_bytes(), model.program.entry)


def _methods(base: CachedModel, smaller: CachedModel | None, rows: tuple[Tensor, ...]) -> list[Method]:
    large = _exact(base)
    found: list[Method] = [
        ("learned caches", large.cached, large.bytes),
        ("softmax of predictors", base.cached(unselected), large.bytes),
    ]
    if smaller is not None:
        found += _cascades(smaller.name, _exact(smaller), large, "")
    if base.program.backend == "openvino":
        found.append((f"{base.name}, bfloat16", base.in_bfloat16(), base.bytes // 2))
    if base.has_bytes:
        narrow = _in_bytes(base, rows)
        found.append((f"{base.name}, eight bits", Route((narrow.whole,)), narrow.bytes))
        found.append(("learned caches, eight bits", narrow.cached, narrow.bytes))
        if smaller is not None:
            found += _cascades(smaller.name, _in_bytes(smaller, rows), narrow, ", eight bits")
    return found


def _cascades(name: str, small: Form, large: Form, precision: str) -> list[Method]:
    """Return a smaller model alone and before the base model: bare, as the paper caches both, and behind a cache."""
    asks, size = Exit(name, confident), small.bytes + large.bytes
    found: list[Method] = [
        (f"smaller {name}{precision}", Route((small.whole,)), small.bytes),
        (f"cascade{precision}", Route((small.whole, asks, large.again)), size),
        (f"cascade of cached models{precision}", Route((*small.cached.pieces, asks, *large.cached_again)), size),
    ]
    if large.before:
        behind = Route((*large.before, small.again, asks, large.again))
        found.append((f"learned cache, then cascade{precision}", behind, size))
    return found
