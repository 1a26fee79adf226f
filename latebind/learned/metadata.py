"""A model directory's description of its learned caches, `caches/caches.json`, and the accuracy of its network.

Read without torch. Queries choose among models by `accuracy.json`: a directory without it holds a model that was built
without labels. `nearness.json` is what `vectors.certify` found for an embedding in fewer bits.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from latebind.domain.costs import MOST_SECONDS, Curve, Level, ModelCosts, in_turn
from latebind.domain.errors import ConfigError, RepositoryError
from latebind.domain.model import ModelSpec
from latebind.program.metadata import MOST_WEIGHT_BYTES, read_model
from latebind.repository.directory import CACHES, ModelDirectory, json_bytes

FORMAT = 4
LIST = f"{CACHES}/caches.json"
ACCURACY = "accuracy.json"
NEARNESS = "nearness.json"
ROUNDING = 2  # the way of rounding to fewer bits (`program.openvino`): what was shown of another says nothing about it


@dataclass(frozen=True, slots=True)
class SpareLookup:
    """A learned cache after `stage` that is not in use.

    `kind` says what its network is. `seconds` is its latency over batch sizes with the model's backend, and `slower` by
    how many seconds it slows the network down if lookups run aside.
    """

    stage: int
    kind: str
    bytes: int
    seconds: Curve
    slower: float = field(default=0.0, kw_only=True)

    @property
    def name(self) -> str:
        """Its name among the learned caches of its model."""
        return lookup_name(self.stage, self.kind)


@dataclass(frozen=True, slots=True)
class StoredLookup(SpareLookup):
    """One learned cache in use: it hits if its score is at least `threshold`.

    `hit_rate` is the share of all requests that leave here, and `fidelity` the share of those that are answered as the
    base model would, both on held-out samples.
    """

    threshold: float
    hit_rate: float
    fidelity: float


@dataclass(frozen=True, slots=True)
class StoredLevel:
    """A point of the operating curve: other thresholds for the caches in use, by name, with another `target`.

    `fidelity` was measured on held-out samples and `lower` bounds it, for all levels together with the confidence of
    the caches. `hit_rates` are the shares of requests that leave, by stage, and `seconds` the mean at batch 1.
    """

    target: float
    fidelity: float
    lower: float
    thresholds: dict[str, float]
    hit_rates: dict[int, float]
    seconds: float


@dataclass(frozen=True, slots=True)
class StoredCaches:
    """All learned caches of a model and the promise that they were calibrated for.

    `lookups` are in use, `spare` are not: a later calibration may use them, and adaptation those at a boundary in use.
    `tail` is None if the promise has none. `answers` is the number of next answers that the promise is about; None: all
    possible ones, as in earlier builds. `aside` says that all lookups run while their network goes on. `levels` are the
    operating curve, the highest first; empty in earlier builds. `whole` is the fidelity of the network's own answers,
    which holds together with that of the levels: below 1 if it computes in less than full precision.
    """

    format: int
    target: float
    confidence: float
    fidelity: float
    lower: float
    calibrated_on: int
    lookups: tuple[StoredLookup, ...]
    spare: tuple[SpareLookup, ...] = ()
    tail: float | None = None
    aside: bool = False
    answers: int | None = None
    levels: tuple[StoredLevel, ...] = ()
    whole: float = 1.0

    @property
    def shows_network(self) -> bool:
        """Whether the promise is about a network in less than full precision without lookups, as shown by samples."""
        return not self.lookups and self.lower < 1.0

    @property
    def every(self) -> tuple[SpareLookup, ...]:
        """All caches, used or spare, in the order in which a request meets them: at one boundary the fastest first."""
        return tuple(sorted((*self.lookups, *self.spare), key=lambda one: (one.stage, one.seconds.at(1))))

    @property
    def at_hand(self) -> tuple[SpareLookup, ...]:
        """The caches in use and, if they run in line, the spare ones at the same boundaries, in the same order."""
        if self.aside:
            return self.lookups
        stages = {lookup.stage for lookup in self.lookups}
        return tuple(one for one in self.every if one.stage in stages)


def read_caches(directory: ModelDirectory) -> StoredCaches | None:
    """Return the contents of `caches.json`, or None for a model without learned caches; raises `RepositoryError`."""
    if LIST not in directory.files:
        return None
    caches = directory.read_json(LIST, StoredCaches)
    path = directory.path / LIST
    if caches.format != FORMAT:
        raise RepositoryError(f"{path} has format {caches.format}, this version reads {FORMAT}: build the caches again")
    listed = (*caches.lookups, *caches.spare)
    if any(not _was_measured(one) for one in listed) or not _was_calibrated(caches):
        raise RepositoryError(f"{path} has implausible figures: build the caches again")
    last = len(read_model(directory).cuts)
    if len({one.name for one in listed}) < len(listed) or any(not 0 <= one.stage < last for one in listed):
        raise RepositoryError(
            f"{path} does not fit a model of {last + 1} stages or names a cache twice: build the caches again"
        )
    thresholds = [value for level in caches.levels for value in level.thresholds.values()]
    if not all(map(math.isfinite, [*thresholds, *(lookup.threshold for lookup in caches.lookups)])):
        raise RepositoryError(f"{path} has a threshold that is not a number: build the caches again")
    return caches


def _was_measured(one: SpareLookup) -> bool:
    """Return whether the figures of a lookup are plausible."""
    shares = (one.hit_rate, one.fidelity) if isinstance(one, StoredLookup) else ()
    return (
        0 <= one.bytes <= MOST_WEIGHT_BYTES
        and one.seconds.makes_sense
        and abs(one.slower) <= MOST_SECONDS
        and all(0.0 <= share <= 1.0 for share in shares)
    )


def _was_calibrated(caches: StoredCaches) -> bool:
    """Return whether the promise of the caches is plausible."""
    shares = (caches.target, caches.confidence, caches.fidelity, caches.lower, caches.whole)
    return (
        all(0.0 <= share <= 1.0 for share in shares)
        and sum(one.hit_rate for one in caches.lookups) <= 1.0 + 1e-6
        and caches.calibrated_on >= 0
        and (caches.tail is None or 0.0 <= caches.tail < math.inf)
        and (caches.answers is None or caches.answers >= 1)
        and _is_a_curve(caches)
    )


def _is_a_curve(caches: StoredCaches) -> bool:
    """Return whether the levels of the caches are plausible: of falling fidelity, of lookups in use, with shares."""
    names, stages = {one.name for one in caches.lookups}, {one.stage for one in caches.lookups}
    targets = [level.target for level in caches.levels]
    return targets == sorted(set(targets), reverse=True) and all(
        all(0.0 <= share <= 1.0 for share in (level.target, level.fidelity, level.lower, *level.hit_rates.values()))
        and sum(level.hit_rates.values()) <= 1.0 + 1e-6
        and level.thresholds.keys() <= names
        and level.hit_rates.keys() <= stages
        and 0.0 <= level.seconds <= MOST_SECONDS
        for level in caches.levels
    )


def with_caches(
    spec: ModelSpec, costs: ModelCosts, caches: StoredCaches | None, *, floor: float = 1.0
) -> tuple[ModelSpec, ModelCosts]:
    """Return model and costs for the scheduler, with where lookups are, what they cost and how often they hit.

    With a `floor` under 1, these are the levels of the operating curve that promise no less, and the whole network.
    Raises `ConfigError` if there are none, or the caches promise less than the floor.
    """
    if caches is None:
        return spec, costs
    promised = levels_down_to(caches, floor)
    stages = sorted({lookup.stage for lookup in caches.lookups})
    behind = {stage: [one for one in caches.lookups if one.stage == stage] for stage in stages}
    rates = {stage: sum(one.hit_rate for one in found) for stage, found in behind.items()}
    left = {stage: 1.0 - sum(rates[before] for before in stages if before < stage) for stage in stages}
    curves = {stage: _asked_in_turn(found, left[stage]) for stage, found in behind.items()}
    levels = tuple(Level(level.target, level.hit_rates) for level in promised)
    if (found := overload([level.target for level in promised])) is not None:
        surer, dropped = found
        levels = (*levels, Level(promised[-1].target, promised[surer].hit_rates, dropped))
    costs = replace(costs, lookups=curves, hit_rates=rates, aside=caches.aside)
    if levels:
        target = [level.fidelity for level in levels].index(caches.target)
        costs = replace(costs, levels=levels, target=target, hit_rates=levels[target].hit_rates)
    return replace(spec, lookups=tuple(stages)), costs


def _asked_in_turn(lookups: Sequence[StoredLookup], share: float) -> Curve:
    """Return what lookups at one boundary take, which a `share` of all requests reach.

    Each gets only the requests that those before it have missed: the network in eight bits, which takes ten times as
    long as a predictor, gets few.
    """
    curves, left = list[Curve](), share
    for one in lookups:
        asked = max(0.0, left / share) if share > 0.0 else 1.0
        curves.append(Curve(one.seconds.batches, tuple(asked * seconds for seconds in one.seconds.seconds)))
        left -= one.hit_rate
    return in_turn(curves)


def levels_down_to(caches: StoredCaches, floor: float) -> tuple[StoredLevel, ...]:
    """Return the levels that promise no less than `floor`, the whole network first; none for a floor of 1.

    Raises `ConfigError` if the caches have no operating curve, or promise less than the floor themselves.
    """
    if floor >= 1.0 or not caches.lookups:
        return ()
    if floor > caches.target:
        raise ConfigError(f"a floor of {floor:g} is above the {caches.target:g} that the caches promise: give less")
    found = [level for level in caches.levels if caches.whole > level.target >= floor]
    if caches.target not in {level.target for level in found}:
        raise ConfigError(
            f"these learned caches have no operating curve down to {floor:g}: run `latebind calibrate` with "
            f"--fidelity {caches.target:g} and more data, or leave the floor out"
        )
    return (StoredLevel(caches.whole, caches.whole, caches.whole, {}, {}, 0.0), *found)


def overload(fidelities: Sequence[float]) -> tuple[int, float] | None:
    """Return how the promise of the last level is kept while requests are dropped, None if no level is stricter.

    That is the level whose thresholds keep it, and the share of started requests that may be dropped. A dropped request
    has not left, so it would not have been wrong there: if a share e of all that start is wrong and d are dropped, then
    at most e / (1 - d) of the answers are wrong.
    """
    if len(fidelities) < 3:  # the first is the whole network
        return None
    surer = len(fidelities) - 2
    return surer, 1.0 - (1.0 - fidelities[surer]) / (1.0 - fidelities[-1])


def lookup_name(stage: int, kind: str) -> str:
    """Return the name of a learned cache, such as "0-residual" or "2-conv.3.1": also that of its files."""
    return f"{stage}-{kind.rstrip(')').replace('(', '.').replace(',', '.')}"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The `share` of held-out `samples` (a number) that the network answers correctly without learned caches."""

    share: float
    samples: int

    def __str__(self) -> str:
        return f"{self.share:.4f} of {self.samples}"


