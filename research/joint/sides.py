"""The sides that are compared: batching without exits, exits as published, and both under one scheduler.

All refuse and drop requests that cannot be in time, because without that no side answers anything in time above
capacity. A scheduler that does not expect exits counts every request with all stages, and refuses more than it must. So
sides with exits run with and without shedding, and the better of the two counts.

In GATI's paper (section 7.2.1) each batch runs until all its requests have hit or reached the end. It measures the
latency of batches of two. It has neither deadlines nor shedding, and says nothing of how a batch is chosen. So it is
here twice: as published, with batches of up to 16 like all others, without shedding; and tuned, as the best of all
batch sizes of two or more, with or without shedding, which no paper describes.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum

from latebind.domain.config import PolicyConfig
from research.policies import BATCHING
from research.sides import SERIAL, Side, graph, of_kind

SIZES = (2, 4, 8, 16)
FEW_SIZES = (4, 16)
GRANULARITIES = (1, 1, 2, 4, 8, 16)  # of Ebird's workers
OURS = "late"


class Kind(StrEnum):
    """The role of a side. GATI alone is its batch of 1, and so counts as both kinds of exits."""

    WHOLE = "without exits"
    GATI = "GATI, any batch"
    PUBLISHED = "GATI as published, up to 16"
    SHARED = "GATI, batches of 2 or more"
    COMPACTED = "exits, batches compacted"
    OURS = "late"
    WITHOUT = "late without a part"


BASELINES = (Kind.WHOLE, Kind.PUBLISHED, Kind.SHARED, Kind.GATI, Kind.COMPACTED)


def contenders() -> dict[str, Side]:
    """Return all sides by name."""
    return {side.label: side for side in (*_whole(), *_with_exits())}


def _whole() -> Iterator[Side]:
    policies = {SERIAL: graph(1, shed=True), **{f"GraphB(0, {size})": graph(size, shed=True) for size in SIZES[1:]}}
    policies |= {"GraphB(5, 16)": graph(16, 0.005, shed=True), "LazyB": PolicyConfig(BATCHING["lazy"], 16)}
    policies["lazy+"] = PolicyConfig("lazy+", 16)
    for label, policy in policies.items():
        yield Side(label, policy, (Kind.WHOLE,))
    yield Side("Ebird", PolicyConfig(BATCHING["elastic"]), (Kind.WHOLE,), granularities=GRANULARITIES)


def _with_exits() -> Iterator[Side]:
    def exits(label: str, policy: PolicyConfig, *kinds: Kind) -> Side:
        return Side(label, policy, kinds, exits=True)

    for sheds, how in ((True, ""), (False, ", unshed")):
        yield exits(f"GATI{how}", graph(1, shed=sheds), Kind.GATI, Kind.COMPACTED)
        for size in SIZES:
            published = (Kind.PUBLISHED,) if size == SIZES[-1] and not sheds else ()
            waits = graph(size, shed=sheds, leave=False)
            yield exits(f"GATI, batch {size}{how}", waits, Kind.GATI, Kind.SHARED, *published)
        for size in FEW_SIZES:
            yield exits(f"compacted, batch {size}{how}", graph(size, shed=sheds), Kind.COMPACTED)
    yield exits(OURS, PolicyConfig("late", 16), Kind.OURS)
    yield exits("late, no shedding", PolicyConfig("late", 16, shed=False), Kind.WITHOUT)
    yield exits("late, one at a time", PolicyConfig("late", 1), Kind.WITHOUT)


def knowing(every: Mapping[str, Side]) -> str | None:
    """Return a side that answers each request as early as exits allow, and so shows which may leave early; or None."""
    return next((name for name in of_kind(every, Kind.GATI) if not every[name].policy.shed), None)
