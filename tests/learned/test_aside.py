"""Lookups aside at build time: measured, composed one at a time, chosen where they are faster, and kept."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from latebind.domain.config import EngineConfig
from latebind.domain.costs import Curve
from latebind.engine.crew import load_model
from latebind.learned.build import Builder, recalibrate
from latebind.learned.compose import Composition, Costs, Seen
from latebind.learned.explore import TrainedLookup
from latebind.learned.ilp import Variant
from latebind.learned.latency import AsideLatency, latency_aside
from latebind.learned.lookup import load_functions
from latebind.learned.plan import Candidate
from latebind.learned.promise import Promise
from latebind.learned.stored import read_caches, read_lookup
from latebind.program.load import load_program
from latebind.repository.directory import ModelDirectory
from tests.digits import FIT, Built, samples


def composition(*lookups: float, stages: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Composition:
    """One lookup behind each stage but the last, aside, known after so many seconds."""
    variants = tuple(Variant(k, "plain", 0.0, 1.0, seconds, 0) for k, seconds in enumerate(lookups))
    costs = Costs(stages, lookups, beside=(0.0,) * len(lookups))
    return Composition(variants, costs, stages, Promise(0.9))


def test_one_has_answered_before_the_next_is_asked_or_the_network_ends() -> None:
    assert composition(0.9, 0.9).allows((0, 1))
    assert not composition(1.1, 0.9).allows((0, 1))
    assert composition(1.1, 0.9).allows((0,))
    assert not composition(0.9, 1.1).allows((1,))


def trained(built: Built, *, in_line: float, beside: AsideLatency | None) -> list[TrainedLookup]:
    """One of the lookups of digits, with these figures in place of its own."""
    caches = read_caches(built.directory)
    assert caches is not None
    (one, *_) = caches.lookups
    program = load_program(built.directory, threads=1)
    functions = load_functions(built.directory, [one], backend=program.backend, threads=1)
    files = read_lookup(built.directory, one.name)
    candidate = Candidate(one.stage, one.kind, in_line)
    return [TrainedLookup(candidate, files, functions[one.name], Curve((1,), (in_line,)), beside=beside)]


@pytest.mark.parametrize(
    ("in_line", "aside", "demanded", "taken"),
    [
        (0.9, 0.1, None, True),  # half hit: 1.4 in line, 0.55 aside, of 1
        (0.01, 0.5, None, False),
        (0.1, 0.1, False, False),
        (0.01, 0.5, True, True),
    ],
)
def test_the_faster_way_is_taken_unless_one_is_demanded(
    built: Built, in_line: float, aside: float, demanded: bool | None, taken: bool
) -> None:
    program = load_program(built.directory, threads=1)
    stages = (0.0, *(1.0 / (program.spec.stages - 1),) * (program.spec.stages - 1))
    builder = Builder(program, Promise(0.9, aside=demanded), 0, lambda text, share: None, program, stages=stages)
    lookups = trained(built, in_line=in_line, beside=AsideLatency(Curve((1,), (aside,)), 0.0))
    half = Seen(np.array([[1.0, 0.0] * 50]), np.array([[True, False] * 50]))
    (asked,) = builder._in_line_or_aside(lookups, half)
    assert (asked.beside is not None) == taken
    assert asked.known.at(1) == (aside if taken else in_line)


def test_a_lookup_that_was_not_measured_aside_stays_in_line(built: Built) -> None:
    program = load_program(built.directory, threads=1)
    builder = Builder(program, Promise(0.9, aside=True), 0, lambda text, share: None, program)
    (asked,) = builder._in_line_or_aside(
        trained(built, in_line=9.0, beside=None), Seen(np.ones((1, 4)), np.ones((1, 4), np.bool_))
    )
    assert asked.beside is None


def test_what_is_measured_aside_is_when_the_answer_is_known(built: Built) -> None:
    program = load_program(built.directory, threads=1)
    (one,) = trained(built, in_line=1.0, beside=None)
    found = latency_aside(program, (built.unseen[:1],), one.plan.stage, one.function)
    assert len(found.known.batches) == len(found.known.seconds)
    assert all(0.0 < seconds < 1.0 for seconds in found.known.seconds)
    assert 0.0 <= found.slower < 1.0


def test_the_way_is_kept_in_the_directory_and_heeded_by_whoever_serves(built: Built, tmp_path: Path) -> None:
    shutil.copytree(built.directory.path, tmp_path / "copy")
    directory = ModelDirectory.open(tmp_path / "copy")
    few = samples(FIT, FIT + 200)
    report = recalibrate(directory, few, fidelity=0.9, confidence=0.9, aside=True)
    caches = read_caches(report.directory)
    assert caches is not None
    assert report.aside
    assert caches.aside
    assert caches.at_hand == caches.lookups
    assert load_model(report.directory.path, EngineConfig()).costs.aside
    back = recalibrate(report.directory, few, fidelity=0.9, confidence=0.9, aside=False)
    assert not back.aside
    assert not load_model(back.directory.path, EngineConfig()).costs.aside
