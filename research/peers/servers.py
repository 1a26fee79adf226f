"""Servers as processes: ours, and peers in virtual environments of their own, which are made on first use.

Starts them, waits until they are ready, ends them. Latebind itself needs none of the peers. Triton's own C++ server
comes inside the package nvidia-pytriton.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from importlib.metadata import distributions
from pathlib import Path

import psutil

from latebind.bench.server import cpu_seconds, tree
from latebind.domain.errors import ConfigError

START_SECONDS = 240.0
STOP_SECONDS = 20.0
PAUSE = 0.05
IDLE_SECONDS = 1.0
RESTLESS = 0.05  # of a core


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs: where it listens, and its first process. Nothing where it does not speak a protocol."""

    process: int
    http: int
    grpc: int | None = None

    @property
    def url(self) -> str:
        """Where it listens for HTTP."""
        return f"http://127.0.0.1:{self.http}"


def free_port() -> int:
    """Return a port that nobody listens on at the moment."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


@contextmanager
def running(
    command: Sequence[str], *, http: int, ready: str, log: Path, grpc: int | None = None, more: Mapping[str, str] = {}
) -> Iterator[Served]:
    """Run a server until the block ends, and begin the block once it answers GET `ready` with 200.

    Raises `ConfigError` where it ends before. `more` is put into its environment; what it prints goes to `log`.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**os.environ, **more},
            process_group=0,  # Ctrl-C is for this process, which ends the others
        )
        try:
            _await_ready(process, http, ready, log)
            yield Served(process.pid, http, grpc)
        finally:
            end(process)


@contextmanager
def latebind(repository: Path, options: Sequence[str], *, ready: str, log: Path, grpc: bool) -> Iterator[Served]:
    """Run `latebind serve` with these options until the block ends; it begins once the model `ready` is served."""
    http, calls = free_port(), free_port() if grpc else None
    command = [sys.executable, "-m", "latebind", "serve", str(repository), "--port", str(http)]
    if calls is not None:
        command += ["--grpc-port", str(calls)]
    with running([*command, *options], http=http, grpc=calls, ready=f"/v2/models/{ready}/ready", log=log) as served:
        yield served


def restless(servers: Iterable[Served]) -> list[Served]:
    """Return the servers that take processor time while nobody calls them, measured for `IDLE_SECONDS`."""
    every = list(servers)
    before = [cpu_seconds(served.process) for served in every]
    time.sleep(IDLE_SECONDS)
    return [
        served
        for served, then in zip(every, before, strict=True)
        if cpu_seconds(served.process) - then > RESTLESS * IDLE_SECONDS
    ]


@contextmanager
def turn_of(served: Served, polling: Iterable[Served]) -> Iterator[None]:
    """Stop the processes of all other servers that poll until the block ends.

    LitServe takes one and a half cores while nobody calls it, so its peers would be measured on what it leaves. Servers
    that do not poll run on: Triton's Python backend does not recover from being stopped.
    """
    processes = [one for other in polling if other is not served for one in tree(other.process)]
    try:
        _tell(processes, psutil.Process.suspend)
        _tell(processes, _await_stopped)
        yield
    finally:
        _tell(processes, psutil.Process.resume)


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a server and whatever of it is left."""
    try:
        every = tree(process.pid)
    except psutil.NoSuchProcess:
        every = []
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for one in every:
        if one.is_running():
            one.kill()


def _tell(processes: Iterable[psutil.Process], what: Callable[[psutil.Process], None]) -> None:
    for one in processes:
        with suppress(psutil.NoSuchProcess):  # some live for a moment only
            what(one)


def _await_stopped(process: psutil.Process) -> None:
    # A signal acts only once its process has a core.
    until = time.monotonic() + STOP_SECONDS
    while process.status() not in {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}:
        if time.monotonic() > until:
            raise ConfigError(f"process {process.pid} does not stop; end what else runs on this machine")
        time.sleep(PAUSE / 10)


def _await_ready(process: "subprocess.Popen[bytes]", port: int, path: str, log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise ConfigError(f"a server ended with status {process.returncode} before it was ready: see {log}")
        if _answers(port, path):
            return
        time.sleep(PAUSE)
    raise ConfigError(f"a server was not ready after {START_SECONDS:g} s: see {log}")


def _answers(port: int, path: str) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


PACKAGES = {
    "triton": ("nvidia-pytriton==0.7.0", "numpy<2"),
    "fastapi": ("fastapi", "uvicorn", "uvloop", "httptools", "orjson", "numpy<2"),
    "litserve": ("litserve", "uvloop", "httptools", "orjson", "numpy<2"),
}
TORCH = "torch==2.13.0"  # what the peers compute with, where the part needs it: the version of this environment


def environment(folder: Path, peer: str, *more: str) -> Path:
    """Return the folder of a peer's environment, in which its packages and `more` are there. Raises `ConfigError`.

    What is installed is not looked at again: a file beside the packages says what was asked for.
    """
    path = folder / peer
    wanted = (*PACKAGES[peer], *more)
    if not (path / "bin" / "python").exists():
        run_to_end([sys.executable, "-m", "venv", str(path)], f"no environment could be made in {path}")
    done = path / "latebind-peer.txt"
    missing = set(wanted) - set(done.read_text().split("\n") if done.exists() else ())
    if missing:
        command = [str(path / "bin" / "python"), "-m", "pip", "install", "--quiet", *wanted]
        run_to_end(command, f"packages of {peer} could not be installed in {path}")
        done.write_text("\n".join(wanted))
    return path


def versions(folder: Path, peers: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages that were asked for in the environments of these peers, by peer."""
    found = {}
    for peer in peers:
        path = folder / peer
        done = path / "latebind-peer.txt"
        if not done.exists():  # it is none of another's
            continue
        names = [re.split("[<=>]", wanted)[0] for wanted in done.read_text().split("\n")]
        packages = sysconfig.get_path("purelib", "venv", {"base": str(path), "platbase": str(path)})
        there = {one.name.lower(): one.version for one in distributions(path=[packages])}
        found[peer] = ", ".join(f"{name} {there[name]}" for name in names if name in there)
    return found


