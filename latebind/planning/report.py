"""A plan in words, tables and plots, with its assumptions."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from latebind.planning.plan import FINE, Plan
from latebind.planning.question import Question
from latebind.planning.runs import Figures
from latebind.planning.sampling import Sampling
from latebind.simulation.lengths import describe_rows

if TYPE_CHECKING:
    import plotly.graph_objects as go

Rows = list[dict[str, object]]
MANY_ROWS = 4  # kinds of lengths that are listed
UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def size(bytes_: int) -> str:
    """Write bytes in the largest unit that is not larger."""
    for unit, name in UNITS:
        if bytes_ >= unit:
            return f"{bytes_ / unit:.3g} {name}"
    return f"{bytes_} B"


def plan_rows(plan: Plan) -> Rows:
    """Return a row for each offer, the plan first, then the cheapest; those dearer or never enough come last."""
    ordered = sorted(
        plan.rows, key=lambda row: (row is not plan.best, row.machines is None, row.price, row.offer.kind.memory)
    )
    rows: Rows = []
    for row in ordered:
        machines = f"> {row.most}" if row.machines is None else str(row.machines)
        if row.estimate is not None:
            machines += f" [{row.estimate.low}, {row.estimate.high}]"
        figures = _figures(row.figures)
        cells = {
            "": "*" if row is plan.best else "",
            "kind": row.offer.kind.name,
            "memory": size(row.offer.kind.memory),
            "way": row.offer.way.label,
            "machines": machines,
            "price/h": "" if row.machines is None else f"{row.price:.4g}",
            **{name: figures[name] for name in ("in time", "p99 ms", "busy")},
            "binds": "dearer than the plan" if row.dearer else row.binds,
        }
        rows.append(cells)
    return rows


def sensitivity_rows(plan: Plan) -> Rows:
    """Return a row for each change of the best offer."""
    missing = "the largest model does not fit"
    return [{"change": change.label, **_figures(some, missing)} for change, some in plan.changes]


def answer(question: Question, plan: Plan) -> str:
    """Return the plan in one sentence."""
    if plan.best is None or plan.best.machines is None:
        return (
            f"No offer is enough: less than {question.target:.4g} of the requests are in time, with as many machines "
            "as in the table. Allow more time, more machines (--most) or a lower --target."
        )
    row, kind, way = plan.best, plan.best.offer.kind, plan.best.offer.way
    shedding = "" if way.sheds else ", without shedding"
    estimate, goodput = row.estimate, ""
    if estimate is not None and len(row.figures) > 1:
        some = [one.goodput for one in row.figures]
        goodput = f" In time are {fmean(some):.5g} requests a second (+- {2 * stdev(some) / len(some) ** 0.5:.2g})."
    sure = (
        "" if estimate is None else f" (95 % interval {estimate.low} to {estimate.high}, of {estimate.samples} samples)"
    )
    return (
        f"{row.machines}{sure} of {kind.name} with {size(kind.memory)} for models each ({row.price:.4g} an hour): "
        f"residency {way.residency}{shedding}. What binds is {row.binds}.{goodput}"
    )


def asked(question: Question, sampling: Sampling) -> str:
    """Describe what will be simulated."""
    requests = question.population.requests(seed=0)
    total = sum(model.served.footprint.size for model in question.population.models)
    kinds = len(set(question.workload.machines))
    offers = kinds * len(question.sizes) * len(question.ways)
    part = f"; samples of {sampling.share:.2%} of all are simulated" if sampling.sampled else ""
    return (
        f"{len(question.population.models)} models of {size(total)} together, {len(requests)} requests in "
        f"{requests.times[-1]:.0f} s ({len(requests) / requests.times[-1]:.4g} a second){part}; {offers} offers: "
        f"{kinds} kinds of machines x {len(question.sizes)} sizes of memory x {len(question.ways)} ways; "
        f"{question.seeds} seeds each"
    )


def assumptions(question: Question, sampling: Sampling) -> list[str]:
    """Return the assumptions of a plan, as sentences."""
    runs = (
        f"in the mean of the samples: whole models on whole machines, {sampling.share:.2%} of all in each"
        if sampling.sampled
        else f"in each of {question.seeds} runs of the plan, and in the first of them for the other offers"
    )
    rows = Counter([describe_rows(model.rows) for model in question.population.models if model.rows])
    lengths = "; ".join(f"of {count} model{'s' * (count > 1)}, {text}" for text, count in rows.most_common(MANY_ROWS))
    return [
        f"Enough is: at least {question.target:.4g} of the requests are answered within their deadline, {runs}; "
        f"requests of the first {question.warm:.4g} s do not count, because memory fills meanwhile.",
        "Stages, lookups and loads take exactly the seconds that the file gives, batches those of its curves; learned "
        "caches hit independently, at their rates. Frontends, networks and clients take "
        f"{question.workload.hop * 1e3:.4g} ms for the way to a machine and back.",
        *([f"The length of a row does not depend on when it comes: {lengths}."] if lengths else ()),
        "All machines are of one kind, and none fails unless a table says so. Memory is what models may take, "
        "without system, frontend or activations.",
        "Models are placed and requests routed by the code of the ingress of `serve --on ray`, of which there is one; "
        "clients neither cancel nor try again. Models come and go whole, also those of several stages.",
        f"More machines are assumed never to be worse; beyond {1 / FINE:.0f} the search stops within {FINE:.0%} of the "
        "fewest.",
    ]


def _figures(some: Sequence[Figures], missing: str = "") -> dict[str, object]:
    if not some:
        return {"in time": missing, **dict.fromkeys(("goodput/s", "p50 ms", "p99 ms", "busy", "loads/s"), "")}
    mean = {name: fmean(getattr(one, name) for one in some) for name in ("in_time", "goodput", "p50", "p99", "busy")}
    return {
        "in time": f"{mean['in_time']:.2%}",
        "goodput/s": f"{mean['goodput']:.5g}",
        "p50 ms": f"{mean['p50'] * 1e3:.4g}",
        "p99 ms": f"{mean['p99'] * 1e3:.4g}",
        "busy": f"{mean['busy']:.0%}",
        "loads/s": f"{fmean(one.loads for one in some):.3g}",
    }


def plots(question: Question, plan: Plan) -> "list[go.Figure]":
    """Return the plots of a plan: answers in time over machines, machines by what binds, and the changes."""
    import plotly.graph_objects as go  # noqa: PLC0415  (optional, and slow to import)

    rows = [row for row in plan.rows if row.machines is not None]
    names = [f"{row.offer.kind.name} {size(row.offer.kind.memory)}<br>{row.offer.way.label}" for row in rows]
    compute = [min(row.machines or 0, row.all_in_memory or row.machines or 0) for row in rows]
    memory = [(row.machines or 0) - least for row, least in zip(rows, compute, strict=True)]
    needed = go.Figure()
    needed.add_bar(x=names, y=compute, name="machines")
    needed.add_bar(x=names, y=memory, name="of the plan: because of memory")
    needed.update_layout(barmode="stack")
    needed.update_yaxes(title="machines")
    _titled(needed, "Machines needed, by what binds", "")
    if plan.best is None:
        return [needed]

    # The gap between a way and the dotted line is what memory costs.
    curves, kind = go.Figure(), plan.best.offer.kind
    for place, (label, line) in enumerate(plan.curve.items(), 1):
        counts, shares = zip(*line, strict=True)
        dash = "dot" if place == len(plan.curve) else "solid"
        curves.add_scatter(x=counts, y=shares, mode="lines+markers", name=label, line_dash=dash)
    curves.add_vline(x=plan.best.machines, line_dash="dash", line_color="#2ca02c", annotation_text="plan")
    _titled(curves, f"In time over machines of kind {kind.name}, {size(kind.memory)} each", "machines")

    changes = go.Figure()
    played = {change.label: fmean(one.in_time for one in some) for change, some in plan.changes if some}
    changes.add_bar(x=list(played), y=list(played.values()), name="in time")
    _titled(changes, "The plan where things change", "")
    for figure in (curves, changes):
        figure.add_hline(y=question.target, line_dash="dash", line_color="#d62728", annotation_text="target")
        figure.update_yaxes(title="answers in time", tickformat=".0%")
    return [curves, needed, changes]


def _titled(figure: "go.Figure", title: str, across: str) -> None:
    figure.update_xaxes(title=across)
    figure.update_layout(title=title, template="plotly_white", height=440)
