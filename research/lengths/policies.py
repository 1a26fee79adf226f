"""What servers do with inputs of different lengths, as policies: the baselines of `late` and `lazy+`.

First come and padded to the longest is graph batching. Fixed padding is that too, where every input counts as the
longest there may be. All run whole batches, one after another, on one worker.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from math import inf

from latebind.batching.decisions import Decision, GoOn
from latebind.batching.policy import Stacked
from latebind.batching.requests import Lane, Request
from latebind.batching.workers import Worker
from latebind.domain.config import PolicyConfig
from latebind.domain.costs import batch_length

AHEAD = 32  # full batches of waiting requests are sorted at once at most


class Planned(Stacked):
    """Cuts what waits into batches, runs these one after another, and cuts again what waits then."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        self._plan: list[list[int]] = []  # the batch that is next is the last

    def decide(self, view: Worker, now: float) -> Decision:
        """Start the next batch of the plan, without those that are gone or would be late."""
        if view.entries:
            return GoOn()
        model = min(view.models.waiting, key=lambda one: one.queue.turn)
        while True:
            if not self._plan:
                self._plan = self.cut(model, sorted(model.queue.values(), key=lambda one: one.inputs))[::-1]
            here = [model.queue[i] for i in self._plan.pop() if i in model.queue]
            if here:
                return model.launch(here)

    def cut(self, model: Lane, ascending: Sequence[Request]) -> list[list[int]]:
        """Return batches of the numbers of these requests, which are in the order of their lengths."""
        raise NotImplementedError


class Sorted(Planned):
    """Sorted by length, then cut into batches of one size: infinity, and most scripts."""

    def cut(self, model: Lane, ascending: Sequence[Request]) -> list[list[int]]:
        """Return batches of the largest size."""
        size = self.batch_limit(model)
        return [[one.id for one in ascending[i : i + size]] for i in range(0, len(ascending), size)]


class Programme(Planned):
    """Cut so that all together take the least time, by measured costs of (rows, length).

    That is the dynamic programme of TurboTransformers (Fang et al. 2021, algorithm 2).
    """

    def cut(self, model: Lane, ascending: Sequence[Request]) -> list[list[int]]:
        """Return the batches of the least sum of seconds."""
        estimate, most, kept = model.estimate, self.batch_limit(model), AHEAD * self.batch_limit(model)
        some = ascending[:kept]
        least, before, packs = [0.0], [0], model.spec.packs
        summed = [0, *accumulate(one.inputs for one in some)]
        for end, request in enumerate(some, start=1):
            best, begin = inf, end - 1
            for start in range(max(0, end - most), end):
                length = -(-(summed[end] - summed[start]) // (end - start)) if packs else request.inputs
                seconds = least[start] + estimate.whole(end - start, length)
                if seconds < best:
                    best, begin = seconds, start
            least.append(best)
            before.append(begin)
        return [[one.id for one in some[start:end]] for start, end in _pieces(before)]


class Budget(Stacked):
    """First come, as many as have at most so many tokens, padded where they are: text-embeddings-inference, fairseq.

    The budget is `window` of the configuration, in thousands of tokens: a policy has no other number of its own.
    """

    def decide(self, view: Worker, now: float) -> Decision:
        """Start the first ones that fit, one at least."""
        if view.entries:
            return GoOn()
        model = min(view.models.waiting, key=lambda one: one.queue.turn)
        budget, some, lengths = round(1e3 * self._config.window), list[Request](), list[int]()
        for request in model.queue.first(self.batch_limit(model)):
            lengths.append(request.inputs)
            if some and batch_length(lengths, model.spec.packs) * len(lengths) > budget:
                break
            some.append(request)
        return model.launch(some)


def _pieces(before: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield start and end of each piece, the first one first; `before[end]` is where the one that ends there starts."""
    ends = [len(before) - 1]
    while ends[-1]:
        ends.append(before[ends[-1]])
    ends.reverse()
    return pairwise(ends)
