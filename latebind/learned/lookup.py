"""Placeholder."""
from dataclasses import dataclass
from torch import Tensor
from latebind.domain.costs import Curve
@dataclass
class Lookup:
    stage: int
    curve: Curve
    hit_rate: float
    def __call__(self, activation: Tensor) -> tuple[Tensor, Tensor]:
        raise AssertionError
def load_lookups(directory: object, *, backend: str, threads: int) -> dict[int, Lookup]:
    return {}
