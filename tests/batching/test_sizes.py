"""How many waiting requests `lazy+` starts together, beside the best that anybody could choose who knows the rate."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import poisson

from latebind.batching.costs import Estimate
from latebind.batching.late import quickest
from latebind.batching.requests import ModelView, Queue, Request
from latebind.domain.costs import Curve
from tests.batching.chains import STATIC, chain

LARGEST, LONGEST = 16, 160  # the largest batch, and the longest queue that is told apart

Sizes = NDArray[np.int64]


def formed(curve: Curve, waiting: int, gap: float, others: int = 0) -> int:
    """Return the size of the next batch where requests came `gap` seconds after each other, the last one just now."""
    served = chain(STATIC, max_batch=LARGEST, curve=curve)
    queue = Queue()
    for number in range(waiting):
        queue.add(Request(number, "net", number, 1e9, gap * number))
    model = ModelView(served.spec, Estimate(served.spec, served.costs), queue)
    return quickest(model, min(LARGEST, waiting), gap * (waiting - 1), others)


def linear(fixed: float, each: float) -> Curve:
    """A batch of b takes `fixed` + b `each`."""
    return Curve((1, LARGEST), (fixed + each, fixed + LARGEST * each))


class Batches:
    """A worker that is never idle while requests wait, as a Markov decision process. The state is their number."""

    def __init__(self, curve: Curve, rate: float) -> None:
        self.rate = rate
        waiting = np.arange(LONGEST)
        batches = np.arange(1, LARGEST + 1)
        seconds = np.array([curve.at(int(batch)) for batch in batches])
        self.spent = (
            np.outer(seconds, waiting) + (rate * seconds**2 / 2)[:, None]
        )  # by all who are there, (batch, state)
        self.next = np.zeros((LARGEST, LONGEST, LONGEST))
        for batch in batches:
            coming = poisson.pmf(waiting, rate * seconds[batch - 1])
            for state in range(batch, LONGEST):
                left = state - batch
                self.next[batch - 1, state, left:] = coming[: LONGEST - left]
        self.next[:, :, -1] += 1.0 - self.next.sum(axis=2)
        idle = self.next[:, :, 0].copy()
        self.next[:, :, 1] += idle
        self.next[:, :, 0] = 0.0
        self.lasts = seconds[:, None] + idle / rate  # until the next decision

    def mean(self, sizes: Sizes) -> float:
        """Return the mean seconds of a request if `sizes[n - 1]` of n start together."""
        return float(self._values(sizes)[0]) / self.rate

    def best(self) -> float:
        """Return the least mean seconds that any sizes give, by policy iteration."""
        states = np.arange(1, LONGEST)
        sizes = np.minimum(states, LARGEST)
        while True:
            values = self._values(sizes)
            later = np.concatenate(([0.0, 0.0], values[1:]))
            costs = self.spent - values[0] * self.lasts + self.next @ later
            costs[np.arange(1, LARGEST + 1)[:, None] > np.arange(LONGEST)] = np.inf
            better = costs[:, 1:].argmin(axis=0) + 1
            gains = costs[sizes - 1, states] - costs[better - 1, states]
            if gains.max() < 1e-9:
                return self.mean(sizes)
            sizes = np.where(gains >= 1e-9, better, sizes)

    def _values(self, sizes: Sizes) -> NDArray[np.floating]:
        """Return the requests that are there on average, and what a queue of 2, 3, ... costs more than one of 1."""
        states = np.arange(1, LONGEST)
        equations = np.eye(LONGEST - 1) - self.next[sizes - 1, states, 1:]
        equations[:, 0] = self.lasts[sizes - 1, states]
        found: NDArray[np.floating] = np.linalg.solve(equations, self.spent[sizes - 1, states])
        return found


def up_to(most: int) -> Sizes:
    """All that wait, at most `most`: GraphB without a window."""
    return np.minimum(np.arange(1, LONGEST), most)


@pytest.mark.parametrize("fixed", [0.05, 0.15, 0.3, 1.0, 10.0])
@pytest.mark.parametrize("load", [0.5, 0.8, 0.9, 0.95])
def test_whoever_knows_the_rate_could_choose_hardly_better_sizes(fixed: float, load: float) -> None:
    """Each request costs a second more. `load` is the share of the highest throughput."""
    curve = linear(fixed, 1.0)
    rate = load * LARGEST / curve.at(LARGEST)
    batches = Batches(curve, rate)
    ours = batches.mean(np.array([formed(curve, waiting, 1.0 / rate) for waiting in range(1, LONGEST)]))
    assert ours <= 1.02 * batches.best()
    assert ours <= 1.005 * min(batches.mean(up_to(most)) for most in (1, 2, 4, 8, 16))


def test_where_batches_hardly_gain_a_rate_that_nobody_is_sure_of_makes_no_large_one() -> None:
    """Of 1, 2, 4, 8 and 16 rows: 0.95, 0.98, 0.99, 0.99 and 1.00 a second, and the last gaps were of half a second."""
    assert [formed(linear(0.05, 1.0), waiting, 0.5) for waiting in (2, 8, 32)] == [2, 4, 8]


def test_those_who_wait_for_other_models_wait_until_all_are_through() -> None:
    assert [formed(linear(0.05, 1.0), 8, 10.0, others) for others in (0, 8, 64)] == [1, 1, 4]


def test_where_a_batch_takes_as_long_as_its_requests_one_by_one_nobody_waits_for_others() -> None:
    assert [formed(linear(0.0, 1.0), 16, gap) for gap in (0.1, 1.0, 10.0)] == [1, 1, 1]
