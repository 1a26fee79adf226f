"""Whether learned caches follow the traffic and fidelity is kept (GATI, sections 7.2.1 and 7.2.2).

Calibrations on random halves of the rows are judged on the other halves. Along a stream, servers with exits off, as
built and adapting answer the same requests in turn over HTTP, with the same cores, backend and worker; several
adaptation services show how much is to be sampled and how often to be retrained.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

from latebind.bench.client import Answered, Caller, encode
from latebind.bench.report import Plot
from latebind.bench.rounds import Progress
from latebind.bench.server import pinned, serving
from latebind.bench.statistics import Interval, ratio_of_means
from latebind.bench.subject import Setting, Subject, copied
from latebind.cli.console import Row
from latebind.cli.console import Rows as TableRows
from latebind.domain.errors import ConfigError
from latebind.learned.build import Builder, recalibrate
from latebind.learned.compose import send
from latebind.learned.metadata import read_caches
from latebind.learned.promise import Promise
from latebind.learned.samples import CHOOSE_SHARE
from latebind.repository.directory import ModelDirectory
from research import plots

CALIBRATE_SHARE = 0.4
BLOCK, WARM_UP, WINDOW = 50, 50, 2_000  # requests
JITTER = 2  # cells by which images of a stream by classes are shifted at most
STEP = 500  # requests of each point of a plot along a stream
OFF, BUILT_SIDE = "off", "built"
Rows = NDArray[np.int64]


def calibrations(
    subject: Subject, *, promise: Promise, splits: int, backend: str | None, seed: int
) -> tuple[TableRows, int]:
    """Calibrate a model's caches on random halves of the rows; return what each shows, and how many broke the promise.

    Nothing is written. `at least` is what a calibration showed on its half, `realized` what the other half says.
    """
    if splits < 1 or promise.exact:
        raise ConfigError("give one split or more, and a fidelity under 1")
    directory = ModelDirectory.open(subject.path)
    caches = read_caches(directory)
    promise = replace(promise, aside=caches is not None and caches.aside)  # as they were built
    builder = Builder.of(directory, promise, threads=1, backend=backend)
    trained, held_out = builder.stored_caches(directory, subject.samples())
    seen, composition = builder.observe(trained, held_out).seen, builder.composition(trained)
    rows, broken = TableRows(), 0
    for number in range(splits):
        half, unseen = np.array_split(np.random.default_rng([seed, number]).permutation(seen.right.shape[1]), 2)
        cut = round(CHOOSE_SHARE * len(half))
        found = composition.choose(seen.take(half[:cut]), [seen.take(half[cut:])])
        shown, lower, realized, early, gain = 1.0, 1.0, 1.0, 0.0, 1.0
        if found is not None:
            result = send(found.thresholds, seen.take(unseen), composition.costs)
            shown, lower, realized = found.fidelity, found.lower, 1.0 - float(result.wrong.mean())
            early = float((result.left_at < len(composition.variants)).mean())
            gain = composition.costs.whole / float(result.seconds.mean())
        broken += realized < promise.fidelity
        told = {"shown": f"{shown:.4f}", "at least": f"{lower:.4f}", "realized": f"{realized:.4f}"}
        rows.append({"split": number, **told, "left early": f"{early:.1%}", "times less": f"{gain:.2f}"})
    return rows, broken


@dataclass(frozen=True, slots=True)
class Traffic:
    """The requests: with `alpha`, classes follow Zipf's law (`zipf_stream`); else rows in order, `passes` times.

    Images of a stream by classes are shifted by up to `jitter` cells, and mirrored.
    """

    alpha: float | None = None
    phases: int = 2
    length: int = 10_000
    passes: int = 1
    jitter: int = JITTER


@dataclass(frozen=True, slots=True)
class Service:
    """An adaptation service: the share of requests that it may run again, and seconds until caches are retrained."""

    sample: float = 0.2
    interval: float = 900.0

    def options(self, folder: Path) -> list[str]:
        """Return the options of a server that has it; its versions lie in `folder`."""
        settings = {"--sample": self.sample, "--retrain-s": self.interval, "--adapted": folder}
        return ["--exits", "--adapt", *(text for key, value in settings.items() for text in (key, str(value)))]


@dataclass(frozen=True, slots=True)
class LocalityReport:
    """Seconds by side in the order of requests, of whole calls and in the engine; the classes each side answered.

    Of each side that adapts, `begun` is the request at which the first version was in use, and `told` what the service
    says of itself at the end.
    """

    calls: dict[str, NDArray[np.float64]]
    engine: dict[str, NDArray[np.float64]]
    classes: dict[str, NDArray[np.int64]]
    begun: dict[str, int]
    told: dict[str, dict[str, float]]
    seed: int

    def gain(self, seconds: Mapping[str, NDArray[np.float64]], side: str) -> Interval:
        """Return the mean without exits over the mean of `side`."""
        return ratio_of_means(seconds[OFF], seconds[side], block=BLOCK, seed=self.seed)

    def same(self, side: str) -> NDArray[np.bool_]:
        """Return which requests were answered as without exits."""
        found: NDArray[np.bool_] = self.classes[side] == self.classes[OFF]
        return found

    def windows(self, side: str) -> NDArray[np.float64]:
        """Return the fidelity in windows of 2,000 requests, where it adapts from the first version in use on."""
        same = self.same(side)
        starts = range(self.begun.get(side, 0), len(same) - WINDOW + 1, WINDOW // 4)
        return np.array([same[start : start + WINDOW].mean() for start in starts])

    def told_rows(self) -> TableRows:
        """Return for each side that adapts from which request on it had a version, and what its service counted."""
        return [{"side": side, "first version from": at, **self.told[side]} for side, at in self.begun.items()]

    def plots(self) -> list[Plot]:
        """Draw mean latency and fidelity of each side along the stream, over 500 requests each (GATI, figure 10)."""
        rows = [
            {
                "side": side,
                "request": start + STEP / 2,
                "mean ms in the engine": self.engine[side][start : start + STEP].mean() * 1e3,
                "fidelity": self.same(side)[start : start + STEP].mean(),
            }
            for side in self.calls
            for start in range(0, len(self.calls[OFF]) - STEP + 1, STEP)
        ]
        return [
            plots.curves(f"{y} along the stream", rows, by="side", x="request", y=y)
            for y in ("mean ms in the engine", "fidelity")
        ]

    def row(self, side: str) -> Row:
        """Return a side as a row of a table."""
        calls, engine, windows = self.calls[side], self.engine[side], self.windows(side)
        return {
            "exits": side,
            "engine ms": f"{engine.mean() * 1e3:.3f}",
            "times less": str(self.gain(self.engine, side)),
            "call ms": f"{calls.mean() * 1e3:.3f}",
            "times less ": str(self.gain(self.calls, side)),
            "p99 call ms": f"{np.percentile(calls, 99) * 1e3:.2f}",
            "fidelity": f"{self.same(side).mean():.4f}",
            "worst 2,000": f"{windows.min():.4f}" if len(windows) else "",
        }


def follow(
    subject: Subject,
    traffic: Traffic,
    *,
    setting: Setting,
    fidelity: float,
    services: Sequence[Service],
    progress: Progress,
) -> LocalityReport:
    """Calibrate a copy on some rows, then send a stream of the others to all servers."""
    held, sent = _stream(len(subject), subject.labels, traffic, np.random.default_rng(setting.seed))
    with TemporaryDirectory() as folder:
        copy = copied(subject.repository, subject.model, Path(folder))
        if len(held):
            progress("calibrating", 0.0)
            others = subject.take(np.sort(held)).samples()
            recalibrate(copy, others, fidelity=fidelity, backend=setting.backend, seed=setting.seed)
        jitter = 0 if traffic.alpha is None else traffic.jitter
        return _ask(Path(folder), subject, sent, jitter=jitter, setting=setting, services=services, progress=progress)


def _stream(
    rows: int, labels: NDArray[Any] | None, traffic: Traffic, random: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the rows to calibrate on, and of those to send in turn."""
    if traffic.alpha is None:
        return np.arange(0), np.tile(np.arange(rows), traffic.passes)
    if labels is None:
        raise ConfigError("a stream by classes needs labels: give data that has them")
    held, sent = np.split(random.permutation(rows), [round(CALIBRATE_SHARE * rows)])
    order = zipf_stream(labels[sent], alpha=traffic.alpha, phases=traffic.phases, length=traffic.length, random=random)
    return held, sent[order]


