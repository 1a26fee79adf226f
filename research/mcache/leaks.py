"""Measures, from outside the process, what loads and unloads leave behind. Linux.

In a process of its own the engine's loader loads a model and unloads it, as often as asked; this process reads in
`/proc` what memory that takes.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from queue import SimpleQueue

import torch
from torch import nn

from latebind.cli.console import Rows
from latebind.domain.actions import Evict, Load
from latebind.domain.config import EngineConfig
from latebind.domain.errors import ConfigError
from latebind.domain.events import Loaded, LoadFailed
from latebind.engine.on_demand import Loader, open_model
from latebind.program.build import build_program
from latebind.program.pieces import resident_bytes

WIDTH = 2048
MATRIX = WIDTH * WIDTH * 4  # bytes
WARM = 5  # loads before anything is compared
BACK = 0.95  # the share of a model's bytes that counts as back
PATIENCE = 5.0  # seconds for that
MOST_LEFT = 16_000_000  # bytes that loads may leave behind
NAME = "wide"


def leak_rows(*, rounds: int, size: int = 200_000_000) -> Rows:
    """Measure a model of about so many bytes. Raises `ConfigError` where a load fails."""
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(max(1, round(size / MATRIX))))).eval()
        build_program(
            module,
            {"input": torch.randn(2, WIDTH)},
            directory=Path(folder) / "1",
            name=NAME,
            backends=["eager"],
            min_stage_seconds=0.0,
            max_overhead=None,
            max_batch=2,
        )
        command = [sys.executable, "-m", "research.mcache.leaks", str(Path(folder) / "1")]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
        ) as process:
            return [_measure(process, rounds)]


def _measure(process: subprocess.Popen[str], rounds: int) -> dict[str, object]:
    def have(command: str) -> int:
        """Have the process do this, and return the bytes that it takes then."""
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{command}\n")
        process.stdin.flush()
        if process.stdout.readline() != "done\n":
            raise ConfigError(f"the model could not be loaded: {command} failed, its log says why")
        return resident_bytes(process.pid)

    before, loaded = have(f"rounds {WARM}"), have("load")
    begun, unloaded = time.monotonic(), have("evict")
    back = _back(process.pid, loaded - BACK * (loaded - before), begun)
    unloaded = min(unloaded, resident_bytes(process.pid))
    begun = time.monotonic()
    after = have(f"rounds {rounds}")
    return {
        "loads": rounds,
        "model MB": round((loaded - before) / 1e6, 1),
        "left behind MB": round((after - unloaded) / 1e6, 2),
        "at most": round(MOST_LEFT / 1e6),
        "95 % back after s": "never" if back is None else round(back, 3),
        "ms each": round((time.monotonic() - begun) / rounds * 1e3, 1),
    }


def _back(process: int, wanted: float, begun: float) -> float | None:
    """Return the seconds from `begun` until the process takes at most this many bytes."""
    while time.monotonic() < begun + PATIENCE:
        if resident_bytes(process) <= wanted:
            return time.monotonic() - begun
        time.sleep(0.01)
    return None


def main(directory: str) -> None:
    """Load and evict as each line of the input says, and answer each with a line once it is done."""
    torch.set_num_threads(1)
    opened = open_model(Path(directory), EngineConfig())
    everything = tuple(range(len(opened.pieces)))
    for line in sys.stdin:
        command, _, count = line.strip().partition(" ")
        heard, loader = SimpleQueue[Loaded | LoadFailed](), Loader({NAME: opened.pieces})
        loader.start(heard.put)
        for _ in range(int(count or 1)):
            if command != "evict":
                loader.perform(Load(NAME, everything))
            if command != "load":
                loader.perform(Evict(NAME, everything))
        loader.close()
        failed = any(isinstance(heard.get(), LoadFailed) for _ in range(heard.qsize()))
        print("failed" if failed else "done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
