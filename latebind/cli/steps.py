"""The steps of a query in one line of text."""

from collections.abc import Sequence

from latebind.domain.model import StepSpec


def in_order(steps: Sequence[StepSpec]) -> str:
    """Return the names of steps, which stand behind those that they come after, as in `gate -> cars, animals`.

    Those beside each other wait for equally long chains.
    """
    depths: list[int] = []
    for step in steps:
        depths.append(1 + max([depths[i] for i in step.after], default=-1))
    waves = [
        [step.name for step, depth in zip(steps, depths, strict=True) if depth == one] for one in sorted(set(depths))
    ]
    return " -> ".join(", ".join(wave) for wave in waves)
