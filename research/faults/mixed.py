"""Faults under a mixed load on four models: the engine killed, stopped, stuck in a stage, and rows that raise.

Every answer is recomputed, and the figures, health and dashboard are asked all the while. And a server that is told to
end while requests wait and run.
"""

import asyncio
import os
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import numpy as np
import psutil
import torch
from torch import nn

from latebind.bench.rounds import Progress
from latebind.bench.server import launched, tree
from latebind.child import Child
from latebind.cli.console import Row, Rows
from latebind.domain.errors import LatebindError
from research.faults.freeze import Frozen
from research.faults.models import PICKED, Pick, Scale, Slow, build_models, width_of

CLIENTS = 3  # of each model
KNOWN = 32  # inputs of each model whose answers are known
TIMEOUT = 1.0  # seconds that a call may take
GRACE = 1.0  # seconds after its deadline by which a call must have an answer
HANGS = 30.0  # seconds after which a client gives up
IN_FLIGHT = 32  # requests of a server that is told to end
LEFT_SECONDS = 1.0  # after the exit in which children may still end
NO_ANSWER = 0
PAUSE = 0.02  # seconds between an answer and the next call of a client
LOOKS = 0.2  # seconds between two looks at the control plane
STOPPED_SECONDS = 10.0
RECOVERY_SECONDS = 120.0  # by which a call is answered again
TRIES = 20  # threads that are stopped until one of them was in a stage
SETTINGS = "[generations]\ncrashes = 1000000\npatience = {patience}\n"  # else models would be left out
SERVES = re.compile(r"engine process (\d+) serves")
CONTROL = (
    ("GET", "/v2/health/live"),
    ("GET", "/v2/health/ready"),
    ("GET", "/metrics"),
    ("GET", "/v2/models/stats"),
    ("POST", "/v2/repository/index"),
    ("GET", "/dashboard/data"),
    ("GET", "/dashboard/picture"),
)


class Fault(StrEnum):
    """What is done to the engine."""

    KILLED = "killed"
    STOPPED = "stopped"
    STUCK = "stuck in a stage"
    POISONED = "a poisoned row"


def serving_process(log: Path) -> int:
    """Return the process that serves now, by the server's log."""
    return int(SERVES.findall(log.read_text())[-1])


@dataclass(frozen=True, slots=True)
class Call:
    """One call: when it was sent and had ended (`time.monotonic()`), its status, and whether its answer was right."""

    sent: float
    ended: float
    status: int
    right: bool = True


@dataclass(slots=True)
class Report:
    """What clients saw of one fault, `seconds` after each of which a later call to every model had been answered.

    `late` are calls without an answer `GRACE` seconds after their deadline. `control` has the longest seconds of each
    path. `idle` is how often the thread that was to be stuck in a stage had none, and all were answered without it;
    then another was stopped.
    """

    fault: Fault
    seconds: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    wrong: int = 0
    late: int = 0
    longest: float = 0.0
    control: dict[str, float] = field(default_factory=dict)
    poisoned: dict[int, int] = field(default_factory=dict)
    idle: int = 0


def row(report: Report) -> Row:
    """Return a report as a row of a table."""
    found = totals(report.statuses)
    return {
        "fault": report.fault,
        "times": len(report.seconds),
        **{name: found[name] for name in ("answered", "refused", "failed")},
        "wrong": report.wrong,
        f"no answer {GRACE:g} s after the deadline": report.late,
        "longest call s": f"{report.longest:.2f}",
        "longest look s": f"{max(report.control.values()):.2f}",
        "all answered again after s, median": f"{median(report.seconds):.2f}",
        "longest": f"{max(report.seconds):.2f}",
        "poisoned rows got": _counted(report.poisoned),
        "threads stopped that had no stage": report.idle,
    }


def rows(faults: Sequence[Fault], times: int, on_progress: Progress, *, pause: float, patience: float) -> Rows:
    """Cause each fault so many times, `pause` seconds after the one before was over."""
    with tempfile.TemporaryDirectory() as folder:
        on_progress("four models are built", 0.0)
        models: dict[str, nn.Module] = {"twice": Scale(2.0), "thrice": Scale(3.0), "slow": Slow(64), "pick": Pick()}
        modules = build_models(Path(folder) / "models", models)
        found = []
        for number, fault in enumerate(faults):

            def told(done: int, number: int = number, fault: Fault = fault) -> None:
                on_progress(f"{fault}: {done} of {times}", (number + done / times) / len(faults))

            found.append(_cause(fault, times, Path(folder), modules, pause, patience, told))
        return [row(report) for report in found]