def run_to_end(command: list[str], failure: str) -> None:
    """Run a program; raises `ConfigError` with the last of what it said where it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ConfigError(f"{failure}: {last}")


APPS = Path(__file__).parent / "apps"


@contextmanager
def serve_python(
    environment: Path, peer: str, model: str, words: Sequence[int], *, ready: str, log: Path, more: Mapping[str, str]
) -> Iterator[Served]:
    """Serve a model of `apps/networks.py` by a peer's application, which takes model, port and these words."""
    port = free_port()
    command = [str(environment / "bin" / "python"), str(APPS / f"{peer}_app.py"), model, *map(str, (port, *words))]
    alone = {"PYTHONPATH": str(APPS), **more}  # nothing of ours; workers of uvicorn import the application by its name
    with running(command, http=port, ready=ready, log=log, more=alone) as served:
        yield served


CONFIG = """name: "{name}"
backend: "python"
max_batch_size: {batch}
input [ {{ name: "{taken}", data_type: TYPE_{dtype}, dims: {shape}, allow_ragged_batch: {ragged} }} ]
output [ {{ name: "{output}", data_type: TYPE_FP32, dims: {answer} }} ]
instance_group [ {{ count: {instances}, kind: KIND_CPU }} ]
dynamic_batching {{
  max_queue_delay_microseconds: 0
  default_queue_policy {{ timeout_action: REJECT, default_timeout_microseconds: {time_out} }}
}}
"""
HTTP_THREADS = 2


@contextmanager
def serve_triton(
    environment: Path,
    folder: Path,
    name: str,
    *,
    shape: tuple[int, ...],
    answer: tuple[int, ...],
    batch: int,
    instances: int,
    time_out: int = 0,
    more: Mapping[str, str] = {},
    model: Path = APPS / "triton_model.py",
    taken: tuple[str, str] = ("x", "FP32"),
    output: str = "y",
) -> Iterator[Served]:
    """Serve a model of `apps/networks.py` that maps x `(B, *shape)` to y `(B, *answer)`, both float32.

    The file `model` may have another one, which takes one input of that name and datatype and gives that output; a size
    of -1 may differ from row to row. Who waits in its queue for more than `time_out` microseconds is refused; with 0
    nobody is.
    """
    base = {"base": str(environment), "platbase": str(environment)}
    packages = Path(sysconfig.get_path("purelib", "venv", base))
    binaries = packages / "pytriton" / "tritonserver"
    backends = folder / "backends"
    if not backends.exists():  # the Python backend and the stub for this version of Python
        shutil.copytree(binaries / "backends", backends)
        stubs = binaries / "python_backend_stubs" / sysconfig.get_python_version()
        shutil.copy(stubs / "triton_python_backend_stub", backends / "python")
    version = folder / "models" / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    shutil.copy(model, version / "model.py")
    shutil.copy(APPS / "networks.py", version)
    shapes = {"shape": list(shape), "answer": list(answer)}
    ragged = "true" if -1 in shape else "false"
    named = {"name": name, "taken": taken[0], "dtype": taken[1], "output": output, "ragged": ragged}
    config = CONFIG.format(batch=batch, instances=instances, time_out=time_out, **named, **shapes)
    (version.parent / "config.pbtxt").write_text(config)
    http, grpc = free_port(), free_port()
    options = {
        "model-repository": folder / "models",
        "backend-directory": backends,
        "http-address": "127.0.0.1",
        "http-port": http,
        "http-thread-count": HTTP_THREADS,
        "grpc-address": "127.0.0.1",
        "grpc-port": grpc,
        "allow-metrics": "false",
        "log-verbose": 0,
    }
    libraries = f"{sysconfig.get_config_var('LIBDIR')}:{packages / 'nvidia_pytriton.libs'}"
    path = f"{environment / 'bin'}:{os.environ['PATH']}"  # its stub takes packages from the first Python that it finds
    paths = {"LD_LIBRARY_PATH": libraries, "PATH": path, **more}
    command = [str(binaries / "bin" / "tritonserver"), *(f"--{name}={value}" for name, value in options.items())]
    ready = f"/v2/models/{name}/ready"
    with running(command, http=http, grpc=grpc, ready=ready, log=folder / "log", more=paths) as served:
        yield served
