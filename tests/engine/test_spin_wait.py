"""How a listener waits, on a clock of its own."""

from math import inf

import pytest

from latebind.engine.spin_wait import SPIN_SECONDS, SpinWait

GLANCE = 1e-6  # seconds that it takes to look


class Post:
    """Messages that come at their times; waiting for them makes the time pass."""

    def __init__(self, *times: float) -> None:
        self.now = 0.0
        self.slept = 0
        self._times = list(times)

    def clock(self) -> float:
        return self.now

    def select(self, seconds: float | None) -> list[float]:
        self.now += GLANCE
        if seconds != 0.0:
            self.slept += 1
            self.now = max(self.now, min(self._times[0] if self._times else inf, self.now + (seconds or inf)))
        found = [time for time in self._times if time <= self.now]
        del self._times[: len(found)]
        return found


def waiting(post: Post, *, may_spin: bool = True) -> SpinWait[float]:
    return SpinWait(post.select, may_spin=lambda: may_spin, clock=post.clock)


def test_what_is_there_is_returned_without_a_wait() -> None:
    post = Post(0.0)
    assert waiting(post).wait(None) == [0.0]
    assert post.now == GLANCE


def test_it_sleeps_until_the_first_message_and_is_awake_when_the_next_comes_soon() -> None:
    post = Post(1e-4, 2e-4, 3e-4)
    subject = waiting(post)
    assert [subject.wait(None), post.slept] == [[1e-4], 1]
    assert [subject.wait(None), subject.wait(None), post.slept] == [[2e-4], [3e-4], 1]


def test_it_sleeps_at_once_after_a_pause_until_messages_follow_each_other_again() -> None:
    post = Post(1e-4, 1.0, 2.0, 2.0001, 2.0002)
    subject = waiting(post)
    slept = []
    for _ in range(5):
        begun = post.now
        subject.wait(None)
        slept.append((post.slept, post.now - begun < SPIN_SECONDS))
    assert slept == [(1, True), (2, False), (3, False), (4, True), (4, True)]


def test_it_gives_way_to_what_is_to_be_done_beside() -> None:
    post = Post(1e-4, 2e-4, 3e-4)
    subject = waiting(post, may_spin=False)
    for _ in range(3):
        subject.wait(None)
    assert post.slept == 3


@pytest.mark.parametrize("seconds", [SPIN_SECONDS / 2, 2 * SPIN_SECONDS])
def test_a_timer_rings_in_time_though_it_was_awake_before(seconds: float) -> None:
    post = Post(1e-4)
    subject = waiting(post)
    subject.wait(None)
    begun = post.now
    assert subject.wait(seconds) == []
    assert post.now - begun == pytest.approx(seconds, abs=5 * GLANCE)