def _cause(
    fault: Fault,
    times: int,
    folder: Path,
    modules: dict[str, nn.Module],
    pause: float,
    patience: float,
    told: Callable[[int], None],
) -> Report:
    report, log, settings = Report(fault), folder / f"{fault.name}.log", folder / "settings.toml"
    settings.write_text(SETTINGS.format(patience=patience))
    with launched(folder / "models", "--config", str(settings), "--dashboard", log=log) as server:
        asyncio.run(_run(server.url, log, report, times, modules, pause, told))
    return report


async def _run(
    url: str,
    log: Path,
    report: Report,
    times: int,
    modules: dict[str, nn.Module],
    pause: float,
    told: Callable[[int], None],
) -> None:
    timeout, connector = aiohttp.ClientTimeout(total=HANGS), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, timeout=timeout, connector=connector) as session:
        clients = {name: Client(session, name, module) for name, module in modules.items()}
        load = [asyncio.create_task(_ask_on(client, report)) for client in clients.values() for _ in range(CLIENTS)]
        load.append(asyncio.create_task(_look_on(session, report)))
        try:
            for done in range(times):
                told(done)
                await asyncio.sleep(pause)
                begun = time.monotonic()
                await _act(report, log, clients)
                await _all_answered(report, clients)
                report.seconds.append(time.monotonic() - begun)
        finally:
            for task in load:
                task.cancel()
            await asyncio.wait(load)
    for task in load:
        if not task.cancelled():
            task.result()


async def _act(report: Report, log: Path, clients: "dict[str, Client]") -> None:
    """Cause the fault, and return once it is over or another engine serves."""
    engine = serving_process(log)
    match report.fault:
        case Fault.KILLED:
            os.kill(engine, signal.SIGKILL)
        case Fault.STOPPED:
            os.kill(engine, signal.SIGSTOP)
            await asyncio.sleep(STOPPED_SECONDS)
            with suppress(ProcessLookupError):  # it may have been replaced
                os.kill(engine, signal.SIGCONT)
            return
        case Fault.STUCK:
            await _stick(report, log, engine, clients)
        case Fault.POISONED:
            call = await clients["pick"].ask(poisoned=True)
            report.poisoned[call.status] = report.poisoned.get(call.status, 0) + 1
            return
    async with _within("no other engine served"):
        while serving_process(log) == engine:
            await asyncio.sleep(0.05)


async def _stick(report: Report, log: Path, engine: int, clients: "dict[str, Client]") -> None:
    """Stop threads of the engine, one at a time, until one was in a stage: then nobody is answered any more."""
    for _ in range(TRIES):
        frozen = await asyncio.to_thread(Frozen, engine)
        await _all_answered(report, clients)
        if serving_process(log) != engine:
            return
        report.idle += 1
        await asyncio.to_thread(frozen.thaw)
    raise LatebindError(f"of {TRIES} threads that were stopped none was in a stage")


async def _all_answered(report: Report, clients: "dict[str, Client]") -> None:
    """Return once a call to each model that is sent from now on is answered."""
    async with _within("a model did not answer again"):
        await asyncio.gather(*[_answered(client, report) for client in clients.values()])


@asynccontextmanager
async def _within(what: str) -> AsyncIterator[None]:
    """Raise `LatebindError` if the block takes longer than it may."""
    try:
        async with asyncio.timeout(RECOVERY_SECONDS):
            yield
    except TimeoutError:
        raise LatebindError(f"{what} within {RECOVERY_SECONDS:g} s of a fault") from None


class Client:
    """Calls one model with inputs whose answers are known."""

    def __init__(self, session: aiohttp.ClientSession, model: str, module: nn.Module, timeout: float = TIMEOUT) -> None:
        random, width = np.random.default_rng(len(model)), width_of(model)
        self.model = model
        self._timeout = timeout
        self._session = session
        self._rows: list[dict[str, Any]] = [{"x": row} for row in random.standard_normal((KNOWN, width), np.float32)]
        if model == "pick":
            for row in self._rows:
                row["i"] = random.integers(0, width, PICKED)
        with torch.inference_mode():
            self._right = [module(*[torch.from_numpy(each[None]) for each in row.values()])[0] for row in self._rows]
        self._numbers = count()

    async def ask(self, *, poisoned: bool = False) -> Call:
        """Make a call and return what came of it; a `poisoned` one makes the model raise."""
        number = next(self._numbers)
        row, sent = dict(self._rows[number % KNOWN]), time.monotonic()
        if poisoned:
            row["i"] = row["i"] + 10**6
        name, tensors = f"{self.model}-{number}", [_tensor(name, values) for name, values in row.items()]
        body = {"id": name, "inputs": tensors, "parameters": {"timeout": round(self._timeout * 1e6)}}
        try:
            async with self._session.post(f"/v2/models/{self.model}/infer", json=body) as response:
                reply = await response.json()
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return Call(sent, time.monotonic(), NO_ANSWER)
        ended, right = time.monotonic(), True
        if response.status == 200:
            values = np.array(reply["outputs"][0]["data"], np.float32)
            right = reply["id"] == name and np.allclose(values, self._right[number % KNOWN], rtol=1e-4, atol=1e-5)
        return Call(sent, ended, response.status, right)


