"""The sides that are compared: batching without exits, exits as published, and both under one scheduler.

All refuse and drop requests that cannot be in time, because without that no side answers anything in time above
capacity. A scheduler that does not expect exits counts every request with all stages, and refuses more than it must. So
sides with exits run with and without shedding, and the better of the two counts.

In GATI's paper (section 7.2.1) each batch runs until all its requests have hit or reached the end. It measures the
latency of batches of two. It has neither deadlines nor shedding, and says nothing of how a batch is chosen. So it is
here twice: as published, with batches of up to 16 like all others, without shedding; and tuned, as the best of all
batch sizes of two or more, with or without shedding, which no paper describes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from latebind.domain.config import PolicyConfig
from research.live.sides import SERIAL, Side
from research.policies import BATCHING

SIZES = (2, 4, 8, 16)
FEW_SIZES = (4, 16)
GRANULARITIES = (1, 1, 2, 4, 8, 16)  # of Ebird's workers
OURS = "late"


class Kind(StrEnum):
    """The role of a side."""

    WHOLE = "without exits"
    GATI = "GATI, any batch"
    PUBLISHED = "GATI as published, up to 16"
    SHARED = "GATI, batches of 2 or more"
    COMPACTED = "exits, batches compacted"
    OURS = "late"
    WITHOUT = "late without a part"


BASELINES = (Kind.WHOLE, Kind.PUBLISHED, Kind.SHARED, Kind.GATI, Kind.COMPACTED)


@dataclass(frozen=True, slots=True)
class Contender:
    """A side and what it stands for. GATI alone is its batch of 1, and so counts as both kinds of exits."""

    side: Side
    kinds: tuple[Kind, ...]


def _whole(name: str, max_batch: int = 0, *, window: float = 0.0, granularities: tuple[int, ...] = ()) -> Contender:
    policy = PolicyConfig(name, max_batch, window=window)
    return Contender(Side(policy, granularities=granularities), (Kind.WHOLE,))


def _exits(policy: PolicyConfig, *kinds: Kind) -> Contender:
    return Contender(Side(policy, exits=True), kinds)


def contenders() -> dict[str, Contender]:
    """Return all sides by name."""
    found = {SERIAL: _whole("graph", 1)}
    found |= {f"GraphB(0, {size})": _whole("graph", size) for size in SIZES[1:]}
    found["GraphB(5, 16)"] = _whole("graph", 16, window=0.005)
    found["Ebird"] = _whole(BATCHING["elastic"], granularities=GRANULARITIES)
    found["LazyB"] = _whole(BATCHING["lazy"], 16)
    found["lazy+"] = _whole("lazy+", 16)
    for sheds, label in ((True, ""), (False, ", unshed")):
        alone = PolicyConfig("graph", 1, shed=sheds)
        found[f"GATI{label}"] = _exits(alone, Kind.GATI, Kind.COMPACTED)
        for size in SIZES:
            waits = PolicyConfig(BATCHING["waiting"], size, shed=sheds)
            published = (Kind.PUBLISHED,) if size == SIZES[-1] and not sheds else ()
            found[f"GATI, batch {size}{label}"] = _exits(waits, Kind.GATI, Kind.SHARED, *published)
        for size in FEW_SIZES:
            compacted = PolicyConfig("graph", size, shed=sheds)
            found[f"compacted, batch {size}{label}"] = _exits(compacted, Kind.COMPACTED)
    found[OURS] = _exits(PolicyConfig("late", 16), Kind.OURS)
    found["late, no shedding"] = _exits(PolicyConfig("late", 16, shed=False), Kind.WITHOUT)
    found["late, one at a time"] = _exits(PolicyConfig("late", 1), Kind.WITHOUT)
    return found


def knowing(every: Mapping[str, Contender]) -> str | None:
    """Return a side that answers each request as early as exits allow, and so shows which may leave early; or None."""
    unshed = [name for name, one in every.items() if Kind.GATI in one.kinds and not one.side.policy.shed]
    return unshed[0] if unshed else None


def of_kind(every: Mapping[str, Contender], kind: Kind) -> Sequence[str]:
    """Return the names of the sides with this role."""
    return [name for name, contender in every.items() if kind in contender.kinds]


def engines(every: Mapping[str, Contender]) -> dict[str, Side]:
    """Return the engines to start."""
    return {name: contender.side for name, contender in every.items()}
