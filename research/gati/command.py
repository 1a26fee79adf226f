"""`python -m research caches`, `calibration`, `locality`, `drift`, `queries` and `queries-live`."""

import asyncio
from enum import StrEnum
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated

import torch
from typer import Option

from latebind.bench.report import Plot, blank, distributions
from latebind.bench.rounds import Progress
from latebind.bench.server import pinned
from latebind.cli.bench.options import Backend, Fidelity, Repository, Tuning
from latebind.cli.console import reporting
from latebind.cli.options import DataOption, Processes, Seed, in_bytes
from latebind.cli.sources import load_rows, load_samples
from latebind.domain.errors import ConfigError
from latebind.learned.promise import ANSWERS, CACHE_BYTES, Promise
from latebind.learned.samples import Samples, checked
from latebind.learned.train import DISTILLATION
from research import plots
from research.evaluation import Conditions, Data, Floats, Found, Output, Part, Rounds, Subject, Words, evaluate
from research.gati import baselines, networks
from research.gati import drift as watch
from research.gati import engine as alone
from research.gati import locality as streams
from research.gati import queries as simulated
from research.gati import queries_live as live
from research.gati.models import load_model
from research.gati.routes import Plan, Standings
from research.gati.traffic import Traffic
from research.live import Rows

Confidence = Annotated[float, Option(help="The confidence with which calibration must show that share.")]


