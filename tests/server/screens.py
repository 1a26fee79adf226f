"""Screenshots of the dashboard of a server that is well and of one with troubles, at two sizes, light and dark.

    python -m tests.server.screens --folder out/screens

Both are real: `latebind serve` over models that are built first, with clients that ask. `--view /workers` takes another
view, and `--models` keeps the models for the next time. Nothing is asserted here: that is `test_screens.py`, which uses
the same servers. Look at the pictures.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import product
from pathlib import Path
from shutil import copytree
from threading import Event, Thread
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import psutil
import torch
from torch import nn

from latebind.bench.client import Body, Caller, encode
from latebind.bench.server import launched
from latebind.engine.client import NAME
from research.faults.models import PICKED, WIDTH, Pick, Scale
from tests.browsing import chromium, missing, page_of
from tests.building import build_stages
from tests.versions import spoil

SIZES = {"phone": (390, 844), "desk": (1280, 800)}
SCHEMES = "light", "dark"
TORN = "sentiment-of-product-reviews.multilingual_distilled-v2"  # a name as long as people give, and nowhere to break
BROAD = 1024
SERVED = "--workers", "1", "--threads", "1", "--cores", "0"
SETTLED, SHOWN = 6.0, 4.0  # seconds that the load gets before the first page opens, and each page before its picture


class Layers(nn.Module):
    """More weights than a server of `troubled` may hold, in several stages."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(BROAD, BROAD) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `(B, 1024) float32` to `(B, 1024) float32`."""
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def build(folder: Path) -> None:
    """Make a repository of models: some to be asked, one that is large, one to be torn, and some that nobody asks."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = {"x": torch.ones(1, WIDTH)}
    scales = {name: (Scale(2.0), rows) for name in ("digits", "bulk", TORN, "seldom-0", "seldom-1")}
    others = {
        "picks": (Pick(), {**rows, "i": torch.zeros(1, PICKED, dtype=torch.int64)}),
        "large": (Layers(), {"x": torch.ones(1, BROAD)}),
    }
    for name, (module, inputs) in (scales | others).items():
        build_stages(module.eval(), inputs, folder / name / "1", name=name, max_batch=4)


@contextmanager
def well(folder: Path) -> Iterator[str]:
    """Serve the models of `folder` to clients that are all answered; yields the URL."""
    with launched(folder, *SERVED, "--deadline-ms", "20000") as server, ExitStack() as stack:
        for model, body in _requests(good=True).items():
            stack.enter_context(_asked(server.url, model, body, pause=0.05))
        yield server.url


@contextmanager
def troubled(folder: Path) -> Iterator[str]:
    """Serve the models of `folder`, of which `TORN` is, with little memory and few places; yields the URL.

    One is not served, one does not fit into memory, one is asked for more rows at once than there are places, one is
    sent what it does not take, and the engine has been killed once.
    """
    options = "--keep-going", "--memory", "14MB", "--slots", "4", "--deadline-ms", "20000"
    with launched(folder, *SERVED, *options) as server, ExitStack() as stack:
        (engine,) = [one for one in psutil.Process(server.process.pid).children(recursive=True) if one.name() == NAME]
        os.kill(engine.pid, signal.SIGKILL)
        _until_ready(server.url)
        for model, body in _requests(good=False).items():
            stack.enter_context(_asked(server.url, model, body, pause=0.05))
        yield server.url


def _requests(*, good: bool) -> dict[str, Body]:
    """Return a request for each model that is asked; those that are not `good` are refused."""
    row = {"x": np.ones((1, WIDTH), np.float32)}
    return {
        "digits": encode(row),
        "picks": encode({**row, "i": np.full((1, PICKED), 0 if good else WIDTH, np.int64)}),
        "bulk": encode({"x": np.ones((1 if good else 5, WIDTH), np.float32)}),
        "large": encode({"x": np.ones((1, BROAD), np.float32)}, timeout=None if good else 1e-3),
    }


@contextmanager
def _asked(url: str, model: str, body: Body, *, pause: float) -> Iterator[None]:
    """Ask for a model over and over within the block, with a pause behind each answer."""
    over = Event()

    def ask() -> None:
        while not over.is_set():
            with suppress(OSError):  # the connection may end with an engine
                caller = Caller(url, model)
                try:
                    while not over.wait(pause):
                        caller(body)
                finally:
                    caller.close()

    thread = Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _until_ready(url: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(HTTPError), urlopen(f"{url}/v2/health/ready", timeout=seconds):
            return
        time.sleep(0.05)
    raise TimeoutError("no other engine came up")


SERVERS = {"well": well, "troubled": troubled}


def torn(folder: Path, copy: Path) -> Path:
    """Return a copy of a folder of models in which `TORN` is."""
    copytree(folder, copy)
    spoil(copy / TORN / "1")
    return copy


def main(words: list[str]) -> int:
    """Take the pictures; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the pictures go")
    parser.add_argument("--view", default="/", help="as /workers, /time, /model/digits")
    parser.add_argument("--server", choices=SERVERS, action="append", help="one of the two; by default both")
    parser.add_argument("--models", type=Path, help="a folder that keeps the models; they are built if it is not there")
    given = parser.parse_args(words)
    if told := missing():
        print(told, file=sys.stderr)
        return 2
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        models = given.models or Path(place) / "models"
        if not models.is_dir():
            build(models)
        folders = {"well": models, "troubled": torn(models, Path(place) / "torn")}
        for name in given.server or SERVERS:
            with SERVERS[name](folders[name]) as url, chromium() as browser:
                time.sleep(SETTLED)
                for size, scheme in product(SIZES, SCHEMES):
                    width, height = SIZES[size]
                    with page_of(browser, url, width=width, height=height, scheme=scheme) as page:
                        page.open(given.view)
                        time.sleep(SHOWN)
                        file = given.folder / f"{name}-{size}-{scheme}.png"
                        page.tab.screenshot(path=file)
                        print(file, *page.errors, "" if page.fits else "wider than the window, or cut", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
