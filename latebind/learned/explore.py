"""Exploration (GATI, section 4.1): trains each candidate on the base model's activations and measures it in place.

All candidates learn from one pass of the base model over the samples, as far as the disk has room. Each network is
kept as soon as it is trained, so an interrupted build, or a later one with more candidates, trains only the rest.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from latebind.domain.costs import Curve
from latebind.forks.client import fork_server
from latebind.learned.activations import empty_activations, record_activations
from latebind.learned.compiled import compile_lookup
from latebind.learned.exploration_folder import ExplorationFolder
from latebind.learned.head import Head
from latebind.learned.latency import AsideLatency, latency_aside, latency_in_place
from latebind.learned.lookup import LookupFunction
from latebind.learned.plan import Candidate
from latebind.learned.recorded import (
    allocate_activations,
    delete_recorded,
    load_recorded,
    mark_complete,
    row_bytes,
)
from latebind.learned.samples import Samples
from latebind.learned.stored import LookupFiles, Rows
from latebind.learned.train import DISTILLATION, batches_in
from latebind.learned.training_pool import seconds_a_batch, side_by_side, train_all
from latebind.learned.training_process import Network, TrainingJob, kept_network, passes_over
from latebind.program.load import load_program
from latebind.program.program import Program
from latebind.repository.directory import ModelDirectory

SELECTOR_SHARE = 0.15  # of the rows to fit, for the selectors; the predictors never see them
FEWEST_ROWS = 64
RANGE_ROWS = 512  # rows that set the quantisation ranges of a lookup in eight bits
FREE_SHARE = 0.8  # of the free disk space that activations may take
MEASURING_SECONDS = 2.0  # estimate of the time to compile and measure a lookup
BATCH_OF_COSTS = 16

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class TrainedLookup:
    """A trained lookup: as planned, as data, compiled, and its latency in line over batch sizes.

    `beside` is what it costs aside, and `before_sure` its latency if a sure lookup is in use; None: not measured.
    """

    plan: Candidate
    files: LookupFiles
    function: LookupFunction
    curve: Curve
    lessons: Rows | None = None  # features of this lookup on rows its predictor has not seen, for adaptation
    beside: AsideLatency | None = None
    before_sure: Curve | None = None

    @property
    def known(self) -> Curve:
        """The latency until it has answered, aside if it runs aside, else in line."""
        return self.curve if self.beside is None else self.beside.known

    @property
    def slower(self) -> float:
        """Seconds by which it slows the network down if it runs aside, else 0."""
        return 0.0 if self.beside is None else self.beside.slower

    @property
    def bytes(self) -> int:
        """The size of its weights."""
        return self.files.bytes

    def with_head(self, head: Head) -> "TrainedLookup":
        """Return the same lookup with another head."""
        return replace(
            self, files=replace(self.files, head=head), function=LookupFunction(self.function.features, head)
        )


def in_order(trained: Sequence[TrainedLookup]) -> list[TrainedLookup]:
    """Return lookups in the order in which a request meets them: by stage, and at one boundary the quickest first."""
    return sorted(trained, key=lambda one: (one.plan.stage, one.curve.at(1)))


@dataclass(frozen=True, slots=True)
class ExplorationResult:
    """All candidates, trained, in the order given; `reused` of them were trained by an earlier run.

    `limited` has, by stage, how many rows were learned from where the disk had no room for all. `unseen` are the
    numbers of the rows that the lessons are of.
    """

    trained: tuple[TrainedLookup, ...]
    reused: int
    limited: dict[int, int]
    unseen: Tensor


@dataclass(frozen=True, slots=True)
class Explorer:
    """Trains candidates for `program`; `wide` is the same program on all cores, for work that is not measured.

    `names` are the names of the activations behind each stage but the last. Networks are written to the folder `kept`,
    and activations take at most `disk` bytes there at a time. Each predictor sees about `presentations` rows, counting
    repetitions. `distillation` is the share of the base model's distribution in its loss (`train.distillation_loss`).
    With `beside`, lookups are measured aside too.
    """

    program: Program
    wide: Program
    names: tuple[str, ...]
    kept: ExplorationFolder
    seed: int
    presentations: int
    disk: int
    progress: Progress
    distillation: float = DISTILLATION
    beside: bool = False

    def train(self, planned: Sequence[Candidate], fit: Samples) -> ExplorationResult:
        """Train a predictor and a selector for each candidate on the rows of `fit`, and measure them in place.

        The last rows train the selectors. Raises `TrainingStopped` if a training process dies, `ConfigError` if the
        disk is full; networks that are trained by then are kept.
        """
        processes, threads = side_by_side(len(planned))
        jobs = [self._training_job(one, threads) for one in planned]
        missing = [job for job in jobs if self.kept.network(job.boundary, job.kind) is None]
        rows = _RowSplit.of(fit, self.seed)
        work = self._work(missing, rows, len(planned), processes)
        with fork_server() as forks:
            if processes > 1 and missing:
                forks.warm()  # while activations are recorded
            limited = self._train(missing, fit, rows, work, partial(train_all, forks=forks, processes=processes))
        self.kept.clear()
        trained = self._measured(planned, jobs, fit, rows, work)
        lessons = min(len(one.lessons.classes) for one in trained if one.lessons is not None)
        return ExplorationResult(trained, len(jobs) - len(missing), limited, rows.order[rows.learn :][:lessons])

    def _train(
        self,
        missing: Sequence[TrainingJob],
        fit: Samples,
        rows: "_RowSplit",
        work: "_BuildProgress",
        train: Callable[..., None],
    ) -> dict[int, int]:
        """Train the missing networks group by group; return `ExplorationResult.limited`."""
        limited: dict[int, int] = {}
        for number, (count, group) in enumerate(self._groups(missing, len(fit))):
            if number == 0:  # of an interrupted build's activations only those of the first group are of use
                self.kept.delete_activations_except({job.boundary for job in group})
            if count < len(fit):
                limited[group[0].stage] = rows.first(count).learn
            self._record(group, fit, rows.first(count), work)
            train(group, work.seconds(group), tell=work.training(group))
            work.finish(group)
            for job in group:
                delete_recorded(self.kept.activations(job.boundary))
        return limited

    def _training_job(self, one: Candidate, threads: int) -> TrainingJob:
        return TrainingJob(
            folder=str(self.kept.folder),
            boundary=self.names[one.stage],
            stage=one.stage,
            kind=one.kind,
            shape=self.program.activations[one.stage],
            classes=self.program.spec.outputs[0].shape[0],
            seed=self.seed,
            presentations=self.presentations,
            threads=threads,
            distillation=self.distillation,
        )

    def _groups(self, jobs: Sequence[TrainingJob], rows: int) -> Iterator[tuple[int, list[TrainingJob]]]:
        """Yield the groups to record and train one after another, with how many rows the disk has room for.

        A group has all jobs of one or more boundaries.
        """
        room, left = self._room(), 0
        group: list[TrainingJob] = []
        for _, found in groupby(jobs, lambda job: job.stage):
            behind = list(found)
            need = rows * row_bytes(behind[0].shape)
            if group and need > left:
                yield rows, group
                group = []
            left = (left if group else room) - need
            group += behind
            if left < 0:  # this boundary alone does not fit
                yield max(FEWEST_ROWS, min(rows, room // row_bytes(behind[0].shape))), group
                group = []
        if group:
            yield rows, group

    def _room(self) -> int:
        free = shutil.disk_usage(self.kept.folder).free
        return min(self.disk, int(FREE_SHARE * (free + self.kept.recorded_bytes())))

    def _record(self, group: Sequence[TrainingJob], fit: Samples, rows: "_RowSplit", work: "_BuildProgress") -> None:
        """Run the base model over the rows and record its activations at the boundaries that are not recorded yet."""
        stems = {job.stage: self.kept.activations(job.boundary) for job in group}
        shapes = {job.stage: job.shape for job in group}
        missing = [stage for stage, stem in stems.items() if load_recorded(stem, shapes[stage]) is None]
        if not missing:
            return
        rooms = {stage: allocate_activations(stems[stage], len(rows.order), shapes[stage]) for stage in missing}
        with all_cores(self.program.threads):
            answers = record_activations(self.wide, fit, rows.order, rooms, tell=work.recording)
        labels = fit.labels[rows.order] if fit.labels is not None else None
        for stage in missing:
            mark_complete(stems[stage], answers, labels, learn=rows.learn)

    def _work(
        self, missing: Sequence[TrainingJob], rows: "_RowSplit", networks: int, processes: int
    ) -> "_BuildProgress":
        """Estimate how long the work ahead takes."""
        batches = batches_in(rows.learn) * passes_over(rows.learn, self.presentations)
        seconds = {(job.stage, job.kind): batches * seconds_a_batch(job) for job in missing}
        row = self.program.costs.remaining(0, BATCH_OF_COSTS) / BATCH_OF_COSTS / _cores()
        return _BuildProgress(self.progress, seconds, processes, row * len(rows.order), networks)

    def _measured(
        self,
        planned: Sequence[Candidate],
        jobs: Sequence[TrainingJob],
        fit: Samples,
        rows: "_RowSplit",
        work: "_BuildProgress",
    ) -> tuple[TrainedLookup, ...]:
        networks = [network for job in jobs if (network := kept_network(job)) is not None]
        shown = rows.order[rows.learn :][:RANGE_ROWS]
        ranges = {one.stage: empty_activations(len(shown), self.program.activations[one.stage]) for one in planned}
        with all_cores(self.program.threads):
            record_activations(self.wide, fit, shown, ranges)
        lessons = min(len(network.classes) for network in networks)
        trained = []
        for one, network in zip(planned, networks, strict=True):
            work.measuring(one)
            trained.append(self._finish(one, network, ranges[one.stage], first_row(fit), lessons))
        return tuple(trained)

    def _finish(
        self, one: Candidate, network: Network, shown: Tensor, inputs: tuple[Tensor, ...], lessons: int
    ) -> TrainedLookup:
        compiled = compile_lookup(network.predictor, network.selector, shown.float(), self.program)
        place = (self.program, inputs, one.stage, compiled.function)
        curve = latency_in_place(*place)
        beside = latency_aside(*place) if self.beside else None
        kept = Rows({one.name: network.features[:lessons]}, network.answers[:lessons], network.classes[:lessons])
        return TrainedLookup(one, compiled.files, compiled.function, curve, kept, beside)


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
class _BuildProgress:
    """Reports progress: the share of the expected seconds of all work that is done."""

    progress: Progress
    expected: dict[tuple[int, str], float]  # to train each network, by stage and kind
    processes: int
    to_record: float
    networks: int
    done: float = 0.0
    _doing: float = field(default=0.0)

    def recording(self, share: float) -> None:
        """Note what share of the rows the base model has run over."""
        self._doing = share * self.to_record
        self._tell(f"running the base model {share:.0%}")

    def training(self, group: Sequence[TrainingJob]) -> Callable[[dict[int, float]], None]:
        """Return a callback that notes what share of each training of the group is done."""
        recorded_, seconds = self._doing, self.seconds(group)

        def tell(shares: dict[int, float]) -> None:
            self._doing = recorded_ + sum(share * seconds[place] for place, share in shares.items()) / self.processes
            under_way = [f"{group[k].kind}@{group[k].stage} {share:.0%}" for k, share in shares.items() if share < 1.0]
            self._tell(f"training {', '.join(under_way)}" if under_way else "training selectors")

        return tell

    def finish(self, group: Sequence[TrainingJob]) -> None:
        """Note that the group is trained."""
        self.done += self._doing
        self._doing = 0.0

    def measuring(self, one: Candidate) -> None:
        """Note which lookup is measured next."""
        self._tell(f"measuring {one.kind}@{one.stage}")
        self.done += MEASURING_SECONDS

    def seconds(self, group: Sequence[TrainingJob]) -> list[float]:
        """Return the expected seconds of each training."""
        return [self.expected[job.stage, job.kind] for job in group]

    def _tell(self, text: str) -> None:
        recording = self.to_record if self.expected else 0.0
        whole = recording + sum(self.expected.values()) / self.processes + MEASURING_SECONDS * self.networks
        self.progress(text, 0.02 + 0.88 * min(1.0, (self.done + self._doing) / whole))


def on_all_cores(directory: ModelDirectory, program: Program) -> Program:
    """Return the same program, loaded for all cores that this process may use."""
    wide = load_program(directory, threads=_cores(), backend=program.backend)
    torch.set_num_threads(program.threads)
    return wide


@contextmanager
def all_cores(threads: int) -> Iterator[None]:
    """Let torch use all cores inside the block, and `threads` again behind it, where latencies are measured."""
    torch.set_num_threads(_cores())
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def first_row(samples: Samples) -> tuple[Tensor, ...]:
    """Return one row of each input; the inputs must be a tuple (`Samples.ordered`)."""
    assert isinstance(samples.inputs, tuple)
    return tuple(tensor[:1] for tensor in samples.inputs)
