"""Building learned caches end to end on handwritten digits: what is written, loaded, promised and refused."""

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from latebind.domain.config import EngineConfig
from latebind.domain.costs import Curve
from latebind.domain.errors import ConfigError, RepositoryError
from latebind.engine.loaded import load_model
from latebind.learned.activations import apply_heads, features_of, observe
from latebind.learned.build import Builder, build_caches, recalibrate, without_idle_selectors
from latebind.learned.compose import Seen
from latebind.learned.explore import TrainedLookup
from latebind.learned.head import Head
from latebind.learned.latency import AsideLatency
from latebind.learned.lookup import load_functions, load_lookups
from latebind.learned.metadata import (
    ACCURACY,
    Accuracy,
    graph_file,
    head_file,
    read_accuracy,
    read_caches,
    weights_file,
    with_caches,
    write_accuracy,
)
from latebind.learned.networks import Selector
from latebind.learned.promise import Promise
from latebind.learned.samples import Samples, whole
from latebind.learned.stored import HELD_OUT, LESSONS, read_lookup
from latebind.program.build import build_program
from latebind.program.load import load_program
from latebind.repository.directory import CACHES, ModelDirectory
from tests.digits import CALIBRATE, FIT, Built, samples


def without_accuracy(directory: ModelDirectory, folder: Path) -> ModelDirectory:
    files = {name: directory.read(name) for name in directory.files if name != ACCURACY}
    return ModelDirectory.create(folder / "copy", files)


def answers_with_exits(directory: ModelDirectory, images: Tensor) -> tuple[Tensor, float]:
    """The answers when requests leave early, and the share that did."""
    program = load_program(directory)
    lookups = load_lookups(directory, backend="eager")
    found, left = [], 0
    for row in torch.split(images, 1):
        passed: tuple[Tensor, ...] = (row,)
        for number, stage in enumerate(program.stages):
            passed = stage(*passed)
            if number in lookups:
                answers, hit = lookups[number](passed[0])
                if bool(hit):
                    passed, left = (torch.from_numpy(answers),), left + 1
                    break
        found.append(passed[0])
    return torch.cat(found), left / len(images)


def test_easy_digits_leave_early_and_answers_stay_the_base_models(built: Built) -> None:
    early, share = answers_with_exits(built.directory, built.unseen)
    (base,) = load_program(built.directory).run(built.unseen)
    assert built.report.caches.lookups
    assert built.report.seconds_with < built.report.seconds_without
    assert share > 0.2
    assert (early.argmax(dim=1) == base.argmax(dim=1)).float().mean() >= 0.87


def test_the_report_tells_every_boundary_and_the_promise(built: Built) -> None:
    text = dict(built.report.rows())
    labels = [label for label, _ in built.report.rows()]
    assert labels.count("before the network") == 2  # an able one, and a quick one for adaptation
    assert sum(label.startswith("after stage") for label in labels) == len(built.report.tried) - 2
    assert "times less" in text["expected latency"]
    assert "target 0.9" in text["fidelity"]
    assert f"at least {built.report.caches.lower:.4f} over the next 2,000 answers" in text["fidelity"]
    assert built.report.caches.lower >= 0.9


def test_the_directory_verifies_and_says_what_it_holds(built: Built) -> None:
    again = ModelDirectory.open(built.directory.path)
    caches = read_caches(again)
    assert caches is not None
    assert caches.lookups == built.report.caches.lookups
    names = [one.name for one in caches.every]
    files = {f"{CACHES}/caches.json", HELD_OUT, LESSONS, *map(graph_file, names)}
    files |= {*map(weights_file, names), *map(head_file, names)}
    assert set(again.names(CACHES)) == files
    assert all(lookup.bytes < 4_000_000 for lookup in caches.lookups)
    assert sum(lookup.hit_rate for lookup in caches.lookups) <= 1.0


def test_a_quick_lookup_is_at_hand_beside_the_one_in_use(built: Built) -> None:
    caches = read_caches(built.directory)
    assert caches is not None
    assert [one.name for one in caches.at_hand if one.stage == 0] == ["0-pooled", caches.lookups[0].name]
    lookup = load_lookups(built.directory, backend="eager")[0]
    assert list(lookup.functions) == ["0-pooled", caches.lookups[0].name]
    assert set(lookup.thresholds) == {caches.lookups[0].name}


