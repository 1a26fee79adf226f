"""A real server of models that read texts, one for each task and two that embed."""

import http.client
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from latebind.bench.server import serving
from tests.building import made_once
from tests.reading import build_readers, tokenizer_of
from tests.server.conftest import PATIENCE, Response

ALL = ("embedder", "plain", "intents", "reranker", "tagger")


@dataclass(frozen=True)
class Served:
    """Where a server is, and its tokenizer."""

    url: str
    tokenizer: Tokenizer

    def call(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Response:
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=PATIENCE)
        try:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            return Response(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def ask(self, path: str, body: object, headers: dict[str, str] | None = None) -> Response:
        return self.call("POST", path, json.dumps(body).encode(), headers)

    def told(self, path: str, body: object) -> Any:
        """The JSON of an answer."""
        reply = self.ask(path, body)
        assert reply.status == 200, reply.body
        return reply.json()


def readers_made(factory: pytest.TempPathFactory) -> Path:
    """Return a folder of all models that read texts, built once for a whole run."""
    return made_once(factory, "readers", lambda folder: build_readers(folder, ALL))


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = readers_made(tmp_path_factory)
    with serving(folder, "--deadline-ms", str(int(PATIENCE * 1e3))) as url:
        yield Served(url, tokenizer_of(folder))


@pytest.fixture(scope="session")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of a single model, as TEI is one, which needs a token."""
    readers = readers_made(tmp_path_factory)
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(readers / "embedder", folder / "embedder")
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with serving(folder, "--token-file", str(token), "--deadline-ms", str(int(PATIENCE * 1e3))) as url:
        yield Served(url, tokenizer_of(folder))


TOKEN = "a-token-of-many-letters"
