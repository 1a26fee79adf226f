"""`python -m research elastic-live`: elastic batching on the engine here, on several cores."""

from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from latebind.bench.subject import Setting
from latebind.cli.bench.options import Backend, DoorCore, Seed, Subject
from latebind.cli.console import JsonFile, console, progress, reporting, save, show
from latebind.cli.numbers import numbers
from research.ebird import live


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The loads and the latency target, and the sides to compare."""

    load: Annotated[
        list[float] | None,
        typer.Option(
            help="Offered load, as a multiple of the best baseline's highest throughput; may be repeated. Default: "
            "0.1 to 1.2."
        ),
    ] = None
    target: Annotated[
        float,
        typer.Option(help="An answer is late if it takes longer than this many times the time of one request alone."),
    ] = 10.0
    side: Annotated[
        list[str] | None,
        typer.Option(help="Compare only this side, named as in the tables; may be repeated. Default: all."),
    ] = None


def elastic_live(
    subject: Subject,
    *,
    judged: Judged,
    engine_cores: Annotated[str, typer.Option(help="The cores that the engines run on, such as 0,1.")] = "0,1",
    rounds: Annotated[int, typer.Option(help="How many blocks of requests each side gets at each load.")] = 6,
    seconds: Annotated[float, typer.Option(help="How many seconds a block of requests lasts.")] = 2.0,
    backend: Backend = None,
    door_core: DoorCore = 0,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Compare elastic batches (Ebird) with TF-Serving's policies on the live engine, on several cores. Exits are off.

    Each baseline takes part twice: with one worker that has all cores, and with one worker for each core. Where the
    engines have all cores, the door shares one with them, for all sides alike.

    Example: `python -m research elastic-live models --model resnet56 --data images.npz --load 0.1 --load 1`
    """
    with reporting(), progress("elastic batches") as tell:
        setting = Setting(backend, (door_core,), seed=seed)
        loads, sides = tuple(judged.load or live.LOADS), tuple(judged.side or ())
        plan = live.Plan(loads, judged.target, rounds, seconds, sides)
        cores = numbers("--engine-cores", engine_cores)
        report = live.run(subject.load(), setting=setting, cores=cores, plan=plan, progress=tell)
    console.print(
        f"{subject.model} on cores {engine_cores}: {report.alone * 1e3:.2f} ms alone, "
        f"the best baseline {report.capacity:.0f} a second at most, late after {report.allowed * 1e3:.1f} ms; "
        f"{rounds} rounds of {seconds:g} s, seed {seed}"
    )
    console.print(
        f"work for {report.limit:.0f} requests a second fits on the cores ({report.fits:.0f} by the profile), "
        f"{report.limit / report.capacity:.2f} times what the best baseline does with no target at all"
    )
    show("by load", report.rows())
    show("with always enough to do, and within the target", report.saturated_rows())
    show("against the best of each kind, chosen by the other rounds", report.judged_rows())
    save(
        json_file,
        {
            "plan": asdict(plan),
            "limit": report.limit,
            "loads": report.rows(),
            "saturated": report.saturated_rows(),
            "judged": report.judged_rows(),
        },
    )
