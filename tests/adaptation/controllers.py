"""A controller with the versions that tests give it, and answers and comparisons for it."""

from latebind.adaptation.controller import FULL_DEPTH, Controller, Decision, Version

TARGET = 0.9
FULL = Version(FULL_DEPTH, (0.0, 0.0), (1.0, 1.0))
BUILT = Version("built", (0.05, 0.05), (0.6, 0.6))
FOR_ZERO = Version("000001", (0.02, 0.6), (0.2, 0.9), {0: 1.0})


def controller() -> Controller:
    return Controller(TARGET, FULL, {"built": BUILT}, "built")


def answered(found: Controller, answer: int, times: int) -> list[Decision]:
    return [decision for _ in range(times) for decision in found.answered(answer)]


def compared(found: Controller, same: bool, *, strange: bool = False) -> list[Decision]:
    return found.compared(same, at=found.total, strange=strange)
