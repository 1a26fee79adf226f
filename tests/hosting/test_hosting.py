"""A module served from Python, in a folder that remembers it, and what is refused."""

import json
import os
import re
import signal
import socket
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor, nn

import latebind
from latebind.child import READY
from latebind.domain.errors import ConfigError, ExportError, Unavailable
from latebind.hosting import build_once
from tests.forked import FORKS
from tests.networks import Tagger
from tests.program.modules import Cached
from tests.sequences import Backwards

ROWS = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Doubles(nn.Module):
    def __init__(self, times: float = 2.0) -> None:
        super().__init__()
        self.times = nn.Parameter(torch.tensor([times]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.times


class Chooses(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def build(module: nn.Module, folder: Path, **settings: object) -> str:
    return build_once(module, ROWS, folder, backends=("eager",), **settings)  # type: ignore[arg-type]


def versions(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "doubles").iterdir() if path.name.isdecimal())


def asked(url: str, model: str, row: Tensor) -> dict[str, list[float]]:
    """Return the outputs of one row by name."""
    tensor = {"name": "x", "shape": [1, len(row)], "datatype": "FP32", "data": row.tolist()}
    request = urllib.request.Request(f"{url}/v2/models/{model}/infer", json.dumps({"inputs": [tensor]}).encode())
    with urllib.request.urlopen(request, timeout=60) as reply:
        return {output["name"]: output["data"] for output in json.load(reply)["outputs"]}


def test_a_module_answers_for_as_long_as_the_block_lasts(tmp_path: Path) -> None:
    options = {"backends": ("eager",), "arguments": ("--deadline-ms", "20000")}
    with latebind.serving(Doubles(), {"x": ROWS}, folder=tmp_path, name="twice", **options) as url:  # type: ignore[arg-type]
        (answer,) = asked(url, "twice", ROWS[0]).values()
        assert answer == pytest.approx((2 * ROWS[0]).tolist())
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=60)


def test_only_the_outputs_that_are_named_are_answered_and_others_are_another_version(tmp_path: Path) -> None:
    module, rows = Cached().eval(), torch.randn(2, 4)
    options = {"folder": tmp_path, "name": "cached", "backends": ("eager",), "outputs": ("logits",)}
    with latebind.serving(module, {"x": rows}, **options) as url, torch.inference_mode():  # type: ignore[arg-type]
        assert asked(url, "cached", rows[0]) == {"logits": pytest.approx(module(rows[:1])["logits"][0].tolist())}
    for outputs, count in ((("logits",), 1), (("logits", "hidden"), 2)):
        build_once(module, {"x": rows}, tmp_path, name="cached", backends=("eager",), outputs=outputs)
        assert len([path for path in (tmp_path / "cached").iterdir() if path.name.isdecimal()]) == count


def test_rows_of_any_length_are_answered_as_the_module_answers_them(tmp_path: Path) -> None:
    module, rows = Tagger(), {name: torch.ones(2, 7, dtype=torch.int64) for name in ("ids", "mask")}
    ours, theirs = latebind.Dim("L", 1, 40), torch.export.Dim("L", min=1, max=40)
    options = {"folder": tmp_path, "backends": ("eager",)}
    every = {"dims": {name: {1: ours} for name in rows}, "arguments": ("--deadline-ms", "20000")}
    with latebind.serving(module, rows, **options, **every) as url:  # type: ignore[arg-type]
        for length in (1, 7, 40):
            ids = torch.arange(length) % 50
            row = {"ids": ids.tolist(), "mask": [1] * length}
            request = urllib.request.Request(f"{url}/v2/models/tagger/generate", json.dumps(row).encode())
            with urllib.request.urlopen(request, timeout=60) as reply, torch.inference_mode():
                tags = torch.tensor(json.load(reply)["tags"])
                torch.testing.assert_close(tags, module(ids[None], torch.ones_like(ids)[None])["tags"][0])
    for dims, count in (([{1: theirs}] * 2, 1), ([(None, theirs)] * 2, 1), ((), 2)):
        build_once(module, rows, tmp_path, backends=("eager",), dims=dims)
        assert len([path for path in (tmp_path / "tagger").iterdir() if path.name.isdecimal()]) == count


@pytest.mark.parametrize(
    ("told", "number", "said"),
    [
        ("server", signal.SIGKILL, "Unavailable: `latebind serve` ended with signal 9 (Killed): see its output ab"),
        ("server", signal.SIGTERM, ""),
        ("script", signal.SIGTERM, ""),
    ],
)
def test_a_server_that_ends_is_an_error_unless_it_was_told_to(
    told: str, number: signal.Signals, said: str, tmp_path: Path
) -> None:
    reading, writing = os.pipe()
    with open(os.devnull, "rb") as nothing, (tmp_path / "said").open("w") as log, os.fdopen(reading) as out:
        standard = (nothing.fileno(), writing, log.fileno())
        script = FORKS.fork("tests.hosting.serves", (), name="script", standard=standard, imports=("torch._dynamo",))
        os.close(writing)
        try:
            line = out.readline()
            assert line.startswith(READY)
            (server,) = psutil.Process(script.pid).children()
            os.kill(server.pid if told == "server" else script.pid, number)
            assert script.ended(60.0)
        finally:
            script.kill()
    assert said in (text := (tmp_path / "said").read_text())
    assert ("Traceback" in text) is bool(said)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(line.removeprefix(READY).strip(), timeout=60)


def killed(folder: Path) -> None:
    """Kill the server of this folder, and return when it has died."""
    (server,) = [child for child in psutil.Process().children() if str(folder) in child.cmdline()]
    server.kill()
    os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)


