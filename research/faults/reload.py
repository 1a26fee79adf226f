"""New versions of a model take over under load: no client sees an error; every answer is of the version it names."""

import asyncio
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from latebind.bench.server import launched
from research.faults.clients import Asked, Clients, load, session
from research.faults.models import build_scale, publish, right

CLIENTS = 8
LOAD_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome. `versions` are those that answered; `seconds` has the duration of each change."""

    seconds: list[float]
    requests: int
    failed: dict[int, int]
    wrong: int
    versions: int
    older: int
    longest: float


def run(versions: int) -> Report:
    """Publish so many new versions and have each loaded, one after another."""
    with tempfile.TemporaryDirectory() as folder:
        built, root = Path(folder) / "built", Path(folder) / "models"
        build_scale(built)
        publish(built, root, 1)
        with launched(root, "--manage") as server:
            return asyncio.run(_run(server.url, built, root, versions))


async def _run(url: str, built: Path, root: Path, versions: int) -> Report:
    changes = list[tuple[float, float]]()
    timeout = aiohttp.ClientTimeout(total=LOAD_SECONDS)
    async with (
        session(url) as connections,
        aiohttp.ClientSession(url, timeout=timeout) as operator,
        load(Clients(connections, "scale"), CLIENTS) as asked,
    ):
        for version in range(2, versions + 2):
            publish(built, root, version)
            begun = time.monotonic()
            async with operator.post("/v2/repository/models/scale/load") as reply:
                reply.raise_for_status()
            changes.append((begun, time.monotonic()))
    return _report(asked, changes)


def _report(asked: list[Asked], changes: list[tuple[float, float]]) -> Report:
    answers = [one for one in asked if one.status == 200]
    ends = [end for _, end in changes]
    return Report(
        seconds=[end - begun for begun, end in changes],
        requests=len(asked),
        failed=dict(Counter(one.status for one in asked if one.status != 200)),
        wrong=sum(not right(one.version, one.value) for one in answers),
        versions=len({one.version for one in answers}),
        older=sum(int(one.version) < 1 + sum(end < one.sent for end in ends) for one in answers),
        longest=max(one.ended - one.sent for one in asked),
    )
