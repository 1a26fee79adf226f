"""The examples of `docs/protocol.md`, and of `docs/models.md` for rows of any length, as they stand there.

The frontend has models of these names.
"""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from latebind.domain.config import FrontendConfig
from latebind.domain.model import TensorSpec
from latebind.domain.sizes import Dim
from tests.server.arithmetic import COMPUTE, SPECS_BY_NAME, Arithmetic, spec
from tests.server.conftest import PATIENCE, Site, opened
from tests.server.test_written import MODEL as ECHO
from tests.server.test_written import preprocessor
from tests.server.words import Pixels, Words

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "protocol.md").read_text().partition("\n## APIs of other tools\n")[0]  # `tests/server/tasks` has these
LENGTHS = (DOCS / "models.md").read_text().partition("## Rows of any length\n")[2].partition("\n## ")[0]
PYTHON = [
    *re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL),
    *re.findall(r"```python\n(import numpy.*?)```", LENGTHS, re.DOTALL),
]
CURL = re.findall(r"^curl .*$", PAGE + LENGTHS, re.MULTILINE)
RESNET = spec("resnet", [TensorSpec("image", "float32", (3, 224, 224))], [TensorSpec("output", "float32", (1000,))])
GUARD = spec(
    "guard",
    [TensorSpec(name, "int64", (512,), 0, sizes=("L",)) for name in ("input_ids", "attention_mask")],
    [TensorSpec("output", "float32", (3,))],
    Dim("L", 1, 512),
)
TRANSLATOR = spec(
    "translator",
    [TensorSpec("tokens", "int64", (8,), 0, sizes=("length",))],
    [TensorSpec("tokens", "int64", (8,), 0, sizes=("length",))],
    Dim("length", 1, 8),
)
MINILM, VIT = (replace(SPECS_BY_NAME[reads], name=name) for reads, name in (("reads", "minilm"), ("views", "vit")))


OPUS = replace(ECHO, name="opus")


def models() -> Arithmetic:
    gateway = Arithmetic(RESNET, GUARD, TRANSLATOR, MINILM, VIT, OPUS)
    gateway.preprocessors = {"minilm": Words(), "vit": Pixels(), "opus": preprocessor()}
    return gateway


@pytest.fixture(scope="module")
def documented() -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(COMPUTE, "resnet", lambda rows: {"output": np.zeros((len(rows["image"]), 1000), np.float32)})
        patch.setitem(COMPUTE, "guard", lambda rows: {"output": np.zeros((len(rows["input_ids"]), 3), np.float32)})
        patch.setitem(COMPUTE, "translator", lambda rows: {"tokens": rows["tokens"] + 1})
        patch.setitem(COMPUTE, "minilm", COMPUTE["reads"])
        patch.setitem(COMPUTE, "vit", COMPUTE["views"])
        patch.setitem(COMPUTE, "opus", COMPUTE["echo"])
        with opened(FrontendConfig(port=0, grpc_port=0), gateway=models) as site:
            yield site


def at(site: Site, example: str) -> str:
    """Return an example with the ports of this frontend."""
    return example.replace(":8000", f":{site.port}").replace(":8001", f":{site.frontend.grpc_port}")


SAID = [
    r"\['0.000000:0'.*\] 2|\[b'0.000000:0'.*\] 2",
    r"\[\[6 9 3",
    r"\[\[0\. 0\..*\]\] 2",
    r"(\[\[0\. 0\. 0\.\]\]\s*){2}",
]


@pytest.mark.parametrize(
    ("example", "said"), list(zip(PYTHON, SAID, strict=True)), ids=["http", "stream", "grpc", "lengths"]
)
def test_an_example_in_python_runs_as_it_stands(
    documented: Site, example: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(at(documented, example), {})
    assert re.search(said, capsys.readouterr().out, re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("example", CURL)
def test_an_example_with_curl_runs_as_it_stands(documented: Site, example: str, tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_bytes(b"\1\2\3\4")  # a picture to the small preprocessor
    words = [*shlex.split(at(documented, example)), "--fail", "--silent"]
    ran = subprocess.run(words, capture_output=True, timeout=PATIENCE, check=True, cwd=tmp_path)
    assert ran.stdout
