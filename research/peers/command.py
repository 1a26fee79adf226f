"""`python -m research peers`: latebind beside other servers."""

import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Option

from latebind.bench.ledger.questions import Protocol
from latebind.bench.rounds import Progress
from latebind.cli.bench.options import ServeWords
from latebind.cli.console import Rows, reporting
from latebind.cli.options import Seed
from research import plots
from research.evaluation import Found, Load, Output, Rounds, SideName, Words, evaluate
from research.peers import compare, sides
from research.peers.servers import PACKAGES, versions
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
    correctly before it is measured. The clients are wrk (HTTP) where it is installed, else clients of our own, which
    take more of the cores.

    Examples:

    * `python -m research peers --peers out/peers --part identity --protocol grpc --side triton --rounds 10`
    * `python -m research peers --peers out/peers --part goodput --backend eager --load 1.4 --rounds 3`
    """
    with reporting(), tempfile.TemporaryDirectory() as scratch:
        spoken, wanted, environments = tuple(protocol or Protocol), tuple(side or ()), folder.resolve()

        def identity(on_progress: Progress) -> Found:
            network = sides.identity(Path(scratch))
            every = sides.sides(network, environments, Path(scratch), tuple(serve or ()), grpc=Protocol.GRPC in spoken)
            some = chosen(every, wanted)
            cells = [
                (one, count, name)
                for one in spoken
                for count in clients or (1, 16)
                for name, each in some.items()
                if one in each.protocols
            ]
            runs = compare.identity(
                some, network, cells, rounds=rounds, seconds=seconds or 2.0, seed=seed, on_progress=on_progress
            )
            rows = compare.identity_rows(runs, seed)
            bars = [{**row, "what": f"{row['protocol']}, {row['clients']} clients"} for row in rows]
            title = "a model that answers what it is given"
            told = {"peers": versions(environments, PACKAGES)}
            draw = partial(plots.columns, title, bars, by="side", x="what", y="per s")
            return Found({title: rows}, lambda: [draw()], conditions=told)

        def goodput(on_progress: Progress) -> Found:
            tables, figures, deadline = dict[str, Rows](), [], deadline_ms / 1e3
            for one in backend or ("eager", "openvino"):
                place = Path(scratch) / one
                network = sides.resnet(place, one, seed)
                some = chosen(sides.sides(network, environments, place, tuple(serve or ()), grpc=False), wanted)
                capacity, found = compare.goodput(
                    some,
                    network,
                    tuple(load or (0.5, 0.8, 1.0, 1.4)),
                    deadline,
                    rounds=rounds,
                    seconds=seconds or 8.0,
                    seed=seed,
                    on_progress=on_progress,
                )
                closed = [{"side": name, "answers a second": round(rate, 1)} for name, rate in capacity.items()]
                title = f"{one}: answered within {deadline_ms:g} ms"
                tables |= {f"{one}: closed loop of {compare.CLIENTS} clients": closed}
                tables[title] = rows = compare.goodput_rows(found, deadline, seed)
                figures.append((title, rows))
            told = {"peers": versions(environments, PACKAGES)}
            return Found(
                tables,
                lambda: [plots.curves(*one, by="side", x="load", y="in time") for one in figures],
                conditions=told,
            )

        evaluate({"identity": identity, "goodput": goodput}, output)
