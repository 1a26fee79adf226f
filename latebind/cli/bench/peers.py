"""`latebind bench peers`: latebind beside other servers."""

import tempfile
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latebind.bench.live.sides import chosen
from latebind.bench.peers import identity
from latebind.bench.peers.calls import Protocol
from latebind.bench.peers.loads import tool
from latebind.bench.peers.report import identity_rows
from latebind.bench.peers.sides import SIDES, Place
from latebind.bench.spread import Progress
from latebind.cli.bench.options import Page, Seed
from latebind.cli.bench.told import Told, tell_parts, write_page
from latebind.cli.console import JsonFile, console, reporting, save

if TYPE_CHECKING:
    import plotly.graph_objects as go

PAGE_TEXT = "Servers and client share this machine; all take turns in every round."


class Part(StrEnum):
    """What to run."""

    IDENTITY = "identity"


def peers(
    folder: Annotated[
        Path, typer.Option("--peers", help="Folder of the peers' virtual environments; what is not there is installed.")
    ],
    part: Annotated[
        list[Part] | None, typer.Option(help="identity: what servers themselves cost. May be repeated. Default: all.")
    ] = None,
    protocol: Annotated[list[Protocol] | None, typer.Option(help="May be repeated. Default: all.")] = None,
    clients: Annotated[list[int] | None, typer.Option(min=1, help="May be repeated. Default: 1 and 16.")] = None,
    side: Annotated[
        list[str] | None, typer.Option(help=f"Compare only these: {', '.join(SIDES)}; may be repeated. Default: all.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which all take turns.")] = 5,
    seconds: Annotated[float, typer.Option(min=1.0, help="Length of a run.")] = 2.0,
    serve: Annotated[
        list[str] | None, typer.Option(help="A word for `latebind serve`; may be repeated: --serve=--no-show-exit.")
    ] = None,
    seed: Seed = 0,
    page: Page = None,
    json_file: JsonFile = None,
) -> None:
    """Compare latebind with NVIDIA Triton's C++ server (Python backend), FastAPI and LitServe on this machine.

    The peers live in virtual environments of their own, which this command makes on first use; latebind needs none of
    them. Servers and clients share all cores. Every server answers a call right before it is measured. Clients are wrk
    (HTTP) and h2load (gRPC) where they are installed, else our own, which takes more of the cores.

    Examples:

    * `latebind bench peers --peers out/peers --part identity`
    * `latebind bench peers --peers out/peers --protocol grpc --side latebind --side triton --rounds 10`
    """
    with reporting(), tempfile.TemporaryDirectory() as scratch:
        plan = identity.Plan(tuple(protocol or Protocol), tuple(clients or (1, 16)), rounds, seconds, seed)
        place = Place(folder.resolve(), Path(scratch), tuple(serve or ()), Protocol.GRPC in plan.protocols)
        sides = chosen(SIDES, side or ())
        tools = ", ".join(dict.fromkeys(map(tool, plan.protocols)))
        console.print(f"{rounds} rounds of {seconds:g} s, client: {tools}, seed {seed}")

        def run(one: Part, tell: Progress) -> Told:
            del one
            runs = identity.run(place, sides, plan, tell)

            def draw() -> "Sequence[go.Figure]":
                from latebind.bench.peers.plots import rate_figure  # noqa: PLC0415  (plotly is optional)

                return [rate_figure(runs)]

            return Told({"a model that answers what it is given": identity_rows(runs, seed)}, draw, runs)

        found = tell_parts(part or Part, run)
        if page is not None:
            write_page(page, "Latebind beside other servers", PAGE_TEXT, list(found.values()))
    save(json_file, {one: {"tables": told.tables, "raw": told.raw} for one, told in found.items()})
