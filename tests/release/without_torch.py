"""`make dist`: the demo's model served from the wheel in an environment without torch, within limits of time and size.

    python -m tests.release.without_torch out/dist/latebind-0.1.0-py3-none-any.whl

It builds the model of examples/digits with the checkout's own environment, installs the wheel with the extra `serve`
into a new one, and serves it there. It prints the seconds from start to ready (the median of three starts behind a
first one, which compiles Python's modules), the memory that frontend and engine take beside the model (the sum of their
proportional set sizes, less the bytes of the model's weights), and what the extra has added to the environment. Beside
them it prints what the fork server takes, which waits a minute for another engine to be wanted. It ends with 1 where
torch or transformers came with the extra, an answer was wrong, or one of the figures is over its limit.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from math import inf
from pathlib import Path
from statistics import median

from latebind.program.metadata import this_hardware
from latebind.repository.directory import ModelDirectory
from tests.release.first_use import CHECKOUT, address, plain, running

MOST_SECONDS, MOST_MEMORY, MOST_INSTALLED = 2.0, 150e6, 300e6
STARTS = 4
ABSENT = ("torch", "transformers")
KIB = 1 << 10
IMAGE = {"inputs": [{"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": [0.5] * 64}]}


def main(words: list[str]) -> int:
    """Install, serve and measure; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="the wheel")
    parser.add_argument("--models", type=Path, help="a repository with the demo's model; it is built without")
    parser.add_argument("--python", default=sys.executable, help="the Python to make the environment with")
    given = parser.parse_args(words)
    hardware = this_hardware(1)
    print(f"{hardware.cpu}, {hardware.cores} cores, {os.getloadavg()[0]:.1f} busy")
    with tempfile.TemporaryDirectory(prefix="latebind-without-torch-") as scratch:
        folder = Path(scratch)
        models = given.models or _built(folder)
        environment, installed = _installed(given.wheel.resolve(), given.python, folder)
        figures = [("MB installed by the extra", installed / 1e6, MOST_INSTALLED / 1e6), *_served(environment, models)]
    for what, figure, most in figures:
        print(f"{figure:7.1f}  {what}{'' if most == inf else f'; at most {most:g} are allowed'}")
    return int(any(figure > most for _, figure, most in figures))


def _built(folder: Path) -> Path:
    """Return a repository with the demo's model, which this environment has built."""
    command = [sys.executable, "-m", "examples.digits.demo", "--build-only", "--out", str(folder / "digits")]
    subprocess.run(command, check=True, cwd=CHECKOUT, stdout=subprocess.DEVNULL)
    return folder / "digits" / "models"


def _installed(wheel: Path, python: str, folder: Path) -> tuple[Path, int]:
    """Return a new environment with the wheel and its extra, and the bytes that these have added to it."""
    environment = folder / "venv"
    inside = environment / "bin" / "python"
    subprocess.run([python, "-m", "venv", environment], check=True, env=plain())
    before = _bytes(environment)
    pip = [str(inside), "-m", "pip", "install", "--quiet", "--no-compile"]
    constraint = ["--constraint", str(CHECKOUT / "constraints.txt")]
    subprocess.run([*pip, *constraint, f"latebind[serve] @ {wheel.as_uri()}"], check=True, cwd=folder, env=plain())
    added = _bytes(environment) - before
    for name in ABSENT:
        done = subprocess.run([inside, "-c", f"import {name}"], capture_output=True, check=False, env=plain())
        assert done.returncode != 0, f"{name} is installed"
    return environment, added


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())


def _served(environment: Path, models: Path) -> list[tuple[str, float, float]]:
    """Return the seconds until the model is ready and the memory of its processes, each with its limit."""
    (path,) = models.glob("digits/*")
    weights = ModelDirectory.open(path).files["weights.safetensors"].bytes
    seconds, memory, beside = list[float](), list[float](), list[float]()
    for _ in range(STARTS):
        began = time.perf_counter()
        command = [str(environment / "bin" / "latebind"), "serve", str(models), "--port", "0"]
        with running(command, environment) as (process, said):
            url = address(said)
            seconds.append(time.perf_counter() - began)
            request = urllib.request.Request(f"{url}/v2/models/digits/infer", json.dumps(IMAGE).encode())
            with urllib.request.urlopen(request, timeout=30) as reply:
                (output,) = json.load(reply)["outputs"]
            assert output["shape"] == [1, 10], output
            (fork_server,) = _children(process)
            (engine,) = _children(fork_server)
            _until_idle(engine)  # it compiles for batches while it serves
            memory.append(sum(map(_proportional, (process, engine))) - weights)
            beside.append(_proportional(fork_server))
    return [
        ("s from start to ready", median(seconds[1:]), MOST_SECONDS),
        ("MB in frontend and engine beside the model", median(memory[1:]) / 1e6, MOST_MEMORY / 1e6),
        ("MB in the fork server", median(beside[1:]) / 1e6, inf),
    ]


def _children(process: int) -> list[int]:
    """Return the processes that the first thread of a process has started and that have not ended."""
    return list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()))


def _until_idle(process: int) -> None:
    """Wait until a process has computed for less than 10 ms of a second; raises `AssertionError` after 30 s."""
    used = -inf
    for _ in range(30):
        fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        before, used = used, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        if used - before < 0.01:
            return
        time.sleep(1.0)
    raise AssertionError(f"process {process} computes on while nobody asks")


def _proportional(process: int) -> int:
    """Return the bytes of a process, those that it shares divided among who shares them."""
    found = re.search(
        r"^Pss: +(\d+) kB", Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii"), re.MULTILINE
    )
    assert found is not None
    return int(found[1]) * KIB


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
