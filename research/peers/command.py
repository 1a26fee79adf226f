"""`python -m research peers`: latebind beside other servers."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from typer import Option

from latebind.bench.ledger.questions import Protocol
from latebind.bench.rounds import Progress
from latebind.cli.bench.options import ServeWords
from latebind.cli.console import reporting
from latebind.cli.options import Seed
from research import plots
from research.evaluation import Found, Load, Output, Rounds, SideName, Words, evaluate
from research.peers import goodput as at_times
from research.peers import identity as echoed
from research.peers.clients import tool
from research.peers.sides import SIDES, Place
from research.sides import chosen


def peers(
    folder: Annotated[Path, Option("--peers", help="Where peers' environments are, or are installed.")],
    *,
    protocol: Annotated[list[Protocol] | None, Option(help="What clients speak; may be repeated.")] = None,
    clients: Annotated[list[int] | None, Option(min=1, help="How many call at a time. Default: 1, 16.")] = None,
    side: SideName = None,
    load: Load = None,
    backend: Annotated[Words, Option(help="For goodput: of all sides; default eager and openvino.")] = None,
    deadline_ms: Annotated[float, Option(min=1.0, help="For goodput: of every request.")] = 100.0,
    rounds: Rounds = 5,
    seconds: Annotated[float | None, Option(min=1.0, help="Of a run. Default: 2, and 8 for goodput.")] = None,
    serve: ServeWords = None,
    seed: Seed = 0,
    output: Output,
) -> None:
    """Compare latebind with NVIDIA Triton's C++ server (Python backend), FastAPI and LitServe on this machine.

    Parts: identity (what the servers themselves cost, with a model that does nothing), goodput (answers within the
    deadline from ResNet-18, with requests at Poisson times; loads are shares of what the best side answers).

    The peers live in virtual environments of their own, which this command creates on first use; latebind itself needs
    none of them. Servers and clients share all cores; all take turns in every round. Every server must answer a call
    correctly before it is measured. `echo` only sends each tensor back, unread: what a frontend costs that has nothing
    behind it. `awake echo` does not sleep between calls either. The clients are wrk (HTTP) and h2load (gRPC) where they
    are installed, else clients of our own, which take more of the cores.

    Examples:

    * `python -m research peers --peers out/peers --part identity --protocol grpc --side triton --rounds 10`
    * `python -m research peers --peers out/peers --part goodput --backend eager --load 1.4 --rounds 3`
    """
    with reporting(), tempfile.TemporaryDirectory() as scratch:
        spoken, sides = tuple(protocol or Protocol), tuple(side or ())
        place = Place(folder.resolve(), Path(scratch), tuple(serve or ()), Protocol.GRPC in spoken)

        def identity(tell: Progress) -> Found:
            plan = echoed.Plan(spoken, tuple(clients or (1, 16)), rounds, seconds or 2.0, seed)
            runs = echoed.run(place, chosen(SIDES, sides), plan, tell)
            rows = echoed.identity_rows(runs, seed)
            bars = [{**row, "what": f"{row['protocol']}, {row['clients']} clients"} for row in rows]
            title = "a model that answers what it is given"
            return Found({title: rows}, lambda: [plots.columns(title, bars, by="side", x="what", y="per s")], runs)

        def goodput(tell: Progress) -> Found:
            plan = at_times.Plan(tuple(load or (0.5, 0.8, 1.0, 1.4)), deadline_ms / 1e3, rounds, seconds or 8.0, seed)
            tables, figures = {}, []
            for one in backend or ("eager", "openvino"):
                found = at_times.run(replace(place, folder=place.folder / one), one, sides, plan, tell)
                title = f"{one}: answered within {deadline_ms:g} ms, {plan.seconds:g} s a run"
                tables[f"{one}: closed loop of {at_times.CLIENTS} clients"] = at_times.capacity_rows(found)
                tables[title] = rows = at_times.goodput_rows(found, plan.deadline, plan.seed)
                figures.append((title, rows))
            return Found(tables, lambda: [plots.curves(*one, by="side", x="load", y="in time") for one in figures])

        told = {"client": ", ".join(dict.fromkeys(map(tool, spoken)))}
        evaluate({"identity": identity, "goodput": goodput}, output, told)
