"""Trains networks of every kind at every boundary and measures them in place (GATI, section 3.2 and table 4)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from latebind.bench.rounds import Progress
from latebind.learned.compose import Costs
from latebind.learned.eight_bits import eight_bit_lookup
from latebind.learned.exploration_folder import ExplorationFolder, Origin
from latebind.learned.explore import Explorer, TrainedLookup, in_order, on_all_cores
from latebind.learned.networks import BYTES
from latebind.learned.plan import Candidate
from latebind.learned.samples import Samples
from latebind.learned.train import DISTILLATION
from latebind.program.program import Program
from latebind.program.stored import read_model
from research.gati.caches.contest import Plan
from research.gati.caches.models import CachedModel
from research.gati.caches.route import Answers, Exit, Look, Route, Stage, answers_of, costs_of, selected
from research.gati.caches.traditional import Row, figures

KINDS = ("fc(512)", "pool(4096)", "conv(3,1)", "conv(5,2)", "light", "residual")


@dataclass(frozen=True, slots=True)
class Lessons:
    """What is trained, and how long: `presentations` are rows that each predictor sees.

    The kind "bytes" is the network itself in eight bits, before the network, and is not trained.
    `disk` is the most bytes that activations take meanwhile. Networks stay in `folder`, if there is one: who trains
    the same again finds them there, and who trains with other lessons replaces them.
    """

    fit: Samples
    kinds: Sequence[str] = KINDS
    presentations: int = 100_000
    disk: int = 20 << 30
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Explored:
    """Trained lookups, all on one route, and what they say of the rows of the comparison. Costs are in their place."""

    trained: tuple[TrainedLookup, ...]
    route: Route
    answers: Answers
    costs: Costs


def name_of(one: TrainedLookup) -> str:
    """Name a lookup by kind and boundary."""
    return f"{one.plan.kind} behind {one.plan.stage}"


def explore(
    base: CachedModel,
    stages: Sequence[int],
    lessons: Lessons,
    samples: Samples,
    seed: int,
    *,
    tell: Progress,
    distillation: float = DISTILLATION,
) -> Explored:
    """Make a lookup of every kind behind each stage (ascending), and ask all of them for all rows."""
    with TemporaryDirectory(prefix="latebind-") as passing:
        folder = (lessons.folder or Path(passing)) / f"distillation-{distillation:g}"
        trained = _train(base, stages, lessons, folder, seed, tell=tell, distillation=distillation)
    tell("asking all lookups", 0.9)
    route = with_all(base.program, trained, [selected(one.function) for one in trained])
    sure = tuple([place for place, one in enumerate(trained) if one.files.head.sure])
    return Explored(trained, route, answers_of(route, samples), replace(costs_of(route, samples), sure=sure))


def _train(
    base: CachedModel,
    stages: Sequence[int],
    lessons: Lessons,
    folder: Path,
    seed: int,
    *,
    tell: Progress,
    distillation: float,
) -> tuple[TrainedLookup, ...]:
    explorer = Explorer(
        program=base.program,
        wide=on_all_cores(base.directory, base.program),
        names=read_model(base.directory).boundaries(entry=base.program.entry),
        kept=ExplorationFolder.open(
            folder, Origin.of(base.directory, lessons.fit, seed=seed, presentations=lessons.presentations)
        ),
        seed=seed,
        presentations=lessons.presentations,
        disk=lessons.disk,
        progress=tell,
        distillation=distillation,
    )
    kinds = [kind for kind in lessons.kinds if kind != BYTES]
    found = explorer.train([Candidate(stage, kind, 0.0) for stage in stages for kind in kinds], lessons.fit)
    if BYTES not in lessons.kinds:
        return found.trained
    return tuple(in_order([*found.trained, *eight_bit_lookup(base.directory, explorer, lessons.fit, found)[0]]))


def with_all(program: Program, trained: Sequence[TrainedLookup], looks: Sequence[Look]) -> Route:
    """Return the model with every lookup at its boundary, one behind another where there are several."""
    pieces: list[Stage | Exit] = []
    for number, stage in enumerate(program.stages):
        pieces.append(Stage(stage))
        pieces += [
            Exit(name_of(one), look, one.bytes)
            for one, look in zip(trained, looks, strict=True)
            if one.plan.stage == number
        ]
    return Route(tuple(pieces))


def compare(explored: Explored, samples: Samples, plan: Plan) -> list[Row]:
    """Return the figures of each lookup alone, at the same target."""
    return [_row(explored, place, samples, plan) for place in range(len(explored.trained))]


def _row(explored: Explored, place: int, samples: Samples, plan: Plan) -> Row:
    said = explored.answers
    alone = Answers(said.scores[place : place + 1], said.classes[place : place + 1], said.ends)
    costs = alone_at(explored.costs, place)
    return figures(explored.route.exits[place], alone, costs, samples, plan)


def alone_at(costs: Costs, place: int) -> Costs:
    """Return the costs of a route with one of the lookups only."""
    before, after = costs.segments[: place + 1], costs.segments[place + 1 :]
    sure = (0,) if place in costs.sure else ()
    return Costs((float(np.sum(before)), float(np.sum(after))), (costs.lookups[place],), sure=sure)
