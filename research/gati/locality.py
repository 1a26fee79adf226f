"""Measures what following the traffic gains: exits off, exits as built, and exits that adapt, asked in turn over HTTP.

Thresholds are calibrated on some of the rows, and the stream consists of the others. All servers have the same cores,
backend and worker; adaptation services run beside the door. After GATI, sections 7.2.1 and 7.2.2; several services show
how much is to be sampled and how often to be retrained (7.2.2, ii and iii).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import numpy as np
import torch
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

from latebind.bench.client import Answered, Array, Body, Caller, encode
from latebind.bench.server import pinned, serving
from latebind.bench.statistics import Interval, ratio_of_means
from latebind.bench.subject import Setting, copied
from latebind.cli.console import Row, Rows
from latebind.domain.errors import ConfigError
from latebind.learned.build import recalibrate
from latebind.learned.samples import Samples
from research.gati.streams import jittered, zipf_stream

BLOCK = 50
WARM_UP = 50
WINDOW = 2_000
CALIBRATE_SHARE = 0.4
OFF, BUILT = "off", "built"


@dataclass(frozen=True, slots=True)
class Traffic:
    """The requests to send.

    With `alpha`, classes follow Zipf's law (`streams.zipf_stream`); without it, rows are sent in order, `passes` times.
    """

    alpha: float | None = None
    phases: int = 2
    length: int = 10_000
    jitter: int = 2
    passes: int = 1


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

    def gain(self, side: str, *, engine: bool) -> Interval:
        """Return the mean without exits over the mean of `side`."""
        seconds = self.engine if engine else self.calls
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

    def rows(self) -> Rows:
        """Return the sides as rows of a table."""
        return [self._row(side) for side in self.calls]

    def _row(self, side: str) -> Row:
        calls, engine, windows = self.calls[side], self.engine[side], self.windows(side)
        return {
            "exits": side,
            "engine ms": f"{engine.mean() * 1e3:.3f}",
            "times less": str(self.gain(side, engine=True)),
            "call ms": f"{calls.mean() * 1e3:.3f}",
            "times less ": str(self.gain(side, engine=False)),
            "p99 call ms": f"{np.percentile(calls, 99) * 1e3:.2f}",
            "fidelity": f"{self.same(side).mean():.4f}",
            "worst 2,000": f"{windows.min():.4f}" if len(windows) else "",
        }


def run(
    repository: Path,
    model: str,
    inputs: Mapping[str, Array],
    labels: NDArray[Any] | None,
    traffic: Traffic,
    *,
    setting: Setting,
    fidelity: float,
    services: Sequence[Service] = (Service(),),
    progress: Callable[[str, float], None],
) -> LocalityReport:
    """Calibrate a copy on some rows, then send a stream of the others to all servers."""
    held, sent = _stream(len(next(iter(inputs.values()))), labels, traffic, np.random.default_rng(setting.seed))
    with TemporaryDirectory() as folder:
        copy = copied(repository, model, Path(folder))
        if len(held):
            progress("calibrating", 0.0)
            others = Samples({name: torch.from_numpy(rows[np.sort(held)]) for name, rows in inputs.items()})
            recalibrate(copy, others, fidelity=fidelity, backend=setting.backend, seed=setting.seed)
        return _ask(
            Path(folder),
            model,
            inputs,
            sent,
            jitter=traffic.jitter,
            setting=setting,
            services=services,
            progress=progress,
        )


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


def _sides(services: Sequence[Service], folder: Path) -> dict[str, list[str]]:
    """Return the options of each server by the name of its side; several services are named by what they are."""
    sides = {OFF: ["--no-exits"], BUILT: ["--exits"]}
    for number, one in enumerate(services):
        name = "adapted" if len(services) == 1 else f"adapted, {one.sample:.0%}, {one.interval:g} s"
        sides[name] = one.options(folder / f"service-{number}")
    return sides


@dataclass(slots=True)
class _Server:
    """One of the servers, what it has answered, and the request from which on it has adapted."""

    url: str
    caller: Caller
    adapts: bool
    answers: list[Answered] = field(default_factory=list)
    begun: int | None = None

    def ask(self, bodies: Sequence[Body]) -> None:
        """Ask one request after another."""
        self.answers.extend(self.caller(body) for body in bodies)

    def look(self, asked: int) -> None:
        """Note whether it has published a version by now, when so many were asked."""
        if self.adapts and self.begun is None and _told(self.url).get("published", 0):
            self.begun = asked


def _ask(
    repository: Path,
    model: str,
    inputs: Mapping[str, Array],
    sent: NDArray[np.int64],
    *,
    jitter: int,
    setting: Setting,
    services: Sequence[Service],
    progress: Callable[[str, float], None],
) -> LocalityReport:
    common = ["--model", model, "--cores", str(setting.engine_core)]
    common += ["--policy", "graph", "--max-batch", "1", "--deadline-ms", "5000"]
    common += ["--backend", setting.backend] if setting.backend else []
    random, shuffle = np.random.default_rng(setting.seed + 1), Random(setting.seed)
    with ExitStack() as stack:
        stack.enter_context(pinned(setting.door_cores))
        servers = {}
        for name, flags in _sides(services, repository / model).items():
            served = serving(repository, *common, *flags, cores=setting.door_cores, log=setting.log)
            url = stack.enter_context(served)
            servers[name] = _Server(url, Caller(url, model), adapts=name not in {OFF, BUILT})
            stack.callback(servers[name].caller.close)
        for server in servers.values():
            for row in sent[:1] if server.adapts else sent[:WARM_UP]:
                server.caller(encode({key: rows[row : row + 1] for key, rows in inputs.items()}))
        for start in range(0, len(sent), BLOCK):
            progress("asking", start / len(sent))
            bodies = [
                encode({key: jittered(rows[row], jitter, random)[None] for key, rows in inputs.items()})
                for row in sent[start : start + BLOCK]
            ]
            for name in shuffle.sample(list(servers), len(servers)):
                servers[name].ask(bodies)
            for server in servers.values():
                server.look(start + BLOCK)
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
