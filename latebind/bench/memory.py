"""What several workers take in memory: one copy of the weights for all, or one for each. Linux, from `smaps_rollup`."""

from dataclasses import dataclass
from pathlib import Path

KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class Resident:
    """Bytes in memory: what only this process has, and that with its part of what it shares (PSS)."""

    private: int
    whole: int


def resident(process: int | None = None) -> Resident:
    """Return what a process takes, or this one."""
    lines = Path(f"/proc/{process or 'self'}/smaps_rollup").read_text().splitlines()[1:]
    found = {name: int(rest.split()[0]) * KIB for name, rest in (line.split(":") for line in lines)}
    return Resident(found["Private_Clean"] + found["Private_Dirty"], found["Pss"])
