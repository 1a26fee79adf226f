"""The ledger finds what must never be, and nothing where there is nothing."""

import asyncio
import os
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latebind.bench.client import poisson
from latebind.bench.ledger.books import Answer, End, Fault, Ledger
from latebind.bench.ledger.faults import busiest_engine
from latebind.bench.ledger.play import Played, end_rows, fault_rows, growth, play
from latebind.bench.ledger.questions import KINDS, Manner, Mix, Protocol, Questions
from latebind.domain.errors import ConfigError
from tests.bench.ledger.liar import EVERY, Lie, lying

MIX = Mix(models=("affine", "chain", "words"), protocols=(Protocol.JSON,), deadlines=(5.0,), leave=0.0, break_off=0.0)
REQUESTS = 60
ONE_MODEL = {model: Questions(Mix(models=(model,))) for model in KINDS}


def played_with(lie: Lie, mix: Mix = MIX) -> Played:
    patience = 4.0 - max(mix.deadlines) if lie is Lie.SILENCE else 15.0  # past the deadline

    async def run() -> Played:
        async with lying(lie) as target:
            return await play(target, Questions(mix), poisson(2000, Random(0)), REQUESTS, patience=patience)

    return asyncio.run(run())


def test_nothing_is_found_where_all_answers_are_right() -> None:
    ledger = played_with(Lie.NONE).ledger
    assert ledger.whole
    assert len(ledger.good.due) == ledger.asked_count == REQUESTS


@pytest.mark.parametrize(
    ("lie", "fault", "words"),
    [
        (Lie.SILENCE, Fault.LOST, "has no answer: none came"),
        (Lie.HANGS_UP, Fault.LOST, "closed the connection"),
        (Lie.TWICE, Fault.DUPLICATE, "that nobody asked for"),
        (Lie.ANOTHERS, Fault.SWAPPED, "has the answer to request"),
        (Lie.WRONG_ID, Fault.SWAPPED, "under the id '1000000'"),
        (Lie.WRONG, Fault.WRONG, "was answered array"),
        (Lie.BROKEN, Fault.WRONG, "was answered None"),
        (Lie.ERROR, Fault.FAILED, "was answered 500: a bug"),
    ],
)
def test_every_lie_is_found_and_told(lie: Lie, fault: Fault, words: str) -> None:
    ledger = played_with(lie, Mix(("affine",), MIX.protocols, deadlines=(5.0,), leave=0.0, break_off=0.0)).ledger
    assert ledger.faults == {fault: REQUESTS // EVERY}
    assert words in ledger.evidence[0]
    assert not ledger.open


def test_refusals_are_answers() -> None:
    played = played_with(Lie.REFUSAL)
    assert played.ledger.whole
    assert len(played.ledger.times[End.REFUSED].due) == REQUESTS // EVERY
    assert fault_rows(played) == [{"requests": REQUESTS, **{str(fault): 0 for fault in Fault}}]
    assert [row["end"] for row in end_rows(played)] == ["answered", "refused", "right and in time"]


def test_who_hangs_up_waits_for_nothing() -> None:
    mix = Mix(MIX.models, MIX.protocols, deadlines=(0.0,), leave=0.5, break_off=0.5)
    ledger = played_with(Lie.SILENCE, mix).ledger
    assert ledger.whole
    assert len(ledger.times[End.LEFT].due) + len(ledger.times[End.ANSWERED].due) == REQUESTS
    assert len(ledger.times[End.LEFT].due) >= REQUESTS // 4


@given(st.sampled_from(list(KINDS)), st.integers(0, 4_000_000))
def test_a_question_can_be_made_again_and_has_an_answer_of_its_own(model: str, number: int) -> None:
    first, again, other = (ONE_MODEL[model][n] for n in (number, number, number + 1))
    assert np.array_equal(first.rows, again.rows)
    assert (first.protocol, first.manner, first.leaves) == (again.protocol, again.manner, again.leaves)
    assert not np.array_equal(first.right, other.right)


def test_questions_are_mixed_as_told() -> None:
    mix = Mix(leave=0.25, break_off=0.1)
    questions = Questions(mix)
    some = [questions[number] for number in range(2000)]
    assert {one.model for one in some} == set(mix.models)
    assert {one.protocol for one in some} == set(mix.protocols)
    assert {len(one.rows) for one in some} == set(range(1, 9))
    assert {one.priority for one in some} == {0, 1, 2, 3}
    assert 0.2 < sum(one.manner is Manner.LEAVES for one in some) / len(some) < 0.3
    assert not any(one.manner is Manner.BREAKS_OFF for one in some if one.protocol is Protocol.GRPC)


def test_a_right_answer_past_its_deadline_is_no_good() -> None:
    questions = Questions(MIX)
    ledger = Ledger()
    for number, seconds in ((0, 4.9), (1, 5.1)):
        ledger.ask(questions[number], due=10.0)
        ledger.answer(number, Answer(str(number), questions[number].right), now=10.0 + seconds)
    assert ledger.whole
    assert list(ledger.good.seconds) == pytest.approx([4.9])


def test_a_second_end_of_a_request_is_found() -> None:
    questions = Questions(MIX)
    ledger = Ledger()
    ledger.ask(questions[3], due=0.0)
    ledger.refuse(3, End.REFUSED, now=1.0)
    ledger.answer(3, Answer("3", questions[3].right), now=2.0)
    assert ledger.faults == {Fault.DUPLICATE: 1}


def test_growth_is_counted_from_when_everything_was_used_once() -> None:
    sizes = [100, *[500] * 19, *[500 + step for step in range(80)]]
    assert growth([(float(place), size) for place, size in enumerate(sizes)]) == pytest.approx(75, abs=3)
    assert growth([]) == 0


def test_faults_need_an_engine() -> None:
    with pytest.raises(ConfigError, match="has no engine"):
        busiest_engine(os.getpid())
