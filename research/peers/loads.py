"""Closed loops of clients that repeat the same call: wrk for HTTP, h2load for gRPC, else our own."""

import asyncio
import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from latebind.bench.ledger.questions import Protocol
from latebind.bench.server import cpu_seconds
from latebind.domain.errors import ConfigError
from research.peers.calls import Call
from research.peers.closed import closed_loop
from research.peers.processes import Served

SCRIPT = """
local file = io.open("{body}", "rb")
wrk.method = "POST"
wrk.body = file:read("*a")
{headers}
done = function(summary, latency, requests)
  local refused = summary.errors.status
  local failed = summary.errors.connect + summary.errors.read + summary.errors.write
  failed = failed + refused + summary.errors.timeout
  io.write(string.format('\\nfound {{"requests": %d, "seconds": %f, "p50": %f, "p99": %f, "failed": %d}}\\n',
    summary.requests - refused, summary.duration / 1e6, latency:percentile(50) / 1e6,
    latency:percentile(99) / 1e6, failed))
end
"""
FOUND = "found "


@dataclass(frozen=True, slots=True)
class Loaded:
    """What so many clients got for `seconds`: requests a second, latencies in seconds, and the server's CPU time.

    `rate` counts answers, `failed` what was none; `cpu` is of all processes of the server, in seconds an answer.
    """

    rate: float
    p50: float
    p99: float
    failed: int
    cpu: float


def load(served: Served, call: Call, *, clients: int, seconds: float) -> Loaded:
    """Send a call from so many clients, each waiting for its answer before it sends again."""
    before = cpu_seconds(served.process)
    requests, took, p50, p99, failed = _run(served, call, clients, seconds)
    cpu = cpu_seconds(served.process) - before
    return Loaded(requests / took, p50, p99, failed, cpu / max(1, requests))


def tool(protocol: Protocol) -> str:
    """Return the client that will be used for a protocol, as tables name it."""
    wanted = "h2load" if protocol is Protocol.GRPC else "wrk"
    return wanted if shutil.which(wanted) else "our own client"


Counted = tuple[int, float, float, float, int]  # requests, seconds, p50, p99, failed


def _run(served: Served, call: Call, clients: int, seconds: float) -> Counted:
    match tool(call.protocol):
        case "wrk":
            return _wrk(served, call, clients, seconds)
        case "h2load":
            return _h2load(served, call, clients, seconds)
        case _:
            return _own(served, call, clients, seconds)


def _wrk(served: Served, call: Call, clients: int, seconds: float) -> Counted:
    with tempfile.TemporaryDirectory() as folder:
        body, script = Path(folder) / "body", Path(folder) / "script.lua"
        body.write_bytes(call.data)
        headers = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in call.headers.items())
        script.write_text(SCRIPT.format(body=body, headers=headers))
        options = ["-t", "1", "-c", str(clients), "-d", f"{round(seconds)}s", "-s", str(script)]
        output = _called(["wrk", *options, served.url + call.path])
    found = json.loads(next(line for line in output.splitlines() if line.startswith(FOUND)).removeprefix(FOUND))
    return found["requests"], found["seconds"], found["p50"], found["p99"], found["failed"]


def _h2load(served: Served, call: Call, clients: int, seconds: float) -> Counted:
    """Each client has a connection of its own. An answer without data is a failure, for h2load sees no gRPC status."""
    with tempfile.TemporaryDirectory() as folder:
        body, log = Path(folder) / "body", Path(folder) / "log"
        body.write_bytes(call.data)
        options = ["-t1", f"-c{clients}", "-m1", f"-D{round(seconds)}", "-d", str(body), f"--log-file={log}"]
        headers = [part for name, value in call.headers.items() for part in ("-H", f"{name}: {value}")]
        output = _called(["h2load", *options, *headers, f"http://127.0.0.1:{served.grpc}{call.path}"])
        rows = np.loadtxt(log, dtype=np.int64, ndmin=2)
    good = rows[rows[:, 1] == 200]
    failed = len(rows) - len(good)
    if _data_bytes(output) < call.least * len(good):
        failed = len(rows)
    return len(good), float(round(seconds)), *_percentiles(good[:, 2] / 1e6), failed


def _data_bytes(output: str) -> int:
    """Return the bytes of data, headers not counted, that h2load received: `... 6553600) data`."""
    line = next(line for line in output.splitlines() if line.startswith("traffic:"))
    return int(line.rsplit("(", 1)[1].split(")")[0])


def _own(served: Served, call: Call, clients: int, seconds: float) -> Counted:
    took, failed = asyncio.run(closed_loop(served, call, clients=clients, seconds=seconds))
    return len(took), seconds, *_percentiles(took), failed


def _percentiles(seconds: ArrayLike) -> tuple[float, float]:
    """Return p50 and p99, NaN where nothing was answered."""
    p50, p99 = np.percentile(np.array(seconds) if np.size(seconds) else [np.nan], [50, 99])
    return float(p50), float(p99)


def _called(command: Sequence[str]) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(f"{command[0]} ended with status {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout
