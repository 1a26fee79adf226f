"""`python -m research batching` and `live`."""

from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Option

from latebind.bench.rounds import Progress
from latebind.cli.console import reporting
from latebind.cli.options import Processes
from latebind.domain.errors import ConfigError
from research import plots
from research.evaluation import (
    Conditions,
    Found,
    Load,
    Output,
    Part,
    Rounds,
    Seconds,
    Seeds,
    SideName,
    Subject,
    Words,
    evaluate,
)
from research.hardware.networks import NETWORKS
from research.lazybatching import live as on_engines
from research.lazybatching import parts
from research.lazybatching.bound import MULTIPLES, bound_rows, bounds
from research.lazybatching.scene import Scene, measured_models, read_sentences
from research.lazybatching.simulated import Plan


def batching(
    *,
    network: Annotated[Words, Option(help=f"A network for loads: {', '.join(NETWORKS)}; may be repeated.")] = None,
    load: Load = None,
    models: Annotated[Path | None, Option(help="A folder of built models: their measured costs are simulated.")] = None,
    lengths: Annotated[
        str | None,
        Option(metavar="FILE[:ARRAY]", help="Words in and out, an array (N, 2) in an .npz file. Default: drawn ones."),
    ] = None,
    seeds: Seeds = 20,
    requests: Annotated[int, Option(help="How many requests a run has; the first twentieth does not count.")] = 2_000,
    processes: Processes = 0,
    output: Output,
) -> None:
    """Compare batching policies on a simulated accelerator (LazyBatching, tables I and II, figures 12 to 16).

    Parts: loads (figures 12 to 14), deadlines (15), capacity (the largest load with at most 1 % late, and beyond it),
    colocated, lengths, sizes (section VI-C), others (16), bound (what could ideally be saved), measured (models of this
    machine, with --models). Mixed deadlines and admission: `latebind bench ledger --mixed`.

    Loads are in requests a second, or for bound and measured multiples of capacity. Ratios are against the mean of
    untuned windows (the paper's 15 times), the best window of 5 ms or more (its 5.3, 2.7 and 2.5 times), and the best
    of all windows, chosen anew at each load. A star marks a baseline that does not keep up. Intervals are over seeds.

    Example: `python -m research batching --part loads --network gnmt --load 250 --load 1000 --seeds 5`
    """
    with reporting():
        if unknown := [name for name in network or () if name not in NETWORKS]:
            raise ConfigError(f"there is no network {unknown[0]!r}: take one of {', '.join(NETWORKS)}")
        if models is None and output.wants("measured"):
            raise ConfigError("--part measured needs a folder of models: --models FOLDER")
        scene = Scene(read_sentences(lengths), measured_models(models) if models else {})
        plan = Plan(scene, seeds, requests, processes)

        def bound(tell: Progress) -> Found:
            rows = bound_rows(bounds(plan, load or MULTIPLES, tell))
            return Found({"means over those of the best GraphB, at multiples of serial capacity": rows})

        every: dict[str, Part] = {
            "loads": partial(parts.loads, plan, network or parts.MAIN, load or parts.LOADS),
            "deadlines": partial(parts.deadlines, plan),
            "capacity": partial(parts.capacity, plan),
            "colocated": partial(parts.colocated, plan),
            "lengths": partial(parts.lengths, plan),
            "sizes": partial(parts.sizes, plan),
            "others": partial(parts.loads, plan, parts.OTHERS, load or parts.LOADS_OF_OTHERS),
            "bound": bound,
        }
        if models is not None:
            every["measured"] = partial(parts.measured, plan, load or parts.MULTIPLES)
        evaluate(every, output, {"lengths": scene.sentences.told})


def live(
    subject: Subject,
    *,
    load: Load = None,
    side: SideName = None,
    rounds: Rounds = 10,
    seconds: Seconds = 2.0,
    conditions: Conditions,
    output: Output,
) -> None:
    """Compare batching policies on the live engine, on loads that are multiples of what it answers one by one.

    Each policy has an engine of its own on the same core; they take turns. Exits are off. The best baseline of a round
    is the one that was best in all other rounds, as somebody would tune by past traffic. `alone` is the latency of a
    request when no other is there, `least` what a policy could reach that knows all lengths in advance and costs
    nothing itself.

    Example: `python -m research live models --model resnet56 --data images.npz --load 0.8`
    """
    with reporting():
        plan = on_engines.Plan(tuple(load or on_engines.LOADS), rounds, seconds, tuple(side or ()))
        asked = subject.load()

        def loads(tell: Progress) -> Found:
            found = on_engines.run(asked, setting=conditions.setting(), plan=plan, progress=tell)
            rows = found.rows()
            tables = {
                f"by load, a multiple of {found.capacity:.0f} a second; late after {found.allowed * 1e3:.1f} ms": rows,
                "who is ahead, and what could be reached at most": found.verdict_rows(),
                f"with always enough to do; {found.others} answers unlike the first": found.throughput_rows(),
            }
            return Found(tables, lambda: [plots.curves("Mean latency", rows, by="policy", x="load", y="mean ms")])

        evaluate({"loads": loads}, output)
