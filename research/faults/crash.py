"""Kills the engine again and again under load: how long until the next one answers, and which requests get none."""

import asyncio
import os
import re
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from latebind.bench.server import launched
from research.faults.clients import NO_ANSWER, Asked, Clients, load, session
from research.faults.models import build_scale, publish, right

CLIENTS = 8
OFTEN = "[generations]\ncrashes = 1000000\n"  # else a model that all this happens to would be left out
SERVES = re.compile(r"engine process (\d+) serves")


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome. `seconds` has for each crash the time until a request that was sent after it was answered."""

    seconds: list[float]
    requests: int
    answered: int
    refused: int
    without_answer: int
    wrong: int
    longest: float


def run(times: int, *, pause: float) -> Report:
    """Kill the engine so many times, `pause` seconds after the last one was over."""
    with tempfile.TemporaryDirectory() as folder:
        root, settings, log = Path(folder) / "models", Path(folder) / "often.toml", Path(folder) / "log"
        build_scale(Path(folder) / "built")
        publish(Path(folder) / "built", root, 1)
        settings.write_text(OFTEN)
        options = ("--config", str(settings))
        with launched(root, *options, log=log) as server:
            return asyncio.run(_run(server.url, Log(log), times, pause))


@dataclass(frozen=True, slots=True)
class Log:
    """What the server's log tells of its processes."""

    file: Path

    def serves(self) -> int:
        """Return the process that serves now."""
        return int(SERVES.findall(self.file.read_text())[-1])


async def _run(url: str, log: Log, times: int, pause: float) -> Report:
    async with session(url) as connections:
        clients, watch, killed = Clients(connections, "scale"), Clients(connections, "scale"), list[float]()
        async with load(clients, CLIENTS) as asked:
            for _ in range(times):
                await asyncio.sleep(pause)
                engine = log.serves()
                killed.append(time.monotonic())
                os.kill(engine, signal.SIGKILL)
                while (await watch.ask()).status != 200 or engine == log.serves():
                    await asyncio.sleep(0.01)
    return _report(asked, killed)


def _report(asked: list[Asked], killed: list[float]) -> Report:
    answers = [one for one in asked if one.status == 200]
    return Report(
        seconds=[min(one.ended for one in answers if one.sent > at) - at for at in killed],
        requests=len(asked),
        answered=len(answers),
        refused=sum(one.status == 503 for one in asked),
        without_answer=sum(one.status == NO_ANSWER for one in asked),
        wrong=sum(not right(one.version, one.value) for one in answers),
        longest=max(one.ended - one.sent for one in asked),
    )
