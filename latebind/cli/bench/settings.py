"""Groups of options that parts share which ask live models: what is asked, on which cores, calibrated how."""

from dataclasses import dataclass
from pathlib import Path

from latebind.bench import subject as bench
from latebind.bench.folds import Folds
from latebind.cli.bench.options import (
    Awake,
    Core,
    Data,
    DataOption,
    DoorCore,
    FoldCount,
    FoldFidelity,
    Model,
    Repository,
    Seed,
)
from latebind.cli.sources import load_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model in a folder, and the rows to send to it."""

    repository: Repository
    model: Model
    data: Data
    data_option: DataOption = None

    def load(self) -> bench.Subject:
        """Return the model with its rows, and with labels if there are any. Raises `ConfigError`."""
        return bench.Subject(self.repository, self.model, *load_rows(self.data, self.data_option))


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What all sides have in common: the cores, whether idle cores are kept awake, and the seed."""

    engine_core: Core = 1
    door_core: DoorCore = 0
    awake: Awake = False
    seed: Seed = 0

    def setting(self, backend: str | None = None, log: Path | None = None) -> bench.Setting:
        """Return how each side is served."""
        return bench.Setting(backend, (self.door_core,), self.engine_core, self.seed, log)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Whether to calibrate thresholds on other rows than those that are sent, and for which fidelity."""

    folds: FoldCount = 0
    fidelity: FoldFidelity = 0.97

    def wanted(self) -> Folds | None:
        """Return the folds, or None to use the thresholds of the model."""
        return Folds(self.folds, self.fidelity) if self.folds else None
