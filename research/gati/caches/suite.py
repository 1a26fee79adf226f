"""All parts of the comparison on one set of rows, each run when it is asked for. Slow parts share trained networks."""

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import torch

from latebind.bench.rounds import Progress
from latebind.domain.errors import ConfigError
from latebind.learned.samples import Samples, checked
from latebind.learned.train import DISTILLATION
from research.gati.caches import ablations, baselines, composition, limits, traditional, variants
from research.gati.caches.composition import BUDGETS
from research.gati.caches.contest import Figures, Plan, Standings
from research.gati.caches.limits import UnderLimits
from research.gati.caches.models import CachedModel, load_model
from research.gati.caches.variants import Explored, Lessons


class Part(StrEnum):
    """What is compared with what; all but the baselines train networks or keep rows."""

    BASELINES = "baselines"
    TRADITIONAL = "traditional"
    VARIANTS = "variants"
    COMPOSITION = "composition"
    LIMITS = "limits"
    ABLATIONS = "ablations"


@dataclass(frozen=True, slots=True)
class Setting:
    """What is compared. `stages` are the boundaries of networks to train, by default those of the model's own caches.

    Traditional caches stand behind the last of them and keep `stored` rows. `budgets` are bytes.
    """

    repository: Path
    model: str
    parts: tuple[Part, ...] = tuple(Part)
    smaller: str | None = None
    backend: str | None = None
    stages: tuple[int, ...] = ()
    stored: int = 10_000
    budgets: tuple[int, ...] = BUDGETS


@dataclass(frozen=True, slots=True)
class Result:
    """What a part found: rows of figures, and the outcomes behind them where methods ran against each other.

    `under` are those under several limits of memory.
    """

    part: Part
    title: str
    rows: list[Figures]
    standings: Standings | None = None
    under: UnderLimits | None = None


class Suite:
    """The models, loaded, the rows to compare them on, and the networks that several parts need.

    `data` are rows with labels that trained nothing; `lessons` are what networks are trained with and traditional
    caches keep. Raises `ConfigError` for settings without sense.
    """

    def __init__(self, setting: Setting, data: Samples, plan: Plan, lessons: Lessons | None) -> None:
        if lessons is None and set(setting.parts) - {Part.BASELINES}:
            raise ConfigError("only the part baselines trains nothing: give rows to train with (--fit) for the others")
        torch.set_num_threads(1)
        self._setting, self._plan = setting, plan
        self.base = load_model(setting.repository, setting.model, backend=setting.backend)
        self._smaller: CachedModel | None = None
        if setting.smaller is not None:
            self._smaller = load_model(setting.repository, setting.smaller, backend=setting.backend)
        spec, boundaries = self.base.program.spec, range(len(self.base.program.stages) - 1)
        self._stages = sorted(set(setting.stages or self.base.stages))
        if not set(self._stages) <= set(boundaries):
            raise ConfigError(f"{setting.model} has boundaries 0 to {boundaries[-1]}, not all of {self._stages}")
        self._ranges, self.samples = baselines.set_aside(checked(data, spec), plan.seed)
        self._lessons = None if lessons is None else replace(lessons, fit=checked(lessons.fit, spec))
        self._explored: Explored | None = None

    def measure(self, part: Part, *, tell: Progress) -> Result:
        """Measure one of the parts of the setting."""
        base, samples, plan = self.base, self.samples, self._plan
        match part:
            case Part.BASELINES:
                found = baselines.compare(base, self._smaller, self._ranges, samples, plan, tell=tell)
                return Result(part, "learned caches and their baselines", found.rows(), found)
            case Part.TRADITIONAL:
                stage, kept = self._stages[-1], self._some()
                rows = traditional.compare(base, stage, kept, samples, plan, tell=tell)
                return Result(part, f"caches behind stage {stage}", traditional.table(rows))
            case Part.VARIANTS:
                rows = variants.compare(self._distilled(tell), samples, plan)
                return Result(part, "networks for a lookup", traditional.table(rows))
            case Part.COMPOSITION:
                budgets = self._setting.budgets
                found = composition.compare(base, self._distilled(tell), samples, plan, budgets=budgets, tell=tell)
                return Result(part, "composition", found.rows(), found)
            case Part.LIMITS:
                budgets = self._setting.budgets
                under = limits.compare(base, self._distilled(tell), samples, plan, budgets=budgets, tell=tell)
                return Result(part, "composition under limits of memory", under.rows(), under=under)
            case Part.ABLATIONS:
                undistilled = self._explore(tell, distillation=0.0)
                found = ablations.compare(base, self._distilled(tell), undistilled, samples, plan, tell=tell)
                return Result(part, "without one part", found.rows(), found)

    def _distilled(self, tell: Progress) -> Explored:
        """Return the networks that several parts need, trained once."""
        if self._explored is None:
            self._explored = self._explore(tell, distillation=DISTILLATION)
        return self._explored

    def _explore(self, tell: Progress, *, distillation: float) -> Explored:
        assert self._lessons is not None
        seed = self._plan.seed
        return variants.explore(
            self.base, self._stages, self._lessons, self.samples, seed, tell=tell, distillation=distillation
        )

    def _some(self) -> Samples:
        """Return the rows that traditional caches keep, drawn by seed."""
        assert self._lessons is not None
        fit, generator = self._lessons.fit, torch.Generator().manual_seed(self._plan.seed)
        return fit.take(torch.randperm(len(fit), generator=generator)[: self._setting.stored])
