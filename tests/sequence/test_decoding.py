"""Sequence models in a worker: the answers are those of each request alone, whatever the schedule."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latebind.domain.actions import Run
from latebind.domain.config import EngineConfig, PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.events import Arrived, Cancelled, Event
from latebind.engine.loaded import LoadedModel, load_model
from latebind.engine.slots import Extents, SizedSlots, SlotMemory, create_file, file_bytes
from latebind.engine.worker import Worker
from latebind.repository.listing import find_models
from latebind.scheduler import Scheduler
from latebind.sequence.program import SequenceProgram, answer_all
from research.policies import BATCHING
from tests.playing import play
from tests.sequences import backwards, rows_of, some_sentences

SLOTS = 12
SENTENCES = some_sentences(SLOTS)


@pytest.fixture(scope="module")
def loaded(models: Path) -> dict[str, LoadedModel]:
    paths = find_models(models, ["backwards", "chain"])
    return {model.spec.name: model for model in (load_model(path, EngineConfig()) for path in paths)}


class Sentences:
    """The slots of `backwards`, each with room for a sentence of its own length."""

    def __init__(self, sized: SizedSlots, extents: Extents) -> None:
        self._sized = sized
        self._extents = extents
        self._begins: dict[int, int] = {}

    def write(self, slot: int, words: Sequence[int], *, width: int = 0) -> None:
        """Put a sentence into a slot, which had another one; filled up to `width` as clients may."""
        if slot in self._begins:
            self._extents.free(self._begins[slot])
        sizes = (max(width, len(words)),)
        begin = self._begins[slot] = self._extents.take(self._sized.bytes_of(1, sizes)) or 0
        assert begin, "there is room"
        self._sized.place(begin, [slot], sizes)
        self._sized.row(slot, 0)[:] = rows_of([words], sizes[0]).numpy()[0]

    def said(self, slot: int) -> list[int]:
        return [int(word) for word in self._sized.row(slot, 1) if word]


def with_worker(models: dict[str, LoadedModel]) -> tuple[Worker, Sentences]:
    specs = [model.spec for model in models.values()]
    fd = create_file()
    os.ftruncate(fd, file_bytes(specs, dict.fromkeys(models, SLOTS)))
    memory = SlotMemory(fd, specs, dict.fromkeys(models, SLOTS))
    os.close(fd)
    sized = memory.by_name["backwards"].sized
    assert sized is not None
    rows = Sentences(sized, memory.extents())
    for slot, words in enumerate(SENTENCES):
        rows.write(slot, words)
    return Worker(models, memory), rows


@given(data=st.data(), policy=st.sampled_from(tuple(BATCHING.values())))
def test_whatever_the_schedule_answers_are_those_of_requests_alone(
    loaded: dict[str, LoadedModel], data: st.DataObject, policy: str
) -> None:
    worker, rows = with_worker(loaded)
    served = tuple(ServedModel(model.spec, model.costs, SLOTS) for model in loaded.values())
    scheduler = Scheduler(SchedulerConfig(served, 1, PolicyConfig(policy, max_batch=4, shed=False)))
    coming: list[Event] = [
        Arrived("backwards", 1e9, (slot,), (slot,), (len(SENTENCES[slot]),)) for slot in range(SLOTS)
    ]
    coming.insert(4, Arrived("chain", 1e9, (100, 101), (0, 1)))
    coming.insert(9, Cancelled(3))
    ended: set[int] = set()
    for reply in play(worker, scheduler, coming, lambda: data.draw(st.booleans())):
        assert reply.request not in ended
        ended.add(reply.request)
        if reply.request < SLOTS and reply.request != 3:
            assert rows.said(reply.request) == backwards(SENTENCES[reply.request])
    assert ended == {*range(SLOTS), 100, 101}


def test_a_slot_that_is_used_again_knows_nothing_of_before(loaded: dict[str, LoadedModel]) -> None:
    worker, rows = with_worker(loaded)
    for words in ([5, 6, 7, 8], [9], [4, 4]):
        rows.write(2, words)
        worker.run(Run(0, "backwards", 0, (1,), (2,)))
        done: tuple[int, ...] = ()
        while not done:
            done = worker.run(Run(0, "backwards", 1, (1,), (2,))).exited
        assert rows.said(2) == backwards(words)


def test_who_is_complete_may_come_again_after_steps_of_others(loaded: dict[str, LoadedModel]) -> None:
    worker, rows = with_worker(loaded)
    short, long, other = [5], [6, 7, 8, 9], [4, 4]
    for slot, words in enumerate((short, long, other)):
        rows.write(slot, words, width=5)
    together = Run(0, "backwards", 1, (1, 2), (0, 1))
    worker.run(Run(0, "backwards", 0, (1, 2), (0, 1)))
    while worker.run(together).exited != (1,):
        pass
    worker.run(Run(0, "backwards", 0, (3,), (2,)))
    worker.run(Run(0, "backwards", 1, (3,), (2,)))
    while set(worker.run(together).exited) != {1, 2}:
        pass
    while not worker.run(Run(0, "backwards", 1, (3,), (2,))).exited:
        pass
    assert [rows.said(slot) for slot in range(3)] == [backwards(words) for words in (short, long, other)]


def test_an_answer_without_an_end_stops_where_it_may_be_no_longer(loaded: dict[str, LoadedModel]) -> None:
    program = loaded["backwards"].program
    assert isinstance(program, SequenceProgram)
    never = replace(program.marks, end=999)
    endless = replace(program, marks=never)
    answers = answer_all(endless, rows_of([[5, 6]]).numpy())
    assert np.count_nonzero(answers[0]) == program.longest_output


@pytest.mark.parametrize("sizes", [(), (1, 2, 4, 8), (3, 8)])
def test_rows_that_fill_up_a_batch_to_a_better_size_change_nothing(
    loaded: dict[str, LoadedModel], sizes: tuple[int, ...]
) -> None:
    program = loaded["backwards"].program
    assert isinstance(program, SequenceProgram)
    sentences = some_sentences(30, seed=3)
    answers = answer_all(replace(program, sizes=sizes), rows_of(sentences).numpy())
    assert [[int(word) for word in row if word] for row in answers] == [backwards(words) for words in sentences]


def test_requests_that_have_ended_leave_no_rows(loaded: dict[str, LoadedModel]) -> None:
    worker, _ = with_worker(loaded)
    rows = worker._sequences["backwards"]._rows
    most = len(rows._owners)
    for round in range(3):
        for slot in range(SLOTS):
            request = 1 + round * SLOTS + slot
            worker.run(Run(0, "backwards", 0, (request,), (slot,)))
            worker.owners.end(request)  # its client has gone
    assert len(rows._owners) == most < SLOTS
    assert len(rows.owners) == 1  # that of the last, until this worker reads or steps again
    assert len(worker.owners) == 0