def caches(
    repository: Repository,
    *,
    model: Annotated[str, Option(help="The base model that everything is compared with.")],
    data: Annotated[str, Option(help="Rows with labels that trained nothing: .npz or package.module:function.")],
    data_option: DataOption = None,
    smaller: Annotated[str | None, Option(help="A smaller model of the folder, for cascades.")] = None,
    fit: Annotated[str | None, Option(help="Samples to train networks on, and for traditional caches to keep.")] = None,
    fit_option: Annotated[Words, Option(help="An argument key=value for the function that --fit names.")] = None,
    fidelity: Fidelity = 0.97,
    confidence: Confidence = 0.95,
    folds: Annotated[int, Option(help="So many parts of the rows, each by thresholds of the others.")] = 5,
    kind: Annotated[Words, Option(help=f"A network, or bytes. Default: {' '.join(networks.KINDS)}.")] = None,
    lessons: Annotated[int, Option(help="How many rows each network is trained on, with repetitions.")] = 100_000,
    explored: Annotated[Path | None, Option(help="Keep trained networks in this folder, to go on later.")] = None,
    boundary: Annotated[list[int] | None, Option(help="Train behind this stage; may be repeated.")] = None,
    stored: Annotated[int, Option(help="How many rows a traditional cache keeps.")] = 10_000,
    budget_mb: Annotated[Floats, Option(help="For composition: memory for caches; may be repeated.")] = None,
    cache_mb: Annotated[float, Option(help="Memory for learned caches in all other parts.")] = CACHE_BYTES / 1e6,
    backend: Backend = None,
    seed: Seed = 0,
    output: Output,
) -> None:
    """Compare learned caches with fewer bits, smaller models, cascades and traditional caches, and ablate them.

    Parts: baselines; and, with --fit, traditional (k-NN, k-means, hashing), variants (networks for a lookup),
    composition (rules under limits of memory, and weights of hit rates against gains), ablations.

    Latency is that of calls in this process, with batch 1 and one thread, without a server. Thresholds for each fold
    are calibrated on the others.

    Example: `python -m research caches models --model resnet56 --smaller resnet20 --part baselines --data
    examples.cifar10.data:unseen --data-option data=cifar10/`
    """
    with reporting():
        promise = Promise(fidelity, confidence, in_bytes("--cache-mb", cache_mb, 1e6))
        budgets = [in_bytes("--budget-mb", mb, 1e6) for mb in budget_mb or ()] or networks.BUDGETS
        if fit is None and (output.part is None or set(output.part) != {"baselines"}):
            raise ConfigError("only the part baselines trains nothing: give rows to train with (--fit) for the others")
        torch.set_num_threads(1)
        inputs, labels = load_rows(data, data_option)
        base = load_model(repository, model, backend=backend)
        other = None if smaller is None else load_model(repository, smaller, backend=backend)
        spec, last = base.program.spec, len(base.program.stages) - 2
        stages = sorted(set(boundary or base.stages))
        if not set(stages) <= set(range(last + 1)):
            raise ConfigError(f"{model} has boundaries 0 to {last}, not all of {stages}")
        given = {name: torch.from_numpy(array) for name, array in inputs.items()}
        rows = Samples(given, None if labels is None else torch.from_numpy(labels))
        ranges, samples = baselines.set_aside(checked(rows, spec), seed)
        plan, known = Plan(promise, folds, seed), dict[float, networks.Explored]()

        def taught() -> networks.Lessons:
            assert fit is not None
            some = checked(load_samples(fit, fit_option, seed=seed)[0], spec)
            return networks.Lessons(some, tuple(kind or networks.KINDS), lessons, folder=explored)

        def trained(tell: Progress, distillation: float = DISTILLATION) -> networks.Explored:
            """Return the networks that several parts need, trained once."""
            if distillation not in known:
                known[distillation] = networks.explore(
                    base, stages, taught(), samples, seed, tell=tell, distillation=distillation
                )
            return known[distillation]

        def beside(tell: Progress) -> Found:
            found = baselines.compare(base, other, ranges, samples, plan, tell=tell)
            return Found({"learned caches and their baselines": found.rows()}, lambda: _plots(found))

        def traditional(tell: Progress) -> Found:
            kept, generator = taught().fit, torch.Generator().manual_seed(seed)
            some = kept.take(torch.randperm(len(kept), generator=generator)[:stored])
            found = baselines.traditional(base, stages[-1], some, samples, plan, tell=tell)
            return Found({f"caches behind stage {stages[-1]}": found})

        def variants(tell: Progress) -> Found:
            return Found({"networks for a lookup": networks.variants(trained(tell), samples, plan)})

        def composition(tell: Progress) -> Found:
            under = networks.under_limits(base, trained(tell), samples, plan, budgets=budgets, tell=tell)
            weighed = networks.alphas(base, trained(tell), samples, plan, tell=tell)
            tables = {"rules under limits of memory": under.rows(), "by weight of hit rates (alpha)": weighed.rows()}
            names = [f"{budget / 1e6:g} MB, ms" for budget in budgets]
            title = "Rules of composition by memory, mean ms"
            return Found(tables, lambda: [plots.across(title, under.rows(), by="rule", names=names)])

        def ablations(tell: Progress) -> Found:
            undistilled = trained(tell, 0.0)
            found = networks.ablations(base, trained(tell), undistilled, samples, plan, tell=tell)
            return Found({"without one part": found.rows()})

        parts: dict[str, Part] = {"baselines": beside, "traditional": traditional, "variants": variants}
        parts |= {"composition": composition, "ablations": ablations}
        told = f"{len(samples)} of {spec.name} on {base.program.backend}, batch 1, one thread, in process"
        evaluate(parts, output, {"rows": told})


def _plots(found: Standings) -> list[Plot]:
    """Draw the share of rows answered within a time (GATI, figures 6a, 8a), and fidelity against latency (6b)."""
    seconds = {one.name: one.seconds for one in found.outcomes}
    y = {"title": "agreement with the base model", "tickformat": ".1%"}
    figure = blank("Fidelity and mean latency", x={"title": "mean latency, ms", "rangemode": "tozero"}, y=y)
    for one in found.outcomes:
        figure.add_scatter(
            x=[one.seconds.mean() * 1e3], y=[found.fidelity(one)], name=one.name, mode="markers", marker={"size": 14}
        )
    return [distributions("Latency distribution, batch 1, one thread", seconds, of="rows"), figure]


