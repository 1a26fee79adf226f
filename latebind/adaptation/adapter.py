"""The learned caches of one model as they follow its traffic: what was seen, what is decided, what is made."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from latebind.adaptation.controller import BUILT, FULL_DEPTH, Controller, Version
from latebind.adaptation.familiar import Familiar, looks
from latebind.adaptation.retrain import Adapted, by_class, material, retrain
from latebind.adaptation.versions import FORMAT, About, Versions, versions_folder
from latebind.adaptation.window import Sample, Window
from latebind.domain.config import AdaptationConfig
from latebind.domain.costs import Curve
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec
from latebind.learned.activations import Observed, observe, observed
from latebind.learned.compose import Costs
from latebind.learned.head import Head
from latebind.learned.lookup import load_lookups
from latebind.learned.promise import Promise
from latebind.learned.samples import Samples
from latebind.learned.stored import HELD_OUT, LESSONS, Rows, read_caches, read_rows
from latebind.program.load import load_program
from latebind.repository.directory import ModelDirectory

WINDOW = "window.safetensors"
CONFIDENCE = 0.99  # at least: between two changes of the traffic several versions are made, and each may be wrong


@dataclass(frozen=True, slots=True)
class Sampled:
    """A request to run to its end: its input as bytes, the class it was answered with, and whose it is."""

    row: bytes
    answer: int
    client: int


@dataclass(frozen=True, slots=True)
class Compared:
    """Whether a sampled request had the base model's answer, and whether its input looked strange."""

    same: bool
    strange: bool


