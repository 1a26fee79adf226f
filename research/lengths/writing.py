"""`python -m research writing`: texts in and texts out, beside ctranslate2 and transformers' own `generate`."""

import asyncio
import gzip
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
from typer import Argument, Option

from latebind.bench.client import Connections
from latebind.bench.rounds import Progress
from latebind.bench.statistics import ratio_of_means
from latebind.cli.bench.options import ServeWords
from latebind.cli.console import Rows, reporting
from latebind.cli.options import Seed
from latebind.domain.errors import ConfigError
from latebind.domain.sizes import Dim
from latebind.folders.build import build_folder, read_folder
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from latebind.sequence.program import Decoding
from latebind.sequence.stored import load_sequence
from research.evaluation import Found, Output, Rounds, Seconds, SideName, Words, evaluate
from research.lengths.writers import WRITERS, Writer, write_folder
from research.peers.servers import PACKAGES, TORCH, Served, environment, free_port, latebind, restless, running, turn_of

OURS, GENERATE = "latebind", "transformers in a loop"
CLIENTS = 16
THREADS = 2  # in all, of each side
CHECKED = 3  # texts that transformers answers too: it takes seconds for one
APP = Path(__file__).parent / "apps" / "ctranslate2_app.py"
PACKAGES["ctranslate2"] = (
    "ctranslate2==4.8.5", "transformers<6", TORCH, "fastapi", "uvicorn", "uvloop", "httptools",
)  # fmt: skip
ALLOWED = 120.0  # seconds for a call: nobody is refused here
Answers = dict[int, tuple[int, ...]]  # tokens by the number of the text


def writing(
    texts: Annotated[Path, Argument(help="A text in each line; may be packed by gzip.")],
    *,
    peers: Annotated[Path, Option(help="Where ctranslate2's environment is, or is installed.")] = Path("out/peers"),
    models: Annotated[Path | None, Option(help="Where models are, or are built. Default: built anew.")] = None,
    most: Annotated[int, Option(min=1, help="Take the first texts of the file.")] = 200,
    longest: Annotated[int, Option(min=2, help="The most tokens of a text.")] = 64,
    tokens: Annotated[int, Option(min=2, help="How many tokens each answer has.")] = 32,
    max_batch: Annotated[int, Option(min=1, help="The largest batch of every side.")] = CLIENTS,
    backend: Words = None,
    side: SideName = None,
    serve: ServeWords = None,
    rounds: Rounds = 3,
    seconds: Seconds = 3.0,
    seed: Seed = 0,
    output: Output,
) -> None:
    """Compare `latebind build FOLDER` with ctranslate2 behind FastAPI: texts in, texts out, greedy, float32.

    T5-small, BART-base and a Marian at their real shapes, with drawn weights; every answer has as many tokens. One
    client and sixteen, in a loop, on two threads in all; the sides take turns, and must write the same tokens. The
    first token of a streamed answer stands beside what reading and a step take by themselves.

    Example: python -m research writing multi30k.en.gz --peers out/peers --models out/writing
    """

    def beside(name: str, writer: Writer, on_progress: Progress) -> Found:
        with TemporaryDirectory() as made:
            given = read_texts(texts, most)
            place = Place.of(models or Path(made), name, tokens)
            every = sides(place, peers, Path(made), serve or (), tokens, max_batch)
            if unknown := [one for one in side or () if one not in every]:
                raise ConfigError(f"there is no side {unknown[0]!r}: take some of {', '.join(every)}")
            if side and not any(one.startswith(OURS) for one in side):
                raise ConfigError(f"all is compared with latebind: give --side {OURS!r} too")
            place.build(writer, given, backend or ["openvino"], longest, max_batch, tokens, seed, on_progress)
            chosen = {named: one for named, one in every.items() if not side or named in side}
            return compare(chosen, place, given, rounds, seconds, seed, on_progress)

    with reporting():
        evaluate({name: partial(beside, name, writer) for name, writer in WRITERS.items()}, output)


