"""`make dist`: what somebody does first with the wheel, in an environment of its own and outside of the checkout.

    python -m tests.release.first_use out/dist/latebind-0.1.0-py3-none-any.whl

It installs the wheel, writes README's `direct.py`, runs it, asks for the model and for an answer, runs it again, and
prints the seconds of each step; those of installing, which downloads, do not count. It ends with 1 where something
failed, or took longer than a minute in all.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Timer
from typing import IO, Any

from latebind.child import READY
from latebind.program.metadata import this_hardware
from tests.release.walk import at_port

CHECKOUT = Path(__file__).parents[2]
MOST_SECONDS = 60.0  # from the first command after installing to the answer
STARTED = 300.0  # seconds after which a server is given up, on a machine that others use
ANSWER = {"inputs": [{"name": "image", "shape": [1, 3, 32, 32], "datatype": "FP32", "data": [0.5] * 3072}]}


def main(words: list[str]) -> int:
    """Go through first use; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="the wheel")
    parser.add_argument("--extras", default="openvino,torch", help="extras to install with it, with commas between")
    parser.add_argument("--python", default=sys.executable, help="the Python to make the environment with")
    given = parser.parse_args(words)
    hardware = this_hardware(1)
    print(f"{hardware.cpu}, {hardware.cores} cores, {os.getloadavg()[0]:.1f} busy")
    with tempfile.TemporaryDirectory(prefix="latebind-first-use-") as scratch:
        return _first_use(given.wheel.resolve(), given.extras, given.python, Path(scratch))


def _first_use(wheel: Path, extras: str, python: str, folder: Path) -> int:
    took: dict[str, float] = {}

    def step(name: str, call: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = call()
        took[name] = time.perf_counter() - began
        print(f"{took[name]:7.1f} s  {name}", flush=True)
        return result

    environment = folder / "venv"
    inside = environment / "bin" / "python"
    pip = [str(inside), "-m", "pip", "install", "--quiet", "--constraint", str(CHECKOUT / "constraints.txt")]
    step("make an environment and install (not counted)", lambda: (
        subprocess.run([python, "-m", "venv", environment], check=True, env=plain()),
        subprocess.run([*pip, f"latebind[{extras}] @ {wheel.as_uri()}"], check=True, cwd=folder, env=plain()),
    ))  # fmt: skip
    installed = sum(file.stat().st_size for file in environment.rglob("*") if file.is_file() and not file.is_symlink())
    print(f"{installed / 1e6:7.0f} MB installed")
    took.clear()
    (folder / "direct.py").write_text(_direct(), encoding="utf-8")
    step("latebind --help", lambda: subprocess.run(
        [environment / "bin" / "latebind", "--help"], check=True, stdout=subprocess.DEVNULL, cwd=folder, env=plain()
    ))  # fmt: skip
    for often in ("first", "second"):
        with running([str(inside), "direct.py"], folder) as (_, said):
            url = step(f"python direct.py, {often} time: until it serves", partial(address, said))
            step("an answer", partial(_asked, url))
    total = sum(took.values())
    print(f"{total:7.1f} s  in all; at most {MOST_SECONDS:g} are allowed")
    return int(total > MOST_SECONDS)


def plain() -> dict[str, str]:
    """Return the environment without what would let the new one see this checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


def _direct() -> str:
    """Return the program that README tells to write, serving at a port that is free."""
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"`direct\.py`.*?```python\n(.*?)```", readme, re.DOTALL)
    assert found is not None, "README has no direct.py"
    return at_port(found[1], 0)


@contextmanager
def running(command: list[str], folder: Path) -> Iterator[tuple[int, IO[str]]]:
    """Run a server; yields its process and what it prints. At the end it is asked to stop, and must do so with 0."""
    # A shell ignores SIGINT for what it runs in the background, and what it starts would too.
    listening = ["env", "--default-signal=INT", *command]
    with subprocess.Popen(listening, cwd=folder, env=plain(), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        too_late = Timer(STARTED, server.kill)
        too_late.start()
        try:
            yield server.pid, server.stdout
            server.send_signal(signal.SIGINT)
            status = server.wait(60)
            assert status == 0, f"the server ended with {status}"
        finally:
            too_late.cancel()
            server.kill()


def address(said: IO[str]) -> str:
    """Read what a server prints until it serves, and return its address."""
    found = next((line.removeprefix(READY).strip() for line in said if line.startswith(READY)), "")
    assert found, "the server ended before it served"
    return found


def _asked(url: str) -> None:
    request = urllib.request.Request(
        f"{url}/v2/models/tiny/infer", json.dumps(ANSWER).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        (output,) = json.load(reply)["outputs"]
    assert output["shape"] == [1, 10], output


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
