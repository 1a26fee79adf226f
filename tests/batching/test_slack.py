"""Slack by the profile, and the work of a request by algorithm 1 of LazyBatching."""

import pytest

from latebind.batching.estimate import Estimate
from latebind.batching.queue import Queue
from latebind.batching.request import Request
from latebind.batching.slack import Slack
from latebind.batching.table import SubBatch
from latebind.batching.view import ModelView, WorkView
from latebind.domain.config import ServedModel
from latebind.domain.costs import Curve
from tests.batching.chains import DECODER, ENCODER, STATIC, chain
from tests.batching.views import models_of

STEEP = Curve((1, 2), (1.0, 2.0))


def view(served: ServedModel, *running: Request, stage: int = 0) -> tuple[WorkView, ModelView]:
    model = ModelView(served.spec, Estimate(served.spec, served.costs), Queue())
    entries = [SubBatch(served.spec, {request.id: request for request in running}, stage)] if running else []
    return WorkView(models_of(model), entries), model


def request(number: int, *, arrived: float, due: float, started: float = 0.0, steps: int = 0) -> Request:
    return Request(number, "net", number, due, arrived, started=started, steps=steps)


def test_a_request_takes_what_algorithm_1_says() -> None:
    served = chain(STATIC, ENCODER, DECODER, output_steps=tuple(range(1, 11)))
    estimate = Estimate(served.spec, served.costs)
    assert estimate.outputs == 9  # nine of ten answers are no longer
    assert estimate.whole(1, inputs=4) == 1 + 4 + 9
    assert estimate.whole(1, inputs=4, outputs=2) == 1 + 4 + 2


@pytest.mark.parametrize(("stage", "step"), [(0, 0), (1, 0), (1, 2), (2, 0)])
def test_what_has_run_and_what_is_left_are_the_whole(stage: int, step: int) -> None:
    served = chain(STATIC, ENCODER, STATIC, curve=STEEP)
    estimate = Estimate(served.spec, served.costs)
    for batch in (1, 2, 5):
        parts = estimate.between(batch, stage, step, 4) + estimate.rest(batch, stage, step, 4)
        assert parts == pytest.approx(estimate.whole(batch, 4))


def test_by_profile_a_flat_curve_lets_more_in_and_what_is_done_counts() -> None:
    flat, steep = chain(*(STATIC,) * 8), chain(*(STATIC,) * 8, curve=STEEP)
    waiting = [request(number, arrived=4, due=40) for number in range(2, 8)]
    running = request(1, arrived=0, due=16, started=2)
    seen, model = view(flat, running, stage=2)
    assert Slack().all_in_time(seen, model, waiting, 4)  # two to catch up and six together end at 12
    seen, model = view(steep, running, stage=2)
    assert not Slack().all_in_time(seen, model, waiting[:1], 4)  # two to catch up and six of two seconds end at 18


def test_who_is_late_already_keeps_nobody_out() -> None:
    seen, model = view(chain(*(STATIC,) * 8), request(1, arrived=0, due=5, started=2), stage=2)
    assert Slack().all_in_time(seen, model, [request(2, arrived=4, due=40)], 4)


def test_those_below_must_be_in_time_too() -> None:
    """The newest batch is of another model: who waits under it goes on only when both are through."""
    below, above = chain(*(STATIC,) * 8, name="below"), chain(*(STATIC,) * 4, name="above")
    models = [ModelView(served.spec, Estimate(served.spec, served.costs), Queue()) for served in (below, above)]
    for due, fits in ((14, True), (11, False)):
        first = request(1, arrived=0, due=due)
        second = request(2, arrived=0, due=100)
        entries = [SubBatch(below.spec, {1: first}, 2), SubBatch(above.spec, {2: second}, 2)]
        newcomers = [request(3, arrived=0, due=100)]
        assert Slack().all_in_time(WorkView(models_of(*models), entries), models[1], newcomers, 2.0) is fits


def test_who_has_written_for_long_is_taken_to_write_a_long_answer() -> None:
    served = chain(DECODER, output_steps=(*(2,) * 18, 5, 9))
    estimate = Estimate(served.spec, served.costs)
    assert [estimate.outputs_after(steps) for steps in (0, 1, 2, 5, 9, 20)] == [2, 2, 9, 9, 10, 21]


def test_nobody_is_let_past_who_would_make_a_long_answer_late() -> None:
    """Three steps of an answer that is one of the few long ones: six more end at 6, and with a newcomer's read at 7."""
    served = chain(STATIC, DECODER, output_steps=(*(2,) * 9, 5, 9))
    newcomer = request(2, arrived=0.0, due=100.0)
    for due, lets in ((6.5, False), (7.5, True)):
        seen, model = view(served, request(1, arrived=-4.0, due=due, steps=3), stage=1)
        assert Slack().all_in_time(seen, model, [newcomer], 0.0) is lets