def write_accuracy(directory: ModelDirectory, accuracy: Accuracy) -> ModelDirectory:
    """Write the accuracy into a model directory, replacing an existing one."""
    return directory.write_files({ACCURACY: json_bytes(accuracy)})


def read_accuracy(directory: ModelDirectory) -> Accuracy | None:
    """Return the accuracy measured when the model was built, None without labels; raises `RepositoryError`."""
    if ACCURACY not in directory.files:
        return None
    found = directory.read_json(ACCURACY, Accuracy)
    if not 0.0 <= found.share <= 1.0 or found.samples < 1:
        raise RepositoryError(f"{directory.path / ACCURACY} has {found}, which is not a share: build the model again")
    return found


def read_accuracies(directories: Iterable[ModelDirectory]) -> dict[str, float]:
    """Return the accuracies that are known, by the name of the model."""
    found = {read_model(directory).name: read_accuracy(directory) for directory in directories}
    return {name: accuracy.share for name, accuracy in found.items() if accuracy is not None}


@dataclass(frozen=True, slots=True)
class Nearness:
    """How near the vectors of a model are to those in full precision, on held-out `samples`.

    `target` was asked for as the share `within` the `cosine`, which is at least `lower` with `confidence`, for the next
    `answers` (None: all possible ones). `mean` and `least` are of the cosines. `recall` is the share of a sample's ten
    nearest neighbors that both networks agree on. Seconds are at batch 1. For `rounding` see `ROUNDING`.
    """

    cosine: float
    target: float
    within: float
    lower: float
    confidence: float
    answers: int | None
    samples: int
    mean: float
    least: float
    recall: float
    seconds: float
    seconds_full: float
    rounding: int = 1

    @property
    def kept(self) -> bool:
        """Whether the samples show what was asked for."""
        return self.lower >= self.target


