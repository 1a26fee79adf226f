"""Measures learned caches with one of their parts left out at a time (GATI, appendix A.2.1)."""

import numpy as np

from latebind.bench.rounds import Progress
from latebind.learned.compose import Costs, Floats, Seen
from latebind.learned.lookup import compile_lookup_files
from latebind.learned.samples import Samples
from latebind.program.backends import BACKENDS
from latebind.program.load import load_program
from research.gati.caches.composition import Rules, composition_of
from research.gati.caches.contest import Contender, Plan, Rows, Standings, no_exits, standings
from research.gati.caches.models import CachedModel
from research.gati.caches.route import answers_of, costs_of, selected, unselected
from research.gati.caches.variants import Explored, with_all


def compare(
    base: CachedModel, explored: Explored, undistilled: Explored, samples: Samples, plan: Plan, *, tell: Progress
) -> Standings:
    """Run the full method and those without a part. `undistilled` are the same networks, trained on classes alone."""
    seen = explored.answers.against(explored.answers.ends)
    stages = len(base.program.stages)

    def contender(name: str, of: Explored, costs: Costs, said: Seen) -> Contender:
        rules = Rules(composition_of(of, stages, costs, plan.promise), said)
        return Contender(name, of.route, base.bytes, rules.search())

    composed = Rules(composition_of(explored, stages, explored.costs, plan.promise), seen)

    def no_composition(choose: Rows, show: Rows) -> Floats:
        return composed.among(_most_able(explored, seen.take(choose)))(choose, show)

    tell("asking predictors without selectors", 0.0)
    found = [
        Contender(f"{base.name} alone", base.whole(), base.bytes, no_exits),
        Contender("all parts", explored.route, base.bytes, composed.search()),
        contender(
            "no distillation", undistilled, undistilled.costs, undistilled.answers.against(explored.answers.ends)
        ),
        _without_selectors(base, explored, samples, plan),
        Contender("no composition", explored.route, base.bytes, no_composition),
    ]
    other = "eager" if base.program.backend != "eager" else "openvino"
    if BACKENDS[other].unavailable() is None:
        tell(f"costs on {other}", 0.1)
        found.append(contender(f"profile of {other}", explored, _costs_on(other, base, explored, samples), seen))
    return standings(found, samples, plan, tell=lambda text, share: tell(text, 0.2 + 0.8 * share))


def _without_selectors(base: CachedModel, explored: Explored, samples: Samples, plan: Plan) -> Contender:
    route = with_all(base.program, explored.trained, [unselected(one.function) for one in explored.trained])
    said = answers_of(route, samples)
    composition = composition_of(explored, len(base.program.stages), costs_of(route, samples), plan.promise)
    rules = Rules(composition, said.against(said.ends))
    return Contender("no selector", route, base.bytes, rules.search())


def _most_able(explored: Explored, seen: Seen) -> tuple[int, ...]:
    """Return for every boundary the lookup that is right most often by itself, whatever it costs."""
    right = seen.right.mean(axis=1)
    best: dict[int, int] = {}
    for place in np.argsort(right, kind="stable").tolist():
        best[explored.trained[place].plan.stage] = place
    return tuple(sorted(best.values()))


def _costs_on(backend: str, base: CachedModel, explored: Explored, samples: Samples) -> Costs:
    """Measure stages and lookups on another backend, as if the profile had been taken on that."""
    program = load_program(base.directory, backend=backend)
    looks = [selected(compile_lookup_files(one.files, backend=backend, threads=1)) for one in explored.trained]
    return costs_of(with_all(program, explored.trained, looks), samples)
