"""`latebind bench exits`: what leaving early is worth over HTTP."""

from dataclasses import asdict

from latebind.bench import exits as exits_bench
from latebind.cli.bench.options import Backend, Conditions, ServerLog, Subject, Tuning
from latebind.cli.console import JsonFile, console, percent, progress, reporting, save, show


def exits(
    subject: Subject,
    *,
    backend: Backend = None,
    tuning: Tuning,
    conditions: Conditions,
    log: ServerLog = None,
    json_file: JsonFile = None,
) -> None:
    """Measure mean latency with exits off and on, one request after another over HTTP, and the answers' fidelity.

    The two sides answer the same rows, so differences are paired. With `--folds 5`, each fifth of the rows is answered
    with thresholds that were calibrated on the other four fifths, so the same rows that trained nothing serve for both.

    Example: `latebind bench exits models --model resnet56 --data examples.cifar10.data:unseen --data-option
    data=cifar10/ --folds 5`
    """
    setting = conditions.setting(backend, log)
    with reporting(), progress("asking two servers") as tell:
        report = exits_bench.run(subject.load(), setting=setting, folds=tuning.wanted(), progress=tell)
    show(
        f"{subject.model}: {report.requests} requests a side, closed loop, batch 1, seed {conditions.seed}",
        report.rows(),
    )
    left = "  ".join(f"{stage}: {percent(share)}" for stage, share in report.left_at.items())
    console.print(f"mean off / mean on   {report.gain}")
    console.print(f"fidelity             {report.fidelity:.4f}")
    console.print(f"left at stage        {left}")
    console.print(f"answers bit for bit  {'identical' if report.identical else 'different'}")
    save(
        json_file,
        {**asdict(report), "seconds_on": report.seconds_on.tolist(), "seconds_off": report.seconds_off.tolist()},
    )
