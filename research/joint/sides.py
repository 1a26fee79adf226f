"""The sides that are compared: batching without exits, exits as published, and both under one scheduler.

All refuse and drop requests that cannot be in time, because without that no side answers anything in time above
capacity. A scheduler that does not expect exits counts every request with all stages, and refuses more than it must. So
sides with exits run with and without shedding, and the better of the two counts.

In GATI's paper (section 7.2.1) each batch runs until all its requests have hit or reached the end. It measures the
latency of batches of two. It has neither deadlines nor shedding, and says nothing of how a batch is chosen. So it is
here twice: as published, with batches of up to 16 like all others, without shedding; and tuned, as the best of all
batch sizes of two or more, with or without shedding, which no paper describes.
"""

from collections.abc import Sequence
from enum import StrEnum

from latebind.domain.config import PolicyConfig, ServedModel
from research.ebird.policies import GRANULARITIES
from research.policies import BATCHING
from research.sides import SERIAL, Side, graph

SIZES, FEW_SIZES = (2, 4, 8, 16), (4, 16)
OURS = "late"
BATCHES = (1, 2, 4, 8, 16)
GRAPH = "without exits"
WITHOUT = {"GATI batched": GRAPH, "compacted": GRAPH, "late": "late without exits"}  # the same policy
ALONE = "compaction alone"


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
    """Return all sides of answers in time, by name."""
    policies = {SERIAL: graph(1, shed=True), **{f"GraphB(0, {size})": graph(size, shed=True) for size in SIZES[1:]}}
    policies |= {"GraphB(5, 16)": graph(16, 0.005, shed=True), "LazyB": PolicyConfig(BATCHING["lazy"], 16)}
    policies["lazy+"] = PolicyConfig("lazy+", 16)
    found = [Side(label, policy, (Kind.WHOLE,)) for label, policy in policies.items()]
    found.append(Side("Ebird", PolicyConfig(BATCHING["elastic"]), (Kind.WHOLE,), granularities=GRANULARITIES))

    def exits(label: str, policy: PolicyConfig, *kinds: Kind) -> None:
        found.append(Side(label, policy, kinds, exits=True))

    for sheds, how in ((True, ""), (False, ", unshed")):
        exits(f"GATI{how}", graph(1, shed=sheds), Kind.GATI, Kind.COMPACTED)
        for size in SIZES:
            published = (Kind.PUBLISHED,) if size == SIZES[-1] and not sheds else ()
            waits = graph(size, shed=sheds, leave=False)
            exits(f"GATI, batch {size}{how}", waits, Kind.GATI, Kind.SHARED, *published)
        for size in FEW_SIZES:
            exits(f"compacted, batch {size}{how}", graph(size, shed=sheds), Kind.COMPACTED)
    exits(OURS, PolicyConfig("late", 16), Kind.OURS)
    exits("late, no shedding", PolicyConfig("late", 16, shed=False), Kind.WITHOUT)
    exits("late, one at a time", PolicyConfig("late", 1), Kind.WITHOUT)
    return {side.label: side for side in found}


def by_batch(kinds: Sequence[str] = tuple(WITHOUT), sizes: Sequence[int] = BATCHES) -> dict[str, Side]:
    """Return each kind of exits at each largest batch, and the same policy without; of one row nothing is compacted."""
    found = [Side(SERIAL, graph(1))]
    for size in sizes:
        whole, late = graph(size), PolicyConfig("late", size, shed=False)
        policies = {"GATI batched": graph(size, leave=False), "compacted": whole, "late": late}
        for kind in kinds:
            found.append(Side(named(WITHOUT[kind], size), late if kind == "late" else whole))
            found.append(Side(named(kind, size), policies[kind], exits=True))
    return {side.label: side for side in found}


def named(kind: str, size: int) -> str:
    """Return the name of a side."""
    return f"{kind}, {size}"


def refilling(served: ServedModel) -> dict[str, Side]:
    """Return the sides at the model's largest batch; with sequence models, requests that are done leave the batch."""
    most, exits = served.spec.max_batch, not served.spec.kinds
    names = ("late",) if exits else ("continuous", "lazy", "lazy+", "late")
    policies = {"all wait for the last": graph(most, leave=False), ALONE: graph(most)}
    policies |= {name: PolicyConfig(BATCHING[name], most, shed=False) for name in names}
    return {SERIAL: Side(SERIAL, graph(1))} | {
        name: Side(name, policy, exits=exits) for name, policy in policies.items()
    }
