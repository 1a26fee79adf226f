"""The result of a build or calibration, stored and reported: thresholds, the curve, rows for adaptation."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from latebind.learned.activations import Observed
from latebind.learned.compose import Calibrated, Costs, Seen, send
from latebind.learned.explore import TrainedLookup
from latebind.learned.metadata import StoredLevel, StoredLookup
from latebind.learned.report import QUARTERS, OfLength, by_length
from latebind.learned.stored import LESSONS, Rows, read_rows
from latebind.repository.directory import ModelDirectory

HELD_OUT_ROWS = 10_000  # kept for adaptation at most
WIDEST_KEPT = 4_096  # most features of a lookup that can be adapted: as many as large networks end with


@dataclass(frozen=True, slots=True)
class Outcome:
    """Trained lookups in the order in which requests meet them, and what was chosen among them.

    * `found`: the thresholds to use, None for no lookup at all.
    * `worlds`: what the lookups answered on the samples that show the bound.
    * `observed`: what the lookups answered on all held-out rows, with their features.
    * `choosing`: what they answered on the samples that choose.
    * `curve`: thresholds for other fidelities, of the lookups that have one in `found`.
    * `whole`: the fidelity of the network's own answers, beside the curve.
    """

    trained: Sequence[TrainedLookup]
    costs: Costs
    found: Calibrated | None = None
    worlds: Sequence[Seen] = ()
    observed: Observed | None = None
    choosing: Seen | None = None
    curve: Sequence[tuple[float, Calibrated]] = ()
    whole: float = 1.0

    @property
    def is_coarse(self) -> bool:
        """Whether the network computes in less than full precision, and may be wrong itself."""
        return self.observed is not None and self.observed.seen.end is not None

    def precision(self, backend: str) -> str:
        """Return, in words, how often the network itself answers as in full precision; "" if it computes in that."""
        if self.observed is None or self.observed.seen.end is None:
            return ""
        return (
            f"on {backend}, in which the network itself answers {self.observed.seen.end.mean():.4f} of the held-out "
            "samples as in full precision; fidelity is to full precision, whichever answers"
        )

    def in_use(self) -> tuple[StoredLookup, ...]:
        """Return the lookups at which samples leave, with what they did to the samples that show the bound."""
        if self.found is None:
            return ()
        results = [send(self.found.thresholds, seen, self.costs) for seen in self.worlds]
        left_at = np.concatenate([result.left_at for result in results])
        wrong = np.concatenate([result.wrong for result in results])
        stored = []
        for k, one in enumerate(self.trained):
            hits = left_at == k
            if np.isfinite(self.found.thresholds[k]) and hits.any():
                stored.append(
                    StoredLookup(
                        stage=one.stage,
                        kind=one.kind,
                        threshold=float(self.found.thresholds[k]),
                        hit_rate=float(hits.mean()),
                        fidelity=1.0 - float(wrong[hits].mean()),
                        bytes=one.files.bytes,
                        seconds=one.known,
                        slower=one.slower,
                    )
                )
        return tuple(stored)

    def levels(self, used: Collection[str]) -> tuple[StoredLevel, ...]:
        """Return the operating curve of the lookups `used`, by name."""
        names, found = [one.name for one in self.trained], []
        for target, one in self.curve:
            left_at = np.concatenate([send(one.thresholds, seen, self.costs).left_at for seen in self.worlds])
            thresholds = {
                name: float(threshold)
                for name, threshold in zip(names, one.thresholds, strict=True)
                if name in used and np.isfinite(threshold)
            }
            hit_rates = dict.fromkeys({here.stage for here in self.trained if here.name in used}, 0.0)
            for k, here in enumerate(self.trained):
                if here.name in used:
                    hit_rates[here.stage] += float((left_at == k).mean())
            found.append(StoredLevel(target, one.fidelity, one.lower, thresholds, hit_rates, one.seconds))
        return tuple(found)

    def kept(self, lookups: Sequence[StoredLookup]) -> list[TrainedLookup]:
        """Return the lookups to keep: those in use, `lookups`, and one spare lookup at each boundary.

        At a boundary in use the spare one is the fastest, for adaptation. At another it is the one that is right most
        often, for a later calibration. A calibration itself keeps all of them.
        """
        if all(one.lessons is None for one in self.trained):  # a recalibration: nothing was trained now
            return list(self.trained)
        names, used = {lookup.name for lookup in lookups}, {lookup.stage for lookup in lookups}
        right = [sum(float(seen.right[k].mean()) for seen in self.worlds) for k in range(len(self.trained))]
        for stage in {one.stage for one in self.trained}:
            here = [k for k, one in enumerate(self.trained) if one.stage == stage]
            chosen = here[0] if stage in used else max(here, key=lambda k: right[k])
            names.add(self.trained[chosen].name)
        return [one for one in self.trained if one.name in names]

    def by_length(self) -> tuple[OfLength, ...]:
        """Return what the thresholds in use do to the samples that show the bound, by quarters of their lengths."""
        if self.found is None or any(seen.lengths is None for seen in self.worlds):
            return ()
        lengths = np.concatenate([seen.lengths for seen in self.worlds if seen.lengths is not None])
        none = np.full(len(self.trained), np.inf)
        without, results = (
            [send(thresholds, seen, self.costs) for seen in self.worlds] for thresholds in (none, self.found.thresholds)
        )
        before, after = (np.concatenate([each.seconds for each in sent]) for sent in (without, results))
        wrong, left_at = (
            np.concatenate(parts) for parts in zip(*((each.wrong, each.left_at) for each in results), strict=True)
        )
        return tuple(
            OfLength(
                label,
                int(here.sum()),
                float((left_at[here] < len(self.trained)).mean()),
                1.0 - float(wrong[here].mean()),
                float(before[here].mean()),
                float(after[here].mean()),
            )
            for label, here in by_length(lengths, QUARTERS)
        )

    def held_out(self, kept: Sequence[TrainedLookup]) -> Rows | None:
        """Return held-out rows for adaptation: the features of the lookups that are kept."""
        if self.observed is None:
            return None
        rows = slice(0, HELD_OUT_ROWS)
        answers, names = self.observed.answers[rows], {one.name for one in kept}
        features = {
            one.name: seen[rows].bfloat16()
            for one, seen in zip(self.trained, self.observed.features, strict=True)
            if one.name in names and seen.shape[1] <= WIDEST_KEPT
        }
        lengths, end = self.observed.seen.lengths, self.observed.seen.end
        return Rows(
            features,
            answers.bfloat16(),
            answers.argmax(dim=1),
            None if lengths is None else torch.from_numpy(lengths[rows]),
            None if end is None else torch.from_numpy(end[rows]),
        )


def lessons(directory: ModelDirectory, kept: Sequence[TrainedLookup]) -> Rows | None:
    """Return the rows to train new heads with: the features of the lookups kept, of this training or the last one."""
    each = [one.lessons for one in kept if one.lessons is not None]
    if not each:
        return read_rows(directory, LESSONS) if kept else None
    narrow = {name: rows for one in each for name, rows in one.features.items() if rows.shape[1] <= WIDEST_KEPT}
    return Rows(narrow, each[0].answers, each[0].classes, each[0].lengths)
