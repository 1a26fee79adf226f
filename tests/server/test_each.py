"""Texts become rows, and rows of different sizes one call: all of them answered, by one version, or none."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latebind.domain.errors import Expired, Failed, InvalidRequest, LatebindError, NotFound, Refused, TooLarge
from latebind.domain.model import About, Media, ModelSpec, RawInput
from latebind.preprocessing.preprocessor import Prepared, Reading
from latebind.server.calls import Call, CallOutput, Tensor, Terms
from latebind.server.each import Superseded
from latebind.server.gateway import NO_DIMS, AdaptationFigures, Answer, Array
from latebind.server.limits import Limits, most_rows
from latebind.server.preparing import FEW, PART, PART_BYTES, parts
from latebind.server.service import Service
from latebind.server.tracing import TracedCall
from tests.server.arithmetic import SPECS_BY_NAME, Arithmetic, Rows
from tests.server.words import LONGEST, Words, numbers

READS = SPECS_BY_NAME["reads"]
TEXTS = ["a b c", "d", "e f", "g h i", "j", "k l"]  # of three lengths


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60.0))


def scores(text: str) -> list[float]:
    ids = numbers(text)
    return [sum(ids), len(ids), -sum(ids)]


async def asked(service: Service, texts: Sequence[str], terms: Terms | None = None, **how: Any) -> list[Answer]:
    rows = await service.prepare(service.gateway.models["reads"], {"text": texts})
    return await service.infer_each(service.gateway.models["reads"], rows, terms or Terms(), **how)


# Rows of different sizes ----------------------------------------------------------------------------------------------


def test_each_row_has_its_own_answer_and_rows_of_one_size_share_a_claim() -> None:
    async def test() -> None:
        gateway = Arithmetic()
        answers = await asked(Service(gateway), TEXTS)
        for text, answer in zip(TEXTS, answers, strict=True):
            np.testing.assert_array_equal(answer.outputs["scores"], [scores(text)])
            np.testing.assert_array_equal(answer.outputs["tags"], [numbers(text)])
            assert (len(answer.left_at), len(answer.waited), len(answer.ran)) == (1, 1, 1)
            assert answer.spec is gateway.models["reads"]
        assert gateway.claims == [(2, {"L": 3}), (2, {"L": 2}), (2, {"L": 1})]  # what is long goes first
        assert gateway.taken == 0

    run(test)


def test_rows_of_one_size_are_one_claim_and_no_task() -> None:
    async def test() -> None:
        gateway = Arithmetic()
        rows = [Prepared({"ids": np.array([7, place + 1]), "mask": np.array([1, 1])}) for place in range(8)]
        before = len(asyncio.all_tasks())
        seen = []
        send = gateway.answer

        async def answer(*words: Any, **more: Any) -> Answer:
            seen.append(len(asyncio.all_tasks()))
            return await send(*words, **more)

        gateway.answer = answer  # type: ignore[method-assign]
        answers = await Service(gateway).infer_each(READS, rows, Terms())
        assert [answer.outputs["tags"][0, 1] for answer in answers] == list(range(1, 9))
        assert seen == [before]
        assert gateway.claims == [(8, {"L": 2})]

    run(test)


@pytest.mark.parametrize("slots", [1, 3, 16])
def test_more_rows_than_places_are_answered_though_many_calls_share_them(slots: int) -> None:
    async def test() -> None:
        gateway = Arithmetic()
        gateway.slots = slots
        texts = [" ".join(f"w{place}-{word}" for word in range(1 + place % 7)) for place in range(40)]
        service = Service(gateway)
        for answers in await asyncio.gather(*[asked(service, texts) for _ in range(5)]):
            told = [answer.outputs["scores"][0].tolist() for answer in answers]
            assert told == [scores(text) for text in texts]
        assert max(rows for rows, _ in gateway.claims) <= min(slots, READS.max_batch)
        assert gateway.taken == 0

    run(test)


class Picky(Arithmetic):
    """Fails for rows of this length, once others wait, and never answers these."""

    def __init__(self, length: int, others: int) -> None:
        super().__init__()
        self.length = length
        self.others = others
        self.left = 0
        self.waiting = asyncio.Event()

    async def answer(self, model: str, rows: Rows, *, deadline: float) -> Answer:
        self.deadlines.append(deadline)
        if rows["ids"].shape[1] == self.length:
            await self.waiting.wait()
            raise Failed("this one")
        self.others -= 1
        if not self.others:
            self.waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left += 1
        raise AssertionError


def test_the_first_failure_cancels_the_others_and_is_what_the_call_fails_with() -> None:
    async def test() -> None:
        gateway = Picky(2, others=2)
        with pytest.raises(Failed, match="this one"):
            await asked(Service(gateway), TEXTS)
        assert gateway.left == 2
        assert gateway.taken == 0

    run(test)


def test_a_failure_ends_a_call_of_which_a_part_still_waits_for_places() -> None:
    async def test() -> None:
        gateway = Picky(3, others=1)
        gateway.slots = 4  # the part of length 1 waits
        with pytest.raises(Failed, match="this one"):
            await asked(Service(gateway), TEXTS)
        assert len(gateway.deadlines) == 2  # no more were sent
        assert gateway.taken == 0

    run(test)


def test_a_call_that_is_cancelled_cancels_all_its_rows() -> None:
    async def test() -> None:
        gateway = Picky(99, others=3)
        call = asyncio.create_task(asked(Service(gateway), TEXTS))
        await gateway.waiting.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert gateway.left == 3
        assert gateway.taken == 0

    run(test)


def test_all_rows_have_the_deadline_of_the_call_which_counts_from_its_beginning() -> None:
    async def test() -> None:
        gateway = Arithmetic()
        began = time.monotonic() - 1.0
        terms = Terms("", 5_000_000, 3, waited=0.5, began=began)
        await asked(Service(gateway), TEXTS, terms)
        assert set(gateway.deadlines) == {began + 4.5}

    run(test)


@pytest.mark.parametrize(("rows", "seconds"), [(1, 2.0), (64, 2.0), (65, 4.0), (200, 8.0)])
def test_a_call_without_a_time_out_has_the_default_for_each_64_rows(rows: int, seconds: float) -> None:
    async def test() -> None:
        gateway, began = Arithmetic(), time.monotonic()
        await asked(Service(gateway, deadline=2.0), ["a"] * rows, Terms(began=began))
        assert set(gateway.deadlines) == {began + seconds}

    run(test)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"ids": np.ones(13, np.int64), "mask": np.ones(13, np.int64)}, r"row 1: tensor 'ids' has L=13"),
        ({"ids": np.ones(3, np.int64), "mask": np.ones(2, np.int64)}, r"row 1: tensor 'mask' has L=2"),
        ({"ids": np.array([1, 100]), "mask": np.array([1, 1])}, r"row 1: tensor 'ids' has values from 1 to 100"),
        ({"ids": np.ones((1, 2), np.int64), "mask": np.ones(2, np.int64)}, r"row 1: tensor 'ids' has shape"),
    ],
)
def test_rows_that_the_model_does_not_take_are_refused_before_any_is_sent(
    tensors: Mapping[str, Array], says: str
) -> None:
    async def test() -> None:
        gateway = Arithmetic()
        right = Prepared({"ids": np.array([1, 2]), "mask": np.array([1, 1])})
        with pytest.raises(InvalidRequest, match=says):
            await Service(gateway).infer_each(READS, [right, Prepared(tensors)], Terms())
        assert not gateway.claims

    run(test)


def test_rows_without_an_input_or_of_another_dtype_are_the_models_fault() -> None:
    async def test() -> None:
        service = Service(Arithmetic())
        wrong: list[dict[str, Array]] = [
            {"ids": np.ones(2, np.int64)},
            {"ids": np.ones(2, np.int32), "mask": np.ones(2, np.int64)},
        ]
        for tensors in wrong:
            with pytest.raises(Failed, match="build the model again"):
                await service.infer_each(READS, [Prepared(tensors)], Terms())

    run(test)


class Watching:
    """An observer that notes which rows it saw."""

    def __init__(self) -> None:
        self.seen: list[list[list[int]]] = []

    def answered(self, spec: ModelSpec, rows: Mapping[str, Sequence[Array]], answer: Answer) -> None:
        self.seen.append([row.tolist() for row in rows["ids"]])

    def figures(self) -> Mapping[str, AdaptationFigures]:
        return {}

    def unwatched(self) -> str:
        return ""


def test_an_observer_sees_every_row_and_a_trace_has_all_of_them() -> None:
    async def test() -> None:
        gateway, observer, exported = Arithmetic(), Watching(), list[TracedCall]()
        service = Service(gateway, observer=observer, trace_rate=1.0, export=exported.append)
        terms = Terms("mine")
        await asked(service, TEXTS, terms)
        await asyncio.sleep(0)
        assert sorted(row for rows in observer.seen for row in rows) == sorted(numbers(text) for text in TEXTS)
        assert gateway.taken == 0
        await service.close()
        (call,) = exported
        assert (call.id, call.count, call.outcome) == ("mine", 6, "answered")
        assert terms.began == call.began <= call.read <= call.ended
        assert service.reading["reads"].count == 1
        assert len(call.rows) == 3  # this gateway tells of each claim, an engine of each row

    run(test)


def test_a_server_that_drains_takes_no_such_call() -> None:
    async def test() -> None:
        service = Service(Arithmetic())
        rows = await service.prepare(READS, {"text": ["a"]})
        service.drain()
        with pytest.raises(LatebindError, match="shutting down"):
            await service.infer_each(READS, rows, Terms())

    run(test)


# Another version takes over -------------------------------------------------------------------------------------------


class Turning(Arithmetic):
    """Has another version take over behind the first claim: of the same files, or of others."""

    def __init__(self, *, same_files: bool, reads_alike: bool = False) -> None:
        super().__init__()
        self.same_files = same_files
        self.reads_alike = reads_alike

    async def claim(
        self, model: str, rows: int, *, deadline: float, priority: int = 0, dims: Mapping[str, int] = NO_DIMS
    ) -> Any:
        claim = await super().claim(model, rows, deadline=deadline, priority=priority, dims=dims)
        if len(self.claims) == 1:
            there = self.models["reads"]
            self.models = {**self.models, "reads": replace(there, version="1" if self.same_files else "2")}
            if not self.same_files and not self.reads_alike:
                self.preprocessors["reads"] = Words()
        return claim


def test_another_engine_with_the_same_files_answers_the_rest() -> None:
    async def test() -> None:
        gateway = Turning(same_files=True)
        answers = await asked(Service(gateway), TEXTS)
        assert [answer.outputs["scores"][0].tolist() for answer in answers] == [scores(text) for text in TEXTS]
        assert len(gateway.claims) == 3

    run(test)


def test_rows_that_one_version_read_are_not_answered_by_another() -> None:
    async def test() -> None:
        gateway = Turning(same_files=False)
        with pytest.raises(Superseded, match="send the request again"):
            await asked(Service(gateway), TEXTS)
        assert gateway.taken == 0

    run(test)


def test_rows_of_one_call_are_all_asked_anew_where_a_version_that_reads_alike_takes_over() -> None:
    async def test() -> None:
        gateway = Turning(same_files=False, reads_alike=True)
        answers = await asked(Service(gateway), TEXTS)
        assert [answer.outputs["scores"][0].tolist() for answer in answers] == [scores(text) for text in TEXTS]
        assert len(gateway.claims) == 5, "one by the first version, one that shows the second, and three by that alone"
        assert gateway.taken == 0

    run(test)


def test_a_call_with_texts_is_read_and_answered_anew_by_the_version_that_took_over() -> None:
    async def test() -> None:
        gateway = Turning(same_files=False)
        service, before = Service(gateway), gateway.models["reads"]
        answer, rows = await service.infer_raw(before, call_of("scores"), {"text": TEXTS})
        assert answer.spec is gateway.models["reads"]
        assert answer.outputs["scores"].tolist() == [scores(text) for text in TEXTS]
        assert [row.used for row in rows] == [3, 1, 2, 3, 1, 2]
        assert gateway.taken == 0

    run(test)


def test_a_call_that_wants_its_version_is_not_answered_by_the_one_that_took_over() -> None:
    async def test() -> None:
        gateway = Turning(same_files=False)
        with pytest.raises(NotFound, match="no version '1': it has 2"):
            await Service(gateway).infer_raw(READS, call_of("scores"), {"text": TEXTS}, version="1")
        assert gateway.taken == 0

    run(test)


def call_of(*outputs: str, **about: Any) -> Call:
    tensors = [Tensor(tensor) for tensor in READS.outputs if tensor.name in outputs]
    return Call((), 1, tuple([CallOutput(tensor, binary=False) for tensor in tensors]), **about)


# What is read ---------------------------------------------------------------------------------------------------------


def test_outputs_that_are_as_large_as_their_rows_are_refused_before_rows_of_several_sizes_are_sent() -> None:
    async def test() -> None:
        gateway = Arithmetic()
        service = Service(gateway)
        with pytest.raises(InvalidRequest, match="each as a separate call"):
            await service.infer_raw(READS, call_of("scores", "tags"), {"text": ["a", "b c"]})
        assert not gateway.claims
        answer, _ = await service.infer_raw(READS, call_of("scores", "tags"), {"text": ["a d", "b c"]})
        assert answer.outputs["tags"].tolist() == [numbers("a d"), numbers("b c")]

    run(test)


def test_a_few_short_texts_are_read_at_once_and_all_others_in_threads() -> None:
    async def test() -> None:
        gateway, words = Arithmetic(), Words()
        gateway.preprocessors["reads"] = words
        service = Service(gateway)
        await service.prepare(READS, {"text": ["a"] * FEW})
        assert words.threads == [threading.current_thread().name]
        await service.prepare(READS, {"text": ["a"] * (FEW + 1)})
        await service.prepare(READS, {"text": ["a " * 3000]}, Reading(truncate=True))
        assert all(name.startswith("latebind-preparing") for name in words.threads[1:])
        assert len(words.threads) == 3
        await service.close()

    run(test)


def test_two_texts_make_a_row_and_the_second_may_be_left_out() -> None:
    async def test() -> None:
        service = Service(Arithmetic())
        (row,) = await service.prepare(READS, {"text": ["a"], "text_pair": ["b"]})
        assert row.tensors["ids"].tolist() == [*numbers("a"), 1, *numbers("b")]
        (row,) = await service.prepare(READS, {"text": ["a"]}, Reading(prompt="query"))
        assert row.tensors["ids"].tolist() == numbers("query a")

    run(test)


def test_the_parts_that_threads_take_cover_all_elements_in_their_order() -> None:
    assert list(parts([1])) == [(0, 1)]
    assert list(parts([1] * (2 * PART + 1))) == [(0, PART), (PART, 2 * PART), (2 * PART, 2 * PART + 1)]
    assert list(parts([PART_BYTES * 2, 1, PART_BYTES, 5])) == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_an_error_of_a_later_part_names_the_element_as_the_call_has_it() -> None:
    async def test() -> None:
        service = Service(Arithmetic())
        texts = ["a"] * (PART + 40)
        texts[PART + 7] = " "
        with pytest.raises(InvalidRequest, match=f"^element {PART + 7} of 'text' has no words"):
            await service.prepare(READS, {"text": texts})
        await service.close()

    run(test)


REFUSED: list[tuple[Any, type[Exception], str]] = [
    ({}, InvalidRequest, "'text' is missing"),
    ({"text_pair": ["a"]}, InvalidRequest, "'text' is missing"),
    ({"text": ["a"], "image": [b"a"]}, InvalidRequest, "no input 'image'"),
    ({"text": ["a", "b"], "text_pair": ["a"]}, InvalidRequest, "different numbers of elements"),
    ({"text": []}, InvalidRequest, "no rows"),
    ({"text": ["a"] * 2049}, TooLarge, "2049 rows"),
    ({"text": ["a" * 5_000_000] * 8}, TooLarge, "40000000 bytes"),
    ({"text": ["a", "b\0c"]}, InvalidRequest, "element 1 of 'text' has a NUL"),
    ({"text": ["\ud83d"]}, InvalidRequest, "half of a surrogate pair"),
    ({"text": [b"a"]}, InvalidRequest, "is no text"),
    ({"text": ["a " * (LONGEST + 1)]}, InvalidRequest, f"13 words, and the model takes {LONGEST}"),
]


@pytest.mark.parametrize(("given", "error", "says"), REFUSED, ids=[says for *_, says in REFUSED])
def test_what_cannot_be_read_is_refused_and_says_why(given: Any, error: type[Exception], says: str) -> None:
    async def test() -> None:
        with pytest.raises(error, match=says):
            await Service(Arithmetic()).prepare(READS, given)

    run(test)


def test_a_reply_tells_the_tokens_of_texts_alone_and_what_was_cut_of_all() -> None:
    service = Service(Arithmetic())
    hears = replace(READS, about=About(raw=(RawInput("sound", Media.SOUND),)))
    rows = [Prepared({}, used=8), Prepared({}, used=9, cut=2)]
    assert service.reading_parameters(READS, rows) == {"tokens": [8, 9], "truncated": [False, True]}
    assert service.reading_parameters(hears, rows) == {"truncated": [False, True]}  # it has samples
    assert service.reading_parameters(READS, rows[:1]) == {"tokens": 8}


def test_a_model_of_tensors_reads_nothing() -> None:
    async def test() -> None:
        gateway = Arithmetic()
        with pytest.raises(InvalidRequest, match="takes only tensors"):
            await Service(gateway).prepare(gateway.models["double"], {"text": ["a"]})

    run(test)


def test_how_many_rows_a_call_may_have_follows_from_what_they_and_their_answers_take() -> None:
    limits = Limits(max_rows=4, elements=100, made_bytes=10 * READS.inputs[0].row_bytes * 2)
    assert most_rows(READS, limits) == 10
    assert most_rows(READS, replace(limits, made_bytes=1)) == 4
    assert most_rows(READS, replace(limits, made_bytes=1 << 40)) == 100


# The line before the threads ------------------------------------------------------------------------------------------


class Held:
    """Holds whoever reads until it is let go; `begun` counts them."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self._go = threading.Event()

    def __call__(self) -> None:
        self.begun.release()
        assert self._go.wait(60.0)

    def go(self) -> None:
        self._go.set()