@dataclass(slots=True)
class _Server:
    """One of the servers, what it has answered, and the request from which on it has adapted."""

    url: str
    caller: Caller
    adapts: bool
    answers: list[Answered] = field(default_factory=list)
    begun: int | None = None


def _ask(
    repository: Path,
    subject: Subject,
    sent: Rows,
    *,
    jitter: int,
    setting: Setting,
    services: Sequence[Service],
    progress: Progress,
) -> LocalityReport:
    model = subject.model
    common = ["--model", model, "--cores", str(setting.engine_core)]
    common += ["--policy", "graph", "--max-batch", "1", "--deadline-ms", "5000"]
    common += ["--backend", setting.backend] if setting.backend else []
    random, shuffle = np.random.default_rng(setting.seed + 1), Random(setting.seed)
    with ExitStack() as stack:
        stack.enter_context(pinned(setting.frontend_cores))
        servers, sides = dict[str, _Server](), {OFF: ["--no-exits"], BUILT_SIDE: ["--exits"]}
        for number, one in enumerate(services):  # several services are named by what they are
            name = "adapted" if len(services) == 1 else f"adapted, {one.sample:.0%}, {one.interval:g} s"
            sides[name] = one.options(repository / model / f"service-{number}")
        for name, flags in sides.items():
            served = serving(repository, *common, *flags, cores=setting.frontend_cores, log=setting.log)
            url = stack.enter_context(served)
            servers[name] = _Server(url, Caller(url, model), adapts=name not in {OFF, BUILT_SIDE})
            stack.callback(servers[name].caller.close)
        for server in servers.values():
            for row in sent[:1] if server.adapts else sent[:WARM_UP]:
                server.caller(encode(subject.row(int(row))))
        for start in range(0, len(sent), BLOCK):
            progress("asking", start / len(sent))
            bodies = [
                encode({key: jittered(rows[row], jitter, random)[None] for key, rows in subject.inputs.items()})
                for row in sent[start : start + BLOCK]
            ]
            for name in shuffle.sample(list(servers), len(servers)):
                servers[name].answers += [servers[name].caller(body) for body in bodies]
            for server in servers.values():
                if server.adapts and server.begun is None and _told(server.url).get("published", 0):
                    server.begun = start + BLOCK
        told = {name: _told(server.url) for name, server in servers.items() if server.adapts}
    return _report(servers, told, len(sent), setting.seed)


