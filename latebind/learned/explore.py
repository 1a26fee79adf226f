"""Exploration: each candidate is trained on what the base model makes of samples and measured in its place.

GATI, section 4.1. All candidates learn from one pass of the base model over the samples, as far as the disk allows.
What is trained is kept at once, so a build that was broken off, or one with more candidates, trains only the rest.
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
from latebind.forks import lending
from latebind.learned.activations import capture, half
from latebind.learned.compiled import compile_lookup
from latebind.learned.explored import Exploration
from latebind.learned.head import Head
from latebind.learned.latency import Beside, latency_beside, latency_in_place
from latebind.learned.lookup import LookupFunction
from latebind.learned.plan import Candidate
from latebind.learned.recorded import complete, forget, make_room, recorded, row_bytes
from latebind.learned.samples import Samples
from latebind.learned.stored import LookupFiles, Rows
from latebind.learned.train import DISTILLATION, batches_in
from latebind.learned.trainer import Network, Order, kept_network, passes_over
from latebind.learned.training import seconds_a_batch, side_by_side, train_all
from latebind.program.load import load_program
from latebind.program.program import Program
from latebind.repository.directory import ModelDirectory

SELECTOR_SHARE = 0.15  # of the rows to fit; the predictors never see them
FEWEST_ROWS = 64
RANGE_ROWS = 512  # that show a lookup in eight bits how large its numbers get
FREE_SHARE = 0.8  # of what is free on the disk
MEASURING_SECONDS = 2.0  # to compile a lookup and measure it, as an estimate
BATCH_OF_COSTS = 16

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Trained:
    """A lookup ready to run: what was planned, as data, compiled, and its latency over batch sizes.

    `beside` is what it costs aside, `before_sure` the latency before a lookup that is sure, where that was measured.
    """

    plan: Candidate
    files: LookupFiles
    function: LookupFunction
    curve: Curve
    lessons: Rows | None = None  # for later: the predictor has not seen them; of this lookup alone
    beside: Beside | None = None
    before_sure: Curve | None = None

    @property
    def known(self) -> Curve:
        """Seconds until it has answered, in the way it is asked."""
        return self.curve if self.beside is None else self.beside.known

    @property
    def slower(self) -> float:
        """Seconds that it takes from the network beside it, if it runs aside."""
        return 0.0 if self.beside is None else self.beside.slower

    @property
    def bytes(self) -> int:
        """The size of the weights."""
        return self.files.bytes

    def with_head(self, head: Head) -> "Trained":
        """Return the same lookup with another head."""
        return replace(
            self, files=replace(self.files, head=head), function=LookupFunction(self.function.features, head)
        )


def in_order(trained: Sequence[Trained]) -> list[Trained]:
    """Return lookups in the order in which a request meets them: at one boundary the quickest first."""
    return sorted(trained, key=lambda one: (one.plan.stage, one.curve.at(1)))


@dataclass(frozen=True, slots=True)
class Explored:
    """All candidates, trained, in the order given; so many of them were `reused`.

    `limited` tells how many rows those boundaries learned from at which the disk had not room for all; `unseen` are the
    numbers of the rows that their lessons are of.
    """

    trained: tuple[Trained, ...]
    reused: int
    limited: dict[int, int]
    unseen: Tensor


@dataclass(frozen=True, slots=True)
class Explorer:
    """Trains candidates for `program`; `wide` is the same on all cores, for work that is not measured.

    `names` are those of the activations behind each stage but the last, `kept` is where networks stay, and `disk` the
    most bytes that activations take there at a time. Each predictor sees about `presentations` rows, repetitions
    counted; `distillation` is the share of the base model's distribution in its loss (`train.distillation_loss`).
    Where `beside`, lookups are measured aside too.
    """

    program: Program
    wide: Program
    names: tuple[str, ...]
    kept: Exploration
    seed: int
    presentations: int
    disk: int
    progress: Progress
    distillation: float = DISTILLATION
    beside: bool = False

    def train(self, planned: Sequence[Candidate], fit: Samples) -> Explored:
        """Return a predictor and a selector for each candidate, trained on the rows of `fit` and measured in place.

        The last rows are kept for the selectors. Raises `TrainingStopped` if a training dies, `ConfigError` if the
        disk is full; what is trained until then is kept.
        """
        processes, threads = side_by_side(len(planned))
        orders = [self._order(one, threads) for one in planned]
        missing = [order for order in orders if self.kept.network(order.boundary, order.kind) is None]
        rows = _Rows.of(fit, self.seed)
        work = self._work(missing, rows, len(planned), processes)
        with lending.own() as forks:
            if processes > 1 and missing:
                forks.warm()  # while activations are recorded
            limited = self._train(missing, fit, rows, work, partial(train_all, forks=forks, processes=processes))
        self.kept.clear()
        trained = self._measured(planned, orders, fit, rows, work)
        lessons = min(len(one.lessons.classes) for one in trained if one.lessons is not None)
        return Explored(trained, len(orders) - len(missing), limited, rows.order[rows.learn :][:lessons])

    def _train(
        self, missing: Sequence[Order], fit: Samples, rows: "_Rows", work: "_Work", train: Callable[..., None]
    ) -> dict[int, int]:
        """Train what is missing, group by group; return of how many rows those learned who could not have all."""
        limited: dict[int, int] = {}
        for number, (count, group) in enumerate(self._groups(missing, len(fit))):
            if number == 0:  # what a broken build has left is of use to those trained first, or in the way
                self.kept.forget_all_but({order.boundary for order in group})
            if count < len(fit):
                limited[group[0].stage] = rows.first(count).learn
            self._record(group, fit, rows.first(count), work)
            train(group, work.seconds(group), tell=work.training(group))
            work.finish(group)
            for order in group:
                forget(self.kept.activations(order.boundary))
        return limited

    def _order(self, one: Candidate, threads: int) -> Order:
        return Order(
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

    def _groups(self, orders: Sequence[Order], rows: int) -> Iterator[tuple[int, list[Order]]]:
        """Yield what is recorded and trained at a time, whole boundaries, and how many rows the disk has room for."""
        room, left = self._room(), 0
        group: list[Order] = []
        for _, found in groupby(orders, lambda order: order.stage):
            behind = list(found)
            need = rows * row_bytes(behind[0].shape)
            if group and need > left:
                yield rows, group
                group = []
            left = (left if group else room) - need
            group += behind
            if left < 0:  # it is alone
                yield max(FEWEST_ROWS, min(rows, room // row_bytes(behind[0].shape))), group
                group = []
        if group:
            yield rows, group

    def _room(self) -> int:
        free = shutil.disk_usage(self.kept.folder).free
        return min(self.disk, int(FREE_SHARE * (free + self.kept.recorded_bytes())))

    def _record(self, group: Sequence[Order], fit: Samples, rows: "_Rows", work: "_Work") -> None:
        """Run the base model over the rows and keep what comes out at boundaries where it is not kept already."""
        stems = {order.stage: self.kept.activations(order.boundary) for order in group}
        shapes = {order.stage: order.shape for order in group}
        missing = [stage for stage, stem in stems.items() if recorded(stem, shapes[stage]) is None]
        if not missing:
            return
        rooms = {stage: make_room(stems[stage], len(rows.order), shapes[stage]) for stage in missing}
        with all_cores(self.program.threads):
            answers = capture(self.wide, fit, rows.order, rooms, tell=work.recording)
        labels = fit.labels[rows.order] if fit.labels is not None else None
        for stage in missing:
            complete(stems[stage], answers, labels, learn=rows.learn)

    def _work(self, missing: Sequence[Order], rows: "_Rows", networks: int, processes: int) -> "_Work":
        """Measure what lies ahead."""
        batches = batches_in(rows.learn) * passes_over(rows.learn, self.presentations)
        seconds = {(order.stage, order.kind): batches * seconds_a_batch(order) for order in missing}
        row = self.program.costs.remaining(0, BATCH_OF_COSTS) / BATCH_OF_COSTS / _cores()
        return _Work(self.progress, seconds, processes, row * len(rows.order), networks)

    def _measured(
        self, planned: Sequence[Candidate], orders: Sequence[Order], fit: Samples, rows: "_Rows", work: "_Work"
    ) -> tuple[Trained, ...]:
        networks = [network for order in orders if (network := kept_network(order)) is not None]
        shown = rows.order[rows.learn :][:RANGE_ROWS]
        ranges = {one.stage: half(len(shown), self.program.activations[one.stage]) for one in planned}
        with all_cores(self.program.threads):
            capture(self.wide, fit, shown, ranges)
        lessons = min(len(network.classes) for network in networks)
        trained = []
        for one, network in zip(planned, networks, strict=True):
            work.measuring(one)
            trained.append(self._finish(one, network, ranges[one.stage], first_row(fit), lessons))
        return tuple(trained)

    def _finish(
        self, one: Candidate, network: Network, shown: Tensor, inputs: tuple[Tensor, ...], lessons: int
    ) -> Trained:
        compiled = compile_lookup(network.predictor, network.selector, shown.float(), self.program)
        place = (self.program, inputs, one.stage, compiled.function)
        curve = latency_in_place(*place)
        beside = latency_beside(*place) if self.beside else None
        kept = Rows({one.name: network.features[:lessons]}, network.answers[:lessons], network.classes[:lessons])
        return Trained(one, compiled.files, compiled.function, curve, kept, beside)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Numbers of rows in the order in which they are recorded: `learn` of them for predictors, then those unseen."""

    order: Tensor
    learn: int

    @classmethod
    def of(cls, fit: Samples, seed: int) -> "_Rows":
        """Take the last rows for those unseen, and shuffle each part once."""
        learn = len(fit) - max(1, round(SELECTOR_SHARE * len(fit)))
        generator = torch.Generator().manual_seed(seed)
        parts = [torch.randperm(learn, generator=generator), torch.randperm(len(fit) - learn, generator=generator)]
        return cls(torch.cat([parts[0], learn + parts[1]]), learn)

    def first(self, count: int) -> "_Rows":
        """Return fewer rows, the first of both parts: whoever sees more of them sees these too, in this order."""
        learn = min(self.learn, max(1, round(count * self.learn / len(self.order))))
        unseen = self.order[self.learn :][: max(1, count - learn)]
        return _Rows(torch.cat([self.order[:learn], unseen]), learn)


