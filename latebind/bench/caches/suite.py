"""All parts of the comparison on one set of rows. Slow parts share what was trained for them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from latebind.bench.caches import ablations, baselines, composition, traditional, variants
from latebind.bench.caches.composition import BUDGETS
from latebind.bench.caches.contest import Plan, Standings, Tell
from latebind.bench.caches.models import CachedModel, load_model
from latebind.bench.caches.traditional import Row
from latebind.bench.caches.variants import Lessons
from latebind.domain.errors import ConfigError
from latebind.learned.samples import Samples, checked

BASELINES, TRADITIONAL, VARIANTS = "baselines", "traditional", "variants"
COMPOSITION, ABLATIONS = "composition", "ablations"
PARTS = (BASELINES, TRADITIONAL, VARIANTS, COMPOSITION, ABLATIONS)
TRAINING = {VARIANTS, COMPOSITION, ABLATIONS}


@dataclass(frozen=True, slots=True)
class Setting:
    """What is compared. `stages` are the boundaries of networks to train, by default those of the model's own caches.

    Traditional caches stand behind the last of them and keep `stored` rows. `budgets` are bytes.
    """

    repository: Path
    model: str
    smaller: str | None = None
    backend: str | None = None
    stages: tuple[int, ...] = ()
    stored: int = 10_000
    budgets: tuple[int, ...] = BUDGETS


@dataclass(frozen=True, slots=True)
class Report:
    """What each part found; a part that was not asked for is None or empty. `rows` is on how many."""

    rows: int
    backend: str
    stage: int
    baselines: Standings | None = None
    traditional: tuple[Row, ...] = ()
    variants: tuple[Row, ...] = ()
    composition: Standings | None = None
    ablations: Standings | None = None

    def tables(self) -> dict[str, list[dict[str, object]]]:
        """Return the tables by title, of the parts that ran."""
        found = {
            "learned caches and their baselines": self.baselines.rows() if self.baselines else [],
            f"caches behind stage {self.stage}": traditional.table(self.traditional),
            "networks for a lookup": traditional.table(self.variants),
            "composition": self.composition.rows() if self.composition else [],
            "without one part": self.ablations.rows() if self.ablations else [],
        }
        return {title: rows for title, rows in found.items() if rows}


def run(
    setting: Setting, data: Samples, plan: Plan, *, parts: Sequence[str], lessons: Lessons | None, tell: Tell
) -> Report:
    """Run `parts` on `data`, rows with labels that trained nothing.

    `lessons` are what networks are trained with and traditional caches keep; only baselines need none. Raises
    `ConfigError` for settings without sense.
    """
    _check(parts, lessons)
    torch.set_num_threads(1)
    base = load_model(setting.repository, setting.model, backend=setting.backend)
    smaller = load_model(setting.repository, setting.smaller, backend=setting.backend) if setting.smaller else None
    stages = setting.stages or base.stages
    if not all(0 <= stage < len(base.program.stages) - 1 for stage in stages):
        raise ConfigError(f"{base.name} has boundaries 0 to {len(base.program.stages) - 2}, not all of {stages}")
    ranges, samples = baselines.set_aside(checked(data, base.program.spec), plan.seed)
    report = Report(len(samples), base.program.backend, stages[-1])
    if BASELINES in parts:
        told = _part(tell, BASELINES)
        report = replace(report, baselines=baselines.compare(base, smaller, ranges, samples, plan, tell=told))
    if lessons is None:
        return report
    lessons = replace(lessons, fit=checked(lessons.fit, base.program.spec))
    if TRADITIONAL in parts:
        kept, told = _some(lessons.fit, setting.stored, plan.seed), _part(tell, TRADITIONAL)
        found = traditional.compare(base, stages[-1], kept, samples, plan, tell=told)
        report = replace(report, traditional=tuple(found))
    if TRAINING & set(parts):
        report = _trained(report, base, stages, lessons, setting, samples, plan, parts, tell)
    return report


def _check(parts: Sequence[str], lessons: Lessons | None) -> None:
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise ConfigError(f"there is no part {unknown[0]!r}: take {', '.join(PARTS)}")
    if lessons is None and set(parts) - {BASELINES}:
        raise ConfigError("only the part baselines trains nothing: give rows to train with (--fit) for the others")


def _some(samples: Samples, most: int, seed: int) -> Samples:
    """Return up to `most` rows, drawn by seed."""
    return samples.take(torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))[:most])


def _trained(
    report: Report,
    base: CachedModel,
    stages: Sequence[int],
    lessons: Lessons,
    setting: Setting,
    samples: Samples,
    plan: Plan,
    parts: Sequence[str],
    tell: Tell,
) -> Report:
    explored = variants.explore(base, stages, lessons, samples, plan.seed, tell=_part(tell, VARIANTS))
    if VARIANTS in parts:
        report = replace(report, variants=tuple(variants.compare(explored, samples, plan)))
    if COMPOSITION in parts:
        told = _part(tell, COMPOSITION)
        composed = composition.compare(base, explored, samples, plan, budgets=setting.budgets, tell=told)
        report = replace(report, composition=composed)
    if ABLATIONS in parts:
        told = _part(tell, ABLATIONS)
        undistilled = variants.explore(base, stages, lessons, samples, plan.seed, tell=told, distillation=0.0)
        ablated = ablations.compare(base, explored, undistilled, samples, plan, tell=told)
        report = replace(report, ablations=ablated)
    return report


def _part(tell: Tell, part: str) -> Tell:
    """Return how a part tells of itself."""
    return lambda text, share: tell(f"{part}: {text}", share)
