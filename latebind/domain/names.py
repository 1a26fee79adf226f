"""What to say of a name that nothing has: those that are near, or what there is instead. Pure."""

from collections.abc import Iterable
from itertools import islice

FEW = 10  # names that are told whatever was asked for
MANY = 200  # names that are compared, at about two microseconds each: who asks for nonsense holds nobody up
NEAR = 0.6  # of the longer name's letters that two share at their ends
SHOWN = 140  # characters of a name that somebody wrote


def instead(name: str, there: Iterable[str]) -> str:
    """Return what follows `there is no model 'X'`: `: did you mean 'Y'?`, or what there is.

    It tells names, so it is for callers who may list them.
    """
    known = list(islice(there, MANY))
    best = max(known, key=lambda each: _alike(name[:SHOWN], each), default="")
    if best and _alike(name[:SHOWN], best) >= NEAR:
        return f": did you mean {best!r}?"
    if not known:
        return ": there is none"
    return f": there {'is' if len(known) == 1 else 'are'} {', '.join(known[:FEW])}{' and others' * (len(known) > FEW)}"


def _alike(one: str, other: str) -> float:
    """Return the share of the longer name that both begin and end with; case makes no difference."""
    one, other = one.casefold(), other.casefold()
    shortest, longest = sorted((len(one), len(other)))
    return min(_shared(one, other) + _shared(one[::-1], other[::-1]), shortest) / longest if shortest else 0.0


def _shared(one: str, other: str) -> int:
    """Return how many letters both begin with."""
    count = 0
    for mine, its in zip(one, other, strict=False):
        if mine != its:
            break
        count += 1
    return count