def read_nearness(directory: ModelDirectory) -> Nearness | None:
    """Return what `certify` wrote, None if nothing was certified; raises `RepositoryError`."""
    if NEARNESS not in directory.files:
        return None
    found = directory.read_json(NEARNESS, Nearness)
    shares = (found.cosine, found.target, found.within, found.lower, found.confidence, found.recall)
    if not all(0.0 <= share <= 1.0 for share in shares) or found.samples < 1:
        raise RepositoryError(f"{directory.path / NEARNESS} has implausible figures: build it again")
    if found.rounding != ROUNDING:
        raise RepositoryError(
            f"{directory.path / NEARNESS} was measured with weights rounded in another way than they are now: run "
            "`latebind calibrate` with its data"
        )
    return found


def graph_file(name: str) -> str:
    """Return the name of a lookup's graph file."""
    return f"{CACHES}/{name}.json"


def weights_file(name: str) -> str:
    """Return the name of a lookup's weights file."""
    return f"{CACHES}/{name}.safetensors"


def stage_file(name: str) -> str:
    """Return where the files of a lookup's network are that OpenVINO reads (`program.stage_files`)."""
    return f"{CACHES}/{name}.stage"


def head_file(name: str) -> str:
    """Return the name of the file of a lookup's head."""
    return f"{CACHES}/{name}.head.safetensors"
