"""`python -m research locality`, `drift` and `calibration`: whether caches follow the traffic and fidelity is kept."""

from dataclasses import dataclass
from itertools import product
from typing import Annotated

import typer

from latebind.cli.bench.options import Backend, Conditions, Fidelity, Page, Seed, ServerLog, Subject
from latebind.cli.console import JsonFile, console, percent, progress, reporting, save, show
from latebind.cli.promised import AnswersOption, answers_of
from latebind.learned.promise import ANSWERS, Promise, over
from research.gati import calibration as calibration_bench
from research.gati import drift as drift_bench
from research.gati import locality as locality_bench
from research.gati.plots import write_locality_page


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The requests to send: rows of classes whose shares change over time, or all rows in their own order."""

    alpha: Annotated[
        float | None,
        typer.Option(help="Draw classes by Zipf's law with this exponent. Default: send the rows in their own order."),
    ] = None
    phases: Annotated[int, typer.Option(help="How many phases the stream has; in each, another class dominates.")] = 2
    length: Annotated[int, typer.Option(help="How many requests a phase has.")] = 10_000
    passes: Annotated[int, typer.Option(help="Without --alpha: how often all rows are sent.")] = 1
    jitter: Annotated[
        int | None,
        typer.Option(
            help="Shift images at random by up to this many cells, and mirror them. Default: 2 with --alpha, else 0."
        ),
    ] = None

    def traffic(self) -> locality_bench.Traffic:
        """Return the stream as `bench.locality` takes it."""
        jitter = self.jitter if self.jitter is not None else 2 if self.alpha is not None else 0
        return locality_bench.Traffic(self.alpha, self.phases, self.length, jitter, self.passes)

    def __str__(self) -> str:
        if self.alpha is None:
            return f"rows as they lie, {self.passes} times"
        return f"Zipf {self.alpha:g}, {self.phases} phases of {self.length}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The adaptation settings to compare. Each combination gets a server of its own."""

    sample: Annotated[
        list[float] | None,
        typer.Option(
            help="The largest share of all requests that adaptation runs to the end of the network to compare; may "
            "be repeated. Default: 0.2."
        ),
    ] = None
    retrain_s: Annotated[
        list[float] | None,
        typer.Option(
            help="Seconds after which learned caches are retrained in any case; may be repeated. Default: 900."
        ),
    ] = None

    def each(self) -> list[locality_bench.Service]:
        """Return the settings for each combination of sampled share and retraining interval."""
        return [locality_bench.Service(*one) for one in product(self.sample or [0.2], self.retrain_s or [900.0])]


def locality(
    subject: Subject,
    *,
    stream: Stream,
    fidelity: Fidelity = 0.97,
    adapting: Services,
    backend: Backend = None,
    conditions: Conditions,
    log: ServerLog = None,
    page: Page = None,
    json_file: JsonFile = None,
) -> None:
    """Measure what following the traffic is worth: exits off, as built, and adapting.

    The sides answer the same stream, one request after another, so differences are paired. With `--alpha`, thresholds
    are calibrated on two fifths of the rows, and the stream is made of the others. Where `--sample` or `--retrain-s`
    are repeated, each combination has a server of its own.

    Example: `python -m research locality models --model resnet56 --data examples.cifar10.data:unseen --data-option
    data=cifar10/ --alpha 1.5`
    """
    services = adapting.each()
    with reporting(), progress(f"asking {2 + len(services)} servers") as tell:
        asked = subject.load()
        report = locality_bench.run(
            asked.repository,
            asked.model,
            asked.inputs,
            asked.labels,
            stream.traffic(),
            setting=conditions.setting(backend, log),
            fidelity=fidelity,
            services=services,
            progress=tell,
        )
    sent = f"{len(report.calls['off'])} requests a side, {stream}, target {fidelity:g}, seed {conditions.seed}"
    show(f"{subject.model}: {sent}", report.rows())
    for side, at in report.begun.items():
        counted = ", ".join(f"{name} {count:.0f}" for name, count in report.told[side].items())
        console.print(f"{side}: first version from request {at} on; the service counted {counted}")
    if page is not None:
        write_locality_page(report, page, title=f"latebind: {subject.model}, {stream}")
        console.print(f"page written to {page}")
    save(json_file, {"rows": report.rows(), "begun": report.begun, "told": report.told})


def drift(
    subject: Subject,
    *,
    trials: Annotated[int, typer.Option(help="How many trials each kind of change gets.")] = 20,
    fidelity: Fidelity = 0.97,
    brighter: Annotated[
        float,
        typer.Option(help="How much is added to all inputs to make them brighter; less than 0 makes them darker."),
    ] = 1.5,
    seed: Seed = 0,
    json_file: JsonFile = None,
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
    with reporting(), progress("changing the traffic") as tell:
        found = drift_bench.run(subject.load(), trials=trials, fidelity=fidelity, by=brighter, seed=seed, progress=tell)
    show(
        f"{subject.model}: {trials} trials of each change, target {fidelity:g}, seed {seed}",
        drift_bench.summary(found, fidelity),
    )
    save(json_file, found)


def calibration(
    subject: Subject,
    *,
    fidelity: Fidelity = 0.98,
    confidence: Annotated[
        float, typer.Option(help="The confidence with which calibration must show that share.")
    ] = 0.95,
    answers: AnswersOption = ANSWERS,
    splits: Annotated[int, typer.Option(help="How many random halves of the rows to calibrate on.")] = 20,
    backend: Backend = None,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Check whether fidelity is kept: calibrate on random halves of the rows, judge each on the other half.

    Example: `python -m research calibration models --model resnet56 --data examples.cifar10.data:unseen --data-option
    data=cifar10/ --fidelity 0.98`
    """
    with reporting():
        promise = Promise(fidelity, confidence, answers=answers_of(answers))
        report = calibration_bench.run(subject.load(), promise=promise, splits=splits, backend=backend, seed=seed)
    show(
        f"{subject.model}: {splits} calibrations on halves of {report.rows} rows, "
        f"target {fidelity:g}{over(promise.answers)}, seed {seed}",
        [
            {
                "split": number,
                "shown": f"{split.shown:.4f}",
                "at least": f"{split.lower:.4f}",
                "realised": f"{split.realised:.4f}",
                "left early": percent(split.left_early),
                "times less": f"{split.gain:.2f}",
            }
            for number, split in enumerate(report.splits)
        ],
    )
    console.print(f"under the target     {report.broken} of {splits}")
    save(json_file, report)
