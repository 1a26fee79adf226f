"""Versions on disk: whole or not there, whatever happens while they are written."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from latebind.adaptation.controller import BUILT, FULL_DEPTH, Version, VersionLevel
from latebind.adaptation.versions import ABOUT, FORMAT, KEPT, Leadership, Versions, versions_folder
from latebind.domain.errors import NotFound, RepositoryError
from latebind.learned.head import Head
from latebind.learned.metadata import LIST
from latebind.learned.networks import Selector
from latebind.repository.directory import ModelDirectory, json_bytes


@pytest.fixture
def model(tmp_path: Path) -> ModelDirectory:
    return ModelDirectory.create(tmp_path / "model" / "1", {LIST: b"{}"})


def versions(model: ModelDirectory) -> Versions:
    return Versions(versions_folder(model.path), model)


def head(seed: int = 0) -> Head:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Head.of(torch.nn.Linear(64, 10), Selector(10))


def about(model: ModelDirectory, **changes: object) -> Version:
    base = versions(model).base
    values: dict[str, object] = {
        "name": "", "format": FORMAT, "made": 1.0, "base": base, "reason": "a test", "thresholds": {"0-plain": 2.5},
        "fidelity": 0.98, "lower": 0.97, "confidence": 0.95, "rows": 500, "wrong": (0.1,), "seconds": (0.2,),
        "mix": {0: 1.0},
    }  # fmt: skip
    return Version(**{**values, **changes})  # type: ignore[arg-type]


def test_what_is_published_comes_back(model: ModelDirectory) -> None:
    there = versions(model)
    name = there.publish(about(model), {"0-plain": head()}).name
    again = versions(ModelDirectory.open(model.path))
    assert again.names() == [name] == ["000001"]
    assert again.version(name) == about(model, name=name)
    ((lookup, (found, threshold)),) = again.lookups(name).items()
    assert (lookup, threshold) == ("0-plain", 2.5)
    for one, other in zip(found.tensors().values(), head().tensors().values(), strict=True):
        np.testing.assert_array_equal(one, other)


LEVELS = (VersionLevel(0.99, 0.992, {"0-plain": 4.0}, (0.0,)), VersionLevel(0.97, 0.975, {"0-plain": 2.5}, (0.1,)))


def test_the_levels_of_a_version_come_back_and_one_without_has_its_target(model: ModelDirectory) -> None:
    there = versions(model)
    name = there.publish(about(model, levels=LEVELS), {"0-plain": head()}).name
    earlier = there.publish(about(model), {"0-plain": head()}).name
    again = versions(ModelDirectory.open(model.path))
    assert again.version(name).levels == LEVELS
    assert again.levels(name, 0.95) == {0.99: {"0-plain": 4.0}, 0.97: {"0-plain": 2.5}}
    assert again.levels(earlier, 0.95) == {0.95: {"0-plain": 2.5}}


@pytest.mark.parametrize(
    "levels",
    [
        LEVELS[::-1],
        (replace(LEVELS[0], fidelity=1.5),),
        (replace(LEVELS[0], thresholds={}),),
        (replace(LEVELS[0], thresholds={"1-other": 1.0}),),
        (replace(LEVELS[0], wrong=(0.1, 0.1)),),
    ],
)
def test_levels_that_nobody_can_have_shown_are_refused(model: ModelDirectory, levels: tuple[VersionLevel, ...]) -> None:
    there = versions(model)
    name = there.publish(about(model, levels=levels), {"0-plain": head()}).name
    with pytest.raises(RepositoryError, match="implausible figures"):
        there.version(name)


def test_of_two_that_publish_at_once_neither_replaces_what_the_other_made(
    model: ModelDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick, rename = versions(model), versions(model), Path.rename

    def rename_late(path: Path, target: Path) -> Path:
        monkeypatch.undo()
        ModelDirectory.create(
            versions_folder(model.path) / "versions" / "000001", {ABOUT: json_bytes(about(model, reason="quick"))}
        )
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", rename_late)
    assert slow.publish(about(model, reason="slow"), {"0-plain": head()}).name == "000002"
    assert [quick.version(name).reason for name in quick.names()] == ["quick", "slow"]


def test_only_an_operator_stops_exits_for_good(model: ModelDirectory) -> None:
    there = versions(model)
    there.make_current(FULL_DEPTH)
    assert not there.stopped()
    there.make_current(FULL_DEPTH, by_hand=True)
    assert there.current() == FULL_DEPTH
    assert there.stopped()
    there.make_current(BUILT, by_hand=True)
    assert not there.stopped()


def test_a_version_that_is_not_there_is_told_with_those_that_are(model: ModelDirectory) -> None:
    there = versions(model)
    there.publish(about(model), {"0-plain": head()})
    with pytest.raises(NotFound, match="there are: built, none, 000001"):
        there.make_current("000009")
    with pytest.raises(NotFound):
        there.lookups("../1")


def test_old_versions_go_but_not_the_current(model: ModelDirectory) -> None:
    there = versions(model)
    first = there.publish(about(model), {"0-plain": head()}).name
    there.make_current(first)
    for _ in range(KEPT + 3):
        last = there.publish(about(model), {"0-plain": head()}).name
    assert first in there.names()
    assert last in there.names()
    assert len(there.names()) <= KEPT + 1


def test_an_altered_version_is_refused(model: ModelDirectory) -> None:
    there = versions(model)
    name = there.publish(about(model), {"0-plain": head()}).name
    file = versions_folder(model.path) / "versions" / name / "0-plain.head.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    with pytest.raises(RepositoryError, match="differs from the manifest"):
        there.lookups(name)


def test_killed_at_random_moments_no_version_is_torn(model: ModelDirectory) -> None:
    random, published, killed = Random(0), 0, 0
    while killed < 15 or published <= 15:  # on a busy machine some are killed before they have begun
        killed += 1
        child = os.fork()
        if child == 0:  # publish and choose until killed
            there, seed = versions(model), 0
            while True:
                seed += 1
                there.make_current(there.publish(about(model), {"0-plain": head(seed)}).name)
        time.sleep(random.uniform(0.0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        there = versions(model)
        for name in there.names():
            there.lookups(name)
            published += 1
        if (current := there.current()) != BUILT:
            assert there.lookups(current)


def test_one_leads_until_it_leaves_or_ends(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    first, second = Leadership(folder), Leadership(folder)
    assert first.held()
    assert not second.held()
    assert first.held()
    first.release()
    assert second.held()
    assert not first.held()
    second.release()
    child = os.fork()
    if child == 0:  # a process that is killed while it leads
        while not second.held():
            time.sleep(0.01)
        time.sleep(60.0)
        os._exit(1)
    while first.held():
        first.release()
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert first.held()
