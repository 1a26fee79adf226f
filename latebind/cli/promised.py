"""Over which answers fidelity is promised, as an option of `build`, `calibrate` and benchmarks."""

from typing import Annotated

import typer

AnswersOption = Annotated[
    int,
    typer.Option(
        help="How many next answers shall have that share, with that confidence; 0: all there could be, of which any "
        "next ones may have less by chance."
    ),
]


def answers_of(option: int) -> int | None:
    """Return what `Promise` calls it."""
    return option if option else None
