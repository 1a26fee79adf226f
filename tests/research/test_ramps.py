"""Exits of other papers behind the blocks of an encoder, beside learned caches on the same texts."""

import numpy as np
import pytest
import torch

from latebind.learned.compose import Costs, Seen
from latebind.learned.promise import Promise
from latebind.learned.samples import Samples, checked
from research.gati.baselines import RANGE_ROWS, compare, set_aside
from research.gati.models import CachedModel
from research.gati.ramps import Patience, Ramp, in_common, unsure, word_stages
from research.gati.routes import Plan
from tests.research.conftest import quiet
from tests.texts import FIT, WIDTH, samples, unseen

PROMISE = Promise(0.9, 0.9)


def says(*answers: float) -> Ramp:
    """Answers each text so, whatever it is."""
    none = np.zeros((2, 2), np.float32)
    return Ramp(2, none, none[0], np.zeros((2, len(answers)), np.float32), np.array(answers, np.float32))


def test_a_classifier_learns_from_first_words_and_leaves_out_what_activations_carry() -> None:
    generator = torch.Generator().manual_seed(0)
    words = torch.randn(400, 6, generator=generator)
    labels = (words[:, 0] > 0).long()
    ramp = Ramp.taught(words, labels, classes=2, seed=0)
    carried = torch.cat([words, torch.full((400, 1), torch.nan)], dim=1)[:, None]
    assert (ramp(carried).argmax(axis=1) == labels.numpy()).mean() > 0.95
    assert ramp.bytes == 4 * (6 * 6 + 6 + 6 * 2 + 2)


def test_entropy_is_lowest_where_one_class_has_it_all() -> None:
    row = torch.zeros(1, 3, 2)
    scores = [float(unsure(says(*answers), row)[1][0]) for answers in ((50.0, 0.0), (1.0, 0.0), (0.0, 0.0))]
    assert scores == pytest.approx([0.0, -0.582, -np.log(2.0)], abs=1e-3)


def test_patience_counts_answers_in_a_row_and_begins_anew_with_each_text() -> None:
    patience, row = Patience(), torch.zeros(1, 3, 2)
    one, other = says(1.0, 0.0), says(0.0, 1.0)
    for _ in range(2):
        found = [
            patience.look(ramp, row, first=place == 0)[1][0] for place, ramp in enumerate((one, one, other, other))
        ]
        assert found == [1.0, 2.0, 1.0, 2.0]


def test_one_threshold_for_all_exits_is_the_laxest_that_keeps_the_promise() -> None:
    scores = np.tile(np.linspace(0.0, 1.0, 600), (2, 1))
    seen = Seen(scores, scores > 0.3)
    choose, show = np.arange(0, 600, 2), np.arange(1, 600, 2)
    found = in_common(seen, Costs((0.0, 1.0, 1.0), (0.1, 0.1)), PROMISE)(choose, show)
    assert found[0] == found[1]
    assert 0.2 < found[0] < 0.3  # up to a tenth may be wrong
    wrong = in_common(Seen(scores, np.zeros_like(seen.right)), Costs((0.0, 1.0, 1.0), (0.1, 0.1)), PROMISE)
    assert wrong(choose, show)[0] > 0.9  # so hardly anybody leaves


def test_stages_that_hand_on_words_are_found(texts_model: CachedModel) -> None:
    found = word_stages(texts_model)
    assert found
    assert set(found) <= set(range(len(texts_model.program.stages) - 1))
    assert set(found.values()) == {WIDTH}  # what is wider lies within a block


@pytest.mark.slow
def test_texts_of_any_length_are_compared_and_other_exits_keep_the_same_promise(texts_model: CachedModel) -> None:
    some = unseen()
    assert isinstance(some.inputs, dict)
    assert some.labels is not None
    rows = Samples(
        {name: part[: RANGE_ROWS + 220] for name, part in some.inputs.items()}, some.labels[: RANGE_ROWS + 220]
    )
    ranges, asked = set_aside(checked(rows, texts_model.program.spec), 0)
    fit = checked(samples(0, FIT), texts_model.program.spec)
    found = compare(texts_model, None, ranges, asked, Plan(PROMISE, folds=2), fit=fit, on_progress=quiet)
    named = {one.name: one for one in found.outcomes}
    assert {"texts alone", "learned caches", "DeeBERT", "PABEE"} <= set(named)
    assert all(found.fidelity(one) >= 0.82 for one in found.outcomes)
    assert any(left.startswith("patience") or left.startswith("entropy") for one in found.outcomes for left in one.left)
