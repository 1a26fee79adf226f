"""The replicas of an application on Ray: those that the ingress knows, and their processes on this machine."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException

import psutil

from latebind.bench.ledger.books import Ledger
from latebind.bench.ledger.inject import Injected
from latebind.bench.server import tree
from latebind.domain.errors import ConfigError
from latebind.engine.client import NAME as ENGINE

ACTOR = re.compile(r"^ray::\S*ServeReplica:latebind:(\w+)")
NAMED = re.compile(r'replica="([^"]+)"')
LOOK = 0.2  # seconds between two looks at which replicas there are
PATIENCE = 5.0  # for one look


def actors(process: int) -> Iterator[tuple[str, psutil.Process]]:
    """Yield what Ray Serve runs of the application under a process: `ingress` or `replica`, and its process."""
    for one in tree(process):
        with suppress(psutil.NoSuchProcess):
            found = ACTOR.match(" ".join(one.cmdline()))
            if found:
                yield found[1], one


def busiest_replica(process: int) -> psutil.Process:
    """Return the replica that has computed most, with all that it started. Raises `ConfigError` without one."""
    found = {one: _seconds(one) for name, one in actors(process) if name == "replica"}
    if not found:
        raise ConfigError(f"process {process} has no replica: it serves on no Ray of this machine")
    return max(found, key=found.__getitem__)


def engines(process: int) -> Iterator[psutil.Process]:
    """Yield the engines of all replicas, which are no children of these."""
    for one in tree(process):
        with suppress(psutil.NoSuchProcess):
            if one.name() == ENGINE:
                yield one


def known(port: int) -> frozenset[str]:
    """Return the names of the replicas whose figures the ingress has; none if it does not answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", "/metrics")
        return frozenset(NAMED.findall(connection.getresponse().read().decode()))
    except (OSError, HTTPException):
        return frozenset()
    finally:
        connection.close()


@dataclass(slots=True)
class Watch:
    """Looks how many replicas there are, while requests are sent. `seen` are times of the loop, and how many from then.

    It does nothing to them, so `done` stays empty.
    """

    port: int
    seen: list[tuple[float, int]] = field(default_factory=list)
    done: list[Injected] = field(default_factory=list)

    async def run(self, requests: int, ledger: Ledger) -> None:
        """Look until cancelled."""
        del requests, ledger
        loop = asyncio.get_running_loop()
        while True:
            count = len(await asyncio.to_thread(known, self.port))
            if not self.seen or self.seen[-1][1] != count:
                self.seen.append((loop.time(), count))
            await asyncio.sleep(LOOK)


def _seconds(process: psutil.Process) -> float:
    """Return the CPU time of a process and all that come from it."""
    taken = 0.0
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            taken += one.cpu_times().user
    return taken