class Adapter:
    """Owns window, versions and controller of one model. `see` and `learn` take long; no method is for two threads."""

    def __init__(
        self, directory: ModelDirectory, config: AdaptationConfig, *, threads: int, backend: str | None
    ) -> None:
        self._program = load_program(directory, threads=threads, backend=backend)
        self.spec: ModelSpec = self._program.spec
        lookups = load_lookups(directory, backend=self._program.backend, threads=threads)
        caches = read_caches(directory)
        held_out, lessons = (read_rows(directory, name) for name in (HELD_OUT, LESSONS))
        if caches is None or held_out is None or not lookups:
            raise ConfigError(f"{self.spec.name} has no learned caches in use: build or calibrate it with data first")
        self._lookups = {stage: lookup for stage, lookup in sorted(lookups.items()) if stage in held_out.features}
        if len(self._lookups) < len(lookups):
            raise ConfigError(f"{self.spec.name} has lookups with too many features to adapt: build it with others")
        self._held_out = self._of_lookups(held_out)
        self._lessons = self._of_lookups(lessons) if lessons is not None else None
        self._trusted = True  # whether what `build` kept looks like the traffic
        self._promise = Promise(caches.target, max(caches.confidence, CONFIDENCE))
        self._costs = _costs(self._program.costs.stages, {s.stage: s.seconds.at(1) for s in caches.lookups})
        self.folder = versions_folder(directory.path, config.folder)
        self.versions = Versions(self.folder, directory)
        self.window = Window(config.rows, config.window, config.client_share)
        self.window.load(self.folder / WINDOW, stages=tuple(self._lookups))
        self._taught = 0
        self._since = -np.inf  # when the traffic changed
        self._familiar: Familiar | None = None  # what samples looked like at the last lesson
        self.controller = self._control()

    def see(self, sampled: Sequence[Sampled]) -> list[Compared]:
        """Run sampled requests to the end of the network, keep what is seen, compare."""
        inputs = self._inputs(sampled)
        found, seen = self.look(inputs), looks(inputs)
        answers, now = found.answers.argmax(dim=1), time.time()
        strange = self._familiar.strange(seen, answers) if self._familiar else torch.zeros(len(seen), dtype=torch.bool)
        for place, (one, base) in enumerate(zip(sampled, answers.tolist(), strict=True)):
            behind = [rows[place].bfloat16() for rows in found.features]
            features = dict(zip(self._lookups, behind, strict=True))
            kept = found.answers[place].bfloat16()
            self.window.add(Sample(now, one.client, features, kept, base, seen[place].clone()))
        return [
            Compared(one.answer == base, odd)
            for one, base, odd in zip(sampled, answers.tolist(), strange.tolist(), strict=True)
        ]

    def look(self, inputs: tuple[Tensor, ...] | Mapping[str, Tensor]) -> Observed:
        """Return what lookups and base model make of rows; nothing is kept."""
        rows = inputs if isinstance(inputs, tuple) else tuple(inputs[tensor.name] for tensor in self.spec.inputs)
        with torch.inference_mode():
            return observe(self._program, Samples(rows), [(k, one.function) for k, one in self._lookups.items()])

    def built_lookups(self) -> dict[int, tuple[Head, float]]:
        """Return head and threshold of each lookup by stage, as `build` made them."""
        return {stage: (lookup.function.head, lookup.threshold) for stage, lookup in self._lookups.items()}

    def rehearse(self) -> None:
        """Retrain once for nothing: the first time takes three times as long, with all that torch loads for it."""
        shares = torch.bincount(self._held_out.classes) / len(self._held_out.classes)
        mix = {answer: share for answer, share in enumerate(shares.tolist()) if share}
        heads = {stage: lookup.function.head for stage, lookup in self._lookups.items()}
        retrain(heads, material(self._held_out, self._lessons, None), mix, self._costs, promise=self._promise, seed=0)

    def moved(self, last: int) -> None:
        """Other classes come: the `last` samples and those to come show more than those before."""
        recent = self.window.recent()
        self._since = float(recent.times[-last:][0]) if recent is not None else time.time()

    def begin_afresh(self, last: int) -> None:
        """Of what was sampled keep the `last` samples only; what `build` kept shows nothing from now on."""
        self._trusted = False
        self._since = -np.inf
        self._familiar = None
        recent = self.window.recent()
        if recent is not None and len(recent.times) > last:
            self.window.forget_before(float(recent.times[-last]))

    def learn(self, mix: dict[int, float], reason: str) -> Version | None:
        """Make a version for these shares of classes and publish it; None if none can be shown."""
        recent = self.window.recent()
        if recent is not None:
            self._familiar = Familiar.of(recent.looks, recent.rows.classes, classes=self.spec.outputs[0].shape[0])
        self._taught += 1
        given = material(self._held_out, self._lessons, recent, trusted=self._trusted, since=self._since)
        heads = {stage: lookup.function.head for stage, lookup in self._lookups.items()}
        made = retrain(heads, given, mix, self._costs, promise=self._promise, seed=self._taught)
        if made is None:
            return None
        return self._publish(made, mix, reason)

    def version(self, name: str) -> Version | None:
        """Return what a version does; None for full depth."""
        if name == BUILT:
            return self._built()
        if name == FULL_DEPTH:
            return None
        about = self.versions.about(name)
        return Version(name, about.wrong, about.seconds, about.mix, about.rows)

    def save(self) -> None:
        """Write the window to disk."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.window.save(self.folder / WINDOW)

    def _publish(self, made: Adapted, mix: dict[int, float], reason: str) -> Version:
        about = About(
            format=FORMAT,
            made=time.time(),
            base=self.versions.base,
            reason=reason,
            thresholds=made.thresholds,
            fidelity=made.found.fidelity,
            lower=made.found.lower,
            confidence=self._promise.confidence,
            rows=made.rows,
            wrong=made.wrong,
            seconds=made.seconds,
            mix=mix,
        )
        name = self.versions.publish(about, made.heads)
        return Version(name, about.wrong, about.seconds, about.mix, about.rows)

    def _of_lookups(self, rows: Rows) -> Rows:
        """Return what the lookups in use see of rows."""
        behind = {stage: rows.features[stage] for stage in self._lookups}
        return Rows(behind, rows.answers, rows.classes)

    def _control(self) -> Controller:
        name = self.versions.current()
        classes = self.spec.outputs[0].shape[0]
        full = Version(FULL_DEPTH, (0.0,) * classes, (self._costs.whole,) * classes)
        version = self.version(name)
        self._trusted = version is not None
        known = {} if version is None else {BUILT: self._built(), name: version}
        return Controller(self._promise.fidelity, full, known, name, stopped=self.versions.stopped())

    def _built(self) -> Version:
        heads = [lookup.function.head for lookup in self._lookups.values()]
        features = [self._held_out.features[stage].float() for stage in self._lookups]
        with torch.inference_mode():
            answers = torch.nn.functional.one_hot(self._held_out.classes, heads[0].classes)
            seen = observed(heads, features, answers).seen
        thresholds = np.array([lookup.threshold for lookup in self._lookups.values()])
        tables = by_class(thresholds, seen, self._held_out.classes, self._costs, heads=heads)
        return Version(BUILT, *tables, rows=len(self._held_out.classes))

    def _inputs(self, sampled: Sequence[Sampled]) -> tuple[Tensor, ...]:
        columns: list[Tensor] = []
        start = 0
        for tensor in self.spec.inputs:
            end = start + tensor.row_bytes
            data = bytearray(b"".join(one.row[start:end] for one in sampled))
            dtype: torch.dtype = getattr(torch, tensor.dtype)
            rows = torch.frombuffer(data, dtype=dtype, count=len(sampled) * prod(tensor.shape))
            columns.append(rows.view(len(sampled), *tensor.shape))
            start = end
        return tuple(columns)


def _costs(stages: Sequence[Curve], lookups: dict[int, float]) -> Costs:
    seconds = [stage.at(1) for stage in stages]
    ends = [stage + 1 for stage in sorted(lookups)]
    segments = tuple(sum(seconds[a:b]) for a, b in zip([0, *ends], [*ends, len(seconds)], strict=True))
    return Costs(segments, tuple(lookups[stage] for stage in sorted(lookups)))


def open_adapter(path: Path, config: AdaptationConfig, *, threads: int, backend: str | None) -> Adapter:
    """Return the adapter of a model directory; raises `ConfigError` or `RepositoryError` where it cannot be."""
    return Adapter(ModelDirectory.open(path), config, threads=threads, backend=backend)
