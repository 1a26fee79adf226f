"""The ending of error messages about an unknown name: a similar name, or the names that exist. Pure."""

from collections.abc import Iterable
from itertools import islice

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
