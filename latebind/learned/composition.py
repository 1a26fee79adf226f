"""Composition: chooses which trained lookups to use. GATI's rules propose, and a search on samples goes on from there.

The integer programmes (`ilp`) only know figures of single lookups, and so can weigh all boundaries at once. The search
(`compose`) counts samples that several lookups would hit only once, but tries few choices. What each rule alone would
give is reported too, calibrated alike. Only the search's choice is ever used: if the best of several calibrated choices
were taken, the promise would not hold.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from latebind.learned.calibrate import Calibrated, calibrate
from latebind.learned.compose import Bools, Choice, Composer, Costs, Floats, Seen, fastest, threshold_path
from latebind.learned.ilp import Problem, Variant, expected, full, hit_greedy, latency_greedy, relaxed
from latebind.learned.promise import Promise

AT_ONE_BOUNDARY = 2  # lookups at most, a quick one before an able one; GATI has one
ALPHAS = tuple(np.linspace(0.0, 1.0, 11).tolist())


@dataclass(frozen=True, slots=True)
class Trial:
    """What one rule chose, as indexes into the list of lookups, calibrated (None: no thresholds keep the promise)."""

    rule: str
    choice: Choice
    calibrated: Calibrated | None


@dataclass(frozen=True, slots=True)
class Composition:
    """The problem of choosing among `variants`, which are in order of stages, and at one boundary the quickest first.

    `stages` are the seconds of each stage at batch 1.
    """

    variants: tuple[Variant, ...]
    costs: Costs
    stages: tuple[float, ...]
    promise: Promise

    def allows(self, choice: Choice) -> bool:
        """Tell whether these lookups may be used together: within memory and tail, and few at any one boundary.

        In line that is `AT_ONE_BOUNDARY`, and a sure lookup in addition, since no request runs on behind it. Aside,
        lookups run one at a time: each must have answered before the next one starts (GATI, equation 9).
        """
        chosen = [self.variants[k] for k in choice]
        behind = Counter(self.variants[k].stage for k in choice if k not in self.costs.sure)
        few = max(behind.values(), default=0) <= AT_ONE_BOUNDARY
        small = sum(variant.bytes for variant in chosen) <= self.promise.cache_bytes
        together = few if self.costs.beside is None else self.problem_of(self.variants).fits(chosen)
        return together and small and self.costs.tail(choice) <= self.promise.tail

    def expected(self, seen: Seen) -> float:
        """Return the mean seconds of the best choice at the target fidelity on `seen`, without calibration."""
        composer = Composer(seen, self.costs, allows=self.allows, starts=self._starts(seen))
        return fastest(composer, fidelity=self.promise.fidelity)[1]

    def choose(self, seen: Seen, worlds: Sequence[Seen]) -> Trial:
        """Return the choice to use: made on the samples `seen`, calibrated on those of `worlds`."""
        return self._trial("search on samples", seen, worlds, self._starts(seen), self.allows)

    def others(self, seen: Seen, worlds: Sequence[Seen]) -> list[Trial]:
        """Return what each of the paper's rules would give, and each kind of network alone."""
        trials = []
        for rule, choice in self.proposals(seen).items():
            trials.append(self.only(rule, choice, seen, worlds))
        kinds = sorted({variant.kind for variant in self.variants})
        if len(kinds) > 1:
            trials += [self._trial(f"only {kind}", seen, worlds, [()], self._only(kind)) for kind in kinds]
        return trials

    def only(self, rule: str, choice: Choice, seen: Seen, worlds: Sequence[Seen]) -> Trial:
        """Return the trial of these lookups and no others."""
        return self._trial(rule, seen, worlds, [choice], set(choice).issuperset)

    def proposals(self, seen: Seen) -> dict[str, Choice]:
        """Return what each of the paper's rules chooses, from figures of single lookups."""
        problem = self.problem(seen)
        places = {variant: k for k, variant in enumerate(problem.variants)}

        def choice(variants: Sequence[Variant]) -> Choice:
            return tuple(sorted(places[variant] for variant in variants))

        swept = min((relaxed(problem, alpha) for alpha in ALPHAS), key=lambda c: expected(problem, c).seconds)
        return {
            "full programme": choice(full(problem)),
            "relaxed programme": choice(swept),
            "latency greedy": choice(latency_greedy(problem)),
            "hit-rate greedy": choice(hit_greedy(problem)),
        }

    def problem(self, seen: Seen) -> Problem:
        """Return the problem as the paper's rules see it.

        They know the hit rate and accuracy of each lookup alone, at the laxest threshold that keeps the target.
        """
        variants = []
        for k, variant in enumerate(self.variants):
            hits, wrong = hits_alone(seen.scores[k], seen.right[k], 1.0 - self.promise.fidelity)
            before = None if self.costs.before_sure is None else self.costs.before_sure[k]
            sure = k in self.costs.sure
            variants.append(replace(variant, hit_rate=hits, accuracy=1.0 - wrong, sure=sure, before_sure=before))
        return self.problem_of(variants)

    def problem_of(self, variants: Sequence[Variant]) -> Problem:
        """Return the problem of choosing among these variants."""
        return Problem(
            tuple(variants),
            self.stages,
            accuracy=self.promise.fidelity,
            memory=self.promise.cache_bytes,
            aside=self.costs.beside is not None,
            tail=self.promise.tail,
        )

    def _starts(self, seen: Seen) -> list[Choice]:
        return list(dict.fromkeys(self.proposals(seen).values()))

    def _only(self, kind: str) -> Callable[[Choice], bool]:
        return lambda choice: self.allows(choice) and all(self.variants[k].kind == kind for k in choice)

    def _trial(
        self,
        rule: str,
        seen: Seen,
        worlds: Sequence[Seen],
        starts: Sequence[Choice],
        allows: Callable[[Choice], bool],
    ) -> Trial:
        composer = Composer(seen, self.costs, allows=allows, starts=starts)
        candidates = threshold_path(composer, fidelity=self.promise.fidelity)
        found = calibrate(candidates, worlds, self.costs, promise=self.promise)
        used = () if found is None else tuple(int(k) for k in np.flatnonzero(np.isfinite(found.thresholds)))
        return Trial(rule, used, found)


def hits_alone(scores: Floats, right: Bools, most: float) -> tuple[float, float]:
    """Return hit rate and share of wrong answers of one lookup, at its laxest threshold with at most `most` wrong."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    wrong = np.cumsum(~right[order]) / len(scores)
    last = np.append(ordered[:-1] > ordered[1:], True)  # no threshold lies between samples of equal score
    good = np.flatnonzero(last & (wrong <= most))
    return (float(good[-1] + 1) / len(scores), float(wrong[good[-1]])) if len(good) else (0.0, 0.0)
