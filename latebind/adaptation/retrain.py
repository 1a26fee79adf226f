"""From samples to a version: new heads for the current classes, tested on samples that they were not trained on.

GATI, section 5.3, retrains whole predictors; here the features stay, so it takes a fraction of a second. While inputs
look like what `build` kept, only the shares of classes are new, and heads are shifted to them (`Prior`); otherwise
they learn. What has been seen of a class before, in traffic or by `build`, is used again when the class comes back:
rows are drawn so that their classes come as often as they do now (label shift; Saerens et al. 2002).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from latebind.adaptation.controller import Version, VersionLevel
from latebind.adaptation.traffic import Recent
from latebind.learned.activations import apply_heads
from latebind.learned.compose import (
    Calibrated,
    Composer,
    Costs,
    Floats,
    Seen,
    calibrate,
    evaluate,
    send,
    threshold_path,
)
from latebind.learned.head import Head, HeadFunction
from latebind.learned.promise import Promise
from latebind.learned.stored import Rows
from latebind.learned.train import distillation_loss

DRAWN = 3_000
APART = 0.1  # of the rows to learn from: thresholds are found on them
HALF_LIFE = 0.25  # of the span of the window: samples that old are drawn half as often
ENOUGH = 10  # samples of a class in the window, at which the rows from `build` are drawn half as often as those
DISTRUST = 20.0  # times as seldom, once the traffic has turned out to look different
SPEAKS_FOR_ITSELF = 800  # samples since the traffic changed, from which nothing else is needed to show a version
HAS_A_SAY, SAY_CONFIDENCE = 60, 0.8  # from this many on they must not contradict it
FEWEST_SHARE = 0.002  # of the rows to learn from, for each class there is
HEARSAY = 2.0  # current rows
MOST_SHOWN = 4_000  # rows
# The share of a class from which its rows limit how many are shown; with many classes, half of their mean share.
OFTEN = 0.05
PRICES = 16

TEMPERATURES = np.geomspace(0.25, 16.0, 85)
RAREST = 0.02  # of the share that a class had: no class is given up, whatever came recently
# of the loss: a head learns for 150 steps, a network for thousands
TEMPERATURE, DISTILLATION = 2.0, 0.5
STEPS, BATCH = 150, 128
RATE, DECAY = 1e-2, 1e-2
BESIDE = 64  # units of the hidden layer beside the layer to answers


@dataclass(frozen=True, slots=True)
class Material:
    """Rows to make a version from: those to learn from, with how often each is to be drawn, and those to show it on.

    Of the latter the first of a class are used first; the first `current` of them came since the traffic changed.
    After an alarm the others are in `doubt`: they count only once enough rows have come since that do not contradict a
    version.
    """

    learn: Rows
    weights: Tensor
    show: Rows
    current: int = 0
    doubt: bool = False


def retrain(
    heads: Mapping[str, Head],
    given: Material,
    mix: Mapping[int, float],
    costs: Costs,
    *,
    promise: Promise,
    seed: int,
    prior: "Prior | None" = None,
    levels: Sequence[float] = (),
) -> tuple[dict[str, Head], Version] | None:
    """Return new heads for all lookups of `heads`, by name, and what they do, or None if nothing can be shown.

    The version's `thresholds` are those of the lookups in use; it has no name yet. With `levels`, which are fidelities
    of an operating curve, the promised one included, it also has thresholds of the same lookups for each level that can
    be shown; all hold together with the confidence of the promise, each in its own test.

    `mix` are the current shares of classes. With a `prior`, heads are shifted to these shares: a network that was
    trained on many more rows than there are samples has little to learn from these. Without it they learn, in about a
    tenth of a second of one core each. Thresholds are found on rows that no head has learned from.
    """
    generator = torch.Generator().manual_seed(seed)
    among = torch.ones(len(given.weights), dtype=torch.bool)
    if prior is not None:
        made = prior.shifted(heads, mix)
    else:
        among = torch.rand(len(given.weights), generator=generator) < APART
        drawn, made = _draw(given, mix, ~among, generator), dict(heads)
        for name, head in heads.items():
            if not head.sure:  # one that is always sure has nothing to learn
                rows = given.learn.features[name][drawn].float()
                made[name] = taught(head, rows, given.learn.answers[drawn].float(), generator)
    apart = given.learn.take(_draw(given, mix, among, generator))  # which neither taught nor show
    composer = Composer(seen_of(made, apart), costs, allows=lambda choice: costs.tail(choice) <= promise.tail)
    promise = promise.of_each(max(1, len(levels)))
    everything = seen_of(made, given.show)

    def calibrated(composer: Composer, fidelity: float) -> tuple[Calibrated | None, int]:
        candidates = threshold_path(composer, fidelity=fidelity, steps=PRICES)
        return _calibrated(candidates, everything, given, mix, costs, replace(promise, fidelity=fidelity))

    def used(one: Calibrated) -> dict[str, float]:
        each = zip(made, one.thresholds, strict=True)
        return {name: float(threshold) for name, threshold in each if np.isfinite(threshold)}

    found, shown = calibrated(composer, promise.fidelity)
    if found is None or not used(found):
        return None
    others = composer.restricted_to(tuple(np.flatnonzero(np.isfinite(found.thresholds)).tolist()))
    curve = [
        (level, found if level == promise.fidelity else calibrated(others, level)[0])
        for level in sorted(levels, reverse=True)
    ]
    classes = next(iter(made.values())).classes
    tables = partial(
        by_class, seen=everything, classes=given.show.classes, costs=costs, count=classes, current=given.current
    )
    wrong, seconds = tables(found.thresholds)
    return made, Version(
        "",
        wrong,
        seconds,
        dict(mix),
        current=given.current,
        thresholds=used(found),
        fidelity=found.fidelity,
        lower=found.lower,
        rows=shown,
        levels=tuple(
            VersionLevel(level, one.lower, used(one), tables(one.thresholds)[0])
            for level, one in curve
            if one is not None and used(one)
        ),
    )


def _calibrated(
    candidates: list[Floats],
    everything: Seen,
    given: Material,
    mix: Mapping[int, float],
    costs: Costs,
    promise: Promise,
) -> tuple[Calibrated | None, int]:
    """Return the fastest thresholds that can be shown, and on how many rows.

    On current rows alone; or, while they are few, on all rows weighted by the current shares of classes, up to the
    first candidate that current rows contradict. Either may be better: earlier rows may look different, and current
    ones are too few at first. Rows drawn by class are a little too easy: of a class that seldom comes, the current rows
    are mostly those that the base model confuses with it.
    """
    current = everything.take(np.arange(given.current))
    ways = [(candidates, current)]
    if HAS_A_SAY <= given.current < SPEAKS_FOR_ITSELF:
        say, accepted = Promise(promise.fidelity, SAY_CONFIDENCE, answers=None), list[Floats]()
        for thresholds in candidates:
            if evaluate(thresholds, [current], costs, promise=say).lower < promise.fidelity:
                break
            accepted.append(thresholds)
        candidates = accepted
    if given.current < SPEAKS_FOR_ITSELF and (given.current >= HAS_A_SAY or not given.doubt):
        ways.append((candidates, rows_like(everything, mix, given.show.classes)))
    best: tuple[Calibrated | None, int] = (None, 0)
    for some, shown in ways:
        if not promise.can_show(shown.right.shape[1]):
            continue
        found = calibrate(some, [shown], costs, promise=promise)
        if found is not None and (best[0] is None or found.seconds < best[0].seconds):
            best = found, shown.right.shape[1]
    return best


def by_class(
    thresholds: Floats, seen: Seen, classes: Tensor, costs: Costs, *, count: int, current: int = 0
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return for each of `count` classes the share answered differently, a little too high, and mean seconds.

    The first `current` rows came since the traffic changed. All other rows of a class together count as much as
    `HEARSAY` of those: pictures of another camera say nothing about this one, but are all there is for classes that
    never came.
    """
    result, numbers = send(thresholds, seen, costs), classes.numpy()

    def totals(rows: slice) -> tuple[Floats, Floats, Floats]:
        each = (np.ones(len(numbers)), result.wrong, result.seconds)
        there, wrong, seconds = (np.bincount(numbers[rows], one[rows], count).astype(np.float64) for one in each)
        return there, wrong, seconds

    there, wrong, seconds = totals(slice(None))
    doubt = 0.5 / (there + 1.0)  # of classes never seen, half
    share, mean = (wrong + doubt) / (there + 1.0), float(result.seconds.mean())
    each = np.where(there > 0, seconds / np.maximum(there, 1), mean)
    if current:
        there, wrong, seconds = totals(slice(current))
        share = (wrong + HEARSAY * share) / (there + HEARSAY)
        each = (seconds + HEARSAY * each) / (there + HEARSAY)
    return tuple(share.tolist()), tuple(each.tolist())


