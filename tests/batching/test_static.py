"""Static batches: as many rows are computed whoever is missing."""

from latebind.domain.actions import Reply, Run
from latebind.domain.config import PolicyConfig, SchedulerConfig
from latebind.domain.costs import Curve
from latebind.domain.events import Arrived, StageDone
from latebind.scheduler import Scheduler
from tests.batching.chains import STATIC, chain, ends, play

LINEAR = Curve((1, 64), (1.0, 64.0))


def test_a_batch_with_places_left_is_padded_to_the_largest() -> None:
    scheduler = Scheduler(SchedulerConfig((chain(STATIC, STATIC),), policy=PolicyConfig("static", max_batch=4)))
    (first,) = scheduler.handle(Arrived("net", 9.0, (7, 8), (0, 1)), 0.0)
    assert first == Run(0, "net", 0, (7, 8), (0, 1), rows=4)
    (second,) = scheduler.handle(StageDone(0, exited=(7,)), 1.0)[1:]
    assert second == Run(0, "net", 1, (8,), (1,), rows=4)
    (reply,) = scheduler.handle(StageDone(0), 2.0)
    assert isinstance(reply, Reply)


def test_a_batch_is_no_larger_than_its_worker() -> None:
    settings = SchedulerConfig((chain(STATIC),), 1, PolicyConfig("static"), (8,))
    (run,) = Scheduler(settings).handle(Arrived("net", 9.0, (0,), (0,)), 0.0)
    assert isinstance(run, Run)
    assert run.rows == 8


def test_a_padded_batch_takes_as_long_as_a_full_one() -> None:
    for name, took in (("graph", 1.0), ("static", 4.0)):
        policy = PolicyConfig(name, max_batch=4, shed=False)
        timeline = play(policy, chain(STATIC, curve=LINEAR), [0.0])
        assert ends(timeline._records) == {1: took}
