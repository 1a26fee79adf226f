"""What the user asks of cheaper answers: a fidelity, its confidence, and limits on memory and time.

Two bounds on future wrong answers, from the wrong answers among held-out samples, answer two questions:
1. Which share of all possible answers is wrong? Clopper and Pearson (1934).
2. How many of the next N answers will be wrong? Their share differs from the true one by chance, as the samples' does.
   Given how many of samples and answers together are wrong, which of them are samples is a draw without replacement,
   so the true share need not be known (Thatcher 1964; the conditional approach of Krishnamoorthy and Peng 2011).

As N grows, the second bound approaches the first.
"""

import os
from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import Self

import numpy as np
from numpy.typing import NDArray

from latebind.domain.errors import ConfigError

MOST_ANSWERS = 10**8  # beyond this, rounding errors would show, and the bound no longer differs from the first

CACHE_BYTES = 8_000_000
ANSWERS = 2_000  # next answers that fidelity is promised for: about as many as there are samples to show it
COARSE = 0.5  # MiniLM in eight bits has over 0.14 on drawn words, and 0.99 of the cosine on all texts
OF_VECTORS = "cosine:0.99@0.97"
USUAL_TAIL = 1.05  # kept without being asked for, unless that makes the mean latency much longer
REPORTED_CONFIDENCE = 0.975  # of each bound of a fidelity that a server reports


def upper_bound(wrong: int, samples: int, confidence: float) -> float:
    """Return the one-sided Clopper-Pearson upper bound on the unknown share of wrong answers."""
    if wrong >= samples:
        return 1.0
    from scipy.special import betaincinv  # noqa: PLC0415  # it is slow to import, and the help of commands needs none

    return float(betaincinv(wrong + 1, samples - wrong, confidence))


def bounded(last: Collection[bool]) -> tuple[float | None, float, float]:
    """Return the share of equal comparisons (None: no comparisons) and bounds, each with `REPORTED_CONFIDENCE`."""
    if not last:
        return None, 0.0, 1.0
    same, count = sum(last), len(last)
    return (
        same / count,
        1.0 - upper_bound(count - same, count, REPORTED_CONFIDENCE),
        upper_bound(same, count, REPORTED_CONFIDENCE),
    )


@lru_cache(maxsize=4096)  # a lesson calls it for some hundred thresholds, most of them with the same arguments
def most_wrong(wrong: int, samples: int, answers: int, *, confidence: float) -> int:
    """Return the upper bound on how many of the next `answers` are wrong.

    Samples and answers must be exchangeable, such as independent draws from one distribution.
    """
    return bisect_left(
        range(1, answers + 1), True, key=lambda more: _chance(wrong, samples, more, answers) <= 1.0 - confidence
    )


def fidelity_bound(wrong: int, samples: int, *, confidence: float, answers: int | None) -> float:
    """Return the lower bound on the fidelity of the next `answers`, or, with None, of all possible ones."""
    if answers is None:
        return 1.0 - upper_bound(wrong, samples, confidence)
    # divided last, so that a target of 0.93 equals 1860 of 2000 exactly
    return (answers - most_wrong(wrong, samples, answers, confidence=confidence)) / answers


def samples_needed(fidelity: float, *, confidence: float, answers: int | None) -> int:
    """Return how many samples, none of them wrong, are needed to show `fidelity`; fewer can never show it.

    Raises `ValueError` for a fidelity of 1.
    """
    if fidelity >= 1.0:
        raise ValueError("no number of samples shows a fidelity of 1")

    def shown(samples: int) -> float:
        return fidelity_bound(0, samples, confidence=confidence, answers=answers)

    enough = 1
    while shown(enough) < fidelity:
        enough *= 2
    return bisect_left(range(enough), fidelity, lo=1, key=shown)


def _chance(wrong: int, samples: int, more: int, answers: int) -> float:
    """Return the probability that at most `wrong` of all `wrong + more` wrong ones are samples, the others answers."""
    both = wrong + more
    among = np.arange(max(0, both - answers), wrong + 1, dtype=np.float64)
    logs = _log_choose(samples, among) + _log_choose(answers, both - among) - _log_choose(samples + answers, both)
    return float(np.exp(logs).sum())


