"""The sizes of the rows of simulated requests: listed, drawn, or those of a file. Pure."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path
from random import Random
from typing import TypeAlias

from latebind.domain.actions import Outcome
from latebind.domain.costs import ModelCosts
from latebind.domain.errors import ConfigError
from latebind.domain.eventlog import read_log
from latebind.domain.events import Arrived
from latebind.domain.sizes import Dim
from latebind.simulation.driver import Record
from latebind.simulation.workloads import Arrival

DRAWN = 1_000
QUARTERS = 4
PADS_LITTLE = 1.1  # ratio of lengths run to lengths sent up to which no reason is given
WORDS = "24, 8,16,64, 24~0.8, or a file"
HOW = (
    "24 or 8,16,64: these, equally often; 24~0.8: log-normal around a median of 24, with 0.8 the deviation of the "
    "logarithm, cut to what is allowed; or a file with a length on each line, or an event log of a server, for the "
    "lengths that came. If several dimensions have names, a size is written 64x96"
)
_LISTED = re.compile(r"\d+(x\d+)*(,\d+(x\d+)*)*")
_NORMAL = re.compile(r"(\d+)~(\d+(?:\.\d+)?)")

Rows: TypeAlias = tuple[tuple[int, int], ...]  # of equally frequent ones: the length, and `sizes` as in `Arrived`


def read_rows(text: str, dims: Sequence[Dim], model: str) -> Rows:
    """Return the rows that `text` describes, as explained in `HOW`; "": drawn by octaves, equally often, from `dims`.

    Raises `ConfigError`, which says what to write, for other texts, or a size that a row may not have.
    """
    file = Path(text)
    return _of_log(file, model) if _is_log(file) else _numbered(read_sizes(text, dims, model))


def read_sizes(described: str, dims: Sequence[Dim], model: str) -> list[tuple[int, ...]]:
    """Return the sizes of the named dimensions of the rows that `described` describes; it is not an event log."""
    random = Random(0)
    normal = _NORMAL.fullmatch(described)
    if not described:
        return [tuple([_by_octave(dim, random.random()) for dim in dims]) for _ in range(DRAWN)]
    if normal is not None:
        if len(dims) != 1:
            raise ConfigError(
                f"{model} has {len(dims)} named dimensions, and {described} draws one: list sizes, such as 64x96"
            )
        median, spread = int(normal[1]), float(normal[2])
        return [(dims[0].near(median * random.lognormvariate(0.0, spread)),) for _ in range(DRAWN)]
    if _LISTED.fullmatch(described):
        return [_row(text, dims, f"{model}: length {text}") for text in described.split(",")]
    try:
        words = Path(described).read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{described} has no lengths ({error}): write {WORDS}") from None
    if not words:
        raise ConfigError(f"{described} is empty: write a length on each line")
    return [_row(text, dims, f"{described}, word {place}") for place, text in enumerate(words, start=1)]


def in_words(text: str) -> bool:
    """Return whether lengths are described by a text, not by a file."""

    return bool(_LISTED.fullmatch(text) or _NORMAL.fullmatch(text))


def _is_log(file: Path) -> bool:
    try:
        with file.open("rb") as content:
            return content.read(1) == b"{"
    except OSError:
        return False


def _of_log(file: Path, model: str) -> Rows:
    """Return the rows of the requests that came for a model."""
    with file.open("rb") as content:
        came = [entry.event for entry in read_log(content)[1] if isinstance(entry.event, Arrived)]
    found = [(length, one.sizes) for one in came if one.model == model for length in one.inputs]
    if not found:
        raise ConfigError(f"{file} has no request for {model} with a length: give a log of such a server")
    return tuple(found)


def _row(text: str, dims: Sequence[Dim], where: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d{1,18}(x\d{1,18})*", text):
        raise ConfigError(f"{where} is not a length, but {text!r}: write {WORDS}")
    sizes = tuple(map(int, text.split("x")))
    if len(sizes) != len(dims):
        raise ConfigError(
            f"{where}: the named dimensions are {', '.join(one.name for one in dims)}: write one for each"
        )
    for size, dim in zip(sizes, dims, strict=True):
        if not dim.allows(size):
            raise ConfigError(f"{where}: {dim.name} must be {dim.range()}, not {size}")
    return sizes


def _by_octave(dim: Dim, at: float) -> int:
    return dim.near(dim.least * (dim.most / dim.least) ** at)


def _numbered(rows: Iterable[tuple[int, ...]]) -> Rows:
    numbers: dict[tuple[int, ...], int] = {}
    return tuple([(prod(row), numbers.setdefault(row, len(numbers) + 1)) for row in rows])


def with_rows(arrivals: Iterable[Arrival], rows: Rows, random: Random) -> Iterator[Arrival]:
    """Yield the arrivals, each with the length of one of the rows."""
    for arrival in arrivals:
        length, sizes = random.choice(rows)
        yield replace(arrival, inputs=length, sizes=sizes)


def describe_rows(rows: Rows) -> str:
    """Return in words how long rows are."""
    lengths = sorted(length for length, _ in rows)
    return f"lengths {lengths[0]} to {lengths[-1]}, half up to {lengths[(len(lengths) - 1) // 2]}"


def by_quarter(records: Iterable[Record], lengths: Sequence[int], allowed: float) -> tuple[float, ...]:
    """Return the share answered within `allowed` seconds for the shortest quarter of requests, and each longer one.

    `lengths` are those of the requests, by number.
    """
    in_time = {one.request for one in records if one.outcome is Outcome.ANSWERED and one.latency <= allowed}
    order = sorted({one.request for one in records}, key=lambda request: (lengths[request], request))
    ends = [len(order) * part // QUARTERS for part in range(QUARTERS + 1)]
    parts = [order[begin:end] for begin, end in pairwise(ends)]
    return tuple([sum(request in in_time for request in part) / max(1, len(part)) for part in parts])


def why_padded(costs: ModelCosts, lengths: Iterable[int], most: int) -> str:
    """Return, in words, what padding costs: a row of the shortest quarter with longer ones, and alone."""
    ordered = sorted(lengths)
    short, long = ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]
    rows = max(2, most // 2)
    alone = costs.remaining(0, 1, short)
    beside = costs.remaining(0, rows, long) - costs.remaining(0, rows - 1, long)
    return (
        f"a row of {short} takes {1e3 * alone:.3g} ms alone, and {1e3 * beside:.3g} ms more as one of {rows} rows that "
        f"are padded to {long}"
    )
