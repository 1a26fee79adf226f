"""Semantic search in a browser: `python -m examples.search.app`, beside a `latebind serve` that has an embedding model.

This little server sends the texts to `/v1/embeddings`, keeps their vectors in numpy, and answers `/search?q=...`.
"""

import argparse
import json
import sys
import time
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

import numpy as np

from examples.search.texts import Text, of_file, of_python
from latebind.cli.console import console, progress, reporting
from latebind.domain.errors import ConfigError, LatebindError, Unavailable

AT_ONCE = 256  # texts of a call
PATIENCE = 60.0  # seconds that a call may take
SHOWN = 10
LONGEST_QUERY = 1_000  # characters
PAGE = Path(__file__).with_name("page.html")

Vectors = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class Embedder:
    """A model of a latebind server, asked in OpenAI's form; openai's own client would do as well."""

    server: str
    model: str

    def __call__(self, texts: Sequence[str]) -> tuple[Vectors, int]:
        """Return vectors of length 1, `(N, D)`, and how many texts were cut to what the model reads.

        Raises `ConfigError` with what the server says, and `Unavailable` where there is none.
        """
        asked = {"model": self.model, "input": list(texts), "encoding_format": "base64", "truncate": True}
        headers = {"Content-Type": "application/json", "Latebind-Timeout": f"{PATIENCE:g}"}
        request = Request(f"{self.server}/v1/embeddings", json.dumps(asked).encode(), headers)  # noqa: S310
        try:
            with urlopen(request, timeout=PATIENCE) as response:  # noqa: S310
                said, cut = json.load(response), int(response.headers.get("Latebind-Truncated", 0))
        except HTTPError as error:
            raise ConfigError(f"{self.server} says: {error.read(2_000).decode(errors='replace')}") from None
        except (URLError, TimeoutError) as error:
            raise Unavailable(f"{self.server} does not answer ({error}): run `latebind serve models` first") from None
        rows = [np.frombuffer(b64decode(one["embedding"]), "<f4") for one in said["data"]]
        vectors = np.stack(rows).astype(np.float32)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12), cut


@dataclass(frozen=True, slots=True)
class Index:
    """Texts and their vectors `(N, D)`; a search compares with all of them."""

    texts: Sequence[Text]
    vectors: Vectors
    embed: Embedder

    @classmethod
    def of(
        cls, texts: Sequence[Text], embed: Embedder, on_progress: Callable[[str, float], None]
    ) -> tuple["Index", int]:
        """Return an index of texts, and how many of them were cut to what the model reads."""
        parts, cut = list[Vectors](), 0
        for begin in range(0, len(texts), AT_ONCE):
            on_progress("", begin / len(texts))
            vectors, shorter = embed([one.read for one in texts[begin : begin + AT_ONCE]])
            parts.append(vectors)
            cut += shorter
        return cls(texts, np.concatenate(parts), embed), cut

    def search(self, query: str) -> dict[str, object]:
        """Return the texts that are nearest to a query, the nearest first, and the milliseconds that it took."""
        begun = time.perf_counter()
        (vector,), _ = self.embed([query])
        embedded = time.perf_counter()
        scores = self.vectors @ vector
        best = np.argsort(-scores, kind="stable")[:SHOWN].tolist()
        results = [
            {"title": self.texts[one].title, "text": self.texts[one].text, "score": round(float(scores[one]), 4)}
            for one in best
        ]
        whole, embedding = (time.perf_counter() - begun) * 1e3, (embedded - begun) * 1e3
        return {"results": results, "of": len(self.texts), "ms": round(whole, 2), "embedding_ms": round(embedding, 2)}


class Handler(BaseHTTPRequestHandler):
    """Gives the page, and answers searches."""

    timeout = PATIENCE  # of a connection that says nothing

    def __init__(self, index: Index, *given: Any) -> None:
        self.index = index
        super().__init__(*given)

    def do_GET(self) -> None:
        """Answer `/` with the page and `/search?q=...` with JSON."""
        path, asked = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        if path == "/":
            return self._send(200, PAGE.read_bytes(), "text/html; charset=utf-8")
        if path != "/search":
            return self._say(404, {"error": "there is / and /search?q=..."})
        query = asked.get("q", [""])[0].strip()
        if not query or len(query) > LONGEST_QUERY:
            return self._say(400, {"error": f"give a query q of 1 to {LONGEST_QUERY} characters"})
        try:
            return self._say(200, self.index.search(query))
        except LatebindError as error:
            return self._say(502, {"error": str(error)})

    def _say(self, status: int, said: object) -> None:
        self._send(status, json.dumps(said).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", "default-src 'self' 'unsafe-inline'")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet: there is a request for every few letters."""


def listening(index: Index, port: int) -> ThreadingHTTPServer:
    """Return a server of this index that nobody but this machine can reach."""
    return ThreadingHTTPServer(("127.0.0.1", port), partial(Handler, index))


def main(arguments: Sequence[str]) -> None:
    """Embed the texts and serve the page until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=Path, help="a text in each line, or a table; default: Python's documentation")
    parser.add_argument("--server", default="http://localhost:8000", help="where `latebind serve` answers")
    parser.add_argument("--model", default="minilm", help="the model there that embeds")
    parser.add_argument("--port", type=int, default=8080, help="the port of the page")
    given = parser.parse_args(arguments)
    with reporting():
        texts = of_file(given.texts) if given.texts else of_python()
        with progress(f"embedding {len(texts)} texts") as on_progress:
            index, cut = Index.of(texts, Embedder(given.server.rstrip("/"), given.model), on_progress)
        if cut:
            console.print(f"{cut} texts are longer than the model reads: of these their beginnings are searched")
        with listening(index, given.port) as server:
            console.print(f"search at http://localhost:{server.server_port}", soft_wrap=True)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                console.print("stopped")


if __name__ == "__main__":
    main(sys.argv[1:])