def _report(servers: Mapping[str, _Server], told: dict[str, dict[str, float]], sent: int, seed: int) -> LocalityReport:
    """Return the report of all answers. Raises `ConfigError` if a server refused any."""
    answers = {name: server.answers for name, server in servers.items()}
    refused = Counter(answer.status for given in answers.values() for answer in given if answer.status != 200)
    if refused:
        raise ConfigError(f"the servers answered with {dict(refused)}: see their log")
    return LocalityReport(
        calls={name: np.array([answer.seconds for answer in given]) for name, given in answers.items()},
        engine={name: np.array([answer.engine_seconds for answer in given]) for name, given in answers.items()},
        classes={
            name: np.array([int(next(iter(answer.outputs.values()))[0].argmax()) for answer in given])
            for name, given in answers.items()
        },
        begun={name: sent if (at := servers[name].begun) is None else at for name in told},
        told=told,
        seed=seed,
    )


def _told(url: str) -> dict[str, float]:
    """Return the adaptation service's counters."""
    with urlopen(f"{url}/metrics", timeout=10) as reply:  # noqa: S310  (our own server on loopback)
        text = reply.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "latebind_retrainings_total":
                found[sample.labels["outcome"]] = sample.value
            elif sample.name in {"latebind_fidelity_samples_total", "latebind_fidelity_alarms_total"}:
                found[sample.name.removeprefix("latebind_fidelity_").removesuffix("_total")] = sample.value
    return found


# Streams of requests with uneven classes: some come more often, and which ones changes -------------------------------


def zipf_stream(labels: Rows, *, alpha: float, phases: int, length: int, random: np.random.Generator) -> Rows:
    """Return numbers of rows: `phases` of `length` each, in which the class of rank k comes as often as k^-alpha says.

    Ranks move on by one from phase to phase, so the class that dominates changes (GATI, section 7.2.2). A row comes
    again only when all rows of its class have come.
    """
    classes = random.permutation(np.unique(labels))
    shares = np.arange(1, len(classes) + 1.0) ** -alpha
    decks = {int(answer): _Deck(np.flatnonzero(labels == answer), random) for answer in classes}
    drawn = [random.choice(np.roll(classes, -phase), length, p=shares / shares.sum()) for phase in range(phases)]
    return np.array([decks[int(answer)].draw() for answer in np.concatenate(drawn)])


class _Deck:
    def __init__(self, rows: Rows, random: np.random.Generator) -> None:
        self._rows, self._random = rows, random
        self._left: list[int] = []

    def draw(self) -> int:
        if not self._left:
            self._left = self._random.permutation(self._rows).tolist()
        return self._left.pop()


def jittered(image: NDArray[Any], cells: int, random: np.random.Generator) -> NDArray[Any]:
    """Return an image `(C, H, W)` shifted by up to `cells`, edges repeated, and mirrored every other time.

    So that an image that comes again is not the same request.
    """
    if not cells:
        return image
    padded = np.pad(image, ((0, 0), (cells, cells), (cells, cells)), mode="edge")
    down, right = random.integers(0, 2 * cells + 1, 2)
    moved = padded[:, down : down + image.shape[1], right : right + image.shape[2]]
    return np.ascontiguousarray(moved[:, :, ::-1] if random.random() < 0.5 else moved)


def brighter(inputs: Mapping[str, NDArray[Any]], by: float) -> dict[str, NDArray[Any]]:
    """Return inputs with `by` added to every value of floating point: a change that no class shows."""
    return {name: rows + rows.dtype.type(by) if rows.dtype.kind == "f" else rows for name, rows in inputs.items()}
