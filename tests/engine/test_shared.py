"""What frontend and engine share: messages cross whole in any cut, two mappings see the same rows, places are read."""

import os
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from latebind.domain.actions import Outcome
from latebind.domain.events import Arrived, Cancelled
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.engine.shared import (
    COMPILES,
    IDLE,
    LOADER,
    LOOK_SECONDS,
    MOST_TOKENS,
    NO_STEP,
    TO_ENGINE,
    TO_FRONTEND,
    WORKERS,
    WROTE,
    EventReader,
    Notice,
    NoticeReader,
    Running,
    Watched,
    models_of,
    pack_arrived,
    pack_cancelled,
    pack_wrote,
)
from latebind.engine.slots import SlotMemory, create_file, file_bytes


def call(
    model: str, deadline: float, rows: list[tuple[int, int, int]], priority: int, trace: int, streams: bool, sizes: int
) -> Arrived:
    requests, slots, inputs = zip(*rows, strict=True)
    return Arrived(model, deadline, requests, slots, inputs, priority, trace, streams=streams, sizes=sizes)


REQUESTS = st.integers(0, 2**63)
ROWS = st.lists(st.tuples(REQUESTS, st.integers(0, 2**31), st.integers(1, 2**31)), min_size=1, max_size=5)
CALLS = st.builds(
    call,
    st.sampled_from(["a", "b"]),
    st.floats(0, 1e9),
    ROWS,
    st.integers(0, 255),
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.integers(0, 2**64 - 1),
)


def packed(event: Arrived | Cancelled) -> bytes:
    if isinstance(event, Cancelled):
        return pack_cancelled(event.request)
    model = "ab".index(event.model)
    rows = event.requests, event.slots, event.inputs
    return pack_arrived(model, event.deadline, *rows, event.priority, event.trace, event.sizes, streams=event.streams)


@given(st.lists(st.builds(Cancelled, REQUESTS) | CALLS, max_size=8), st.integers(1, 70))
def test_events_survive_being_cut_anywhere(events: list[Arrived | Cancelled], piece: int) -> None:
    data = b"".join(map(packed, events))
    reader = EventReader(["a", "b"])
    read = [event for at in range(0, len(data), piece) for event in reader.feed(data[at : at + piece])]
    assert [replace(event, more=False) if isinstance(event, Arrived) else event for event in read] == events


def test_a_call_says_so_where_another_of_its_model_has_come_with_it_as_a_whole() -> None:
    calls = [pack_arrived(model, 1.0, (number,), (number,)) for number, model in enumerate((0, 0, 1), start=1)]
    found = EventReader(["a", "b"]).feed(b"".join((*calls, pack_cancelled(3))))
    assert [event.more for event in found if isinstance(event, Arrived)] == [True, False, False]
    (alone,) = EventReader(["a"]).feed((calls[0] + pack_arrived(0, 1.0, (2, 3), (2, 3)))[: 2 * TO_ENGINE.size])
    assert isinstance(alone, Arrived)
    assert not alone.more


TOLD = st.builds(
    Notice,
    st.sampled_from(Outcome),
    st.integers(-1, 99),
    st.sampled_from((NO_STEP, WROTE)) | st.integers(0, 2**15 - 1),
    st.integers(0, 2**16 - 1),
    REQUESTS,
    st.just(0.5),
    st.just(0.25),
)


@given(st.lists(TOLD, max_size=8), st.integers(1, 70))
def test_what_the_engine_tells_survives_being_cut_anywhere(told: list[Notice], piece: int) -> None:
    data = b"".join(TO_FRONTEND.pack(*one) for one in told)
    reader = NoticeReader()
    assert [e for at in range(0, len(data), piece) for e in reader.feed(data[at : at + piece])] == told


def test_more_tokens_than_a_message_can_tell_are_told_as_the_most() -> None:
    assert [one.option for one in NoticeReader().feed(pack_wrote(1, MOST_TOKENS + 5))] == [MOST_TOKENS]


@pytest.fixture
def file() -> Iterator[int]:
    """An empty file in memory."""
    found = create_file()
    yield found
    os.close(found)


def test_two_mappings_see_the_same_rows_and_no_rows_overlap(file: int) -> None:
    specs = [
        ModelSpec("a", "1", (TensorSpec("x", "float32", (3, 5)),), (TensorSpec("y", "float32", (2,)),), 1, 4),
        ModelSpec(
            "b",
            "1",
            (TensorSpec("p", "int64", ()), TensorSpec("q", "bool", (7,))),
            (TensorSpec("y", "uint8", (1,)),),
            1,
            4,
        ),
    ]
    counts = {"a": 9, "b": 5}
    os.ftruncate(file, file_bytes(specs, counts))
    ours, theirs = SlotMemory(file, specs, counts), SlotMemory(file, specs, counts)
    written = [rows for model in ours.models for rows in (*model.inputs, *model.outputs)]
    random = np.random.default_rng(0)
    values = [(random.random(rows.shape) * 2).astype(rows.dtype) for rows in written]
    for rows, value in zip(written, values, strict=True):
        rows[...] = value
    seen = [rows for model in theirs.models for rows in (*model.inputs, *model.outputs)]
    assert [rows.shape for rows in seen] == [(9, 3, 5), (9, 2), (5,), (5, 7), (5, 1)]
    for rows, value in zip(seen, values, strict=True):
        np.testing.assert_array_equal(rows, value)


def test_what_is_overdue_is_late_from_the_second_look_on_and_for_as_long_as_the_frontend_saw(file: int) -> None:
    running, watched, begun = Running(1, file), Watched(file), time.monotonic()
    running.begin(WORKERS, 2, 3, 0.0)
    looks = [(1.0, 0.0), (1.25, 0.25), (99.0, 0.25 + 2 * LOOK_SECONDS)]  # the frontend was away itself
    for seconds, late in looks:
        watched.look(begun + seconds)
        assert watched.seconds == pytest.approx(late)
    assert watched.described(["one", "two"]).startswith("stage 3 of two takes ")
    running.begin(WORKERS, 2, 4, 0.0)  # the next stage
    watched.look(begun + 99.25)
    assert watched.seconds == 0.0


def test_the_frontend_reads_which_models_run_or_are_loaded(file: int) -> None:
    running, watched = Running(4, file), Watched(file)
    for worker, model in ((0, 3), (2, 1), (3, 3)):
        running.begin(WORKERS + worker, model, 0, 1.0)
    assert models_of(watched.places()) == (0, 2)
    for worker in (0, 2, 3):
        running.rest(WORKERS + worker)
    assert models_of(watched.places()) == ()
    running.load(2)
    assert models_of(watched.places()) == (1,)
    running.load(IDLE)
    assert models_of(watched.places()) == ()


def test_a_model_that_is_compiled_meanwhile_is_named_only_where_none_runs(file: int) -> None:
    running, watched, begun = Running(1, file), Watched(file), time.monotonic()
    running.begin(LOADER, 2, COMPILES, 0.0)
    running.begin(WORKERS, 1, 0, 60.0)
    assert models_of(watched.places()) == (0,)
    running.rest(WORKERS)
    assert models_of(watched.places()) == (1,)
    for seconds in (1.0, 1.25):
        watched.look(begun + seconds)
    assert watched.described(["one", "two"]).startswith("compiling two for batches takes ")
