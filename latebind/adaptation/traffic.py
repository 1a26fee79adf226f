"""Recent traffic: a window of samples, and whether they look like earlier ones, and like those that `build` kept."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from latebind.learned.head import Head, HeadFunction
from latebind.learned.samples import Samples
from latebind.learned.stored import Rows

FEWEST = 150  # samples to compare with
SHRINK = 10  # samples of all classes that each class is assumed to have besides its own
STRANGE = 0.05  # the share of samples like those before that count as strange
FEWEST_KNOWN = 30  # samples of the traffic
MOST_LESS = 0.15  # of the samples, that lookups may answer less often like the base model than they should
MOST_LESS_SURE = 0.3  # that may leave less often than they should


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled request: when (seconds by a steady clock), its features by lookup, the base model's answer.

    `answers` are `(classes,) bfloat16`, too coarse to identify the highest of them; that is `answer`. `look` describes
    its inputs (`looks`), and it stands for `weight` requests. If rows differ in size, it has a `length`; if the network
    is not the base model, `end` says whether its own answer is the base model's.
    """

    time: float
    features: dict[str, Tensor]
    answers: Tensor
    answer: int
    look: Tensor
    weight: float = 1.0
    length: int | None = None
    end: bool | None = None


@dataclass(frozen=True, slots=True)
class Recent:
    """Samples as rows, oldest first: `(N, ...)` each."""

    rows: Rows
    times: Tensor
    looks: Tensor
    weights: Tensor


class Window:
    """Keeps the last `capacity` samples, none older than `seconds`."""

    def __init__(self, capacity: int, seconds: float) -> None:
        self._seconds = seconds
        self._samples: deque[Sample] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, sample: Sample) -> None:
        """Take in a sample."""
        while self._samples and self._samples[0].time < sample.time - self._seconds:
            self._samples.popleft()
        self._samples.append(sample)

    def recent(self) -> Recent | None:
        """Return all samples, or None if there are none."""
        samples = list(self._samples)
        if not samples:
            return None
        return Recent(
            Rows(
                {name: torch.stack([sample.features[name] for sample in samples]) for name in samples[0].features},
                torch.stack([sample.answers for sample in samples]),
                torch.tensor([sample.answer for sample in samples]),
                torch.tensor(lengths) if (lengths := [s.length for s in samples if s.length is not None]) else None,
                torch.tensor(ends) if (ends := [s.end for s in samples if s.end is not None]) else None,
            ),
            times=torch.tensor([sample.time for sample in samples], dtype=torch.float64),
            looks=torch.stack([sample.look for sample in samples]),
            weights=torch.tensor([sample.weight for sample in samples], dtype=torch.float64),
        )


def looks(samples: Samples) -> Tensor:
    """Return `(N, k) float32`: mean and spread of the numbers of each row of each input, and the length if they differ.

    The inputs must be a tuple (`Samples.ordered`). The length is given by its logarithm: twice as long is as far from
    usual as half.
    """
    assert isinstance(samples.inputs, tuple)
    found = []
    for part in samples.inputs:
        if isinstance(part, Tensor):
            rows = part.reshape(len(part), -1).float()  # an input may be one number
            found.append(torch.stack([rows.mean(dim=1), rows.std(dim=1, correction=0)], dim=1))
        else:
            each = [row.float() for row in part]
            found.append(torch.stack([torch.stack([row.mean(), row.std(correction=0)]) for row in each]))
    if samples.lengths is not None:
        found.append(samples.lengths.float().log()[:, None])
    return torch.cat(found, dim=1)


@dataclass(frozen=True, slots=True)
class Familiar:
    """What samples looked like: means by class `(classes, k)`, a common spread `(k,)` and how far a strange one is.

    By class, because another mix of classes is not a change of looks. Brighter pictures or a microphone further away
    move the mean and the spread of an input's numbers far from those before, and a few dozen samples show it; that
    fidelity fell from 0.98 to 0.95 takes hundreds. (Brighter by 3 standard deviations is noticed within 44 samples in
    20 of 20 trials of `research drift`.)
    """

    means: Tensor
    spread: Tensor
    far: float

    @classmethod
    def of(cls, seen: Tensor, answers: Tensor, *, classes: int) -> Self | None:
        """Learn from looks `(N, k)` of samples and the base model's `answers` `(N,) int64`; None for too few."""
        if len(seen) < FEWEST:
            return None
        count = torch.bincount(answers, minlength=classes)[:, None]
        sums = torch.zeros(classes, seen.shape[1]).index_add_(0, answers, seen)
        means = (sums + SHRINK * seen.mean(dim=0)) / (count + SHRINK)
        spread = (seen - means[answers]).std(dim=0).clamp(min=1e-6)
        distances = _distances(seen, answers, means, spread)
        return cls(means, spread, float(distances.quantile(1.0 - STRANGE)))

    def strange(self, seen: Tensor, answers: Tensor) -> Tensor:
        """Return `(N,) bool` for looks `(N, k)` and the base model's answers."""
        return _distances(seen, answers, self.means, self.spread) > self.far


def _distances(seen: Tensor, answers: Tensor, means: Tensor, spread: Tensor) -> Tensor:
    return (((seen - means[answers]) / spread) ** 2).mean(dim=1)


@dataclass(frozen=True, slots=True)
class Kept:
    """How well lookups, by name with their thresholds, know rows that `build` kept, compared with the traffic.

    Frames of a camera are not the pictures that a network was trained on: a version shown on the pictures errs on the
    frames, which is noticed only after hundreds of samples. If lookups do know such frames, they may seldom be sure.

    `known` has, by lookup and class, the share of the rows that it answers like the base model, and the share that it
    is sure of.
    """

    lookups: Mapping[str, tuple[Head, float]]
    known: Mapping[str, tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, rows: Rows, lookups: Mapping[str, tuple[Head, float]]) -> Self:
        """Run the lookups on rows that have their features."""
        known = {}
        for name, (head, threshold) in lookups.items():
            there = torch.bincount(rows.classes, minlength=head.classes).clamp(min=1)
            right, sure = _asked(rows, name, head, threshold)
            none = torch.zeros(head.classes)
            known[name] = (
                none.index_add(0, rows.classes, right) / there,
                none.index_add(0, rows.classes, sure) / there,
            )
        return cls(lookups, known)

    def speak_for(self, traffic: Rows) -> bool:
        """Return whether samples of the traffic are known about as well as kept rows of the same classes.

        With few samples the answer is yes.
        """
        if len(traffic.classes) < FEWEST_KNOWN:
            return True
        for name, of_class in self.known.items():
            asked = _asked(traffic, name, *self.lookups[name])
            for known, found, most in zip(of_class, asked, (MOST_LESS, MOST_LESS_SURE), strict=True):
                less = known[traffic.classes] - found
                if float(less.mean() - less.std() / len(less) ** 0.5) > most:  # by more than its standard error
                    return False
        return True


def _asked(rows: Rows, name: str, head: Head, threshold: float) -> tuple[Tensor, Tensor]:
    """Return for each row 1 if the lookup answers like the base model, and 1 if it is sure."""
    answers, scores = HeadFunction(head)(rows.features[name].float().numpy())
    right = torch.from_numpy(answers.argmax(axis=1)) == rows.classes
    return right.float(), torch.from_numpy(scores >= threshold).float()