def test_what_lookups_see_is_the_same_whether_the_network_runs_on_or_not(built: Built) -> None:
    program = load_program(built.directory)
    caches = read_caches(built.directory)
    assert caches is not None
    functions = load_functions(built.directory, caches.every, backend="eager", threads=1)
    lookups = [(one.stage, functions[one.name]) for one in caches.every]
    samples = Samples((built.unseen[:40],))
    whole, part = observe(program, samples, lookups).features, features_of(program, samples, lookups)
    assert all(torch.equal(one, other) for one, other in zip(whole, part, strict=True))


def test_costs_and_hit_rates_reach_the_scheduler(built: Built) -> None:
    program = load_program(built.directory)
    spec, costs = with_caches(program.spec, program.costs, read_caches(built.directory))
    assert spec.lookups == tuple(lookup.stage for lookup in built.report.caches.lookups)
    assert set(costs.hit_rates) == set(costs.lookups) == set(spec.lookups)
    assert costs.lookups[spec.lookups[0]].batches == (1, 2, 4)
    assert costs.step(spec.lookups[0], 1) > program.costs.step(spec.lookups[0], 1)


def test_openvino_answers_as_eager_does_within_half_precision(built: Built) -> None:
    pytest.importorskip("openvino")
    program, kept = load_program(built.directory), list[Callable[[], None]]()
    fast = load_lookups(built.directory, backend="openvino", later=kept.append)
    assert kept
    for stage, lookup in load_lookups(built.directory, backend="eager").items():
        activation = program.run_through(stage, built.unseen[:8])
        expected = lookup(activation)[0]
        np.testing.assert_allclose(fast[stage](activation)[0], expected, rtol=5e-2, atol=5e-2)  # row by row
        while kept:
            kept.pop()()
        np.testing.assert_allclose(fast[stage](activation)[0], expected, rtol=5e-2, atol=5e-2)


def test_a_target_of_one_leaves_no_lookups(built: Built, tmp_path: Path) -> None:
    directory = copy_of(built.directory, tmp_path)
    report = build_caches(directory, built.fit, built.calibrate, fidelity=1.0)
    assert report.caches.lookups == ()
    assert report.warning == ""
    assert report.seconds_with == report.seconds_without
    assert load_lookups(report.directory, backend="eager") == {}
    assert report.directory.names(CACHES) == (f"{CACHES}/caches.json",)
    assert ModelDirectory.open(directory.path).files == report.directory.files


def test_too_few_samples_give_no_exits_and_say_so(built: Built, tmp_path: Path) -> None:
    directory = copy_of(built.directory, tmp_path)
    few = built.calibrate.ordered(load_program(directory).spec.inputs).take(torch.arange(50))
    with pytest.warns(UserWarning, match=r"35 held-out samples .* over the next 2,000 answers .*it takes 100\)"):
        report = build_caches(directory, built.fit, few, fidelity=0.97)
    assert report.caches.lookups == ()
    assert "give more samples" in dict(report.rows())["warning"]
    assert load_lookups(report.directory, backend="eager") == {}


def test_a_cache_before_the_network_gives_it_an_empty_first_stage(built: Built) -> None:
    program = load_program(built.directory)
    assert program.entry
    assert built.report.caches.lookups[0].stage == 0
    alone = program.without_entry()
    assert alone.spec.stages == len(alone.stages) == program.spec.stages - 1
    assert alone.costs.remaining(0, 4) == program.costs.remaining(0, 4)
    rows = built.unseen[:4]
    assert torch.equal(alone.run(rows)[0], program.run(rows)[0])
    again = alone.with_entry()
    assert again.activations == program.activations
    assert again.costs.stages == program.costs.stages
    assert torch.equal(again.run_through(0, rows), rows)


@pytest.mark.usefixtures("one_core")
def test_a_model_keeps_its_stages_where_no_cache_stands_before_the_network(built: Built, tmp_path: Path) -> None:
    directory = build_caches(copy_of(built.directory, tmp_path), built.fit, built.calibrate, fidelity=1.0).directory
    assert load_program(directory).entry  # as it was before
    fresh = build_program(nn.Linear(4, 3), [torch.randn(8, 4)], directory=tmp_path / "m", name="m", backends=["eager"])
    rows = Samples((torch.randn(400, 4),))
    with pytest.warns(UserWarning, match="no lookup is small enough"):
        after = build_caches(fresh.directory, rows, rows, fidelity=0.9, task="classify").directory
    assert not load_program(after).entry