def engine(
    subject: Subject,
    *,
    batch: Annotated[list[int] | None, Option(help="Rows of a call; may be repeated. Default: 1, 2, 4, 8.")] = None,
    tuning: Tuning,
    conditions: Conditions,
    output: Output,
) -> None:
    """Measure what leaving early is worth in the live engine alone: by rows of a call, and in throughput.

    Example: `python -m research engine models --model resnet56 --data examples.cifar10.data:unseen --data-option
    data=cifar10/ --folds 5`
    """
    with reporting():
        asked, folds, setting = subject.load(), tuning.wanted(), conditions.setting()

        def exits(tell: Progress) -> Found:
            batches = batch or alone.BATCHES
            found = alone.run(asked, setting=setting, folds=folds, batches=batches, progress=tell)
            tables = {
                "latency of rows in the engine, closed loop": found.rows(),
                "throughput with more waiting than a batch takes": found.throughput_rows(),
            }
            return Found(tables)

        evaluate({"exits": exits}, output)


def calibration(
    subject: Subject,
    *,
    fidelity: Fidelity = 0.98,
    confidence: Confidence = 0.95,
    answers: Annotated[int, Option(help="The promise is for this many next answers; 0: for all.")] = ANSWERS,
    splits: Annotated[int, Option(help="How many random halves of the rows to calibrate on.")] = 20,
    backend: Backend = None,
    seed: Seed = 0,
    output: Output,
) -> None:
    """Check whether fidelity is kept: calibrate on random halves of the rows, judge each on the other half.

    Example: `python -m research calibration models --model resnet56 --data examples.cifar10.data:unseen --data-option
    data=cifar10/ --fidelity 0.98`
    """
    with reporting():
        promise, asked = Promise(fidelity, confidence, answers=answers or None), subject.load()

        def halves(tell: Progress) -> Found:
            del tell
            rows, broken = streams.calibrations(asked, promise=promise, splits=splits, backend=backend, seed=seed)
            return Found({f"calibrations on halves; under the target {broken} of {splits}": rows})

        evaluate({"halves": halves}, output)


def locality(
    subject: Subject,
    *,
    alpha: Annotated[float | None, Option(help="Draw classes by Zipf's law. Default: rows in their own order.")] = None,
    phases: Annotated[int, Option(help="With --alpha: phases, in each of which another class dominates.")] = 2,
    length: Annotated[int, Option(help="How many requests a phase has.")] = 10_000,
    passes: Annotated[int, Option(help="Without --alpha: how often all rows are sent.")] = 1,
    fidelity: Fidelity = 0.97,
    sample: Annotated[Floats, Option(help="The largest share run to the end to compare; may be repeated.")] = None,
    retrain_s: Annotated[Floats, Option(help="Seconds until caches are retrained; may be repeated.")] = None,
    conditions: Conditions,
    output: Output,
) -> None:
    """Measure what following the traffic is worth: exits off, as built, and adapting.

    The sides answer the same stream, one request after another, so differences are paired. With `--alpha`, thresholds
    are calibrated on two fifths of the rows, and the stream is made of the others, shifted and mirrored at random.
    Where `--sample` (default 0.2) or `--retrain-s` (default 900) are repeated, each combination has a server.

    Example: `python -m research locality models --model resnet56 --data examples.cifar10.data:unseen --data-option
    data=cifar10/ --alpha 1.5`
    """
    with reporting():
        traffic = streams.Traffic(alpha, phases, length, passes)
        services = [streams.Service(*one) for one in product(sample or [0.2], retrain_s or [900.0])]
        asked, setting = subject.load(), conditions.setting()

        def stream(tell: Progress) -> Found:
            found = streams.follow(asked, traffic, setting=setting, fidelity=fidelity, services=services, progress=tell)
            tables = {"the same stream for all sides": found.rows(), "what services say": found.told_rows()}
            return Found(tables, found.plots, {"begun": found.begun, "told": found.told})

        evaluate({"stream": stream}, output)


