"""Who waits, in the order of arrival and of deadlines."""

from hypothesis import given
from hypothesis import strategies as st

from latebind.batching.queue import Queue
from latebind.batching.request import Request


def filled(*waiting: tuple[float, float, int]) -> Queue:
    """Requests 0, 1, ... that came at a time, with a deadline and a length."""
    queue = Queue()
    for number, (arrived, deadline, inputs) in enumerate(waiting):
        queue.add(Request(number, "net", number, deadline, arrived, inputs))
    return queue


def numbers(requests: list[Request]) -> list[int]:
    return [request.id for request in requests]


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), max_size=20), st.data())
def test_both_orders_hold_whoever_leaves(waiting: list[tuple[float, float]], data: st.DataObject) -> None:
    waiting.sort()
    queue = filled(*((arrived, deadline, 1) for arrived, deadline in waiting))
    gone = data.draw(st.sets(st.sampled_from(range(len(waiting))))) if waiting else set()
    for number in gone:
        queue.remove(number)
    left = [number for number in range(len(waiting)) if number not in gone]
    assert numbers(queue.first(99)) == list(queue) == left
    assert numbers(queue.urgent(99)) == sorted(left, key=lambda number: (waiting[number][1], number))
    assert len(queue) == len(left)


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


def test_a_pause_between_crowds_is_no_silence() -> None:
    queue = filled(*((0.1 * number, 99, 1) for number in range(200) for _ in range(16)))
    assert 80 < queue.rate(19.99) < 320
