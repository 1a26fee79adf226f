"""Tables of `python -m research ray`."""

from latebind.bench.ledger.books import Fault
from latebind.cli.console import Rows
from research.cluster.ray.kill import Killed
from research.cluster.ray.latency import ALONE, Found
from research.cluster.ray.scale import Scaled

MOST_RECOVERY = 10.0  # seconds


def kill_rows(found: Killed) -> Rows:
    """Return each kill: how long nobody was answered right, and how long until there were as many replicas again."""
    return [
        {
            "at request": one.request,
            "longest without a right answer s": f"{silence:.2f}",
            "as many replicas again s": f"{one.seconds:.2f}",
            "its engine": "left behind" if one.engine_left else "ended",
        }
        for one, silence in zip(found.recoveries, found.silences, strict=True)
    ]


def kill_verdict(found: Killed) -> list[str]:
    """Return the requirements that did not hold."""
    slow = [one for one in found.recoveries if one.seconds >= MOST_RECOVERY]
    left = [one for one in found.recoveries if one.engine_left]
    missing = found.times - len(found.recoveries)
    return [
        *found.played.ledger.evidence,
        *([f"{missing} replicas were not killed: the requests ended before; send more"] if missing else []),
        *(f"the replica killed at request {one.request} was replaced after {one.seconds:.1f} s" for one in slow),
        *(f"the engine of the replica killed at request {one.request} lived on" for one in left),
    ]


def scale_rows(found: Scaled) -> Rows:
    """Return the number of replicas over time."""
    return [{"second": f"{at:.1f}", "replicas": count} for at, count in found.replicas]


def scale_summary(found: Scaled) -> Rows:
    """Return how long both ways took, and what was lost."""
    faults = found.played.ledger.faults
    return [
        {
            "to two replicas s": _seconds(found.up),
            "back to one s after the load fell": _seconds(found.down),
            "requests": found.played.ledger.asked_count,
            **{str(fault): faults[fault] for fault in Fault},
        }
    ]


def scale_verdict(found: Scaled) -> list[str]:
    """Return the requirements that did not hold."""
    missing = [what for what, at in (("two replicas", found.up), ("one replica again", found.down)) if at is None]
    return [*found.played.ledger.evidence, *(f"there never were {what}" for what in missing)]


def latency_rows(found: Found) -> Rows:
    """Return each kind of call on both sides."""
    return [
        {
            "call": one.kind,
            "alone ms": _ms(one.alone.mean),
            "median": _ms(one.alone.median),
            "on Ray ms": _ms(one.ray.mean),
            "its median": _ms(one.ray.median),
            "mean, times": str(one.mean),
            "p99, times": str(one.p99),
        }
        for one in found.kinds
    ]


def rest_rows(found: Found) -> Rows:
    """Return where the time goes that calls take longer on Ray; medians, for one stall of the machine moves a mean.

    What a call takes longer where a process that only passes bytes on stands before the stand-alone server is that of
    any hop: two more wake-ups, and bytes that cross twice more. What the engine takes longer is the engine's. The rest
    is what ingress and replica do.
    """
    return [
        {
            "call": one.kind,
            "longer on Ray by ms": _ms(one.ray.median - one.alone.median),
            "a hop that does nothing": _ms(one.bare.median - one.alone.median),
            "engine": _ms(one.ray.engine - one.alone.engine),
            "what ingress and replica do": _ms(one.ray.median - one.bare.median - (one.ray.engine - one.alone.engine)),
            "in the engine, alone": _ms(one.alone.engine),
        }
        for one in found.kinds
    ]


def cpu_rows(found: Found) -> Rows:
    """Return the time in processors that a call took, by process."""
    return [
        {"side": "alone" if side == ALONE else "on Ray", "process": name, "CPU ms of a call": _ms(seconds)}
        for side, by_process in found.cpu.items()
        for name, seconds in sorted(by_process.items())
    ]


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _seconds(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f}"
