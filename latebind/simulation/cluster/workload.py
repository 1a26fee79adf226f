"""Reads a workload from its TOML file: kinds of machines, models and traffic. Nothing is drawn at random here.

`population.py` makes models and request rates of it.
"""

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import fields, replace

from latebind.domain.config import PolicyConfig, ResidencyConfig
from latebind.domain.errors import ConfigError
from latebind.domain.wording import size
from latebind.simulation.cluster.fleet import MachineKind, NotNegative, Positive, Whole
from latebind.simulation.lengths import in_words

PLACE = re.compile(r"\$\.([a-z]+)(?:\[[^]]*\])?(?:\.([a-z]+)\b)?")


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the file."""


class Drawn(Part, frozen=True, forbid_unknown_fields=True):
    """A log-normal distribution that models draw a value from. `spread` is the deviation of the logarithm."""

    median: float | str
    spread: NotNegative = 0.5


class Models(Part, frozen=True, forbid_unknown_fields=True):
    """A family of models, either built or declared.

    Built models are those of a folder (`repository`), all of them or those in `only`, each of them `count` times, with
    the costs that were measured when they were built. A declared model has `size` bytes in equal `stages`, and a
    request alone takes `seconds` in all. A batch of b requests takes `once + (1 - once) * b` times as long, and has at
    most `batch` requests. The share `hits[i]` of all requests leaves after stage i, where looking into a learned cache
    takes `lookup` seconds.

    Loading takes `start` seconds, and then reads `bandwidth` bytes a second. An answer is due after `deadline` seconds
    plus `times` the seconds of one request alone. At most `queue` requests wait on a machine. The family gets this
    `share` of all requests; if no family has one, all models count alike.

    Rows differ in length where `lengths` says so: "24" or "8,16,64" alike often, "24~0.8" log-normal around a median of
    24 with a deviation of 0.8 of the logarithm, or a file with a length on each line. Of built models with named
    dimensions all lengths come, each octave alike, if it says nothing, and a file may be an event log of a server. Of
    declared ones, `seconds` are those of a request of the mean length, and each row beside the first share that is paid
    `once` costs in proportion to the longest length of the batch.
    """

    name: str = "model"
    count: Whole = 1
    repository: str = ""
    only: tuple[str, ...] = ()
    size: str | int | Drawn = "100MB"
    seconds: float | Drawn = 0.005
    stages: Whole = 1
    once: Annotated[float, Meta(ge=0, le=1)] = 0.7  # the share of a run that a batch pays once
    batch: Whole = 16
    lengths: str = ""
    hits: tuple[float, ...] = ()
    lookup: NotNegative = 0.0
    bandwidth: str | int = "1GB"
    start: NotNegative = 0.1
    deadline: float = 0.0
    times: float = 0.0
    queue: int = 256
    share: NotNegative = 0.0

    def __post_init__(self) -> None:
        what = f"models {self.name!r}: "
        if len(self.hits) >= self.stages and self.hits and not self.repository:
            raise ConfigError(
                f"{what}hits has {len(self.hits)} shares and there are {self.stages} stages: give one less than stages"
            )
        if not all(hit >= 0.0 for hit in self.hits) or sum(self.hits) > 1.0:
            raise ConfigError(f"{what}hits are {list(self.hits)}: give shares of all requests, together at most 1")
        if not self.deadline + self.times > 0:
            raise ConfigError(f"{what}give a deadline in seconds, or times the seconds of one request, above 0")
        bytes_of(what + "bandwidth", self.bandwidth)
        bytes_of(what + "size", self.size.median if isinstance(self.size, Drawn) else self.size)
        seconds = self.seconds.median if isinstance(self.seconds, Drawn) else self.seconds
        if isinstance(seconds, str) or not seconds > 0:
            raise ConfigError(f"{what}seconds are {seconds!r}: give more than 0")


class Traffic(Part, frozen=True, forbid_unknown_fields=True):
    """Requests arrive at `rate` a second on average, for `duration` seconds.

    With a `trace` (a CSV file of one day of the Azure trace, or an .npz file of `counts` by function and minute),
    models are asked for as its functions were, starting at minute `first`. The counts are scaled to `rate`, or taken as
    they are if the rate is 0. If there are more models than functions, functions are used again at other minutes; if
    there are fewer, several functions share a model. `only` limits the trace to some triggers. Without a trace, the
    rates of models follow Zipf's law with the exponent `zipf`.
    """

    rate: NotNegative = 0.0
    duration: Positive = 3600.0
    trace: str = ""
    first: Annotated[int, Meta(ge=0)] = 0
    only: tuple[str, ...] = ()
    zipf: NotNegative = 1.0

    def __post_init__(self) -> None:
        if not self.rate and not self.trace:
            raise ConfigError("traffic has no rate: give requests a second, or a trace")


class Workload(Part, frozen=True, forbid_unknown_fields=True):
    """The whole file. `hop` is the seconds from the ingress to a machine and back, `seed` is for the models.

    `policy` and `residency` apply to every machine, except that the memory of a machine is its budget.
    """

    machines: tuple[MachineKind, ...]
    models: tuple[Models, ...]
    traffic: Traffic
    policy: PolicyConfig = PolicyConfig()
    residency: ResidencyConfig = ResidencyConfig()
    hop: NotNegative = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.machines:
            raise ConfigError("there are no machines: give [[machines]]")
        if not self.models:
            raise ConfigError("there are no models: give [[models]]")
        if len({models.name for models in self.models}) != len(self.models):
            raise ConfigError("two families of models have the same name: give each its own")
        shares = [models.share > 0 for models in self.models]
        if any(shares) and not all(shares):
            raise ConfigError("some models have a share of the traffic: give each family one, or none")
        if self.residency.budget:
            raise ConfigError("residency.budget is the memory of each machine: leave it out, give machines.memory")


def read_workload(file: Path) -> Workload:
    """Read a workload from a TOML file. Paths in it are relative to the folder of the file.

    Raises `ConfigError`, which names the file, the place in it and the values that are allowed there.
    """
    try:
        tables = tomllib.loads(file.read_text())
        kinds = tables.get("machines")
        for kind in kinds if isinstance(kinds, list) else ():  # memory may be written as 16GB
            if isinstance(kind, dict) and isinstance(kind.get("memory"), str):
                kind["memory"] = bytes_of(f"machines {kind.get('name', '')!r}: memory", kind["memory"])
        workload = msgspec.convert(tables, Workload)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}; give a TOML file of a workload") from None
    except (ConfigError, msgspec.MsgspecError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: {error}{_known(str(error))}") from None
    traffic = replace(workload.traffic, trace=_beside(file, workload.traffic.trace))
    models = tuple(
        [
            replace(one, repository=_beside(file, one.repository), lengths=_file_beside(file, one.lengths))
            for one in workload.models
        ]
    )
    return replace(workload, traffic=traffic, models=models)


def bytes_of(what: str, written: str | float) -> int:
    """Return the number of bytes that is `written` as an integer or like 16GB. Raises `ConfigError` naming `what`."""
    found = size(what, written) if isinstance(written, str) else int(written)
    if found <= 0:
        raise ConfigError(f"{what} is {written}: give more than 0 bytes")
    return found


def _beside(file: Path, path: str) -> str:
    return str(file.parent / path) if path else ""


def _file_beside(file: Path, lengths: str) -> str:
    """Return lengths as written, a file of them by its absolute path."""
    return lengths if not lengths or in_words(lengths) else _beside(file, lengths)


def _known(error: str) -> str:
    """Return the names that are allowed in the table that a decoding error is about, if it is about one."""
    if "`" not in error:
        return ""
    table: Any = Workload
    place = PLACE.search(error)
    for name in place.groups() if place else ():
        table = TABLES.get(name, table)
    return f"; it may have {', '.join(field.name for field in fields(table))}"


TABLES = {
    "machines": MachineKind,
    "models": Models,
    "traffic": Traffic,
    "policy": PolicyConfig,
    "residency": ResidencyConfig,
}
