"""A plan in words and tables, with its assumptions."""

from collections.abc import Sequence
from math import ceil
from statistics import fmean

from latebind.planning.figures import Figures
from latebind.planning.plan import Plan, Row
from latebind.planning.question import Question

Rows = list[dict[str, object]]
UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def size(bytes_: int) -> str:
    """Write bytes in the largest unit that is not larger."""
    for unit, name in UNITS:
        if bytes_ >= unit:
            return f"{bytes_ / unit:.3g} {name}"
    return f"{bytes_} B"


def whole(question: Question, machines: int) -> int:
    """Return the machines that all of the traffic needs, where `machines` are for the sample that was played."""
    return ceil(machines / question.sample)


def plan_rows(question: Question, plan: Plan) -> Rows:
    """Return a row for each offer, the cheapest first; those that are dearer or never enough come last."""
    ordered = sorted(plan.rows, key=lambda row: (row.machines is None, row.price, row.offer.kind.memory))
    return [_plan_row(question, row, chosen=row is plan.best) for row in ordered]


def sensitivity_rows(plan: Plan) -> Rows:
    """Return a row for each change of the best offer."""
    missing = "the largest model does not fit"
    return [{"change": change.label, **_figures(some, missing)} for change, some in plan.changes]


def answer(question: Question, plan: Plan) -> str:
    """Say the plan in one sentence."""
    if plan.best is None or plan.best.machines is None:
        return (
            f"No offer is enough: less than {question.target:.4g} of the requests come in time, with as many machines "
            "as the table says. Allow more time, more machines (--most) or a lower --target."
        )
    row, kind, way = plan.best, plan.best.offer.kind, plan.best.offer.way
    machines, price = whole(question, plan.best.machines), _price(question, row)
    shedding = "" if way.sheds else ", without shedding"
    return (
        f"{machines} of {kind.name} with {size(kind.memory)} for models each ({price:.4g} an hour): router "
        f"{way.router}, placement {way.placer}, residency {way.residency}{shedding}. "
        f"What binds is {row.binds}."
    )


def asked(question: Question) -> str:
    """Describe what is to be played."""
    requests = question.traffic.requests(seed=0)
    total = sum(model.served.footprint.size for model in question.models)
    offers = len(question.kinds) * len(question.sizes) * len(question.ways)
    part = "" if question.sample == 1.0 else f"; a sample of {question.sample:.4g} of all"
    return (
        f"{len(question.models)} models of {size(total)} together, {len(requests)} requests in "
        f"{requests.times[-1]:.0f} s ({len(requests) / requests.times[-1]:.4g} a second){part}; {offers} offers: "
        f"{len(question.kinds)} kinds of machines x {len(question.sizes)} sizes of memory x {len(question.ways)} ways; "
        f"{question.seeds} seeds each"
    )


def assumptions(question: Question) -> list[str]:
    """Return the assumptions of a plan, as sentences."""
    return [
        f"Enough is: at least {question.target:.4g} of the requests are answered within their deadline, in each of "
        f"{question.seeds} runs; requests of the first {question.warm:.4g} s do not count, for memory fills meanwhile.",
        "Stages, lookups and loads take exactly the seconds that the file gives, batches those of its curves; learned "
        "caches hit independently, at their rates. Doors, networks and clients take "
        f"{question.hop * 1e3:.4g} ms for the way to a machine and back.",
        "All machines are of one kind, and none fails but where a table says so. Memory is what models may take, "
        "without system, door or activations.",
        "The router knows the state of all machines at once; clients neither cancel nor try again.",
        "Models come and go whole, also those of several stages. Faults that the file tells of are not played.",
        "More machines are taken to be never worse; beyond 50 the search stops within 2 % of the fewest.",
    ]


def _plan_row(question: Question, row: Row, *, chosen: bool) -> dict[str, object]:
    kind, way = row.offer.kind, row.offer.way
    machines = f"> {whole(question, row.most)}" if row.machines is None else str(whole(question, row.machines))
    figures = _figures(row.figures)
    return {
        "": "*" if chosen else "",
        "kind": kind.name,
        "memory": size(kind.memory),
        "way": way.label,
        "machines": machines,
        "price/h": "" if row.machines is None else f"{_price(question, row):.4g}",
        **{name: figures[name] for name in ("in time", "p99 ms", "busy")},
        "binds": "dearer than the plan" if row.dearer else row.binds,
    }


def _price(question: Question, row: Row) -> float:
    return row.offer.kind.price * whole(question, row.machines or 0)


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