def _log_choose(n: float, k: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Return the logarithm of n over k."""
    from scipy.special import gammaln  # noqa: PLC0415

    found: NDArray[np.float64] = gammaln(n + 1) - gammaln(np.add(k, 1)) - gammaln(np.subtract(n, k) + 1)
    return found


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Which `share` of answers must count as the base model's, and which of them do.

    Without a `cosine` an answer counts if it is greatest at the same class. With one, answers are vectors, and count if
    their angle to the base model's vector has at least that cosine. Raises `ConfigError` for invalid values.
    """

    share: float = 0.97
    cosine: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise ConfigError(
                f"fidelity {self.share} is not above 0 and at most 1: give the share of equal answers, such as 0.97"
            )
        if self.cosine is not None and not 0.0 < self.cosine < 1.0:
            raise ConfigError(f"fidelity within a cosine of {self.cosine}: give one between 0 and 1, as {OF_VECTORS}")

    @classmethod
    def read(cls, text: str | float) -> Self:
        """Return what a text such as `0.97` or `cosine:0.99@0.97` asks for; raises `ConfigError` for any other."""
        measure, _, rest = str(text).rpartition(":")
        cosine, _, share = rest.rpartition("@")
        try:
            if (measure, bool(cosine)) == ("", False):
                return cls(float(share))
            if (measure, bool(cosine)) == ("cosine", True):
                return cls(float(share), float(cosine))
        except ValueError:
            pass
        raise ConfigError(
            f"fidelity {text!r:.60}: give a share of equal answers, such as 0.97, or of vectors within a cosine, such "
            f"as {OF_VECTORS}. The order of a list cannot be promised: its rows are answered one by one"
        )

    @property
    def tolerance(self) -> float | None:
        """The relative error that a backend may have on made-up rows, if real ones are certified; None if not."""
        return None if self.cosine is None else COARSE

    def __str__(self) -> str:
        return f"{self.share:g}" if self.cosine is None else f"cosine:{self.cosine:g}@{self.share:g}"


@dataclass(frozen=True, slots=True)
class Promise:
    """The settings that learned caches are chosen and calibrated for. Raises `ConfigError` for invalid ones.

    * `fidelity`: the share of answers that equal the base model's; 1.0 means no lookups at all.
    * `confidence`: of the lower bound on the fidelity of the next `answers`, or, if `answers` is None, of all possible
      ones. By chance any next answers may have less than the latter.
    * `lasting`: a confidence with which the fidelity must also hold over all possible answers; 0 for none.
    * `cache_bytes`: the most that the weights of all lookups in use may take.
    * `tail`: the most that a request that no lookup answers may take, as a multiple of the base model's latency.
    * `aside`: whether lookups run on another core while the network goes on; None: whichever is measured to be faster.
    """

    fidelity: float = 0.97
    confidence: float = 0.95
    cache_bytes: int = CACHE_BYTES
    tail: float = inf
    aside: bool | None = None
    answers: int | None = ANSWERS
    lasting: float = 0.0

    def __post_init__(self) -> None:
        Fidelity(self.fidelity)
        if not 0.0 < self.confidence < 1.0:
            raise ConfigError(f"confidence {self.confidence} is not between 0 and 1: give a share, such as 0.95")
        if self.answers is not None and not 1 <= self.answers <= MOST_ANSWERS:
            raise ConfigError(f"a fidelity over {self.answers} answers: give 1 to {MOST_ANSWERS}, or 0 for all")
        if self.cache_bytes < 0:
            raise ConfigError(f"{self.cache_bytes} bytes for learned caches: give 0 or more")
        if not self.tail >= 1.0:
            raise ConfigError(f"a tail of {self.tail:g} times the base model's: give 1 or more, such as 1.1")

    @property
    def exact(self) -> bool:
        """Whether every answer must be the base model's."""
        return self.fidelity >= 1.0

    def of_each(self, tests: int) -> Self:
        """Return what each of `tests` tests has to show for all of them to hold together (Bonferroni)."""
        lasting = 1.0 - (1.0 - self.lasting) / tests if self.lasting else 0.0
        return replace(self, confidence=1.0 - (1.0 - self.confidence) / tests, lasting=lasting)

    def can_show(self, rows: int) -> bool:
        """Return whether this many held-out samples would show the fidelity if none of them were wrong."""
        return self.lower_bound(0, rows) >= self.fidelity

    def lower_bound(self, wrong: int, rows: int) -> float:
        """Return the lower bound on the fidelity, if `wrong` of `rows` held-out samples were wrong."""
        shown = fidelity_bound(wrong, rows, confidence=self.confidence, answers=self.answers)
        if not self.lasting:
            return shown
        return min(shown, fidelity_bound(wrong, rows, confidence=self.lasting, answers=None))

    def may_be_aside(self, threads: int) -> bool:
        """Return whether lookups may run aside: `aside`, or if that is None, whether `threads` leave a core free."""
        return self.aside if self.aside is not None else len(os.sched_getaffinity(0)) > threads

    def not_shown(self, rows: int) -> str:
        """Return a warning that this many held-out samples do not show the fidelity."""
        needed = samples_needed(self.fidelity, confidence=self.confidence, answers=self.answers)
        return (
            f"{rows} held-out samples cannot show a fidelity of {self.fidelity:g}{over(self.answers)} with "
            f"{self.confidence:.0%} confidence for any exit (without a wrong answer it takes {needed}): there are "
            "no exits; give more samples to calibrate"
        )


def over(answers: int | None) -> str:
    """Return the words after a fidelity that say for how many answers it is promised; empty if for all."""
    return "" if answers is None else f" over the next {answers:,} answers"