MANY = {"text": ["a"] * (FEW + 1)}


def holding(limits: Limits) -> tuple[Service, Held]:
    gateway, held = Arithmetic(), Held()
    gateway.preprocessors["reads"] = Words(held)
    return Service(gateway, limits=limits), held


def test_calls_beyond_the_line_are_refused_at_once_and_those_in_it_are_read() -> None:
    async def test() -> None:
        service, held = holding(Limits(preparing=1, preparing_calls=3))
        calls = [asyncio.create_task(service.prepare(READS, MANY)) for _ in range(3)]
        await asyncio.to_thread(held.begun.acquire)
        with pytest.raises(Refused, match="3 calls wait for their inputs to be read"):
            await service.prepare(READS, MANY)
        held.go()
        assert [len(rows) for rows in await asyncio.gather(*calls)] == [FEW + 1] * 3
        assert len(await service.prepare(READS, MANY)) == FEW + 1
        await service.close()

    run(test)


def test_a_call_for_which_no_memory_is_left_is_refused_and_not_blamed() -> None:
    def none_left() -> None:
        raise MemoryError

    async def test() -> None:
        gateway = Arithmetic()
        gateway.preprocessors["reads"] = Words(none_left)
        for texts in (MANY, {"text": ["a"]}):
            with pytest.raises(Refused, match="not enough memory"):
                await Service(gateway).prepare(READS, texts)

    run(test)


def test_late_and_cancelled_calls_leave_the_line() -> None:
    async def test() -> None:
        service, held = holding(Limits(preparing=1, preparing_calls=2))
        first = asyncio.create_task(service.prepare(READS, MANY))
        await asyncio.to_thread(held.begun.acquire)
        with pytest.raises(Expired, match="allow more time"):
            await service.prepare(READS, MANY, terms=Terms(timeout=1000))
        second = asyncio.create_task(service.prepare(READS, MANY))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        third = asyncio.create_task(service.prepare(READS, MANY))
        await asyncio.sleep(0)
        first.cancel()  # its thread goes on, for nobody, and is free then
        held.go()
        assert len(await third) == FEW + 1
        await service.close()

    run(test)
