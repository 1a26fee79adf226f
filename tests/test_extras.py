"""Without the extra `hf`: all but what takes its libraries works, and that says what to install."""

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from latebind.bench.server import serving
from tests.server.conftest import PATIENCE
from tests.versions import WIDTH, add_version

EXTRA = ("transformers", "tokenizers", "PIL", "soundfile", "huggingface_hub")
# Python imports this at its start in every process that finds it on its path, so in the server's own processes too.
HIDES = f"""
import sys
class Hides:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRA!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hides())
"""


@pytest.fixture
def without(tmp_path: Path, nobody_lends: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for whatever; what is started from here on does not find the libraries of the extra."""
    place = tmp_path / "hides"
    place.mkdir()
    (place / "sitecustomize.py").write_text(HIDES)
    monkeypatch.setenv("PYTHONPATH", str(place), prepend=os.pathsep)
    return tmp_path


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_the_libraries_are_hidden(without: Path) -> None:
    for name in EXTRA:
        assert "ModuleNotFoundError" in run("-c", f"import {name}").stderr


def test_the_command_line_and_every_module_but_those_of_folders_are_there(without: Path) -> None:
    done = run("-m", "latebind", "--help")
    assert (done.returncode, "serve" in done.stdout) == (0, True), done.stderr
    package = Path(__file__).parent.parent / "latebind"
    names = [
        ".".join(file.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
        for folder in ("domain", "server", "preprocessing", "engine", "cli", "program", "sequence", "repository")
        for file in package.glob(f"{folder}/**/*.py")
    ]
    done = run("-c", "import " + ", ".join(names))
    assert done.returncode == 0, done.stderr


def test_a_model_of_tensors_is_served(without: Path) -> None:
    add_version(without / "models", "scale", 1, 3.0)
    with serving(without / "models") as url:
        given = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [2.0] * WIDTH}
        body = json.dumps({"inputs": [given]}).encode()
        with urlopen(Request(f"{url}/v2/models/scale/infer", body), timeout=PATIENCE) as reply:
            assert json.load(reply)["outputs"][0]["data"] == [6.0] * WIDTH


@pytest.mark.parametrize(
    "opened",
    [
        "from latebind.preprocessing.tokenizer import *; load_tokenizer(TokenizerFile('{}', ()))",
        "from latebind.preprocessing.pictures import *; PicturePreprocessor(PictureSettings('pixels'))",
    ],
)
def test_what_takes_the_extra_names_it(without: Path, opened: str) -> None:
    done = run("-c", opened)
    assert "pip install 'latebind[hf]'" in done.stderr.splitlines()[-1]


def test_a_folder_of_hugging_face_is_not_built_and_the_extra_is_named(without: Path) -> None:
    folder = without / "folder"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertModel"]}))
    (folder / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    done = run("-m", "latebind", "build", str(folder), "--out", str(without / "models"))
    told = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 2, told
    assert "pip install 'latebind[hf]'" in told
    assert "Traceback" not in told
