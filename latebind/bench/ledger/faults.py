"""Injects faults into a running server: kills or stops its engine, reloads its models."""

import asyncio
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil

from latebind.bench.ledger.books import Ledger
from latebind.bench.server import tree
from latebind.domain.errors import ConfigError
from latebind.engine.client import NAME as ENGINE

STOP_SECONDS = 1.0
START_SECONDS, LOAD_SECONDS = 30.0, 120.0
PAUSE = 0.02


class Fault(StrEnum):
    """The kinds of faults."""

    KILL = "kill"
    STOP = "stop"
    RELOAD = "reload"


@dataclass(frozen=True, slots=True)
class Injected:
    """One fault: its kind, when it was injected, as a request's number, and what was done."""

    fault: Fault
    request: int
    what: str


@dataclass(slots=True)
class Injector:
    """Injects one fault into a server so many times, evenly over the requests. `done` lists them.

    Of several the one at `place` of `places` acts between the others.
    """

    fault: Fault
    process: int
    port: int
    times: int = 3
    models: tuple[str, ...] = ()
    place: int = 0
    places: int = 1
    done: list[Injected] = field(default_factory=list)

    async def run(self, requests: int, ledger: Ledger) -> None:
        """Wait for the right request each time, and act."""
        for number in range(self.times):
            at = requests * (number * self.places + self.place + 1) // (self.times * self.places + 1)
            while ledger.asked_count < at:
                await asyncio.sleep(PAUSE)
            if self.fault is Fault.RELOAD:
                what = ", ".join([await asyncio.to_thread(self._reload, model) for model in self.models])
            else:
                what = await self._act_on_an_engine()
            self.done.append(Injected(self.fault, ledger.asked_count, what))

    async def _act_on_an_engine(self) -> str:
        """Kill or stop the engine; where it has just died, or another fault has left none, the next that serves."""
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                engine = busiest_engine(self.process)
                engine.send_signal(signal.SIGKILL if self.fault is Fault.KILL else signal.SIGSTOP)
                break
            except (psutil.NoSuchProcess, ConfigError):
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(PAUSE)
        if self.fault is Fault.KILL:
            return f"kill -9 of process {engine.pid}"
        try:
            await asyncio.sleep(STOP_SECONDS)
        finally:  # if all requests have ended meanwhile, this is cancelled
            with suppress(psutil.NoSuchProcess):
                engine.send_signal(signal.SIGCONT)
        return f"process {engine.pid} stopped for {STOP_SECONDS:g} s"

    def _reload(self, model: str) -> str:
        url = f"http://127.0.0.1:{self.port}/v2/repository/models/{model}/load"
        try:
            urlopen(Request(url, b"{}"), timeout=LOAD_SECONDS).close()
        except HTTPError as error:
            text = error.read().decode(errors="replace")
            raise ConfigError(f"loading {model} again was answered {error.code}: {text}") from None
        return f"{model} loaded again"


def busiest_engine(process: int) -> psutil.Process:
    """Return the engine that serves: of several the one that has computed most. Raises `ConfigError` without one."""
    found: dict[psutil.Process, float] = {}
    for one in tree(process):
        with suppress(psutil.NoSuchProcess):  # one that was just killed is still in the tree
            if one.name() == ENGINE:
                found[one] = float(one.cpu_times().user)
    if not found:
        raise ConfigError(f"process {process} has no engine: faults can only be put into a latebind that runs here")
    return max(found, key=found.__getitem__)
