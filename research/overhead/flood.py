"""Measures whether the engine keeps its speed while the door parses a flood: the reason for two processes.

The engine has a core of its own; the door and all clients share another. Phases with and without the flood
alternate, and the engine's throughput is read from its own counters.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import aiohttp

from latebind.bench.client import Body, encode
from latebind.bench.rounds import in_rounds
from latebind.bench.server import pinned, serving
from latebind.domain.errors import ConfigError

if TYPE_CHECKING:
    from latebind.bench.subject import Subject  # imports torch, for which the flood would wait

FLOODERS = 16
WORKLOAD = 16
SMALL = json.dumps({"inputs": [{"name": "small", "shape": [1, 16], "datatype": "FP32", "data": [0.5] * 16}]}).encode()


@dataclass(frozen=True, slots=True)
class FloodReport:
    """Requests a second: of the engine alone, of the engine beside the flood, and of the flood."""

    model: str
    alone: float
    flooded: float
    flood: float
    kept: float
    rounds: int


def run(
    subject: "Subject",
    *,
    rounds: int = 5,
    seconds: float = 3.0,
    door_cores: Sequence[int] = (0,),
    engine_core: int = 1,
) -> FloodReport:
    """Run `rounds` pairs of phases of `seconds` each and return the medians."""
    model = subject.model
    options = ("--model", model, "--cores", str(engine_core), "--no-exits", "--deadline-ms", "20000")
    body = encode(subject.row(0))
    with pinned(door_cores), serving(subject.repository, *options, cores=door_cores) as url:
        phases = asyncio.run(_phases(url, model, body, rounds, seconds))
    alone = [phase[0] for phase in phases]
    flooded = [phase[1] for phase in phases]
    kept = median(after / before for before, after in zip(alone, flooded, strict=True))
    return FloodReport(model, median(alone), median(flooded), median(phase[2] for phase in phases), kept, rounds)


async def _phases(url: str, model: str, body: Body, rounds: int, seconds: float) -> list[tuple[float, float, float]]:
    """Keep the engine saturated throughout; yield its rate alone, its rate beside the flood, and the flood's."""
    async with aiohttp.ClientSession(base_url=url) as session:
        load = [asyncio.create_task(_again_and_again(session, model, body)) for _ in range(WORKLOAD)]
        await asyncio.sleep(1.0)
        phases = []
        for _ in in_rounds(rounds):
            alone = await _rate(session, model, seconds)
            flood = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "research.overhead.flood",
                url,
                model,
                str(seconds + 1.0),
                stdout=asyncio.subprocess.PIPE,
            )
            await asyncio.sleep(1.0)
            flooded = await _rate(session, model, seconds)
            output, _ = await flood.communicate()
            phases.append((alone, flooded, float(output)))
        for task in load:
            task.cancel()
        await asyncio.gather(*load, return_exceptions=True)
    return phases


async def _again_and_again(session: aiohttp.ClientSession, model: str, body: Body) -> None:
    while True:
        async with session.post(f"/v2/models/{model}/infer", data=body.data, headers=body.headers) as response:
            if response.status != 200:
                raise ConfigError(f"the server answered {response.status}: {await response.text()}")
            await response.read()


async def _rate(session: aiohttp.ClientSession, model: str, seconds: float) -> float:
    """Requests a second that the engine answered, by its own counter."""
    begun, before = time.perf_counter(), await _answered(session, model)
    await asyncio.sleep(seconds)
    ended, after = time.perf_counter(), await _answered(session, model)
    return (after - before) / (ended - begun)


async def _answered(session: aiohttp.ClientSession, model: str) -> float:
    async with session.get("/metrics") as response:
        for line in (await response.text()).splitlines():
            if line.startswith("nv_inference_request_success") and f'model="{model}"' in line:
                return float(line.split()[-1])
    raise ConfigError(f"/metrics does not tell of {model}")


async def _flood(url: str, model: str, seconds: float) -> float:
    """Send small requests that the door parses whole and refuses (no such input), from many clients at once."""
    end = time.perf_counter() + seconds
    count = 0

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal count
        while time.perf_counter() < end:
            async with session.post(f"/v2/models/{model}/infer", data=SMALL) as response:
                assert response.status == 400
                await response.read()
                count += 1

    async with aiohttp.ClientSession(base_url=url, connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session) for _ in range(FLOODERS)))
    return count / seconds


if __name__ == "__main__":
    print(asyncio.run(_flood(sys.argv[1], sys.argv[2], float(sys.argv[3]))))
