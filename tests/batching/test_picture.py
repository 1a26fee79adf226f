"""The picture of what is under way: batch tables and queues as they are at one moment."""

from dataclasses import replace
from math import inf

import msgspec

from latebind.domain.events import Arrived, Mapped, StageDone
from latebind.domain.picture import LanePicture, MemberPicture, Picture
from latebind.queries.scheduler import QueryScheduler
from latebind.scheduler import Scheduler
from tests import models
from tests.models import served
from tests.queries import graphs
from tests.residency.limited import limited, with_pieces


def arrived(*requests: int, deadline: float = 10.0) -> Arrived:
    return Arrived("net", deadline, requests, requests)


def test_who_runs_and_who_was_let_past_are_at_their_stages_the_newest_first() -> None:
    scheduler = Scheduler(models.config(served(max_batch=8), policy="lazy"))
    scheduler.handle(arrived(1, 2), 0.0)
    scheduler.handle(arrived(3), 0.004)
    scheduler.handle(StageDone(0), 0.01)
    (worker,) = scheduler.picture(0.013).workers
    newest, below = worker.batches
    assert (newest.model, newest.stage, newest.stages, newest.size, newest.doing) == ("net", 0, 3, 1, "runs")
    assert (below.stage, below.size, below.doing) == (1, 2, "rests")
    assert newest.members == (MemberPicture(3, 0.013 - 0.004, 10.0 - 0.013, 0),)
    assert [one.preempted for one in below.members] == [1, 1]
    assert round(worker.seconds, 6) == 0.003


def test_who_waits_is_counted_and_how_long_the_oldest_has() -> None:
    scheduler = Scheduler(models.config())
    scheduler.handle(arrived(1), 0.0)
    scheduler.handle(arrived(2), 0.002)
    scheduler.handle(arrived(3), 0.004)
    lane = scheduler.picture(0.005).models["net"]
    assert (lane.waiting, lane.held, round(lane.oldest, 6), lane.resident) == (2, 0, 0.003, None)


def test_where_memory_is_limited_it_tells_what_is_there_and_who_is_held() -> None:
    scheduler = Scheduler(limited(with_pieces(served(stages=2), (10, 10)), budget=20))
    scheduler.handle(arrived(1), 0.0)
    lane = scheduler.picture(0.5).models["net"]
    assert (lane.waiting, lane.held, lane.resident) == (0, 1, ())
    assert lane.loading
    assert lane.importance is not None


def test_a_query_tells_how_many_are_at_each_step() -> None:
    chain = graphs.query(graphs.node("gate", "gate"), graphs.node("rest", "small", after=[0]))
    scheduler = QueryScheduler(graphs.config(served("gate"), served("small"), queries=[chain]))
    scheduler.handle(Arrived("query", 9.0, (10, 20), (3, 4)), 0.0)
    assert scheduler.picture(0.0).queries == {"query": (0, 0)}
    scheduler.handle(Mapped((10,), 0), 0.001)
    scheduler.handle(Mapped((20,), 0), 0.001)
    picture = scheduler.picture(0.002)
    assert picture.queries == {"query": (2, 0)}
    assert picture.workers[0].batches[0].model == "gate"


def test_a_picture_crosses_between_processes_as_json() -> None:
    scheduler = Scheduler(models.config())
    scheduler.handle(arrived(1, 2, deadline=inf), 0.0)
    picture = scheduler.picture(0.0)
    assert msgspec.json.decode(msgspec.json.encode(picture), type=Picture) == picture
    assert replace(picture, workers=()).models == {"net": LanePicture(0, 0, 0.0, picture.models["net"].rate)}
