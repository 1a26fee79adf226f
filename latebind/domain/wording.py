"""Text from and for people: sizes such as 2GiB, and the name that was meant for an unknown one. Pure."""

import re
from collections.abc import Iterable
from itertools import islice

from latebind.domain.errors import ConfigError

SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([a-z]*)")
UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def size(option: str, written: str) -> int:
    """Return the bytes that `written` stands for; raises a `ConfigError` that names `option`."""
    found = SIZE.fullmatch(written.strip().lower())
    if found is None or found[2] not in UNITS:
        raise ConfigError(f"{option} {written!r}: write a size such as 500MB (500 million bytes) or 2GiB (2 x 2^30)")
    return int(float(found[1]) * UNITS[found[2]])


FEW = 10  # names that are listed where none is similar
MANY = 200  # names that are compared, at about two microseconds each, so that bad names do not delay other calls
NEAR = 0.6  # share of the longer name's letters that similar names have in common at their ends
SHOWN = 140  # characters of the unknown name that are compared


def instead(name: str, there: Iterable[str]) -> str:
    """Return what follows `there is no model 'X'`: `: did you mean 'Y'?`, or the names in `there`.

    The result shows names, so it is only for callers who may list them.
    """
    known = list(islice(there, MANY))
    best = max(known, key=lambda each: _alike(name[:SHOWN], each), default="")
    if best and _alike(name[:SHOWN], best) >= NEAR:
        return f": did you mean {best!r}?"
    if not known:
        return ": there is none"
    return f": there {'is' if len(known) == 1 else 'are'} {', '.join(known[:FEW])}{' and others' * (len(known) > FEW)}"


def _alike(one: str, other: str) -> float:
    """Return the share of the longer name that is a common beginning or end of both, ignoring case."""
    one, other = one.casefold(), other.casefold()
    shortest, longest = sorted((len(one), len(other)))
    return min(_shared(one, other) + _shared(one[::-1], other[::-1]), shortest) / longest if shortest else 0.0


def _shared(one: str, other: str) -> int:
    """Return the length of the common beginning."""
    count = 0
    for mine, its in zip(one, other, strict=False):
        if mine != its:
            break
        count += 1
    return count
