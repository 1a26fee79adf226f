"""Search by meaning: texts of files and of Python, an index over a real server, its answers over HTTP, and the page."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

import numpy as np
import pytest

from examples.search.app import Embedder, Index, listening
from examples.search.texts import Text, of_file, of_python
from latebind.bench.server import serving
from latebind.domain.errors import ConfigError, Unavailable
from tests.browsing import chromium, missing
from tests.building import made_once
from tests.reading import build_readers

HOSTILE = '<img src=x onerror="window.hacked=1">'
TEXTS = [Text("", "sunny and warm"), Text("a.title_of", "play some jazz"), Text("", HOSTILE), Text("", "wake me up")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = made_once(tmp_path_factory, "reader", lambda folder: build_readers(folder, ["embedder"]))
    with serving(folder, "--deadline-ms", "60000") as url:
        yield url


@pytest.fixture(scope="module")
def index(server: str) -> Index:
    return Index.of(TEXTS, Embedder(server, "embedder"), lambda text, share: None)[0]


@contextmanager
def searching(index: Index) -> Iterator[str]:
    with listening(index, 0) as there:
        thread = Thread(target=there.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{there.server_port}"
        finally:
            there.shutdown()
            thread.join()


def test_lines_of_a_file_and_columns_of_tables_are_texts(tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text(" one \n\n\u00fc two\n", encoding="utf-8")
    (tmp_path / "some.csv").write_text("number,text\n1,one\n2,two\n")
    assert of_file(tmp_path / "some.txt") == [Text("", "one"), Text("", "\u00fc two")]
    assert of_file(tmp_path / "some.csv") == [Text("", "one"), Text("", "two")]
    for content, said in ((b"\n", "has no texts"), (b"\xff", "is no text in UTF-8")):
        (tmp_path / "some.txt").write_bytes(content)
        with pytest.raises(ConfigError, match=said):
            of_file(tmp_path / "some.txt")


def test_python_says_what_its_library_is_for() -> None:
    found = {one.title: one for one in of_python()}
    assert len(found) > 1_000
    assert "Recursively copy a directory tree" in found["shutil.copytree"].text
    assert found["shutil.copytree"].read.startswith("shutil copytree: ")
    assert "threading.Barrier.wait" in found
    assert not any("._" in title or title.startswith(("_", "test.")) for title in found)


def test_the_nearest_text_is_what_was_asked_for(index: Index) -> None:
    for place, text in enumerate(TEXTS):
        found: Any = index.search(text.read)
        assert found["of"] == len(TEXTS)
        first = found["results"][0]
        assert (first["title"], first["text"]) == (text.title, text.text)
        assert first["score"] == pytest.approx(1.0, abs=1e-4)
        scores = [one["score"] for one in found["results"]]
        assert scores == sorted(scores, reverse=True)
        np.testing.assert_allclose(np.linalg.norm(index.vectors[place]), 1.0, rtol=1e-5)


def test_what_a_model_cannot_read_whole_is_told(server: str) -> None:
    _, cut = Index.of([Text("", "warm " * 500), TEXTS[0]], Embedder(server, "embedder"), lambda text, share: None)
    assert cut == 1


def test_a_model_or_a_server_that_is_not_there_is_told_of(server: str, index: Index) -> None:
    with pytest.raises(ConfigError, match="'other'"):
        Embedder(server, "other")(["a"])
    nobody = Embedder("http://127.0.0.1:9", "embedder")
    with pytest.raises(Unavailable, match="run `latebind serve models` first"):
        nobody(["a"])
    with searching(Index(index.texts, index.vectors, nobody)) as url, pytest.raises(HTTPError) as told:
        urlopen(f"{url}/search?q=a", timeout=30)
    assert told.value.code == 502
    assert "does not answer" in json.load(told.value)["error"]


def test_searches_are_answered_over_http_and_wrong_ones_refused(index: Index) -> None:
    with searching(index) as url:
        with urlopen(f"{url}/search?q={quote('play some jazz & more')}", timeout=30) as reply:
            assert len(json.load(reply)["results"]) == len(TEXTS)
        with urlopen(url, timeout=30) as reply:
            assert b"What are you looking for?" in reply.read()
        for path, status in (("/search", 400), ("/search?q=%20", 400), (f"/search?q={'a' * 1001}", 400), ("/x", 404)):
            with pytest.raises(HTTPError) as told:
                urlopen(url + path, timeout=30)
            assert told.value.code == status
            assert "error" in json.load(told.value)


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_shows_texts_as_texts_while_somebody_types(index: Index, scheme: str) -> None:
    if told := missing():
        pytest.skip(told)
    with searching(index) as url, chromium() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 700}, color_scheme=scheme)
        errors = list[str]()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        page.get_by_label("What are you looking for?").press_sequentially(HOSTILE)
        page.locator("li p").first.filter(has_text=HOSTILE).wait_for()
        assert page.locator("li").count() == len(TEXTS)
        assert page.locator("li .score").first.inner_text() == "1.00"
        assert "the nearest of 4 texts in" in page.locator("#said").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.evaluate("window.hacked") is None
        page.get_by_label("What are you looking for?").fill("")
        page.locator("li").first.wait_for(state="detached")
        assert not errors
