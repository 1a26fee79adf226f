"""Clients that record what became of each request."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from research.faults.models import WIDTH

PATIENCE = 20.0  # seconds after which a request counts as hanging
NO_ANSWER = 0
PAUSE = 0.002  # seconds between an answer and the next request of a client


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: when it was sent and had ended (`time.monotonic()`), and its HTTP status, 0 where none came.

    Of an answer the version of the model, the first number, and how many stages the model has.
    """

    sent: float
    ended: float
    status: int
    version: str = ""
    value: float = 0.0
    stages: int = 0


class Clients:
    """Send requests for one model, each of one row of ones."""

    def __init__(self, session: aiohttp.ClientSession, model: str, width: int = WIDTH) -> None:
        self._session = session
        self._path = f"/v2/models/{model}/infer"
        tensor = {"name": "x", "shape": [1, width], "datatype": "FP32", "data": [1.0] * width}
        self._body = json.dumps({"inputs": [tensor], "parameters": {"timeout": round(PATIENCE * 1e6)}}).encode()

    async def ask(self) -> Asked:
        """Send one request; returns whatever comes of it."""
        sent = time.monotonic()
        try:
            async with self._session.post(self._path, data=self._body) as response:
                reply = await response.json()
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return Asked(sent, time.monotonic(), NO_ANSWER)
        if response.status != 200:
            return Asked(sent, time.monotonic(), response.status)
        value, stages = reply["outputs"][0]["data"][0], reply["parameters"]["stages"]
        return Asked(sent, time.monotonic(), 200, reply["model_version"], value, stages)

    async def ask_on(self, until: asyncio.Event) -> list[Asked]:
        """Send one after another."""
        asked = []
        while not until.is_set():
            asked.append(await self.ask())
            await asyncio.sleep(PAUSE)
        return asked


@asynccontextmanager
async def session(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Connections to a server, as many as are wanted."""
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, timeout=timeout, connector=connector) as opened:
        yield opened


@asynccontextmanager
async def load(clients: Clients, count: int) -> AsyncIterator[list[Asked]]:
    """Let this many clients send requests inside the block; afterwards the list has all of them."""
    done, asked = asyncio.Event(), list[Asked]()
    tasks = [asyncio.create_task(clients.ask_on(done)) for _ in range(count)]
    try:
        yield asked
    finally:
        done.set()
        for found in await asyncio.gather(*tasks):
            asked.extend(found)
