"""A module served from Python, in a folder that remembers it, and what is refused."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
from torch import Tensor, nn

import latebind
from latebind.domain.errors import ConfigError, ExportError, Unavailable
from latebind.hosting.building import build_once
from latebind.hosting.child import READY
from tests.forked import FORKS
from tests.program.modules import Cached
from tests.sequences import Backwards

ROOT = Path(__file__).parents[2]
ROWS = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
SCRIPT = """
import torch
import latebind
latebind.serve(torch.nn.Linear(8, 3), torch.zeros(2, 8), port=0, backends=("eager",))
"""


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


def test_a_module_answers_for_as_long_as_the_block_lasts(tmp_path: Path) -> None:
    options = {"backends": ("eager",), "arguments": ("--deadline-ms", "20000")}
    with latebind.serving(Doubles(), {"x": ROWS}, folder=tmp_path, name="twice", **options) as url:  # type: ignore[arg-type]
        body = {"inputs": [{"name": "x", "shape": [1, 8], "datatype": "FP32", "data": ROWS[0].tolist()}]}
        request = urllib.request.Request(f"{url}/v2/models/twice/infer", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as reply:
            answer = json.load(reply)["outputs"][0]["data"]
        assert answer == pytest.approx((2 * ROWS[0]).tolist())
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=60)


def test_only_the_outputs_that_are_named_are_answered_and_others_are_another_version(tmp_path: Path) -> None:
    module, rows = Cached().eval(), torch.randn(2, 4)
    options = {"folder": tmp_path, "name": "cached", "backends": ("eager",), "outputs": ("logits",)}
    with latebind.serving(module, {"x": rows}, **options) as url:  # type: ignore[arg-type]
        body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": rows[0].tolist()}]}
        request = urllib.request.Request(f"{url}/v2/models/cached/infer", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as reply:
            (output,) = json.load(reply)["outputs"]
    with torch.inference_mode():
        assert (output["name"], output["data"]) == ("logits", pytest.approx(module(rows[:1])["logits"][0].tolist()))
    for outputs, count in ((("logits",), 1), (("logits", "hidden"), 2)):
        build_once(module, {"x": rows}, tmp_path, name="cached", backends=("eager",), outputs=outputs)
        assert len([path for path in (tmp_path / "cached").iterdir() if path.name.isdecimal()]) == count


def test_an_interrupt_ends_the_server_and_leaves_nothing_behind() -> None:
    with subprocess.Popen([sys.executable, "-c", SCRIPT], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(READY)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(line.removeprefix(READY).strip(), timeout=60)


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [
        (signal.SIGKILL, 1, "Unavailable: `latebind serve` ended with signal 9 (Killed): its words are above"),
        (signal.SIGTERM, 0, ""),
    ],
)
def test_a_server_that_ends_is_an_error_unless_it_was_told_to(
    number: signal.Signals, status: int, said: str, tmp_path: Path
) -> None:
    reading, writing = os.pipe()
    with open(os.devnull, "rb") as nothing, (tmp_path / "said").open("w") as log, os.fdopen(reading) as out:
        standard = (nothing.fileno(), writing, log.fileno())
        process = FORKS.fork("tests.hosting.serves", (), name="script", standard=standard, imports=("torch._dynamo",))
        os.close(writing)
        try:
            assert out.readline().startswith(READY)
            (server,) = psutil.Process(process.pid).children()
            server.send_signal(number)
            assert process.wait(60) == status
        finally:
            process.kill()
    assert said in (tmp_path / "said").read_text()


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


def test_what_was_built_in_a_folder_is_found_there_again(tmp_path: Path) -> None:
    assert build(Doubles(), tmp_path) == "doubles"
    written = (tmp_path / "doubles" / "1").stat().st_mtime_ns
    build(Doubles(), tmp_path)
    assert versions(tmp_path) == ["1"]
    assert (tmp_path / "doubles" / "1").stat().st_mtime_ns == written


def test_other_weights_are_another_version(tmp_path: Path) -> None:
    build(Doubles(), tmp_path)
    build(Doubles(3.0), tmp_path)
    assert versions(tmp_path) == ["1", "2"]


def test_a_build_leaves_the_threads_of_torch_as_they_were(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        build(Doubles(), tmp_path)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_what_cannot_be_exported_is_refused_with_what_to_change(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"torch\.where"):
        build(Chooses(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_is_no_module_and_what_is_a_sequence_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"give a torch\.nn\.Module"):
        build_once(len, ROWS, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="latebind build"):
        build_once(Backwards(), ROWS, tmp_path)


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    build(Doubles(), tmp_path)
    wrong = latebind.serving(Doubles(), ROWS, folder=tmp_path, backends=("eager",), arguments=("--no-such-option",))
    with pytest.raises(ConfigError, match="--no-such-option"):
        wrong.__enter__()


def test_a_build_tells_its_steps_and_what_is_there_is_not_built_again(tmp_path: Path) -> None:
    steps: list[str] = []
    for _ in range(2):
        build_once(Doubles(), ROWS, tmp_path, backends=("eager",), tell=lambda doing, _: steps.append(doing))
    assert (steps[0], steps.count("done")) == ("exporting the module", 1)


def test_a_fidelity_without_sense_is_told_before_anything_is_built(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give the share of equal answers"):
        build_once(Doubles(), ROWS, tmp_path, samples=ROWS, fidelity=97, backends=("eager",))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("deadline", [0.0, float("nan")])
def test_a_deadline_without_sense_is_told_before_anything_is_built(deadline: float, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"server\.deadline is .*: give more than 0 seconds"):
        latebind.serving(Doubles(), ROWS, folder=tmp_path, deadline=deadline).__enter__()
    assert list(tmp_path.iterdir()) == []


def test_an_option_that_there_is_not_is_named_with_those_that_there_are() -> None:
    with pytest.raises(TypeError, match=r"latebind\.serving\(\) has no option 'nam'; it has name, folder"):
        latebind.serving(Doubles(), ROWS, nam="twice").__enter__()  # type: ignore[call-arg]


def test_a_port_that_is_a_text_is_refused() -> None:
    with pytest.raises(TypeError, match="port is '8000': give a whole number"):
        latebind.serving(Doubles(), ROWS, port="8000").__enter__()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "why"),
    [
        pytest.param(
            "cuda", "'cuda' is not there", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU")
        ),
        ("cuda:77", "'cuda:77' is not there"),
        ("gpu", "give cpu, cuda, or cuda:0"),
    ],
)
def test_a_device_that_is_not_there_is_told_before_anything_is_built(tmp_path: Path, device: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        latebind.serving(Doubles(), ROWS, folder=tmp_path, device=device).__enter__()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("option", "instead"), [("backends", "('eager',)"), ("arguments", "('--workers', '2')")])
def test_a_text_where_words_are_wanted_is_refused_with_the_words(option: str, instead: str) -> None:
    text = " ".join(re.findall(r"[\w-]+", instead))
    with pytest.raises(TypeError, match=rf"{option} is the text .*: give words, {re.escape(instead)}"):
        latebind.serving(Doubles(), ROWS, **{option: text}).__enter__()  # type: ignore[arg-type]


def test_rows_that_are_no_tensors_are_refused_with_what_makes_them_some(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"one is of type ndarray: torch\.as_tensor"):
        build_once(Doubles(), ROWS.numpy(), tmp_path)  # type: ignore[arg-type]


def test_a_port_that_is_taken_is_told_before_anything_is_built(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(ConfigError, match="name another port"):
        latebind.serve(Doubles(), ROWS, folder=tmp_path, port=other.getsockname()[1])
    assert list(tmp_path.iterdir()) == []