def read_texts(file: Path, most: int) -> list[str]:
    """Return the first lines of a file that have something. Raises `ConfigError` where there is none."""
    data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    found = [line.strip() for line in data.decode().splitlines() if line.strip()][:most]
    if not found:
        raise ConfigError(f"{file} has no lines of text")
    return found


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model is, in three forms: the folder of transformers, that of ctranslate2, and our repository."""

    folder: Path
    theirs: Path
    ours: Path
    name: str

    @classmethod
    def of(cls, place: Path, name: str, tokens: int) -> "Place":
        """Return the place of a model in a folder of them, by how long its answers are."""
        here = place / f"{name}-{tokens}"
        return cls(here / "folder", here / "ctranslate2", here / "models", name)

    @property
    def directory(self) -> ModelDirectory:
        """The model that was built."""
        return ModelDirectory.open(find_models(self.ours, [self.name])[0])

    def build(
        self,
        writer: Writer,
        texts: Sequence[str],
        backends: Sequence[str],
        longest: int,
        max_batch: int,
        tokens: int,
        seed: int,
        on_progress: Progress,
    ) -> None:
        """Make what is not there yet."""
        if not (self.folder / "model.safetensors").exists():
            on_progress("drawing", 0.0)
            write_folder(self.folder, writer, texts, longest=tokens, seed=seed)
        if not (self.ours / self.name).exists():
            on_progress("building", 0.0)
            folder = read_folder(str(self.folder), dims=(Dim("L", 1, longest), Dim("M", 1, tokens)))
            directory = self.ours / self.name / "1"
            build_folder(
                folder, directory=directory, name=self.name, max_batch=max_batch, backends=backends, threads=THREADS
            )


@dataclass(frozen=True, slots=True)
class Side:
    """A server that can be started, and the path that takes a text as JSON and returns its answer's tokens."""

    start: Callable[[], AbstractContextManager[Served]]
    path: str
    more: Mapping[str, object]
    threads: int  # of a worker

    def call(self, host: str, text: str, *, path: str = "") -> bytes:
        """Return a whole request."""
        data = json.dumps({"text": text, **self.more}).encode()
        head = f"POST {path or self.path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(data)}\r\n"
        return f"{head}Content-Type: application/json\r\n\r\n".encode() + data


