"""Learned caches against fewer bits, a smaller model and a cascade of both (GATI, table 6, figures 6 and 8a)."""

from collections.abc import Sequence

import torch

from latebind.bench.caches.contest import Contender, Plan, Standings, Tell, no_exits, promised, standings
from latebind.bench.caches.models import CachedModel
from latebind.bench.caches.route import (
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
from latebind.domain.errors import ConfigError
from latebind.learned.promise import Promise
from latebind.learned.samples import Samples

RANGE_ROWS = 128  # that show a network in eight bits how large its numbers get; they are used for nothing else


def set_aside(samples: Samples, seed: int) -> tuple[Samples, Samples]:
    """Return a few rows for ranges of eight bits, and the others; raises `ConfigError` where few would be left."""
    if len(samples) < 2 * RANGE_ROWS:
        raise ConfigError(f"{len(samples)} rows are too few to compare on: give {2 * RANGE_ROWS} or more")
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))
    return samples.take(order[:RANGE_ROWS]), samples.take(order[RANGE_ROWS:].sort().values)


def compare(
    base: CachedModel, smaller: CachedModel | None, ranges: Samples, samples: Samples, plan: Plan, *, tell: Tell
) -> Standings:
    """Measure the base model and every method on the same rows. `ranges` are rows for eight bits alone."""
    assert isinstance(ranges.inputs, tuple)
    methods = [*_fewer_bits(base, ranges.inputs), *_cached(base, ranges.inputs)]
    if smaller is not None:
        if smaller.program.spec.inputs != base.program.spec.inputs:
            raise ConfigError(f"{smaller.name} takes other inputs than {base.name}: name a model of the same")
        methods += _with_smaller(base, smaller, ranges.inputs)
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


def _fewer_bits(base: CachedModel, rows: tuple[torch.Tensor, ...]) -> list[Method]:
    found: list[Method] = []
    if base.program.backend == "openvino":
        found.append((f"{base.name} in bfloat16", base.in_bfloat16(), base.bytes // 2))
    if base.has_bytes:
        found.append((f"{base.name} in eight bits", Route((base.in_bytes(rows),)), base.quantised_bytes()))
    return found


def _cached(base: CachedModel, rows: tuple[torch.Tensor, ...]) -> list[Method]:
    found: list[Method] = [
        ("learned caches", base.cached(selected), base.bytes),
        ("softmax of predictors", base.cached(unselected), base.bytes),
    ]
    if base.has_bytes:
        route = base.cached_in_bytes(selected, rows)
        found.append(("learned caches, all in eight bits", route, base.quantised_bytes()))
    return found


def _with_smaller(base: CachedModel, smaller: CachedModel, rows: tuple[torch.Tensor, ...]) -> list[Method]:
    both = base.bytes + smaller.bytes
    first, own = Stage(smaller.uncut), base.cached(selected).pieces
    asks = Exit(smaller.name, confident)
    found: list[Method] = [
        (f"{smaller.name} alone", smaller.whole(), smaller.bytes),
        ("cascade", Route((first, asks, Stage(base.uncut, again=True))), both),
        (
            "cascade, learned caches in both",
            Route((*smaller.cached(selected).pieces, asks, *_again(own))),
            both,
        ),
    ]
    if smaller.has_bytes:
        first, size = smaller.in_bytes(rows), smaller.quantised_bytes()
        found.append((f"{smaller.name} in eight bits", Route((first,)), size))
        cascade = Route((first, asks, Stage(base.uncut, again=True)))
        found.append(("cascade, first in eight bits", cascade, base.bytes + size))
        cascade = Route((first, asks, Stage(base.in_bytes(rows).run, again=True)))
        size += base.quantised_bytes()
        found.append(("cascade, both in eight bits", cascade, size))
        own = _again(base.cached_in_bytes(selected, rows).pieces)
        cached = Route((*smaller.cached_in_bytes(selected, rows).pieces, asks, *own))
        found.append(("cascade, learned caches in both, all in eight bits", cached, size))
    return found


def _again(pieces: Sequence[Stage | Exit]) -> tuple[Stage | Exit, ...]:
    """Return the pieces of a second network: its first stage takes the input once more."""
    first = pieces[0]
    assert isinstance(first, Stage)
    return (Stage(first.run, again=True), *pieces[1:])
