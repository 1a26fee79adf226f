"""LazyBatching as published (sections IV-A to IV-C): at stage boundaries waiting requests preempt, if slack permits."""

from latebind.batching.base import Stacked
from latebind.batching.decisions import Decision, GoOn
from latebind.batching.slack import Conservative, Precise, Slack
from latebind.batching.view import WorkView, launch
from latebind.domain.config import PolicyConfig


class Lazy(Stacked):
    """Starts as many of the oldest requests as leave all with slack; an idle worker takes all of them if none do."""

    def __init__(self, config: PolicyConfig, slack: Slack | None = None) -> None:
        super().__init__(config)
        self._slack = slack or Conservative()

    def decide(self, view: WorkView, now: float) -> Decision:
        """Launch the requests that may start, of the model whose oldest request has waited longest."""
        for model in self.in_turn(view):
            waiting = model.queue.first(self.room(view, model))
            count = self._slack.most(view, model, waiting, now) if waiting else 0
            if not view.entries:
                count = count or len(waiting)
            if count:
                return launch(model, waiting[:count])
        return GoOn()


class Oracle(Lazy):
    """The same greedy rule with true costs and lengths (section VI); this is not an optimum."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config, Precise())
