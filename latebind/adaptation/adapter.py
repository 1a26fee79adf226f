"""Adapts the learned caches of one model to its traffic: samples, decisions, new versions."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from latebind.adaptation.controller import (
    BUILT,
    COMPARED,
    FULL_DEPTH,
    Controller,
    Decision,
    Retrain,
    Version,
    VersionLevel,
    down_to,
    name_of,
)
from latebind.adaptation.levels import Levels, of_each_level
from latebind.adaptation.messages import Answered, OfLevel, Status
from latebind.adaptation.retrain import Prior, by_class, material, retrain, seen_of
from latebind.adaptation.traffic import Familiar, Kept, Recent, Sample, Window, looks
from latebind.adaptation.versions import Leadership, Versions, versions_folder
from latebind.domain.config import AdaptationConfig
from latebind.domain.errors import ConfigError, NotFound, RepositoryError
from latebind.domain.model import ITEM_BYTES, ModelSpec
from latebind.learned.activations import Observed, apply_heads, features_of, observe
from latebind.learned.compose import Costs, over_lengths, send
from latebind.learned.head import Head
from latebind.learned.lookup import Promises, load_functions
from latebind.learned.metadata import levels_down_to, overload, read_caches
from latebind.learned.promise import Promise, bounded
from latebind.learned.samples import Samples
from latebind.learned.stored import HELD_OUT, LESSONS, Rows, read_rows
from latebind.program.backends import exact_beside
from latebind.program.load import load_program
from latebind.repository.directory import ModelDirectory

logger = logging.getLogger(__name__)

# at least, for all answers: between two changes of the traffic several versions are made, and each may be wrong
LASTING = 0.999
UNSEEN = 30  # answers that are counted besides those heard, for the classes that have not come yet


WAITING = 512  # sampled requests that may wait to show, and as many to teach; newer ones are not taken
AT_ONCE = 8  # of them run as one batch
SINCE_ALARM = 40  # samples that are kept when fidelity fell: the newest show what has come
SINCE_MOVED = 5  # samples that come before a change of classes is noticed

FIDELITY_DIGITS = 6  # of promised ones, which come as float32

Sampled = tuple[int, Answered]  # a sampled request, and which answer of the model it is, counted from 1


class Adapter:
    """Everything known about one model: waiting samples, windows, versions, controller. One thread calls its methods.

    `see` takes long, and so does the call that `lesson` returns, which may run in another thread. Raises `ConfigError`
    if there is nothing to adapt, or too much, and `RepositoryError`. `wanted` is the version that the previous service
    wanted, if there was one: if it had stopped exits, perhaps for this server alone, they stay stopped.

    With a `floor` under 1, each level of the operating curve down to it is watched, and versions have thresholds for
    each of them.
    """

    def __init__(
        self,
        directory: ModelDirectory,
        config: AdaptationConfig,
        *,
        threads: int,
        backend: str | None,
        wanted: str = "",
        floor: float = 1.0,
    ) -> None:
        self._program = load_program(directory, threads=threads, backend=backend)
        exact = exact_beside(self._program.backend)
        self._base = None if exact is None else load_program(directory, threads=threads, backend=exact)
        self.spec: ModelSpec = self._program.spec
        caches = read_caches(directory)
        held_out, lessons = (read_rows(directory, name) for name in (HELD_OUT, LESSONS))
        if caches is None or held_out is None or not caches.lookups:
            raise ConfigError(f"{self.spec.name} has no learned caches in use: build or calibrate it with data first")
        kept = [rows.features for rows in (held_out, lessons) if rows is not None]  # an older build kept fewer
        at_hand = [one for one in caches.at_hand if all(one.name in features for features in kept)]
        if large := [lookup.name for lookup in caches.lookups if lookup not in at_hand]:
            raise ConfigError(
                f"{self.spec.name} uses lookups of too many features to adapt: {', '.join(large)}; build it with others"
            )
        if self.coarse and held_out.end is None:
            raise ConfigError(
                f"{self.spec.name} runs on {self._program.backend}, and its stored data does not say how often that "
                "answers as in full precision: run `latebind calibrate` for this backend first"
            )
        functions = load_functions(directory, at_hand, backend=self._program.backend, threads=threads)
        self._at_hand = {one.name: one for one in at_hand}
        self._lookups = {one.name: (one.stage, functions[one.name]) for one in at_hand}
        self._thresholds = {one.name: one.threshold for one in caches.lookups}
        self._held_out = held_out.seen_by(self._lookups)
        self._lessons = lessons.seen_by(self._lookups) if lessons is not None else None
        self._prior = Prior.of(self._heads, material(self._held_out, self._lessons).learn)
        self._kept = Kept.of(self._held_out, {name: (self._heads[name], at) for name, at in self._thresholds.items()})
        self._promise = Promise(
            caches.target,
            caches.confidence,
            tail=np.inf if caches.tail is None else caches.tail,
            answers=caches.answers,
            lasting=max(caches.confidence, LASTING),
        )
        self._aside = caches.aside
        self.shown, self.taught = (Window(config.rows, config.window) for _ in range(2))
        self._costs = self._costs_of(self._at_hand)
        self.folder = versions_folder(directory.path, config.folder)
        self.versions = Versions(self.folder, directory)
        self._lesson = 0
        self._learned = self._heads  # where lessons start if what `build` kept does not represent the traffic
        self._since = -np.inf  # when the traffic changed
        self._doubt = False  # whether an alarm reported it
        self._familiar: Familiar | None = None  # what samples looked like at the last lesson
        name = wanted if wanted == FULL_DEPTH else self.versions.first()[0]
        levels = levels_down_to(caches, floor)
        self._levels = levels[1:]  # below the whole network, which promises the most
        self._most = levels[0].target if levels else 1.0
        # Whether requests may be dropped at the last level.
        self._overload = overload([level.target for level in levels]) is not None
        self._last = deque[bool](maxlen=COMPARED)  # with levels, whether the answers compared were equal
        self._promised = [round(level.target, FIDELITY_DIGITS) for level in self._levels]
        # With levels, the version wanted: its name, its heads, and its thresholds by level below the whole network.
        self._in_use: tuple[str, Mapping[str, Head], Sequence[Mapping[str, float]]] = "", {}, ()
        self.trusted = True  # whether what `build` kept looks like the traffic
        self.controller = self._controller(name, wanted if down_to(wanted)[0] == name else name)
        self._to_compare, self._to_teach = deque[Sampled](), deque[Sampled]()
        self.due: Retrain | None = None  # a lesson that is to come
        # the folder's last known choice, by the leader or an operator, for all servers that share it
        self.seen = self.versions.current()
        self.lead = Leadership(self.folder)
        self.leads = False
        self.sampled = self.retrained = self.refused = 0

    @property
    def coarse(self) -> bool:
        """Whether the network computes in less than full precision, so that it is not the base model."""
        return self._base is not None

    def _controller(self, name: str, wanted: str) -> Controller:
        classes = self.spec.outputs[0].shape[0]
        full = Version(FULL_DEPTH, (0.0,) * classes, (self._costs.whole,) * classes)
        version = self.version(name)
        self.trusted = version is not None
        known = {} if version is None else {BUILT: self._built(), name: version}
        target, stopped = self._promise.fidelity, self.versions.stopped()
        if self._levels:
            return Levels(self._fidelities, target, full, known, wanted, self._shows, stopped=stopped)
        return Controller(target, full, known, name, stopped=stopped)

    @property
    def _fidelities(self) -> list[float]:
        return [level.target for level in self._levels]

    def _shows(self, wrong: int, rows: int, fidelity: float) -> bool:
        """Return whether samples that have come since an alarm show the fidelity.

        It is called for ever larger numbers of them, so with the confidence of versions, of which several are made too.
        """
        promise = replace(self._promise, fidelity=fidelity, confidence=self._promise.lasting)
        return promise.lower_bound(wrong, rows) >= fidelity

    def take(self, answered: Answered) -> list[Decision]:
        """Take in one answer; if it was sampled, it is queued, unless the queue is full."""
        decisions = self.controller.answered(answered.answer)
        if answered.draw is not None:
            waiting = self._to_compare if answered.draw.shows else self._to_teach
            if len(waiting) < WAITING:
                waiting.append((self.controller.total, answered))
        return decisions

    @property
    def waiting(self) -> tuple[int, int]:
        """How many wait to be compared, which is urgent because a version in use may err, and how many to teach."""
        return len(self._to_compare), len(self._to_teach)

    def batch(self) -> list[Sampled]:
        """Return the next samples to look at; those to be compared come first."""
        waiting = self._to_compare or self._to_teach
        return [waiting.popleft() for _ in range(min(AT_ONCE, len(waiting)))]

    def status(self) -> Status:
        """Return the current figures."""
        controller, name = self.controller, self.spec.name
        if isinstance(controller, Levels):
            counted = (self.sampled, self.retrained, self.refused, controller.alarms)
            found = [
                OfLevel(one.fidelity, *bounded(one.last), one.alarms, place < controller.open)
                for place, one in enumerate(controller.levels)
            ]
            least = min([one.promised for one in found if one.used], default=self._most)
            return Status(name, *counted, *bounded(self._last), least, tuple(found))
        counted = (self.sampled, self.retrained, self.refused, controller.watch.alarms + controller.looks.alarms)
        return Status(name, *counted, *bounded(controller.last), controller.target)

    def see(self, sampled: Sequence[Sampled]) -> list[Decision]:
        """Compute what lookups see of sampled requests and keep it; compare those that show and return the decisions.

        Only those that left early are run through the network; for the others the frontend has sent its output. If the
        network is not the base model, all are run through both.
        """
        decisions = []
        known = [bool(one.end) and not self.coarse for _, one in sampled]
        early, ended = (
            [one for one, its in zip(sampled, known, strict=True) if its == is_known] for is_known in (False, True)
        )
        if early:
            rows = self._rows(early)
            found = self.look(rows)
            decisions += self._keep(early, rows, found.features, found.answers, found.seen.end)
        if ended:
            rows = self._rows(ended)
            with torch.inference_mode():
                features = features_of(self._program, rows, list(self._lookups.values()))
            answers = torch.frombuffer(bytearray(b"".join(one.end for _, one in ended)), dtype=torch.float32)
            decisions += self._keep(ended, rows, features, answers.view(len(ended), -1))
        return decisions

    def look(self, samples: Samples) -> Observed:
        """Return what lookups and base model answer to rows, whose inputs are a tuple; nothing is kept."""
        with torch.inference_mode():
            return observe(self._program, samples, list(self._lookups.values()), base=self._base)

    def built_lookups(self) -> dict[str, tuple[Head, float]]:
        """Return head and threshold of each lookup by name, as `build` made them; infinity for one not in use."""
        return {name: (head, self._thresholds.get(name, np.inf)) for name, head in self._heads.items()}

    def moved(self, last: int = SINCE_MOVED) -> None:
        """Other classes come: the `last` samples and later ones show more than earlier ones."""
        recent = self.shown.recent()
        self._since = float(recent.times[-last:][0]) if recent is not None else time.monotonic()

    def alarmed(self, last: int = SINCE_ALARM) -> None:
        """All samples but the `last` are in doubt, until many were compared; what `build` kept shows nothing any more.

        Earlier samples show a version only together with new ones: if the alarm was chance, or due to one scene of a
        camera, they are still valid, and without them it takes hundreds of requests until anything is shown.
        """
        self.moved(last)
        self.trusted, self._doubt = False, True
        self._learned = self._heads
        self._familiar = None

    def lesson(self, asked: Retrain) -> Callable[[], Version | None]:
        """Return a call that makes and publishes a version for the classes that come now; None if none can be shown.

        Everything it needs that may change meanwhile is read before it begins.
        """
        if asked.moved:
            self.moved()
        if asked.alarmed:
            self.alarmed()
        controller = self.controller
        self._doubt = self._doubt and not controller.established
        return partial(
            self._learn,
            controller.shares(),
            asked.reason,
            self.shown.recent(),
            self.taught.recent(),
            heard=controller.heard,
            known=controller.known(),
            doubt=self._doubt,
            since=self._since,
        )

    def learned(self, version: Version | None, now: float) -> list[Decision]:
        """A lesson has ended at `now` (seconds); with a version if one could be shown."""
        return self.controller.learned(version, now, trusted=self.trusted)

    def _learn(
        self,
        mix: dict[int, float],
        reason: str,
        shown: Recent | None,
        taught: Recent | None,
        *,
        known: Sequence[str],
        heard: int,
        doubt: bool,
        since: float,
    ) -> Version | None:
        """Make a version for these shares of classes, taken from `heard` answers.

        While what `build` kept represents the traffic, its choice of lookups does too, and their heads are shifted to
        these shares. Otherwise all lookups at hand are tried, and learn; each lesson starts from the last.
        """
        trusted = self.trusted
        if shown is not None:
            self._familiar = Familiar.of(shown.looks, shown.rows.classes, classes=self.spec.outputs[0].shape[0])
            self.trusted = trusted = trusted and self._kept.speak_for(shown.rows)
        self._lesson += 1
        heads = {name: self._heads[name] for name in self._thresholds} if trusted else self._learned
        found = retrain(
            heads,
            material(self._held_out, self._lessons, taught, shown, trusted=trusted, since=since, doubt=doubt),
            self._expected(mix, heard, self._held_out if trusted or shown is None else shown.rows),
            self._costs_of(heads),
            promise=self._promise,
            seed=self._lesson,
            prior=self._prior if trusted else None,
            levels=self._fidelities,
        )
        if found is None:
            return None
        made, version = found
        if not trusted:
            self._learned = made
        version = replace(version, made=time.time(), reason=reason, confidence=self._promise.lasting, mix=mix)
        return self.versions.publish(version, {lookup: made[lookup] for lookup in version.thresholds}, known=known)

    def _expected(self, mix: Mapping[int, float], heard: int, before: Rows) -> dict[int, float]:
        """Return the shares of classes to be ready for: the current ones, and a little of those that came `before`.

        A hundred answers of one class do not mean that no other comes, and heads taught for that class alone are sure
        to take all others for it.
        """
        shares = torch.bincount(before.classes) / len(before.classes)
        little = UNSEEN / (heard + UNSEEN)
        others = {answer: share * little for answer, share in enumerate(shares.tolist()) if share and answer not in mix}
        known = 1.0 - sum(others.values())
        return others | {answer: share * known for answer, share in mix.items()}

    def version(self, name: str) -> Version | None:
        """Return what a version does; None for full depth."""
        if name == BUILT:
            return self._built()
        if name == FULL_DEPTH:
            return None
        version = self.versions.version(name)
        if self._levels and not version.levels:  # made without a floor
            target = VersionLevel(self._promise.fidelity, version.lower, version.thresholds, version.wrong)
            return replace(version, levels=(target,))
        return version

    @property
    def _heads(self) -> dict[str, Head]:
        return {name: function.head for name, (_, function) in self._lookups.items()}

    def _keep(
        self,
        sampled: Sequence[Sampled],
        rows: Samples,
        features: tuple[Tensor, ...],
        answers: Tensor,
        end: NDArray[np.bool_] | None = None,
    ) -> list[Decision]:
        seen, classes, now = looks(rows), answers.argmax(dim=1), time.monotonic()
        lengths = [None] * len(sampled) if rows.lengths is None else rows.lengths.tolist()
        strange = self._familiar.strange(seen, classes).tolist() if self._familiar else [False] * len(seen)
        usable = seen.isfinite().all(dim=1) & ~answers.isnan().any(dim=1)
        for part in features:
            usable &= part.isfinite().all(dim=1)
        would = self._would(features, answers, rows.lengths, end)
        decisions = []
        for place, ((at, one), base) in enumerate(zip(sampled, classes.tolist(), strict=True)):
            if one.draw is None or not usable[place]:
                continue  # a client's NaN would spoil every later lesson, and has no class to compare
            of_lookups = {name: part[place].bfloat16() for name, part in zip(self._lookups, features, strict=True)}
            kept, look = answers[place].bfloat16(), seen[place].clone()
            own = None if end is None else bool(end[place])
            sample = Sample(now, of_lookups, kept, base, look, one.draw.weight, lengths[place], own)
            (self.shown if one.draw.shows else self.taught).add(sample)
            if one.draw.shows:
                self.sampled += 1
                same, used = one.answer == base, name_of(one.version)
                if isinstance(self.controller, Levels):
                    self._last.append(same)
                    level = self._promised.index(one.promised) if one.promised in self._promised else None
                    each = of_each_level([bool(right[place]) for right in would], level, same, overload=self._overload)
                    decisions += self.controller.compared_each(each, at=at, strange=strange[place], used=used)
                else:
                    decisions += self.controller.compared(same, at=at, strange=strange[place], used=used)
        return decisions

    def _would(
        self, features: tuple[Tensor, ...], answers: Tensor, lengths: Tensor | None, end: NDArray[np.bool_] | None
    ) -> list[NDArray[np.bool_]]:
        """Return by level which rows it would answer like the base model, `(N,) bool`, with the wanted version."""
        if not self._levels:
            return []
        heads, of_levels = self._used()
        read = [part.float() for part in features]
        seen = replace(apply_heads([*heads.values()], read, answers, lengths=lengths).seen, end=end)
        costs, found = self._costs, []
        for thresholds in of_levels:
            asked = np.array([thresholds.get(name, np.inf) for name in self._lookups])
            found.append(~send(asked, seen, costs).wrong)
        return found

    def _used(self) -> tuple[Mapping[str, Head], Sequence[Mapping[str, float]]]:
        """Return the heads of the wanted version, and its thresholds by level below the whole network.

        A version that can no longer be read counts as the whole network: the engine continues with what it has.
        """
        wanted = self.controller.wanted
        if wanted != self._in_use[0]:
            heads, own = self._heads, dict[float, dict[str, float]]()
            try:
                if wanted == BUILT:
                    own = {level.target: level.thresholds for level in self._levels}
                elif wanted != FULL_DEPTH:
                    heads = heads | {name: head for name, (head, _) in self.versions.lookups(wanted).items()}
                    own = self.versions.levels(wanted, self._promise.fidelity)
            except (NotFound, RepositoryError, OSError) as error:
                logger.warning("%s: version %s cannot be watched by level: %s", self.spec.name, wanted, error)
            promises = Promises((self._most, *self._fidelities))
            self._in_use = wanted, heads, promises.of_version(own)[1:]
        return self._in_use[1:]

    def _built(self) -> Version:
        seen, classes = seen_of(self._heads, self._held_out), self.spec.outputs[0].shape[0]
        thresholds = np.array([threshold for _, threshold in self.built_lookups().values()])
        tables = partial(by_class, seen=seen, classes=self._held_out.classes, costs=self._costs, count=classes)
        levels = [
            VersionLevel(
                level.target,
                level.lower,
                level.thresholds,
                tables(np.array([level.thresholds.get(name, np.inf) for name in self._lookups]))[0],
            )
            for level in self._levels
        ]
        return Version(BUILT, *tables(thresholds), current=len(self._held_out.classes), levels=tuple(levels))

    def _costs_of(self, names: Iterable[str]) -> Costs:
        """Return seconds at batch 1 with these lookups, in their order.

        If rows differ in length, they are means over recent rows, or, before any came, over those that `build` kept.
        """
        lookups, grids = [self._at_hand[name] for name in names], self._program.costs.stages
        recent = self.shown.recent()
        lengths = (self._held_out if recent is None else recent.rows).lengths
        return Costs.of(
            [stage.at(1) for stage in grids] if lengths is None else over_lengths(grids, lengths.numpy()),
            [(one.stage, one.seconds.at(1), one.slower) for one in lookups],
            aside=self._aside,
            sure=tuple(place for place, one in enumerate(lookups) if self._heads[one.name].sure),
            grids=grids if lengths is not None else (),
        )

    def _rows(self, sampled: Sequence[Sampled]) -> Samples:
        """Return the inputs of sampled requests, as the frontend has sent them."""
        columns: list[list[Tensor]] = [[] for _ in self.spec.inputs]
        for _, one in sampled:
            start, row = 0, one.row
            sizes = {dim.name: size for dim, size in zip(self.spec.dims, one.sizes, strict=True)}
            for tensor, column in zip(self.spec.inputs, columns, strict=True):
                shape = tensor.shape_of(sizes)
                end = start + prod(shape) * ITEM_BYTES[tensor.dtype]
                numbers = torch.frombuffer(bytearray(row[start:end]), dtype=getattr(torch, tensor.dtype))
                column.append(numbers.view(shape))
                start = end
        inputs = tuple(
            column if tensor.sizes else torch.stack(column)
            for tensor, column in zip(self.spec.inputs, columns, strict=True)
        )
        lengths = torch.tensor([prod(one.sizes) for _, one in sampled]) if self.spec.dims else None
        return Samples(inputs, lengths=lengths)
