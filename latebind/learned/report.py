"""The report of a build of learned caches, as rows to print. It only formats: nothing is measured here."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from latebind.learned.metadata import Accuracy, StoredCaches, StoredLevel, StoredLookup
from latebind.learned.promise import over
from latebind.repository.directory import ModelDirectory

QUARTERS = 4  # of the lengths of samples, in reports


@dataclass(frozen=True, slots=True)
class TriedLookup:
    """A trained lookup by itself: its cost, and how often its answer is right if it answers every request.

    `fidelity` is that share, the least of all worlds. `hit_rate` is the share of lookups that hit at the target, and
    `accuracy` the share that give no wrong answer then (GATI, section 3.1), both on the samples that choose thresholds.
    """

    where: str
    stage: int
    kind: str
    fidelity: float
    seconds: float
    bytes: int
    hit_rate: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class OfLength:
    """Results for the held-out `samples` of some lengths: the share that `left` early, and the fidelity."""

    lengths: str
    samples: int
    left: float
    fidelity: float
    seconds_without: float
    seconds_with: float


def by_length(lengths: NDArray[np.int64], parts: int) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield about `parts` ranges of length, shortest first: label and mask. Equal lengths are in one range."""
    edges = np.unique(lengths)
    if len(edges) > parts:
        edges = np.unique(np.quantile(lengths, np.linspace(0, 1, parts + 1)[1:], method="inverted_cdf"))
    of = np.searchsorted(edges, lengths)
    for number in range(len(edges)):
        here = of == number
        least, most = int(lengths[here].min()), int(lengths[here].max())
        yield (f"{least} to {most}" if least < most else str(most)), here


@dataclass(frozen=True, slots=True)
class CacheReport:
    """The result of a build or a calibration. Seconds are at batch 1, the mean over lengths if samples differ in it.

    `caches` is what was written into the `directory`. `warning` is empty, or says why there are fewer exits than asked
    for. `notes` say which networks were reused, and which learned from fewer rows than given. `right` is the accuracy
    of the network itself, if the samples had labels. `by_length` has quarters of the samples if their lengths differ;
    for `precision` see `Outcome.precision`.
    """

    directory: ModelDirectory
    caches: StoredCaches
    tried: tuple[TriedLookup, ...]
    seconds_without: float
    seconds_with: float
    warning: str = ""
    notes: tuple[str, ...] = ()
    right: Accuracy | None = None
    by_length: tuple[OfLength, ...] = ()
    precision: str = ""

    def variants(self) -> list[dict[str, object]]:
        """Return all explored lookups as rows of a table (GATI, section 4.1), each by itself, at the target."""
        used = {(lookup.stage, lookup.kind) for lookup in self.caches.lookups}
        return [
            {
                "boundary": one.where,
                "network": one.kind,
                "hit rate": round(one.hit_rate, 4),
                "accuracy": round(one.accuracy, 4),
                "alone equal": round(one.fidelity, 4),
                "lookup us": round(one.seconds * 1e6, 1),
                "bytes": one.bytes,
                "used": "yes" if (one.stage, one.kind) in used else "no",
            }
            for one in self.tried
        ]

    def rows(self) -> list[tuple[str, str]]:
        """Return label and text of each line of the report."""
        caches = self.caches
        chosen = {(lookup.stage, lookup.kind): lookup for lookup in caches.lookups}
        lines = [(one.where, _line(one, chosen.get((one.stage, one.kind)))) for one in self.tried]
        lines.append(
            (
                "expected latency",
                f"{self.seconds_with * 1e3:.2f} ms instead of {self.seconds_without * 1e3:.2f} ms, "
                f"{self.seconds_without / self.seconds_with:.2f} times less",
            )
        )
        if caches.lookups:
            lines.append(("lookups", "aside, while the network goes on" if caches.aside else "in line"))
            lines.append(
                (
                    "fidelity",
                    f"{caches.fidelity:.4f} on {caches.calibrated_on} held-out samples, with {caches.confidence:.0%} "
                    f"confidence at least {caches.lower:.4f}{over(caches.answers)} (target {caches.target:g})",
                )
            )
        lines += [(f"at {level.target:g}", _of_level(level, self.seconds_without)) for level in caches.levels]
        lines += [(f"length {one.lengths}", _of_length(one)) for one in self.by_length]
        if self.right is not None:
            lines.append(
                ("accuracy", f"{self.right.share:.4f} on {self.right.samples} held-out samples, without lookups")
            )
        if self.precision:
            lines.append(("precision", self.precision))
        lines += [("explored", note) for note in self.notes]
        if self.warning:
            lines.append(("warning", self.warning))
        return lines


def _of_level(level: StoredLevel, seconds: float) -> str:
    return (
        f"{level.seconds * 1e3:.2f} ms, {seconds / level.seconds:.2f} times less; {sum(level.hit_rates.values()):.1%} "
        f"leave early, fidelity {level.fidelity:.4f}, at least {level.lower:.4f} at all levels together (serve --floor)"
    )


def _of_length(one: OfLength) -> str:
    return (
        f"{one.seconds_with * 1e3:.2f} ms instead of {one.seconds_without * 1e3:.2f} ms, "
        f"{one.seconds_without / one.seconds_with:.2f} times less; {one.left:.1%} leave early, fidelity "
        f"{one.fidelity:.4f} on {one.samples} samples"
    )


def _line(tried: TriedLookup, chosen: StoredLookup | None) -> str:
    cost = f"{tried.kind}, {tried.seconds * 1e6:.0f} us, {tried.bytes / 1e6:.2f} MB, alone {tried.fidelity:.3f} equal"
    if chosen is None:
        return f"{cost}; not used"
    return f"{cost}; {chosen.hit_rate:.1%} leave here, {chosen.fidelity:.4f} of them equal"