def _draw(given: Material, mix: Mapping[int, float], among: Tensor, generator: torch.Generator) -> Tensor:
    """Draw rows `among` those to learn from: classes in the shares of `mix`, within a class by the weights."""
    classes, weights = given.learn.classes, given.weights * among
    total = torch.zeros(int(classes.max()) + 1, dtype=torch.float64).scatter_add_(0, classes, weights)
    wanted = torch.full_like(total, FEWEST_SHARE)
    for answer, share in mix.items():
        if answer < len(wanted):
            wanted[answer] += share
    weights *= (wanted / total.clamp(min=1e-12))[classes]
    return torch.multinomial(weights, DRAWN, replacement=True, generator=generator)


@torch.no_grad()
def seen_of(heads: Mapping[str, Head], rows: Rows) -> Seen:
    """Return what these heads, by name, answer on rows that have their features."""
    features = [rows.features[name].float() for name in heads]
    answers = functional.one_hot(rows.classes, next(iter(heads.values())).classes)
    seen = apply_heads(list(heads.values()), features, answers, lengths=rows.lengths).seen
    return seen if rows.end is None else replace(seen, end=rows.end.numpy())


def rows_like(everything: Seen, mix: Mapping[int, float], classes: Tensor) -> Seen:
    """Return as many rows as possible whose classes come as often as in `mix`, each at most once.

    A class that comes rarely may have too few rows; missing ones count as answered wrong.
    """
    ordered = {answer: (classes == answer).nonzero()[:, 0] for answer in mix}
    often = min(OFTEN, 0.5 / len(mix))
    most = [len(ordered[answer]) / share for answer, share in mix.items() if share >= often]
    size = min([MOST_SHOWN, *most])
    chosen = [ordered[answer][: round(size * share)] for answer, share in mix.items()]
    missing = sum(round(size * share) for share in mix.values()) - sum(map(len, chosen))
    rows = everything.take(torch.cat(chosen).numpy())
    lookups, lengths, end = len(rows.scores), rows.lengths, rows.end
    return Seen(
        np.concatenate([rows.scores, np.full((lookups, missing), np.inf)], axis=1),
        np.concatenate([rows.right, np.zeros((lookups, missing), dtype=np.bool_)], axis=1),
        end=None if end is None else np.concatenate([end, np.zeros(missing, dtype=np.bool_)]),
        lengths=None if lengths is None else np.concatenate([lengths, np.full(missing, int(np.median(lengths)))]),
    )


