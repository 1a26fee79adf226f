"""Walks through a page as a newcomer does: types what it says, and compares what is printed with what it says.

    python -m tests.release.walk README.md --wheel out/dist/latebind-0.1.0-py3-none-any.whl

Of a page, blocks of `sh` run in order, in one shell and a folder outside of the checkout, where what README calls the
reader's own lies (`belongings.py`). A server that would keep the terminal runs in one of its own, until it is ready;
the next one or the end of the page ends it by SIGTERM, and it must exit with 0. A block of `python` or `toml` that
begins with a comment of a file's name is written to it; a block of `text` is what the block before printed. Words are
compared, and how many lines there are; figures are not, and `...` stands for anything. The port 8000 becomes another.
Without `--wheel` the packages of this environment are used and nothing is installed. Only what stands in `NOT_HERE` is
not run, with why.

It prints the seconds of each block, and ends with 1 where a command failed or printed something else.
"""

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Timer

from tests.release import belongings, mymodels

CHECKOUT = Path(__file__).parents[2]
NOT_HERE = {"make demo": "it is for a checkout, and takes minutes"}

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# ([\w./-]+\.(?:py|toml))\n")
INSTALLS = re.compile(r"^(?:python3 -m venv|pip install) .*\n", re.MULTILINE)
PORT = re.compile(r"(?<=localhost:)8000|(?<=--port )8000")
SERVES = re.compile(r"^(?:latebind serve|python direct\.py)\b[^&\n]*$", re.MULTILINE)  # and keeps the terminal
FIGURE = re.compile(r"[+-]?\d[\d.,]*")
DRAWN = re.compile(r"[─-╿]+")  # the lines of tables, whose widths follow the figures
ELLIPSIS = "..."
END = "latebind-walk-end"
LONGEST = 1_800.0  # seconds for all of a page, installing included

# What ends the server that keeps a terminal, and what starts the next one; curl is told to fail where a server refuses.
CLOSES = '[ -z "${server-}" ] || { kill "$server"; wait "$server"; server=; }\n'
OPENS = """{command} 1>&2 & server=$!
until curl --output /dev/null localhost:{port}/v2/health/ready; do kill -0 "$server"; sleep 0.2; done"""
CURLRC = "fail\nshow-error\nsilent\n"  # pages use --fail, which fail-with-body excludes


def main(words: list[str]) -> int:
    """Walk; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--wheel", type=Path, help="the wheel that pip is to find as latebind")
    given = parser.parse_args(words)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # what it started ends with it
    faults, began = [], time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="latebind-walk-") as folder:
        page = given.page.read_text(encoding="utf-8")
        if f"{Path(mymodels.__file__).stem}:" in page:
            belongings.put(Path(folder))
        for title, said, printed in walked(page, Path(folder), given.wheel):
            print(f"{time.perf_counter() - began:7.1f} s  {title}\n{printed}", flush=True)
            if said is not None and (different := differences(said, printed)):
                faults.append(f"{title}\n" + "\n".join(different))
    print(*faults, sep="\n")
    return int(bool(faults))


def walked(page: str, folder: Path, wheel: Path | None) -> Iterator[tuple[str, str | None, str]]:
    """Yield each block of commands, what the page says it prints (None: nothing is said), and what it printed.

    Raises `RuntimeError` where a command fails, and `ValueError` for a block that does not say what it is.
    """
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    blocks = BLOCK.findall(PORT.sub(str(port), page))
    if nameless := [text for kind, text in blocks if not kind]:
        raise ValueError(
            f"write what it is behind ```, sh for what is typed and text for what is printed:\n{nameless[0]}"
        )
    with _shell(folder, wheel) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        for place, (kind, text) in enumerate(blocks):
            if named := NAMED.match(text):
                (folder / named[1]).write_text(at_port(text, port), encoding="utf-8")
            if kind != "sh":
                continue
            if (why := NOT_HERE.get(text.strip())) is not None:
                yield text.strip(), None, f"(not run: {why})"
                continue
            commands = text if wheel is not None else INSTALLS.sub("", text)
            for begun in SERVES.findall(commands):
                at = "" if begun.startswith("python") else f" --port {port}"
                commands = commands.replace(begun, CLOSES + OPENS.format(command=begun + at, port=port))
            shell.stdin.write(f"{commands}\necho {END}\n")
            printed = _until_end(shell.stdout, text)
            follows = blocks[place + 1] if place + 1 < len(blocks) else ("", "")
            yield text.strip(), follows[1] if follows[0] == "text" else None, printed
        shell.stdin.write(f"{CLOSES}echo {END}\n")
        _until_end(shell.stdout, "the last server was to end with 0\n")


def at_port(program: str, port: int) -> str:
    """Return a program of a page with the models that it serves at this port."""
    return program.replace('folder="models")', f'folder="models", port={port})')


@contextmanager
def _shell(folder: Path, wheel: Path | None) -> Iterator[subprocess.Popen[str]]:
    """Run a shell in the folder, which ends where a command fails; what it leaves running ends with it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment |= {"TERM": "dumb", "COLUMNS": "120", "CURL_HOME": str(folder)}
    (folder / ".curlrc").write_text(CURLRC)
    if wheel is None:
        environment |= {"PYTHONPATH": str(CHECKOUT), "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}"}
    else:
        environment["PIP_FIND_LINKS"] = f"{wheel.resolve().parent} {environment.get('PIP_FIND_LINKS', '')}"
        environment["PIP_QUIET"] = "1"  # pages do not say what pip prints
    with subprocess.Popen(
        ["bash", "-e"],
        cwd=folder, env=environment, text=True, bufsize=1,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,  # progress goes on to where ours does
        start_new_session=True,
    ) as shell:  # fmt: skip
        late = Timer(LONGEST, os.killpg, (shell.pid, signal.SIGKILL))
        late.start()
        try:
            yield shell
        finally:
            late.cancel()
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGTERM)


def _until_end(output: Iterator[str], commands: str) -> str:
    lines: list[str] = []
    for line in output:
        rest, end, _ = line.partition(END)  # what curl prints need not end with a line
        if end:
            return "".join([*lines, rest])
        lines.append(line)
    raise RuntimeError(f"failed: {commands}{''.join(lines)}")


def differences(said: str, printed: str) -> list[str]:
    """Return the lines that differ in more than figures and how tables are drawn; `...` stands for anything.

    As a line of its own it stands for any number of lines.
    """
    found, rest, skips = [], _lines(printed), False
    for line in _lines(said):
        if line == ELLIPSIS:
            skips = True
            continue
        wanted = re.compile(".*".join(map(re.escape, line.split(ELLIPSIS))))
        there = [place for place, other in enumerate(rest if skips else rest[:1]) if wanted.fullmatch(other)]
        if there:
            rest = rest[there[0] + 1 :]
        else:
            found.append(f"  the page: {line}\n  printed:  {rest[0] if rest else '(nothing)'}")
            rest = rest[0 if skips else 1 :]
        skips = False
    return found + ([] if skips else [f"  the page: (nothing)\n  printed:  {line}" for line in rest])


def _lines(text: str) -> list[str]:
    lines = (" ".join(DRAWN.sub(" ", FIGURE.sub("0", line)).split()) for line in text.splitlines())
    return [line for line in lines if line]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
