"""Decides which version of a model's learned caches is in use, and when to make a new one. Pure: takes no action.

A version is shown for the mix of classes that it was made for. Its errors are known by class, so its errors on the
classes that come now are known as soon as these come; a version with too many is left.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

MEMORY = 100  # answers: few enough that a change shows at once, enough that a share of a third stands out
LONG_MEMORY = 2_000  # answers
LOOK_EVERY = 10  # answers
CAUTION = 0.9  # share of the errors allowed below which a version must be expected to stay before it is used again
REMEMBERED = 20  # versions
COMPARED = 500  # the last comparisons, of which the reported fidelity is the mean
# Changes within `LONG_MEMORY` answers, from which the mix of all of those counts: before a camera classes change every
# few dozen frames, and each change called for a version that was out of date when it came (a clip of bottles gained
# 1.5 times with this, 0.96 without).
RESTLESS = 3
MOVED = 0.25  # of all answers, by which the share of one class must change to call for another version
FIRST_LESSON, GROWTH = 100, 1.5  # answers after a change until the first retraining, then times as many each,
MOST_APART = 2_000  # but no more than this between two
BUILT, FULL_DEPTH = "built", "none"  # the version that `build` made; the one without lookups
NUMBERS = {BUILT: 0, FULL_DEPTH: -1}
SHOWN = "it was shown on the newest samples"
QUICKER = "it is faster than what could be shown on the newest samples"
UNFAMILIAR = "it was shown on what `build` kept, which looks different"
FELL, CHANGED = "fidelity fell under its target", "inputs came to look different"
SHIFTED = "more inputs than usual look strange"

PATIENCE = 4_000.0  # samples between two false alarms of a watch
TIMES_WORSE = (1.5, 2.5, 5.0, 10.0)  # how much worse than allowed each bet assumes it to be
MOST_WORSE = 0.7  # the largest share that a bet may assume to differ
# Share of the samples that may look strange. If nothing has changed, 0.05 to 0.09 do; but before a camera those that
# do come together, while something passes, and with 0.15 here that was an alarm each time.
MOST_STRANGE = 0.5
# Successive frames of a camera are wrong together. An error so soon after another says nothing new, once there are
# enough comparisons: before that, what looked right may be entirely wrong, and every answer counts. (Without this a
# scene of errors was an alarm, after which the network ran whole for 500 to 600 frames.)
ERRORS_APART, ESTABLISHED = 20, 800  # answers; comparisons since the last alarm
NEWEST_GAP = 1 / 50  # weight of the newest in the mean number of answers between two comparisons
LOOKS_APART = 6  # answers between two looks that count: what passes a camera is there for a few dozen frames
# Share that may look strange before another version is called for, with exits on meanwhile. This detects 20 of 20
# pictures that become brighter by 1.5 standard deviations, where alarms detect 17. Looks further apart allow a smaller
# share: 0.1 at 6 answers was exceeded up to three times in 20,000 frames of a camera, at 15 not once.
USUALLY_STRANGE, SHIFT_APART = 0.1, 15


@dataclass(frozen=True, slots=True)
class VersionLevel:
    """A level of the operating curve in one version: what it promises, what was shown, and its thresholds.

    For each class c of the base model's answers, `wrong[c]` is the share answered differently.
    """

    fidelity: float
    lower: float
    thresholds: dict[str, float]
    wrong: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the learned caches, as `versions` keeps it: what it does, and what was shown about it.

    For each class c of the base model's answers, `wrong[c]` is the share answered differently, `seconds[c]` the mean at
    batch 1; `mix` are the shares of classes that it was made for. `current` is how many samples since the traffic
    changed it rests on (for `built`, how many it was shown on).

    `made` is in seconds since the epoch, `base` the sha256 of the caches it belongs to; `thresholds` are by the name of
    a lookup. `lower` bounds its fidelity with `confidence`, on `rows` samples. `levels` are those of the operating
    curve that were shown, the highest first, all together with the confidence; empty if it was made without a floor.
    """

    name: str = ""
    wrong: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()
    mix: dict[int, float] = field(default_factory=dict)
    current: int = 0
    format: int = 0
    made: float = 0.0
    base: str = ""
    reason: str = ""
    thresholds: dict[str, float] = field(default_factory=dict)
    fidelity: float = 0.0
    lower: float = 0.0
    confidence: float = 0.0
    rows: int = 0
    levels: tuple[VersionLevel, ...] = ()