def material(
    held_out: Rows,
    lessons: Rows | None,
    teaches: Recent | None = None,
    shown: Recent | None = None,
    *,
    trusted: bool = True,
    since: float = -np.inf,
    doubt: bool = False,
) -> Material:
    """Put together what `build` kept and what the windows have.

    `since` is when the traffic changed; with `doubt` an alarm reported it. `held_out` shows, unless it is not `trusted`
    to look like the traffic. Without `lessons` half of it is learned from.
    """
    if lessons is None:
        numbers = torch.arange(len(held_out.classes))
        lessons, held_out = held_out.take(numbers[::2]), held_out.take(numbers[1::2])
    counts = torch.bincount(lessons.classes).clamp(min=1)
    weights = ENOUGH / counts[lessons.classes].double()
    if not trusted:
        weights, held_out = weights / DISTRUST, held_out.take(torch.arange(0))
    if teaches is not None:
        ages = teaches.times[-1] - teaches.times
        span = float(teaches.times[-1] - teaches.times[0]) or 1.0
        weights = torch.cat([weights, teaches.weights * 0.5 ** (ages / (HALF_LIFE * span))])
        lessons = lessons.joined(teaches.rows)
    if shown is None:
        return Material(lessons, weights, held_out)
    newest_first = torch.arange(len(shown.times) - 1, -1, -1)
    current = int((shown.times >= since).sum())
    return Material(lessons, weights, shown.rows.take(newest_first).joined(held_out), current, doubt)


