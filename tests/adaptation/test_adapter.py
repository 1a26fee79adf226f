"""Lessons on traffic that is like what build kept, and on traffic that is not. Digits have a quick spare lookup."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from latebind.adaptation.adapter import SINCE_ALARM, SINCE_MOVED, Adapter
from latebind.adaptation.controller import ESTABLISHED, Controller, Retrain, Version
from latebind.adaptation.messages import Answered, Draw
from latebind.adaptation.retrain import Material, Prior
from latebind.adaptation.traffic import Sample
from latebind.domain.config import AdaptationConfig
from latebind.learned.metadata import read_caches
from latebind.learned.promise import Promise, fidelity_bound
from latebind.learned.samples import Samples
from latebind.learned.stored import HELD_OUT, read_rows
from latebind.repository.directory import ModelDirectory
from tests.digits import Built, earlier

CLASSES = 10


def adapter(built: Built, folder: Path, directory: ModelDirectory | None = None) -> Adapter:
    """An adapter that has heard as many answers of each class."""
    config = AdaptationConfig(on=True, folder=str(folder))
    found = Adapter(directory or built.directory, config, threads=1, backend=None)
    for number in range(2_000):
        found.controller.answered(number % CLASSES)
    return found


def lesson(found: Adapter, *, moved: bool = False, alarmed: bool = False) -> Version | None:
    return found.lesson(Retrain("a test", moved, alarmed))()


def test_versions_keep_the_promise_of_the_build_and_are_surer_of_all_answers(built: Built, tmp_path: Path) -> None:
    found = adapter(built, tmp_path)
    assert found._promise == Promise(0.9, 0.9, tail=found._promise.tail, answers=2_000, lasting=0.999)
    kept = earlier(built.directory, tmp_path / "model")
    then = adapter(built, tmp_path / "v", kept)
    assert then._promise == replace(found._promise, answers=None)
    assert then._promise.lower_bound(20, 600) == fidelity_bound(20, 600, confidence=0.999, answers=None)
    assert lesson(then) is not None  # earlier builds follow the traffic too


def show(found: Adapter, built: Built, *, familiar: bool, count: int) -> None:
    """Have rows that build kept come as samples; unfamiliar ones are answered as the class after theirs."""
    kept = read_rows(built.directory, HELD_OUT)
    assert kept is not None
    for place in range(count):
        answer = (int(kept.classes[place]) + (not familiar)) % CLASSES
        answers = functional.one_hot(torch.tensor(answer), CLASSES).bfloat16() * 10
        features = {name: kept.features[name][place] for name in found.built_lookups()}
        sample = Sample(time.monotonic(), features, answers, answer, torch.zeros(2), 1.0)
        found.shown.add(sample)
        found.taught.add(sample)


def used(built: Built) -> tuple[set[str], set[str]]:
    caches = read_caches(built.directory)
    assert caches is not None
    return {one.name for one in caches.lookups}, {one.name for one in caches.at_hand}


def test_unfamiliar_traffic_is_learned_by_every_lookup_at_hand_whatever_was_learned_before(
    built: Built, tmp_path: Path
) -> None:
    in_use, at_hand = used(built)
    assert in_use < at_hand
    found = adapter(built, tmp_path)
    show(found, built, familiar=True, count=20)
    lesson(found)
    assert found.trusted
    assert set(found._learned) == at_hand
    show(found, built, familiar=False, count=200)
    lesson(found)
    assert not found.trusted
    assert set(found._learned) == at_hand


def test_a_version_counts_the_samples_since_the_traffic_changed(built: Built, tmp_path: Path) -> None:
    found = adapter(built, tmp_path)
    show(found, built, familiar=True, count=60)
    version = lesson(found)
    assert version is not None
    assert version.current == 60
    later = lesson(found, moved=True)
    assert later is not None
    assert later.current == SINCE_MOVED
    again = found.version(later.name)
    assert again == replace(later, current=0)


def test_heads_are_shifted_while_traffic_looks_like_what_build_kept_and_learn_elsewhere(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Prior | None] = []
    monkeypatch.setattr("latebind.adaptation.adapter.retrain", lambda *_, prior, **__: asked.append(prior))
    found = adapter(built, tmp_path)
    lesson(found)
    lesson(found, alarmed=True)
    shifts, learns = asked
    assert shifts is not None
    assert set(shifts.temperatures) == {name for name, head in found._heads.items() if not head.sure}
    assert learns is None


def test_behind_an_alarm_earlier_samples_are_kept_and_in_doubt_until_much_was_compared(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Material] = []
    monkeypatch.setattr("latebind.adaptation.adapter.retrain", lambda heads, given, *_, **__: asked.append(given))
    found = adapter(built, tmp_path)
    show(found, built, familiar=False, count=300)
    lesson(found, alarmed=True)
    assert asked[0].doubt
    assert (asked[0].current, len(asked[0].show.classes)) == (SINCE_ALARM, 300)
    assert isinstance(found.controller, Controller)
    for at in range(1, ESTABLISHED + 1):
        found.controller.compared(True, at=at)
    lesson(found, moved=True)
    assert not asked[1].doubt  # no version since has made another alarm


def test_what_is_published_leaves_the_versions_that_may_be_used(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = adapter(built, tmp_path)
    monkeypatch.setattr("latebind.adaptation.versions.KEPT", 2)
    version = lesson(found)
    assert version is not None
    found.controller.chosen(version.name, version)
    for _ in range(3):
        lesson(found)
    assert found.versions.names() == [version.name, "000003", "000004"]


def test_samples_with_nan_are_neither_lessons_nor_compared(built: Built, tmp_path: Path) -> None:
    found = adapter(built, tmp_path)
    good = built.unseen[:1]
    answer = int(found.look(Samples((good,))).answers.argmax())
    for worth in (float("nan"), float("inf")):
        bad = good.clone()
        bad[0, 0, 3, 3] = worth
        for draw in (Draw(shows=True), Draw(shows=False)):
            told = [Answered(0, answer, 0, draw, rows.numpy().tobytes()) for rows in (bad, good)]
            assert found.see([(1, one) for one in told]) == []
    assert (len(found.shown), len(found.taught)) == (2, 2)
    assert isinstance(found.controller, Controller)
    assert (found.sampled, list(found.controller.last)) == (2, [True, True])


def test_samples_that_show_are_looked_at_before_those_that_teach_and_know_which_answer_they_are(
    built: Built, tmp_path: Path
) -> None:
    found = Adapter(built.directory, AdaptationConfig(on=True, folder=str(tmp_path)), threads=1, backend=None)
    for draw in (None, Draw(shows=False), Draw(shows=True), Draw(shows=False), Draw(shows=True)):
        found.take(Answered(0, 4, 0, draw))
    assert [[at for at, _ in found.batch()] for _ in range(3)] == [[3, 5], [2, 4], []]
