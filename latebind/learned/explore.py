"""Exploration (GATI, section 4.1): trains each candidate on the base model's activations and measures it in place.

All candidates learn from one pass of the base model over the samples, as far as the disk has room. Each network is
kept as soon as it is trained, so an interrupted build, or a later one with more candidates, trains only the rest.

Networks are trained in parallel threads: torch releases the GIL while it computes. (Two on two cores take 250 ms a
batch for both, one after the other on two threads 268, in two processes 281; small ones 76, 76 and 58.)
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from threading import Event
from typing import Self

import torch
from torch import Tensor

from latebind.domain.costs import Curve
from latebind.learned.activations import empty_activations, features_of, record_activations
from latebind.learned.compiled import compile_lookup, to_eight_bit_lookup
from latebind.learned.exploration_folder import ExplorationFolder, row_bytes
from latebind.learned.head import Head
from latebind.learned.latency import AsideLatency, latency_aside, latency_in_place
from latebind.learned.lookup import LookupFunction, compile_lookup_files
from latebind.learned.metadata import SpareLookup, lookup_name
from latebind.learned.networks import BYTES, Predictor, Selector, make_predictor
from latebind.learned.plan import Candidate
from latebind.learned.reading import reading
from latebind.learned.samples import Samples
from latebind.learned.stored import LookupFiles, Rows
from latebind.learned.train import DISTILLATION, Lesson, PredictorTraining, predict, selector_steps, train_selector
from latebind.program.load import load_program
from latebind.program.metadata import read_model
from latebind.program.program import Program
from latebind.program.stored import read_graph, read_rest
from latebind.repository.directory import WEIGHTS, ModelDirectory
from latebind.repository.tensors import read_tensors

SELECTOR_SHARE = 0.15  # of the rows to fit, for the selectors; the predictors never see them
FEWEST_ROWS = 64
RANGE_ROWS = 512  # rows that set the quantization ranges of a lookup in eight bits
DISK = 20 << 30  # bytes of activations at most
FREE_SHARE = 0.8  # of the free disk space that activations may take
MOST_PASSES = 40
LESSON_ROWS = 5_000  # unseen rows whose features are kept for adaptation
REPORT_SECONDS = 0.2
TYPICAL = (0.125, 0.375, 0.625, 0.875)  # where in the order of lengths the rows are on which lookups are measured
PREDICTOR, SELECTOR = "predictor.", "selector."

Progress = Callable[[str, float], None]
# by stage, the rows that a predictor learns from and those that it must not see
Recorded = Mapping[int, tuple[Lesson, Lesson]]


@dataclass(frozen=True, slots=True)
class TrainedLookup:
    """A trained lookup after a stage: as data, compiled, and its latency in line over batch sizes.

    `lessons` are its features on rows that its predictor has not seen, for adaptation; None if it was not trained now.
    `beside` is what it costs aside; None if not measured.
    """

    stage: int
    kind: str
    files: LookupFiles
    function: LookupFunction
    curve: Curve
    lessons: Rows | None = None
    beside: AsideLatency | None = None

    @classmethod
    def measured(
        cls,
        program: Program,
        rows: Sequence[tuple[Tensor, ...]],
        one: Candidate | SpareLookup,
        files: LookupFiles,
        function: LookupFunction,
        *,
        aside: bool,
        lessons: Rows | None = None,
    ) -> Self:
        """Measure a lookup in its place, on one row of inputs, or on several `rows` that differ in length."""
        curve = latency_in_place(program, rows, one.stage, function)
        beside = latency_aside(program, rows, one.stage, function) if aside else None
        return cls(one.stage, one.kind, files, function, curve, lessons, beside)

    @property
    def name(self) -> str:
        """Its name among the lookups of its model."""
        return lookup_name(self.stage, self.kind)

    @property
    def known(self) -> Curve:
        """The latency until it has answered, aside if it runs aside, else in line."""
        return self.curve if self.beside is None else self.beside.known

    @property
    def slower(self) -> float:
        """Seconds by which it slows the network down if it runs aside, else 0."""
        return 0.0 if self.beside is None else self.beside.slower

    def with_head(self, head: Head) -> Self:
        """Return the same lookup with another head."""
        return replace(self, files=replace(self.files, head=head), function=self.function.with_head(head))


def in_order(trained: Sequence[TrainedLookup]) -> list[TrainedLookup]:
    """Return lookups in the order in which a request meets them: by stage, and at one boundary the fastest first."""
    return sorted(trained, key=lambda one: (one.stage, one.curve.at(1)))


@dataclass(frozen=True, slots=True)
class ExplorationResult:
    """All candidates, trained, in the order given; `reused` of them were trained by an earlier run.

    `limited` has, by stage, how many rows were learned from if the disk had no room for all. `unseen` are the numbers
    of the rows of the lessons.
    """

    trained: tuple[TrainedLookup, ...]
    reused: int
    limited: dict[int, int]
    unseen: Tensor


@dataclass(frozen=True, slots=True)
class Network:
    """A trained predictor and selector, and the features of rows that the predictor has not seen, for adaptation.

    `features` are `(N, width) bfloat16`, `answers` of the base model `(N, classes) bfloat16`, `classes` `(N,) int64`.
    The rows are the same for all networks, except that some may have only the first of them.
    """

    predictor: Predictor
    selector: Selector
    features: Tensor
    answers: Tensor
    classes: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, to be written."""
        found = {PREDICTOR + name: tensor for name, tensor in self.predictor.state_dict().items()}
        found |= {SELECTOR + name: tensor for name, tensor in self.selector.state_dict().items()}
        return {**found, "features": self.features, "answers": self.answers, "classes": self.classes}