@dataclass(slots=True)
class _Work:
    """How much of all the work is done, in seconds as they were expected, told as a share."""

    progress: Progress
    expected: dict[tuple[int, str], float]  # to train each network, by stage and kind
    processes: int
    to_record: float
    networks: int
    done: float = 0.0
    _doing: float = field(default=0.0)

    def recording(self, share: float) -> None:
        """Hear of the base model."""
        self._doing = share * self.to_record
        self._tell(f"running the base model {share:.0%}")

    def training(self, group: Sequence[Order]) -> Callable[[dict[int, float]], None]:
        """Return what hears of trainings."""
        recorded_, seconds = self._doing, self.seconds(group)

        def tell(shares: dict[int, float]) -> None:
            self._doing = recorded_ + sum(share * seconds[place] for place, share in shares.items()) / self.processes
            under_way = [f"{group[k].kind}@{group[k].stage} {share:.0%}" for k, share in shares.items() if share < 1.0]
            self._tell(f"training {', '.join(under_way)}" if under_way else "training selectors")

        return tell

    def finish(self, group: Sequence[Order]) -> None:
        """Hear that a group is trained."""
        self.done += self._doing
        self._doing = 0.0

    def measuring(self, one: Candidate) -> None:
        """Hear what is measured next."""
        self._tell(f"measuring {one.kind}@{one.stage}")
        self.done += MEASURING_SECONDS

    def seconds(self, group: Sequence[Order]) -> list[float]:
        """Return what each training is expected to take."""
        return [self.expected[order.stage, order.kind] for order in group]

    def _tell(self, text: str) -> None:
        recording = self.to_record if self.expected else 0.0
        whole = recording + sum(self.expected.values()) / self.processes + MEASURING_SECONDS * self.networks
        self.progress(text, 0.02 + 0.88 * min(1.0, (self.done + self._doing) / whole))


def on_all_cores(directory: ModelDirectory, program: Program) -> Program:
    """Return the same program on all cores that this process may use."""
    wide = load_program(directory, threads=_cores(), backend=program.backend)
    torch.set_num_threads(program.threads)
    return wide


@contextmanager
def all_cores(threads: int) -> Iterator[None]:
    """Let torch use every core that there is for a while; what is measured has `threads`."""
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
