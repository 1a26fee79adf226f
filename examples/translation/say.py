"""Translates a sentence and prints each word when it is there.

`python -m examples.translation.say transformer "a man in an orange hat" --data multi30k/` asks localhost:8000.
"""

import argparse
import http.client
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from examples.translation.data import vocabularies
from latebind.cli.console import console


def main(arguments: list[str]) -> None:
    """Print the translation word by word, and how long the first word and the whole sentence took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="the name under which it is served")
    parser.add_argument("sentence")
    parser.add_argument("--data", type=Path, required=True, help="folder of the sentences that it has learned from")
    parser.add_argument("--url", default="localhost:8000")
    parser.add_argument("--repeats", type=int, default=1, help="ask so often and print medians")
    given = parser.parse_args(arguments)
    english, german = vocabularies(given.data)
    numbers = english.numbers(given.sentence)
    connection = http.client.HTTPConnection(given.url)
    times = list[tuple[float, float, float]]()
    for turn in range(given.repeats):
        begun = time.perf_counter()
        marks = [begun]
        for tokens in pieces(connection, given.model, numbers):
            marks.append(time.perf_counter())
            if not turn:
                console.print(german.text(tokens), end=" ")
        whole = time.perf_counter()
        answer(connection, given.model, numbers)
        times.append((marks[1] - begun, marks[-1] - begun, time.perf_counter() - whole))
    first, last, at_once = (median(column) * 1e3 for column in zip(*times, strict=True))
    console.print(f"\nfirst word after {first:.1f} ms, the last after {last:.1f} ms; all at once {at_once:.1f} ms")


def pieces(connection: http.client.HTTPConnection, model: str, numbers: Sequence[int]) -> Iterator[list[int]]:
    """Yield the tokens of an answer as they come. Raises `RuntimeError` with what the server says."""
    connection.request("POST", f"/v2/models/{model}/generate_stream", json.dumps({"tokens": numbers}))
    reply = connection.getresponse()
    if reply.status != http.HTTPStatus.OK:
        raise RuntimeError(reply.read().decode())
    for line in reply:
        if line.startswith(b"data: "):
            event = json.loads(line.removeprefix(b"data: "))
            if "error" in event:
                raise RuntimeError(event["error"])
            yield event["tokens"]


def answer(connection: http.client.HTTPConnection, model: str, numbers: Sequence[int]) -> list[int]:
    """Return the whole answer. Raises `RuntimeError` with what the server says."""
    connection.request("POST", f"/v2/models/{model}/generate", json.dumps({"tokens": numbers}))
    reply = connection.getresponse()
    found = json.loads(reply.read())
    if reply.status != http.HTTPStatus.OK:
        raise RuntimeError(found["error"])
    tokens: list[int] = found["tokens"]
    return tokens


if __name__ == "__main__":
    main(sys.argv[1:])
