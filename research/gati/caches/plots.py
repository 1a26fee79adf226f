"""The comparison of learned caches as plots: distributions, fidelity against latency, sweeps."""

from latebind.bench.report import MARKED, Plot, blank, distributions
from research.gati.caches.contest import Standings
from research.gati.caches.limits import UnderLimits
from research.gati.caches.suite import Part, Result


def plots(result: Result) -> list[Plot]:
    """Return the plots of a part; not all have some."""
    match result.part, result.standings:
        case Part.BASELINES, Standings() as found:
            return [distribution(found), fidelity_and_latency(found)]
        case Part.COMPOSITION, Standings() as found:
            alpha = sweep(found, "alpha ", "Weight of hit rates against gains (alpha)")
            return [alpha, sweep(found, "memory ", "Memory for learned caches, MB")]
    return [] if result.under is None else [by_memory(result.under)]


def distribution(found: Standings) -> Plot:
    """Draw the share of rows answered within a time for each method (GATI, figures 6a and 8a)."""
    seconds = {one.name: one.seconds for one in found.outcomes}
    return distributions("Latency distribution, batch 1, one thread", seconds, of="rows")


def fidelity_and_latency(found: Standings) -> Plot:
    """Draw fidelity against mean latency, one mark for each method (GATI, figure 6b)."""
    x = {"title": "mean latency, ms", "rangemode": "tozero"}
    y = {"title": "agreement with the base model", "tickformat": ".1%"}
    figure = blank("Fidelity and mean latency", x=x, y=y)
    for one in found.outcomes:
        figure.add_scatter(
            x=[one.seconds.mean() * 1e3], y=[found.fidelity(one)], name=one.name, mode="markers", marker={"size": 14}
        )
    return figure


def by_memory(under: UnderLimits) -> Plot:
    """Draw each rule's mean latency by the memory that lookups may take."""
    x = {"title": "Memory for learned caches, MB", "type": "log"}
    figure = blank("Rules of composition by memory", x=x, y={"title": "mean latency, ms", "rangemode": "tozero"})
    for rule in under.rules:
        milliseconds = [float(one.seconds.mean() * 1e3) for one in under.of(rule)]
        figure.add_scatter(x=[budget / 1e6 for budget in under.budgets], y=milliseconds, name=rule, mode=MARKED)
    return figure


def sweep(found: Standings, prefix: str, axis: str) -> Plot:
    """Draw mean latency and fidelity of the methods whose names are `prefix` and a number (GATI, figures 7a and 25)."""
    swept = [one for one in found.outcomes if one.name.startswith(prefix)]
    places = [float(one.name.removeprefix(prefix).split()[0]) for one in swept]
    x = {"title": axis, "type": "log" if places and min(places) > 0 else "linear"}
    fidelity_axis = {"title": "fidelity", "overlaying": "y", "side": "right", "tickformat": ".1%"}
    figure = blank(axis, x=x, y={"title": "mean latency, ms", "rangemode": "tozero"}, yaxis2=fidelity_axis)
    milliseconds = [float(one.seconds.mean() * 1e3) for one in swept]
    figure.add_scatter(x=places, y=milliseconds, name="mean latency, ms", mode=MARKED)
    figure.add_scatter(x=places, y=[found.fidelity(one) for one in swept], name="fidelity", yaxis="y2", mode=MARKED)
    return figure
