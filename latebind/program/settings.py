"""The settings of a build: the model's name, the backends that may run it, and how its stages are cut."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from latebind.domain.errors import ConfigError
from latebind.program.backends import BACKENDS
from latebind.repository.manifest import NAME


@dataclass(frozen=True, slots=True)
class Settings:
    """The name and version of the model, its largest batch, and the backends to try with so many threads.

    `tolerance` is the relative error that the user accepts; None if none was given.
    """

    name: str
    version: str
    max_batch: int
    backends: tuple[str, ...]
    tolerance: float | None
    threads: int

    @classmethod
    def checked(
        cls,
        name: str,
        version: str,
        *,
        max_batch: int,
        backends: Sequence[str] | None,
        tolerance: float | None,
        threads: int,
    ) -> Self:
        """Return the settings; raises `ConfigError` that names an invalid one.

        Without `backends` all are tried, those of lower precision only if a tolerance is given.
        """
        if not NAME.fullmatch(name) or not version.isdecimal():
            raise ConfigError(f"name {name!r}, version {version!r}: use letters, digits, '.', '_', '-', and a number")
        if max_batch < 1 or threads < 1:
            raise ConfigError(f"max_batch is {max_batch} and threads {threads}: both must be 1 or more")
        if tolerance is not None and not tolerance > 0:
            raise ConfigError(f"tolerance is {tolerance}: give a relative error above 0, as 1e-5")
        for backend in backends or ():
            if backend not in BACKENDS:
                raise ConfigError(f"there is no backend {backend!r}: choose from {', '.join(BACKENDS)}")
            if tolerance is None and not BACKENDS[backend].exact:
                raise ConfigError(f"the backend {backend!r} is less precise: state the tolerance that you accept")
        usual = (name for name, backend in BACKENDS.items() if backend.exact or tolerance is not None)
        return cls(name, version, max_batch, tuple(backends or usual), tolerance, threads)


@dataclass(frozen=True, slots=True)
class StageLimits:
    """How a model is cut: what a stage has to be worth, and what the cuts may cost.

    A stage takes at least `seconds` on average (0 keeps every cut) and has weights of at least `bytes`; with `seconds`
    0, `bytes` alone decides. The chain of stages may take 1 + `overhead` times as long as the uncut model (None: no
    limit).
    """

    seconds: float
    overhead: float | None
    bytes: int = 0
