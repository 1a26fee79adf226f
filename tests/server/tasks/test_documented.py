"""The examples of `docs/protocol.md` for the APIs of other tools, run as written."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import huggingface_hub
import pytest

from tests.server.conftest import PATIENCE
from tests.server.tasks.conftest import Served

PAGE = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
SECTION = PAGE.partition("\n## APIs of other tools\n")[2]
CURL = re.findall(r"^curl .*$", SECTION, re.MULTILINE)
CALL = re.findall(r"^huggingface_hub.*$", SECTION, re.MULTILINE)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("example", CURL)
def test_curl_examples_are_answered(served: Served, example: str) -> None:
    words = shlex.split(example.replace("localhost:8000", served.url.removeprefix("http://")))
    done = subprocess.run([*words, "-sS", "--fail-with-body"], capture_output=True, timeout=PATIENCE, check=True)
    assert json.loads(done.stdout)


def test_examples_of_every_kind_are_there() -> None:
    assert len(CURL) == 3
    assert len(CALL) == 1


def test_the_hubs_client_is_called_as_it_stands_there(served: Served) -> None:
    found = re.fullmatch(r'huggingface_hub\.InferenceClient\("http://localhost:8000(.*)"\)\.(\w+)\("(.*)"\)', CALL[0])
    assert found is not None
    client = huggingface_hub.InferenceClient(served.url + found[1])
    assert isinstance(getattr(client, found[2])(found[3]), list)
