"""The promise of learned caches, as options of `build`, `calibrate` and benchmarks."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import typer

from latebind.learned.promise import ANSWERS

AnswersOption = Annotated[
    int,
    typer.Option(
        help="The promise is for this many next answers: they must have that share, with that confidence. 0 "
        "promises it only in the long run, so that the next answers may have less by chance."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promised:
    """The share of answers to promise, with which confidence, and for how many next answers."""

    PANEL: ClassVar = "What learned caches promise"

    fidelity: Annotated[float, typer.Option(help="Share of answers that must equal the base model's.")] = 0.97
    confidence: Annotated[float, typer.Option(help="Confidence in that share, on data used for nothing else.")] = 0.95
    answers: AnswersOption = ANSWERS


def answers_of(option: int) -> int | None:
    """Return what `Promise` calls it."""
    return option if option else None