def test_a_cache_that_does_not_fit_its_stage_is_refused(built: Built, tmp_path: Path) -> None:
    directory = copy_of(built.directory, tmp_path)
    name = graph_file(built.report.caches.lookups[0].name)
    graph = directory.read(name).replace(b'"features"', b'"other"')
    with pytest.raises(RepositoryError, match="not a learned cache"):
        load_lookups(directory.write_files({name: graph}), backend="eager")


def copy_of(directory: ModelDirectory, folder: Path) -> ModelDirectory:
    return ModelDirectory.create(folder / "copy", {name: directory.read(name) for name in directory.files})


def weights(name: str) -> bool:
    return name.endswith(".safetensors") and name != HELD_OUT


@pytest.mark.usefixtures("one_core")
def test_calibrating_again_moves_thresholds_and_trains_nothing(built: Built, tmp_path: Path) -> None:
    shutil.copytree(built.directory.path, tmp_path / "copy")
    directory = ModelDirectory.open(tmp_path / "copy")
    before = {name: directory.read(name) for name in directory.names(CACHES) if weights(name)}
    assert isinstance(built.calibrate.inputs, dict)
    images = whole(built.calibrate.inputs["image"])
    noise = torch.rand(images.shape, generator=torch.Generator().manual_seed(0))
    report = recalibrate(directory, Samples({"image": torch.cat([images, noise])}), fidelity=0.9, confidence=0.9)
    assert sum(one.hit_rate for one in report.caches.lookups) < 0.95 * sum(
        one.hit_rate for one in built.report.caches.lookups
    )
    after = ModelDirectory.open(directory.path)
    assert {name: after.read(name) for name in after.names(CACHES) if weights(name)}.items() <= before.items()


@pytest.mark.usefixtures("one_core")
def test_a_promise_of_all_answers_tells_no_number_of_them(built: Built, tmp_path: Path) -> None:
    directory, few = copy_of(built.directory, tmp_path), samples(FIT, FIT + 200)
    for answers in (None, 100):
        report = recalibrate(directory, few, fidelity=0.9, confidence=0.9, answers=answers, aside=False)
        directory, caches = report.directory, read_caches(report.directory)
        assert caches is not None
        assert caches.answers == report.caches.answers == answers
        assert ("over the next 100 answers" in dict(report.rows())["fidelity"]) == (answers == 100)


def test_an_unknown_kind_is_told_before_anything_is_trained(built: Built) -> None:
    with pytest.raises(ConfigError, match="there is no predictor 'enormous'"):
        build_caches(built.directory, built.fit, built.calibrate, kinds=("enormous",))


def test_a_model_without_learned_caches_cannot_be_calibrated_again(built: Built, tmp_path: Path) -> None:
    shutil.copytree(built.directory.path, tmp_path / "copy")
    directory = build_caches(ModelDirectory.open(tmp_path / "copy"), built.fit, built.calibrate, fidelity=1.0).directory
    with pytest.raises(ConfigError, match="no learned caches"):
        recalibrate(directory, built.calibrate)


def test_too_few_rows_to_calibrate_on_leave_no_exits_and_keep_what_was_trained(built: Built, tmp_path: Path) -> None:
    report = recalibrate(copy_of(built.directory, tmp_path), samples(FIT, FIT + 3), fidelity=0.9)
    before, after = read_caches(built.directory), read_caches(report.directory)
    assert report.caches.lookups == ()
    assert "cannot show a fidelity of 0.9" in report.warning
    assert before is not None
    assert after is not None
    assert after.lookups == ()
    assert {one.name for one in after.every} == {one.name for one in before.every}


def share_right(directory: ModelDirectory, known: Samples) -> float:
    """What one run over all rows gives, without anything that was built for lookups."""
    assert isinstance(known.inputs, dict)
    assert known.labels is not None
    (answers,) = load_program(directory).run(whole(known.inputs["image"]))
    return float(answers.argmax(dim=1).eq(known.labels).double().mean())