@dataclass(frozen=True, slots=True)
class Explorer:
    """Trains candidates for `program`; `parallel` is the same on all cores, for work that is not measured.

    `names` are the names of the activations after each stage but the last. Networks are written to the folder `kept`,
    where activations take at most `DISK` bytes at a time. Each predictor sees about `presentations` rows, counting
    repetitions. `distillation` is the share of the base model's distribution in its loss (`train.distillation_loss`).
    With `beside`, lookups are measured aside too.
    """

    program: Program
    parallel: Program
    names: tuple[str, ...]
    kept: ExplorationFolder
    seed: int
    presentations: int
    progress: Progress
    distillation: float = DISTILLATION
    beside: bool = False

    def train(self, planned: Sequence[Candidate], fit: Samples) -> ExplorationResult:
        """Train a predictor and a selector for each candidate on the rows of `fit`, and measure them in place.

        The last rows train the selectors. Raises `ConfigError` if the disk is full; networks that are trained by then
        are kept.
        """
        missing = [one for one in planned if self.kept.network(self.names[one.stage], one.kind) is None]
        rows = _RowSplit.of(fit, self.seed)
        at_once = max(1, min(len(planned), _cores()))
        work = _Work(self.progress, len(missing), len(planned))
        limited: dict[int, int] = {}
        self.kept.delete_activations()  # of an interrupted build
        for count, group in self._groups(missing, len(fit)):
            if count < len(fit):
                limited[group[0].stage] = rows.first(count).learn
            with on_threads(_cores() // at_once):
                recorded = self._record(group, fit, rows.first(count), work)
                self.train_networks(group, recorded, at_once=at_once, on_progress=work.training)
            del recorded  # before the next ones need the disk
            self.kept.delete_activations()
        trained = self._measured(planned, fit, rows, work)
        kept = min(len(one.lessons.classes) for one in trained if one.lessons is not None)
        return ExplorationResult(trained, len(planned) - len(missing), limited, rows.order[rows.learn :][:kept])

    def _groups(self, candidates: Sequence[Candidate], rows: int) -> Iterator[tuple[int, list[Candidate]]]:
        """Yield the groups to record and train one after another, with how many rows the disk has room for.

        A group has all candidates of one or more boundaries.
        """
        room, left = min(DISK, int(FREE_SHARE * shutil.disk_usage(self.kept.folder).free)), 0
        group: list[Candidate] = []
        for stage, found in groupby(candidates, lambda one: one.stage):
            row = row_bytes(self._shape(stage))
            if group and rows * row > left:
                yield rows, group
                group = []
            left = (left if group else room) - rows * row
            group += found
            if left < 0:  # this boundary alone does not fit
                yield max(FEWEST_ROWS, min(rows, room // row)), group
                group = []
        if group:
            yield rows, group

    def _record(self, group: Sequence[Candidate], fit: Samples, rows: "_RowSplit", work: "_Work") -> Recorded:
        """Run the base model over the rows and record its activations at the boundaries of the group."""
        rooms = {
            stage: self.kept.allocate_activations(self.names[stage], len(rows.order), self._shape(stage))
            for stage in {one.stage for one in group}
        }
        with all_cores(torch.get_num_threads()):
            answers = record_activations(self.parallel, fit, rows.order, rooms, on_progress=work.recording)
        labels = fit.labels[rows.order] if fit.labels is not None else None
        every = {stage: Lesson(activations, answers, labels) for stage, activations in rooms.items()}
        return {
            stage: (lesson.rows(slice(0, rows.learn)), lesson.rows(slice(rows.learn, None)))
            for stage, lesson in every.items()
        }

    def train_networks(
        self,
        group: Sequence[Candidate],
        recorded: Recorded,
        *,
        at_once: int,
        on_progress: Callable[[dict[str, float]], None],
    ) -> None:
        """Train the networks of the candidates on recorded activations, `at_once` at a time, the longest first.

        Each computes on as many threads as torch has been given, and so gets the same weights wherever it is
        trained. `on_progress` is called with the shares that are done, by name. If it raises, or this process is
        interrupted, trainings end at their next step.
        """
        shares: dict[str, float] = {}
        ended = Event()

        def learn(one: Candidate, predictor: Predictor, selector: Selector) -> None:
            def step(share: float) -> None:
                shares[one.name] = share
                if ended.is_set():
                    raise InterruptedError(f"the training of {one.name} was ended")

            self._train_network(one, recorded[one.stage], predictor, selector, step)

        longest_first = sorted(group, key=lambda one: one.seconds, reverse=True)
        with ThreadPoolExecutor(at_once) as threads:
            try:
                running = [threads.submit(learn, one, *self._untrained(one)) for one in longest_first]
                on_progress({})
                while wait(running, timeout=REPORT_SECONDS).not_done:
                    on_progress(dict(shares))
            except BaseException:
                ended.set()
                threads.shutdown(wait=False, cancel_futures=True)
                raise
        for one in running:
            one.result()
        on_progress(dict(shares))

    def _train_network(
        self,
        one: Candidate,
        recorded: tuple[Lesson, Lesson],
        predictor: Predictor,
        selector: Selector,
        on_progress: Callable[[float], None],
    ) -> None:
        """Train one network and keep it.

        The weights are bit for bit the same for the same candidate: the seed does not depend on other boundaries or on
        where the cuts are.
        """
        boundary = self.names[one.stage]
        seen, unseen = recorded
        seed = int.from_bytes(hashlib.sha256(f"{self.seed} {boundary}".encode()).digest()[:6], "little")
        passes = passes_over(len(seen.answers), self.presentations)
        PredictorTraining(predictor, seen, passes=passes, seed=seed, distillation=self.distillation).learn(on_progress)
        predicted, classes = predict(predictor, unseen.activations), unseen.answers.argmax(dim=1)
        generator, steps = torch.Generator().manual_seed(seed), selector_steps(self.presentations)
        train_selector(selector, predicted, predicted.argmax(dim=1) == classes, generator=generator, steps=steps)
        lessons = slice(0, LESSON_ROWS)
        features = predict(predictor.features, unseen.activations[lessons]).bfloat16()
        network = Network(predictor, selector, features, unseen.answers[lessons].bfloat16(), classes[lessons])
        self.kept.keep_network(boundary, one.kind, network.tensors())

    def network(self, one: Candidate) -> Network | None:
        """Return the network of a candidate, or None if it is not trained yet."""
        tensors = self.kept.network(self.names[one.stage], one.kind)
        if tensors is None:
            return None
        predictor, selector = self._untrained(one)
        predictor.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for module, start in ((predictor, PREDICTOR), (selector, SELECTOR)):
            module.load_state_dict({k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)})
            module.eval()
        return Network(predictor, selector, *(tensors[name] for name in ("features", "answers", "classes")))

    def eight_bit_lookup(
        self, directory: ModelDirectory, fit: Samples, found: ExplorationResult
    ) -> tuple[list[TrainedLookup], str]:
        """Return the network of `directory` in eight bits as a lookup, or nothing and why it was left out.

        It comes before the network, with its convolutions in eight bits; if there is no empty first stage, as for
        texts, it comes after the first stage that has a lookup, and is the rest of the network from there on, with its
        linear layers in eight bits. It needs a backend that multiplies bytes, and a linear layer at the end. Whether it
        pays on this processor is decided by composition, from what it takes. `found` has the other lookups: this one
        keeps features of the same unseen rows as they do.
        """
        program, known = self.program, found.trained[0].lessons
        assert known is not None
        if program.backend == "openvino-int8":
            return [], "the network computes in eight bits already"
        if not program.backend.startswith("openvino"):
            return [], f"the backend {program.backend} computes in floating point; openvino multiplies bytes"
        model, weights = read_model(directory), read_tensors(directory, WEIGHTS)
        if program.entry:
            one, layers = Candidate(0, BYTES, 0.0), "convolutions"
            files = to_eight_bit_lookup(read_graph(directory, model), weights, *fit.batch(found.unseen[:RANGE_ROWS]))
        else:
            one, layers = Candidate(found.trained[0].stage, BYTES, 0.0), "linear layers"
            files = to_eight_bit_lookup(read_rest(directory, model, behind=one.stage), weights)
        if files is None:
            return [], f"it needs {layers} and a linear layer at the end"
        function = compile_lookup_files(files, backend=program.backend, threads=program.threads)
        with all_cores(program.threads):
            (rows,) = features_of(program, fit.take(found.unseen), [(one.stage, function)])
        lessons = replace(known, features={one.name: rows.bfloat16()})
        return [
            TrainedLookup.measured(program, some_rows(fit), one, files, function, aside=self.beside, lessons=lessons)
        ], ""

    def _shape(self, stage: int) -> tuple[int, ...]:
        """Return the shape of a row of what lookups read after a stage."""
        return reading(self.program.graphs[stage + 1], pads=self.program.spec.pads).shape

    def _untrained(self, one: Candidate) -> tuple[Predictor, Selector]:
        classes = self.program.spec.outputs[0].shape[0]
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            predictor = make_predictor(self._shape(one.stage), classes, one.kind)
            torch.manual_seed(self.seed)
            return predictor, Selector(classes)

    def _measured(
        self, planned: Sequence[Candidate], fit: Samples, rows: "_RowSplit", work: "_Work"
    ) -> tuple[TrainedLookup, ...]:
        networks = [network for one in planned if (network := self.network(one)) is not None]
        shown = rows.order[rows.learn :][:RANGE_ROWS]
        ranges = {one.stage: empty_activations(len(shown), self._shape(one.stage)) for one in planned}
        with all_cores(self.program.threads):
            record_activations(self.parallel, fit, shown, ranges)
        lessons = slice(0, min(len(network.classes) for network in networks))
        lengths = None if fit.lengths is None else fit.lengths[rows.order[rows.learn :][lessons]]
        trained = []
        for one, network in zip(planned, networks, strict=True):
            work.measuring(one)
            compiled = compile_lookup(network.predictor, network.selector, ranges[one.stage].float(), self.program)
            features = {one.name: network.features[lessons]}
            kept = Rows(features, network.answers[lessons], network.classes[lessons], lengths)
            trained.append(
                TrainedLookup.measured(
                    self.program,
                    some_rows(fit),
                    one,
                    compiled.files,
                    compiled.function,
                    aside=self.beside,
                    lessons=kept,
                )
            )
        return tuple(trained)


@dataclass(frozen=True, slots=True)
class _RowSplit:
    """Row numbers in the order in which they are recorded: first `learn` for the predictors, then the unseen ones."""

    order: Tensor
    learn: int

    @classmethod
    def of(cls, fit: Samples, seed: int) -> "_RowSplit":
        """Split the rows, of which the last stay unseen, and shuffle each part once."""
        learn = len(fit) - max(1, round(SELECTOR_SHARE * len(fit)))
        generator = torch.Generator().manual_seed(seed)
        parts = [torch.randperm(learn, generator=generator), torch.randperm(len(fit) - learn, generator=generator)]
        return cls(torch.cat([parts[0], learn + parts[1]]), learn)

    def first(self, count: int) -> "_RowSplit":
        """Return the first rows of both parts, `count` in all, so that a larger selection begins with the same rows."""
        learn = min(self.learn, max(1, round(count * self.learn / len(self.order))))
        unseen = self.order[self.learn :][: max(1, count - learn)]
        return _RowSplit(torch.cat([self.order[:learn], unseen]), learn)


@dataclass(slots=True)
class _Work:
    """Reports the current step and the share done: most of it is training a network, the rest is measuring it."""

    progress: Progress
    to_train: int
    to_measure: int
    trained: dict[str, float] = field(default_factory=dict)
    measured: int = 0

    def recording(self, share: float) -> None:
        """Report the share of the rows that the base model has run over."""
        self._report(f"running the base model {share:.0%}")

    def training(self, shares: dict[str, float]) -> None:
        """Report the share of each training that is done."""
        self.trained |= shares
        running = [f"{name} {share:.0%}" for name, share in shares.items() if share < 1.0]
        self._report(f"training {', '.join(running) or 'selectors'}")

    def measuring(self, one: Candidate) -> None:
        """Report which lookup is measured next."""
        self._report(f"measuring {one.name}")
        self.measured += 1

    def _report(self, text: str) -> None:
        trained = sum(self.trained.values()) / max(1, self.to_train) if self.to_train else 1.0
        self.progress(text, 0.05 + 0.7 * trained + 0.15 * self.measured / self.to_measure)


def passes_over(rows: int, presentations: int) -> int:
    """Return the number of passes over `rows` rows that shows about `presentations` in all."""
    return max(1, min(MOST_PASSES, round(presentations / rows)))


def on_all_cores(directory: ModelDirectory, program: Program) -> Program:
    """Return the same program, loaded for all cores that this process may use."""
    parallel = load_program(directory, threads=_cores(), backend=program.backend)
    torch.set_num_threads(program.threads)
    return parallel


@contextmanager
def on_threads(threads: int) -> Iterator[None]:
    """Let torch use this many threads inside the block: with another number, sums round differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def all_cores(threads: int) -> Iterator[None]:
    """Let torch use all cores inside the block, and `threads` again after it, where latencies are measured."""
    torch.set_num_threads(_cores())
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def some_rows(samples: Samples, quantiles: Sequence[float] = TYPICAL) -> list[tuple[Tensor, ...]]:
    """Return a row of each input, `(1, ...)`, at each of these quantiles of length; one row if all are alike."""
    return [samples.batch(torch.tensor([row])) for row in samples.at_quantiles(quantiles)]