# Heads ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prior:
    """The shares of classes `(classes,)` that heads have learned from, and the temperature of each by lookup.

    If inputs of a class look as before and only the shares of classes differ, a classifier's probabilities are right
    again once each is multiplied by how many times more often its class comes (Saerens et al. 2002, equation 2.4). A
    network is too sure, or not sure enough, by one factor for all classes, its temperature (Guo et al. 2017, section
    4.2), which is fitted to the kept rows. So one number is found on thousands of rows, where a lesson finds thousands
    on fewer: of a stream by Zipf's law 0.844 could leave with shifted heads, 0.794 as built, 0.781 taught.
    """

    shares: Tensor
    temperatures: Mapping[str, float]

    @classmethod
    def of(cls, heads: Mapping[str, Head], lessons: Rows) -> Self:
        """Find them on rows that the predictors have not seen."""
        classes = next(iter(heads.values())).classes
        counts = torch.bincount(lessons.classes, minlength=classes) + 1.0
        found = {
            name: _temperature(head, lessons.features[name], lessons.classes)
            for name, head in heads.items()
            if not head.sure
        }
        return cls(counts / counts.sum(), found)

    def shifted(self, heads: Mapping[str, Head], mix: Mapping[int, float]) -> dict[str, Head]:
        """Return the heads for traffic with these shares of classes; one that is always sure stays unchanged.

        Their own log-odds are the scores: a selector has learned from answers without the shift.
        """
        shares = torch.zeros_like(self.shares)
        for answer, share in mix.items():
            shares[answer] = share
        times = (shares / self.shares).clamp(min=RAREST).log()
        return {
            name: self._shifted(head, name, times) if name in self.temperatures else head
            for name, head in heads.items()
        }

    def _shifted(self, head: Head, name: str, times: Tensor) -> Head:
        bias = (head.answer_bias + self.temperatures[name] * times.numpy()).astype(np.float32)
        return replace(head, answer_bias=bias).without_selector()


@torch.no_grad()
def _temperature(head: Head, features: Tensor, classes: Tensor) -> float:
    """Return the divisor that makes answers the likeliest log-probabilities, up to a constant."""
    answers = torch.from_numpy(HeadFunction(head)(features.float().numpy())[0])
    losses = [float(functional.cross_entropy(answers / temperature, classes)) for temperature in TEMPERATURES]
    return float(TEMPERATURES[int(np.argmin(losses))])


def taught(head: Head, features: Tensor, answers: Tensor, generator: torch.Generator, *, steps: int = STEPS) -> Head:
    """Return the head after it has learned to give the base model's `answers` `(N, classes)` for `features`.

    It learns on features of mean 0 and variance 1, for which one rate fits all, and starts from the given head; if that
    has no hidden layer beside the layer to answers, one is added with zero output. Its own odds say how sure it is: a
    selector gained nothing here. A lesson takes a tenth of a second; loss and AdamW derived by hand took half of that.
    """
    mean, spread = features.mean(dim=0), features.std(dim=0, correction=0).clamp(min=1e-3)
    rows = (features - mean) / spread
    before = {name: torch.from_numpy(part) for name, part in head.tensors().items()}
    if len(head.beside_bias):
        beside = before["beside_weight"] * spread
        beside_bias = before["beside_bias"] + before["beside_weight"] @ mean
        beside_answer = before["beside_answer"].clone()
    else:
        beside = torch.randn(BESIDE, head.width, generator=generator) / head.width**0.5
        beside_bias, beside_answer = torch.zeros(BESIDE), torch.zeros(head.classes, BESIDE)
    direct, bias = before["answer_weight"] * spread, before["answer_bias"] + before["answer_weight"] @ mean
    layers = [nn.Parameter(layer) for layer in (direct, bias, beside, beside_bias, beside_answer)]
    optimizer = torch.optim.AdamW(layers, lr=RATE, weight_decay=DECAY, fused=True)
    for step, drawn in enumerate(torch.randint(len(answers), (steps, BATCH), generator=generator)):
        optimizer.param_groups[0]["lr"] = RATE * (1.0 - step / steps)
        hidden = functional.relu(functional.linear(rows[drawn], layers[2], layers[3]))
        predicted = functional.linear(rows[drawn], layers[0], layers[1]) + functional.linear(hidden, layers[4])
        loss = distillation_loss(predicted, answers[drawn], None, share=DISTILLATION, temperature=TEMPERATURE)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    direct, bias, beside, beside_bias, beside_answer = (layer.detach() for layer in layers)
    direct, beside = direct / spread, beside / spread
    answer = nn.Linear(head.width, head.classes)
    with torch.no_grad():
        answer.weight.copy_(direct)
        answer.bias.copy_(bias - direct @ mean)
    return Head.of(answer, beside=(beside, beside_bias - beside @ mean, beside_answer))
