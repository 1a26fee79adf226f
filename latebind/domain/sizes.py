"""Parses sizes as people write them, on the command line and in files: 500MB, 2GiB, or plain bytes."""

import re

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