@dataclass(frozen=True, slots=True)
class Use:
    """The engine is to use this version from now on."""

    version: str
    reason: str


@dataclass(frozen=True, slots=True)
class Retrain:
    """Make a new version for the current traffic.

    `moved`: other classes or inputs come than before. `alarmed`: what was sampled before is in doubt.
    """

    reason: str
    moved: bool = False
    alarmed: bool = False


Decision = Use | Retrain


class Mix:
    """The classes of the last `memory` answers."""

    def __init__(self, memory: int = MEMORY) -> None:
        self._last: deque[int] = deque(maxlen=memory)
        self._counts: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._last)

    def add(self, answer: int) -> None:
        """Take in one answer; the oldest is forgotten."""
        if len(self._last) == self._last.maxlen:
            oldest = self._last[0]
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        self._last.append(answer)
        self._counts[answer] += 1

    def shares(self) -> dict[int, float]:
        """Return the share of each class that was answered."""
        return {answer: count / len(self._last) for answer, count in self._counts.items()}

    def expect(self, values: Sequence[float]) -> float:
        """Return the mean of a figure given for each class, under the current shares of classes."""
        return sum(count * values[answer] for answer, count in self._counts.items()) / max(1, len(self._last))

    def distance(self, shares: Mapping[int, float]) -> float:
        """Return the largest difference of a class's share from `shares`; 0 before there are enough answers."""
        if len(self._last) < (self._last.maxlen or 0) // 2:
            return 0.0
        now = self.shares()
        return max(abs(now.get(answer, 0.0) - shares.get(answer, 0.0)) for answer in {*now, *shares})


class FidelityWatch:
    """Watches that at most a share `1 - target` of answers differs from the base model's; an alarm if more do.

    It is a Shiryaev-Roberts e-detector (Shin, Ramdas and Rinaldo 2023, section 4): bets that more than the allowed
    share differ, opened anew with every sample, so a change is found whenever it comes. While the fidelity is at its
    target or above, alarms are at least `PATIENCE` samples apart in expectation, whatever the traffic. If it is one
    `among` several over the same samples, the first alarm of any of them comes no sooner: their total gain grows by
    their number with each sample, in expectation, so each needs that many times more for an alarm.
    """

    def __init__(self, target: float, *, among: int = 1) -> None:
        self._allowed = min(max(1.0 - target, 1e-4), 0.5)
        self._patience = PATIENCE * among
        self._wealth = [0.0] * len(TIMES_WORSE)
        self._erred = -inf  # the last answer that differed and counted
        self.alarms = 0
        self.thin(0.0)

    def thin(self, left_out: float) -> None:
        """From now on, after each differing sample that is added, differing ones among the next `left_out` are not.

        So a smaller share of what is added may differ: of independent samples that differ with the allowed probability
        a, a share a / (1 + a (1 - a) left_out). Without this a fall was never noticed once errors were left out.
        """
        allowed = self._allowed / (1.0 + self._allowed * (1.0 - self._allowed) * left_out)
        supposed = [min(MOST_WORSE, times * allowed) for times in TIMES_WORSE]
        self._if_differs = [worse / allowed for worse in supposed]
        self._if_same = [(1.0 - worse) / (1.0 - allowed) for worse in supposed]

    def add(self, same: bool) -> bool:
        """Take in one comparison; True is an alarm, after which the watch starts over."""
        pay = self._if_same if same else self._if_differs
        self._wealth = [(wealth + 1.0) * factor for wealth, factor in zip(self._wealth, pay, strict=True)]
        if sum(self._wealth) / len(self._wealth) < self._patience:
            return False
        self.alarms += 1
        self.restart()
        return True

    def compared(self, same: bool, *, at: int, gap: float, established: bool) -> bool:
        """Take in the comparison of answer `at`; `gap` answers lie between two comparisons; see `ERRORS_APART`."""
        self.thin(ERRORS_APART / max(1.0, gap) if established else 0.0)
        if not same and established and at - self._erred < ERRORS_APART:
            return False
        self._erred = self._erred if same else at
        return self.add(same)

    def restart(self) -> None:
        """Forget what was seen: answers are given differently from now on."""
        self._wealth = [0.0] * len(self._wealth)


