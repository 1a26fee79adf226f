"""The network itself in eight bits, as a lookup that is sure of everything or in its own place: what is promised."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from latebind.domain.costs import Curve, Level, ModelCosts, at_any_length
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.domain.sizes import Dim
from latebind.learned.activations import observe
from latebind.learned.build import build_caches, recalibrate
from latebind.learned.compiled import to_eight_bit_lookup
from latebind.learned.compose import Composer, Composition, Costs, Seen, Variant, send
from latebind.learned.head import SURE, Floats
from latebind.learned.lookup import Promises, compile_lookup_files, load_functions, promises
from latebind.learned.metadata import StoredCaches, StoredLevel, StoredLookup, levels_down_to, read_caches, with_caches
from latebind.learned.promise import Promise
from latebind.learned.stored import LookupFiles, read_lookup
from latebind.program.build import build_program
from latebind.program.export import Exported, export
from latebind.program.load import load_program
from latebind.program.openvino import multiplies_bytes
from tests import texts
from tests.digits import CALIBRATE, FIT, digits, samples, trained

ROWS = torch.randn(48, 8, 6, 6, generator=torch.Generator().manual_seed(0))


def exported(*, ends: nn.Module | None = None) -> tuple[Exported, Tensor]:
    """A small network of convolutions, and what it answers."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        body = [nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2), nn.ReLU(), nn.Flatten()]
        network = nn.Sequential(*body, nn.Linear(64, 5), *([ends] if ends else [])).eval()
    with torch.inference_mode():
        return export(network, (ROWS[:1],)), network(ROWS)


def of(given: Exported) -> LookupFiles | None:
    return to_eight_bit_lookup(given.graph, given.weights, ROWS)


def made(given: Exported) -> LookupFiles:
    files = of(given)
    assert files is not None
    return files


def test_it_answers_nearly_as_the_network_and_is_always_sure() -> None:
    given, expected = exported()
    answers, scores = compile_lookup_files(made(given), backend="eager", threads=1)(ROWS)
    assert not np.array_equal(answers, expected.numpy())
    assert np.abs(answers - expected.numpy()).max() < 0.05 * float(expected.abs().max())
    assert scores.tolist() == [SURE] * len(ROWS)


def test_a_network_with_another_end_or_without_convolutions_is_none() -> None:
    assert of(exported(ends=nn.ReLU())[0]) is None
    plain = export(nn.Sequential(nn.Flatten(), nn.Linear(288, 5)).eval(), (ROWS[:1],))
    assert of(plain) is None


def test_whom_a_quick_lookup_leaves_a_sure_one_answers_and_nobody_goes_on() -> None:
    random = np.random.default_rng(0)
    quick = random.random(400)
    scores = np.stack([quick, np.full(400, float(SURE))])
    seen = Seen(scores, np.stack([quick > 0.3, np.ones(400, dtype=np.bool_)]))
    costs = Costs((0.0, 0.0, 1.0), (0.05, 0.4), sure=(1,))
    thresholds = Composer(seen, costs).choose(100.0)
    result = send(thresholds, seen, costs)
    assert set(result.left_at.tolist()) == {0, 1}
    assert not result.wrong.any()
    assert result.seconds.max() == pytest.approx(0.45)


def test_the_tail_ends_with_the_first_that_is_sure() -> None:
    costs = Costs((0.5, 0.0, 1.0, 0.5), (0.1, 0.4, 0.2), sure=(1,))
    assert costs.tail((0, 1, 2)) == pytest.approx(0.5)  # of 2.0: the first stage, and two lookups
    assert costs.tail((0, 2)) == pytest.approx(1.15)
    assert replace(costs, beside=(0.0, 0.0, 0.0)).tail((0, 1)) == pytest.approx(0.45)


