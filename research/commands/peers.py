"""`python -m research peers`: latebind beside other servers."""

import tempfile
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from latebind.bench.ledger.questions import Protocol
from latebind.bench.rounds import Progress
from latebind.cli.bench.options import Page, Seed, ServeWords
from latebind.cli.console import JsonFile, Rows, console, reporting
from research.live.sides import chosen
from research.peers import goodput, identity, plots, report
from research.peers.loads import tool
from research.peers.sides import SIDES, Place
from research.told import ByPart, Files, Told, tell_parts

PAGE_TEXT = "Servers and client share this machine; all take turns in every round."


class Part(StrEnum):
    """The parts of the benchmark."""

    IDENTITY = "identity"
    GOODPUT = "goodput"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The sides, protocols and numbers of clients to compare, and for how long."""

    protocol: Annotated[
        list[Protocol] | None, typer.Option(help="The protocol that clients speak; may be repeated. Default: all.")
    ] = None
    clients: Annotated[
        list[int] | None,
        typer.Option(min=1, help="How many clients call at the same time; may be repeated. Default: 1 and 16."),
    ] = None
    side: Annotated[
        list[str] | None,
        typer.Option(help=f"Compare only this server: {', '.join(SIDES)}; may be repeated. Default: all."),
    ] = None
    load: Annotated[
        list[float] | None,
        typer.Option(
            help="For goodput: offered load, as a share of what the best side answers; may be repeated. Default: "
            "0.5 0.8 1.0 1.4."
        ),
    ] = None
    backend: Annotated[
        list[str] | None,
        typer.Option(help="For goodput: the backend of all sides, eager or openvino; may be repeated. Default: both."),
    ] = None
    deadline_ms: Annotated[
        float,
        typer.Option(min=1.0, help="For goodput: the deadline of every request, in milliseconds after its arrival."),
    ] = 100.0
    rounds: Annotated[int, typer.Option(min=1, help="How many rounds there are; in each, every side has its turn.")] = 5
    seconds: Annotated[
        float | None, typer.Option(min=1.0, help="How many seconds a run lasts. Default: 2, and 8 for goodput.")
    ] = None

    def protocols(self) -> tuple[Protocol, ...]:
        """Return the protocols that clients use."""
        return tuple(self.protocol or Protocol)

    def for_identity(self, seed: int) -> identity.Plan:
        """Return the plan for servers that return their input."""
        return identity.Plan(self.protocols(), tuple(self.clients or (1, 16)), self.rounds, self.seconds or 2.0, seed)

    def for_goodput(self, seed: int) -> goodput.Plan:
        """Return the plan for servers that run a network."""
        loads = tuple(self.load or (0.5, 0.8, 1.0, 1.4))
        return goodput.Plan(loads, self.deadline_ms / 1e3, self.rounds, self.seconds or 8.0, seed)


def peers(
    folder: Annotated[
        Path,
        typer.Option(
            "--peers", help="The folder of the peers' virtual environments; those that are missing are installed."
        ),
    ],
    *,
    part: Annotated[
        list[Part] | None,
        typer.Option(
            help="What to compare. identity: what the servers themselves cost, with a model that does nothing; "
            "goodput: answers within the deadline from ResNet-18, with requests at Poisson times. May be "
            "repeated. Default: all."
        ),
    ] = None,
    compared: Compared,
    serve: ServeWords = None,
    seed: Seed = 0,
    page: Page = None,
    json_file: JsonFile = None,
) -> None:
    """Compare latebind with NVIDIA Triton's C++ server (Python backend), FastAPI and LitServe on this machine.

    The peers live in virtual environments of their own, which this command creates on first use; latebind itself needs
    none of them. Servers and clients share all cores. Every server must answer a call correctly before it is measured.
    `echo` only sends each tensor back, unread: what a door costs that has nothing behind it. `awake echo` does not
    sleep between calls either.
    The clients are wrk (HTTP) and h2load (gRPC) where they are installed, else clients of our own, which take more of
    the cores.

    Examples:

    * `python -m research peers --peers out/peers --part identity`
    * `python -m research peers --peers out/peers --part identity --protocol grpc --side triton --rounds 10`
    * `python -m research peers --peers out/peers --part goodput --backend eager --load 1.4 --rounds 3`
    """
    with reporting(), tempfile.TemporaryDirectory() as scratch:
        spoken = compared.protocols()
        asked = Asked(
            Place(folder.resolve(), Path(scratch), tuple(serve or ()), Protocol.GRPC in spoken),
            compared.for_identity(seed),
            compared.for_goodput(seed),
            tuple(compared.side or ()),
            tuple(compared.backend or ("eager", "openvino")),
        )
        clients = ", ".join(dict.fromkeys(map(tool, spoken)))
        console.print(f"{compared.rounds} rounds, client: {clients}, seed {seed}")
        files = Files(
            page=page,
            title="Latebind beside other servers",
            text=PAGE_TEXT,
            json_file=json_file,
            figures=lambda found: {one: {"tables": told.tables, "raw": told.raw} for one, told in found.items()},
        )
        tell_parts(part or Part, RUN, asked, files)


@dataclass(frozen=True, slots=True)
class Asked:
    """The comparison to run, and where the servers are installed."""

    place: Place
    identity: identity.Plan
    goodput: goodput.Plan
    sides: tuple[str, ...]
    backends: tuple[str, ...]


def _identity(asked: Asked, tell: Progress) -> Told:
    runs = identity.run(asked.place, chosen(SIDES, asked.sides), asked.identity, tell)

    return Told(
        {"a model that answers what it is given": report.identity_rows(runs, asked.identity.seed)},
        lambda: [plots.rate_figure(runs)],
        runs,
    )


def _goodput(asked: Asked, tell: Progress) -> Told:
    plan, place = asked.goodput, asked.place
    found = [
        goodput.run(replace(place, folder=place.folder / backend), backend, asked.sides, plan, tell)
        for backend in asked.backends
    ]

    tables = {}
    for one in found:
        tables[f"{one.backend}: closed loop of {goodput.CLIENTS} clients"] = report.capacity_rows(one)
        title = f"{one.backend}: answered within {plan.deadline * 1e3:g} ms, {plan.seconds:g} s a run"
        tables[title] = report.goodput_rows(one, plan.deadline, plan.seed)
    return Told(
        tables,
        lambda: [plots.goodput_figure(one, plan.deadline) for one in found],
        [{"capacity": one.capacity, "played": _played(one)} for one in found],
    )


def _played(found: goodput.Found) -> Rows:
    return [
        {"side": one.side, "load": one.load, "round": one.round, "seconds": one.seconds.tolist()}
        for one in found.played
    ]


RUN: ByPart[Part, Asked] = {Part.IDENTITY: _identity, Part.GOODPUT: _goodput}
