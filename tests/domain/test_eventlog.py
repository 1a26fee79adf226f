"""The log of events: what is infinite comes back as that, and older logs stay readable."""

import io
from dataclasses import replace
from math import inf

from latebind.domain.actions import Outcome, Reply, StepEnded
from latebind.domain.config import PolicyConfig
from latebind.domain.eventlog import Entry, EventLog, read_log
from latebind.domain.events import Arrived, StageDone
from latebind.scheduler import Scheduler
from tests.models import config, served

ENDLESS = replace(config(served(hit_rates={0: 0.5}, aside=0.01)), policy=PolicyConfig(window=inf))


def written(*entries: Entry) -> io.BytesIO:
    """Return a log of these under `ENDLESS`, to be read."""
    file = io.BytesIO()
    log = EventLog(file, ENDLESS)
    for entry in entries:
        log.write(entry.now, entry.event, entry.actions)
    file.seek(0)
    return file


def entries_of(line: bytes) -> list[Entry]:
    file = written()
    return list(read_log(io.BytesIO(file.read() + line))[1])


def test_an_infinite_setting_comes_back() -> None:
    assert read_log(written())[0] == ENDLESS


def test_a_deadline_that_never_comes_replays() -> None:
    event = Arrived("net", inf, (1,), (0,))
    actions = tuple(Scheduler(ENDLESS).handle(event, 0.5))
    settings, entries = read_log(written(Entry(0.5, event, actions)))
    (entry,) = entries
    assert entry == Entry(0.5, event, actions)
    assert tuple(Scheduler(settings).handle(entry.event, entry.now)) == actions


def test_all_that_may_be_infinite_or_missing_in_an_action_comes_back() -> None:
    step = StepEnded("query", 1, 0, 0, "net", Outcome.ANSWERED, 1, 0.0, 0.5, inf, 0.5, -inf)
    replies = Reply(1, "net", Outcome.ANSWERED, 1, 0.0, 0.5, inf), Reply(2, "inf", Outcome.NOT_LOADED, -1, 0.0, 0.0)
    (entry,) = read_log(written(Entry(1.0, Arrived("net", 2.0, (1,), (0,)), (step, *replies))))[1]
    read, *others = entry.actions
    assert isinstance(read, StepEnded)
    assert (read, read.budget, read.slack) == (step, inf, -inf)
    assert others == [*replies]
    assert [action.slack for action in others if isinstance(action, Reply)] == [inf, None]


def test_a_log_without_what_was_added_since_is_read() -> None:
    (entry,) = entries_of(b'[1.0,["Arrived","net",2.5,[1],[0]],[]]\n')
    assert entry == Entry(1.0, Arrived("net", 2.5, (1,), (0,)), ())


def test_a_last_line_that_a_killed_process_has_not_written_whole_is_left_out() -> None:
    whole = written(Entry(0.5, Arrived("net", 1.0, (1,), (0,)), ()), Entry(0.75, StageDone(0), ())).getvalue()
    torn = io.BytesIO(whole[:-3])
    assert [entry.now for entry in read_log(torn)[1]] == [0.5]