@pytest.mark.slow
def test_a_build_has_it_beside_the_others_and_so_has_another_calibration(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    images, labels = digits()
    built = build_program(
        trained(images[:FIT], labels[:FIT]),
        {"image": images[:8]},
        directory=tmp_path / "1",
        name="digits",
        backends=["openvino"],
        max_batch=2,
    )
    fit, held_out = samples(0, FIT), samples(FIT, FIT + CALIBRATE)
    kinds = ("pooled", "bytes")
    report = build_caches(
        built.directory,
        fit,
        held_out,
        fidelity=0.9,
        confidence=0.9,
        candidates=1,
        kinds=kinds,
        presentations=1_000,
    )
    alone = {one.kind: one.fidelity for one in report.tried}
    assert alone.keys() == set(kinds)
    assert alone["bytes"] > 0.97
    before = read_caches(report.directory)
    again = recalibrate(report.directory, held_out, fidelity=0.9, confidence=0.9, aside=False)
    caches = read_caches(again.directory)
    assert before is not None
    assert caches is not None
    assert {one.kind for one in caches.every} == {one.kind for one in before.every} >= {"bytes"}


@pytest.mark.slow
def test_a_text_is_answered_in_eight_bits_where_these_are_sure(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    if not multiplies_bytes():
        pytest.skip("this processor does not multiply bytes")
    directory = build_program(
        texts.trained(),
        dict(zip(("ids", "mask"), texts.filled_up(texts.texts()[0][:4], texts.LONGEST), strict=True)),
        directory=tmp_path / "1",
        name="texts",
        backends=["openvino"],
        min_stage_seconds=0.0,
        max_overhead=None,
        max_batch=8,
        dims=(Dim("L", 1, texts.LONGEST),),
        sizes={"ids": ["L"], "mask": ["L"]},
    ).directory
    fit, held_out = texts.samples(0, texts.FIT), texts.samples(texts.FIT, texts.FIT + texts.CALIBRATE)
    report = build_caches(
        directory, fit, held_out, fidelity=0.95, confidence=0.9, presentations=12_000, kinds=["bytes"], candidates=1
    )
    (one,) = [one for one in report.caches.every if one.kind == "bytes"]
    (tried,) = [one for one in report.tried if one.kind == "bytes"]
    assert tried.fidelity > 0.95
    files = read_lookup(report.directory, one.name)
    assert not files.head.sure
    assert torch.int8 in {tensor.dtype for tensor in files.weights.values()}
    again = recalibrate(report.directory, held_out, fidelity=0.95, confidence=0.9, aside=False)
    assert {one.name for one in again.caches.every} == {one.name for one in report.caches.every}

    program = load_program(report.directory)
    function = load_functions(report.directory, [one], backend="openvino", threads=1)[one.name]
    rows = texts.texts()[0][-3:]
    network = program.run(*texts.filled_up(rows, texts.LONGEST))[0].numpy()

    def answers(given: list[Tensor], length: int) -> Floats:
        passed: tuple[Tensor, ...] = texts.filled_up(given, length)
        for stage in program.stages[: one.stage + 1]:
            passed = stage(*passed)
        return function(passed[0])[0]

    together = answers(rows, texts.LONGEST)
    assert not np.array_equal(together, network)
    np.testing.assert_allclose(together, network, atol=0.05 * float(np.abs(network).max()))
    alone = np.concatenate([answers([row], len(row)) for row in rows])
    np.testing.assert_allclose(alone, together, atol=0.02 * float(np.abs(network).max()))


def composition(end: np.ndarray[tuple[int], np.dtype[np.bool_]] | None) -> tuple[Composition, Seen]:
    """One lookup that is always right but sure of the first half alone, and how often the network itself is right."""
    scores = np.linspace(1.0, 0.0, 400)[None]
    seen = Seen(scores, np.ones((1, 400), dtype=np.bool_), end)
    variants = (Variant(0, "plain", 0.0, 1.0, 0.1, 10),)
    return Composition(variants, Costs((0.5, 0.5), (0.1,)), (0.5, 0.5), Promise(0.95, 0.9)), seen


def test_whom_no_lookup_answers_counts_by_what_a_coarse_network_says() -> None:
    end = np.arange(400) >= 12
    problem, seen = composition(end)
    alone = problem.alone([seen])
    assert alone.fidelity == pytest.approx(1.0 - 12 / 400)
    assert problem.whole([seen], 9) < alone.lower < alone.fidelity  # of ten tests that hold together, and of one
    problem, seen = composition(None)
    assert problem.whole([seen], 9) == 1.0


def test_no_exit_is_allowed_where_the_network_itself_does_not_keep_the_promise() -> None:
    problem, seen = composition(np.arange(400) >= 40)
    assert problem.choose(seen, [seen]) is None
    problem, seen = composition(np.arange(400) >= 4)
    assert problem.choose(seen, [seen]) is not None


def test_levels_begin_with_what_the_network_itself_is_promised() -> None:
    curve = tuple(StoredLevel(target, target, target, {"0-plain": 1.0}, {0: 0.5}, 1.0) for target in (0.99, 0.97, 0.95))
    used = StoredLookup(0, "plain", 10, Curve((1,), (1e-4,)), threshold=1.0, hit_rate=0.5, fidelity=0.97)
    caches = StoredCaches(4, 0.97, 0.95, 0.97, 0.97, 400, (used,), levels=curve, whole=0.985)
    assert [level.target for level in levels_down_to(caches, 0.96)] == [0.985, 0.97]
    exact = replace(caches, whole=1.0)
    assert [level.target for level in levels_down_to(exact, 0.95)] == [1.0, 0.99, 0.97, 0.95]
    with pytest.raises(ConfigError, match="no operating curve"):
        levels_down_to(replace(caches, whole=0.965), 0.9)


def test_the_thresholds_of_the_last_level_but_one_leave_room_to_drop_some_at_the_last() -> None:
    shares = {0.99: 0.4, 0.97: 0.5, 0.95: 0.6}
    curve = tuple(StoredLevel(one, one, one, {"0-plain": 100 * one}, {0: hits}, 1.0) for one, hits in shares.items())
    used = StoredLookup(0, "plain", 10, Curve((1,), (1e-4,)), threshold=97.0, hit_rate=0.5, fidelity=0.97)
    caches = StoredCaches(4, 0.97, 0.95, 0.97, 0.97, 400, (used,), levels=curve)
    spec = ModelSpec("net", "1", (TensorSpec("x", "float32", (4,)),), (TensorSpec("y", "float32", (3,)),), 2, 4)
    costs = ModelCosts(at_any_length(*[Curve((1,), (1.0,))] * 2))

    def served(floor: float) -> tuple[Level | None, Promises]:
        return with_caches(spec, costs, caches, floor=floor)[1].overload, promises(caches, floor)

    overload, told = served(0.95)
    assert overload is not None
    assert replace(overload, dropped=0.4) == Level(0.95, {0: 0.5}, 0.4)
    assert overload.dropped == pytest.approx(0.4), "3 wrong ones of 60 answers are 5 of 100"
    assert told.fidelity == (1.0, 0.99, 0.97, 0.95, 0.95)
    assert told.thresholds[-1] == {"0-plain": 97.0}
    overload, told = served(0.97)
    assert overload is not None
    assert overload.dropped == pytest.approx(2 / 3)
    assert (told.fidelity, told.thresholds[-1]) == ((1.0, 0.99, 0.97, 0.97), {"0-plain": 99.0})
    assert served(1.0) == (None, Promises((0.97,)))
    alone = replace(caches, levels=curve[1:2])
    assert with_caches(spec, costs, alone, floor=0.97)[1].overload is None, (
        "the whole network is no lookup's thresholds"
    )


def test_a_second_lookup_takes_its_time_of_those_that_the_first_misses() -> None:
    first = StoredLookup(0, "plain", 10, Curve((1, 4), (0.1, 0.2)), threshold=1.0, hit_rate=0.75, fidelity=0.97)
    second = StoredLookup(0, "bytes", 10, Curve((1, 4), (2.0, 8.0)), threshold=1.0, hit_rate=0.2, fidelity=0.97)
    later = StoredLookup(1, "plain", 10, Curve((1,), (0.3,)), threshold=1.0, hit_rate=0.02, fidelity=0.97)
    caches = StoredCaches(4, 0.97, 0.95, 0.97, 0.97, 400, (first, second, later))
    spec = ModelSpec("net", "1", (TensorSpec("x", "float32", (4,)),), (TensorSpec("y", "float32", (3,)),), 3, 4)
    _, costs = with_caches(spec, ModelCosts(at_any_length(*[Curve((1,), (1.0,))] * 3)), caches)
    assert costs.lookups[0] == Curve((1, 4), (0.6, 2.2))
    assert costs.lookups[1] == Curve((1,), (0.3,))
    assert costs.hit_rates == pytest.approx({0: 0.95, 1: 0.02})


@pytest.mark.slow
def test_a_network_in_eight_bits_is_promised_against_the_one_in_full_precision(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    if not multiplies_bytes():
        pytest.skip("this processor does not multiply bytes")
    held_out = texts.samples(texts.FIT, texts.FIT + texts.CALIBRATE)
    report = texts.build_texts(tmp_path, backend="openvino-int8", tolerance=0.3, fidelity=0.95).report
    assert "full precision" in dict(report.rows())["precision"]
    assert report.caches.whole < 1.0
    assert report.caches.lower >= 0.95
    program, base = load_program(report.directory), load_program(report.directory, backend="eager")
    rows = texts.unseen().ordered(program.spec.inputs, program.spec.dims)
    seen = observe(program, rows, (), base=base)
    exact = observe(base, rows, ())
    assert exact.own is None
    assert exact.seen.end is None
    torch.testing.assert_close(seen.answers, exact.answers)
    assert seen.own is not None
    assert seen.seen.end is not None
    assert not torch.equal(seen.own, seen.answers)
    assert seen.seen.end.tolist() == (seen.own.argmax(dim=1) == seen.answers.argmax(dim=1)).tolist()
    again = recalibrate(report.directory, held_out, fidelity=0.95, confidence=0.9, aside=False)
    assert again.caches.whole == pytest.approx(report.caches.whole)