def test_a_model_built_with_labels_remembers_how_often_it_is_right(built: Built) -> None:
    found = read_accuracy(built.directory)
    assert found is not None
    assert found.share == pytest.approx(share_right(built.directory, built.calibrate))
    assert found.samples == CALIBRATE
    assert 0.8 < found.share < 1.0
    assert dict(built.report.rows())["accuracy"].startswith(f"{found.share:.4f} on {CALIBRATE} held-out samples")


@pytest.mark.usefixtures("one_core")
def test_calibrating_again_without_labels_leaves_it(built: Built, tmp_path: Path) -> None:
    directory = write_accuracy(without_accuracy(built.directory, tmp_path), Accuracy(0.25, 4))
    report = recalibrate(directory, Samples(samples(0, 200).inputs), fidelity=0.9, confidence=0.9, aside=False)
    assert read_accuracy(report.directory) == Accuracy(0.25, 4)


@pytest.mark.parametrize("wrong", [Accuracy(1.5, 10), Accuracy(-0.1, 10), Accuracy(0.5, 0)])
def test_a_share_without_sense_is_refused(built: Built, tmp_path: Path, wrong: Accuracy) -> None:
    directory = without_accuracy(built.directory, tmp_path).write_files({ACCURACY: msgspec.json.encode(wrong)})
    with pytest.raises(RepositoryError, match=r"accuracy\.json has .*, which is not a share: build the model again"):
        read_accuracy(directory)


def trained(built: Built, *, in_line: float, beside: AsideLatency | None) -> list[TrainedLookup]:
    """One of the lookups of digits, with these figures in place of its own."""
    caches = read_caches(built.directory)
    assert caches is not None
    (one, *_) = caches.lookups
    program = load_program(built.directory, threads=1)
    functions = load_functions(built.directory, [one], backend=program.backend, threads=1)
    files = read_lookup(built.directory, one.name)
    return [TrainedLookup(one.stage, one.kind, files, functions[one.name], Curve((1,), (in_line,)), beside=beside)]


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


def test_the_way_is_kept_in_the_directory_and_heeded_by_whoever_serves(built: Built, tmp_path: Path) -> None:
    shutil.copytree(built.directory.path, tmp_path / "copy")
    directory = ModelDirectory.open(tmp_path / "copy")
    few = samples(FIT, FIT + 200)
    report = recalibrate(directory, few, fidelity=0.9, confidence=0.9, aside=True)
    caches = read_caches(report.directory)
    assert caches is not None
    assert report.caches.aside
    assert caches.aside
    assert caches.at_hand == caches.lookups
    assert load_model(report.directory.path, EngineConfig()).costs.aside
    back = recalibrate(report.directory, few, fidelity=0.9, confidence=0.9, aside=False)
    assert not back.caches.aside
    assert not load_model(back.directory.path, EngineConfig()).costs.aside


CLASSES, ROWS = 3, 3_000
GENERATOR = torch.Generator().manual_seed(0)


def selected_rows() -> tuple[Tensor, Tensor]:
    """Features that are logits, and answers of a base model that differ where the first class is likely."""
    features = 3.0 * torch.randn(ROWS, CLASSES, generator=GENERATOR)
    other = (features.argmax(dim=1) == 0) & (torch.rand(ROWS, generator=GENERATOR) < 0.5)
    classes = torch.where(other, 1, features.argmax(dim=1))
    return features, torch.nn.functional.one_hot(classes, CLASSES).float()


def doubting_head(*, doubts: int) -> Head:
    """Answers with the features themselves; its selector doubts one class very much."""
    layer, selector = torch.nn.Linear(CLASSES, CLASSES), Selector(CLASSES)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(CLASSES))
        layer.bias.zero_()
        selector.hidden.weight.zero_()
        selector.hidden.bias.zero_()
        selector.hidden.weight[0, doubts] = 1.0  # the share of that class
        selector.score.weight[0, 0] = -50.0
    return Head.of(layer, selector)


def chosen(given: Head) -> Head:
    features, answers = selected_rows()
    seen = apply_heads([given], [features], answers)
    (found,) = without_idle_selectors([given], seen, np.arange(ROWS), fidelity=0.98)
    return found


def test_a_selector_that_knows_better_than_the_odds_stays() -> None:
    given = doubting_head(doubts=0)
    assert chosen(given) is given


def test_a_selector_that_doubts_what_is_right_goes() -> None:
    found = chosen(doubting_head(doubts=2))
    assert not found.score_weight.any()
    assert not found.score_bias.any()
