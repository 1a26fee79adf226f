"""What learned caches are to keep: a fidelity, with what confidence it is shown, within how much memory and time."""

import os
from dataclasses import dataclass
from math import inf

from latebind.domain.errors import ConfigError
from latebind.learned.bounds import MOST_ANSWERS, fidelity_bound, samples_needed

CACHE_BYTES = 8_000_000
ANSWERS = 2_000  # of which fidelity is promised: about as many as there are samples to show it
USUAL_TAIL = 1.05  # what is kept without being asked for, unless it costs too much of the mean


@dataclass(frozen=True, slots=True)
class Promise:
    """`fidelity` is the share of answers that equal the base model's; 1.0 means no lookups at all.

    `confidence` is that of the bound on it over the next `answers`, or, None, over all that there could be, of which
    any next ones have less by chance. `lasting` is a confidence with which it must hold over all as well; 0: none.
    `cache_bytes` is the most that the weights of lookups in use may take, and `tail` how many times the base model's
    latency a request may take that none of them answers. `aside` says whether lookups run on another core while the
    network goes on; None: as measurement says. Raises `ConfigError` for what makes no sense.
    """

    fidelity: float = 0.97
    confidence: float = 0.95
    cache_bytes: int = CACHE_BYTES
    tail: float = inf
    aside: bool | None = None
    answers: int | None = ANSWERS
    lasting: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 < self.fidelity <= 1.0:
            raise ConfigError(
                f"fidelity {self.fidelity} is not above 0 and at most 1: give the share of equal answers, as 0.97"
            )
        if not 0.0 < self.confidence < 1.0:
            raise ConfigError(f"confidence {self.confidence} is not between 0 and 1: give a share, as 0.95")
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

    def can_show(self, rows: int) -> bool:
        """Tell whether so many held-out samples, without one wrong answer, would show the fidelity."""
        return self.at_least(0, rows) >= self.fidelity

    def at_least(self, wrong: int, rows: int) -> float:
        """Return the fidelity that so many held-out samples, of which some were wrong, show."""
        shown = fidelity_bound(wrong, rows, confidence=self.confidence, answers=self.answers)
        if not self.lasting:
            return shown
        return min(shown, fidelity_bound(wrong, rows, confidence=self.lasting, answers=None))

    def may_be_aside(self, threads: int) -> bool:
        """Tell whether lookups may run aside: it is demanded, or not forbidden and a core is free beside `threads`."""
        return self.aside if self.aside is not None else len(os.sched_getaffinity(0)) > threads

    def not_shown(self, rows: int) -> str:
        """Say that so many held-out samples do not show it."""
        needed = samples_needed(self.fidelity, confidence=self.confidence, answers=self.answers)
        return (
            f"{rows} held-out samples cannot show a fidelity of {self.fidelity:g}{over(self.answers)} with "
            f"{self.confidence:.0%} confidence for any exit (without one wrong answer it takes {needed}): there are "
            "no exits; give more samples to calibrate"
        )


def over(answers: int | None) -> str:
    """Say over which answers a fidelity is promised, behind its figure."""
    return "" if answers is None else f" over the next {answers:,} answers"
