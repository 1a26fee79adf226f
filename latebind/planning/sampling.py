"""Which part of a cluster is simulated, and how certain that makes the answer.

A large cluster is simulated in samples: whole models on whole machines, each model with all of its requests. So each
machine has the load, the batches and the competition for memory that it would have in the whole cluster. A model that
needs several machines is first split into several that need half of one each, as placement would give it several homes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, log, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit  # scipy.stats takes half a second to import

from latebind.planning.question import Question
from latebind.simulation.cluster.fleet import least_work

MACHINES = 12  # that a sample has at least, by what compute needs
REQUESTS = 15_000  # that a run of a sample has, if that leaves it enough machines
HALF = 0.5  # of what a machine carries: what a part of a model may need
TRIES = 500  # samples that are drawn, of which the one is taken that is closest in work and bytes
NARROW = 0.05  # half of the interval that samples leave, as a share of the estimate
DRAWS = 2_000  # of the bootstrap
LEAST_LATE = 1e-6  # the smallest share of late requests that differs from none


@dataclass(frozen=True, slots=True)
class Estimate:
    """How many machines the whole cluster needs for one draw of its traffic, estimated from samples.

    With 95 % confidence that is between `low` and `high`. `is_narrow` is whether more samples would add little.
    """

    machines: int
    low: int
    high: int
    samples: int
    is_narrow: bool


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which `share` of models and machines is simulated at a time; 1: all of them."""

    share: float = 1.0

    @property
    def sampled(self) -> bool:
        """Whether less than everything is simulated."""
        return self.share < 1.0

    def whole(self, machines: float) -> int:
        """Return how many machines of the whole cluster `machines` of a sample stand for."""
        return ceil(machines / self.share - 1e-9)

    def part(self, machines: int) -> int:
        """Return how many machines a sample has if the whole cluster has `machines`."""
        return max(1, round(machines * self.share))

    def question(self, question: Question, number: int) -> Question:
        """Return the question about sample `number`, or about everything."""
        if not self.sampled:
            return question
        places, shares = _sample(question, self.share, np.random.default_rng([number, 5]))
        return replace(question, population=question.population.part(places, shares))

    def estimate(self, late: Mapping[int, Sequence[float]], requests: Sequence[int], target: float) -> Estimate:
        """Return the estimate from how many requests of each sample are `late`, by its number of machines.

        The target applies to all samples together, as to the whole cluster: a model whose requests are all late counts
        for its share. The interval is that of a bootstrap over samples, widened for few of them (by Student's t), and
        for the whole cluster, whose own draw varies as much as the mean of as many samples as it has room for.
        """
        tried, count = np.array(sorted(late), dtype=float), len(requests)
        shares = np.stack([drawn_shares(late[int(machines)], requests) for machines in tried], axis=1)
        middle, *drawn = _crossings(tried, shares, 1.0 - target)
        error = float(stdtrit(count - 1, 0.975)) / 1.96 * sqrt(count / (count - 1))
        low, high = (error * float(np.quantile(drawn, end) - middle) for end in (0.025, 0.975))
        wider = sqrt(1 + count * self.share)
        return Estimate(
            self.whole(middle),
            max(1, self.whole(max(0.0, middle + min(0.0, wider * low)))),
            self.whole(middle + max(0.0, wider * high)),
            count,
            max(high, -low) <= max(0.5, NARROW * middle),
        )


def drawn_shares(late: Sequence[float], requests: Sequence[int]) -> NDArray[np.float64]:
    """Return the share of late requests of all samples together, followed by that of each draw of a bootstrap."""
    count = len(requests)
    draws = np.random.default_rng(5).multinomial(count, [1 / count] * count, DRAWS)
    weights = np.vstack([np.ones(count), draws])
    shares: NDArray[np.float64] = (weights @ np.array(late)) / (weights @ np.array(requests, dtype=float))
    return shares


def _crossings(tried: NDArray[np.float64], late: NDArray[np.float64], allowed: float) -> NDArray[np.float64]:
    """Return for each row of late shares `(rows, tried)` with how many machines `allowed` are late.

    More machines are assumed never to be worse. Between two numbers that were tried the share falls by the same factor
    with each machine. The result is the first number if that is enough, and one step beyond the last if that is not.
    """
    falling = np.minimum.accumulate(np.maximum(late, LEAST_LATE), axis=1)
    places = (falling > allowed).sum(axis=1)  # the first that is enough
    step = tried[1] - tried[0]
    inside = np.clip(places, 1, len(tried) - 1)
    rows = np.arange(len(late))
    before, after = np.log(falling[rows, inside - 1]), np.log(falling[rows, inside])
    part = (before - log(max(allowed, LEAST_LATE))) / np.maximum(before - after, 1e-12)
    found = tried[inside - 1] + np.clip(part, 0.0, 1.0) * (tried[inside] - tried[inside - 1])
    found = np.where(places == 0, tried[0], found)
    beyond: NDArray[np.float64] = np.where(places == len(tried), tried[-1] + step, found)
    return beyond


def sampling_of(question: Question) -> Sampling:
    """Return what to simulate of a cluster: all of it, or samples small enough that a run takes seconds."""
    requests = len(question.population.requests(seed=0))
    fewest = busy_workers(question) / max(kind.workers * kind.speed for kind in question.workload.machines)
    share = max(MACHINES / max(fewest, 1.0), REQUESTS / requests)
    return Sampling(share) if share < HALF else Sampling()


def busy_workers(question: Question) -> float:
    """Return how many workers of speed 1 the traffic keeps busy without batches."""
    alone = np.array([model.alone() for model in question.population.models])
    return max(1e-9, float(alone @ _rates(question)))


def _rates(question: Question) -> NDArray[np.float64]:
    """Return the requests a second of each model `(models,)` with the first seed."""
    requests = question.population.requests(seed=0)
    span = float(requests.times[-1]) if len(requests) else 1.0
    rates: NDArray[np.float64] = np.bincount(requests.models, minlength=len(question.population.models)) / max(
        span, 1e-9
    )
    return rates


def _sample(
    question: Question, share: float, random: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the models of a sample, and the share of its requests that each has there.

    A model that needs several machines is split into parts that need half of one each, as placement would give it
    several homes. All parts are sorted from the most work to the least and cut into strata of `1 / share`, from each of
    which one is drawn: so frequent and rare models are in a sample in the same proportion as in the whole. Parts of one
    model in the same sample are one model there, because its homes help each other out.

    Of many such samples, the one whose sums of work and bytes are closest to their shares is taken (rerandomization,
    Morgan and Rubin 2012): the effect of these on the number of machines is known, and would only hide what is not.
    """
    models = question.population.models
    work = _rates(question) * np.array([least_work(one, question.workload.policy) for one in models])
    carries = min(kind.workers * kind.speed for kind in question.workload.machines)
    parts = np.maximum(1, np.ceil(work / (HALF * carries))).astype(np.int64)
    every = np.repeat(np.arange(len(models)), parts)
    sizes = np.array([one.served.footprint.size for one in models], dtype=float)
    figures = np.stack([(work / parts)[every], sizes[every]])
    shares = figures / figures.sum(axis=1, keepdims=True)
    strata = np.array_split(np.argsort(-figures[0], kind="stable"), max(1, round(share * len(every))))
    drawn = np.stack([random.choice(stratum, TRIES) for stratum in strata])  # (strata, tries)
    wrong = np.abs(shares[:, drawn].sum(axis=1) - share).sum(axis=0)
    places, counts = np.unique(every[drawn[:, wrong.argmin()]], return_counts=True)
    return places, counts / parts[places]