def _tensor(name: str, values: Any) -> dict[str, object]:
    datatype = "INT64" if values.dtype == np.int64 else "FP32"
    return {"name": name, "shape": [1, len(values)], "datatype": datatype, "data": values.tolist()}


def _note(report: Report, call: Call) -> Call:
    report.statuses[call.status] = report.statuses.get(call.status, 0) + 1
    report.wrong += not call.right
    report.late += call.ended - call.sent > TIMEOUT + GRACE
    report.longest = max(report.longest, call.ended - call.sent)
    return call


async def _answered(client: Client, report: Report) -> None:
    """Return once a call that is sent from now on is answered."""
    while _note(report, await client.ask()).status != 200:
        await asyncio.sleep(PAUSE)


async def _ask_on(client: Client, report: Report) -> None:
    while True:
        _note(report, await client.ask())
        await asyncio.sleep(PAUSE)


async def _look_on(session: aiohttp.ClientSession, report: Report) -> None:
    """Ask the control plane again and again."""

    async def look(method: str, path: str) -> None:
        begun = time.monotonic()
        with suppress(aiohttp.ClientError, TimeoutError):
            async with session.request(method, path, data=b"{}" if method == "POST" else None) as response:
                await response.read()
        report.control[path] = max(report.control.get(path, 0.0), time.monotonic() - begun)

    while True:
        await asyncio.gather(*[look(method, path) for method, path in CONTROL])
        await asyncio.sleep(LOOKS)


def totals(statuses: dict[int, int]) -> Counter[str]:
    """Return how many calls were answered, refused in time, and failed."""
    names = {200: "answered", 429: "refused", 503: "refused", 504: "refused", NO_ANSWER: "no answer"}
    found = Counter[str]()
    for status, number in statuses.items():
        found[names.get(status, "failed")] += number
    return found


def _counted(counts: dict[int, int]) -> str:
    """Write each value with how often it came, as `0: 20`."""
    return ", ".join(f"{value}: {count}" for value, count in sorted(counts.items())) or "0"


# A server that is told to end -----------------------------------------------------------------------------------------


def terminate(times: int, on_progress: Progress, *, in_flight: int = IN_FLIGHT) -> Row:
    """Start a server, send so many requests for a slow model, and tell it to end while they run; so many times."""
    statuses, codes, seconds, processes = Counter[int](), Counter[int](), list[float](), 0
    with tempfile.TemporaryDirectory() as folder:
        (module,) = build_models(Path(folder), {"slow": Slow(128)}, max_batch=1).values()
        for number in range(times):
            on_progress(f"{number} of {times}", number / times)
            with launched(Path(folder), "--deadline-ms", "30000") as server:
                children = [one.pid for one in tree(server.process.pid)[1:]]
                some, begun = asyncio.run(_ask_and_end(server, module, in_flight))
                codes[server.process.wait(timeout=60)] += 1
                seconds.append(time.monotonic() - begun)
                processes += _left(children)
                statuses += some
    return {
        "answered": statuses[200],
        "not answered": statuses.total() - statuses[200],
        "exit codes": _counted(codes),
        "seconds to the end, median": f"{median(seconds):.2f}",
        "longest": f"{max(seconds):.2f}",
        "processes left": processes,
    }


async def _ask_and_end(server: Child, module: nn.Module, in_flight: int) -> tuple[Counter[int], float]:
    """Tell the server to end as soon as the first of the requests has its answer; the others wait or run then."""
    timeout, connector = aiohttp.ClientTimeout(total=HANGS), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(server.url, timeout=timeout, connector=connector) as session:
        client = Client(session, "slow", module, HANGS)
        tasks = [asyncio.create_task(client.ask()) for _ in range(in_flight)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        server.process.terminate()
        begun = time.monotonic()
        calls = await asyncio.gather(*tasks)
    return Counter(one.status if one.right else NO_ANSWER for one in calls), begun


def _left(processes: list[int]) -> int:
    """Return how many of them run yet, after a while; one that has ended may wait for whoever adopted it."""
    until = time.monotonic() + LEFT_SECONDS
    while (left := sum(map(_runs, processes))) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def _runs(process: int) -> bool:
    try:
        return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