def drift(
    subject: Subject,
    *,
    trials: Annotated[int, Option(help="How many trials each kind of change gets.")] = 20,
    fidelity: Fidelity = 0.97,
    brighter: Annotated[float, Option(help="How much is added to all inputs; less than 0 makes them darker.")] = 1.5,
    seed: Seed = 0,
    output: Output,
) -> None:
    """Measure how soon the watch over fidelity catches a change of the class mix or of brightness.

    In each trial 3,000 requests come, then the traffic changes and 2,000 more come. A trial passes if a guard acts
    within these 2,000 and 500 samples (exits are stopped, or a version is chosen or made for the new traffic), or if
    fidelity would not have fallen below the target without it.

    "fidelity fell": in how many trials it would have; "clearly": in how many by more than chance (95 %); "by": which
    guard acted first; "requests", "at most": after how many (median, most); "before", "unguarded", "guarded": mean
    fidelity before the change, after it had the version been kept, after it as answered.

    Example: `python -m research drift models --model resnet56 --data examples.cifar10.data:unseen --data-option
    data=cifar10/`
    """
    with reporting():
        asked = subject.load()

        def changes(tell: Progress) -> Found:
            found = watch.run(asked, trials=trials, fidelity=fidelity, by=brighter, seed=seed, progress=tell)
            return Found({"trials of each change": watch.summary(found, fidelity)}, raw=found)

        evaluate({"changes": changes}, output)


def queries(
    *,
    deadline_ms: Annotated[
        Floats, Option(help="A deadline; may be repeated. Default: 60 to 200 in steps of 20.")
    ] = None,
    requests: Annotated[int, Option(min=1, help="How many each planner gets at each deadline.")] = 20_000,
    price: Annotated[Floats, Option(help="Also `expected` with this price of a second; may be repeated.")] = None,
    gain: Annotated[float, Option(help="How much faster caches make the gate. Default: as the paper reports.")] = 0.0,
    places: Annotated[int, Option(help="How many learned caches the gate has.")] = 8,
    wrong: Annotated[Floats, Option(help="The share of early exits that are wrong; may be repeated.")] = None,
    load: Annotated[Floats, Option(help="For loaded; may be repeated. Default: 0.3, 0.6 and 0.9.")] = None,
    loaded_requests: Annotated[int, Option(min=1, help="How many each planner gets at each load.")] = 4000,
    seed: Seed = 0,
    processes: Processes = 0,
    output: Output,
) -> None:
    """Simulate GATI's section 7.3: a gate, then faces (46 %) or vehicles (45 %), each with the models of table 5.

    Parts: gains (figure 11, and the planners against each other), tight (deadlines of 60 to 100 ms in steps of 5),
    models (figure 12), wrong (what is left of the gain when learned caches err), loaded (Poisson arrivals into the
    scheduler; load 1 is what 4 workers sustain with the baseline that splits the deadline equally), decision (how long
    the planner takes to pick a model).

    The planners are: the deadline split equally or in proportion, each with and without replanning, and `expected`.
    That one maximises the expected accuracy of the whole query, less the price of its time. Without `--price` it takes
    the price that divides what learned caches earn between accuracy and latency, and 0 and 1 are shown beside it.

    A request is right if all of its steps are right and it is in time; it counts with the probability of that, given
    the models that ran. `research/gati/traffic.py` says where the gate's learned caches are. Requests come one after
    another, as in the paper, except in the part `loaded`. Intervals (95 %) are over requests, paired.

    Example: `python -m research queries --part gains --price 1`
    """
    with reporting():
        loads = tuple(load or (0.3, 0.6, 0.9))
        deadlines = tuple(ms / 1e3 for ms in deadline_ms or ()) or simulated.sweep(0.020)
        if not all(number > 0 for number in (*deadlines, *loads)):
            raise ConfigError("deadlines and loads: give more than 0 of each")
        traffic, prices = Traffic(places, gain), tuple(price or (0.0, 1.0))
        plan = simulated.Plan(deadlines, prices, traffic, requests, loads, loaded_requests, seed, processes)
        parts: dict[str, Part] = {
            "gains": partial(simulated.gains, plan),
            "tight": partial(simulated.tight, plan),
            "models": partial(simulated.models, plan),
            "wrong": partial(simulated.wrong, plan, tuple(wrong or (0.003, 0.01))),
            "loaded": partial(simulated.loaded, plan),
            "decision": simulated.decision,
        }
        evaluate(parts, output)


