"""Text from and for users: sizes such as 2GiB, and suggestions for unknown names. Pure."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

from latebind.domain.errors import ConfigError

SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([a-z]*)")
UNITS = {"": 1, "b": 1}
for power, prefix in enumerate("kmgt", start=1):
    UNITS |= {f"{prefix}b": 1000**power, f"{prefix}ib": 1024**power}


def size(option: str, written: str) -> int:
    """Return the bytes that `written` stands for; raises a `ConfigError` that names `option`."""
    found = SIZE.fullmatch(written.strip().lower())
    if found is None or found[2] not in UNITS:
        raise ConfigError(f"{option} {written!r}: write a size such as 500MB (500 million bytes) or 2GiB (2 x 2^30)")
    return int(float(found[1]) * UNITS[found[2]])


FEW = 10  # names that are listed if none is similar
MANY = 50  # names that are compared, at some twenty microseconds each, so that bad names do not delay other calls
NEAR = 0.6  # what `difflib` calls the ratio of two names that may have been meant for each other
SHOWN = 140  # characters of the unknown name that are compared


def instead(name: str, names: Iterable[str]) -> str:
    """Return what follows `there is no model 'X'`: `: did you mean 'Y'?`, or the first of `names`.

    The result shows names, so it is only for callers who may list them.
    """
    known = list(islice(names, MANY))
    if not known:
        return ": there is none"
    folded = {each.casefold(): each for each in known}
    for near in get_close_matches(name[:SHOWN].casefold(), folded, 1, NEAR):
        return f": did you mean {folded[near]!r}?"
    return f": there {'is' if len(known) == 1 else 'are'} {', '.join(known[:FEW])}{' and others' * (len(known) > FEW)}"
