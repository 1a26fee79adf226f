"""Messages cross whole, in any cut."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from latebind.domain.actions import Outcome
from latebind.domain.events import Arrived, Cancelled
from latebind.engine.messages import (
    MOST_TOKENS,
    TO_ENGINE,
    Ended,
    EndedReader,
    EventReader,
    Stepped,
    Wrote,
    pack_arrived,
    pack_cancelled,
    pack_ended,
    pack_stepped,
    pack_wrote,
)


def call(
    model: str, deadline: float, rows: list[tuple[int, int, int]], priority: int, trace: int, streams: bool
) -> Arrived:
    requests, slots, inputs = zip(*rows, strict=True)
    return Arrived(model, deadline, requests, slots, inputs, priority=priority, trace=trace, streams=streams)


CALLS = st.lists(
    st.one_of(
        st.builds(Cancelled, st.integers(0, 2**63)),
        st.builds(
            call,
            st.sampled_from(["a", "b"]),
            st.floats(0, 1e9),
            st.lists(
                st.tuples(st.integers(0, 2**63), st.integers(0, 2**31), st.integers(1, 2**31)), min_size=1, max_size=5
            ),
            st.integers(0, 255),
            st.integers(0, 2**32 - 1),
            st.booleans(),
        ),
    ),
    max_size=8,
)


@given(CALLS, st.integers(1, 70))
def test_events_survive_being_cut_anywhere(events: list[Arrived | Cancelled], piece: int) -> None:
    data = b"".join(
        pack_cancelled(event.request)
        if isinstance(event, Cancelled)
        else pack_arrived(
            "ab".index(event.model),
            event.deadline,
            event.requests,
            event.slots,
            event.inputs,
            event.priority,
            event.trace,
            streams=event.streams,
        )
        for event in events
    )
    reader = EventReader(["a", "b"])
    read = [event for at in range(0, len(data), piece) for event in reader.feed(data[at : at + piece])]
    assert [replace(event, more=False) if isinstance(event, Arrived) else event for event in read] == events


def test_a_call_says_so_where_another_of_its_model_has_come_with_it() -> None:
    calls = [pack_arrived(model, 1.0, (number,), (number,)) for number, model in enumerate((0, 0, 1), start=1)]
    data = b"".join((*calls, pack_cancelled(3)))
    found = EventReader(["a", "b"]).feed(data)
    assert [event.more for event in found if isinstance(event, Arrived)] == [True, False, False]


def test_a_call_does_not_wait_for_one_of_which_a_part_is_on_its_way() -> None:
    data = pack_arrived(0, 1.0, (1,), (1,)) + pack_arrived(0, 1.0, (2, 3), (2, 3))
    (found,) = EventReader(["a"]).feed(data[: 2 * TO_ENGINE.size])
    assert isinstance(found, Arrived)
    assert not found.more


ENDINGS = st.lists(
    st.one_of(
        st.builds(
            Ended, st.integers(0, 2**63), st.sampled_from(Outcome), st.integers(-1, 99), st.just(0.5), st.just(0.25)
        ),
        st.builds(
            Stepped,
            st.integers(0, 2**63),
            st.integers(0, 2**15 - 1),
            st.integers(0, 2**16 - 1),
            st.sampled_from(Outcome),
            st.integers(-1, 99),
            st.just(0.5),
            st.just(0.25),
        ),
        st.builds(Wrote, st.integers(0, 2**63), st.integers(1, MOST_TOKENS)),
    ),
    max_size=8,
)


@given(ENDINGS, st.integers(1, 70))
def test_endings_survive_being_cut_anywhere(endings: list[Ended | Stepped | Wrote], piece: int) -> None:
    data = b"".join(packed(ending) for ending in endings)
    reader = EndedReader()
    assert [e for at in range(0, len(data), piece) for e in reader.feed(data[at : at + piece])] == endings


def packed(ending: Ended | Stepped | Wrote) -> bytes:
    if isinstance(ending, Wrote):
        return pack_wrote(ending.request, ending.tokens)
    return pack_ended(ending) if isinstance(ending, Ended) else pack_stepped(ending)


def test_more_tokens_than_a_message_can_tell_are_told_as_the_most() -> None:
    assert EndedReader().feed(pack_wrote(1, MOST_TOKENS + 5)) == [Wrote(1, MOST_TOKENS)]
