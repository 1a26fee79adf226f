"""`python -m research faults`: what clients see of crashes, shutdowns and changes."""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from statistics import median
from typing import Annotated

import typer

from latebind.cli.console import JsonFile, console, progress, reporting, save, show
from research.faults import crash, hang_up, mixed, reload, terminate


class Part(StrEnum):
    """The parts of the benchmark."""

    CRASH = "crash"
    TERMINATE = "terminate"
    RELOAD = "reload"
    HANG_UP = "hang-up"
    MIXED = "mixed"


def faults(
    part: Annotated[
        list[Part] | None,
        typer.Option(
            help="Which fault to cause. crash: kill -9 of the engine under load; terminate: SIGTERM with requests "
            "in flight; reload: new versions under load; hang-up: clients that leave while a slow model runs; "
            "mixed: the engine killed, stopped for 10 s, stuck in a stage, and rows that raise, all under load. "
            "May be repeated. Default: all."
        ),
    ] = None,
    times: Annotated[
        int,
        typer.Option(min=1, help="How often the engine is killed, the server told to end, and each of mixed caused."),
    ] = 20,
    versions: Annotated[
        int, typer.Option(min=1, help="For reload: how many new versions of the model are put in.")
    ] = 50,
    in_flight: Annotated[
        int, typer.Option(min=1, help="For terminate: how many requests are in flight when the server is told to end.")
    ] = 32,
    hang_ups: Annotated[int, typer.Option(min=1, help="For hang-up: how often six clients leave.")] = 5,
    pause: Annotated[float, typer.Option(help="For crash and mixed: seconds without a fault before each.")] = 1.0,
    fault: Annotated[
        list[mixed.Fault] | None, typer.Option(help="For mixed: which; may be repeated. Default: all.")
    ] = None,
    patience: Annotated[
        float, typer.Option(help="For mixed: seconds for which an engine may stand still before it is replaced.")
    ] = 1.0,
    layers: Annotated[int, typer.Option(min=2, help="For hang-up: how many layers the slow model has.")] = 12,
    repeats: Annotated[
        int,
        typer.Option(min=1, help="For hang-up: how many rows each of these layers multiplies by a 1024 x 1024 matrix."),
    ] = 4096,
    json_file: JsonFile = None,
) -> None:
    """Cause faults in a real `latebind serve` and count what its clients get.

    Examples:

    * `python -m research faults`
    * `python -m research faults --part crash --times 5`
    """
    found: dict[Part, object] = {}
    with reporting():
        for one in part or Part:
            match one:
                case Part.CRASH:
                    found[one] = _tell_crash(crash.run(times, pause=pause))
                case Part.TERMINATE:
                    found[one] = _tell_terminate(terminate.run(times, in_flight=in_flight), in_flight)
                case Part.RELOAD:
                    found[one] = _tell_reload(reload.run(versions))
                case Part.HANG_UP:
                    with progress("a slow model, built in some fifty runs") as tell:
                        report = hang_up.run(hang_ups, layers=layers, repeats=repeats, progress=tell)
                    found[one] = _tell_hang_up(report)
                case Part.MIXED:
                    with progress("faults under a mixed load") as tell:
                        reports = mixed.run(
                            fault or list(mixed.Fault), times, pause=pause, patience=patience, progress=tell
                        )
                    found[one] = _tell_mixed(reports)
            save(json_file, found)


def _tell_crash(report: crash.Report) -> crash.Report:
    show(
        f"the engine is killed {len(report.seconds)} times, {crash.CLIENTS} clients",
        [
            {
                "answered again after s, median": f"{median(report.seconds):.2f}",
                "longest": f"{max(report.seconds):.2f}",
                "requests": report.requests,
                "answered": report.answered,
                "503": report.refused,
                "without answer": report.without_answer,
                "wrong": report.wrong,
                "longest request s": f"{report.longest:.2f}",
            }
        ],
    )
    return report


def _tell_terminate(endings: Sequence[terminate.Ending], in_flight: int) -> Sequence[terminate.Ending]:
    statuses = sum((Counter(one.statuses) for one in endings), Counter[int]())
    show(
        f"SIGTERM with {in_flight} requests in flight, {len(endings)} times",
        [
            {
                "answered": statuses[200],
                "not answered": statuses.total() - statuses[200],
                "exit codes": _counted(Counter(one.code for one in endings)),
                "seconds to the end, median": f"{median(one.seconds for one in endings):.2f}",
                "longest": f"{max(one.seconds for one in endings):.2f}",
                "processes left": sum(one.left for one in endings),
            }
        ],
    )
    return endings


def _tell_reload(report: reload.Report) -> reload.Report:
    show(
        f"{len(report.seconds)} new versions, {reload.CLIENTS} clients",
        [
            {
                "requests": report.requests,
                "failed": _counted(report.failed) or 0,
                "wrong": report.wrong,
                "by an older version": report.older,
                "versions that answered": report.versions,
                "a change takes s, median": f"{median(report.seconds):.2f}",
                "longest": f"{max(report.seconds):.2f}",
                "longest request s": f"{report.longest:.2f}",
            }
        ],
    )
    return report


def _tell_hang_up(report: hang_up.Report) -> hang_up.Report:
    show(
        f"{hang_up.LEAVING} clients leave a model of {report.stages} stages, {len(report.seventh)} times",
        [
            {
                "alone s": f"{report.alone:.2f}",
                "a stage s": f"{report.alone / report.stages:.2f}",
                "the seventh s, median": f"{median(report.seventh):.2f}",
                "longest": f"{max(report.seventh):.2f}",
                "ended before it began: stages, median": f"{median(one.stages for one in report.behind):g}",
                "most": max(one.stages for one in report.behind),
                "it began after s, median": f"{median(one.seconds for one in report.behind):.3f}",
                "most s": f"{max(one.seconds for one in report.behind):.3f}",
                "the stage that ran s, most": f"{max(one.stage for one in report.behind):.3f}",
            }
        ],
    )
    console.print("late is who waits for more than one stage: the one that ran as the others left")
    return report


def _tell_mixed(reports: Sequence[mixed.Report]) -> Sequence[mixed.Report]:
    show(
        f"faults under a mixed load on four models, calls of {mixed.TIMEOUT:g} s",
        [
            {
                "fault": report.fault,
                "times": len(report.seconds),
                **{name: mixed.totals(report.statuses)[name] for name in ("answered", "refused", "failed")},
                "wrong": report.wrong,
                f"no answer {mixed.GRACE:g} s after the deadline": report.late,
                "longest call s": f"{report.longest:.2f}",
                "longest look s": f"{max(report.control.values()):.2f}",
                "all answered again after s, median": f"{median(report.seconds):.2f}",
                "longest": f"{max(report.seconds):.2f}",
                "poisoned rows got": _counted(report.poisoned) or "none",
                "threads stopped that had no stage": report.idle,
                "logs": report.logs,
                "events": report.events,
                "replays that differ": len(report.differs),
            }
            for report in reports
        ],
    )
    return reports


def _counted(counts: "Counter[int] | dict[int, int]") -> str:
    """Write each value with how often it came, as `0: 20`."""
    return ", ".join(f"{value}: {count}" for value, count in sorted(counts.items()))
