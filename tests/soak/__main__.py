"""`python -m tests.soak`: random settings, all clients at once, faults; then nothing may be lost, wrong or left.

Each seed is a server of its own, which is asked for some rounds, told to end under load and started again on its
folder. It says with which seed it failed.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import psutil

from latebind.bench.client import poisson
from latebind.bench.ledger.faults import Fault, Injector
from latebind.bench.ledger.networks import build
from latebind.bench.ledger.play import Played, Target, play, taken
from latebind.bench.ledger.questions import WIDTH, Mix, Protocol, Questions
from latebind.bench.server import tree
from research.peers.servers import free_port, running
from tests.soak.beside import PREFIX, Beside, Operator, ask, figures, look, publish, send_nonsense, share_memory, stream
from tests.soak.digits import NAME, SAMPLED, Classifying
from tests.soak.digits import build as build_digits
from tests.soak.network import FORK, SUM, VECTORS, body, check, draw
from tests.soak.network import build as build_others
from tests.soak.secure import SecureServer, Visitor, second
from tests.soak.tokens import say

MODELS = ("affine", "chain", "relay", "words")
IN_FLIGHT = 16
END_SECONDS, QUIET_SECONDS, CLOSE_SECONDS = 90.0, 60.0, 15.0  # a frontend closes idle connections after 10
DESCRIPTORS = 6  # beyond those behind the first round: connections of clients that have just gone
# Else a model that all this happens to would be left out, and nothing adapted on a machine that is never idle.
OFTEN = "[generations]\ncrashes = 1000000\n[adaptation]\nyields = false\ninterval = 5.0\n"
ADAPT = ["--adapt", "--sample", "0.5"]


@dataclass(frozen=True, slots=True)
class Servers:
    """The server that everything happens to, the second one on its folder, the folder, and whether the first adapts."""

    target: Target
    other: SecureServer
    repository: Path
    adapts: bool


def options(random: Random, folder: Path, *, adapt: bool) -> list[str]:
    """Return settings of `latebind serve`; half of them adapt, or all where `adapt`."""
    words = ["--manage", "--shared-memory", PREFIX, "--trace-rate", random.choice(("0", "0.05"))]
    words += ["--policy", random.choice(("late", "late", "lazy+", "graph")), "--watch", "2"]
    words += ["--slots", random.choice(("16", "64", "256")), "--config", str(folder / "often.toml")]
    words += ["--workers", random.choice(("1", "2"))]
    words += ["--memory", random.choice(("8MB", "30MB"))] if random.random() < 0.5 else []
    words += ADAPT if adapt or random.random() < 0.5 else []
    return words


def second_options(random: Random) -> list[str]:
    """Return settings of the second server, which always adapts: with the first it shares the versions."""
    return [
        *ADAPT,
        "--watch",
        "2",
        "--slots",
        random.choice(("16", "64")),
        "--policy",
        random.choice(("late", "lazy+")),
    ]


def soak(seed: int, built: Path, rounds: int, requests: int, rate: float, *, adapt: bool) -> None:
    """Play one seed. Raises `AssertionError`."""
    random = Random(seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder, log = Path(scratch), Path(scratch) / "log"
        shutil.copytree(built, folder / "models")
        (folder / "often.toml").write_text(OFTEN)
        words = options(random, folder, adapt=adapt)
        print(f"seed {seed}: {' '.join(words)}", flush=True)
        try:
            _serve(random, folder, words, rounds, requests, rate)
            _serve(random, folder, words, 1, requests // 10, rate)  # again, on the folder as it was left
            _, *found = log.read_text().partition("Traceback")
            assert not found[0], "".join(found)[:4000]
        except BaseException:
            print(log.read_text()[-8000:], flush=True)
            raise


def _serve(random: Random, folder: Path, words: Sequence[str], rounds: int, requests: int, rate: float) -> None:
    http, grpc = free_port(), free_port()
    command = [sys.executable, "-m", "latebind", "serve", str(folder / "models"), "--port", str(http)]
    command += ["--grpc-port", str(grpc), *words]
    shared = set(Path("/dev/shm").iterdir())
    with running(command, http=http, grpc=grpc, ready="/v2/models/words/ready", log=folder / "log") as served:
        target = Target("127.0.0.1", http, f"127.0.0.1:{grpc}", served.process)
        with second(folder, second_options(random), folder / "log") as other:
            servers = Servers(target, other, folder / "models", adapts="--adapt" in words)
            _rounds(random, servers, rounds, requests, rate)
        _end_under_load(target)
    left = [one for one in set(Path("/dev/shm").iterdir()) - shared if one.name.startswith("latebind")]
    assert not left, left


def _rounds(random: Random, servers: Servers, rounds: int, requests: int, rate: float) -> None:
    open_then, target, other = 0, servers.target, servers.other
    for number in range(rounds):
        _round(random, servers, requests, rate)
        opened = _open_files(target.process, open_then)
        memory = taken(target.process) / 1e6
        print(f"  round {number}: {len(opened)} descriptors of the frontend, {memory:.0f} MB", flush=True)
        assert not number or len(opened) <= open_then + DESCRIPTORS, opened
        open_then = open_then or len(opened)
        other.kill()
        other.start()


def _open_files(process: int, wanted: int) -> list[str]:
    """Return what a process has open, once that is about as much as it was, or does not fall to that."""
    until = time.monotonic() + CLOSE_SECONDS
    while True:
        found = sorted(os.readlink(one) for one in Path(f"/proc/{process}/fd").iterdir() if os.path.islink(one))
        if (wanted and len(found) <= wanted + DESCRIPTORS) or time.monotonic() > until:
            return found
        time.sleep(0.5)


def _round(random: Random, servers: Servers, requests: int, rate: float) -> None:
    target, repository = servers.target, servers.repository
    mix = Mix(
        MODELS, tuple(Protocol), deadlines=(0.05, 0.5, 5.0), leave=0.08, break_off=0.04, seed=random.randrange(99)
    )
    seeds = partial(Random, random.randrange(1 << 30))
    classifying = Classifying(target, repository, seeds())
    operator = Operator(target, repository, seeds(), next(VERSIONS))
    beside = [
        Beside(lambda: look(target, random), 0.3),
        Beside(lambda: send_nonsense(target, random), 0.05),
        Beside(operator, 1.0),
        Beside(lambda: share_memory(target, random), 0.2),
        Beside(lambda: stream(target, random), 0.2),
        Beside(partial(say, target, seeds()), 0.1),
        Beside(classifying, 0.05),
        Beside(partial(_ask_others, target, random), 0.1),
        Beside(Visitor(servers.other, seeds()), 0.1),
    ]
    faults = [
        Injector(fault, target.process, target.http, random.randint(0, 2), MODELS[:2], place=place, places=3)
        for place, fault in enumerate(Fault)
    ]

    async def run() -> Played:
        times = poisson(rate, Random(mix.seed))
        return await play(target, Questions(mix), times, requests, inject=[*beside, *faults], patience=60.0)

    played = asyncio.run(run())
    print(f"  {dict(played.ledger.faults)} {[one.count for one in beside]} {[one.what for one in played.injected]}")
    assert played.ledger.whole, played.ledger.evidence
    asyncio.run(_quiet(target))
    if servers.adapts:
        _adapted(target, classifying)


def _ask_others(target: Target, random: Random) -> None:
    """Ask a model with two inputs, an embedding, or a query that joins two models."""
    model = random.choice((SUM, VECTORS, FORK))
    inputs, right = draw(model, random)
    status, text = ask(target, "POST", f"/v2/models/{model}/infer", body(inputs))
    assert status in {200, 503, 504}, (status, text)
    if status == 200:
        check(model, text, right)


def _adapted(target: Target, classifying: Classifying) -> None:
    """Ask until the service that came last has samples: it lives, and hears what is answered."""
    until = time.monotonic() + QUIET_SECONDS
    while not (sampled := figures(target).get(SAMPLED, 0.0)):
        assert time.monotonic() < until, "the adaptation service hears nothing"
        classifying()
    print(f"  {sampled:.0f} samples of {NAME}", flush=True)


VERSIONS = count(100, 100)  # of `affine`, for each operator


async def _quiet(target: Target) -> None:
    """Wait until nothing is pending; then answers and latencies are as many, whoever counted them."""
    async with asyncio.timeout(QUIET_SECONDS):
        while any(value for (name, _), value in figures(target).items() if name == "latebind_pending_requests"):
            await asyncio.sleep(0.1)
    found = figures(target)
    for model in (*MODELS, NAME, SUM, VECTORS, FORK):
        left = found.get(("latebind_left_at_total", model), 0.0)
        counted = found.get(("latebind_latency_seconds_count", model), 0.0)
        assert left in {0.0, counted}, f"{model}: {left:g} left at a stage, {counted:g} were answered"


def _end_under_load(target: Target) -> None:
    """Tell the server to end with calls in flight: those accepted are answered, it ends with 0, no process is left."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [4, WIDTH], "data": [1.0] * 4 * WIDTH}
    body = json.dumps({"inputs": [tensor], "parameters": {"timeout": 30_000_000}}).encode()
    every, process = tree(target.process), psutil.Process(target.process)
    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        calls = [threads.submit(ask, target, "POST", "/v2/models/relay/infer", body) for _ in range(IN_FLIGHT)]
        calls[0].result()
        process.send_signal(signal.SIGTERM)
        for call in calls:
            with suppress(ConnectionRefusedError, ConnectionResetError):  # no frontend had accepted it when that closed
                assert call.result()[0] in {200, 503}, call.result()
    code = process.wait(END_SECONDS)
    assert code == 0, f"the server ended with {code}"
    _, left = psutil.wait_procs(every, timeout=10)
    assert not left, left


def main() -> None:
    """Play seeds, or as many as fit into some seconds."""
    parser = argparse.ArgumentParser(description="Everything at once, by seeds.")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--seeds", type=int, default=4, help="how many")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=1500, help="a round")
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second")
    parser.add_argument("--adapt", action="store_true", help="adapt with every seed, not with half of them")
    asked = parser.parse_args()
    assert importlib.util.find_spec("tritonclient"), "pip install 'tritonclient[all]'"
    with tempfile.TemporaryDirectory() as scratch:
        built = build(Path(scratch) / "models", MODELS)
        publish(built, "guest", 1)
        build_digits(built)
        build_others(built)
        for seed in range(asked.seed, asked.seed + asked.seeds):
            try:
                soak(seed, built, asked.rounds, asked.requests, asked.rate, adapt=asked.adapt)
            except BaseException:
                print(f"failed with --seed {seed} --seeds 1", flush=True)
                raise
            print(f"seed {seed}: all is well", flush=True)


if __name__ == "__main__":
    main()