class Split(StrEnum):
    """How the deadline is split over the steps, by the sides that split it."""

    EQUAL = "equal"
    PROPORTIONAL = "proportional"


def queries_live(
    repository: Repository,
    *,
    data: Data = None,
    data_option: DataOption = None,
    query: Annotated[str | None, Option(help="A query of the folder. Default: the only one.")] = None,
    deadline_ms: Annotated[Floats, Option(help="A deadline; may be repeated. Default: three useful ones.")] = None,
    split: Annotated[Split, Option(help="How planners that split the deadline do it.")] = Split.PROPORTIONAL,
    requests: Annotated[int, Option(min=1, help="How many rows each side is sent at each deadline.")] = 2000,
    rate: Annotated[float, Option(min=0.0, help="Requests a second; 0: one after another, as in the paper.")] = 0.0,
    rounds: Rounds = 5,
    clients: Annotated[int, Option(min=1, help="For overhead: clients that always wait.")] = live.CLIENTS,
    caches: Annotated[bool, Option(help="For overhead: use learned caches.")] = False,
    other_core: Annotated[int | None, Option(help="For overhead: of a second worker. Default: the frontend's.")] = None,
    conditions: Conditions,
    output: Output,
) -> None:
    """Compare planners of a query on live engines, and measure what a query takes beyond its models.

    Parts: replanning, overhead. `static` has no learned caches and picks all models when the query arrives. `replanned`
    splits the deadline in the same way, but picks each model when its step begins, with the time that learned caches
    have saved. `expected` picks by expected accuracy. Nothing is refused or dropped for being late, so that every row
    counts on every side; late answers are counted. Differences are paired by row, with 95 % intervals. Deadlines by
    default are three at which a plan made in advance just misses the best models, by less time than caches save.

    On one worker, a query runs all of its steps on the same core, so its throughput can be no more than that of its
    models one after another. With a worker and a core for each step, it is compared with the slower step alone, on one
    worker and on the same workers. CPU time stands beside it, because other load on the machine changes it less.

    Example: `python -m research queries-live out/query/models --data examples.query.scenes:unseen`
    """
    with reporting(), pinned((conditions.frontend_core,)):
        if any(not one > 0 for one in deadline_ms or ()):
            raise ConfigError("--deadline-ms is the time that a query has: give more than 0")
        if data is None:
            raise ConfigError("there are no rows to send: give --data")
        inputs, labels = load_rows(data, data_option)
        if labels is None:
            raise ConfigError(f"--data {data!r} gives no labels: accuracy is what sides differ in")
        served, rows, setting = live.find_query(repository, query), Rows(inputs, labels), conditions.setting()
        deadlines = tuple([one / 1e3 for one in deadline_ms or ()])
        plan = live.Plan(requests, deadlines, rate, setting.seed)
        cores = (conditions.engine_core, conditions.frontend_core if other_core is None else other_core)

        def replanning(tell: Progress) -> Found:
            run = live.replanning(served, live.sides(split), rows, plan, setting, tell)
            return asyncio.run(run).found(setting.seed)

        def overhead(tell: Progress) -> Found:
            how = partial(live.overhead, requests=requests, rounds=rounds, caches=caches, clients=clients)
            return asyncio.run(how(served, rows, setting, tell, own_cores=cores)).found(setting.seed)

        evaluate({"replanning": replanning, "overhead": overhead}, output, {"of": served.name})
