"""A worker and a scheduler driven by hand: events come whenever the test says, stages really run."""

from collections.abc import Callable, Iterator, Sequence

import torch

from latebind.domain.actions import Reply, Run
from latebind.domain.events import Arrived, Event
from latebind.engine.staging import Staging
from latebind.engine.worker import Worker
from latebind.scheduler import Scheduler


def play(
    worker: Worker,
    scheduler: Scheduler,
    coming: Sequence[Event],
    comes: Callable[[], bool],
    staging: Staging | None = None,
) -> Iterator[Reply]:
    """Yield every reply. The next event comes when nothing runs, or after a stage if `comes` says so.

    The worker and `staging` hear of it as from the driver.
    """
    left, running, now = list(coming), None, 0.0
    while left or running is not None:
        with torch.inference_mode():
            events: list[Event] = [worker.run(running)] if running else []
        running = None
        if left and (not events or comes()):
            events.append(left.pop(0))
        for event in events:
            now += 1e-3
            if staging is not None and isinstance(event, Arrived):
                staging.copy_in(event.model, event.slots)
            for action in scheduler.handle(event, now):
                if isinstance(action, Run):
                    running = action
                elif isinstance(action, Reply):
                    worker.owners.end(action.request)
                    yield action
            scheduler.check()
