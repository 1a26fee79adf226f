"""Thresholds that follow the answers: Apparate's tuning over lookups that are given."""

import numpy as np
import pytest
from numpy.typing import NDArray

from latebind.learned.compose import Costs
from latebind.learned.promise import Promise
from latebind.learned.samples import checked
from research.gati.apparate import EVERY, WINDOW, answered, follow, in_order, seconds_saved, tune, unsure, worth
from research.gati.models import CachedModel
from research.gati.routes import Plan
from tests.research.conftest import quiet
from tests.texts import FIDELITY, unseen

SAVED = np.array([3.0, 1.0])


def drawn(count: int, *, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Errors that two exits expect of requests, and whether they would be right: as often as they expect."""
    generator = np.random.default_rng(seed)
    errors = generator.random((2, count)) * np.array([[1.0], [0.4]])
    return errors, generator.random((2, count)) >= errors


def test_requests_leave_by_the_first_exit_that_expects_few_errors_or_at_the_end() -> None:
    errors = np.array([[0.1, 0.5, 0.5, 0.0], [0.1, 0.1, 0.5, 0.0]])
    assert answered(errors, np.array([0.2, 0.2])).tolist() == [0, 1, 2, 0]
    assert answered(errors, np.zeros(2)).tolist() == [2, 2, 2, 2]  # nobody, to begin with
    right = np.array([[True, False, False, True], [False, False, True, True]])
    assert worth(errors, right, SAVED, np.array([0.2, 0.2])) == (0.75, (3.0 + 1.0 + 3.0) / 4)


def test_how_unsure_an_exit_is_lies_between_none_and_one() -> None:
    assert unsure(np.array([-1e9, 0.0, 1e9])).tolist() == [1.0, 0.5, 0.0]
    assert unsure(np.array([np.log(3.0)]))[0] == pytest.approx(0.25)


def test_the_search_opens_exits_until_the_share_of_right_answers_is_used_up() -> None:
    errors, right = drawn(2_000)
    found = tune(errors, right, SAVED, 0.95)
    share, saved = worth(errors, right, SAVED, found)
    assert share >= 0.95
    grid = [np.array([one, other]) for one in np.linspace(0.0, 1.0, 41) for other in np.linspace(0.0, 1.0, 41)]
    kept = [gained for right_, gained in (worth(errors, right, SAVED, one) for one in grid) if right_ >= 0.95]
    assert saved > 0.9 * max(kept)
    assert tune(errors, np.zeros_like(right), SAVED, 0.95).max() < 0.06  # the least that one step lets leave
    assert tune(errors, np.ones_like(right), SAVED, 0.95)[0] == 1.0


def test_nobody_leaves_until_it_is_known_who_may_and_exits_that_begin_to_err_are_closed() -> None:
    errors, right = drawn(4 * EVERY)
    right[:] = True
    right[:, 3 * EVERY :] = False
    met = follow(errors, right, SAVED, 0.9)
    assert not met[:EVERY].any()
    assert (met[EVERY : 3 * EVERY, 0] == 1.0).all()
    erring = 3 * EVERY + np.flatnonzero((met[3 * EVERY :] < met[3 * EVERY]).any(axis=1))
    assert 0.1 * 3 * EVERY < erring[0] - 3 * EVERY <= 0.1 * WINDOW  # when a tenth of what it remembers would be wrong


def test_an_answer_saves_what_would_have_followed_it() -> None:
    assert seconds_saved(Costs((1.0, 2.0, 4.0), (0.5, 0.25))).tolist() == [6.25, 4.0]


def test_texts_that_come_one_after_another_are_answered_early_and_mostly_alike(texts_model: CachedModel) -> None:
    samples = checked(unseen(), texts_model.program.spec)
    base, tuned = in_order(texts_model, samples, Plan(Promise(FIDELITY), folds=2), on_progress=quiet)
    assert (base["fidelity"], base["left"]) == (1.0, {"end": 1.0})
    assert 0.85 <= float(str(tuned["fidelity"])) <= 1.0
    left = tuned["left"]
    assert isinstance(left, dict)
    assert 0.0 < left["end"] < 1.0
    assert float(str(tuned["least of 500"])) <= float(str(tuned["fidelity"]))
    assert float(str(tuned["work ms"])) > 0.0
