"""SuperServe's choice of batch and depth (SlackFit, Khare et al., NSDI 2025), over the same operating curve and engine.

As described: the latencies between the shortest and the longest choice of batch and subnetwork are cut into even
buckets. Of each bucket the choice with the largest batch stands for it. When a worker is free, the slack of the most
urgent request picks the longest bucket that still ends in time, and so many of the most urgent requests run as one
batch, to its end. A level of the curve takes the place of a subnetwork.

What it gets beyond the paper, so that it is at its best here: members leave a batch early, requests that cannot be in
time are refused and dropped, of equally large batches the surest level is taken, and no larger batch is considered than
there are requests. The paper's fixed choice by bucket would take a low level for a large batch where few wait.
"""

from latebind.batching.costs import sizes
from latebind.batching.decisions import Decision, GoOn
from latebind.batching.late import Late
from latebind.batching.requests import Lane
from latebind.batching.workers import Worker

Choice = tuple[int, int, int]  # bucket of latencies, batch, and level below 0: the greatest is the best


class SlackFit(Late):
    """Chooses level and batch by slack, and runs each batch to its end."""

    buckets = 16
    by_queue = True  # whether no larger batch is considered than there are requests

    def choose_level(self, model: Lane, now: float) -> None:
        """Choose a level for the requests that start now."""
        assert model.depth is not None
        model.depth.take(-self._chosen(model, now)[2])

    def decide(self, view: Worker, now: float) -> Decision:
        """Start as many requests as were chosen, once the worker has nothing else to run."""
        if view.entries or not view.models.waiting:
            return GoOn()
        model = min(view.models.waiting, key=lambda model: model.queue.turn)
        batch = 1 if model.depth is None else self._chosen(model, now)[1]
        return model.launch(model.queue.first(min(batch, view.granularity)))

    def _chosen(self, model: Lane, now: float) -> Choice:
        """Return the best choice that ends in time; where there is none, one request at the lowest level."""
        assert model.depth is not None
        slack, lowest, choices = model.queue.first(1)[0].deadline - now, model.depth.lowest, self._choices(model)
        shortest, longest = min(choices)[0], max(choices)[0]
        width = max((longest - shortest) / self.buckets, 1e-9)
        most = 2 * len(model.queue) if self.by_queue else model.most
        fits = [
            (int((seconds - shortest) / width), batch, -level)
            for seconds, batch, level in choices
            if seconds <= slack and level <= lowest and (batch < most or batch == 1)
        ]
        return max(fits, default=(0, 1, -lowest))

    def _choices(self, model: Lane) -> list[tuple[float, int, int]]:
        """Return the expected seconds until the end of each batch at each level, with its size and the level."""
        estimate = model.estimate
        known = estimate.known()
        kept: list[tuple[float, int, int]] | None = known.get("slack-fit")
        if kept is not None:
            return kept
        assert model.depth is not None
        before, found = estimate.level, list[tuple[float, int, int]]()
        for level in range(model.depth.levels):
            estimate.at_level(level)
            for batch in sizes(model.most):
                found.append((self._seconds(model, batch), batch, level))
        estimate.at_level(before)
        known["slack-fit"] = found
        return found

    def _seconds(self, model: Lane, batch: int) -> float:
        """Return the mean seconds of the members of a batch, at the level that figures are for."""
        seconds, left = 0.0, 0.0
        for answers, until in model.estimate.prospects(0, batch, model.usual):
            seconds, left = seconds + (answers - left) / batch * until, answers
        return seconds


class ToTheEnd(SlackFit):
    """Takes the seconds of a batch until its last member has left, with few buckets: better where little waits."""

    buckets = 4

    def _seconds(self, model: Lane, batch: int) -> float:
        """Return the seconds until the end of a batch, at the level that figures are for."""
        return model.estimate.prospects(0, batch, model.usual)[-1][1]


class Compacted(ToTheEnd):
    """Chooses only the level by slack; which requests run together is decided as without it."""

    buckets = 16

    def decide(self, view: Worker, now: float) -> Decision:
        """Decide as `late`."""
        return Late.decide(self, view, now)