def sides(
    place: Place, peers: Path, folder: Path, options: Sequence[str], tokens: int, max_batch: int
) -> dict[str, Side]:
    """Return the servers by name. All have two threads, as one worker or as two."""
    ours = f"/v2/models/{place.name}/generate"
    allowed = {"parameters": {"timeout": round(ALLOWED * 1e6)}}

    def own(workers: int) -> Side:
        words = ["--workers", str(workers), "--threads", str(THREADS // workers), *options]
        log = folder / f"ours-{workers}.log"
        start = partial(latebind, place.ours, words, ready=place.name, log=log, grpc=False)
        return Side(start, ours, allowed, THREADS // workers)

    @contextmanager
    def theirs(workers: int) -> Iterator[Served]:
        path, port = environment(peers, "ctranslate2"), free_port()
        words = [place.folder, place.theirs, port, workers, THREADS // workers, tokens, max_batch]
        command = [str(path / "bin" / "python"), str(APP), *map(str, words)]
        with running(command, http=port, ready="/ready", log=folder / "ctranslate2.log") as served:
            yield served

    return {
        OURS: own(1),
        f"{OURS}, two workers": own(2),
        "ctranslate2": Side(partial(theirs, 1), "/generate", {}, THREADS),
        "ctranslate2, two workers": Side(partial(theirs, 2), "/generate", {}, THREADS // 2),
    }


def compare(
    given: Mapping[str, Side],
    place: Place,
    texts: Sequence[str],
    rounds: int,
    seconds: float,
    seed: int,
    on_progress: Progress,
) -> Found:
    """Ask all in turns, by one client and by many; then our side alone for the first token of an answer."""
    one, many = "one client, ms", f"{CLIENTS} clients, a second"
    taken: dict[str, dict[str, list[float]]] = {one: {}, many: {}}
    answers: dict[str, list[Answers]] = {}
    generate = Generate(place.folder)
    answers[GENERATE] = [{row: generate(texts[row])[1] for row in range(min(CHECKED, len(texts)))}]
    first: dict[str, list[float]] = {}
    with ExitStack() as stack:
        served = {name: stack.enter_context(side.start()) for name, side in given.items()}
        polling = restless(served.values())
        asked = {name: Asked(side, served[name], texts) for name, side in given.items()}
        for name, each in asked.items():
            with turn_of(served[name], polling):
                answers.setdefault(name, []).append(asyncio.run(each.all(range(min(len(texts), 2 * CLIENTS))))[1])
        for number in range(rounds):
            for at, name in enumerate(Random(seed + number).sample(list(given), len(given))):
                on_progress("in turns", (number + at / len(given)) / rounds)
                for kind, clients in ((one, 1), (many, CLIENTS)):
                    with turn_of(served[name], polling):
                        rate, mean, found = asyncio.run(
                            asked[name].in_a_loop(clients, seconds, Random(f"{seed} {number}"))
                        )
                    taken[kind].setdefault(name, []).append(rate if kind == many else mean)
                    answers[name].append(found)
                if name.startswith(OURS):
                    with turn_of(served[name], polling):
                        first.setdefault(name, []).extend(asked[name].first_tokens(range(min(4, len(texts)))))
            with turn_of(Served(0, 0), polling):  # nobody's
                taken[one].setdefault(GENERATE, []).append(generate(texts[number % len(texts)])[0])
    rows_of_tokens = generate.tokens(texts[: CHECKED + 1])
    bare = {name: Bare(place.directory, rows_of_tokens, given[name].threads) for name in first}
    rows = _rows({**given, GENERATE: None}, taken, one, many)
    beside: Rows = [
        {
            "side": name,
            "first token, ms": f"{np.mean(seen) * 1e3:.1f}",
            "read and first step, ms": f"{bare[name].read * 1e3:.1f}",
            "a step, ms": f"{bare[name].step * 1e3:.1f}",
            "within one step more": str(bool(np.mean(seen) <= bare[name].read + bare[name].step)),
        }
        for name, seen in first.items()
    ]
    problems, compared = unlike(answers)
    tables: dict[str, Rows] = {
        f"{place.name}: texts in, texts out; {compared} answers compared": rows,
        f"{place.name}: the first token, one client": beside,
    }
    return Found(tables, raw={"taken": taken, "first": first}, problems=problems)


def _rows(names: Mapping[str, object], taken: Mapping[str, Mapping[str, Sequence[float]]], one: str, many: str) -> Rows:
    rows: Rows = []
    best = max((name for name in taken[many] if name.startswith(OURS)), key=lambda name: np.mean(taken[many][name]))
    for name in names:
        row: dict[str, object] = {"side": name}
        for kind in (one, many):
            found, ours = taken[kind].get(name), taken[kind][best]
            if found is None:
                row[kind] = row[f"{best} better, {kind.rpartition(',')[0]}"] = ""
                continue
            row[kind] = f"{np.mean(found) * (1 if kind == many else 1e3):.2f}"
            ratio = ratio_of_means(ours, found) if kind == many else ratio_of_means(found, ours)
            row[f"{best} better, {kind.rpartition(',')[0]}"] = str(ratio)
        rows.append(row)
    return rows


def unlike(answers: Mapping[str, Sequence[Answers]]) -> tuple[list[str], int]:
    """Return a line for each side that wrote other tokens for a text than another, or than before; and how many agree.

    `answers` begin with those that are right.
    """
    right, agree, lines = Answers(), 0, list[str]()
    for name, rounds in answers.items():
        for found in rounds:
            for row, tokens in found.items():
                if right.setdefault(row, tokens) == tokens:
                    agree += 1
                elif not any(line.startswith(f"{name} ") for line in lines):
                    lines.append(f"{name} answers text {row} by {tokens[:8]}, and not by {right[row][:8]}")
    return lines, agree


@dataclass(frozen=True, slots=True)
class Asked:
    """A server that runs, and the texts that it is asked."""

    side: Side
    served: Served
    texts: Sequence[str]

    async def all(self, rows: Sequence[int]) -> tuple[float, Answers]:
        """Ask for all of these texts at once; return the seconds and the answers."""
        there, begun = Connections(self.served.url), time.perf_counter()
        found = await asyncio.gather(*(self._ask(there, row) for row in rows))
        there.close()
        return time.perf_counter() - begun, dict(zip(rows, found, strict=True))

    async def in_a_loop(self, clients: int, seconds: float, random: Random) -> tuple[float, float, Answers]:
        """Let so many clients ask one text after another; return answers a second, their mean seconds, and them."""
        there, begun, taken, answers = Connections(self.served.url), time.perf_counter(), list[float](), Answers()

        async def one() -> None:
            while (sent := time.perf_counter()) < begun + seconds:
                row = random.randrange(len(self.texts))
                answers[row] = await self._ask(there, row)
                taken.append(time.perf_counter() - sent)

        await asyncio.gather(*(one() for _ in range(clients)))
        there.close()
        return len(taken) / (time.perf_counter() - begun), float(np.mean(taken)), answers

    async def _ask(self, there: Connections, row: int) -> tuple[int, ...]:
        async with there.one() as connection:
            reply = await connection.ask(self.side.call(there.host, self.texts[row]))
        if reply.status != 200:
            raise ConfigError(f"a server answers {reply.status}: {reply.data[:300]!r}")
        return tuple(json.loads(reply.data)["tokens"])

    def first_tokens(self, rows: Sequence[int]) -> list[float]:
        """Return the seconds from each call to the first token of its streamed answer, one call after another."""
        return asyncio.run(self._first_tokens(rows))

    async def _first_tokens(self, rows: Sequence[int]) -> list[float]:
        taken = []
        for row in rows:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.served.http)
            begun = time.perf_counter()
            writer.write(self.side.call("127.0.0.1", self.texts[row], path=f"{self.side.path}_stream"))
            await asyncio.wait_for(reader.readuntil(b"\ndata: "), ALLOWED)
            taken.append(time.perf_counter() - begun)
            await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), ALLOWED)
            writer.close()
        return taken


class Generate:
    """The folder's own network, as transformers generates with it, on as many threads."""

    def __init__(self, folder: Path) -> None:
        import transformers  # noqa: PLC0415  (an extra)

        self._tokenizer: Any = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        self._network: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()

    def __call__(self, text: str) -> tuple[float, tuple[int, ...]]:
        """Return the seconds that an answer takes, and its tokens."""
        before = torch.get_num_threads()
        torch.set_num_threads(THREADS)
        begun = time.perf_counter()
        given = self._tokenizer(text, return_tensors="pt")
        asked = {name: given[name] for name in ("input_ids", "attention_mask")}
        with torch.inference_mode():
            (row,) = self._network.generate(**asked, num_beams=1, do_sample=False)
        taken = time.perf_counter() - begun
        torch.set_num_threads(before)
        return taken, tuple(row.tolist()[1:])

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of texts."""
        return [self._tokenizer(text)["input_ids"] for text in texts]


class Bare:
    """What was built, without a server: the median seconds until the first token is there, and of a further step."""

    def __init__(self, directory: ModelDirectory, rows: Sequence[Sequence[int]], threads: int) -> None:
        program = load_sequence(directory, threads=threads)
        answer = np.zeros(program.longest_output, np.int64)
        reads, steps = list[float](), list[float]()
        with torch.inference_mode():
            for row in rows:
                tokens = np.array([row])
                decoding = Decoding(program, lambda slots, tokens=tokens: tokens, lambda slot: answer)  # type: ignore[misc]
                for _ in range(2):  # the first time to warm up: a length that is new takes longer
                    begun = time.perf_counter()
                    decoding.read([0])
                    decoding.step([0])
                    read = time.perf_counter() - begun
                    for _ in range(program.longest_output - 1):
                        begun = time.perf_counter()
                        decoding.step([0])
                        steps.append(time.perf_counter() - begun)
                reads.append(read)
        self.read, self.step = float(np.median(reads)), float(np.median(steps))
