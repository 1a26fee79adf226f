"""Requests that wait, in the orders of arrival and of deadlines; and the work of all, beside a list sorted anew."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from latebind.batching.requests import Backlog, Order, Queue, Request, Turn


def filled(*waiting: tuple[float, float, int]) -> Queue:
    """Requests 0, 1, ... that came at a time, with a deadline and a length."""
    queue = Queue(Order.DEADLINE)
    for number, (arrived, deadline, inputs) in enumerate(waiting):
        queue.add(Request(number, "net", number, deadline, arrived, inputs))
    return queue


def numbers(requests: list[Request]) -> list[int]:
    return [request.id for request in requests]


@given(st.lists(st.tuples(st.floats(0, 9), st.integers(0, 255)), max_size=20), st.integers(0, 20), st.data())
def test_who_has_a_priority_goes_before_the_others_in_both_orders(
    waiting: list[tuple[float, int]], count: int, data: st.DataObject
) -> None:
    left = range(len(waiting))
    gone = data.draw(st.sets(st.sampled_from(left))) if waiting else set()
    ranks = {number: waiting[number][1] or 256 for number in left if number not in gone}
    for order in Order:
        queue = Queue(order)
        for number, (deadline, priority) in enumerate(waiting):
            queue.add(Request(number, "net", number, deadline, 0.0, priority=priority))
        for number in gone:
            queue.remove(number)
        due = {number: waiting[number][0] if order is Order.DEADLINE else 0.0 for number in ranks}
        first = sorted(ranks, key=lambda number: (ranks[number], due[number], number))
        assert numbers(queue.first(count)) == numbers(queue.alike(count)) == first[:count]
        if first and order is Order.DEADLINE:
            assert [queue.due_last(n + 1) for n in range(len(first))] == sorted(due.values(), reverse=True)


def test_a_priority_is_not_passed_over_for_a_near_deadline() -> None:
    queue = Queue(Order.DEADLINE)
    for number, (deadline, priority) in enumerate(((1.0, 0), (2.0, 3), (3.0, 0), (4.0, 3))):
        queue.add(Request(number, "net", number, deadline, 0.0, priority=priority))
    assert numbers(queue.first(9, due=2.5)) == [1, 3, 2]
    assert numbers(queue.first(2, due=2.5)) == [1, 3]


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from((0, 0, 0, 1, 2))), max_size=12), st.sampled_from(Order))
def test_a_newcomer_goes_behind_as_many_as_the_queue_names_before_it(
    waiting: list[tuple[int, int]], order: Order
) -> None:
    queue = Queue(order)
    for number, (deadline, priority) in enumerate(waiting[1:]):
        queue.add(Request(number, "net", number, deadline, 0.0, priority=priority))
    deadline, priority = waiting[0] if waiting else (5, 0)
    ahead = queue.ahead(order.turn(deadline, 0.0, priority, 99))
    queue.add(Request(99, "net", 99, deadline, 0.0, priority=priority))
    assert numbers(queue.first(99)).index(99) == ahead


def test_with_the_most_urgent_go_those_of_its_length() -> None:
    queue = filled(*((0, due, length) for due, length in ((1, 20), (2, 50), (3, 21), (4, 5), (5, 19), (6, 20))))
    assert numbers(queue.alike(2)) == [0, 2]  # of the four most urgent
    assert numbers(queue.alike(3)) == [0, 5, 2]
    assert numbers(queue.alike(6)) == [0, 1, 2, 3, 4, 5]


def test_the_rate_follows_arrivals_and_falls_in_silence() -> None:
    queue = filled(*((0.1 * number, 99, 1) for number in range(200)))
    assert 9.9 < queue.rate(19.9) < 10.1
    assert 9.0 < queue.rate(20.1) < 10.0  # a pause of twice the usual is nothing
    assert queue.rate(24.9) < 3.0
    assert queue.rate(119.9) < 0.21


WAITING = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4), st.integers(-5, 30)), max_size=40)


def turn(place: float, number: int) -> Turn:
    return 256, place, number


def backlog_of(waiting: list[tuple[int, int, int]], gone: set[int]) -> Backlog:
    """Requests 0, 1, ... with a place, seconds of work and the latest start; those of `gone` came and left."""
    found = Backlog(at_once=2)
    for number, (place, work, latest) in enumerate(waiting):
        found.add(turn(place, number), work, latest)
    for number in gone:
        found.remove(turn(waiting[number][0], number))
    return found


@given(WAITING, st.integers(0, 9), st.integers(1, 5), st.integers(0, 5), st.data())
def test_it_says_what_goes_before_a_request_and_who_would_be_late_behind_it(
    waiting: list[tuple[int, int, int]], place: int, work: int, now: int, data: st.DataObject
) -> None:
    gone = data.draw(st.sets(st.sampled_from(range(len(waiting))))) if waiting else set()
    found = backlog_of(waiting, gone)
    left = sorted((at, number) for number, (at, _, _) in enumerate(waiting) if number not in gone)
    found.check([turn(*one) for one in left])
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