class Controller:
    """Decides for one model. Feed it every answer and every comparison, and carry out what it returns, in order."""

    def __init__(
        self,
        target: float,
        full_depth: Version,
        versions: Mapping[str, Version],
        wanted: str,
        *,
        stopped: bool = False,
        among: int = 1,
    ) -> None:
        self.target = target
        self.wanted = wanted  # answers say themselves which version gave them
        self.mix = Mix()
        self._long_mix = Mix(LONG_MEMORY)  # since the traffic changed: what versions are made for
        self._all_mix = Mix(LONG_MEMORY)
        self.watch = FidelityWatch(target, among=among)
        self.looks = FidelityWatch(1.0 - MOST_STRANGE)
        self.shift = FidelityWatch(1.0 - USUALLY_STRANGE)
        self.last: deque[bool] = deque(maxlen=COMPARED)  # whether the answers compared since the last alarm were equal
        self.total = 0  # answers in all
        self._allowed = 1.0 - target
        self._versions = {full_depth.name: full_depth, **versions}
        self._stopped = stopped  # by an operator
        self._trusted = True
        self._answers = 0  # since the traffic changed
        self._moves: deque[int] = deque(maxlen=RESTLESS)  # answers at which the mix had changed
        # Answers, counted like `total`: of the last look, the last look for a shift, the last shift, the last alarm and
        # the last comparison.
        self._looked = self._shift_seen = self._shifted = -inf
        self._alarmed, self._compared_at = -1, 0
        self._compared = 0  # since the last alarm, with exits
        self._gap = 1.0  # mean answers between two comparisons
        self._next_lesson = FIRST_LESSON
        self._learning = False
        self._lesson_mix: Mapping[int, float] = {}
        self._last_lesson: float | None = None

    @property
    def asked(self) -> str:
        """What the engine is to use."""
        return self.wanted

    def answered(self, answer: int) -> list[Decision]:
        """Take in the class of one answer."""
        for mix in (self.mix, self._long_mix, self._all_mix):
            mix.add(answer)
        self._answers += 1
        self.total += 1
        decisions: list[Decision] = []
        if self._answers % LOOK_EVERY == 0 and len(self.mix) >= LOOK_EVERY:
            decisions += self._look()
        if self._answers >= self._next_lesson and not self._learning:
            self._next_lesson = min(round(GROWTH * self._next_lesson), self._answers + MOST_APART)
            decisions.append(self._learn("there is more to learn from"))
        return decisions

    def compared(self, same: bool, *, at: int, strange: bool = False, used: str = "") -> list[Decision]:
        """Take in whether answer `at`, counted from 1, was the base model's, and whether its input looked `strange`.

        The engine reports that the version `used` gave it; empty if unknown. Whatever is wanted, answers that differ
        from the base model's mean that there are exits, and too many of them are an alarm. Answers given before the
        last alarm say nothing about what was done then.

        Versions that caused an alarm are not used again. If more inputs look strange than usual, but too few for an
        alarm, a new version is called for.
        """
        if at <= self._alarmed:
            return []
        reasons: list[str] = []
        exits = not same or (used or self.wanted) != FULL_DEPTH
        self._compared += exits
        self.last.append(same)
        self._gap += NEWEST_GAP * (at - self._compared_at - self._gap) if self._compared_at > 0 else 0.0
        self._compared_at = at
        if self.watch.compared(same, at=at, gap=self._gap, established=self.established):
            reasons.append(FELL)
        if at - self._looked >= LOOKS_APART:
            self._looked = at
            reasons += [CHANGED] if self.looks.add(not strange) else []
        if not exits:
            return []
        return self._stop(reasons[0]) if reasons else self._check_shift(strange, at)

    def waited(self, now: float, interval: float) -> list[Decision]:
        """Set the time to `now` (seconds); a retraining is due when `interval` has passed since the last."""
        if self._last_lesson is None or self._learning or not self._answers:
            self._last_lesson = now
        if now - self._last_lesson < interval:
            return []
        self._last_lesson = now
        return [self._learn("its interval has passed")]

    def learned(self, version: Version | None, now: float, *, trusted: bool = True) -> list[Decision]:
        """A retraining has ended; with a version if one could be shown.

        Once what `build` kept is no longer `trusted`, earlier versions are left, because they were shown on it. The new
        one is used if it is faster, or was shown on more samples than the last: always keeping the one that looks
        faster would choose the one whose errors were underestimated. Nor is one used that is slower than what `build`
        made and was shown on fewer samples: while few have come only slow ones can be shown (0.62 left early within
        the first 2,000 requests of a stream, 0.79 as built). Before a camera the newest is used, which has seen most.
        """
        self._learning = False
        self._last_lesson = now
        if self._stopped:
            return []
        left: list[Decision] = []
        if self._trusted and not trusted:
            self._trusted = False
            self._forget_versions()
            left = [self._use(FULL_DEPTH, UNFAMILIAR)]
        if version is None:
            return left
        if trusted:
            used, built = self._versions[self.wanted], self._versions.get(BUILT)
            if self._good(used) and version.current < used.current and not self._is_faster(version, used):
                return []
            if built and self._good(built) and version.current < built.current and not self._is_faster(version, built):
                if self.wanted == BUILT:
                    return []
                self._versions[BUILT] = self._versions.pop(BUILT)  # as the newest of all that may be used
                return [self._use(BUILT, QUICKER)]
        self._versions[version.name] = version
        for old in [name for name in self._versions if name not in {FULL_DEPTH, BUILT, self.wanted}][:-REMEMBERED]:
            del self._versions[old]
        return [self._use(version.name, SHOWN)]

    def chosen(self, name: str, version: Version | None, *, stopped: bool = False) -> list[Decision]:
        """An operator, or the leader, has chosen this version (`version`: what it does; None for the whole network).

        All others are forgotten; later ones may replace it, unless an operator has `stopped` exits: that stays until
        something else is chosen.
        """
        self._forget_versions()
        self._stopped = stopped
        if version is not None:
            self._versions[name] = version
        return [self._use(name, "it was asked for")]

    def unusable(self, name: str) -> list[Decision]:
        """The engine cannot use this version: it is forgotten, and replaced by another if it was wanted."""
        if name != FULL_DEPTH:
            self._versions.pop(name, None)
        return [] if name != self.wanted else [self._use(self._newest().name, f"version {name} cannot be used")]

    def shares(self) -> dict[int, float]:
        """Return the shares of classes to make a version for."""
        return self._lasting.shares()

    @property
    def heard(self) -> int:
        """How many answers `shares` are of."""
        return len(self._lasting)

    @property
    def established(self) -> bool:
        """Whether much has been compared since the last alarm, with exits on."""
        return self._compared >= ESTABLISHED

    @property
    def restless(self) -> bool:
        """Whether the mix changes so often that only a long-term one means anything, as before a camera."""
        return len(self._moves) == RESTLESS and self._moves[0] > self.total - LONG_MEMORY

    def known(self) -> tuple[str, ...]:
        """Return the names of all versions that may be used."""
        return tuple(self._versions)

    @property
    def _lasting(self) -> Mix:
        """The mix to make a version for: since the traffic changed, if there are enough."""
        if self.restless:
            return self._all_mix
        return self._long_mix if len(self._long_mix) >= FIRST_LESSON else self.mix

    @property
    def _present(self) -> Mix:
        """The mix that a version must be good for."""
        return self._all_mix if self.restless else self.mix

    def _look(self) -> list[Decision]:
        """Stay with a version while it is good for the current classes, else go back to the newest that is.

        Not to the fastest, for the reason given in `learned`.
        """
        decisions: list[Decision] = []
        newest = self._newest()
        if newest.name != self.wanted:
            decisions.append(self._use(newest.name, "it is the newest that is good for the classes that come"))
        if not self._learning and self._lesson_mix and self._present.distance(self._lesson_mix) > MOVED:
            self._moves.append(self.total)
            self._changed(round(GROWTH * FIRST_LESSON))
            decisions.append(self._learn("the mix of classes has changed", moved=not self.restless))
        return decisions

    def _stop(self, reason: str) -> list[Decision]:
        """Stop exits after an alarm, until a new version is shown."""
        self._forget_versions()
        self._alarmed = self.total
        self._compared = 0
        self.last.clear()
        self.shift.restart()
        self._changed(FIRST_LESSON)
        use = self._use(FULL_DEPTH, f"{reason}: exits are stopped until a new version is shown")
        return [use, self._learn(reason, alarmed=True)]

    def _check_shift(self, strange: bool, at: int) -> list[Decision]:
        """Call for a new version if more looks strange than usual, once in `LONG_MEMORY` answers at most.

        Versions were shown on inputs that looked different, so a slower one may replace the one in use.
        """
        if self._learning or at - self._shift_seen < SHIFT_APART or at - self._shifted < LONG_MEMORY:
            return []
        self._shift_seen = at
        if not self.shift.add(not strange):
            return []
        self._shifted = at
        self._versions = {name: replace(version, current=0) for name, version in self._versions.items()}
        self._answers, self._next_lesson = 0, round(GROWTH * FIRST_LESSON)
        return [self._learn(SHIFTED, moved=True)]

    def _newest(self) -> Version:
        """Return the newest version that is good; the whole network always is."""
        return next(one for one in reversed(self._versions.values()) if self._good(one))

    def _good(self, version: Version) -> bool:
        """Return whether a version errs seldom enough; to come back it must do better than to stay.

        It is shown for the mix that it was made for: while that comes, a few answers of a hard class do not count.
        """
        return self._is_good(version, version.wrong, self._allowed, stays=version.name == self.wanted)

    def _is_good(self, version: Version, wrong: Sequence[float], allowed: float, *, stays: bool) -> bool:
        """Return whether at most `allowed` differs, by the share of each class that a version gets `wrong`."""
        if stays and version.mix and self._present.distance(version.mix) <= MOVED:
            return True
        return self._present.expect(wrong) <= (allowed if stays else CAUTION * allowed)

    def _is_faster(self, one: Version, other: Version) -> bool:
        return self._long_mix.expect(one.seconds) < self._long_mix.expect(other.seconds)

    def _forget_versions(self) -> None:
        self._versions = {FULL_DEPTH: self._versions[FULL_DEPTH]}

    def _use(self, name: str, reason: str) -> Use:
        """Change versions; the watch keeps what it has seen, or new versions would blind it to a slow fall."""
        self.wanted = name
        return Use(name, reason)

    def _learn(self, reason: str, *, moved: bool = False, alarmed: bool = False) -> Retrain:
        self._learning = True
        self._lesson_mix = self.shares()
        return Retrain(reason, moved, alarmed)

    def _changed(self, next_lesson: int) -> None:
        self._answers, self._next_lesson = 0, next_lesson
        self._long_mix = Mix(LONG_MEMORY)


def number_of(version: str) -> int:
    """Return a version's name as a number, which takes less room in each answer."""
    name, _ = down_to(version)
    return NUMBERS[name] if name in NUMBERS else int(name)


def down_to(version: str) -> tuple[str, float]:
    """Split one such as `built@0.97` into the name and the least fidelity that an answer may be promised: 0 for all."""
    name, _, least = version.partition("@")
    return name, float(least or 0.0)


def name_of(number: int) -> str:
    """Return the name of the version of this number."""
    return next((name for name, one in NUMBERS.items() if one == number), f"{number:06d}")
