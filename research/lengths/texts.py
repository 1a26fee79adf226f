"""`python -m research texts`: texts in and vectors out, beside what people serve embeddings with."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import torch
from torch import Tensor
from typer import Option

from latebind.bench.rounds import Progress
from latebind.bench.statistics import ratio_of_means
from latebind.cli.bench.options import ServeWords
from latebind.cli.console import Rows, reporting
from latebind.cli.options import Seed
from latebind.domain.errors import ConfigError
from latebind.preprocessing.opening import open_preprocessor
from latebind.preprocessing.preprocessor import CUT, Preprocessor
from latebind.preprocessing.text import TEXT
from latebind.program.load import load_program
from latebind.program.program import Program
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from research.evaluation import Found, Output, Rounds, Seconds, Words, evaluate
from research.lengths.peers import CLIENTS, CLOSE, HERE, MODEL, OURS, WARM_UP, Beside, Side, Texts, build, sides
from research.peers.servers import PACKAGES, Served, environment, restless, turn_of

LIST = 256  # texts of one call
LOOP, FASTEMBED = "the backend in a loop", "fastembed in a loop"
TOKENIZING = "the tokenizer in a loop"
PACKAGES["fastembed"] = ("fastembed",)
FASTEMBED_LONGEST = 256  # tokens, which it does not let one change
AS_JSON = {"Content-Type": "application/json"}


def texts(
    weights: Annotated[Path, Option(help="A sentence-transformers folder: an encoder with tokenizer.json.")],
    texts: Annotated[Path, Option(help="A text in each line, behind its last tab; may be packed by gzip.")],
    *,
    peers: Annotated[Path, Option(help="Where peers' environments are, or are installed.")] = Path("out/peers"),
    models: Annotated[Path | None, Option(help="Where the model is, or is built. Default: built anew.")] = None,
    most: Annotated[int, Option(min=LIST, help="Take the first texts of the file.")] = 2000,
    max_batch: Annotated[int, Option(min=1, help="The largest batch of every side.")] = 16,
    backend: Words = None,
    side: Words = None,
    serve: ServeWords = None,
    rounds: Rounds = 3,
    seconds: Seconds = 4.0,
    seed: Seed = 0,
    output: Output,
) -> None:
    """Compare `latebind build FOLDER` with other servers of embeddings: texts in, vectors out, both in JSON.

    One client and sixteen, in a loop, and calls of 256 texts. All sides answer as the backend does, have float32 and
    two threads in all, and take turns. What the tokenizer takes of it, and the backend without a server, stand beside.

    Example: python -m research texts --weights all-MiniLM-L6-v2 --texts requests.tsv --peers out/peers
    """

    def beside(on_progress: Progress) -> Found:
        with TemporaryDirectory() as made:
            folder = Path(made)
            place = models or folder / "models"
            if not (place / MODEL).exists():
                on_progress("building", 0.0)
                how = backend or ["openvino"]
                build(weights, place, longest=FASTEMBED_LONGEST, max_batch=max_batch, backends=how)
            directory = ModelDirectory.open(find_models(place, [MODEL])[0])
            given = Texts.read(texts, weights, most=most, longest=FASTEMBED_LONGEST)
            every = servers(place, peers, folder, weights.absolute(), serve or (), max_batch)
            if unknown := [one for one in side or () if one not in every]:
                raise ConfigError(f"there is no side {unknown[0]!r}: take some of {', '.join(every)}")
            chosen = {name: one for name, one in every.items() if not side or name in side}
            return compare(chosen, directory, given, peers, folder, rounds, seconds, seed, on_progress)

    with reporting():
        evaluate({"texts": beside}, output)


def servers(
    repository: Path, peers: Path, folder: Path, weights: Path, options: Sequence[str], batch: int
) -> dict[str, Side]:
    """Return the servers by name, each asked for one text as its clients ask it."""
    every = sides(repository, peers, folder, weights, options, batch, FASTEMBED_LONGEST)
    ours = every[OURS]
    openai = replace(ours, path="/v1/embeddings", body=_openai, read=_read_openai)
    return {OURS: openai, **{name: one for name, one in every.items() if name not in (OURS, "triton")}}


def _openai(text: str, tokens: Tensor, allowed: float | None) -> tuple[Mapping[str, str], bytes]:
    return AS_JSON, json.dumps({"input": [text], "model": MODEL}).encode()


def _read_openai(headers: Mapping[str, str], data: bytes) -> object:
    return np.array(json.loads(data)["data"][0]["embedding"])


def _of_lists(side: Side, texts: Sequence[str]) -> Side:
    """Return the side with calls of all of these texts, whatever text they are for."""
    named = "text" if side.path == "/embed" else "input"
    body = json.dumps({named: list(texts), "model": MODEL}).encode()
    return replace(side, body=lambda text, tokens, allowed: (AS_JSON, body))


@dataclass(frozen=True, slots=True)
class Loop:
    """The backend of the model that was built, on one thread, and its tokenizer, without a server."""

    program: Program
    preprocessor: Preprocessor

    @classmethod
    def of(cls, directory: ModelDirectory) -> "Loop":
        """Load both."""
        program = load_program(directory)
        return cls(program, open_preprocessor(directory, program.spec.about))

    def __call__(self, text: str) -> Tensor:
        """Return the embedding of a text, `(width,)`."""
        (row,) = self.preprocessor.prepare({TEXT: [text]}, CUT)
        rows = [torch.from_numpy(row.tensors[one.name])[None] for one in self.program.spec.inputs]
        with torch.inference_mode():
            return self.program.run(*rows)[0][0]

    def tokenize(self, texts: Sequence[str]) -> None:
        """Only make tokens of texts."""
        self.preprocessor.prepare({TEXT: texts}, CUT)


class Fastembed:
    """fastembed in a process of its own, asked by lines."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    @classmethod
    @contextmanager
    def started(cls, peers: Path, weights: Path) -> "Iterator[Fastembed]":
        """Start it on a folder with an ONNX export, which infinity's side has made."""
        python = environment(peers, "fastembed") / "bin" / "python"
        command = [str(python), str(HERE / "fastembed_loop.py"), str(weights)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()  # it is ready
            try:
                yield cls(process)
            finally:
                process.stdin.close()

    def embed(self, texts: Sequence[str]) -> tuple[float, list[list[float]]]:
        """Return the seconds that it takes for these texts at once, and their vectors."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(list(texts)) + "\n")
        stdin.flush()
        taken, vectors = json.loads(stdout.readline())
        return taken, vectors


def compare(
    given: Mapping[str, Side],
    directory: ModelDirectory,
    texts: Texts,
    peers: Path,
    folder: Path,
    rounds: int,
    seconds: float,
    seed: int,
    on_progress: Progress,
) -> Found:
    """Ask all in turns: for one text after another, by one client and by many, and for many texts at once."""
    loop, many = Loop.of(directory), texts.texts[:LIST]
    kinds = ("one client, ms", f"{CLIENTS} clients, a second", f"{LIST} texts in a call, ms")
    taken: dict[str, dict[str, list[float]]] = {kind: {} for kind in kinds}
    one, sixteen, lists = (taken[kind] for kind in kinds)
    with ExitStack() as stack:
        served = {name: stack.enter_context(side.start()) for name, side in given.items()}
        polling = restless(served.values())
        here = Beside(given, served, polling, texts)
        listing = Beside({name: _of_lists(side, many) for name, side in given.items()}, served, polling, texts)
        fast = _fastembed(stack, peers, folder)
        right = {row: loop(texts.texts[row]) for row in range(min(20, len(texts.texts)))}
        for name in given:
            here.alone(name, partial(_checked, here, name, right, seed))
        if fast is not None:
            _, vectors = fast.embed([texts.texts[row] for row in right])
            found = torch.nn.functional.normalize(torch.tensor(vectors), dim=1)
            if (found - torch.stack(list(right.values()))).abs().max() > CLOSE:
                raise ConfigError("fastembed answers otherwise than the backend does")
        for number in range(rounds):
            on_progress("in turns", number / rounds)
            random = f"{seed} {number}"
            for name in Random(seed + number).sample(list(given), len(given)):
                here_alone = partial(here.alone, name)
                one.setdefault(name, []).append(
                    here_alone(partial(here.in_a_loop, name, 1, seconds, Random(random)))[1]
                )
                sixteen.setdefault(name, []).append(
                    here_alone(partial(here.in_a_loop, name, CLIENTS, seconds, Random(random)))[0]
                )
                lists.setdefault(name, []).append(
                    here_alone(partial(listing.in_a_loop, name, 1, seconds, Random(random)))[1]
                )
            with turn_of(Served(0, 0), polling):  # nobody's
                one.setdefault(LOOP, []).append(_mean(loop, texts.texts, seconds, Random(random)))
                tokenized = partial(_mean, lambda text: loop.tokenize([text]), texts.texts, seconds / 4, Random(random))
                one.setdefault(TOKENIZING, []).append(tokenized())
                begun = time.perf_counter()
                loop.tokenize(many)
                lists.setdefault(TOKENIZING, []).append(time.perf_counter() - begun)
                if fast is not None:
                    drawn = Random(random).choices(texts.texts, k=max(1, int(50 * seconds)))
                    one.setdefault(FASTEMBED, []).append(float(np.mean([fast.embed([text])[0] for text in drawn])))
                    lists.setdefault(FASTEMBED, []).append(fast.embed(many)[0])
    rows: Rows = []
    for name in (*given, FASTEMBED, LOOP, TOKENIZING):
        row: dict[str, object] = {"side": name}
        for kind, by_side in taken.items():
            found_here, ours = by_side.get(name), by_side.get(OURS)
            per_second = kind.endswith("a second")
            row[kind] = "" if found_here is None else f"{np.mean(found_here) * (1 if per_second else 1e3):.2f}"
            ratio = ""
            if found_here is not None and ours is not None:
                ratio = str(ratio_of_means(ours, found_here) if per_second else ratio_of_means(found_here, ours))
            row[f"latebind better, {kind.rpartition(',')[0]}"] = ratio
        rows.append(row)
    return Found({"texts in, vectors out": rows}, raw=taken)


async def _checked(here: Beside, name: str, right: Mapping[int, Tensor], seed: int) -> tuple[float, float]:
    await here.check(name, right)
    return await here.in_a_loop(name, CLIENTS, WARM_UP, Random(seed))


def _fastembed(stack: ExitStack, peers: Path, folder: Path) -> Fastembed | None:
    exported = folder / "weights"  # where the side with ONNX Runtime has put its export
    if not (exported / "model.onnx").exists():
        return None
    return stack.enter_context(Fastembed.started(peers, exported))


def _mean(call: Callable[[str], object], texts: Sequence[str], seconds: float, random: Random) -> float:
    taken, until = list[float](), time.perf_counter() + seconds
    while (begun := time.perf_counter()) < until:
        call(texts[random.randrange(len(texts))])
        taken.append(time.perf_counter() - begun)
    return float(np.mean(taken))
