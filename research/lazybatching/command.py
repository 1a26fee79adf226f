"""`python -m research batching` and `live`."""

from functools import partial
from typing import Annotated

from typer import Option

from latebind.bench.rounds import Progress
from latebind.cli.bench.options import Subject
from latebind.cli.console import reporting
from latebind.cli.options import Processes
from latebind.domain.config import PolicyConfig
from latebind.domain.errors import ConfigError
from research.contest import Report, Turns
from research.evaluation import Conditions, Found, Load, Output, Part, Seeds, Words, evaluate
from research.hardware.networks import NETWORKS
from research.lazybatching import parts
from research.lazybatching.bound import MULTIPLES, bound_rows, bounds
from research.lazybatching.simulated import Plan, Scene, read_sentences
from research.policies import BATCHING
from research.sides import SERIAL, Side, chosen, graph

OURS, TUNED = "lazy+", "the baselines"
LOADS, LATE = (0.5, 1.0, 1.5), (10.0,)  # of the serial capacity, and of what one request takes alone


def live_sides(*, recurrent: bool) -> dict[str, Side]:
    """Return the sides of `live`; of sequence models, batches wait for their longest answer unless they leave."""
    if recurrent:
        policies = {f"GraphB(0, {size})": graph(size, leave=False) for size in (16, 32, 64)}
        policies["GraphB(5, 32)"] = graph(32, 0.005, leave=False)
    else:
        policies = {f"GraphB(0, {size})": graph(size) for size in (4, 8, 16)}
        policies["GraphB(5, 16)"] = graph(16, 0.005)
    found = [Side(name, policy, (TUNED,)) for name, policy in {SERIAL: graph(1), **policies}.items()]
    if recurrent:
        found.append(Side("GraphB(0, 64), leaving", graph(64)))
        found += [Side(name, PolicyConfig(BATCHING[name], shed=False)) for name in ("continuous", "lazy")]
    found.append(Side(OURS, PolicyConfig(OURS, shed=False)))
    return {side.label: side for side in found}


def live(subject: Subject, *, turns: Turns, conditions: Conditions, output: Output) -> None:
    """Compare batching policies on the live engine, on loads that are multiples of what it answers one by one.

    Each policy has an engine of its own on the same core; they take turns. Exits are off, and nobody is refused. The
    best baseline of a round is the one that was best in all other rounds, as somebody would tune by past traffic.
    `--simulated` plays the same on a virtual clock.

    Example: `python -m research live models --model resnet56 --data images.npz --load 0.8`
    """
    with reporting():

        def loads(on_progress: Progress) -> Found:
            every = live_sides(recurrent=bool(turns.costs(subject).whole.spec.kinds))
            sides = chosen(every, tuple(turns.side or ()), always=(SERIAL, OURS))
            report = Report(sides, (OURS,), (TUNED,), conditions.seed)
            turns.hold(subject, sides, partial(report.measure, turns.plan(LOADS, LATE)), conditions, on_progress)
            return report.found()

        evaluate({"loads": loads}, output)


def batching(
    *,
    network: Annotated[Words, Option(help=f"A network for loads: {', '.join(NETWORKS)}; may be repeated.")] = None,
    load: Load = None,
    lengths: Annotated[
        str | None,
        Option(metavar="FILE[:ARRAY]", help="Words in and out, an array (N, 2) in an .npz file. Default: drawn ones."),
    ] = None,
    seeds: Seeds = 20,
    requests: Annotated[int, Option(help="How many requests a run has; the first twentieth does not count.")] = 2_000,
    processes: Processes = 0,
    output: Output,
) -> None:
    """Compare batching policies on a simulated accelerator (LazyBatching, tables I and II, figures 12 to 14).

    Parts: loads (figures 12 to 14), capacity (the largest load with at most 1 % late, and beyond it), colocated
    (section VI-C), bound (what could ideally be saved). Models of your own: `live --simulated`.

    Loads are in requests a second, or for bound multiples of capacity. Ratios are against the mean of untuned windows
    (the paper's 15 times), the best window of 5 ms or more (its 5.3, 2.7 and 2.5 times), and the best of all windows,
    chosen anew at each load. A star marks a baseline that does not keep up. Intervals are over seeds.

    Example: `python -m research batching --part loads --network gnmt --load 250 --load 1000 --seeds 5`
    """
    with reporting():
        if unknown := [name for name in network or () if name not in NETWORKS]:
            raise ConfigError(f"there is no network {unknown[0]!r}: take one of {', '.join(NETWORKS)}")
        scene = Scene(read_sentences(lengths))
        plan = Plan(scene, seeds, requests, processes)

        def bound(on_progress: Progress) -> Found:
            rows = bound_rows(bounds(plan, load or MULTIPLES, on_progress))
            return Found({"means over those of the best GraphB, at multiples of serial capacity": rows})

        every: dict[str, Part] = {
            "loads": partial(parts.loads, plan, network or parts.MAIN, load or parts.LOADS),
            "capacity": partial(parts.capacity, plan),
            "colocated": partial(parts.colocated, plan),
            "bound": bound,
        }
        evaluate(every, output, {"lengths": scene.sentences.told})
