"""SuperServe's choice of depth (Khare et al. 2023, SlackFit), over the same operating curve and in the same engine."""

from math import inf

from latebind.batching.late import Late
from latebind.batching.requests import Lane

BUCKETS = 16  # of latencies, between the shortest and the longest that a batch at any level can take


class SlackFit(Late):
    """Goes by the slack of the most urgent request: among the choices of level and batch that end in time, those of the
    longest bucket of latencies, of these the largest batch, and of equally large ones the surest level.

    Which requests run together is decided as without it, at the level that it has chosen.
    """

    def choose_level(self, model: Lane, now: float) -> None:
        """Choose a level for the requests that start now."""
        assert model.depth is not None
        slack = model.queue.first(1)[0].deadline - now
        model.depth.take(self._fitting(model, slack))

    def _fitting(self, model: Lane, slack: float) -> int:
        choices = self._choices(model)
        shortest, longest = min(seconds for seconds, _, _ in choices), max(seconds for seconds, _, _ in choices)
        width = max((longest - shortest) / BUCKETS, 1e-9)
        fits = [
            (int((seconds - shortest) / width), batch, -level) for seconds, batch, level in choices if seconds <= slack
        ]
        _, _, level = max(fits, default=(0, 0, -model.depth.lowest if model.depth is not None else 0))
        return -level

    def _choices(self, model: Lane) -> list[tuple[float, int, int]]:
        """Return the expected seconds of each batch at each level, with its size and the level."""
        known, found = model.estimate.known(), list[tuple[float, int, int]]()
        kept: list[tuple[float, int, int]] | None = known.get("slack-fit")
        if kept is not None:
            return kept
        assert model.depth is not None
        before, sizes = model.estimate.level, {1, 2, 4, 8, 16, 32, model.most}
        for level in range(model.depth.lowest + 1):
            model.estimate.at_level(level)
            for batch in [size for size in sizes if size <= model.most]:
                left, seconds = 0.0, 0.0
                for answers, until in model.estimate.prospects(0, batch, model.usual):
                    seconds, left = seconds + (answers - left) / batch * until, answers
                found.append((seconds if seconds > 0.0 else inf, batch, level))
        model.estimate.at_level(before)
        known["slack-fit"] = found
        return found
