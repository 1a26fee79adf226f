"""All parts of the comparison on one set of rows. Slow parts share what was trained for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    stages = setting.stages or tuple(base.caches)
    if not all(0 <= stage < len(base.program.stages) - 1 for stage in stages):
        raise ConfigError(f"{base.name} has boundaries 0 to {len(base.program.stages) - 2}, not all of {stages}")
    ranges, samples = baselines.set_aside(checked(data, base.program.spec), plan.seed)
    found: dict[str, Standings | tuple[Row, ...]] = {}
    if BASELINES in parts:
        found[BASELINES] = baselines.compare(base, smaller, ranges, samples, plan, tell=_part(tell, BASELINES))
    if lessons is not None:
        lessons = Lessons(checked(lessons.fit, base.program.spec), *_rest(lessons))
        if TRADITIONAL in parts:
            found[TRADITIONAL] = _traditional(base, stages[-1], lessons, setting.stored, samples, plan, tell)
        if TRAINING & set(parts):
            found |= _trained(base, stages, lessons, setting, samples, plan, parts, tell)
    return Report(len(samples), base.program.backend, stages[-1], **found)  # type: ignore[arg-type]


def _check(parts: Sequence[str], lessons: Lessons | None) -> None:
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise ConfigError(f"there is no part {unknown[0]!r}: take {', '.join(PARTS)}")
    if lessons is None and set(parts) - {BASELINES}:
        raise ConfigError("only the part baselines trains nothing: give rows to train with (--fit) for the others")


def _rest(lessons: Lessons) -> tuple[Sequence[str], int, int]:
    return lessons.kinds, lessons.presentations, lessons.memory


def _traditional(
    base: CachedModel, stage: int, lessons: Lessons, stored: int, samples: Samples, plan: Plan, tell: Tell
) -> tuple[Row, ...]:
    order = torch.randperm(len(lessons.fit), generator=torch.Generator().manual_seed(plan.seed))
    kept = lessons.fit.take(order[:stored])
    return tuple(traditional.compare(base, stage, kept, samples, plan, tell=_part(tell, TRADITIONAL)))


def _trained(
    base: CachedModel,
    stages: Sequence[int],
    lessons: Lessons,
    setting: Setting,
    samples: Samples,
    plan: Plan,
    parts: Sequence[str],
    tell: Tell,
) -> Mapping[str, Standings | tuple[Row, ...]]:
    explored = variants.explore(base, stages, lessons, samples, plan.seed, tell=_part(tell, VARIANTS))
    found: dict[str, Standings | tuple[Row, ...]] = {}
    if VARIANTS in parts:
        found[VARIANTS] = tuple(variants.compare(explored, samples, plan))
    if COMPOSITION in parts:
        told = _part(tell, COMPOSITION)
        found[COMPOSITION] = composition.compare(base, explored, samples, plan, budgets=setting.budgets, tell=told)
    if ABLATIONS in parts:
        told = _part(tell, ABLATIONS)
        undistilled = variants.explore(base, stages, lessons, samples, plan.seed, tell=told, distillation=0.0)
        found[ABLATIONS] = ablations.compare(base, explored, undistilled, samples, plan, tell=told)
    return found


def _part(tell: Tell, part: str) -> Tell:
    """Return how a part tells of itself."""
    return lambda text, share: tell(f"{part}: {text}", share)
