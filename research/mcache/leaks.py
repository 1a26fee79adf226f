"""Measures, from outside the process, what loads and unloads leave behind. Linux.

In a process of its own the engine's loader loads a model and unloads it, as often as asked; this process reads in
`/proc` what memory that takes.
"""

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import torch
from torch import nn

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
NAME = "wide"


@dataclass(frozen=True, slots=True)
class Leaks:
    """Bytes that the process takes: before the model, with it, without it, and after so many `rounds` of both.

    `back` are the seconds until `BACK` of the model's bytes were given back, None where they were not in `PATIENCE`.
    `seconds` is what a load and an unload take together.
    """

    rounds: int
    before: int
    loaded: int
    unloaded: int
    after: int
    back: float | None
    seconds: float

    @property
    def left(self) -> int:
        """Bytes that the rounds leaked."""
        return self.after - self.unloaded


def run(*, rounds: int = 1000, size: int = 200_000_000, backend: str = "eager") -> Leaks:
    """Measure a model of about so many bytes on this backend. Raises `ConfigError` where a load fails."""
    with tempfile.TemporaryDirectory() as folder:
        _build(Path(folder) / "1", layers=max(1, round(size / MATRIX)), backend=backend)
        command = [sys.executable, "-m", "research.mcache.leaks", str(Path(folder) / "1")]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
        ) as process:
            return _measure(process, rounds)


def _build(directory: Path, *, layers: int, backend: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers))).eval()
    rows = {"input": torch.randn(2, WIDTH)}
    build_program(
        module,
        rows,
        directory=directory,
        name=NAME,
        backends=[backend],
        min_stage_seconds=0.0,
        max_overhead=None,
        max_batch=2,
    )


def _measure(process: subprocess.Popen[str], rounds: int) -> Leaks:
    def have(command: str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{command}\n")
        process.stdin.flush()
        if process.stdout.readline() != "done\n":
            raise ConfigError(f"the model could not be loaded: {command} failed, its log says why")

    have(f"rounds {WARM}")
    before = resident_bytes(process.pid)
    have("load")
    loaded = resident_bytes(process.pid)
    begun = time.monotonic()
    have("evict")
    back = _back(process.pid, loaded - BACK * (loaded - before), begun)
    unloaded = resident_bytes(process.pid)
    begun = time.monotonic()
    have(f"rounds {rounds}")
    seconds = (time.monotonic() - begun) / rounds
    return Leaks(rounds, before, loaded, unloaded, resident_bytes(process.pid), back, seconds)


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
