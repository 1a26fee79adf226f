"""Plays a log of events into a fresh scheduler and compares what it decides, action by action. Pure."""

from collections.abc import Iterable

from latebind.domain.config import SchedulerConfig
from latebind.domain.eventlog import Entry
from latebind.queries.scheduler import make_scheduler


def replayed(config: SchedulerConfig, entries: Iterable[Entry]) -> tuple[int, int, str]:
    """Return how many events were replayed, how many actions followed, and where these first differ; "" if nowhere.

    Raises `AssertionError` if the scheduler is not as it should be at the end. A log that a killed engine left may end
    between events that arrived together; then nothing has been decided for them, and that is as it should be.
    """
    scheduler = make_scheduler(config)
    events = actions = 0
    more = False
    for number, entry in enumerate(entries, start=2):
        decided = tuple(scheduler.handle(entry.event, entry.now))
        if decided != entry.actions:
            said = f"line {number} differs: {entry.event}\n  log     {entry.actions}\n  replay  {decided}"
            return events, actions, said
        events += 1
        actions += len(decided)
        more = getattr(entry.event, "more", False)
    if not more:
        scheduler.check()
    return events, actions, ""
