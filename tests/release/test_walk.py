"""The walk through a page notices what is not as the page says."""

from pathlib import Path

import pytest

from tests.release.walk import differences, main, walked

PAGE = """
```python
# twice.py
print("twice", 2 * 21)
```

```sh
python3 -m venv venv && . venv/bin/activate
python3 twice.py
sleep 100 &
kill %1 && wait
```

```text
twice 41
```

```sh
echo "from one shell: $!" | cut -c 1-14
```
"""


def test_a_page_is_walked_in_one_shell(tmp_path: Path) -> None:
    (first, said, printed), (_, nothing, second) = walked(PAGE, tmp_path, None)
    assert first.startswith("python3 -m venv")
    assert (said, printed) == ("twice 41\n", "twice 42\n")  # installed is nothing without a wheel
    assert (nothing, second) == (None, "from one shell\n")


def test_words_and_lines_are_compared_and_figures_are_not() -> None:
    assert differences("mean 5.73 ms\n━━━━ p50 ┃\n", "mean 1,204 ms\n━━ p50 ┃\n") == []
    assert differences("mean 5 ms\n", "mean 5 s\n") == ["  the page: mean 0 ms\n  printed:  mean 0 s"]
    assert len(differences("one\n", "one\ntwo\n")) == 1
    assert len(differences("one\ntwo\n", "one\n")) == 1


def test_dots_stand_for_anything() -> None:
    assert differences("one\n...\nfour ... six\n...\n", "one\ntwo\nthree\nfour or five or six\nseven\n") == []
    assert differences("one\n...\n", "one\n") == []
    assert len(differences("...\nfive\n...\n", "one\ntwo\n")) == 1
    assert len(differences("one ... three\n", "one two\n")) == 1


def test_a_page_that_says_something_else_or_fails_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert main([str(page)]) == 0
    page.write_text(PAGE.replace("twice 41", "thrice 41"))
    assert main([str(page)]) == 1
    assert "the page: thrice 0" in capsys.readouterr().out
    page.write_text("```sh\nls nothing-here\n```\n")
    with pytest.raises(RuntimeError, match="nothing-here"):
        main([str(page)])


def test_a_server_keeps_its_terminal_and_ends_before_the_next_one(tmp_path: Path) -> None:
    page = """
```python
# direct.py
import signal, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/v2/health/ready" else 404)
        self.end_headers()

signal.signal(signal.SIGTERM, lambda *_: sys.exit(STATUS))
HTTPServer(("127.0.0.1", int(sys.argv[2])), Answers).serve_forever()
```
```sh
python direct.py --port 8000
echo is there
```
```sh
make demo
```
```sh
python direct.py --port 8000
echo is there again
```
"""
    blocks = list(walked(page.replace("STATUS", "0"), tmp_path, None))
    assert [printed for _, _, printed in blocks] == ["is there\n", blocks[1][2], "is there again\n"]
    assert blocks[1][2].startswith("(not run: ")
    with pytest.raises(RuntimeError, match="failed"):
        list(walked(page.replace("STATUS", "3"), tmp_path, None))
    with pytest.raises(RuntimeError, match="curl"):
        list(
            walked(page.replace("STATUS", "0").replace("echo is there\n", "curl localhost:8000/gone\n"), tmp_path, None)
        )


def test_a_block_says_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sh for what is typed"):
        list(walked("```\nls\n```\n", tmp_path, None))
