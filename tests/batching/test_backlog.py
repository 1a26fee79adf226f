"""The waiting work of all models in its order, beside a list that is sorted and added up anew each time."""

from collections.abc import Iterator
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latebind.batching import backlog
from latebind.batching.backlog import Backlog
from latebind.batching.queue import Turn

WAITING = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4), st.integers(-5, 30)), max_size=40)


def turn(place: float, number: int) -> Turn:
    return place, 256, place, number


def filled(waiting: list[tuple[int, int, int]], gone: set[int]) -> Backlog:
    """Requests 0, 1, ... with a place, seconds of work and the latest start; those of `gone` came and left."""
    found = Backlog(at_once=2)
    for number, (place, work, latest) in enumerate(waiting):
        found.add(number, turn(place, number), work, latest)
    for number in gone:
        found.remove(number)
    return found


@pytest.fixture(autouse=True, scope="module")
def short_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backlog, "BLOCK", 3)
        yield


@given(WAITING, st.integers(0, 9), st.integers(1, 5), st.integers(0, 5), st.data())
def test_it_says_what_goes_before_a_request_and_who_would_be_late_behind_it(
    waiting: list[tuple[int, int, int]], place: int, work: int, now: int, data: st.DataObject
) -> None:
    gone = data.draw(st.sets(st.sampled_from(range(len(waiting))))) if waiting else set()
    found = filled(waiting, gone)
    found.check()
    left = sorted((at, number) for number, (at, _, _) in enumerate(waiting) if number not in gone)
    ahead = [number for at, number in left if at <= place]
    behind = [number for at, number in left if at > place]
    start = sum(waiting[number][1] for number in ahead)
    new = turn(place, len(waiting))
    assert found.before(new) == start
    late = inf
    for number in behind:
        slack = waiting[number][2] - start / 2
        if now <= slack < now + work / 2:  # in time without the new one, and late behind it
            late = min(late, slack - now - work / 2)
            break
        start += waiting[number][1]
    assert found.spare(new, work, now) == late
    assert found.seconds == sum(waiting[number][1] for _, number in left)


def test_who_would_be_late_counts_all_that_goes_before_it_from_other_blocks() -> None:
    found = filled([*[(1, 4, 100)] * 20, (2, 1, 42)], set())  # it may wait 2 s beside the 40 s of work before it
    assert found.spare(turn(0, 99), 4, 0.0) == inf
    assert found.spare(turn(0, 99), 5, 0.0) == -0.5


@given(WAITING.filter(bool), st.integers(0, 9), st.data())
def test_a_request_that_moves_or_weighs_more_counts_as_if_it_had_come_so(
    waiting: list[tuple[int, int, int]], place: int, data: st.DataObject
) -> None:
    one = data.draw(st.sampled_from(range(len(waiting))))
    found = filled(waiting, set())
    found.move(one, turn(place, one))
    found.weigh(one, 7, 8)
    found.check()
    waiting[one] = place, 7, 8
    same = filled(waiting, set())
    for at in range(10):
        assert found.before(turn(at, 99)) == same.before(turn(at, 99))
        assert found.spare(turn(at, 99), 3, 0.0) == same.spare(turn(at, 99), 3, 0.0)
