"""The sides that are compared: policies with their settings, and the role of each in the comparison."""

from dataclasses import dataclass
from enum import StrEnum

from latebind.domain.config import PolicyConfig
from research.policies import BATCHING

WINDOWS = (0.005, 0.010, 0.025, 0.050, 0.075, 0.095)  # seconds, those that the paper names among them
SIZES = (8, 16, 32, 64)
LARGEST = 64


class Group(StrEnum):
    """The role of a side."""

    WINDOW = "GraphB, window of 5 ms or more"
    ZERO = "GraphB, window 0"
    LEAVING = "GraphB, window 0, leaving early"
    OTHER = "other"
    LAZY = "LazyB"
    ORACLE = "Oracle"
    OURS = "lazy+ and late"


@dataclass(frozen=True, slots=True)
class Side:
    """One policy with its settings. Nothing is shed, as in the paper, unless a part of the bench says so."""

    label: str
    group: Group
    policy: PolicyConfig


def sides(*, recurrent: bool, size: int = LARGEST) -> list[Side]:
    """Return all sides: each window at the largest batch, and the best window at every batch size.

    If all stages run once, all requests of a batch end together, so none can leave it early.
    """
    sizes = [s for s in SIZES if s <= size]
    found = [_graph(Group.WINDOW, size, window) for window in WINDOWS]
    found += [_graph(Group.WINDOW, smaller, WINDOWS[0]) for smaller in sizes if smaller < size]
    found += [_graph(Group.ZERO, smaller) for smaller in sizes]
    if recurrent:
        found += [_graph(Group.LEAVING, smaller, leave=True) for smaller in sizes]
    found.append(Side("Serial", Group.OTHER, PolicyConfig("graph", 1, shed=False)))
    found += [
        Side(label, group, PolicyConfig(BATCHING[name], size, shed=False))
        for label, group, name in (
            ("continuous", Group.OTHER, "continuous"),
            ("LazyB", Group.LAZY, "lazy"),
            ("Oracle", Group.ORACLE, "oracle"),
            ("lazy+", Group.OURS, "lazy+"),
            ("late", Group.OURS, "late"),
        )
    ]
    return found


def _graph(group: Group, size: int, window: float = 0.0, *, leave: bool = False) -> Side:
    label = f"GraphB({window * 1e3:g}, {size}){' leaving' if leave else ''}"
    return Side(label, group, PolicyConfig(BATCHING["graph" if leave else "waiting"], size, window=window, shed=False))