def test_a_block_that_its_server_does_not_outlive_ends_with_an_error(tmp_path: Path) -> None:
    serving = partial(latebind.serving, Doubles(), {"x": ROWS}, folder=tmp_path, backends=("eager",))
    with pytest.raises(Unavailable, match=r"ended with signal 9 \(Killed\): .*; start it again"), serving():
        killed(tmp_path)
    with pytest.raises(KeyError), serving():
        raise KeyError("of the block itself")


def test_what_was_built_in_a_folder_is_found_there_again_and_other_weights_are_another_version(tmp_path: Path) -> None:
    steps: list[str] = []
    for module, found in ((Doubles(), ["1"]), (Doubles(), ["1"]), (Doubles(3.0), ["1", "2"])):
        assert build(module, tmp_path, on_progress=lambda doing, _: steps.append(doing)) == "doubles"
        assert versions(tmp_path) == found
    assert (steps[0], steps.count("done")) == ("exporting the module", 2)


def test_a_build_leaves_the_threads_of_torch_as_they_were(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        build(Doubles(), tmp_path)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("module", "rows", "error", "said"),
    [
        (Chooses(), ROWS, ExportError, r"torch\.where"),
        (len, ROWS, ConfigError, r"give a torch\.nn\.Module"),
        (Backwards(), ROWS, ConfigError, "latebind build"),
        (Doubles(), ROWS.numpy(), ExportError, r"torch\.as_tensor makes one of an array"),
    ],
)
def test_what_cannot_be_served_is_refused_with_what_to_change(
    module: Any, rows: Any, error: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=said):
        build_once(module, rows, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    build(Doubles(), tmp_path)
    wrong = latebind.serving(Doubles(), ROWS, folder=tmp_path, backends=("eager",), arguments=("--no-such-option",))
    with pytest.raises(ConfigError, match="--no-such-option"):
        wrong.__enter__()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"samples": ROWS, "fidelity": 97}, "give the share of equal answers"),
        ({"deadline": 0.0}, r"server\.deadline is .*: give more than 0 seconds"),
        ({"deadline": float("nan")}, r"server\.deadline is .*: give more than 0 seconds"),
        ({"device": "cuda:77"}, "'cuda:77' is not there"),
        ({"device": "gpu"}, "give cpu, cuda, or cuda:0"),
    ],
)
def test_options_without_sense_are_told_before_anything_is_built(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        latebind.serving(Doubles(), ROWS, folder=tmp_path, backends=("eager",), **options).__enter__()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nam": "twice"}, "latebind.serving() has no option 'nam'; it has name, folder"),
        ({"port": "8000"}, "port is '8000': give a whole number"),
        ({"backends": "eager"}, "backends is the text 'eager': give words, ('eager',)"),
        ({"arguments": "--workers 2"}, "arguments is the text '--workers 2': give words, ('--workers', '2')"),
    ],
)
def test_an_option_that_there_is_not_or_of_another_type_is_refused_with_what_to_write(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(said)):
        latebind.serving(Doubles(), ROWS, **options).__enter__()


def test_a_port_that_is_taken_is_told_before_anything_is_built(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(ConfigError, match="choose another port"):
        latebind.serve(Doubles(), ROWS, folder=tmp_path, port=other.getsockname()[1])
    assert list(tmp_path.iterdir()) == []
