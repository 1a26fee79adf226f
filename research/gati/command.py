"""`python -m research caches`, `calibration`, `locality`, `drift`, `load`, `queries` and `queries-live`."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated

import torch
from typer import Option

from latebind.bench.report import Plot, blank, distributions
from latebind.bench.rounds import Progress
from latebind.bench.server import pinned
from latebind.bench.subject import Subject as Asked
from latebind.cli.bench.options import Backend, Data, Fidelity, Repository, Subject, Tuning
from latebind.cli.console import reporting
from latebind.cli.options import DataOption, Processes, Seed, in_bytes
from latebind.cli.sources import load_rows, rows_for, samples_for
from latebind.domain.errors import ConfigError
from latebind.learned.promise import ANSWERS, CACHE_BYTES, Promise
from latebind.learned.samples import checked
from research import plots
from research.evaluation import Conditions, Floats, Found, Output, Part, SideName, Words, evaluate
from research.gati import apparate, baselines, load_live, networks
from research.gati import drift as watch
from research.gati import engine as alone
from research.gati import load as loaded
from research.gati import locality as streams
from research.gati import queries as simulated
from research.gati import queries_live as live
from research.gati.models import load_model
from research.gati.routes import Plan, Standings
from research.live import Rows
from research.sides import SERIAL, chosen

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
    """Compare learned caches with fewer bits, smaller models, cascades, traditional caches, and rules of composition.

    Parts: baselines, with Apparate's tuning over the same caches (with --fit also half of the blocks, distilled, and of
    texts DeeBERT and PABEE); and, with --fit, traditional (k-NN, k-means, hashing) and composition (rules under limits
    of memory).

    Latency is that of calls in this process, with batch 1 and one thread, without a server. Thresholds for each fold
    are calibrated on the others.

    Example: `python -m research caches models --model resnet56 --smaller resnet20 --part baselines --data
    examples.cifar10.data:unseen --data-option data=cifar10/`
    """
    with reporting():
        promise = Promise(fidelity, confidence, in_bytes("--cache-mb", cache_mb, 1e6))
        budgets = [in_bytes("--budget-mb", mb, 1e6) for mb in budget_mb or ()] or networks.BUDGETS
        if fit is None and (output.part is None or set(output.part) != {"baselines"}):
            raise ConfigError("only the part baselines can do without rows to train with: give --fit for the others")
        torch.set_num_threads(1)
        base = load_model(repository, model, backend=backend)
        other = None if smaller is None else load_model(repository, smaller, backend=backend)
        spec, last = base.program.spec, len(base.program.stages) - 2
        stages = sorted(set(boundary or base.stages))
        if not set(stages) <= set(range(last + 1)):
            raise ConfigError(f"{model} has boundaries 0 to {last}, not all of {stages}")
        asked = Asked(repository, model, *rows_for(base.directory, data, data_option))
        rows = replace(asked.samples(), labels=None if asked.labels is None else torch.from_numpy(asked.labels))
        ranges, samples = baselines.set_aside(checked(rows, spec), seed)
        plan = Plan(promise, folds, seed)

        def taught() -> networks.Lessons:
            assert fit is not None
            some = checked(samples_for(base.directory, fit, fit_option, seed=seed)[0], spec)
            return networks.Lessons(some, tuple(kind or networks.KINDS), lessons, folder=explored)

        def beside(on_progress: Progress) -> Found:
            learned = None if fit is None else taught().fit
            found = baselines.compare(
                base,
                other,
                ranges,
                samples,
                plan,
                fit=learned,
                on_progress=lambda text, share: on_progress(text, 0.9 * share),
            )
            tables = {"learned caches and their baselines": found.rows()}
            tables[f"{apparate.NAME}, in order of arrival"] = apparate.in_order(
                base, samples, plan, on_progress=on_progress
            )
            return Found(tables, lambda: _plots(found))

        def traditional(on_progress: Progress) -> Found:
            kept, generator = taught().fit, torch.Generator().manual_seed(seed)
            some = kept.take(torch.randperm(len(kept), generator=generator)[:stored])
            found = baselines.traditional(base, stages[-1], some, samples, plan, on_progress=on_progress)
            return Found({f"caches behind stage {stages[-1]}": found})

        def composition(on_progress: Progress) -> Found:
            explored = networks.explore(base, stages, taught(), samples, seed, on_progress=on_progress)
            under = networks.under_limits(base, explored, samples, plan, budgets=budgets, on_progress=on_progress)
            tables = {"rules under limits of memory": under.rows()}
            names = [f"{budget / 1e6:g} MB, ms" for budget in budgets]
            title = "Rules of composition by memory, mean ms"
            return Found(tables, lambda: [plots.across(title, under.rows(), by="rule", names=names)])

        parts: dict[str, Part] = {"baselines": beside, "traditional": traditional, "composition": composition}
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
    """Measure what leaving early is worth in the live engine alone, by rows of a call.

    In throughput: `joint --part batches`.

    Example: `python -m research engine models --model resnet56 --data examples.cifar10.data:unseen --data-option
    data=cifar10/ --folds 5`
    """
    with reporting():
        asked, folds, setting = subject.load(), tuning.wanted(), conditions.setting()

        def exits(on_progress: Progress) -> Found:
            batches = batch or alone.BATCHES
            found = alone.run(asked, setting=setting, folds=folds, batches=batches, progress=on_progress)
            return Found({"latency of rows in the engine, closed loop": found.rows()})

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

        def halves(on_progress: Progress) -> Found:
            del on_progress
            rows, broken = streams.calibrations(asked, promise=promise, splits=splits, backend=backend, seed=seed)
            return Found({f"calibrations on halves; under the target {broken} of {splits}": rows})

        evaluate({"halves": halves}, output)


def load(
    subject: Subject,
    *,
    fidelity: Fidelity = 0.99,
    floor: Annotated[float, Option(help="The least fidelity that anybody is promised.")] = 0.95,
    below: Annotated[float, Option(help="The largest share of requests under the target.")] = 1.0,
    confidence: Confidence = 0.95,
    load: Annotated[Floats, Option(help="Multiples of what fixed thresholds answer; may be repeated.")] = None,
    pattern: Annotated[Words, Option(help="steady or bursts; may be repeated. Default: both.")] = None,
    side: SideName = None,
    deadline: Annotated[float, Option(help="As a multiple of what the network takes alone.")] = 10.0,
    requests: Annotated[
        int, Option(help="Simulated: requests of each load and seed; with bursts, at least a period.")
    ] = 10_000,
    seconds: Annotated[float, Option(help="Live: how long a block lasts; with bursts, at least a period.")] = 5.0,
    seeds: Annotated[int, Option(min=1, help="How many halves of the rows to calibrate on.")] = 20,
    keep: Annotated[
        Path | None, Option(help="Write what each half gave to this folder, and go on from what is there.")
    ] = None,
    conditions: Conditions,
    output: Output,
) -> None:
    """Let fidelity follow the load: answers that are right and in time, beside fixed thresholds and SuperServe's rule.

    Parts: simulated (with the server's own scheduler, measured costs and real rows; without --part only this), and live
    (engines on one core, which take turns over the same arrivals). All sides refuse and drop what cannot be in time.
    Thresholds are calibrated on one half of the rows, the other half is the traffic.

    Example: `python -m research load models --model resnet56 --data examples.cifar10.data:unseen --data-option
    data=cifar10/`
    """
    with reporting():
        if unknown := set(pattern or ()) - {loaded.STEADY, loaded.BURSTS}:
            raise ConfigError(f"there is no pattern {', '.join(sorted(unknown))}: take steady or bursts")
        setting, promise = conditions.setting(), Promise(fidelity, confidence)
        asked, numbers = subject.load(), range(conditions.seed, conditions.seed + seeds)
        trial = loaded.Trial(asked, promise, floor=floor, below=below, backend=setting.backend)
        cells = loaded.Cells(
            tuple(load or loaded.LOADS), tuple(pattern or (loaded.STEADY, loaded.BURSTS)), deadline * trial.alone
        )

        asked_for = f"{asked.model}, {fidelity:g} down to {floor:g}, {below:g} below, confidence {confidence:g}"
        asked_for += f", {deadline:g} times alone, {cells.loads} {cells.patterns}"

        def shelf(part: str, sides: Iterable[str], length: str) -> loaded.Shelf | None:
            of = f"{asked_for}, {', '.join(sides)}, {length}"
            return None if keep is None else loaded.Shelf(keep / part, of)

        def virtual(on_progress: Progress) -> Found:
            sides = tuple(chosen(loaded.POLICIES, side or (), always=(loaded.OURS,)))
            half = partial(loaded.simulated, trial, cells, sides, requests=requests)
            return _by_load(
                trial, loaded.halves(numbers, half, shelf("simulated", sides, f"{requests} requests"), on_progress)
            )

        def engines(on_progress: Progress) -> Found:
            sides = chosen(load_live.sides(floor, below), side or (), always=(SERIAL, loaded.FIXED, loaded.OURS))
            half = partial(load_live.live, trial, cells, sides, seconds=seconds, setting=setting)
            return _by_load(trial, loaded.halves(numbers, half, shelf("live", sides, f"{seconds:g} s"), on_progress))

        parts: dict[str, Part] = {"simulated": virtual, "live": engines}
        evaluate(parts if output.part else {"simulated": virtual}, output, {"alone": f"{1e3 * trial.alone:.2f} ms"})


def _by_load(trial: loaded.Trial, blocks: loaded.Blocks) -> Found:
    tables = {"right and in time, by load": loaded.by_load(blocks)}
    tables["what each class of promise kept"] = loaded.kept(blocks)
    if trial.rows.lengths is not None:
        tables["what was kept by length"] = loaded.kept_by_length(blocks, trial.rows.lengths.numpy())
    return Found(tables)


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

        def stream(on_progress: Progress) -> Found:
            found = streams.follow(
                asked, traffic, setting=setting, fidelity=fidelity, services=services, progress=on_progress
            )
            rows = [found.row(side) for side in found.calls]
            tables = {"the same stream for all sides": rows, "what services say": found.told_rows()}
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
    guard acted first; "requests", "at most": after how many (median, most); "unguarded", "guarded": mean fidelity after
    the change had the version been kept, and as answered.

    Example: `python -m research drift models --model resnet56 --data examples.cifar10.data:unseen --data-option
    data=cifar10/`
    """
    with reporting():
        asked = subject.load()

        def changes(on_progress: Progress) -> Found:
            found = watch.run(asked, trials=trials, fidelity=fidelity, by=brighter, seed=seed, progress=on_progress)
            return Found({"trials of each change": watch.summary(found, fidelity)}, raw=found)

        evaluate({"changes": changes}, output)


def queries(
    *,
    deadline_ms: Annotated[
        Floats, Option(help="A deadline; may be repeated. Default: 75, and 60 to 200 in steps of 20.")
    ] = None,
    load: Annotated[Floats, Option(help="A load; may be repeated. Default: one request after another.")] = None,
    floor: Annotated[
        float, Option(help="Compare fixed thresholds, levels by the load, and models at levels down to this fidelity.")
    ] = 1.0,
    requests: Annotated[int, Option(min=1, help="How many each planner gets at each deadline and load.")] = 5_000,
    seed: Seed = 0,
    processes: Processes = 0,
    output: Output,
) -> None:
    """Simulate GATI's section 7.3: a gate, then faces (46 %) or vehicles (45 %), each with the models of table 5.

    The planners are: the deadline split equally or in proportion, and `expected`, which maximizes the expected accuracy
    of the whole query. Each is played static, without learned caches and with all models
    picked as a query arrives (the paper's baseline), and as it replans (figures 11 and 12).

    A request is right if all of its steps are right and it is in time; it counts with the probability of that, given
    the models that ran. `research/gati/queries.py` says where the gate's learned caches are. Requests come one after
    another, as in the paper, or with --load at Poisson times; load 1 is what 4 workers sustain with the static equal
    split. Intervals (95 %) are over requests, paired.

    With --floor gates have an operating curve, as it was measured for a classifier of texts. What a gate gets right
    counts with the fidelity that its level had on held-out rows.

    Examples:

    * `python -m research queries --deadline-ms 75 --load 0.6`
    * `python -m research queries --floor 0.96 --load 0 --load 0.4`
    """
    with reporting():
        loads, deadlines = tuple(load or (0.0,)), tuple(deadline_ms or (60, 75, *range(80, 201, 20)))
        if min(deadlines) <= 0 or min(loads) < 0:
            raise ConfigError("deadlines and loads: give more than 0 of each")
        if not (0.0 < floor <= (target := simulated.CURVE[simulated.TARGET].promised) or floor == 1.0):
            raise ConfigError(f"--floor is {floor:g}: give at most {target:g}, for which caches are calibrated here")
        plan = simulated.Plan([ms / 1e3 for ms in deadlines], loads, requests, seed, processes, floor)
        evaluate({"replanning": partial(simulated.simulated, plan)}, output)


def queries_live(
    repository: Repository,
    *,
    data: Data = None,
    data_option: DataOption = None,
    query: Annotated[str | None, Option(help="A query of the folder. Default: the only one.")] = None,
    deadline_ms: Annotated[Floats, Option(help="A deadline; may be repeated. Default: three useful ones.")] = None,
    side: SideName = None,
    requests: Annotated[int, Option(min=1, help="How many rows each side is sent at each deadline.")] = 2000,
    rate: Annotated[float, Option(min=0.0, help="Requests a second; 0: one after another, as in the paper.")] = 0.0,
    conditions: Conditions,
    output: Output,
) -> None:
    """Compare planners of a query on live engines: the sides of `queries`, on a query that was built.

    The static sides have no learned caches and pick all models when the query arrives; the others pick each model when
    its step begins, with the time that learned caches have saved. Nothing is refused or dropped for being late, so that
    every row counts on every side; late answers are counted. Differences are paired by row, with 95 % intervals.
    Deadlines by default are three at which a plan made in advance just misses the best models, by less time than caches
    save.

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
        sides = chosen(simulated.sides(live.UNSHED), tuple(side or ()), always=(live.BASE, live.OURS))
        plan = live.Plan(requests, tuple([one / 1e3 for one in deadline_ms or ()]), rate, setting.seed)

        def replanning(on_progress: Progress) -> Found:
            return asyncio.run(live.replanning(served, sides, rows, plan, setting, on_progress))

        evaluate({"replanning": replanning}, output, {"of": served.name})
