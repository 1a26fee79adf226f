"""Figures 11 and 12 as plots, and accuracy beside latency."""

from latebind.bench.report import MARKED, Plot, bars, blank, lines
from research.gati.queries.parts import Found
from research.gati.queries.report import gain, models
from research.gati.queries.sides import EVERY, baseline, replanned
from research.gati.queries.traffic import FACES, STEPS, TABLE_5, VEHICLES


def benefit_figures(found: Found) -> list[Plot]:
    """Draw what replanning gains each planner by deadline (figure 11), and accuracy over mean latency."""
    deadlines = [1e3 * deadline for deadline in found]
    gains = {
        name: (deadlines, [gain(sides[replanned(name)], sides[baseline(name)]) for sides in found.values()])
        for name in EVERY
    }
    y = "points, against the planner's own baseline"
    benefit = lines("Accuracy gained by replanning (figure 11)", gains, x="deadline, ms", y=y)
    title = "Accuracy and latency, a mark for each deadline"
    plane = blank(title, x="mean latency, ms", y="right in time, %")
    for side in next(iter(found.values())):
        results = [sides[side] for sides in found.values()]
        plane.add_scatter(
            x=[1e3 * result.seconds.mean() for result in results],
            y=[100 * result.right().mean() for result in results],
            text=[f"{deadline:g} ms" for deadline in deadlines],
            name=side.label,
            mode=MARKED,
        )
    return [benefit, plane]


def model_figures(found: Found) -> list[Plot]:
    """Draw which models answered, baseline beside replanned, for faces and vehicles (figure 12)."""
    return [_models_figure(found, name, step) for name in EVERY for step in (FACES, VEHICLES)]


def _models_figure(found: Found, name: str, step: int) -> Plot:
    both = [(deadline, side) for deadline in found for side in (baseline(name), replanned(name))]
    labels = [
        [f"{1e3 * deadline:g} ms" for deadline, _ in both],
        ["replanned" if side.caches else "baseline" for _, side in both],
    ]
    ran = [models(found[deadline][side], step) for deadline, side in both]
    shares = {timed.name: (labels, [100 * one.get(timed.name, 0.0) for one in ran]) for timed in TABLE_5[step]}
    title = f"Who answered, {STEPS[step]}, {name} (figure 12)"
    return bars(title, shares, y="% of requests that ran it", barmode="stack")
