"""The samples of late: what the lookups see of them and what the base model answers. On disk it survives a restart."""

from collections import OrderedDict, defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from pathlib import Path
from threading import Lock

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from latebind.learned.stored import Rows
from latebind.repository.directory import write_bytes


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled request: when (seconds since the epoch), whose, its features by lookup, the base model's answer.

    `answers` are `(classes,) bfloat16`, too coarse to tell the highest of them; that is `answer`. `look` is that of its
    inputs (`familiar.looks`), and it stands for `weight` requests.
    """

    time: float
    client: int
    features: dict[str, Tensor]
    answers: Tensor
    answer: int
    look: Tensor
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Recent:
    """Samples as rows, oldest first: `(N, ...)` each."""

    rows: Rows
    times: Tensor
    looks: Tensor
    weights: Tensor
    clients: Tensor


class Window:
    """Keeps up to `capacity` samples for `seconds`; where room is short, a client with over its share gives way.

    One thread may add samples while another reads them.
    """

    def __init__(self, capacity: int, seconds: float, client_share: float) -> None:
        self._capacity = capacity
        self._seconds = seconds
        self._client_share = client_share
        self._samples: OrderedDict[int, Sample] = OrderedDict()
        self._by_client: defaultdict[int, OrderedDict[int, None]] = defaultdict(OrderedDict)
        self._next = 0
        self._changing = Lock()

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, sample: Sample) -> None:
        """Take in a sample."""
        with self._changing:
            while self._samples and next(iter(self._samples.values())).time < sample.time - self._seconds:
                self._drop(next(iter(self._samples)))
            if len(self._samples) >= self._capacity:
                self._drop(self._least())
            self._samples[self._next] = sample
            self._by_client[sample.client][self._next] = None
            self._next += 1

    def recent(self) -> Recent | None:
        """Return all samples, or None if there are none."""
        with self._changing:
            samples = list(self._samples.values())
        if not samples:
            return None
        answers = torch.stack([sample.answers for sample in samples])
        names = samples[0].features
        features = {name: torch.stack([sample.features[name] for sample in samples]) for name in names}
        rows = Rows(features, answers, torch.tensor([sample.answer for sample in samples]))
        times, weights = (
            torch.tensor(values, dtype=torch.float64)
            for values in zip(*((sample.time, sample.weight) for sample in samples), strict=True)
        )
        looks, clients = (
            torch.stack([sample.look for sample in samples]),
            torch.tensor([sample.client for sample in samples]),
        )
        return Recent(rows, times, looks, weights, clients)

    def save(self, path: Path) -> None:
        """Write all samples to `path` in one rename."""
        recent = self.recent()
        if recent is None:
            path.unlink(missing_ok=True)
            return
        beside = {"times": recent.times, "clients": recent.clients, "looks": recent.looks, "weights": recent.weights}
        write_bytes(path, save({**recent.rows.tensors(), **beside}))

    def load(self, path: Path, *, names: Collection[str], now: float = inf) -> bool:
        """Take in what `save` wrote of lookups of these names; False for a file that is not of them.

        Samples later than `now`, from before the clock was set back, count as taken at `now`.
        """
        try:
            tensors = load(path.read_bytes())
            times, clients, weights = (tensors.pop(name).tolist() for name in ("times", "clients", "weights"))
            looks = tensors.pop("looks")
            rows = Rows.from_tensors(tensors)
        except (OSError, SafetensorError, KeyError, ValueError):
            return False
        if set(rows.features) != set(names) or not (
            len(times) == len(clients) == len(weights) == len(looks) == len(rows.classes)
        ):
            return False
        for place, (time, client, weight) in enumerate(zip(times, clients, weights, strict=True)):
            features = {name: found[place].clone() for name, found in rows.features.items()}
            answers, look = rows.answers[place].clone(), looks[place].clone()
            self.add(Sample(min(time, now), client, features, answers, int(rows.classes[place]), look, weight))
        return True

    def _least(self) -> int:
        """The oldest sample, of the client that has most if that is over its share."""
        largest = max(self._by_client.values(), key=len)
        over = len(largest) > self._client_share * self._capacity
        return next(iter(largest if over else self._samples))

    def _drop(self, number: int) -> None:
        sample = self._samples.pop(number)
        owned = self._by_client[sample.client]
        del owned[number]
        if not owned:
            del self._by_client[sample.client]
